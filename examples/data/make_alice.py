#!/usr/bin/env python3
"""Writes alice.txt, the text that `make demo-gpt` learns.

It is in the source package of Brotli, whose tests compress it; run once, the result is committed:
    python3 -m pip download --no-deps --no-binary :all: brotli
    python3 examples/data/make_alice.py brotli-*.tar.gz
The text is Lewis Carroll's "Alice's Adventures in Wonderland" of 1865, in the edition 2.9 of the
Millennium Fulcrum, as the Canterbury corpus has it (alice29.txt); it is in the public domain.
Changes: line ends, blanks at the ends of lines, empty lines in a row and control characters.
"""
import pathlib
import re
import sys
import tarfile


def main():
    with tarfile.open(sys.argv[1]) as archive:
        name = next(n for n in archive.getnames() if n.endswith("/alice29.txt"))
        text = archive.extractfile(name).read().decode("latin-1")
    text = re.sub(r"[^\n -~]", "", text.replace("\r", ""))
    text = re.sub(r" +\n", "\n", text)
    text = re.sub(r"\n{3,}", "\n\n", text).strip("\n") + "\n"
    path = pathlib.Path(__file__).with_name("alice.txt")
    path.write_text(text, encoding="ascii", newline="\n")
    print(f"{path}: {len(text)} bytes, {len(set(text))} kinds")


if __name__ == "__main__":
    main()
