"""Holds examples/serve.c: answers of each path, load, hostile clients, reloads and the end.

    python3 tests/serve_client.py PROGRAM FOLDER [--seconds 5] [--hostile 500] [--connections 64]
    python3 tests/serve_client.py PROGRAM FOLDER --page CHROMIUM     the page alone, in a browser
    python3 tests/serve_client.py PROGRAM FOLDER --beside COMMAND    the load alone, and then that of
                                                                     another server, bench/serve_ort.py

Starts PROGRAM on a free port of the loopback with FOLDER for its weights, and uses Python's standard
library alone. Every answer is checked: its id, and its numbers against those of the same image
alone. Speeds are printed, and never a reason to fail. Ends with "N checks, M failed".
"""
import argparse
import atexit
import json
import os
import random
import re
import resource
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

IMAGES = 64
checks = failures = 0


def check(ok, what):
    """Counts a check, and prints one that fails."""
    global checks, failures
    checks += 1
    if not ok:
        failures += 1
        print("FAILED:", what, flush=True)
    return ok


class Server:
    """A process of PROGRAM; its lines after the first are in `lines` when it has ended."""

    def __init__(self, program, folder, *more):
        self.start([program, "--port", "0", "--digits", folder + "/digits.safetensors",
                    "--text", folder + "/text.safetensors", *more], folder)

    def start(self, command, folder):
        self.log = os.path.join(folder, "serve.log")
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
        atexit.register(self.process.kill)               # whatever happens here
        late = threading.Timer(900, self.process.kill)   # it learns first
        late.daemon = True
        late.start()
        line = self.process.stdout.readline().decode()
        late.cancel()
        found = re.fullmatch(r"serving on http://127\.0\.0\.1:(\d+)\n", line)
        if not found:
            sys.exit("no server: " + line + open(self.log).read())
        self.port = int(found[1])

    def connect(self, seconds=60):
        return socket.create_connection(("127.0.0.1", self.port), seconds)

    def descriptors(self):
        """What each descriptor is: "socket", "pipe", a path."""
        folder, what = f"/proc/{self.process.pid}/fd/", {}
        for name in os.listdir(folder):
            try:
                what[int(name)] = os.readlink(folder + name).split(":")[0]
            except OSError:
                pass                      # it was closed meanwhile
        return what

    def seconds(self):
        """Of the processor."""
        with open(f"/proc/{self.process.pid}/stat") as f:
            used = f.read().rsplit(")", 1)[1].split()[11:13]
        return sum(map(int, used)) / os.sysconf("SC_CLK_TCK")

    def kilobytes(self):
        with open(f"/proc/{self.process.pid}/status") as f:
            return int(re.search(r"VmRSS:\s*(\d+)", f.read())[1])

    def kill(self, number):
        os.kill(self.process.pid, number)

    def end(self):
        """Waits for the end, which must be one without an error; a sanitizer's report is one."""
        out, _ = self.process.communicate(timeout=120)
        log = open(self.log).read()
        check(self.process.returncode == 0 and not log,
              f"the server ended with {self.process.returncode}: {log[-4000:]}")
        return out.decode()


class Reader:
    """Answers out of the bytes of a connection."""

    def __init__(self, sock):
        self.sock, self.bytes = sock, b""

    def more(self):
        got = self.sock.recv(65536)
        self.bytes += got
        return bool(got)

    def line(self):
        while b"\r\n" not in self.bytes:
            if not self.more():
                raise EOFError
        line, self.bytes = self.bytes.split(b"\r\n", 1)
        return line

    def take(self, n):
        while len(self.bytes) < n:
            if not self.more():
                raise EOFError
        got, self.bytes = self.bytes[:n], self.bytes[n:]
        return got

    def answer(self, head=False):
        """(status, headers, body) of the next answer."""
        first = self.line().decode("latin1")
        status = int(re.fullmatch(r"HTTP/1\.1 (\d{3}) [ -~]+", first)[1])
        headers = {}
        while line := self.line().decode("latin1"):
            name, value = line.split(": ", 1)
            headers[name.lower()] = value
        body = b""
        if headers.get("transfer-encoding") == "chunked":
            while n := int(self.line(), 16):
                body += self.take(n)
                self.line()
            self.line()
        elif "content-length" in headers and not head:
            body = self.take(int(headers["content-length"]))
        elif status != 100 and not head:
            while self.more():
                pass
            body, self.bytes = self.bytes, b""
        return status, headers, body

    def at_end(self):
        try:
            return not self.bytes and not self.more()
        except ConnectionError:
            return True


def post(path, body, *headers):
    """The bytes of a POST."""
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: a", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def soon(good, seconds=60):
    """Does it become so, in that time at most?"""
    until = time.monotonic() + seconds
    while not good():
        if time.monotonic() > until:
            return False
        time.sleep(.05)
    return True


def ask(server, request, head=False):
    """One answer on a connection of its own."""
    with server.connect() as sock:
        sock.sendall(request)
        return Reader(sock).answer(head)


def infer_body(rows, name=None, **more):
    flat = [v for row in rows for v in row]
    body = {"inputs": [{"name": "pixels", "shape": [len(rows), 64], "datatype": "FP32",
                        "data": flat}], **more}
    if name is not None:
        body["id"] = name
    return body


