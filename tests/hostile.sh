#!/usr/bin/env bash
# hostile.sh STEP... -- the test program on compilers, systems and flags that users have and authors
# forget; without STEP the list of steps. Each step builds under build-ci/ and its last line is
# "N passed, M failed", of the tests that it ran. A step whose compiler or emulator is not installed
# says "skipped" and succeeds, but not in CI, which installs all of them.
set -u
cd "$(dirname "$0")/.." || exit 1
out=build-ci
passed=0 failed=0

warn="-Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wundef -Wvla \
-Wpointer-arith -Wdouble-promotion -Werror"
warn_cpp="-Wall -Wextra -Wshadow -Wundef -Wvla -Wpointer-arith -Wdouble-promotion -Werror"

# need COMMAND...: false, and the step is over, where one is not here.
need() {
    for command in "$@"; do
        command -v "$command" >/dev/null && continue
        echo "skipped: no $command here"
        [ "${CI:-}" != true ] || failed=$((failed + 1))
        return 1
    done
}

fail() {
    echo "FAILED: $*"
    failed=$((failed + 1))
}

# build NAME CC [VARIABLE=VALUE...]: the test program as $out/NAME/tests; no warning of mlcore.h. The
# tests themselves are built with little optimisation, which is the faster way through them.
build() {
    local name=$1 cc=$2
    shift 2
    echo "-- build $name: $cc $*"
    mkdir -p "$out/$name"
    make -s "$out/$name/tests" BUILD="$out/$name" CC="$cc" BLAS=none CFLAGS=-O1 IMPL_FLAGS=-O2 "$@" \
        >"$out/$name/make.log" 2>&1 && ! grep -q 'mlcore\.h:.* warning:' "$out/$name/make.log" &&
        return
    cat "$out/$name/make.log"
    fail "$name does not build"
    return 1
}

