#!/usr/bin/env python3
"""Writes what Hugging Face's tokenizers make of 2,000 strings, and the vocabularies they have.

    python3 tests/golden/make_text_goldens.py [--train]        needs tokenizers (here 0.23), numpy,
                                                               safetensors; looks at transformers
--train makes the vocabularies anew: text.vocab.txt (WordPiece), text.vocab.json and text.merges.txt
(byte-level BPE), trained on README.md of this project and on random strings. text.safetensors has
the strings, made from a seed, and ids; all numbers are little-endian. Characters are those of which
both Unicode versions, this Python's and that of Hugging Face, say the same.
"""
import json
import pathlib
import random
import sys

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from make_unicode_tables import MARK, PUNCT, SPACE, SPACE_CONTROL, CONTROL, base, kind
import unicodedata as u

HERE = pathlib.Path(__file__).resolve().parent
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
END = "<|endoftext|>"
BLOCKS = [(0x20, 0x7E), (0xA0, 0x17F), (0x180, 0x24F), (0x250, 0x36F), (0x370, 0x3FF), (0x400, 0x52F),
          (0x531, 0x5F4), (0x600, 0x6FF), (0x900, 0x97F), (0xB80, 0xBFF), (0xE00, 0xE5B),
          (0x10A0, 0x10FF), (0x13A0, 0x13F5), (0x1E00, 0x1FFF), (0x2000, 0x206F), (0x2070, 0x218F),
          (0x2190, 0x23FF), (0x2C00, 0x2DFF), (0x3000, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3),
          (0xF900, 0xFAFF), (0xFB00, 0xFDFF), (0xFE00, 0xFFEF), (0x10400, 0x1044F),
          (0x1D100, 0x1D1FF), (0x1D400, 0x1D7FF), (0x1F300, 0x1F64F), (0x2F800, 0x2FA1D), (0x3400, 0x4DB5), (0x20000, 0x2A6D6), (1, 0x1F),
          (0x7F, 0x9F), (0xE000, 0xE0FF), (0x660, 0x669), (0x966, 0x96F), (0xFF10, 0xFF19)]
LETTERS = [(0xC0, 0x17F), (0x370, 0x3FF), (0x400, 0x45F), (0x5D0, 0x5EA), (0x621, 0x64A), (0x904, 0x939),
           (0xE01, 0xE30), (0x10D0, 0x10F0), (0x1100, 0x1112), (0x1161, 0x1175), (0x11A8, 0x11C2),
           (0x3041, 0x3096), (0x30A1, 0x30FA), (0x4E00, 0x4E40)]
WORDS = """the of and to in is it you that he was for on are with as his they at be this from have or one
had by word but not what all were we when your can said there use an each which she do how their if will
up other about out many then them these so some her would make like him into time has look two more write
go see number no way could people my than first water been call who oil its now find long down day did get
come made may part tensor gradient network train learning rate loss layer attention tokenizer naïve café
résumé Zürich Straße ÅNGSTRÖM Ελλάδα ΣΟΦΟΣ Москва ёлка İstanbul ﬁne Việt Nam 東京 日本語 漢字 한국어 서울 سلام
नमस्ते ไทย שלום""".split()
EMOJI = ["👩‍👩‍👧‍👦", "👍🏽", "🏳️‍🌈", "🇩🇪", "😀", "❤️", "☺", "🧑🏿‍🚀", "1️⃣", "™"]
SPACES = " \t\n\r\v\f\u0085\u00a0\u1680\u2003\u2009\u2028\u2029\u202f\u205f\u3000\u200b\ufeff"
TAILS = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'LL", "n't", "'x", "''s", "!'s", "'"]
BAD = [b"\xff", b"\x80", b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80",
       b"\xe0\x80\x80", b"\xf0\x80\x80\x80", b"\xe2\x28\xa1", b"\xf8\x88\x80\x80\x80", b"\xf0\x9f\x41", b"\xc2\xc2\xa9"]

CLEAN = normalizers.BertNormalizer(True, False, False, False)
STRIP = normalizers.BertNormalizer(False, False, True, False)
LOWER = normalizers.BertNormalizer(False, False, False, True)
CHINESE = normalizers.BertNormalizer(False, True, False, False)
PUNCTUATION = pre_tokenizers.BertPreTokenizer()


