#!/usr/bin/env python3
"""Runs a program in a terminal of its own and draws what it shows there, as SVG.

    python3 bench/terminal.py OUT.svg COLUMNS PROGRAM [ARGUMENT...]   with a python3 that has rich

The README's picture: make test; python3 bench/terminal.py examples/training.svg 132 build/snippets/GUIDE.md/05.run
Lines that the program writes again end as they are when it ends.
"""
import fcntl
import os
import pty
import struct
import sys
import termios

from rich.console import Console
from rich.text import Text

FORMAT = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">
<style>{styles} .{unique_id}-matrix {{ font-family: monospace; font-size: {char_height}px;
line-height: {line_height}px; }}</style>
<defs><clipPath id="{unique_id}-clip-terminal"><rect width="{terminal_width}"
height="{terminal_height}"/></clipPath>{lines}</defs>
<rect width="100%" height="100%" rx="8" fill="#1f2430"/>
<g transform="translate({terminal_x}, {terminal_y}) translate(0, -24)"
clip-path="url(#{unique_id}-clip-terminal)">{backgrounds}
<g class="{unique_id}-matrix">{matrix}</g></g></svg>
"""


def shown(columns, command):
    """What a program writes to a terminal of so many columns."""
    child, terminal = pty.fork()
    if child == 0:
        os.environ["TERM"] = "xterm-256color"
        os.execv(command[0], command)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    text = b""
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:               # Linux: the child has closed its side
            break
        if not piece:
            break
        text += piece
    os.waitpid(child, 0)
    return text.decode("utf-8").replace("\r\n", "\n")


def main():
    """The last state of each line, with its colours."""
    out, columns, command = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    lines = [line.rsplit("\r", 1)[-1] for line in shown(columns, command).split("\n")]
    console = Console(width=columns, record=True, file=open(os.devnull, "w", encoding="utf-8"),
                      color_system="truecolor", legacy_windows=False)
    console.print(Text.from_ansi("\n".join(lines).rstrip()))
    console.save_svg(out, title="", code_format=FORMAT, unique_id="t")


if __name__ == "__main__":
    main()
