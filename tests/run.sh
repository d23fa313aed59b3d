# run.sh BUILD SAN FILTER -- runs the test program on every ISA level and on the test device, then
# the README's programs; the last line is the sum, "N passed, M failed", and the exit status says
# the same.
build=$1 san=$2 filter=$3
passed=0 failed=0

# The program's own last line is its count: added up, not shown; the others are, as they come. None at
# all is a failure.
run() {
    label=$1
    shift
    echo "-- $label"
    rm -f "$build/run.status"
    { env "$@" "$build/tests" --filter "$filter" 2>&1; echo $? >"$build/run.status"; } |
        tee "$build/run.log" | grep -vE '^[0-9]+ passed, [0-9]+ failed$'
    status=$(cat "$build/run.status" 2>/dev/null || echo killed)
    count=$(tail -n 1 "$build/run.log" | grep -E '^[0-9]+ passed, [0-9]+ failed$')
    if [ -z "$count" ]; then
        echo "the test program ended with status $status"
        failed=$((failed + 1))
        return
    fi
    passed=$((passed + ${count%% passed*}))
    count=${count#*, }
    failed=$((failed + ${count%% failed*}))
    if [ "$status" != 0 ] && [ "${count%% failed*}" -eq 0 ]; then
        echo "the test program ended with status $status"
        failed=$((failed + 1))
    fi
}

# Other levels and the device share with the best level all but kernels, and the kernels' own tests
# go through all levels: there the suite is brief, but for products, which only a context reaches.
levels=$("$build/tests" --levels) || failed=$((failed + 1))
run "cpu, best level" MLC_TEST_DEVICE=
if [ -n "$filter" ]; then
    for level in $levels; do run "cpu, $level" MLC_TEST_DEVICE= MLC_ISA="$level"; done
    run "test device" MLC_TEST_DEVICE=test
else
    for level in $levels; do
        case $level in
            scalar) whole= ;;
            avx512*) whole='gemm. amp. train.' ;;      # all that differs from the best level
            *) whole=gemm. ;;
        esac
        case $level in
            avx512*) ;;
            *) run "cpu, $level" MLC_TEST_DEVICE= MLC_ISA="$level" MLC_TEST_BRIEF=1 ;;
        esac
        for filter in $whole; do
            run "cpu, $level, $filter" MLC_TEST_DEVICE= MLC_ISA="$level"
        done
        filter=
    done
    run "test device" MLC_TEST_DEVICE=test MLC_TEST_BRIEF=1
fi

if [ -z "$san" ] && [ -z "$filter" ]; then
    echo "-- README"
    sh tests/snippets.sh README.md "$build/readme" || failed=$((failed + 1))
    passed=$((passed + $(cat "$build/readme/passed")))
fi

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