def both_know(c):
    """Both Unicode versions say the same of c, and decomposing does not move it."""
    s, k = chr(c), kind(c)
    if u.category(s) == "Cn" or (u.combining(s) and k != MARK) or 0x2B820 <= c < 0x2B920:
        return False
    gone = k in (CONTROL, SPACE_CONTROL)
    return (CLEAN.normalize_str("a" + s + "a") ==
            ("aa" if gone else "a a" if k == SPACE else "a" + s + "a") and
            STRIP.normalize_str(s) == ("" if k == MARK else
                                       "".join(map(chr, base(c) or ())) or u.normalize("NFD", s)) and
            LOWER.normalize_str(s) == s.lower() and
            (len(PUNCTUATION.pre_tokenize_str("a" + s + "a")) == 3) == (k == PUNCT))


def strings(seed):
    r = random.Random(seed)
    pools = [[c for c in range(a, b + 1) if both_know(c)] for a, b in BLOCKS]

    def word():
        w = r.choice(WORDS)
        return r.choice([w, w, w.capitalize(), w.upper(), w + r.choice(TAILS), w + r.choice(",.;:!?)")])

    def characters(n):
        pool = r.choice(pools)
        return "".join(chr(r.choice(pool)) for _ in range(n))

    def piece():
        return r.choice([
            lambda: " ".join(word() for _ in range(r.randint(1, 6))),
            lambda: " ".join(word() for _ in range(r.randint(1, 6))),
            lambda: characters(r.randint(1, 8)),
            lambda: "".join(characters(1) for _ in range(r.randint(1, 6))),
            lambda: r.choice("aeioucnAEyКα가") + "".join(chr(r.randint(0x300, 0x36F)) for _ in range(r.randint(1, 3))),
            lambda: r.choice(EMOJI) * r.randint(1, 2),
            lambda: "".join(r.choice(SPACES) for _ in range(r.randint(1, 4))),
            lambda: r.choice(["3.14", "1,000", "2024", "٣٤", "१२३", "Ⅷ", "½", "x²", "0xFF", "1e-5"]),
            lambda: r.choice(["a.b(c)", "for(i=0;i<n;i++)", "\"q\"", "--", "...", "<b>", "{}", "$5", "a_b"]),
            lambda: r.choice(SPECIALS + [END, "[sep]", "[MASK", "<|endoftext", "##ing"]),
        ])()

    out = []
    for _ in range(1700):
        out.append(r.choice(["", " ", " "]).join(piece() for _ in range(r.randint(1, 3))).encode())
    for _ in range(280):
        parts = [r.choice(BAD) if r.random() < 0.5 else piece().encode()[:r.randint(1, 9)]
                 for _ in range(r.randint(1, 4))]
        out.append(b"".join(parts))
    out += [b"", b" ", b"  ", b"\n", b"a" * 100, b"a" * 101, "é".encode() * 100, "é".encode() * 101,
            "한".encode() * 33, "漢".encode() * 101, b"a" * 50 + b"-" + b"b" * 101, b"\0a\0", "\ufffd".encode(),
            b"  two  spaces  ", b"\n\n x", b"\t\tx ", "a\u0301".encode() * 60, b"'", b"''", b" 's"]
    # Cut characters of two neighbours may make one that only one of the versions knows.
    return [s for s in out if all(both_know(ord(c)) or c in "\0\ufffd" for c in s.decode(errors="replace"))]


def training(seed, letters):
    """letters: those of the blocks LETTERS, too, as words of three, so that they begin and go on."""
    r = random.Random(seed)
    text = (HERE.parent.parent / "README.md").read_text()
    words = " ".join(WORDS)
    out = [text, text.lower(), words, words.lower(), u.normalize("NFD", words), "0123456789 " * 3,
           " ".join(EMOJI), " ".join(w + t for w in WORDS[:20] for t in TAILS), *(" ".join(r.choice(WORDS) for _ in range(9)) for _ in range(50))]
    known = [chr(c) for a, b in LETTERS for c in range(a, b + 1) if chr(c).isalpha()]
    for _ in range(4 if letters else 0):
        r.shuffle(known)
        out.append(" ".join("".join(known[i:i + 3]) for i in range(0, len(known), 3)))
    return out


