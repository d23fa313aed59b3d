# digits_cnn.sh PROGRAM FOLDER -- runs examples/digits_cnn.c briefly: what it learns, its pictures,
# both dtypes, files as MNIST has them, and files that are missing or broken. Needs python3.
program=$1 out=$2
failed=0
rm -rf "$out"
mkdir -p "$out"

fail() { echo "FAILED: $*"; failed=1; }

# learns PERCENT ARGUMENTS...: the mean that it prints last is at least so much.
learns() {
    least=$1
    shift
    "$program" --out "$out" "$@" >"$out/log" || fail "$* ended with status $?"
    cat "$out/log"
    tail -n 1 "$out/log" | awk -v least="$least" \
        '/^held-out accuracy / && $3 >= least {good = 1} END {exit !good}' ||
        fail "$*: less than $least % right"
}

# pictures IMAGES NETWORKS: both are XML, the matrix counts every image once a network.
pictures() {
    python3 - "$out" "$1" "$2" <<'END' || fail "pictures of $1 images"
import re, sys
import xml.etree.ElementTree as xml
out, images, networks = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
svg = "{http://www.w3.org/2000/svg}"
matrix = xml.parse(out + "/digits_cnn_confusion.svg").getroot()
counts = [int(t.text) for t in matrix.iter(svg + "text")
          if t.get("text-anchor") == "middle" and int(t.get("y")) > 90]
assert sum(counts) == images * networks, (counts, images, networks)
filters = xml.parse(out + "/digits_cnn_filters.svg").getroot()
pixels = [p for p in filters.iter(svg + "path") if re.search(r"h12v12h-12z", p.get("d"))]
assert len(pixels) == 32 * 25, len(pixels)
END
}

# refuses TEXT ARGUMENTS...: ends with 1 and says so, naming the file.
refuses() {
    text=$1
    shift
    "$program" --out "$out" "$@" >"$out/log" 2>&1
    status=$?
    cat "$out/log"
    [ $status -eq 1 ] || fail "$*: status $status, want 1"
    grep -qF -- "$text" "$out/log" || fail "$*: the message does not say: $text"
}

learns 95 --seeds 2 --epochs 4
pictures 364 2
learns 90 --seeds 1 --epochs 4 --dtype bf16
cp "$out/digits_cnn.safetensors" "$out/one"
learns 90 --seeds 1 --epochs 4 --dtype bf16 --threads 1
cmp "$out/one" "$out/digits_cnn.safetensors" || fail 'threads change the network'

python3 tests/make_idx.py examples/data/digits.csv "$out/idx" 640
learns 80 --data "$out/idx" --seeds 1 --epochs 4
pictures 364 1

# broken NAME FILE TEXT: as idx, but FILE is what $out/bad has.
broken() {
    rm -rf "$out/$1"
    cp -r "$out/idx" "$out/$1"
    cp "$out/bad" "$out/$1/$2"
    refuses "$3" --data "$out/$1"
}
images=train-images-idx3-ubyte labels=train-labels-idx1-ubyte
head -c 100000 "$out/idx/$images" >"$out/bad"
broken cut $images "$images': the data is shorter than its header says"
head -c 3 "$out/idx/$images" >"$out/bad"
broken stub $images "$images': 3 bytes are no IDX file"
head -c 500 examples/data/digits.csv >"$out/bad"
broken text $images "$images': begins with 23 20 48 61"
gzip -c "$out/idx/$labels" >"$out/bad"
broken gzip $labels "$labels': looks like gzip"
cat "$out/idx/t10k-labels-idx1-ubyte" >"$out/bad"
broken fewer $labels "$labels: want a label an image"
cat "$out/idx/$labels" >"$out/bad"
broken swapped $images "$images: want bytes [n, side, side]"
{ head -c 647 "$out/idx/$labels"; printf '\n'; } >"$out/bad"
broken label $labels "$labels: want labels 0 .. 9"
rm "$out/cut/$images"
refuses "/cut/$images" --data "$out/cut"
refuses "$out/nowhere/train-images-idx3-ubyte" --data "$out/nowhere"
refuses "$out/nowhere.csv" "$out/nowhere.csv"
printf '1,2\n' >"$out/narrow.csv"
refuses 'narrow.csv: want 66 columns' "$out/narrow.csv"
grep -v '^#' examples/data/digits.csv | sed '3s/^0/17/' >"$out/dark.csv"
refuses 'dark.csv: row 3: want 64 pixels 0 .. 16 and a digit' "$out/dark.csv"
refuses "$out/none/digits_cnn_confusion.svg: No such file" --seeds 1 --epochs 1 --out "$out/none"
"$program" --epochs 0 2>"$out/log"
[ $? -eq 1 ] && grep -q 'wrong argument --epochs' "$out/log" || fail 'wrong usage'

[ $failed -eq 0 ] && echo 'digits_cnn: all as it should be'
exit $failed
