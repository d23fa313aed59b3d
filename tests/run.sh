# run.sh BUILD SAN FILTER -- runs the test program on every ISA level and on the test device, then
# the README's programs; the last line is the sum, "N passed, M failed", and the exit status says
# the same.
build=$1 san=$2 filter=$3
passed=0 failed=0

# The program's own last line is its count: added up, not shown. None at all is a failure.
run() {
    label=$1
    shift
    echo "-- $label"
    env "$@" "$build/tests" --filter "$filter" >"$build/run.log" 2>&1
    status=$?
    count=$(tail -n 1 "$build/run.log" | grep -E '^[0-9]+ passed, [0-9]+ failed$')
    if [ -z "$count" ]; then
        cat "$build/run.log"
        echo "the test program ended with status $status"
        failed=$((failed + 1))
        return
    fi
    sed '$d' "$build/run.log"
    passed=$((passed + ${count%% passed*}))
    count=${count#*, }
    failed=$((failed + ${count%% failed*}))
    if [ "$status" -ne 0 ] && [ "${count%% failed*}" -eq 0 ]; then
        echo "the test program ended with status $status"
        failed=$((failed + 1))
    fi
}

levels=$("$build/tests" --levels) || failed=$((failed + 1))
run "cpu, best level" MLC_TEST_DEVICE=
for level in $levels; do
    case "$level:$3" in
        avx512*:)                      # below a better level: its kernels, but for bf16
            for filter in gemm. amp. train.; do
                run "cpu, $level" MLC_TEST_DEVICE= MLC_ISA="$level"
            done
            filter= ;;
        *) run "cpu, $level" MLC_TEST_DEVICE= MLC_ISA="$level" ;;
    esac
done
run "test device" MLC_TEST_DEVICE=test

if [ -z "$san" ] && [ -z "$filter" ]; then
    echo "-- README"
    sh tests/snippets.sh README.md "$build/readme" || failed=$((failed + 1))
    passed=$((passed + $(cat "$build/readme/passed")))
fi

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