def train():
    t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    t.normalizer, t.pre_tokenizer = CLEAN, PUNCTUATION
    t.train_from_iterator(training(1, True), trainers.WordPieceTrainer(
        vocab_size=2900, special_tokens=SPECIALS, limit_alphabet=1100, show_progress=False))
    by_id = sorted(t.get_vocab().items(), key=lambda item: item[1])
    (HERE / "text.vocab.txt").write_text("".join(k + "\n" for k, _ in by_id))
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.train_from_iterator(training(2, False), trainers.BpeTrainer(
        vocab_size=1500, special_tokens=[END], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    model = json.loads(t.to_str())["model"]
    (HERE / "text.vocab.json").write_text(json.dumps(model["vocab"], ensure_ascii=False))
    (HERE / "text.merges.txt").write_text("#version: 0.2\n" + "".join(
        " ".join(m) + "\n" for m in model["merges"]))


def bpe():
    t = Tokenizer(models.BPE.from_file(str(HERE / "text.vocab.json"), str(HERE / "text.merges.txt")))
    t.pre_tokenizer, t.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    t.add_special_tokens([END])
    return t


def bert(lowercase, strip, ends):
    t = Tokenizer(models.WordPiece.from_file(str(HERE / "text.vocab.txt"), unk_token="[UNK]"))
    t.normalizer = normalizers.BertNormalizer(True, True, strip, lowercase)
    t.pre_tokenizer, t.decoder = PUNCTUATION, decoders.WordPiece()
    t.add_special_tokens(SPECIALS)
    if ends:
        t.post_processor = processors.BertProcessing(("[SEP]", t.token_to_id("[SEP]")),
                                                     ("[CLS]", t.token_to_id("[CLS]")))
    return t


def look_at_transformers(texts, ids):
    """The same by the classes that people use."""
    try:
        from transformers import BertTokenizer, GPT2Tokenizer
    except ImportError:
        return print("transformers: not looked at")
    a = BertTokenizer(str(HERE / "text.vocab.txt"))
    b = GPT2Tokenizer(str(HERE / "text.vocab.json"), str(HERE / "text.merges.txt"))
    wrong = [s for s, x in zip(texts, ids["uncased"]) if a.encode(s, add_special_tokens=False) != x]
    wrong += [s for s, x in zip(texts, ids["bpe"]) if b.encode(s) != x]
    print("transformers:", len(wrong), "strings differ", wrong[:3])


def packed(name, parts, to):
    """Parts one behind another, and the length of each as a number of 16 bits."""
    to[name] = np.frombuffer(b"".join(parts), np.uint8)
    to[name + "_n"] = np.frombuffer(np.array([len(p) for p in parts], "<u2").tobytes(), np.uint8)


def main():
    if "--train" in sys.argv:
        train()
    raw = strings(20)
    texts = [s.decode(errors="replace") for s in raw]
    kinds = {"bpe": bpe(), "uncased": bert(True, True, False), "cased": bert(False, False, True),
             "lower": bert(True, False, False)}
    ids = {name: [t.encode(s).ids for s in texts] for name, t in kinds.items()}
    look_at_transformers(texts, ids)
    to = {}
    packed("text", raw, to)
    for name, list_of in ids.items():
        packed(name, [np.array(x, "<u2").tobytes() for x in list_of], to)
    for s, x in zip(texts, ids["bpe"]):
        assert kinds["bpe"].decode(x, skip_special_tokens=False) == s
    packed("valid", [s.encode() for s, b in zip(texts, raw) if s.encode() != b], to)
    packed("decoded", [kinds["uncased"].decode(x).encode() for x in ids["uncased"]], to)
    # Some ids at random: characters in parts, words that begin with ##.
    r = random.Random(3)
    some = {"bpe": [[r.randrange(1, kinds["bpe"].get_vocab_size()) for _ in range(5)] for _ in range(99)],
            "uncased": [[r.randrange(kinds["uncased"].get_vocab_size()) for _ in range(5)]
                        for _ in range(99)]}
    for name, list_of in some.items():
        packed("some_" + name, [np.array(x, "<u2").tobytes() for x in list_of], to)
        packed("some_" + name + "_text", [kinds[name].decode(x).encode() for x in list_of], to)
    save_file(to, HERE / "text.safetensors")
    (HERE / "text.safetensors").chmod(0o644)
    print(len(raw), "strings,", {k: len(v) for k, v in to.items() if not k.endswith("_n")})


if __name__ == "__main__":
    main()
