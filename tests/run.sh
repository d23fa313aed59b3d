# run.sh BUILD SAN FILTER -- runs the test program on every ISA level and on the test device, the
# tests of the CUDA unit's kernels where that was built, then the programs of README and GUIDE; the
# last line is the sum, "N passed, M failed", and the exit status says the same.
build=$1 san=$2 filter=$3 program=$1/tests
counts=$build/run.counts
: >"$counts"

# run NAME LABEL VARIABLE=VALUE...: the program's own last line is its count: kept, not shown; the
# others are, as they come. None at all is a failure.
run() {
    name=$build/run.$1 label=$2
    shift 2
    echo "-- $label"
    rm -f "$name.status"
    { env "$@" "$program" --filter "$filter" 2>&1; echo $? >"$name.status"; } |
        tee "$name.log" | grep -vE '^[0-9]+ passed, [0-9]+ failed$'
    status=$(cat "$name.status" 2>/dev/null || echo killed)
    count=$(tail -n 1 "$name.log" | grep -E '^[0-9]+ passed, [0-9]+ failed$')
    case "$status: $count" in
        '0: '*', 0 failed' | *': '*', '[1-9]*' failed') ;;
        *)
            echo "the test program ended with status $status"
            echo '0 passed, 1 failed' >>"$counts"
            ;;
    esac
    echo "$count" >>"$counts"
}

# Other levels and the device share with the best level all but kernels, and the kernels' own tests
# go through all levels: there the suite is brief, but for products, which only a context reaches.
levels=$("$build/tests" --levels) || echo '0 passed, 1 failed' >>"$counts"
other_levels() {
    for level in $levels; do
        case $level in
            avx512*) ;;
            *) run "$level" "cpu, $level" MLC_TEST_DEVICE= MLC_ISA="$level" MLC_TEST_BRIEF=1 ;;
        esac
        case $level in
            scalar) whole= ;;
            avx512*) whole='gemm. amp. train.' ;;      # all that differs from the best level
            *) whole=gemm. ;;
        esac
        for filter in $whole; do
            run "$level" "cpu, $level, $filter" MLC_TEST_DEVICE= MLC_ISA="$level"
        done
        filter=
    done
}

if [ -n "$filter" ]; then
    run best "cpu, best level" MLC_TEST_DEVICE=
    for level in $levels; do run "$level" "cpu, $level" MLC_TEST_DEVICE= MLC_ISA="$level"; done
    run device "test device" MLC_TEST_DEVICE=test
else
    # Two at a time; what the device's prints is shown when it is done.
    run device "test device" MLC_TEST_DEVICE=test MLC_TEST_BRIEF=1 >"$build/run.device.out" 2>&1 &
    run best "cpu, best level" MLC_TEST_DEVICE=
    other_levels
    wait
    cat "$build/run.device.out"
fi

if [ -z "$san" ] && [ -z "$filter" ] && [ -x "$build/tests-cuda" ]; then
    program=$build/tests-cuda filter=cuda.
    run cuda "CUDA unit, kernels run by the CPU" MLC_TEST_DEVICE= MLC_TEST_BRIEF=1
    filter=
fi

if [ -z "$san" ] && [ -z "$filter" ]; then
    echo "-- documents"
    for document in README.md examples/GUIDE.md; do
        sh tests/snippets.sh $document "$build" || echo '0 passed, 1 failed' >>"$counts"
        echo "$(cat "$build/snippets/$(basename $document)/passed") passed, 0 failed" >>"$counts"
    done
fi

awk '{passed += $1; failed += $3}
     END {print passed " passed, " failed " failed"; exit failed != 0}' "$counts"
