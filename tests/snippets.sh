# snippets.sh README FOLDER -- compiles and runs each ```c block of README as C11 and, where there
# is a C++ compiler, as C++17, without a warning. A ```text block that follows <!-- output: exact -->
# is what the program before it must print. Leaves the number of good runs in FOLDER/passed.
readme=$1 out=$2
CC=${CC:-cc} CXX=${CXX:-c++}
passed=0 failed=0

rm -rf "$out"
mkdir -p "$out"
awk -v out="$out" '
    /^<!-- output: exact -->/ { exact = 1; next }
    /^```c$/        { n++; file = sprintf("%s/%02d.c", out, n); next }
    /^```text$/     { if (exact) file = sprintf("%s/%02d.want", out, n); exact = 0; next }
    /^```/          { if (file) close(file); file = ""; next }
    file            { print > file }' "$readme"

# try LABEL SOURCE COMPILER...: compiles, runs, compares.
try() {
    label=$1 source=$2 base=${2%.c}
    shift 2
    if ! "$@" -Wall -Wextra -Werror -O0 -I. "$source" -o "$base.run" -lm -pthread; then
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
echo "$passed" >"$out/passed"
echo "README           $((passed + failed)) programs"
[ "$failed" -eq 0 ]
