"""Writes the seeds of tests/fuzz/corpus: small files by numpy and safetensors, and by hand."""
import io, json, os, re, struct, sys, zlib
import numpy as np
from safetensors.numpy import load_file, save
HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "corpus")


def put(target, name, data):
    os.makedirs(os.path.join(HERE, target), exist_ok=True)
    with open(os.path.join(HERE, target, name), "wb") as f:
        f.write(data)


def npy(a):
    b = io.BytesIO()
    np.save(b, a)
    return b.getvalue()


def npz(**arrays):
    b = io.BytesIO()
    np.savez(b, **arrays)
    return b.getvalue()


def header(text, data):
    h = text.encode()
    return struct.pack("<Q", len(h)) + h + data


small = {"a": np.arange(3, dtype=np.float32), "b": np.ones((2, 2), np.int64),
         "c": np.array([True, False])}
net = {"0.weight": np.ones((5, 3), np.float32), "0.bias": np.ones(5, np.float32),
       "2.weight": np.ones((2, 5), np.float32), "2.bias": np.ones(2, np.float32)}
put("safetensors", "small", save(small, metadata={"format": "pt", "k": "v"}))
put("safetensors", "empty", header("{}", b""))
put("safetensors", "escapes", header('{"\\u00e9\\n":{"dtype":"U8","shape":[],"data_offsets":[0,1]}}', b"x"))
put("safetensors", "hole", header('{"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}', b"xy"))
put("npy", "f4", npy(np.arange(6, dtype=np.float32).reshape(2, 3)))
put("npy", "fortran", npy(np.asfortranarray(np.arange(6, dtype=">i2").reshape(2, 3))))
put("npy", "bool", npy(np.array([True, False])))
put("npy", "scalar", npy(np.float64(1)))
put("npz", "three", npz(**small))
put("npz", "none", npz())
put("idx", "u8", b"\0\0\x08\x02\0\0\0\x02\0\0\0\x03" + bytes(range(6)))
put("idx", "f64", b"\0\0\x0e\x01\0\0\0\x01" + struct.pack(">d", 1.5))
put("idx", "cifar", b"\x03" + bytes(3072))
put("csv", "numbers", b"\x00" + b"1,2.5\r\n-3,4e5\r\n")
put("csv", "table", b"\x01" + b'a,"b, c"\r\n1,"x ""y"" z"\r\nNA,"two\nlines"\r\n')
put("csv", "types", b"\x41" + b"t,f,i\n01,2.5,3\n02,NA,4\n")
put("state", "strict", b"\x00" + save(net))
put("state", "renamed", b"\x1f" + save({"module.a.weight": net["0.weight"],
                                         "module.b2.bias": net["2.bias"].astype(np.float16)}))
put("state", "parts", b"\x40" + save({"q.weight": net["0.weight"][:2], "0.weight": net["0.weight"][2:],
                                      ".bias": net["0.bias"][:2], "0.bias": net["0.bias"][2:],
                                      "2.weight": net["2.weight"][:, :2].T.copy(), "2.bias": net["2.bias"],
                                      "b": net["2.weight"][:, 2:].copy()}))
put("optim", "none", b"\x01\x01" + save(net))
for k in range(11):                                  # each rule: a file that is cut, one that is changed
    put("optim", f"cut{k}", bytes((k, 0, 200, k, 0, 0)))
    put("optim", f"changed{k}", bytes((k, 28, 90 + k, 5, 1, 1, 99, 9, 3, 255)))
put("optim", "block", bytes((0, 2, 50, 0, 0, 1)))
put("shapes", "some", bytes(range(200)))
nothing = bytearray(range(200))                      # sums of a tensor without elements
nothing[0x15], nothing[0x46:0x4c] = 0x14, bytes((0x4a, 0x4b, 0x47, 0x46, 0x48, 0x49))
put("shapes", "nothing", bytes(nothing))
put("shapes", "more", bytes((i * 37 + 11) % 256 for i in range(300)))
for d in range(9):
    put("roundtrip", "d%d" % d, bytes([d, d]) + bytes((i * 31) % 256 for i in range(64)))
# run/whole is b"\0" and the file that fuzz-run writes where FUZZ_RUN_SEED in the environment says.
put("run", "none", b"\x01")
put("run", "numbers", b"\x01" + b"".join(bytes((k, k, 0, k % 8)) + bytes(7)
                                         for k in range(0, 250, 25)))
put("run", "parts", b"\x03" + bytes(range(22)))
put("data", "npy", b"\0\0\0" + npy(np.arange(6, dtype=">i2").reshape(3, 2)))
put("data", "npz", b"\x01\x01\0" + npz(**small))
put("data", "safetensors", b"\x02\x01\0" + save(small))
put("data", "idx", b"\x03\0\0" + b"\0\0\x08\x02\0\0\0\x02\0\0\0\x03" + bytes(range(6)))
put("data", "cifar", b"\x04\x01\0" + b"\x03" + bytes(3072))
put("data", "tokens", b"\x05\x04\xc2" + bytes(range(80)))
put("data", "table", b"\x06\x05\0" + b"x,y\n1,a\n,b\n3,a\n")
put("data", "grey", b"\x07\0\0" + b"P5 # c\n2 2 15 abcd")
put("data", "colour", b"\x07\0\0" + b"P6 1 1 255 abc")


def text(name, what, flags, file, rest):
    put("text", name, bytes([what]) + struct.pack("<H", len(file)) + bytes([flags]) + file + rest)


