# blas.sh BUILD -- which CBLAS to use: two lines in BUILD/blas, its flags to compile and to link
# with; written, and said, when they change. BLAS=none takes none. BLAS=auto takes an optimised one
# that pkg-config knows and that links; the reference library, which Debian calls "blas", is slower
# than mlcore's own kernels and is not asked for.
build=$1
name=none flags= libs=
if [ "$BLAS" != none ] && command -v pkg-config >/dev/null 2>&1; then
    for try in openblas mkl-dynamic-lp64-seq mkl-sdl blis; do
        pkg-config --exists "$try" || continue
        libs=$(pkg-config --libs "$try")
        # shellcheck disable=SC2086  (flags are lists of words)
        if echo 'void cblas_sgemm(void); int main(void) { cblas_sgemm(); return 0; }' |
            $CC -x c - -x none -o "$build/blas.try.$$" $LDFLAGS $libs -lm -pthread 2>/dev/null; then
            name="$try $(pkg-config --modversion "$try")"
            flags=-DMLC_USE_CBLAS
            break
        fi
        libs=
    done
    rm -f "$build/blas.try.$$"
fi
printf '%s\n%s\n' "$flags" "$libs" >"$build/blas.new.$$"
if cmp -s "$build/blas.new.$$" "$build/blas"; then
    rm "$build/blas.new.$$"
else
    mv "$build/blas.new.$$" "$build/blas"
    echo "BLAS: $name"
fi
