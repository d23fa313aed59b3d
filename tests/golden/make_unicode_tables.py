#!/usr/bin/env python3
"""Writes the tables of IMPL.TEXT.UNICODE in mlcore.h, from the unicodedata of this Python.

    python3 tests/golden/make_unicode_tables.py            replaces them in mlcore.h

Numbers are varints (7 bits a byte, the lowest first, 128 means more); signed ones are zigzag.
    classes   length << 3 | class of each run of characters of one class, from U+0000 on
    lower     first - end of the last run, count << 1 | step - 1, signed difference
    base      first - end of the last run, count << 2 | n, then n characters for each, the first as
              a signed difference from the last one's: canonical decompositions without Mn
"""
import pathlib
import re
import unicodedata as u

HEADER = pathlib.Path(__file__).resolve().parent.parent.parent / "mlcore.h"
OTHER, LETTER, NUMBER, SPACE, PUNCT, MARK, CONTROL, SPACE_CONTROL = range(8)
WHITE = {0x20, 0x85, 0xA0, 0x1680, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000,
         *range(9, 14), *range(0x2000, 0x200B)}


def kind(c):
    category = u.category(chr(c))
    if c in WHITE:
        return SPACE_CONTROL if c in (0x0B, 0x0C, 0x85) else SPACE
    if category[0] == "P" or (32 < c < 127 and not chr(c).isalnum()):
        return PUNCT
    if category in ("Cc", "Cf", "Co") or c == 0xFFFD:
        return CONTROL
    return MARK if category == "Mn" else {"L": LETTER, "N": NUMBER}.get(category[0], OTHER)


def base(c):
    """The canonical decomposition without nonspacing marks; None where c stays as it is."""
    if u.category(chr(c)) == "Mn" or 0xAC00 <= c < 0xD7A4:
        return None
    to = [ord(x) for x in u.normalize("NFD", chr(c)) if u.category(x) != "Mn"]
    return to if to != [c] else None


def varint(v):
    out = []
    while v > 127:
        out.append(v & 127 | 128)
        v >>= 7
    return out + [v]


def signed(v):
    return varint(v * 2 if v >= 0 else -v * 2 - 1)


def classes():
    out, runs, start = [], 0, 0
    for c in range(1, 0x110001):
        if c == 0x110000 or kind(c) != kind(start):
            out += varint((c - start) << 3 | kind(start))
            runs += 1
            start = c
    return out, runs


def lower():
    pairs = [(c, ord(chr(c).lower()) - c) for c in range(0x110000)
             if len(chr(c).lower()) == 1 and chr(c).lower() != chr(c)]
    out, runs, end, i = [], 0, 0, 0
    while i < len(pairs):
        best = 1, 1
        for step in (1, 2):
            n = 1
            while i + n < len(pairs) and pairs[i + n] == (pairs[i][0] + n * step, pairs[i][1]):
                n += 1
            if n > best[0]:
                best = n, step
        n, step = best
        out += varint(pairs[i][0] - end) + varint(n << 1 | step - 1) + signed(pairs[i][1])
        end = pairs[i + n - 1][0] + 1
        runs += 1
        i += n
    return out, runs


def bases():
    table = [(c, base(c)) for c in range(0x110000) if not 0xD800 <= c < 0xE000 and base(c)]
    out, end, last, more, i = [], 0, 0, 0, 0
    while i < len(table):
        n = 1
        while (i + n < len(table) and table[i + n][0] == table[i][0] + n and
               len(table[i + n][1]) == len(table[i][1])):
            n += 1
        out += varint(table[i][0] - end) + varint(n << 2 | len(table[i][1]))
        for _, to in table[i:i + n]:
            out += signed(to[0] - last)
            for a, b in zip(to, to[1:]):
                out += signed(b - a)
            last = to[0]
            more += len(to) - 1
        end = table[i][0] + n
        i += n
    return out, (len(table), more + 2 * sum(len(to) > 1 for _, to in table))


def text(name, numbers, count):
    lines, line = [], "   "
    head = [f"#define MLC__UNICODE_{name.upper()} {count}"]
    if name == "bases":
        head = [f"#define MLC__UNICODE_BASES {count[0]}", f"#define MLC__UNICODE_MORE {count[1]}"]
    for v in numbers:
        if len(line) + len(str(v)) + 2 > 100:
            lines.append(line)
            line = "   "
        line += f" {v},"
    lines.append(line)
    return "\n".join([*head, f"static const uint8_t mlc__unicode_{name}_of[{len(numbers)}] = {{", *lines, "};"])


def main():
    parts = [("classes", *classes()), ("lower", *lower()), ("bases", *bases())]
    print({name: len(numbers) for name, numbers, _ in parts}, u.unidata_version)
    new = "\n".join(text(name, numbers, count) for name, numbers, count in parts)
    begin, end = "/* -- tables of Unicode", "/* -- end of the tables -- */"
    header = HEADER.read_text()
    pattern = re.escape(begin) + r".*?" + re.escape(end)
    assert len(re.findall(pattern, header, re.S)) == 1
    head = f"{begin} {u.unidata_version}, of tests/golden/make_unicode_tables.py -- */\n"
    HEADER.write_text(re.sub(pattern, lambda _: head + new + "\n" + end, header, flags=re.S))


if __name__ == "__main__":
    main()
