#!/usr/bin/env python3
"""Writes jpeg.h: small JPEG files by pillow, and the CRC-32 of the pixels that pillow reads from them.

Files are of every sampling that cameras and programs write. Those of 4:1:1, 4:4:0 and of four rows
to one are 4:2:0 and 4:2:2 files whose header says how blocks lie: as many blocks of each component
in another order, so that the picture is scrambled, but a file that every reader takes.
"""
import io
import os
import zlib

import numpy as np
from PIL import Image

HERE = os.path.dirname(os.path.abspath(__file__))


def picture(width, height, channels=3):
    y, x = np.mgrid[0:height, 0:width]
    planes = [127 + 90 * np.sin(x / 4 + k) + 60 * np.cos(y / (2 + k)) for k in range(channels)]
    a = np.clip(np.stack(planes, -1), 0, 255).astype(np.uint8)
    a[height // 3:height // 2, width // 4:width // 2] = (250, 20, 90, 128)[:channels]
    return Image.fromarray(a if channels > 1 else a[..., 0], "CMYK" if channels == 4 else None)


def file(width, height, channels=3, **how):
    to = io.BytesIO()
    picture(width, height, channels).save(to, "JPEG", **{"quality": 60, **how})
    return to.getvalue()


def sampled(data, sampling, width, height):
    """The file with another sampling of its first component, and size."""
    b = bytearray(data)
    at = next(i for i in range(len(b)) if b[i] == 255 and b[i + 1] in (0xC0, 0xC2))
    b[at + 5:at + 9] = height.to_bytes(2, "big") + width.to_bytes(2, "big")
    b[at + 11] = sampling
    return bytes(b)


exif = Image.Exif()
exif[0x0112] = 6                       # turned, which is not looked at
files = {
    "444": file(19, 13, subsampling="4:4:4", quality=90),
    "422": file(21, 11, subsampling="4:2:2"),
    "420": file(35, 21, subsampling="4:2:0", restart_marker_blocks=2),
    "411": sampled(file(32, 32, subsampling="4:2:0"), 0x41, 61, 13),
    "440": sampled(file(32, 16, subsampling="4:2:2"), 0x12, 14, 29),
    "four_rows": sampled(file(32, 32, subsampling="4:2:0"), 0x14, 13, 61),
    "narrow": file(3, 5, subsampling="4:2:0"),
    "one": file(1, 1),
    "grey": file(17, 11, 1),
    "grey_progressive": file(26, 9, 1, progressive=True, quality=95),
    "420_progressive": file(35, 21, subsampling="4:2:0", progressive=True, quality=85),
    "444_progressive": file(20, 20, subsampling="4:4:4", progressive=True, restart_marker_blocks=3),
    "optimal": file(24, 16, optimize=True, quality=97),
    "rgb": file(16, 9, keep_rgb=True),
    "noted": file(16, 16, exif=exif, icc_profile=bytes(600), comment=b"none"),
    "coarse": file(16, 16, quality=1),
}
with open(os.path.join(HERE, "jpeg.h"), "w", encoding="ascii") as to:
    to.write("/* jpeg.h -- JPEG files that pillow wrote, and the CRC-32 of the pixels that it reads, u8\n"
             " * [c,h,w]; made by make_jpeg_goldens.py */\n")
    rows = []
    for name, data in list(files.items()) + [("cmyk", file(8, 8, 4))]:
        to.write(f"static const unsigned char jpeg_{name}[] = {{\n")
        for i in range(0, len(data), 20):
            to.write("    " + ",".join(map(str, data[i:i + 20])) + ",\n")
        to.write("};\n")
        if name == "cmyk":
            continue
        a = np.asarray(Image.open(io.BytesIO(data)))
        a = a[None] if a.ndim == 2 else a.transpose(2, 0, 1)
        rows.append(f"    {{\"{name}\", jpeg_{name}, sizeof jpeg_{name}, {a.shape[0]}, {a.shape[1]},\n"
                    f"     {a.shape[2]}, 0x{zlib.crc32(a.tobytes()):08x}u}},\n")
    to.write(f"enum {{ JPEG_GOLDEN = {len(rows)} }};\n"
             "static const struct {\n    const char          *name;\n    const unsigned char *bytes;\n"
             "    size_t               n;\n    long long            c, h, w;\n    unsigned             crc;\n"
             "} jpeg_golden[JPEG_GOLDEN] = {\n" + "".join(rows) + "};\n")
