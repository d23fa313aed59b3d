# emulate.sh [REF] -- tests of the levels avx512, avx512x and amx on a processor that has AVX2 alone.
# Builds build/em/build/tests, of the working tree or of commit REF, whose mlcore.h has functions of
# tests/emulate_avx512.h in the place of the intrinsics, and a processor that says that it has all of
# them. Then, for instance: MLC_ISA=amx build/em/build/tests --filter gemm. --trace FILE
# EMULATE_FILES='gemm rows' takes these tests/test_*.c alone; EMULATE_TO names another folder. CC is
# gcc; CFLAGS, CPPFLAGS and the like are taken from the environment.
set -e
to=${EMULATE_TO:-build/em}
rm -rf "$to/tests"
mkdir -p "$to"
if [ -n "$1" ]; then git archive "$1"; else git ls-files -z | tar --null -T - -cf -; fi |
    tar -xf - -C "$to"
cp tests/emulate_avx512.h "$to"
sed -i -E 's/<immintrin\.h>/"emulate_avx512.h"/
    s/\b_mm512_/em_/g
    s/\b_mm256_(maskz?)_/em_\1_256_/g
    s/\b_mm256_dpbusd_avx_/em_256_dpbusd_avx_/g
    s/\b_tile_(stream_)?/em_tile_/g
    s/target\("(avx512|amx)[^"]*"\)/target("avx2,fma,f16c")/
    s/,avxvnni"/"/
    s/("a"\(leaf\), "c"\(sub\)\);)/\1 em_cpuid(leaf, sub, r);/
    s/return \(uint64_t\)hi << 32 \| lo;/return (void)hi, em_xgetbv();/
    s/syscall\(SYS_arch_prctl, [^;]*== 0;/true;/' "$to/mlcore.h"
if [ -n "$EMULATE_FILES" ]; then
    for file in "$to"/tests/test_*.c; do
        name=${file##*/test_}
        case " $EMULATE_FILES " in *" ${name%.c} "*) ;; *) rm "$file" ;; esac
    done
fi
unset MAKEFLAGS MLC_BUILD_CONFIG
export BLAS=none CFLAGS="-mavx2 -mfma -mf16c -Wno-psabi ${CFLAGS:--O1}"
make -s -C "$to" build/tests
