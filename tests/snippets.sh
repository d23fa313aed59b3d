# snippets.sh DOCUMENT BUILD -- compiles and runs each ```c block of a document as C11 and, where there
# is a C++ compiler, as C++17, without a warning, with the objects of the implementation in BUILD; then
# each ```cpp block as C++11 and C++20. A ```text block that follows <!-- output: exact --> is what the
# program before it must print. Leaves the number of good runs in BUILD/snippets/DOCUMENT/passed.
readme=$1 out=$2/snippets/$(basename "$1")
with="${IMPL:-$2/kernels.o $2/framework.o}" libs="$(sed -n 2p "$2/blas") -lm -pthread"
CC=${CC:-cc} CXX=${CXX:-c++}
passed=0 failed=0
link=$(command -v $CXX || echo $CC)

rm -rf "$out"
mkdir -p "$out"
awk -v out="$out" '
    /^<!-- output: exact -->/ { exact = 1; next }
    /^```cpp$/      { n++; file = sprintf("%s/%02d.cpp", out, n); next }
    /^```c$/        { n++; file = sprintf("%s/%02d.c", out, n); next }
    /^```text$/     { if (exact) file = sprintf("%s/%02d.want", out, n); exact = 0; next }
    /^```/          { if (file) close(file); file = ""; next }
    file            { print > file }' "$readme"

# try LABEL SOURCE COMPILER...: compiles, links, runs, compares.
try() {
    label=$1 source=$2 base=${2%.*}
    shift 2
    if ! "$@" -Wall -Wextra -Werror -O0 -I. -c "$source" -o "$base.o" ||
        ! $link -o "$base.run" "$base.o" $with $libs; then
        echo "$readme, program ${base##*/}: does not compile as $label"
    elif ! "$base.run" >"$base.got"; then
        echo "$readme, program ${base##*/}: fails as $label"
    elif [ -f "$base.want" ] && ! diff "$base.want" "$base.got"; then
        echo "$readme, program ${base##*/}: prints something else as $label"
    else
        passed=$((passed + 1))
        return
    fi
    failed=$((failed + 1))
}

for source in "$out"/*.c; do
    [ -f "$source" ] || { echo "$readme: no programs"; failed=1; break; }
    try C11 "$source" $CC -std=c11 -x c
    if command -v $CXX >/dev/null 2>&1; then
        try C++17 "$source" $CXX -std=c++17 -x c++
    fi
done
for source in "$out"/*.cpp; do
    [ -f "$source" ] && command -v $CXX >/dev/null 2>&1 || break
    for standard in 11 20; do
        try "C++$standard" "$source" $CXX -std=c++$standard
    done
done
echo "$passed" >"$out/passed"
printf '%-16s %d programs\n' "$(basename "$readme" .md)" $((passed + failed))
[ "$failed" -eq 0 ]