# Each byte as GPT-2 writes it: those that print for themselves, the others from U+0100 on.
prints = [*range(33, 127), *range(161, 173), *range(174, 256)]
alphabet = [chr(c) for c in prints] + [chr(256 + i) for i in range(256 - len(prints))]
words = "Caf\u00e9s, na\u00efve \uc11c\uc6b8 \u6771\u4eac it's  the\t\U0001f600 \u0130 <a><b>[SEP] ".encode() + b"\xe2\x82x\xff"
text("lines", 0, 0x1c, b"[UNK]\n[CLS]\n[SEP]\na\n##b\ncafe\n##s\n,\n", words)
text("json", 1, 0x20, json.dumps({c: i for i, c in enumerate(alphabet)}, ensure_ascii=False).encode(), words)
text("escaped", 1, 0x22, b'{"\\u0120a":0,"b" : 1}', words)
text("merges", 2, 0x20, b"#version: 0.2\nt h\nth e\n\xc4\xa0 t\n", words)
text("bpe", 3, 0x22, b"", words)
text("wordpiece", 4, 0x0c, b"", words)
text("bytes", 5, 0x41, b"", words)

onnx = load_file(os.path.join(os.path.dirname(HERE), "..", "golden", "onnx.safetensors"))
for name in ("if_3 shape_mask shape_positions shape_expand lstm_bidirectional_all conv_uneven qlinear_conv "
             "resize_cubic_half_pixel gather_nd_batch scatter_nd slice_back pad_axes mlp_trace12 softmax_11 "
             "one_hot max_pool_uneven").split():
    put("onnx", name, onnx[name + ".onnx"].tobytes())


def png(width, height, depth, colour, rows, *chunks, interlaced=0, level=9, parts=1):
    """A PNG file of rows with their filters, in parts IDAT chunks."""
    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    data = zlib.compress(rows, level)
    step = -(-len(data) // parts)
    return (b"\x89PNG\r\n\x1a\n" +
            chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlaced)) +
            b"".join(chunk(*c) for c in chunks) +
            b"".join(chunk(b"IDAT", data[i:i + step]) for i in range(0, len(data), step)) +
            chunk(b"IEND", b""))


def rows(n, bytes_each):
    """Rows of all filters in turn."""
    return b"".join(bytes([y % 5]) + bytes((y * 7 + i * i) % 251 for i in range(bytes_each))
                    for y in range(n))


put("image", "grey", b"\0" + png(5, 6, 8, 0, rows(6, 5)))
put("image", "one_bit", b"\3" + png(9, 3, 1, 0, rows(3, 2), (b"tRNS", b"\0\1"), level=0))
put("image", "rgb16", b"\1" + png(3, 5, 16, 2, rows(5, 18), parts=9))
put("image", "palette", b"\2" + png(4, 4, 4, 3, bytes(12), (b"PLTE", bytes(range(48))), (b"tRNS", b"\7\x80")))
put("image", "rgba_adam7", b"\0" + png(2, 2, 8, 6, rows(3, 4)[:5] + rows(1, 4) + rows(1, 8), interlaced=1))
put("image", "runs", b"\x80" + png(40, 40, 8, 0, bytes(40 * 41), level=1))
put("image", "made", b"\x40" + bytes((8, 7, 3, 6, 1, 0, 0)) + rows(7, 33))
put("image", "made_palette", b"\x40" + bytes((9, 9, 1, 3, 0, 12, 3)) + bytes(range(60)))


def http(name, *parts):
    """Requests that come in pieces of 7 bytes; LENGTH is that of the part after it."""
    put("http", name, b"\5" + b"".join(
        p.encode("latin1").replace(b"LENGTH", str(len(q)).encode()) for p, q in zip(parts, parts[1:] + ("",))))


post, get = "POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\n", "GET / HTTP/1.1\r\nHost: a\r\n\r\n"
http("get", get + "HEAD /v2 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
http("infer", post + "Content-Length: LENGTH\r\n\r\n",
     '{"id":"\\u00e9","inputs":[{"name":"x","shape":[2,2],"datatype":"FP32","data":[[1,-2.5],[3e2,0.1]]}],'
     '"outputs":[{"name":"y","parameters":{"binary_data":true}}]}', get)
http("types", "PUT /a?b HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: LENGTH\r\n\r\n",
     '{"inputs":[{"name":"x","shape":[3],"datatype":"INT8","data":[true,1]},'
     '{"name":"b","shape":[2],"datatype":"BOOL","data":[true,0]}]}')
http("chunks", post + "Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n5;x=y\r\n{\"id\"\r\n"
     "f\r\n:\"\\ud83d\\ude00\"}\r\n0\r\nA: b\r\n\r\n" + get)
http("bytes", "\r\nPOST http://a/ HTTP/1.1\r\nHost: a\r\nInference-Header-Content-Length: 3\r\n"
     "Content-Length: 9\r\n\r\n{}\xff\0\1\2\3\4\5")
http("smuggle", post + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
with open(os.path.join(os.path.dirname(HERE), "..", "golden", "jpeg.h"), encoding="ascii") as f:
    jpegs = dict(re.findall(r"jpeg_(\w+)\[\] = {([^}]*)}", f.read()))
for name in "420 440 grey grey_progressive 444_progressive narrow rgb".split():
    put("image", "jpeg_" + name, b"\x80" + bytes(int(v) for v in jpegs[name].split(",") if v.strip()))
