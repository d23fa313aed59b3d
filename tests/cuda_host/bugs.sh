#!/usr/bin/env bash
# bugs.sh BUILD -- does tests/cuda_host find the bugs of bugs.cu, and nothing in its right forms?
#
# Each bug runs plain, in order (seed 0) and in ten random orders, where a wrong value, an error or
# an end by fibers.h finds it; if none does, with the address sanitizer (and alignment), then with
# the thread sanitizer, three seeds each. The right forms run in all modes with seeds 0 to 3.
# 38 of the 40 bugs must be found.
build=${1:?bugs.sh BUILD}
here=$(dirname "$0")
least=38
right=0 accused=0 found=0 missed=0

compile()
{
    ${CXX:-g++} -std=c++17 -g -O1 -ffp-contract=off -Wall -Wextra -Wno-unknown-pragmas -I"$here" \
        $2 -x c++ -o "$build/bugs-$1" "$here/bugs.cu"
}

# run MODE SEED BUG: fails where something is found.
run()
{
    CUDA_HOST_SEED=$2 TSAN_OPTIONS=halt_on_error=1 timeout 20 "$build/bugs-$1" "$3" \
        >"$build/bugs.out" 2>&1
} 2>/dev/null                          # a shell's own line on an abort

# finds MODE BUG SEED..: is the bug found with one of the seeds?
finds()
{
    mode=$1 n=$2
    shift 2
    for seed; do
        run "$mode" "$seed" "$n" || return 0
    done
    return 1
}

# What finds bug $1.
finder()
{
    orders=0
    for seed in 1 2 3 4 5 6 7 8 9 10; do
        run plain $seed "$1" || orders=$((orders + 1))
    done
    if ! run plain 0 "$1"; then
        if [ $orders = 10 ]; then echo always; else echo "order ($orders of 10 random)"; fi
    elif [ $orders != 0 ]; then echo "random order ($orders of 10)"
    elif finds asan "$1" 1 2 3; then echo ASan
    elif finds tsan "$1" 1 2 3; then echo TSan
    else echo 'not found'
    fi
}

ulimit -c 0
mkdir -p "$build"
compile plain '' && compile asan '-fsanitize=address,alignment -fno-sanitize-recover=all' &&
    compile tsan -fsanitize=thread || exit 1

for mode in plain asan tsan; do
    for seed in 0 1 2 3; do
        if run $mode $seed 0; then
            right=$((right + 1))
        else
            accused=$((accused + 1))
            echo "the right forms are accused: $mode, seed $seed"
            head -20 "$build/bugs.out"
        fi
    done
done

"$build/bugs-plain" list >"$build/bugs.list"
while IFS='|' read -r n kind what; do
    by=$(finder "$n")
    if [ "$by" = 'not found' ]; then missed=$((missed + 1)); else found=$((found + 1)); fi
    printf '%2d  %-8s %-66s %s\n' "$n" "$kind" "$what" "$by"
done <"$build/bugs.list"

failed=$accused
[ $found -ge $least ] || failed=$((failed + missed))
echo "$found of $((found + missed)) bugs are found, at least $least must be"
echo "$((right + found)) passed, $failed failed"
[ $failed = 0 ]
