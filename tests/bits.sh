# bits.sh REF [ISA] -- does mlcore.h of the working tree compute the same bits as REF's? Both run the
# tests of REF (goldens, gradients, trained networks, files) with --trace, which prints a hash of all
# numbers that a test reads, and train the digits, whose weights are compared as files; at each
# level, or at ISA. Prints a line a difference; the exit status is 0 if there is none.
set -e
export BLAS=none MLC_TEST_BRIEF="${MLC_TEST_BRIEF-1}"
sh tests/ab.sh "$1" build/tests build/digits build/digits_cnn
levels=${2:-$(build/ab/before/build/tests --levels) best}
out=build/ab/bits
mkdir -p "$out"
status=0
for level in $levels; do
    isa=$level
    [ "$level" != best ] || isa=
    for side in before after; do
        at=$PWD/$out/$side-$level
        rm -rf "$at"
        mkdir -p "$at"
        (cd build/ab/$side && export MLC_ISA="$isa" MLC_TEST_DEVICE= &&
            { build/tests --trace "$at/trace" >"$at/log" 2>&1 || true; } &&
            tail -n 1 "$at/log" | grep -qE '^[0-9]+ passed, [0-9]+ failed$' &&
            build/digits --seeds 1 --epochs 2 --out "$at/digits.safetensors" >>"$at/log" &&
            build/digits --dtype bf16 --seeds 1 --epochs 2 --out "$at/bf16.safetensors" \
                >>"$at/log" && build/digits_cnn --seeds 1 --epochs 1 --out "$at" >>"$at/log") ||
            { tail -n 20 "$at/log"; echo "$side does not run at $level"; exit 1; }
        # A file names the version that wrote it; of the rest each byte counts.
        LC_ALL=C sed -i 's/"mlcore.version":"[^"]*"/"mlcore.version":"-"/' "$at"/*.safetensors
    done
    echo "-- $level: $(wc -l <"$out/before-$level/trace") tests," \
        "$(awk '{n += $2} END {printf "%d", n}' "$out/before-$level/trace") numbers," \
        "$(find "$out/before-$level" -name '*.s*[sg]' | wc -l) files"
    if [ "${AB_TESTS:-}" = own ]; then                 # see tests/ab.sh: tests that both sides have
        for side in before after; do
            awk 'FNR == NR {seen[$3]; next} $3 in seen' \
                "$out/$([ $side = before ] && echo after || echo before)-$level/trace" \
                "$out/$side-$level/trace" >"$out/$side-$level/common"
        done
        echo "-- $(wc -l <"$out/after-$level/common") of them on both sides"
        diff "$out/before-$level/common" "$out/after-$level/common" || status=1
    else
        diff "$out/before-$level/trace" "$out/after-$level/trace" || status=1
    fi
    for file in digits.safetensors bf16.safetensors digits_cnn.safetensors \
        digits_cnn_filters.svg digits_cnn_confusion.svg; do
        cmp "$out/before-$level/$file" "$out/after-$level/$file" || status=1
    done
done
[ $status = 0 ] && echo 'the same bits'
exit $status
