# size.sh FOLDER -- the code of mlcore in small programs, in bytes: tests/size_*.c, linked with
# FOLDER/size_all.o and size_f32.o (MLC_ONLY_F32), which `make size` builds for size and one level.
# Fails where a program has more than its budget, or a function of a family that it does not call; and
# where from two objects, size_kernels.o and size_framework.o (MLC_PART), it has other kernels, or
# other public functions, than from one, or 1/2 % more bytes: compilers inline within an object, and
# so not quite the same in two.
build=$1
status=0

math='_math(_f|_scalar|$)|math_power'
conv='conv([^e]|$)|wino|depth|taps|patch|mlc_pad|_pad(_|$)'
pool='(max|avg|run|k)_pool|pool_(run|line|max|pick|grad|chunk|shape|forward|backward)'
norm='bnorm|batch_norm|norm_(run|row|stat|grad|sums|lines|chunk)|moments|resize'
rest='sketch|hadamard|sort|aggregate_(run|into)|compare|csv|npy|safetensors|print'
rest="$rest|signs|dropout|sink_drop|truncated|permutation|max_cols|anomaly|average|device_(open|alloc)"
rest="$rest|quant|qproduct|qpool|prune|shrink|sparse|sproduct|sparsify|lora|feat_|features"
rest="$rest|mask_(in|of|zeros|into|has|clear|count)(_|\.|$)"
train='backward_from|optim|xent|softmax|k_reduce|reduce_by|sum_over'
f32='adam_f64|(sink|tile|map|row|sum|dot)_f64(_|$)|map_half|sink_half|_low$|depth_.*(f64|bf16)'

# link NAME SOURCE OBJECT...: the program runs, too. Its functions are in size_NAME.txt.
link() {
    name=$1 source=$2
    shift 2
    for object; do
        set -- "$@" "$build/size_$object.o"
        shift
    done
    if ! $CC -std=c11 -I. -Os -static -Wl,--gc-sections -o "$build/size_$name" \
        "tests/size_$source.c" "$@" -lm || ! "$build/size_$name"; then
        echo "size_$name fails"
        status=1
    fi
    nm -S -t d "$build/size_$name" | awk '$3 ~ /^[tT]$/ && $4 ~ /^mlc_/ {print $2 + 0, $4}' \
        >"$build/size_$name.txt"
    bytes=$(awk '{n += $1} END {print n + 0}' "$build/size_$name.txt")
}

# program NAME SOURCE OBJECT BYTES FAMILIES
program() {
    link "$1" "$2" "$3"
    printf '%-10s %7d bytes\n' "$1" "$bytes"
    if [ "$gcc" = yes ] && [ "$bytes" -gt "$4" ]; then
        echo "size_$1: over its budget of $4 bytes"
        status=1
    fi
    if grep -E "$5" "$build/size_$1.txt"; then
        echo "size_$1: these are of families that it does not call"
        status=1
    fi
}

# named NAME: kernels and public functions of a program, without the suffixes of clones.
named() {
    sed -nE 's/^[0-9]+ (mlc_[a-z0-9][a-z0-9_]*|mlc__(k|run)_[a-z0-9_]+)(\..*)?$/\1/p' \
        "$build/size_$1.txt" | sort -u >"$build/size_$1.named"
}

# parts NAME: the program of this name from two objects beside that from one.
parts() {
    one=$(awk '{n += $1} END {print n + 0}' "$build/size_$1.txt")
    link "$1_parts" "$1" kernels framework
    printf '%-10s %7d bytes from two objects\n' "$1" "$bytes"
    named "$1"
    named "$1_parts"
    if [ $((bytes * 200)) -gt $((one * 201)) ] ||
        ! diff "$build/size_$1.named" "$build/size_$1_parts.named"; then
        echo "size_$1: from two objects it is not what it is from one"
        status=1
    fi
}

# Budgets are of what gcc makes on x86-64.
gcc=no
case $($CC -dumpmachine) in x86_64*) $CC --version | grep -q clang || gcc=yes ;; esac
program train train all 98400 "$math|$conv|$pool|$norm|$rest"
program train_f32 train f32 84950 "$math|$conv|$pool|$norm|$rest|$f32"
program infer infer all 62300 "$math|$conv|$pool|$norm|$rest|$train"
program infer_f32 infer f32 51900 "$math|$conv|$pool|$norm|$rest|$train|$f32"
program cnn cnn all 146100 "$math|mlc_pad|pad_forward|transpose_op|$norm|$rest"
link only only f32
for name in train infer cnn; do parts $name; done
exit $status