# run NAME [COMMAND...]: runs it, by an emulator or with an environment, and counts its tests.
run() {
    local name=$1 log status count
    shift
    log="$out/$name/run.log"
    echo "-- run $name: $*"
    "$@" "$out/$name/tests" --filter "${FILTER:-}" >"$log" 2>&1
    status=$?
    count=$(tail -n 1 "$log" | tr -d '\r' | grep -E '^[0-9]+ passed, [0-9]+ failed$')
    if [ -z "$count" ]; then
        cat "$log"
        fail "$name ended with status $status"
        return
    fi
    tr -d '\r' <"$log" | grep -vE ' tests$|passed, [0-9]+ failed'
    passed=$((passed + ${count%% passed*}))
    count=${count#*, }
    failed=$((failed + ${count%% failed*}))
}

# ---- flags -------------------------------------------------------------------------------------

flags() {
    need "$1" || return
    build "$1-Os" "$1" CFLAGS='-Os -DNDEBUG -std=gnu17 -fwrapv -funsigned-char' IMPL_FLAGS= &&
        run "$1-Os" env
    build "$1-native" "$1" CFLAGS='-O1 -march=native -DNDEBUG -fno-math-errno' IMPL_FLAGS=-O3 &&
        run "$1-native" env
    lto "$1"
}
# Compiled and linked with -flto, without a word.
lto() {
    # shellcheck disable=SC2086  (flags are words)
    "$1" -std=c11 -O2 -flto=auto $warn -I. tests/include_a.c tests/include_b.c -o "$out/$1-lto" -lm \
        -pthread >"$out/$1-lto.log" 2>&1 && [ ! -s "$out/$1-lto.log" ] && "$out/$1-lto" &&
        passed=$((passed + 1)) || { cat "$out/$1-lto.log"; fail "$1 -flto=auto"; }
}
# The user's enums are short, the implementation's are not: FORCE_32 makes them the same.
flags_gcc() {
    flags gcc
    build gcc-enums gcc CFLAGS='-O1 -fshort-enums' IMPL_FLAGS=-fno-short-enums &&
        run gcc-enums env
}
flags_clang() { flags clang; }

# -ffast-math is refused where NaN would be lost, with a message that says what to add; added, the
# implementation keeps every bit. A program that starts with denormals flushed (what linking with
# -ffast-math does) trains as any other.
fast_math() {
    local cc message
    need gcc clang || return
    mkdir -p "$out"
    printf '#define MLCORE_IMPLEMENTATION\n#include "mlcore.h"\n' >"$out/fast.c"
    for cc in gcc clang; do
        message=$($cc -std=c11 -O2 -ffast-math -I. -c "$out/fast.c" -o "$out/fast.o" 2>&1) &&
            fail "$cc -ffast-math compiles"
        case $message in
            *"NaN checks need -fno-finite-math-only"*) passed=$((passed + 1)) ;;
            *) fail "$cc -ffast-math says: $message" ;;
        esac
        # clang's backend fuses for -ffp-contract=fast, whatever the source says.
        build "$cc-fast" "$cc" \
            IMPL_FLAGS='-O2 -ffast-math -fno-finite-math-only -ffp-contract=off' &&
            run "$cc-fast" env &&
            $cc -ffast-math "$out/$cc-fast"/*.o -o "$out/$cc-fast/tests" -lm -pthread &&
            for FILTER in tape. nn. optim. train.; do run "$cc-fast" env; done
        FILTER=
        # The user's files, which only include the declarations.
        $cc -std=c11 -O0 -I. -c tests/include_a.c -o "$out/fast_a.o" &&
            $cc -std=c11 -O2 -ffast-math -I. $warn -c tests/include_b.c -o "$out/fast_b.o" &&
            $cc -ffast-math "$out/fast_a.o" "$out/fast_b.o" -o "$out/fast" -lm -pthread &&
            "$out/fast" && passed=$((passed + 1)) || fail "$cc: a user's file with -ffast-math"
    done
}

# The header includes itself by its own name: whatever that is, wherever it is found. Where it has none
# an error says that MLC_FILE is needed, and with that it compiles. One function of each level is there.
own_name() {
    local cc language levels error='define MLC_FILE as the name' dir="$PWD/$out/a folder"
    need gcc g++ clang clang++ || return
    mkdir -p "$dir/of another one"
    cp mlcore.h "$dir/net.h"
    printf '#define MLCORE_IMPLEMENTATION\n#include "net.h"\n' >"$dir/quoted.c"
    printf '#define MLCORE_IMPLEMENTATION\n#include "../net.h"\n' >"$dir/of another one/quoted.c"
    printf '#define MLCORE_IMPLEMENTATION\n#include <a folder/net.h>\n' >"$dir/angle.c"
    printf 'int mine;\n' >"$dir/plain.c"
    { echo 'int mine;'; cat mlcore.h; } >"$dir/pasted.c"
    { echo '#line 1 "lost.h"'; cat mlcore.h; } >"$dir/line.h"
    printf '#define MLCORE_IMPLEMENTATION\n#include "line.h"\n' >"$dir/line.c"
    levels="mlc__norm_rows_avx2 mlc__norm_rows_avx512"
    [ "$(uname -m)" = x86_64 ] || levels=
    # name FLAGS...: all levels; lost FLAGS...: the one error, and with MLC_FILE all levels.
    name() {
        local text level
        text=$($cc -E "$@" 2>&1 <mlcore.h) || { fail "own_name: $cc $*"; return; }
        for level in $levels; do
            grep -q "$level(" <<<"$text" || { fail "own_name: $cc $*: no $level"; return; }
        done
        passed=$((passed + 1))
    }
    lost() {
        [ "$($cc -E "$@" 2>&1 <mlcore.h >"$out/lost.i" | grep -c 'error:')" = 1 ] &&
            $cc -E "$@" 2>&1 <mlcore.h | grep -q "error:.*$error" || fail "own_name: $cc $*: not that error"
        name "$@" -DMLC_FILE='"mlcore.h"' -I.
    }
    for cc in 'gcc -std=c11' 'g++ -std=c++17 -x c++' 'clang -std=c11' 'clang++ -std=c++17 -x c++'; do
        case $cc in *c++*) language=c++ ;; *) language=c ;; esac
        name "$dir/quoted.c"
        name "$dir/of another one/quoted.c"
        name -I"$PWD/$out" "$dir/angle.c"
        name -DMLCORE_IMPLEMENTATION -include "$dir/net.h" "$dir/plain.c"
        name -DMLCORE_IMPLEMENTATION -x "$language" mlcore.h
        lost -DMLCORE_IMPLEMENTATION -x "$language" -
        lost -DMLCORE_IMPLEMENTATION "$dir/pasted.c"
        lost "$dir/line.c"
        # As compilers of before __FILE_NAME__.
        name -U__FILE_NAME__ -DMLCORE_IMPLEMENTATION -x "$language" mlcore.h
        lost -U__FILE_NAME__ "$dir/quoted.c"
        $cc -E -DMLCORE_IMPLEMENTATION -DMLC_PART=framework -x "$language" - <mlcore.h >"$out/lost.i" &&
            passed=$((passed + 1)) || fail "own_name: $cc: the framework asks for a name"
    done
}

# ---- systems -----------------------------------------------------------------------------------

# 32 bits: sizes, atomics, alignment. x87 arithmetic is refused, since it rounds as it likes.
# gcc-multilib cannot be installed beside cross compilers; without it the kernel's headers are found
# behind the others.
m32() {
    local cc message
    need gcc clang || return
    mkdir -p "$out"
    printf '#define MLCORE_IMPLEMENTATION\n#include "mlcore.h"\n' >"$out/m32.c"
    if ! echo 'int main(void) { return 0; }' | gcc -m32 -x c - -o "$out/m32" 2>/dev/null; then
        need gcc-12-multilib
        return
    fi
    for cc in gcc clang; do
        cc="$cc -m32 -idirafter /usr/include/$(gcc -print-multiarch)"
        message=$($cc -std=c11 -O2 -I. -c "$out/m32.c" -o "$out/m32.o" 2>&1)
        case $message in
            *"on 32-bit x86 add -msse2 -mfpmath=sse"*) passed=$((passed + 1)) ;;
            *) fail "$cc says: $message" ;;
        esac
        build "m32-${cc%% *}" "$cc -msse2 -mfpmath=sse" IMPL_FLAGS="-O2 $warn" && run "m32-${cc%% *}" env
    done
}

musl() {
    need musl-gcc || return
    build musl 'musl-gcc -static' && run musl env MLC_TEST_DEVICE= &&
        run musl env MLC_TEST_DEVICE=test
}

# AArch64 with its NEON level, by emulation.
aarch64() {
    local cc=aarch64-linux-gnu-gcc
    need $cc qemu-aarch64 || return
    build aarch64 "$cc -static" IMPL_FLAGS="-O2 $warn" || return
    for FILTER in cast. ew. reduce. rows. sort. index. random. gemm. ops. goldens. backend. nn. amp. \
                  optim. train. bits. platform.; do
        run aarch64 qemu-aarch64
    done
    FILTER=
    aarch64-linux-gnu-objdump -d "$out/aarch64/kernels.o" |
        awk '/^[0-9a-f]+ <.*>:$/ {inside = /<mlc__map_f32_(blocks_)?(neon|scalar)/}     # one, if folded
             inside && /v[0-9]+\.4s/ {n++}
             END {print n + 0 " NEON instructions in mlc__map_f32"; exit n < 100}' ||
        fail "mlc__map_f32_neon is not vectorised"
}

# A program that shows decimal commas, and a folder for files with spaces and an umlaut. Only what
# the system itself says (strerror) may change with the locale, and no test asks for that.
locale() {
    local names=$PWD/$out/locale files="$PWD/$out/a folder, für files"
    need localedef || return
    mkdir -p "$names" "$files"
    localedef -i de_DE -f UTF-8 "$names/de_DE.UTF-8" || { fail 'localedef: no de_DE'; return; }
    build locale gcc &&
        run locale env LOCPATH="$names" MLC_TEST_LOCALE=de_DE.UTF-8 TMPDIR="$files"
}

# ---- checkers ----------------------------------------------------------------------------------

# Reads of memory that nobody wrote. The levels that MSan sees through: no AVX-512 in clang 14.
msan() {
    need clang || return
    build msan clang CFLAGS='-O1 -g -fno-omit-frame-pointer' \
        SAN_FLAGS='-fsanitize=memory -fno-sanitize-recover=all' || return
    run msan env MLC_TEST_DEVICE= MLC_ISA=avx2
    for FILTER in gemm. amp. backend. reduce. ew. rows.; do
        run msan env MLC_TEST_DEVICE= MLC_ISA=scalar
    done
    FILTER=
}

# gcc's analyzer on the implementation. It gives up silently where a program is too large for it: a
# fault planted behind the implementation has to be found, and nothing else. Without inlining it gets
# through; calls are followed all the same.
analyzer() {
    local found
    need gcc || return
    mkdir -p "$out"
    printf '%s\n' '#define MLCORE_IMPLEMENTATION' '#include "mlcore.h"' 'int planted(int n);' \
        'int planted(int n) { int *p = (int *)malloc(4); if (!p) return 0; *p = n;' \
        'if (n > 3) free(p); free(p); return 7; }' >"$out/analyzer.c"
    # One level: the stamps of the others are the same text. The parameters bound how far it goes into
    # each function: without them it takes 12 GB.
    found=$(gcc -std=c11 -O1 -DMLC_NO_SIMD -fno-inline -fanalyzer -I. -c "$out/analyzer.c" \
        --param analyzer-bb-explosion-factor=1 --param analyzer-max-enodes-per-program-point=2 \
        -o "$out/analyzer.o" -fdiagnostics-plain-output 2>&1 | grep -E '(warning|error):')
    echo "$found"
    case $found in
        *warning:*warning:*) fail "-fanalyzer" ;;
        *"/analyzer.c:5:"*double*) passed=$((passed + 1)) ;;
        *) fail "-fanalyzer misses the planted fault" ;;
    esac
}

# Style is the house's own matter: errors, warnings, performance and portability are asked for. What a
# function pointer's call returns cppcheck takes for a pointer to its arguments: that one is left out,
# and so is readdir, which is safe on a directory stream of one's own (readdir_r is deprecated). What an
# intrinsic writes it takes for uninitialized: it reads the portable kernels. A struct that is set
# member by member, or by the function that gets its address, it takes for uninitialized there.
cpp_check() {
    local macros
    need cppcheck || return
    for macros in '-D__x86_64__ -DMLC_NO_SIMD' '-DMLC_NO_THREADS -DMLC_NO_STDIO -DMLC_USE_CBLAS -DMLC_DEBUG'; do
        # shellcheck disable=SC2086  (macros are words)
        cppcheck -q --error-exitcode=1 --enable=warning,performance,portability --library=posix \
            --suppress=returnDanglingLifetime --suppress=readdirCalled --suppress=ctuuninitvar --std=c11 --language=c \
            --platform=unix64 --max-configs=1 -DMLCORE_IMPLEMENTATION \
            -D__GNUC__=12 -D__linux__ -D__unix__ $macros mlcore.h &&
            passed=$((passed + 1)) || fail "cppcheck $macros"
    done
}

# Windows, by MinGW: C and C++ compile, and what needs no POSIX of its own runs under wine: all but the
# tests that play with signals, limits and page protection.
mingw() {
    local cc=x86_64-w64-mingw32 file objects=() dir=$out/mingw
    need $cc-gcc $cc-g++ || return
    mkdir -p "$dir"
    printf '#define MLCORE_IMPLEMENTATION\n#include "mlcore.h"\n' >"$dir/impl.c"
    # shellcheck disable=SC2086  (flags are words)
    $cc-gcc -std=c11 -O2 $warn -I. -c "$dir/impl.c" -o "$dir/impl.o" &&
        $cc-g++ -std=c++17 -x c++ -O0 $warn_cpp -I. -c "$dir/impl.c" -o "$dir/implpp.o" &&
        $cc-gcc -std=c11 -O0 $warn -DMLC_NO_STDIO -I. -c "$dir/impl.c" -o "$dir/nofiles.o" &&
        $cc-g++ -std=c++17 -x c++ -O0 -I. tests/include_a.c tests/include_b.c -o "$dir/xor" &&
        passed=$((passed + 4)) || { fail "$cc: warnings"; return; }
    # With <windows.h> and its macros, before and after.
    printf '%s\n' '#include <winsock2.h>' '#include <windows.h>' '#include <tgmath.h>' \
        '#define MLCORE_IMPLEMENTATION' '#include "mlcore.h"' >"$dir/before.c"
    printf '%s\n' '#define MLCORE_IMPLEMENTATION' '#include "mlcore.h"' '#include <winsock2.h>' \
        '#include <windows.h>' >"$dir/after.c"
    for file in before after; do
        # shellcheck disable=SC2086  (flags are words)
        $cc-gcc -std=gnu11 -O0 $warn -I. -fsyntax-only "$dir/$file.c" &&
            $cc-g++ -std=c++17 -x c++ -O0 $warn_cpp -I. -fsyntax-only "$dir/$file.c" &&
            passed=$((passed + 2)) || fail "$cc: <windows.h> $file it"
    done
    for file in tests/main.c tests/test_*.c; do
        case $file in */test_io.c | */test_train.c) continue ;; esac
        # Microsoft's sin of large angles, %g and strtod are not exact: what compares with them.
        case $file in */test_goldens.c | */test_errors.c | */test_print.c) continue ;; esac
        grep -q 'sys/mman.h\|sys/resource.h\|sys/wait.h\|"guarded.h"\|"device.h"' "$file" && continue
        $cc-gcc -std=gnu11 -O1 -I. -c "$file" -o "$dir/$(basename "$file" .c).o" ||
            { fail "$file"; continue; }
        objects+=("$dir/$(basename "$file" .c).o")
    done
    # The test device needs mmap: none is there, and nothing leaks from it.
    printf '%s\n' '#include "mlc_test.h"' 'bool (*test_device_refuses)(void);' \
        'int64_t test_device_leaked(void) { return 0; }' >"$dir/device.c"
    $cc-gcc -std=gnu11 -O1 -I. -Itests -c "$dir/device.c" -o "$dir/device.o" &&
        objects+=("$dir/device.o")
    $cc-gcc -static "${objects[@]}" "$dir/impl.o" -o "$dir/tests" -lm -lpthread || { fail link; return; }
    command -v wine >/dev/null || { echo 'skipped: no wine here'; return; }
    mv "$dir/tests.exe" "$dir/tests" 2>/dev/null      # it appends the suffix
    run mingw env WINEDEBUG=-all WINEPREFIX="$PWD/$dir/wine" wine
}

# ---- what was asked for ------------------------------------------------------------------------

if [ $# -eq 0 ]; then
    echo "usage: $0 STEP...   STEP: $(sed -n 's/^\([a-z][a-z0-9_]*\)() .*/\1/p' "$0" |
        grep -vxE 'need|fail|build|run|flags|lto|name|lost' | tr '\n' ' ')"
    exit 2
fi
for step in "$@"; do
    "$step"
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
