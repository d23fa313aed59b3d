# run.sh FOLDER -- builds the programs of this folder for a Cortex-M4, runs them in QEMU, prints the
# flash, RAM and instructions that they take. Debian: gcc-arm-none-eabi, libnewlib-arm-none-eabi,
# qemu-system-arm.
build=$1
here=examples/embedded
arm=arm-none-eabi
for command in $arm-gcc qemu-system-arm; do
    command -v $command >/dev/null || { echo "make embedded: needs $command"; exit 1; }
done

# One level, one thread, no files, f32 alone; only functions that are called.
flags="-mcpu=cortex-m4 -mthumb -mfloat-abi=hard -mfpu=fpv4-sp-d16 -std=gnu11 -Os -Wall -Wextra
       -ffunction-sections -fdata-sections -I. -I$here"
lean='-DMLC_NO_STDIO -DMLC_NO_THREADS -DMLC_NO_SIMD -DMLC_ONLY_F32'

# newlib-nano, with a vsnprintf for mlcore and for the program
nano="-include $here/vsnprintf.h"

# shellcheck disable=SC2086  (flags are words)

# implementation OBJECT FLAGS
implementation() {
    printf '#define MLCORE_IMPLEMENTATION\n#include "mlcore.h"\n' |
        $arm-gcc $flags $lean $2 -x c -c -o "$build/$1" - || exit 1
}

# program NAME LIBC SOURCE...
# shellcheck disable=SC2086
program() {
    name=$1 libc=$2
    shift 2
    $arm-gcc $flags $libc --specs=rdimon.specs -nostartfiles -Wl,--gc-sections -T $here/board.ld \
        -o "$build/$name.elf" "$@" $here/board.c -lm || exit 1
    code=$($arm-nm -S -t d "$build/$name.elf" |
           awk '$4 ~ /^mlc_/ && tolower($3) == "t" {n += $2} END {print n + 0}')
    printf '\n%s: %d bytes of mlcore, the rest is newlib, constants and the program\n' "$name" "$code"
    timeout 300 qemu-system-arm -M mps2-an386 -nographic -semihosting -icount shift=0 \
        -kernel "$build/$name.elf" || { echo "$name ended with status $?"; exit 1; }
}

# bare FILE LEVEL: the bytes of a file's functions with all that they call, linked alone; its
# constants are said in its first line. Prints both.
# shellcheck disable=SC2086
bare() {
    weights=$(sed -n '1s/.*, \([0-9]*\) bytes of constants.*/\1/p' "$1")
    [ -n "$weights" ] ||
        weights=$((4 * $(sed -n 's/.* net_w0\[\([0-9]*\)\].*/\1/p' "$1" | head -n 1)))
    $arm-gcc $flags $2 -std=c99 -Wconversion -Werror -DNET_NO_MAIN --specs=nano.specs -nostartfiles \
        -Wl,--gc-sections,-e,0,-u,net_run,-u,net_train,-u,net_reset,--no-warn-rwx-segments \
        -o "$build/bare.elf" "$1" -lm || exit 1
    all=$($arm-size -A "$build/bare.elf" | awk '/^[.](text|rodata|data)/ {n += $2} END {print n}')
    echo "$((all - weights)) $weights"
}

# exported FILE LEVEL: a file of mlc_plan_write_c, with its self-test, in QEMU; NAME_step.c is a
# training step, which learns.
# shellcheck disable=SC2086
exported() {
    name=$(basename "$1" .c) step=''
    case $name in *_step) step=-DSTEP ;; esac
    set -- "$1" "$2" $(bare "$1" "$2")
    $arm-gcc $flags $2 $step "-DEXPORTED=\"$1\"" -DCODE=$3 -DWEIGHTS=$4 --specs=rdimon.specs -nostartfiles \
        -Wl,--gc-sections -T $here/board.ld -o "$build/exported.elf" $here/exported.c $here/board.c \
        -lm || exit 1
    printf '%-18s %s ' "$name" "$2"
    timeout 300 qemu-system-arm -M mps2-an386 -nographic -semihosting -icount shift=0 \
        -kernel "$build/exported.elf" || { echo "$name ended with status $?"; exit 1; }
}

mkdir -p "$build" "$build/exported"
printf '%s\n' 'files of mlc_plan_write_c, bytes:'
rm -f "$build"/exported/*.c
"$build/export_tiny" "$build/exported" || exit 1
for file in "$build"/exported/*.c; do
    for level in -Os -O2; do exported "$file" $level; done
done
implementation mlcore-m4.o ''
implementation mlcore-m4-nano.o "$nano"
"$build/flash" examples/data/digits.csv "$build/flash.safetensors" >"$build/flash_digits.c" || exit 1
program xor '' $here/xor.c "$build/mlcore-m4.o"
program xor-nano "--specs=nano.specs $nano -Dprintf(...)=board_printf(__VA_ARGS__)" $here/xor.c $here/vsnprintf.c \
    "$build/mlcore-m4-nano.o"
program digits '' $here/digits.c "$build/flash_digits.c" "$build/mlcore-m4.o"
