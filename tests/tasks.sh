# tasks.sh BUILD [write] -- runs the programs of examples/tasks/, which BUILD has, compares what they
# print with examples/tasks/NAME.txt, and prints their lines beside those of bench/tasks/, the same
# programs in PyTorch. Lines that are neither blank nor comments count; no program may have over 1.3
# times PyTorch's, but for those named below. At the scalar level on one thread the bits, and so the
# texts, are the same whatever the machine and the compiler. write: the texts are written anew.
# Without python3 or a compiler of C++ the programs that need them do not run, which is said.
set -u
build=$(cd "$1" && pwd) write=${2:-} bad=0 || exit 1
cd "$(dirname "$0")/.." || exit 1
root=$PWD
export MLC_ISA=scalar MLC_THREADS=1 MLC_BLAS=never

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

# In C a class is a struct, a table and a creator. Python has a pool of threads, which share one
# network; here each has a context, and a network that shares the weights.
most() {
    case $1 in
        module) echo 1.5 ;;
        threads) echo 1.75 ;;
        *) echo 1.3 ;;
    esac
}

printf '%-12s %7s %8s %6s\n' program mlcore PyTorch ratio
for file in examples/tasks/*.c examples/tasks/*.cpp; do
    name=$(basename "${file%.*}") c=$(lines "$file") py=-
    [ ! -e "bench/tasks/$name.py" ] || py=$(lines "bench/tasks/$name.py")
    awk -v name="$name" -v c="$c" -v py="$py" -v most="$(most "$name")" 'BEGIN {
        ratio = py == "-" ? "-" : sprintf("%.2f", c / py)
        printf "%-12s %7d %8s %6s\n", name, c, py, ratio; exit py != "-" && c > most * py }' ||
        { echo "$name: over $(most "$name") times the lines of PyTorch's"; bad=1; }
done

run=$build/run
rm -rf "$run"
mkdir -p "$run/examples" "$run/runs"
ln -s "$root/examples/data" "$root/examples/tasks" "$run/examples"
if command -v python3 >/dev/null; then
    python3 tests/make_idx.py examples/data/digits.csv "$run/data/MNIST/raw" || exit 1
fi
cd "$run" || exit 1

# same NAME: NAME.txt here is that of examples/tasks.
same() {
    [ -z "$write" ] || cp "$1.txt" "$root/examples/tasks/$1.txt"
    diff -u "$root/examples/tasks/$1.txt" "$1.txt" || { echo "$1: prints something else"; bad=1; }
}
for file in "$root"/examples/tasks/*.c "$root"/examples/tasks/*.cpp; do
    name=$(basename "${file%.*}")
    case $name in
        mnist) [ -d data ] || { echo 'mnist: does not run, its files are made by python3'; continue; } ;;
        cpp) [ -e "$build/cpp" ] || { echo 'cpp: does not run, there is no compiler of C++'; continue; } ;;
    esac
    "$build/$name" >"$name.txt" 2>&1 || { echo "$name: fails"; bad=1; }
    if [ "$name" = flash ]; then
        # With the weights that it wrote: the program of a device.
        # shellcheck disable=SC2046,SC2086
        (cd "$root" && ${CC:-cc} -std=c11 -Werror -DDEVICE -I. -I"$run" ${SAN_FLAGS:-} ${CPPFLAGS:-} \
            ${CFLAGS:-} ${LDFLAGS:-} -o "$run/device" \
            examples/tasks/flash.c $IMPL $(sed -n 2p "$(dirname "$build")/blas") -lm -pthread) &&
            ./device >>flash.txt || bad=1
        # As a board has it: without files and threads, by its compiler where there is one.
        board=$(command -v arm-none-eabi-gcc) || board=${CC:-cc}
        $board -std=c11 -Werror -fsyntax-only -DDEVICE -DMLC_NO_STDIO -DMLC_NO_THREADS -DMLC_NO_SIMD \
            -DMLC_ONLY_F32 -DMLC_MINIMAL -I"$root" -I. "$root/examples/tasks/flash.c" || bad=1
    fi
    same "$name"
done
for name in $(sed -n 's/.*wrote //p' ./*.txt | tr -d ,); do
    [ -s "$name" ] || { echo "$name: is not there"; bad=1; }
done

# The same bits where SIGINT has stopped it in between: at its fourth file, which no speed moves.
cat >interrupt.c <<'END'
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>
/* A job in the background of a shell ignores it.                                              */
__attribute__((constructor)) static void heed(void) { signal(SIGINT, SIG_DFL); }
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
LD_PRELOAD=./interrupt.so "$build/resume" >stopped.txt 2>&1
[ "$(cat stopped.txt)" = 'stopped; start it again, and it goes on' ] ||
    { echo 'resume: SIGINT did not stop it'; cat stopped.txt; bad=1; }
"$build/resume" >resumed.txt 2>&1
cmp whole/best.safetensors runs/best.safetensors && cmp whole/log.csv runs/log.csv &&
    cmp resume.txt resumed.txt || { echo 'resume: stopped and resumed it is not the same'; bad=1; }
[ $bad -eq 0 ]
