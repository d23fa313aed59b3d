# ab.sh REF TARGET... -- builds TARGETs twice: at commit REF, and at REF with the mlcore.h of the
# working tree. Both use the tests, benches and examples of REF, so that only the header differs; the
# harness tests/mlc_test.h and the Makefile are the working tree's. The results are
# build/ab/before/TARGET and build/ab/after/TARGET. CC, CFLAGS, CPPFLAGS and BLAS are taken from the
# environment.
# AB_TESTS=own: the after side has the tests and examples of the working tree, where those of REF no
# longer compile with its header, as arguments or descs have changed.
set -e
ref=$(git rev-parse --verify --quiet "$1^{commit}") ||
    { echo "ab.sh: '$1' is no commit; use REF=commit" >&2; exit 2; }
shift
for side in before after; do
    to=build/ab/$side
    mkdir -p "$to"
    if [ "$(cat "$to/ref" 2>/dev/null)" != "$ref" ]; then
        rm -rf "$to"
        mkdir -p "$to"
        git archive "$ref" | tar -xf - -C "$to"
        sed -i '/^#define MLCORE_IMPLEMENTATION/d' "$to"/examples/*.c   # the object has it
        echo "$ref" >"$to/ref"
    fi
    for file in tests/mlc_test.h Makefile; do
        cmp -s "$file" "$to/$file" || cp "$file" "$to/$file"
    done
done
cmp -s mlcore.h build/ab/after/mlcore.h || cp mlcore.h build/ab/after/mlcore.h
if [ "${AB_TESTS:-}" = own ]; then
    cp tests/*.[ch] build/ab/after/tests/
    cp examples/*.[ch] build/ab/after/examples/
    sed -i '/^#define MLCORE_IMPLEMENTATION/d' build/ab/after/examples/*.c
fi
unset MAKEFLAGS MLC_BUILD_CONFIG
for side in before after; do make -s -C build/ab/$side "$@" >&2; done
