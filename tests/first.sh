# first.sh BUILD -- runs the programs of examples/first/, which BUILD has, holds what they print
# against bounds, and prints their lines beside those of bench/first/, the same programs in PyTorch.
# Lines that are neither blank nor comments count; no program may have over 1.3 times PyTorch's.
# `before` is what a newcomer wrote of mlcore 0.2, often with several statements in a line.
set -u
build=$PWD/$1 bad=0
cd "$(dirname "$0")/.." || exit 1

# lines FILE...: those of code; a comment of C may go over several.
lines() {
    awk 'FILENAME ~ /[.]py$/ { if (!/^[ \t]*(#|$)/) n++; next }
         { if (open && !sub(/^.*[*]\//, "")) next
           open = 0
           gsub(/\/[*]([^*]|[*]+[^*\/])*[*]+\//, "")
           if (sub(/\/[*].*/, "")) open = 1
           if (/[^ \t]/) n++ }
         END { print n + 0 }' "$@"
}

printf '%-8s %7s %7s %8s %6s\n' program before mlcore PyTorch ratio
while read -r name before; do
    c=$(lines "examples/first/$name.c") py=$(lines "bench/first/$name.py")
    awk -v name="$name" -v before="$before" -v c="$c" -v py="$py" 'BEGIN {
        printf "%-8s %7d %7d %8d %6.2f\n", name, before, c, py, c / py; exit c > 1.3 * py }' ||
        { echo "$name: over 1.3 times the lines of PyTorch's"; bad=1; }
done <<END
xor 18
mnist 39
text 53
gan 35
houses 36
resume 23
END

run=$build/run
rm -rf "$run"
mkdir -p "$run/examples" "$run/runs"
ln -s "$PWD/examples/data" "$run/examples/data"
python3 tests/make_idx.py examples/data/digits.csv "$run/data/MNIST/raw" || exit 1
cd "$run" || exit 1

# holds NAME PROGRAM: runs examples/first/NAME; the awk program ends with 0 if what it prints is right.
holds() {
    "$build/$1" >"$1.txt" 2>&1 && awk "$2" "$1.txt" && return
    echo "$1: prints"
    cat "$1.txt"
    bad=1
}
holds xor '{ gsub(/[][]/, ""); wrong += $1 < 0 || $1 > 1 || ($1 > 0.5) != (NR == 2 || NR == 3) }
           END { exit NR != 4 || wrong }'
# of FIELD: the number that follows it in the last line, in epoch LAST
last='function of(name,  i) { for (i = 1; i < NF; i++) if ($i == name) return $(i + 1); return -1 }'
holds mnist "$last"' END { exit !($2 == "3/3" && of("val_accuracy") > 0.9) }'
holds text "$last"' END { exit !($2 == "6/6" && of("val_accuracy") > 0.95) }'
holds gan 'END { exit !(NR == 5 && $2 > 0.8 && $2 < 1.2 && $4 < 0.3) }'
holds houses 'END { exit !($1 == 6 && $4 > 0.95) }'
holds resume 'END { exit !(/^best: val_loss/ && $5 > 0.9) }'

# The same bits where Ctrl-C has stopped it in between; the log says that it was before the end.
mv runs whole
set -m
stopped=0
for try in 1 2 3 4 5 6 7 8 9 10; do
    rm -rf runs
    mkdir runs
    "$build/resume" >stopped.txt 2>&1 &
    until [ -s runs/log.csv ] && [ "$(wc -l <runs/log.csv)" -ge 4 ]; do
        [ -n "$(jobs -r)" ] || break
    done
    kill -INT $! 2>/dev/null
    wait $!
    if [ ! -e runs/best.safetensors ]; then stopped=1; break; fi
done
"$build/resume" >resumed.txt 2>&1
[ $stopped = 1 ] && cmp whole/best.safetensors runs/best.safetensors &&
    cmp whole/log.csv runs/log.csv && [ "$(tail -n 1 resumed.txt)" = "$(tail -n 1 resume.txt)" ] ||
    { echo "resume: stopped in try $try and resumed it is not the same:"
      tail -n 1 stopped.txt resumed.txt; bad=1; }
[ $bad -eq 0 ]
