# tasks.sh BUILD -- runs the programs of examples/tasks/, which BUILD has, holds what they print
# against bounds, and prints their lines beside those of bench/tasks/, the same programs in PyTorch.
# Lines that are neither blank nor comments count; no program may have over 1.3 times PyTorch's.
set -u
build=$(cd "$1" && pwd) bad=0 || exit 1
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

printf '%-8s %7s %8s %6s\n' program mlcore PyTorch ratio
for name in xor mnist text gan houses resume; do
    c=$(lines "examples/tasks/$name.c") py=$(lines "bench/tasks/$name.py")
    awk -v name="$name" -v c="$c" -v py="$py" 'BEGIN {
        printf "%-8s %7d %8d %6.2f\n", name, c, py, c / py; exit c > 1.3 * py }' ||
        { echo "$name: over 1.3 times the lines of PyTorch's"; bad=1; }
done

run=$build/run
rm -rf "$run"
mkdir -p "$run/examples" "$run/runs"
ln -s "$PWD/examples/data" "$run/examples/data"
python3 tests/make_idx.py examples/data/digits.csv "$run/data/MNIST/raw" || exit 1
cd "$run" || exit 1

# holds NAME PROGRAM: runs examples/tasks/NAME; the awk program ends with 0 if what it prints is right.
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

# The same bits where SIGINT has stopped it in between: at its fourth file, which no speed moves.
cat >interrupt.c <<'END'
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>
int rename(const char *from, const char *to)
{
    static int files;
    if (++files == 4) raise(SIGINT);
    return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}
END
${CC:-cc} -shared -fPIC -o interrupt.so interrupt.c || exit 1
mv runs whole
mkdir runs
LD_PRELOAD=$PWD/interrupt.so "$build/resume" >stopped.txt 2>&1
[ ! -e runs/best.safetensors ] || { echo 'resume: SIGINT did not stop it'; bad=1; }
"$build/resume" >resumed.txt 2>&1
cmp whole/best.safetensors runs/best.safetensors && cmp whole/log.csv runs/log.csv &&
    [ "$(tail -n 1 resumed.txt)" = "$(tail -n 1 resume.txt)" ] ||
    { echo 'resume: stopped and resumed it is not the same:'
      tail -n 1 stopped.txt resumed.txt; bad=1; }
[ $bad -eq 0 ]
