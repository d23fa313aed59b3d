#!/usr/bin/env bash
# Fuzzes every reader: builds the targets, replays the corpus, then runs each for SECONDS.
#     tests/fuzz/run.sh SECONDS [TARGET...]
# New inputs are kept beside the build, not in the corpus; what fails is named and kept, too. Ends
# with "N passed, M failed".
set -u
cd "$(dirname "$0")/../.." || exit 1
seconds=${1:-30}
shift
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(safetensors npy npz idx image csv state optim run data text plan onnx http shapes roundtrip)
out=${FUZZ_OUT:-build-fuzz}
# At -O1 clang 14 takes over nine minutes for the library with these sanitizers, at -O0 one.
flags=(-std=c11 -O0 -g1 -I. -fno-sanitize-recover=all -DMLC_NO_AVX512)
passed=0 failed=0
mkdir -p "$out"
clang "${flags[@]}" -fsanitize=fuzzer-no-link,address,undefined -c tests/fuzz/library.c \
    -o "$out/library.o" || exit 1

# one TARGET: build, replay, fuzz.
one() {
    local name=$1 corpus="tests/fuzz/corpus/$1"
    mkdir -p "$out/$name" "$out/bad"
    clang "${flags[@]}" -fsanitize=fuzzer,address,undefined "tests/fuzz/$name.c" "$out/library.o" \
        -o "$out/fuzz-$name" -lm -pthread || return 1
    local dictionary=()
    [ ! -f "tests/fuzz/$name.dict" ] || dictionary=(-dict="tests/fuzz/$name.dict")
    "$out/fuzz-$name" "$corpus"/* >"$out/$name.log" 2>&1 || return 1
    "$out/fuzz-$name" -seed="${FUZZ_SEED:-1}" -max_total_time="$seconds" -timeout=5 -rss_limit_mb=512 -print_final_stats=1 \
        "${dictionary[@]}" -artifact_prefix="$out/bad/$name-" "$out/$name" "$corpus" \
        >>"$out/$name.log" 2>&1
}

# Two at a time.
run=()
for name in "${targets[@]}"; do
    one "$name" &
    run+=("$!:$name")
    [ ${#run[@]} -eq 2 ] || [ "$name" = "${targets[-1]}" ] || continue
    for entry in "${run[@]}"; do
        log="$out/${entry#*:}.log"
        if wait "${entry%%:*}"; then
            passed=$((passed + 1))
            printf '%-12s %s\n' "${entry#*:}" \
                "$(grep -o 'stat::number_of_executed_units: *[0-9]*' "$log" | tail -n 1)"
        else
            failed=$((failed + 1))
            echo "FAILED: ${entry#*:}"
            tail -n 40 "$log"
        fi
    done
    run=()
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
