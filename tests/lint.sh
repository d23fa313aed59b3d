# lint.sh -- holds mlcore.h, its tests and its contents against one another; awk and grep only, but for
# the reference, which needs python3.
# Silent and 0 if all is well.
found=$(
    awk -f tests/lint.awk mlcore.h
    awk -f tests/order.awk mlcore.h mlcore.h
    awk -f tests/words.awk mlcore.h

    for file in mlcore_cuda.* tests/*.[ch] tests/*.cpp tests/*/*.[ch] tests/*/*.cpp tests/*/*.cu \
                bench/*.[ch] examples/*.[ch] \
                examples/*/*.[ch] examples/*/*.[ch]pp; do
        [ -f "$file" ] && awk 'length($0) > 100 {print FILENAME ":" FNR ": over 100 columns"}
            /[ \t]$/ {print FILENAME ":" FNR ": blanks at the end of the line"}' "$file"
    done

    # A section IMPL.X.Y is tested in tests/test_x.c, or where these say.
    for section in $(awk '/^\/\* @@ IMPL\./ {split($3, part, "."); print part[2]}' mlcore.h | sort -u)
    do
        case $section in
            PLATFORM | SEAM | CPU | TYPES | END) continue ;;          # nothing of their own to test
            KERNELS) test=kernels_map ;;
            DISPATCH | CALL) test=backend ;;
            ERROR | MEMORY | RNG) test=ctx ;;
            GRADCHECK) test=tape ;;
            COMPRESS) test=prune ;;
            *) test=$(echo "$section" | tr '[:upper:]' '[:lower:]') ;;
        esac
        [ -f "tests/test_$test.c" ] || echo "mlcore.h: IMPL.$section has no tests/test_$test.c"
    done

    # Every operation has a row in a table of the tests, every loss a call in test_loss.c or
    # test_ctc.c, whose macros have a comma after the name.
    operations() {
        awk -v want=" $* " '/^\/\* @@ / {section = $3}
            /^MLC_API mlc_tensor / && index(want, " " section " ") && !/_forward\(/ &&
                match($0, /mlc_[a-z0-9_]+\(/) {print substr($0, RSTART, RLENGTH - 1)}' mlcore.h
    }
    # Names of ew_table.h: a row is one of mlc_NAME and mlc_NAME_, LAYER one of mlc_nn_NAME, too.
    rows=" $(grep -oE '\b(ROW|LAYER|WHOLE)\([a-z0-9_]+,' tests/ew_table.h | sed 's/WHOLE/ROW/; s/LAYER(\(.*\),/mlc_\1 mlc_\1_ mlc_nn_\1/
        s/ROW(\(.*\),/mlc_\1 mlc_\1_/' | tr '\n' ' ')"
    for name in $(operations API.OPS API.VISION API.TRANSFORMER); do
        case "$rows" in *" $name "*) continue ;; esac
        grep -q "\"$name\"" tests/test_*.c || echo "tests/test_*.c: no case for $name"
    done
    for name in $(operations API.LOSS API.RECURRENT); do
        grep -q "$name[(,]" tests/test_loss.c tests/test_ctc.c ||
            echo "tests/test_loss.c: no case for $name"
    done

    # Every public function runs while memory runs out.
    cat tests/test_faults*.c |
    awk -v rows="$rows" 'BEGIN {n = split(rows, row, " "); for (i = 1; i <= n; i++) seen[row[i]]}
         FNR == 1 {file++}
         file == 1 {while (match($0, /mlc_[a-z0-9_]+/)) {
                        seen[substr($0, RSTART, RLENGTH)]; $0 = substr($0, RSTART + RLENGTH) }}
         file == 2 && /^MLC_API / && match($0, /mlc_[a-z0-9_]+\(/) {
             name = substr($0, RSTART, RLENGTH - 1)
             if (!(name in seen)) print "tests/test_faults*.c: no CASE(" name ", ...)" }' \
        - mlcore.h

    # Every constructor of a module runs in every float dtype.
    sed -nE 's/^MLC_API mlc_module \*(mlc_nn_[a-z0-9_]+)\(.*/\1/p' mlcore.h | while read -r name; do
        grep -q "$name[(),]" tests/test_modules.c || echo "tests/test_modules.c: no $name"
    done

    # What tests/places.md names is there: sections, and names in ` ` but for those with NAME.
    grep -oE '\b(API|IMPL)\.[A-Z0-9_.]*[A-Z0-9_]' tests/places.md | sort -u | while read -r name; do
        grep -q "^/\* @@ $name[. ]" mlcore.h || echo "tests/places.md: no section $name"
    done
    grep -oE '`[A-Za-z0-9_ ]+`' tests/places.md | tr -d '`' | grep '^[mM][lL][cC]_' | sort -u |
        grep -v NAME | while read -r name; do
        grep -q "$name" mlcore.h || echo "tests/places.md: no $name in mlcore.h"
    done

    # Macros of the manual that change what the halves of the implementation share are in the names by
    # which the halves are linked.
    sed -n '/^ \* 7\. Macros/,/^ \* 8\. /p' mlcore.h | grep -oE '\bMLC_[A-Z0-9_]+' | sort -u |
        while read -r name; do
        case $name in
            MLC_PART | MLC_QUICK | MLC_MINIMAL | MLC_API | MLC_ASSERT | MLC_VSNPRINTF) continue ;;
            MLC_BLAS_INT | MLC_NO_CPP | MLC_FILE) continue ;;
        esac
        grep -q "^ *MLC__SAYS($name)" mlcore.h || echo "mlcore.h: no MLC__SAYS($name) in IMPL.SEAM"
    done

    # A family is drawn in the manual, named by README and CMake, and its macro is in the names by which
    # the halves are linked.
    sed -nE 's/^#  define MLC_NO_([A-Z_]+)$/\1/p' mlcore.h | sort -u | while read -r name; do
        grep -q "^ \* .*+-- $name " mlcore.h || echo "mlcore.h: the manual draws no $name"
        grep -q "^ *MLC__SAYS(MLC_NO_$name)" mlcore.h || echo "mlcore.h: no MLC__SAYS(MLC_NO_$name)"
        grep -qE "\`(MLC_NO)?_$name\`" README.md || echo "README.md: no MLC_NO_$name"
        grep -qE "[(|]$name[|)]" CMakeLists.txt || echo "CMakeLists.txt: no family $name"
    done

    # README's figures of compiling are those of tests/trend.csv and tests/budget.json, of small programs
    # tests/size.sh's.
    awk -F, 'FNR == NR {if ($5 + 0) row[$3] = sprintf("| %s | %.0f s | %.0f s |", $3, $4, $5); next}
             split($0, name, "\"") > 1 {sub(/.*: /, "", $0)
                 printf "%s %.1f MB |\n", row[name[2]], ($0 + 0) / 1e6}' \
        tests/trend.csv tests/budget.json | while read -r row; do
        grep -qxF "$row" README.md ||
            echo "README.md: no line $row, which tests/trend.csv and tests/budget.json say"
    done
    sizes=$(awk '/^program / {kb[$2] = int($5 / 1000 + 0.5)}
        END {printf "%d KB of mlcore, %d KB with `MLC_ONLY_F32`; one that infers %d and %d KB, ",
                    kb["train"], kb["train_f32"], kb["infer"], kb["infer_f32"]
             printf "one that trains a small CNN %d KB", kb["cnn"]}' tests/size.sh)
    case $(tr '\n' ' ' <README.md | tr -s ' ') in
        *"$sizes"*) ;;
        *) echo "README.md: no $sizes, which are the budgets of tests/size.sh" ;;
    esac

    # The version is that of CMake's package, of vcpkg's and of the newest changes.
    version=$(sed -n 's/^#define MLC_VERSION_STRING "\(.*\)"/\1/p' mlcore.h)
    grep -q "^project(mlcore VERSION $version " CMakeLists.txt ||
        echo "CMakeLists.txt: no project of version $version"
    grep -qxF "  \"version\": \"$version\"," .packaging/vcpkg/vcpkg.json ||
        echo ".packaging/vcpkg/vcpkg.json: the version is not $version"
    [ "$(sed -n 's/^## \([0-9.]*\) .*/\1/p' examples/CHANGES.md | head -n 1)" = "$version" ] ||
        echo "examples/CHANGES.md: the newest version is not $version"

    # examples/API.md is what the headers say, and names in their comments are declared.
    ! command -v python3 >/dev/null || python3 tests/reference.py --check 2>&1

    # No folder of the machine it was written on.
    grep -rnE '/(wor[k]|op[t])/' --exclude-dir=.git --exclude-dir='build*' --exclude-dir=__pycache__ .
)
[ -z "$found" ] && exit 0
printf '%s\n' "$found"
exit 1