def digits(path, n):
    """n images that are held out, and their labels."""
    rows, labels = [], []
    with open(path) as f:
        for line in f:
            v = line.strip().split(",")
            if line.startswith("#") or len(v) != 66 or v[65] != "1":
                continue
            rows.append([float(x) / 16 for x in v[:64]])
            labels.append(int(v[64]))
    return rows[:n], labels[:n]


def near(a, b):
    return len(a) == len(b) and all(abs(x - y) <= 1e-4 * (1 + abs(y)) for x, y in zip(a, b))


# ---- one by one

GET = "GET {} HTTP/1.1\r\nHost: a\r\n\r\n"
HELD = "GET /v2 HTTP/1.1\r\nHost: a\r\n{}\r\n\r\n"
INFER = "/v2/models/digits/infer"
MANY = "".join(f"H{i}: x\r\n" for i in range(200))
STATUS = [                                # bytes, and the status of their answer
    (GET.format("/"), 200), (GET.format("/v2"), 200), (GET.format("/v2/health/live"), 200),
    (GET.format("/v2/health/ready"), 200), (GET.format("/v2/models/digits"), 200),
    (GET.format("/v2/models/digits/versions/1"), 200), (GET.format("/v2/models/text/ready"), 200),
    (GET.format("/metrics?a=b"), 200), (GET.format("http://a/v2"), 200),
    ("\r\n" + GET.format("/v2"), 200), ("GET /v2 HTTP/1.0\r\n\r\n", 200),
    (GET.format("/v3"), 404), (GET.format("/v2/models/none"), 404),
    (GET.format("/v2/models/digits/versions/2"), 404), (GET.format("/" + "a" * 300), 404),
    (GET.format("/v2/models/" + "a" * 70), 404), (GET.format("/../etc/passwd"), 404),
    (GET.format(INFER), 405), (GET.format("/v2/models/text/generate"), 405),
    ("DELETE /v2 HTTP/1.1\r\nHost: a\r\n\r\n", 405), ("FETCH / HTTP/1.1\r\nHost: a\r\n\r\n", 501),
    (f"POST {INFER} HTTP/1.1\r\nHost: a\r\n\r\n", 411),
    (f"POST {INFER} HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\n", 413),
    (f"POST {INFER} HTTP/1.1\r\nHost: a\r\nContent-Length: {10**30}\r\n\r\n", 413),
    (f"POST {INFER} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nffffffffff\r\n", 413),
    (GET.format("/" + "a" * 9000), 414), ("GET / HTTP/1.1\r\n" + MANY + "\r\n", 431),
    ("GET / HTTP/1.1\r\nHost: a\r\nA: " + "b" * 20000, 431), ("GET / HTTP/2.0\r\n\r\n", 505),
    ("GET / HTTP/1.1\r\nHost: a\r\nExpect: tea\r\n\r\n", 417),
    (f"POST {INFER} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
    ("GET / HTTP/1.1\r\n\r\n", 400), ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
    ("GET /\r\n\r\n", 400), ("GET / HTTP/1.1\nHost: a\n\n", 400), ("\x16\x03\x01\x02\x00\r\n", 400),
    ("GET / HTTP/1.1\r\nHost: a\r\nA : b\r\n\r\n", 400), ("GET / HTTP/1.1\r\n a: b\r\n\r\n", 400),
    ("GET / HTTP/1.1\r\nHost: a\x00\r\n\r\n", 400), ("GET a HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    (f"POST {INFER} HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400),
    (f"POST {INFER} HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx", 400),
    (f"POST {INFER} HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
     400),
    (f"POST {INFER} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nxy\r\n", 400),
    # What follows would be answered by 200 if its body were read at all.
    *((HELD.format(f"Content-Length:{n}") + "x", status)
      for n, status in ((" 1", 200), (" 01", 200), ("", 400), (" +1", 400), (" 1, 1", 400), (" 0x1", 400),
                        (" 1 1", 400), ("\v1", 400), (" 1;a", 400), ("\r1", 400), (" 1\n", 400),
                        (" 1\r\nContent-Length: 1", 400), (" 1\r\nContent-length: 0", 400))),
    *((HELD.format(f"Transfer-Encoding:{t}") + "0\r\n\r\n", status)
      for t, status in ((" chunked", 200), ("Chunked\t", 200), ("", 501), (" x", 501), (" gzip, chunked", 501),
                        (" chunked, chunked", 501), (" chunked;a", 501), (' "chunked"', 501),
                        (" chunked\r\nTransfer-Encoding: identity", 501),
                        (" chunked\r\nTransfer-Encoding: chunked", 501), ("\vchunked", 400),
                        ("\r\n chunked", 400), (" chunked\r\nContent-Length: 5", 400), ("\0chunked", 400),
                        (" chunked\n", 400))),
    ("GET /v2 HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    *((HELD.format("Transfer-Encoding: chunked") + c + "\r\nab\r\n0\r\n\r\n", status)
      for c, status in (("2", 200), ("02", 200), ("2 ;a", 200), ("2;a=\"b\";c", 200), ("2 2", 400), ("2 ", 400),
                        (" 2", 400), ("0x2", 400), ("+2", 400), ("-2", 400), ("2;a\r", 400), ("2;a\0", 400),
                        ("2\v", 400), ("2;a\n", 400), ("2\n", 400), ("", 400), (";a", 400), ("3", 400),
                        ("1", 400), ("2;" + "a" * 200, 400))),
    *((HELD.format("Transfer-Encoding: chunked") + f"0\r\n{t}\r\n\r\n", status)
      for t, status in (("a: b", 200), ("a: b\r\nc:", 200), ("GET / HTTP/1.1", 400), (" a: b", 400),
                        ("a b: c", 400), ("a: \rb", 400), ("a: b\n", 400), ("a: " + "b" * 20000, 431))),
    *((f"GET / HTTP/1.1\r\nHost: a\r\n{h}\r\n\r\n", 400)
      for h in ("a\tb: c", "\x01a: b", "a: b\x01", "a: b\x7f", "a", ": a", "a: b\n c: d", "a\xe9: b")),
    ("GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400), ("GET / HTTP/1.1 \r\nHost: a\r\n\r\n", 400),
    ("GET /\t HTTP/1.1\r\nHost: a\r\n\r\n", 400), (GET.format("/v2/models/d%69gits"), 404),
    (post(INFER, b"{}"), 400), (post(INFER, b"[1"), 400), (post(INFER, b"[" * 5000), 400),
    (post(INFER, infer_body([[0] * 63])), 400), (post(INFER, infer_body([[0] * 65])), 400),
    (post(INFER, infer_body([[1e39] * 64])), 400), (post(INFER, infer_body([[0] * 64] * 33)), 400),
    (post(INFER, infer_body([[0] * 64], outputs=[{"name": "none"}])), 400),
    (post(INFER, json.dumps(infer_body([[0] * 64])).replace("FP32", "FP64").encode()), 400),
    (post(INFER, json.dumps(infer_body([[0] * 64])).replace("64]", "-1]").encode()), 400),
    (post(INFER, json.dumps(infer_body([[0] * 64])).encode() + b"x"), 400),
    *((post(INFER, json.dumps(infer_body([[0] * 64])).replace("[1, 64]", shape).encode()), 400)
      for shape in ("[0, 64]", "[]", "[64]", "[64, 1]", "[1, 1, 64]", "[1.5, 64]", "[1e999, 64]",
                    "[1099511627776, 1099511627776, 1099511627776, 64]", "[4294967296, 4294967296]",
                    "[18446744073709551617, 64]", "[1, 64, 1, 1, 1, 1, 1, 1, 1, 1, 1]", "64", "null")),
    *((post(INFER, json.dumps(infer_body([[0] * 64])).replace("[0, 0,", f"[{v}, 0,").encode()), 400)
      for v in ("00", "01", "-", "+1", ".5", "1.", "1e", "1e999", "-1e999", "NaN", "Infinity", "null",
                "0x1", "1,", "\"1\"", "true", "[0", "[[[[[[[[[[0]]]]]]]]]", "1" * 500)),
    *((post(INFER, json.dumps(infer_body([[0] * 64])).replace('"inputs"', f'"id": "{s}", "inputs"')
            .encode("latin1")), 400)
      for s in ("\\u0000", "\\ud800", "\\udc00", "\\ud800\\ud800", "\\u12", "\\q", "\n", "\0")),
    (post(INFER, json.dumps(infer_body([[0] * 64], more="?")).replace("?", "\n").encode()), 400),
    (post(INFER, b'{"a":' * 5000), 400), (post(INFER, b'{"a":"\\'), 400),
    (post(INFER, b"{}", "Inference-Header-Content-Length: 3"), 400),
    (post("/v2/models/text/infer", b"{}"), 404), (post("/v2/models/digits/generate", b"{}"), 404),
    (post("/v2/models/text/generate", {"text_input": ""}), 400),
    (post("/v2/models/text/generate", {"text_input": "a", "max_tokens": 0}), 400),
    *((post("/v2/models/text/generate", b'{"text_input":"a","max_tokens":1,"%s":%s}' % p), 400) for p in (
        (b"temperature", b"1e999"), (b"temperature", b"-1"), (b"top_p", b"2"), (b"top_p", b"-1e999"),
        (b"top_k", b"1.5"), (b"top_k", b"-1"), (b"seed", b"-1"), (b"max_tokens", b"1e999"), (b"a", b"01"))),
    (post("/v2/models/text/generate", {"text_input": "a\0"}), 400),
    (post("/v2/models/text/generate", {"text_input": "a" * 250, "max_tokens": 200}), 400),
    (post("/v2/repository/models/none/load", b""), 404),
]


def statuses(server):
    for request, status in STATUS:
        request = request if isinstance(request, bytes) else request.encode("latin1")
        try:
            got, headers, body = ask(server, request)
        except (EOFError, OSError) as e:
            got, headers, body = e, {}, b""
        check(got == status, f"{request[:100]}: {got}, want {status}")
        if status >= 400:
            check(headers.get("content-type") == "application/json" and
                  isinstance(json.loads(body or b"0"), dict) and "error" in json.loads(body),
                  f"{request[:100]}: {body} is no error")


def connections(server, rows):
    """Keep-alive, pipelining, 100-continue, chunks, half-closed sockets, HEAD, HTTP/1.0."""
    with server.connect() as sock:
        read = Reader(sock)
        for i in range(3):
            sock.sendall(post(INFER, infer_body(rows[i:i + 1], str(i))))
            check(json.loads(read.answer()[2])["id"] == str(i), "keep-alive")
        sock.sendall(b"".join(post(INFER, infer_body(rows[i:i + 1], str(i))) for i in range(20)) +
                     GET.format("/v2").encode())
        got = [json.loads(read.answer()[2])["id"] for _ in range(20)]
        check(got == [str(i) for i in range(20)], f"pipelined answers are {got}")
        check(read.answer()[0] == 200, "the last of a pipeline")
        body = json.dumps(infer_body(rows[:1], "7")).encode()
        sock.sendall(b"POST " + INFER.encode() + b" HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n"
                     b"Content-Length: %d\r\n\r\n" % len(body))
        check(read.answer()[0] == 100, "100 Continue")
        sock.sendall(body)
        check(json.loads(read.answer()[2])["id"] == "7", "after 100 Continue")
        sock.sendall(b"POST " + INFER.encode() + b" HTTP/1.1\r\nHost: a\r\n"
                     b"Transfer-Encoding: chunked\r\n\r\n")
        for i in range(0, len(body), 100):
            sock.sendall(b"%x;a=b\r\n%s\r\n" % (len(body[i:i + 100]), body[i:i + 100]))
        sock.sendall(b"0\r\nA: b\r\n\r\n" + GET.format("/v2").encode())
        check(json.loads(read.answer()[2])["id"] == "7", "chunks")
        check(read.answer()[0] == 200, "after chunks")
        sock.sendall(GET.format("/v2").encode() * 2)
        sock.shutdown(socket.SHUT_WR)
        check(read.answer()[0] == read.answer()[0] == 200 and read.at_end(), "half-closed")
    with server.connect() as sock:
        read = Reader(sock)
        sock.sendall(b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n" + GET.format("/v2").encode())
        status, headers, _ = read.answer(head=True)
        check(status == 200 and int(headers["content-length"]) > 2000, "HEAD")
        check(json.loads(read.answer()[2])["name"] == "mlcore", "after HEAD")
        sock.sendall(b"GET /v2 HTTP/1.0\r\n\r\n")
        check(read.answer()[1]["connection"] == "close" and read.at_end(), "HTTP/1.0")
    with server.connect() as sock:
        for c in GET.format("/v2").encode():
            sock.sendall(bytes([c]))
        check(Reader(sock).answer()[0] == 200, "byte by byte")


def tensors(server, rows, wants):
    """JSON and bytes, both ways, and outputs by name."""
    raw = struct.pack("<128f", *rows[0], *rows[1])
    told = {"inputs": [{"name": "pixels", "shape": [2, 64], "datatype": "FP32",
                        "parameters": {"binary_data_size": 512}}]}
    for out, binary in (({}, False), ({"parameters": {"binary_data_output": True}}, True),
                        ({"outputs": [{"name": "logits", "parameters": {"binary_data": True}}]}, True),
                        ({"outputs": [{"name": "logits"}]}, False)):
        text = json.dumps({**told, **out}).encode()
        line = f"Inference-Header-Content-Length: {len(text)}"
        status, headers, body = ask(server, post(INFER, text + raw, line))
        n = int(headers.get("inference-header-content-length", len(body)))
        got = json.loads(body[:n])["outputs"][0]
        check(binary == (n < len(body)), "the form of an output")
        data = struct.unpack("<20f", body[n:]) if binary else got["data"]
        check(status == 200 and got["shape"] == [2, 10] and near(data, wants[0] + wants[1]),
              f"bytes in, {out}: {body[:200]}")
    nested = infer_body([[]])
    nested["inputs"][0].update(shape=[2, 64], data=[rows[0], rows[1]])
    got = json.loads(ask(server, post("/v2/models/digits/versions/1/infer", nested))[2])
    check(near(got["outputs"][0]["data"], wants[0] + wants[1]), "nested data")
    for size in (511, 513):
        text = json.dumps(told).encode()
        line = f"Inference-Header-Content-Length: {len(text)}"
        status, _, _ = ask(server, post(INFER, text + b"x" * size, line))
        check(status == 400, f"{size} bytes of 512")


def texts(server):
    """A text, the same as a stream of events, and many at a time."""
    how = {"text_input": "Alice \u00e9\"", "parameters": {"max_tokens": 40, "seed": 3}}
    status, _, body = ask(server, post("/v2/models/text/generate", how))
    want = json.loads(body).get("text_output")
    check(status == 200 and isinstance(want, str) and 0 < len(want.encode()) <= 120,
          f"generate: {body}")

    def one(old):
        request = post("/v2/models/text/generate_stream", how)
        if old:
            request = request.replace(b"HTTP/1.1", b"HTTP/1.0")
        status, headers, body = ask(server, request)
        events = [json.loads(e[6:]) for e in body.decode().split("\n\n") if e]
        got = "".join(e.get("text_output", "?") for e in events)
        check(status == 200 and headers["content-type"] == "text/event-stream" and got == want,
              f"stream: {got}, want {want}")
    one(True)
    threads = [threading.Thread(target=one, args=(False,)) for _ in range(16)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    gone = metrics(server)["mlc_http_gone_total"]
    with server.connect() as sock:        # a client that goes away in the middle of a stream
        sock.sendall(post("/v2/models/text/generate_stream", {**how, "max_tokens": 200}))
        sock.recv(100)
    check(soon(lambda: metrics(server)["mlc_http_gone_total"] > gone), "a client that left")


def metrics(server):
    """Prometheus' lines: values by name with labels."""
    status, headers, body = ask(server, GET.format("/metrics").encode())
    check(status == 200 and headers["content-type"].startswith("text/plain; version=0.0.4"),
          "metrics")
    values, label = {}, r'[a-z_]+="(?:[^"\\\n]|\\.)*"'
    for line in body.decode().splitlines():
        if re.fullmatch(r"# (HELP|TYPE) [a-z_]+ .+", line):
            continue
        found = re.fullmatch(rf"([a-z_0-9]+(?:\{{{label}(?:,{label})*\}})?) (\S+)", line)
        if check(found, f"a line of metrics: {line}"):
            values[found[1]] = float(found[2])
    return values


# ---- many at a time

class Load:
    """Connections that ask and ask again, each answer checked; in a thread of its own if started."""

    def __init__(self, server, n, rows, wants, rate=None):
        self.server, self.n, self.rate = server, n, rate
        self.requests = [post(INFER, infer_body([rows[i]], f"{i}")) for i in range(len(rows))]
        self.wants, self.stop = wants, False
        self.sent = self.answers = self.wrong = self.lost = self.refused = 0
        self.times, self.seen = [], set()
        self.thread = threading.Thread(target=self.run)

    def look(self, status, body, i):
        """Is it the answer of image i? The same bytes as before are."""
        self.answers += 1
        if status == 503:
            self.refused += 1
            return
        if (i, body) in self.seen:
            return
        try:
            got = json.loads(body)
            ok = status == 200 and got["id"] == str(i) and near(got["outputs"][0]["data"],
                                                                self.wants[i])
        except (ValueError, KeyError, IndexError):
            ok = False
        if ok:
            self.seen.add((i, body))
        else:
            self.wrong += 1
            print("FAILED: image", i, status, body[:300], flush=True)

    def run(self):
        """A loop over all connections; with a rate, requests begin at equal distances."""
        select, random_ = selectors.DefaultSelector(), random.Random(self.n)
        waiting, idle, self.began = {}, [], time.monotonic()
        last_one = self.began
        for _ in range(self.n):
            idle.append(self.server.connect())
        due = self.began
        while waiting or (idle and not self.stop):
            now = time.monotonic()
            while idle and not self.stop and (not self.rate or due <= now):
                sock, i = idle.pop(), random_.randrange(len(self.requests))
                begin = due if self.rate else now
                due += 1 / self.rate if self.rate else 0
                waiting[sock] = [i, begin, b""]
                self.sent += 1
                select.register(sock, selectors.EVENT_READ)
                try:
                    sock.sendall(self.requests[i])
                except OSError:
                    pass                             # reading says so, too
            rest = max(0, min(due - now, .1)) if self.rate and not self.stop else .1
            for key, _ in select.select(rest):
                self.take(select, key.fileobj, waiting, idle)
                last_one = now
            if now - last_one > 120:                 # nothing comes any more
                self.lost += len(waiting)
                break
        for sock in idle:
            sock.close()
        self.seconds = time.monotonic() - self.began

    def take(self, select, sock, waiting, idle):
        """What has come; a whole answer is checked, and its connection may ask again."""
        try:
            got = sock.recv(65536)
        except OSError:
            got = b""
        state = waiting[sock]
        state[2] += got
        head, end, body = state[2].partition(b"\r\n\r\n")
        if not got:
            self.lost += 1
        elif end:
            n = int(re.search(rb"(?i)content-length: (\d+)", head)[1])
            if len(body) < n:
                return
            self.times.append(time.monotonic() - state[1])
            self.look(int(head[9:12]), body, state[0])
        else:
            return
        select.unregister(sock)
        del waiting[sock]
        if got and b"Connection: close" not in head:
            idle.append(sock)
        else:
            sock.close()

    def end(self, what):
        self.stop = True
        self.thread.join()
        check(self.lost == self.wrong == 0 and self.sent == self.answers > 0,
              f"{what}: {self.sent} sent, {self.answers} answers, {self.lost} lost, "
              f"{self.wrong} wrong")
        return self

    def part(self, share):
        if not self.times:
            return 0
        return 1000 * sorted(self.times)[min(len(self.times) - 1, int(share * len(self.times)))]

    def row(self, what):
        print(f"{what}: {self.answers} requests, {self.answers / self.seconds:.0f} a second, "
              f"p50 {self.part(.5):.2f} ms, p99 {self.part(.99):.2f} ms, {self.refused} refused",
              flush=True)


def share(values, before, name):
    return sum(values[k] - before.get(k, 0) for k in values if k.startswith(name))


def as_fast(server, o, rows, wants, what):
    """As many requests as there are answers."""
    run = Load(server, o.connections, rows, wants)
    run.thread.start()
    time.sleep(o.seconds)
    run.end(what).row(f"{what}, {o.connections} connections")
    return run


def half_load(server, o, rows, wants, run):
    """Half as many requests a second as `run` had."""
    half = Load(server, o.connections, rows, wants, rate=max(1, run.answers / run.seconds / 2))
    half.thread.start()
    time.sleep(o.seconds)
    half.end("half load").row("half of it")


def load(server, o, rows, wants):
    """As fast as it goes, then at half of that."""
    before = metrics(server)
    run = as_fast(server, o, rows, wants, "load")
    after = metrics(server)
    parts = [(name, share(after, before, key)) for name, key in
             (("parsing", "mlc_http_reading_seconds_total"),
              ("writing", "mlc_http_writing_seconds_total"),
              ("computing", 'mlc_serve_compute_seconds_total{model="digits"'))]
    print("of these seconds:", ", ".join(f"{name} {100 * s / run.seconds:.1f} %"
                                         for name, s in parts), flush=True)
    batches = share(after, before, 'mlc_serve_batches_total{model="digits"')
    check(batches > 0 and parts[2][1] > 0, "there are figures of batches")
    batch = 1000 * parts[2][1] / max(1, batches)
    print(f"a batch of {run.answers / max(1, batches):.1f} takes {batch:.2f} ms; the wait of 1 ms "
          f"and two of them {1 + 2 * batch:.2f} ms", flush=True)
    half_load(server, o, rows, wants, run)


def beside(o, command, rows, wants):
    """The same load for another server, whose answers must be the same."""
    other = Server.__new__(Server)
    other.start(command.split(), o.folder)
    half_load(other, o, rows, wants, as_fast(other, o, rows, wants, "the other server"))
    other.process.kill()
    other.process.wait()


# ---- hostile

def fuzzed(random_):
    """The bytes of some request, some of them changed."""
    seeds = [post(INFER, infer_body([[.5] * 64], "a")), GET.format("/metrics").encode(),
             post(INFER, b"x" * 256, "Inference-Header-Content-Length: 3"),
             post("/v2/models/text/generate", {"text_input": "a", "max_tokens": 3}),
             f"POST {INFER} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
             "5\r\n{\"id\"\r\n0\r\n\r\n".encode()]
    data = bytearray(random_.choice(seeds))
    for _ in range(random_.choice((1, 1, 3, 20))):
        at = random_.randrange(len(data))
        how = random_.randrange(4)
        if how == 0:
            data[at] = random_.randrange(256)
        elif how == 1:
            del data[at:at + random_.randrange(1, 20)]
        elif how == 2:
            data[at:at] = random_.choice((b"\r\n", b"\0", b"9" * 30, b"[" * 100, b"\"", b"\\u",
                                          b"-1", b"1e999", b"{", data[:40]))
        else:
            data[at:at] = data[random_.randrange(len(data)):][:50]
        if not data:
            data = bytearray(b"x")
    return bytes(data)


def hostile_one(server, random_):
    """One client of some bad kind; what it gets does not matter, but for the server's life."""
    kind = random_.randrange(12)
    with server.connect(5) as sock:
        if kind < 6:
            sock.sendall(fuzzed(random_))
            if random_.random() < .5:
                sock.shutdown(socket.SHUT_WR)
            if random_.random() < .7:
                sock.settimeout(.05)
                while sock.recv(65536):
                    pass
        elif kind == 6:                   # 1 GB announced, some of it sent
            sock.sendall(f"POST {INFER} HTTP/1.1\r\nHost: a\r\nContent-Length: {1 << 30}\r\n\r\n"
                         .encode() + b"x" * random_.choice((0, 1000, 100000)))
            Reader(sock).answer()
        elif kind == 7:                   # headers without end
            sock.sendall(b"GET / HTTP/1.1\r\n")
            for _ in range(random_.choice((100, 3000))):
                sock.sendall(b"A: bbbbbbbbbbbbbbbbbbbbbbbbbb\r\n")
        elif kind == 8:                   # a request that never ends
            sock.sendall(post(INFER, b"x" * 1000)[:random_.randrange(1, 900)])
        elif kind == 9:                   # a slow one
            for c in GET.format("/v2").encode()[:random_.randrange(60)]:
                sock.sendall(bytes([c]))
        elif kind == 10:                  # asks much, and reads nothing
            sock.settimeout(.2)
            for _ in range(200):
                sock.sendall(GET.format("/").encode() * 10)
        else:                             # resets
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.sendall(post(INFER, infer_body([[0] * 64])))


def hostile(server, o, rows, wants):
    """So many of them, from eight threads, while others are served."""
    ask(server, GET.format("/v2").encode())
    files, memory = len(server.descriptors()), server.kilobytes()
    good = Load(server, 4, rows, wants, rate=100)
    good.thread.start()

    def some(seed):
        random_ = random.Random(seed)
        for _ in range(o.hostile // 8):
            try:
                hostile_one(server, random_)
            except (OSError, EOFError, TypeError, ValueError):
                pass
    threads = [threading.Thread(target=some, args=(seed,)) for seed in range(8)]
    for t in threads:
        t.start()
    slow = [server.connect() for _ in range(20)]     # which say a part, and wait to be thrown out
    for sock in slow:
        sock.sendall(b"POST / HTTP/1.1\r\nHost: a\r\n")
    for t in threads:
        t.join()
    for sock in slow:
        try:
            status = Reader(sock).answer()[0]
        except (OSError, EOFError) as e:
            status = e
        check(status == 408, f"a request that does not arrive: {status}")
        sock.close()
    good.end("others, while hostile clients came").row(f"beside {o.hostile} hostile ones")
    check(soon(lambda: len(server.descriptors()) <= files),
          f"descriptors: {files} before, {server.descriptors()}")
    grown = server.kilobytes() - memory
    print(f"memory: {memory} KB before, {grown:+d} KB")
    check(grown < o.memory, f"memory grew by {grown} KB")


def too_many(server, limit):
    """Connections beyond the limit are told so; there is room again when others go."""
    socks = [server.connect() for _ in range(limit)]
    for sock in socks:
        sock.sendall(GET.format("/v2").encode())
    check(all(Reader(s).answer()[0] == 200 for s in socks), "as many connections as may be")
    try:
        with server.connect() as sock:
            check(Reader(sock).answer()[0] == 503, "a connection too many")
    except (OSError, EOFError) as e:
        check(False, f"a connection too many: {e}")
    for sock in socks:
        sock.close()
    check(soon(lambda: served(server)), "room again")


def served(server):
    try:
        return ask(server, GET.format("/v2").encode())[0] == 200
    except (OSError, EOFError):
        return False


def no_descriptors(server):
    """A server without descriptors lets connections wait, and does not turn in a circle meanwhile."""
    was = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
    check(soon(lambda: list(server.descriptors().values()).count("socket") == 1), "its socket alone")
    free = min(set(range(1000)) - set(server.descriptors()))
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (free, was[1]))
    with server.connect() as sock:
        sock.sendall(GET.format("/v2").encode())
        used = server.seconds()
        sock.settimeout(2)
        try:
            check(False, f"an answer without a descriptor: {sock.recv(100)}")
        except socket.timeout:
            pass
        used = server.seconds() - used
        sock.settimeout(60)
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, was)
        check(used < .2, f"2 seconds without descriptors took {used} of the processor")
        check(Reader(sock).answer()[0] == 200, "a connection that waited for a descriptor")


def slow_reader(server, o):
    """A client that asks much and reads late: the server makes answers for the next moment alone."""
    size, memory = len(ask(server, GET.format("/").encode())[2]), server.kilobytes()
    n = (100 << 20) // size
    with server.connect() as sock:
        sender = threading.Thread(target=sock.sendall, args=(GET.format("/").encode() * n,))
        sender.start()
        time.sleep(.5)
        got, most = 0, 0
        while got < n * size:
            more = len(sock.recv(65536))
            if not more:
                break
            got += more
            if got // 65536 % 64 == 0:
                most = max(most, server.kilobytes())
        check(got > n * size, f"{got} bytes of answers to {n} requests")
        check(most - memory < o.memory, f"memory grew by {most - memory} KB for a slow reader")
        sender.join(60)


def no_reader(server):
    """A client that takes no answers is thrown out, though it sends on."""
    with server.connect() as sock:
        sock.sendall(GET.format("/").encode() * 1500)    # more than a connection's buffers

        def thrown_out():
            try:
                sock.sendall(b"G")
            except OSError:
                return True
            return False
        check(soon(thrown_out), "a client that takes no answers")


def bodies(server):
    """Large bodies on many connections: some are refused, and no memory runs out."""
    socks, refused, piece = [server.connect() for _ in range(24)], 0, b" " * (1 << 20)
    for sock in socks:
        sock.sendall(f"POST {INFER} HTTP/1.1\r\nHost: a\r\nContent-Length: {1 << 24}\r\n\r\n"
                     .encode())
    for _ in range(12):
        for sock in socks:
            try:
                sock.sendall(piece)
            except OSError:
                pass
    for sock in socks:
        sock.settimeout(.01)
        try:
            refused += Reader(sock).answer()[0] in (408, 503)
        except (OSError, EOFError):
            pass
    check(refused > 0, "bodies of 288 MB are all taken")
    for sock in socks:
        sock.close()
    check(soon(lambda: served(server)), "after large bodies")


# ---- reloads and the end

def reloads(server, o, rows, wants):
    """Signals and requests to read the weights again, while 64 connections ask."""
    run = Load(server, o.connections, rows, wants)
    run.thread.start()
    for i in range(10):
        if i % 2:
            server.kill(signal.SIGHUP)
        else:
            status, _, body = ask(server, post("/v2/repository/models/digits/load", b""))
            check(status in (200, 503), f"load: {status} {body}")
        time.sleep(.1)
    run.end("reloads").row("while weights were read again")


def bad_files(server, folder, rows, wants):
    """A file that is broken changes nothing; one that is whole is read after it."""
    path = folder + "/digits.safetensors"
    with open(path, "rb") as f:
        good = f.read()
    os.remove(path)
    for name, data, want in (("none", None, 500), ("empty", b"", 500), ("half", good[:len(good) // 2], 500),
                             ("another", good.replace(b"F32", b"F16"), 500), ("good", good, 200)):
        if data is not None:
            with open(path, "wb") as f:
                f.write(data)
        status, _, body = ask(server, post("/v2/repository/models/digits/load", b""))
        check(status == want, f"load of a file, {name}: {status} {body}")
        body = json.loads(ask(server, post(INFER, infer_body(rows[:1])))[2])
        check(near(body["outputs"][0]["data"], wants[0]), f"numbers after a file, {name}")


def last(server, o, rows, wants):
    """SIGTERM while 64 connections ask: what was sent is answered, then they are closed."""
    run = Load(server, o.connections, rows, wants)
    idle = server.connect()
    run.thread.start()
    soon(lambda: run.answers >= o.connections)       # all are connected
    server.kill(signal.SIGTERM)
    run.thread.join(60)
    run.end("SIGTERM").row("until the server ended")
    check(Reader(idle).at_end(), "an idle connection is closed")
    idle.close()
    print(server.end())


def page(o):
    """A browser draws a 3 with the page's own functions, and its answer is read."""
    server = Server(o.program, o.folder, "--steps", "20")
    picture = os.path.abspath(os.path.join(o.folder, "page.png"))
    shown = subprocess.run(
        [o.page, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=800,600",
         "--user-data-dir=" + os.path.abspath(os.path.join(o.folder, "chromium")),
         "--virtual-time-budget=5000", "--dump-dom", "--screenshot=" + picture,
         f"http://127.0.0.1:{server.port}/?demo=3"],
        capture_output=True, timeout=120, check=False).stdout.decode()
    check('data-answer="3"' in shown, f"the page shows no 3: {shown[-2000:]}")
    check(os.path.exists(picture), "no picture of the page")
    server.kill(signal.SIGTERM)
    server.end()
    print(f"{checks} checks, {failures} failed; {picture}")


def slow(o, rows, wants):
    """An answer that takes longer than a request may take to arrive."""
    server = Server(o.program, o.folder, "--wait", "1500", "--time", "1")
    try:
        body = json.loads(ask(server, post(INFER, infer_body(rows[:1])))[2])
        check(near(body["outputs"][0]["data"], wants[0]), "a slow answer")
    except (EOFError, OSError) as e:
        check(False, f"a slow answer: {e!r}")
    server.kill(signal.SIGTERM)
    server.end()


def stuck(o):
    """Clients that do not go on at SIGTERM: the server ends without them, when it is to."""
    server = Server(o.program, o.folder, "--time", "3600", "--idle", "3600", "--drain", "1")
    socks = [server.connect() for _ in range(4)]
    socks[0].sendall(b"GET / HTTP/1.1\r\nHost:")
    socks[1].sendall(post(INFER, b"x" * 1000)[:500])
    socks[2].settimeout(.5)
    try:
        while True:                       # until neither side's buffers take more
            socks[2].sendall(GET.format("/").encode() * 100)
    except OSError:
        pass
    ask(server, GET.format("/v2").encode())
    server.kill(signal.SIGTERM)
    server.end()
    for sock in socks:
        sock.close()


def main():
    args = argparse.ArgumentParser()
    args.add_argument("program")
    args.add_argument("folder")
    args.add_argument("--seconds", type=float, default=5)
    args.add_argument("--hostile", type=int, default=500)
    args.add_argument("--connections", type=int, default=64)
    args.add_argument("--memory", type=int, default=65536)      # KB that it may grow by
    args.add_argument("--page")
    args.add_argument("--beside")
    o = args.parse_args()
    os.makedirs(o.folder, exist_ok=True)
    if o.page is not None:
        page(o)
        sys.exit(failures > 0)
    rows, labels = digits("examples/data/digits.csv", IMAGES)
    more = ("--steps", "20", "--time", "3", "--connections", str(o.connections + 64),
            "--deadline", "600000")                  # with sanitizers a text takes long
    server = Server(o.program, o.folder, *more)
    wants = []
    for i, row in enumerate(rows):
        got = json.loads(ask(server, post(INFER, infer_body([row], str(i))))[2])
        wants.append(got["outputs"][0]["data"])
    right = sum(w.index(max(w)) == label for w, label in zip(wants, labels))
    check(right >= .9 * len(rows), f"{right} of {len(rows)} digits right")
    if o.beside:
        load(server, o, rows, wants)
        last(server, o, rows, wants)
        beside(o, o.beside, rows, wants)
        sys.exit(failures > 0)
    statuses(server)
    connections(server, rows)
    tensors(server, rows, wants)
    texts(server)
    too_many(server, o.connections + 64)
    no_descriptors(server)
    bodies(server)
    slow_reader(server, o)
    no_reader(server)
    load(server, o, rows, wants)
    hostile(server, o, rows, wants)
    reloads(server, o, rows, wants)
    bad_files(server, o.folder, rows, wants)
    metrics(server)
    last(server, o, rows, wants)
    slow(o, rows, wants)
    stuck(o)
    print(f"{checks} checks, {failures} failed")
    sys.exit(failures > 0)


main()
