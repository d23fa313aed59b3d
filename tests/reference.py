"""Writes the reference of mlcore from its headers: examples/API.md, one HTML page, man pages.

    python3 tests/reference.py FOLDER     writes examples/API.md, FOLDER/index.html, FOLDER/man
    python3 tests/reference.py --check    is examples/API.md what would be written?
What is read is the manual, which is the first comment of mlcore.h, and the half with declarations.
Each function needs a comment, directly above it, that begins with its name; a name of mlcore in a
comment must be declared. tests/reference.txt has what PyTorch has and mlcore has not, a line each:
names, a colon, what to do; no such name may be in the index. What does not hold is printed, a line
each, and the exit status is 1.
"""
import html
import os
import re
import sys
import textwrap
import time

API = "examples/API.md"
PAGE = "tests/reference.html"
KEYS = "grad err ref test out dtype in keep fork write user loss desc forward backward".split()
WORDS = {"grad": "gradient", "err": "errors", "ref": "reference", "test": "tested by",
         "out": "result", "in": "inputs", "dtype": "dtypes"}
FIELD = re.compile(r"^ {0,4}(%s)(?: {2,}|: )(?=\S)|"
                   r"(?<=\s)(grad|err|ref|test(?=: te|: those)|(?<=  )out|(?<=  )dtype): "
                   % "|".join(KEYS))
NAME = re.compile(r"\b(?:mlc_[a-z0-9_]*[a-z0-9_]|MLC_[A-Z0-9_]*[A-Z0-9])\b")
# A name of PyTorch's, and those after it that have what stands before its last point in common.
TORCH = re.compile(r"\b((?:torch|F|Tensor|torchvision|torchmetrics|copy)(?:\.[A-Za-z]\w*)+)"
                   r"((?:, \.?[A-Za-z]\w*(?=[,;]|$))*)")
SPACES = ("torch.optim", "torch.nn.init", "torch.optim.lr_scheduler", "torchvision.transforms",
          "torch.utils.benchmark")        # to these belong the words that follow them
GROUPS = (("torch", r"torch\.\w+$"), ("Tensor", r"Tensor\."), ("torch.nn", r"torch\.nn\."),
          ("F, torch.nn.functional", r"F\."), ("torch.optim", r"torch\.optim\b"),
          ("torch.utils", r"torch\.utils\b"), ("others", r""))
NOT_THERE = "tests/reference.txt"
LINES = 40                      # most lines of a declaration that are shown


class Item:
    """A declaration: a function, a type, a macro, or what is for C++ alone."""

    def __init__(self, kind, names, decl, comment, place):
        self.kind, self.names, self.decl = kind, names, decl
        self.comment, self.place = comment, [section for section in place if section]
        self.before = ([""] + [item.name for item in place[0].items])[-1]
        own = re.sub(r"^%s(\([^)]*\))?: " % re.escape(names[0]), "", "\n".join(comment))
        self.body, self.fields = split_fields(own.split("\n"))
        self.see = re.fullmatch(r"see (mlc_\w+)\.", self.text())

    @property
    def name(self):
        """The first of its names, which is that of its anchor."""
        return self.names[0]

    def text(self):
        """Its comment without fields and without its name in front, a paragraph."""
        return " ".join(line.strip() for line in self.body).strip()

    def first(self):
        """The first sentence of its comment."""
        text = sentence(self.text())
        if text.startswith("with ") and self.name.endswith("_ex"):
            text = f"{self.name[:-3]} {text}"
        elif re.match("the same( for| with| of| from| as| to|$)", text):
            text += f" (as {self.before})"
        return text

    def call(self):
        """How it is called: its name with the names of its parameters, without their types."""
        bare = re.sub(r"/\*.*?\*/|\s+", " ", self.decl)
        head = re.search(r"\b%s ?\(" % re.escape(self.name), bare)
        if self.kind not in ("function", "macro") or not head:
            return ", ".join(self.names) if self.kind == "C++" else self.name
        deep, parts = 0, [""]
        for char in bare[head.end():]:
            deep += (char in "([{") - (char in ")]}")
            if deep < 0:
                break
            if char == "," and not deep:
                parts.append("")
            else:
                parts[-1] += char
        names = [re.search(r"\(\*(\w+)\)|(\.\.\.|\b\w+) ?(\[\w*\] ?)*$", part.strip())
                 for part in parts]
        names = [name[1] or name[2] for name in names if name and name[2] != "void"]
        return f"{self.name}({', '.join(names)})"

    def parts(self):
        """(names, the comment beside them, or else above) of the fields of a struct, by lines."""
        inside = self.decl[self.decl.index("{") + 1:self.decl.rindex("}")]
        inside = re.sub(r"(\(\*\w+\))\([^()]*\)", r"\1", inside)          # without parameters
        inside = re.sub(r"(?<=\n) {4}(/\*.*?\*/)(?=\n)",
                        lambda found: re.sub(r"\s*\n \* ?|\s*\n {5,}\* ?", " ", found[1]), inside,
                        flags=re.S)
        fields, above = [], ""
        for line in inside.split("\n"):
            code, _, said = line.partition("/*")
            names = re.findall(r"\(\*(\w+)\)|(\w+) ?(?:\[\w+\])*(?=[,;])", code)
            if line.startswith("/*"):
                above = said
            elif not code.strip() and fields:
                fields[-1][1] += " " + said
            elif names:
                fields.append([[one or two for one, two in names], said or above])
                above = ""
        return [(names, re.sub(r"\s*(\*/|/\*)\s*", " ", said).strip()) for names, said in fields]

    def said(self):
        """The fields of a struct in a line, with the comments beside them; private ones are not."""
        out = []
        for names, said in self.parts():
            if "private" not in said:
                out.append(", ".join(names) + (f" ({said})" if said else ""))
            elif "follows" in said:
                break
        return "; ".join(out)

    def members(self, made):
        """The fields of a desc in a line, with what the comments beside them call required or
        default; where they are silent, with the constants of made: what its _make assigns."""
        out = []
        for names, said in self.parts():
            told = re.search(r"\bdefaults?:? ([^;]*?)(?:[;:] |$)", said)
            told = told and re.split(r"(?<!\.)\. |(?<=\d) \(", told[1])[0]
            told = "required" if said.startswith("required") else told
            values = [made.get(name) for name in names]
            if not told or len(told) > 40:
                told = values[0] if all(v == values[0] for v in values) else None
            if told in values and len(set(values)) > 1:
                out += [name + (f" ({made[name]})" if name in made else "") for name in names]
            else:
                out.append(", ".join(names) + (f" ({told})" if told else ""))
        return "; ".join(out)

    def field(self, key):
        """What the fields of this name say, "" if there is none."""
        return "; ".join(text for name, text in self.fields if name == key)


class Section:
    """A banner's section, or a part of one: its comment, and items and parts in order."""

    def __init__(self, name, title, comment):
        self.name, self.title, self.family = name, title, ""
        self.body, self.fields = split_fields(comment)
        self.items = []

    def of(self, *kinds):
        """Its declarations of these kinds; of none: all."""
        return [item for item in self.items if isinstance(item, Item) and
                (item.kind in kinds or not kinds)]


def sentence(text):
    """The first sentence of a text: up to a full stop before a capital letter, or to its end."""
    text = re.sub(r"\s+", " ", text)
    end = re.search(r"(?<![.\d])\.(?= [A-Z0-9(|]|$)|(?<=\d)\.(?= [A-Z]|$)|"
                    r"(?<=[a-z\])]{2})\.(?= [a-z])", text)
    return text[:end.start()] if end else re.sub(r"(?<!\.)\.$", "", text)


def split_fields(lines):
    """The lines of a comment that are its body, and its fields as pairs of a key and a text."""
    body, fields = [], []
    for line in lines:
        found = list(FIELD.finditer(line))
        before = line[:found[0].start()] if found else line
        if fields:
            fields[-1][1] += " " + before
        elif before.strip() or not found:
            body.append(before.rstrip(" ;") if found else before)
        ends = [at.start() for at in found[1:]] + [len(line)]
        fields += [[at[1] or at[2], line[at.end():end]] for at, end in zip(found, ends)]
    return body, [(key, re.sub(r"\s+", " ", text).strip(" ;")) for key, text in fields]


def strip_comment(lines):
    """The text of a comment, without its marks; three blanks stay before what is indented."""
    text = re.sub(r"(\s--)?\s*\*/\s*$", "", re.sub(r"^/\*", " *", "\n".join(lines)))
    return [re.sub(r"^ \*? ?|^  ?", "", line, count=1).rstrip() for line in text.split("\n")]


class Reader:
    """Reads the declarations of a header, line by line, into sections."""

    def __init__(self, path):
        with open(path, encoding="utf-8") as file:
            text = file.read()
        guard = re.search(r"^#ifndef \w+_H$", text, re.M)
        end = text.find("#endif /* MLCORE_H */")
        self.manual = strip_comment(text[:guard.start()].rstrip().split("\n"))
        self.lines = text[guard.end():end].split("\n")
        self.sections, self.at, self.seen = [], 0, set()
        self.part = self.group = None           # what the next item belongs to, and its comment
        self.bad, self.path, self.first_line = [], path, text[:guard.end()].count("\n")

    def read(self):
        """All sections."""
        comment, ended = [], -1
        while self.at < len(self.lines):
            line = self.lines[self.at]
            if line.startswith("/*"):
                comment, ended = self.comment(), self.at
            elif line.startswith(("MLC_API ", "mlc_status mlc_", "const char *mlc_", "void mlc_",
                                  "typedef ", "struct mlc_")):
                self.declaration(comment if ended == self.at else [])
            elif re.match(r"# *define MLC_(?!_|NO_|API|IMPL|PRINTF|CHECK_)\w", line):
                self.macro(comment if ended == self.at else [])
            elif (comment and ended == self.at and self.section().name == "API.CPP" and
                  re.match("(?!namespace)[a-z#]", line)):
                self.cpp(comment)
            else:
                if not line and self.group and self.section().items[-1] is not self.group:
                    self.group = None
                family = re.search(r'MLC__LEFT_OUT\("(.*)"\)', line)
                if family:
                    self.section().family = family[1]
                if re.match(r"# *if", line) and ended == self.at:
                    ended += 1          # its declarations have the comment above
                self.at += 1
        return self.sections

    def section(self):
        """The section that is being read."""
        if not self.sections:
            self.sections.append(Section("CUDA", "the device of NVIDIA's cards", []))
        return self.sections[-1]

    def comment(self):
        """A comment; one that begins something, or is of all declarations below it, is added."""
        begin = self.at
        self.gather(lambda text: "*/" in text)
        text = strip_comment(self.lines[begin:self.at])
        kind = self.lines[begin][3:5]
        if kind in ("@@", "--"):
            head, _, test = text[0].partition("; test: ")
            rest = text[1:] + (["  test: " + test] if test else [])
            self.part = self.group = None
            if kind == "@@":
                self.sections.append(Section(*re.match(r"@@ (\S+) -*\s*(.*)", head).groups(), rest))
            else:
                self.part = Section("", "", [head[3:]] + [re.sub("^ {2,3}", "", t) for t in rest])
                self.section().items.append(self.part)
        elif self.lines[self.at].strip():
            return text
        else:
            self.group = Section("", "", text)
            self.section().items.append(self.group)
        return []

    def gather(self, ends):
        """Lines from here on to the first one at which ends(text so far) holds."""
        begin = self.at
        while True:
            self.at += 1
            text = "\n".join(self.lines[begin:self.at])
            if ends(text) or self.at == len(self.lines):
                return text

    def add(self, kind, names, decl, comment):
        """A declaration, with the comment above it or the one at the end of its first line."""
        aside = re.match(r"[^\n]*?/\* *(.*?) *\*/", decl)
        if not comment and aside and kind != "callback":
            comment = [aside[1]]
        if names[0] not in self.seen:
            self.seen.add(names[0])
            place = (self.section(), self.part, self.group)
            self.section().items.append(Item(kind, names, decl, comment, place))

    def declaration(self, comment):
        """A function or a type."""
        def ends(text):
            bare = re.sub(r"/\*.*?(\*/|$)", "", text, flags=re.S)
            return bare.rstrip().endswith(";") and bare.count("{") == bare.count("}")
        where = self.first_line + self.at + 1
        text = self.gather(ends)
        if text.startswith("typedef") or "{" in text:
            self.type(text, comment)
        elif not text.startswith("struct"):
            name = re.search(r"\b(mlc_\w+)\(", text)[1]
            if not comment or not comment[0].startswith(name + ":"):
                self.bad.append(f"{self.path}:{where}: {name} has no comment directly above it "
                                "that begins with its name")
            self.add("function", [name], re.sub(r"^MLC_API |(?<=\n) {8}", "", text), comment)

    def type(self, text, comment):
        """An enum, a struct, a pointer to a function, or an object whose struct is private."""
        name = (re.search(r"\(\*(mlc_\w+)\)", text) or re.search(r"\b(mlc_\w+);\s*(/\*.*)?$", text)
                or re.match(r"struct (mlc_\w+)", text))[1]
        kind = ("enum" if text.startswith("typedef enum") else "struct" if "{" in text else
                "callback" if "(*" in text else "object")
        bare = re.sub(r"/\*.*?\*/|=[^,}]*", "", text, flags=re.S)
        values = re.findall(r"\bMLC_[A-Z0-9_]+\b(?!\()", bare) if kind == "enum" else []
        self.add(kind, [name] + values, text, comment)

    def macro(self, comment):
        """A macro; of several definitions the first."""
        name = re.search(r"MLC_\w+", self.lines[self.at])[0]
        text = self.gather(lambda text: not text.endswith("\\"))
        self.add("macro", [name], re.sub(r"^# *define", "#define", text), comment)

    def cpp(self, comment):
        """A class, an alias or a function of the namespace mlc, whose comment begins with it."""
        names = re.match(r"([a-z_]+(?:, [a-z_]+)*): ", comment[0])
        text = self.gather(lambda text: re.search(r"(;|^\};?|\})$", text)
                           and text.count("{") == text.count("}"))
        if names:
            names = ["mlc::" + name for name in names[1].split(", ")]
            text = re.sub(r"\nprivate:.*?(?=\n\})", "", text, flags=re.S)
            comment = [re.sub(r"^[a-z_, ]+: ", names[0] + ": ", comment[0])] + comment[1:]
            self.add("C++", names, text, comment)
        elif "mlc" in " ".join(comment):
            self.section().items.append(Section("", "", comment))


class Model:
    """Everything that is written: the manual, the sections, what refers to what."""

    def __init__(self):
        core, cuda = Reader("mlcore.h"), Reader("mlcore_cuda.h")
        self.manual = core.manual
        self.sections = core.read() + cuda.read()
        self.sections[-1].body = cuda.manual
        self.items = [item for section in self.sections for item in section.of()]
        self.of = {name: item for item in self.items for name in item.names}
        self.version = self.of["MLC_VERSION_STRING"].decl.split('"')[1]
        self.follow()
        self.bad = core.bad + cuda.bad + self.unknown("\n".join(core.lines + cuda.lines))
        self.index = self.torch()
        self.instead = self.not_there()

    def follow(self):
        """What only says "see mlc_x" takes the words and fields of mlc_x that are its own."""
        for item in self.items:
            to = item.see and self.of.get(item.see[1])
            if not to:
                continue
            own = re.search(r"\b%s: (.*)" % item.name, to.text())
            item.fields = to.fields
            item.body = [own[1] if own else to.text()]
            to.names.append(item.name)

    def unknown(self, text):
        """Names in comments that nothing declares; NAME and FAMILY stand for others."""
        with open("mlcore.h", encoding="utf-8") as file:
            code = re.sub(r"/\*.*?\*/", "", text + file.read(), flags=re.S)
        self.code = set(NAME.findall(code))
        said = " ".join(re.findall(r"/\*.*?\*/", text, flags=re.S) + self.manual)
        known = set(NAME.findall(code) + re.findall(r"\b(MLC_\w+)=", said))      # environment
        known |= {"MLC_" + name for name in re.findall(r"\b[UBN]\((\w+),", code)}
        return sorted(f"a comment names {name}, which is not declared"
                      for name in set(NAME.findall(said)) - known
                      if not re.search("_$|NAME|FAMILY", name) and
                      not re.search(re.escape(name) + r"[*.]", said))

    @staticmethod
    def made():
        """Of each desc what its _make assigns: constants, and "given" where it is a parameter."""
        with open("mlcore.h", encoding="utf-8") as file:
            text = file.read()
        made = {}
        makers = re.findall(r"^MLC_IMPL mlc_\w+_desc (mlc_\w+_desc)_make\(([^)]*)\)\n\{\n(.*?)^\}",
                            text, re.M | re.S)
        number = r"-?[\d.]+(e-?\d+)?|true|infinity|MLC_[A-Z0-9]\w*|\"\w+\""
        for name, params, body in makers:
            made[name] = made.get(re.findall(r" = (mlc_\w+_desc)_make\(|$", body)[0], {}).copy()
            params = re.findall(r"(\w+)(?=,|$)", params)
            for fields, value in re.findall(r"^ *((?:\w+\.\w+ = )+)([^;]*);", body, re.M):
                value = re.sub(r"\.0$", "", value).replace("MLC__INF", "infinity")
                value = "given to _make" if value in params else value
                if value == "given to _make" or re.fullmatch(number, value):
                    made[name].update(dict.fromkeys(re.findall(r"\.(\w+) =", fields), value))
        return made

    def torch(self):
        """Of each group of PyTorch's names (name, names here), sorted; those here that have the
        fewest of PyTorch's come first."""
        index = {}
        for item in [item for item in self.items if item.kind == "function" and not item.see]:
            names, group = torch_names(item.field("ref")), item.names
            for at, (name, exact) in enumerate(names):
                one = len(group) > 1 and len(names) % len(group) == 0
                rank = (not exact, len(names), len(item.field("ref")))
                for here in [group[at % len(group)]] if one else group:
                    index.setdefault(name, {}).setdefault(here, rank)
        for name in [name for name in index if re.match(r"Tensor\.\w+_$", name)]:
            plain = index.get("torch." + name[len("Tensor."):-1])      # a method, too
            if plain:
                index.setdefault(name[:-1], plain)
        groups = {title: [] for title, _ in GROUPS}
        for name, here in sorted(index.items(), key=lambda row: row[0].lower()):
            title = next(title for title, start in GROUPS if re.match(start, name))
            groups[title].append((name, sorted(here, key=here.get)))
        return groups

    def not_there(self):
        """(names, what to do) of each line of NOT_THERE; what it says of names here must hold."""
        with open(NOT_THERE, encoding="utf-8") as file:
            rows = [line.rstrip("\n").split(": ", 1) for line in file if line.strip()]
        rows = [(names.split(", "), text) for names, text in rows]
        known = {name for rows in self.index.values() for name, _ in rows}
        for names, text in rows:
            self.bad += [f"{NOT_THERE}: {name} is in the index" for name in names if name in known]
            self.bad += [f"{NOT_THERE}: {name} is not declared" for name in NAME.findall(text)
                         if name not in self.of and name not in self.code]
        return rows


def torch_names(ref):
    """(name, is that all that is said of it) of each name of PyTorch's in a ref."""
    made = []
    for found in TORCH.finditer(ref):
        name, after = found[1], ref[found.end():]
        if after.startswith("._"):              # private
            continue
        words = re.match(r"(?: [a-z]+)+(?=[,;]|$)", after)
        name += words[0] if words and name in SPACES else ""
        made.append((name, re.match(r"[,;]|$", after) is not None or name != found[1]))
        common = found[1].rpartition(".")[0]
        made += [(f"{common}.{more}", True) for more in re.findall(r"\w+", found[2])]
    return made


def blocks(lines):
    """Paragraphs of a comment: (is it set as it stands, its lines or its words). One ends where a
    line ends with a sentence, and the first word of the next line had room in it."""
    made, last = [], ""
    for line in lines:
        fixed = bool(re.search(r"^ {4,}\S|\S {3,}\S", line))
        room = not fixed and len(last + line.lstrip().split(" ")[0]) < 92
        if not last or made[-1][0] != fixed or room and last.endswith((".", ":")):
            made.append((fixed, []))
        made[-1][1].append(line)
        last = line
    return [(fixed, textwrap.dedent("\n".join(part)) if fixed else
             re.sub(r"\s+", " ", " ".join(part)).strip()) for fixed, part in made if any(part)]


def chapters(manual):
    """(title, lines) of the manual's first screen and numbered parts, without the contents."""
    parts = [("mlcore", [])]
    for line in manual[:next(at for at, line in enumerate(manual) if line.startswith("Contents"))]:
        head = re.match(r"(\d+\. [A-Z][^.:,(]*)[.:,]? ?(.*)$", line)
        if head:
            parts.append((head[1], [head[2]] if head[2] else []))
        elif line != "MANUAL" and not line.startswith("---"):
            parts[-1][1].append(line)
    return parts


def api_md(model):
    """examples/API.md: a line each function, by section, and the index of PyTorch's names."""
    def cell(text):
        return re.sub(r"([|*])", r"\\\1", text).replace("<", "&lt;")
    functions = [item for item in model.items if item.kind == "function"]
    out = [f"# mlcore {model.version}: all functions", "",
           f"Made from `mlcore.h` by `make reference`, which also writes one HTML page with search "
           f"(`build/reference/index.html`) and man pages. {len(functions)} functions; the comment "
           "above each declaration says the rest: dtypes, types of parameters, shapes, gradient, "
           "errors, test. Of a desc there are its fields, with what they have by default; where "
           "nothing is said that is 0, false or NULL. Of other structs there are the fields that "
           "programs read or set, with the comments beside them.", ""]
    tables, made = [], model.made()
    for section in model.sections:
        rows = [item for item in section.of("function", "C++", "macro", "struct")
                if (item.kind != "macro" or item.comment) and
                (item.kind != "struct" or section.name != "API.BACKEND")]
        types = [item.name for item in section.of("struct", "enum", "callback", "object")
                 if item not in rows]
        anchor = section.name.lower().replace(".", "-")
        left = f"; left out by `{section.family}`" if section.family else ""
        out.append(f"- [{section.name}](#{anchor}) {section.title} ({len(rows)})")
        tables += ["", f"<a id=\"{anchor}\"></a>", f"## {section.name}", "",
                   f"{cell(section.title)}{left}", "", "| name | what | PyTorch, paper |",
                   "|---|---|---|"]
        for row in rows:
            text = row.first()
            if row.kind == "struct":
                text = (f"fields: {row.members(made.get(row.name, {}))}"
                        if row.name.endswith("_desc") else
                        f"{text}{'; ' if text else ''}fields: {row.said()}")
            tables.append(f"| `{row.call()}` | {cell(text)} | {cell(row.field('ref'))} |")
        if types:
            tables += ["", "Types: " + ", ".join(f"`{name}`" for name in types)]
    out += ["- [From PyTorch's names](#pytorch)", "- [Not there](#not-there)"] + tables
    out += ["", "<a id=\"pytorch\"></a>", "## From PyTorch's names", "",
            "`F` is `torch.nn.functional`. What is not here may be [not there](#not-there)."]
    for title, rows in model.index.items():
        out += ["", f"### {title}", "", "| PyTorch | mlcore |", "|---|---|"]
        out += [f"| `{name}` | {', '.join(f'`{n}`' for n in here)} |" for name, here in rows]
    out += ["", "<a id=\"not-there\"></a>", "## Not there", "",
            "What is looked for under PyTorch's names and is not in mlcore, and what to do.", "",
            "| PyTorch | instead |", "|---|---|"]
    out += [f"| {', '.join(f'`{name}`' for name in names)} | {cell(text)} |"
            for names, text in model.instead]
    return "\n".join(out) + "\n"


class Page:
    """One HTML page: the template PAGE with the contents, the manual, the sections, the index of
    PyTorch's names and what is not there. A function's data-torch has its names in the index,
    data-also those for which another function stands before it there."""

    def __init__(self, model):
        self.model, self.same = model, {}
        for rows in model.index.values():
            for name, functions in rows:
                for at, function in enumerate(functions):
                    self.same.setdefault(function, ([], []))[at > 0].append(name)

    def link(self, text):
        """A text with its names as links."""
        def to(found):
            item = self.model.of.get(found[0])
            return f'<a href="#{found[0]}">{found[0]}</a>' if item else found[0]
        return NAME.sub(to, html.escape(text, quote=False))

    def prose(self, body, fields):
        """A comment: paragraphs, and its fields as a list."""
        out = [f"<pre>{self.link(text)}</pre>" if fixed else f"<p>{self.link(text)}</p>"
               for fixed, text in blocks(body)]
        rows = [f"<dt>{WORDS.get(key, key)}</dt><dd>{self.link(text)}</dd>" for key, text in fields]
        return "\n".join(out + (["<dl>"] + rows + ["</dl>"] if rows else []))

    def item(self, item):
        """An entry: its name, declaration and comment."""
        lines = item.decl.split("\n")
        more = f"\n/* {len(lines) - LINES} more lines in the header */" if lines[LINES:] else ""
        decl = html.escape(re.sub(" +\\*/", " */", "\n".join(lines[:LINES])) + more, quote=False)
        own = set(item.names[1:] if item.kind == "enum" else [])

        def name(found):
            if found[0] in own:
                own.remove(found[0])
                return f'<span id="{found[0]}">{found[0]}</span>'
            known = found[0] in self.model.of and found[0] not in item.names
            return f'<a href="#{found[0]}">{found[0]}</a>' if known else found[0]
        first = html.escape(item.first(), quote=True)
        title = ", ".join(item.names) if item.kind == "C++" else item.name
        same = "".join(f' data-{key}="{html.escape(" ".join(names), quote=True)}"' for key, names
                       in zip(("torch", "also"), self.same.get(item.name, ())))
        return (f'<article id="{item.name}" data-first="{first}"{same}>'
                f'<h3><a href="#{item.name}">{title}</a> <small>{item.kind}</small></h3>\n'
                f"<pre>{NAME.sub(name, decl)}</pre>\n"
                f"{self.prose(item.body, item.fields)}</article>")

    def table(self, anchor, title, text, right, rows):
        """A section that is a table of PyTorch's names beside what is here, rows as HTML."""
        return (f'<section id="{anchor}"><h2>{html.escape(title)}</h2><p>{text}</p>'
                f'<table class="names"><thead><tr><th>PyTorch</th><th>{right}</th></tr></thead>\n'
                "<tbody>\n" + "\n".join(rows) + "\n</tbody></table></section>")

    def torch(self):
        """The contents' lines and the sections of the index by group and of what is not there."""
        nav, main = ["<b>From PyTorch's names</b>"], []

        def code(names):
            return ", ".join(f"<code>{html.escape(name, quote=False)}</code>" for name in names)
        for at, (title, rows) in enumerate(self.model.index.items()):
            nav.append(f'<a href="#torch-{at}">{html.escape(title)}</a>')
            text = "<code>F</code> is <code>torch.nn.functional</code>. What is not here may be "
            main.append(self.table(
                f"torch-{at}", f"From PyTorch's names: {title}",
                text + '<a href="#not-there">not there</a>.', "mlcore",
                [f"<tr><td>{code([name])}</td><td>{self.link(', '.join(here))}</td></tr>"
                 for name, here in rows]))
        nav.append('<a href="#not-there">Not there</a>')
        main.append(self.table(
            "not-there", "Not there", "What is looked for under PyTorch's names and is not in "
            "mlcore, and what to do.", "instead",
            [f'<tr id="not-there-{at}"><td>{code(names)}</td><td>{self.link(text)}</td></tr>'
             for at, (names, text) in enumerate(self.model.instead)]))
        return nav, main

    def write(self):
        """The page as a text."""
        nav, main = ["<b>Manual</b>"], []
        for at, (title, lines) in enumerate(chapters(self.model.manual)):
            nav.append(f'<a href="#manual-{at}">{html.escape(title)}</a>')
            main.append(f'<section id="manual-{at}"><h2>{html.escape(title)}</h2>'
                        f"{self.prose(lines, [])}</section>")
        nav.append("<b>Reference</b>")
        for section in self.model.sections:
            left = f"<p>Left out by {section.family}.</p>" if section.family else ""
            title = html.escape(section.title)
            nav.append(f'<a href="#{section.name}" title="{title}">{section.name[4:] or "CUDA"} '
                       f"<small>{title}</small></a>")
            names = " ".join(f'<a href="#{item.name}">{item.name}</a>' for item in section.of())
            main.append(f'<section id="{section.name}"><h2>{section.name}</h2><p>{title}</p>{left}'
                        f"{self.prose(section.body, section.fields)}"
                        f'<p class="names">{names}</p></section>')
            for item in section.items:
                main.append(self.item(item) if isinstance(item, Item) else
                            f'<div class="note">{self.prose(item.body, item.fields)}</div>')
        torch = self.torch()
        nav, main = nav + torch[0], main + torch[1]
        with open(PAGE, encoding="utf-8") as file:
            text = file.read()
        parts = {"VERSION": self.model.version, "CONTENTS": "\n".join(nav), "ALL": "\n".join(main)}
        return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], text)


class Manual:
    """Man pages: one of section 3 a function, mlcore(7)."""

    def __init__(self, model):
        self.model = model
        date = time.strftime("%Y-%m-%d", time.gmtime(os.path.getmtime("mlcore.h")))
        self.head = f'"{date}" "mlcore {model.version}" "mlcore"\n'

    @staticmethod
    def safe(text):
        """A text that roff shows as it is."""
        text = text.replace("\\", "\\e").replace("-", "\\-").replace("^", "\\(ha")
        text = text.replace("~", "\\(ti").replace("`", "\\(ga").replace("'", "\\(aq")
        return re.sub(r"^([.'])", r"\\&\1", text, flags=re.M)

    def prose(self, body):
        """Paragraphs; what is set as it stands in between."""
        return "".join(".PP\n.nf\n%s\n.fi\n" % self.safe(text) if fixed
                       else ".PP\n%s\n" % self.safe(text) for fixed, text in blocks(body))

    def page(self, item):
        """The page of a function."""
        types = [self.model.of.get(name) for name in re.findall(r"\bmlc_\w+", item.decl)]
        types = [t for t in dict.fromkeys(types) if t and t.kind == "struct" and
                 t.place[0].name not in ("API.TYPES", "API.BACKEND")]
        decl = "\n\n".join([self.model.of[n].decl for n in item.names] + [t.decl for t in types])
        names, header = ", ".join(item.names), "_cuda" * (item.place[0].name == "CUDA")
        out = [f".TH {item.name} 3 {self.head}.SH NAME\n{names} \\- {self.safe(item.first())}\n"
               f".SH SYNOPSIS\n.nf\n#include <mlcore{header}.h>\n\n{self.safe(decl)}\n.fi\n"
               f".SH DESCRIPTION\n{self.prose(item.body)}"]
        for key, text in item.fields:
            out.append(f".SH {WORDS.get(key, key).upper()}\n{self.safe(text)}\n")
        out.append(f".SH NOTES\nSection {item.place[0].name}: {self.safe(item.place[0].title)}.\n")
        if item.place[0].family:
            out.append(f"{item.place[0].family} leaves it out.\n")
        for part in item.place:
            out += [self.prose(part.body)] + [self.prose([f"{WORDS.get(key, key)}: {text}"])
                                              for key, text in part.fields]
        others = {name for name in re.findall(r"\bmlc_\w+", " ".join(item.comment))
                  if name in self.model.of and self.model.of[name].kind == "function"} - {item.name}
        out.append(".SH SEE ALSO\n" + "".join(f".BR {n} (3),\n" for n in sorted(others)) +
                   ".BR mlcore (7)\n")
        return re.sub(r"\.SH ([A-Z]+)\n\.PP\n", r".SH \1\n", "".join(out))

    def write(self, folder):
        """All pages below a folder, in man3 and man7."""
        for number in "37":
            os.makedirs(os.path.join(folder, "man" + number), exist_ok=True)
        for item in [item for item in self.model.items if item.kind == "function"]:
            to = item.see and item.see[1]
            save(os.path.join(folder, "man3", item.name + ".3"),
                 f".so man3/{to}.3\n" if to else self.page(item))
            for name in re.findall(r"(mlc_\w+)_make$", item.name):
                if name in self.model.of:
                    save(os.path.join(folder, "man3", name + ".3"), f".so man3/{name}_make.3\n")
        out = [f".TH mlcore 7 {self.head}.SH NAME\nmlcore \\- trains neural networks in plain C\n"]
        for title, lines in chapters(self.model.manual):
            out.append(f'.SH "{self.safe(title).upper()}"\n{self.prose(lines)}')
        out.append(".SH SECTIONS\n")
        for section in self.model.sections:
            names = ", ".join(item.name for item in section.of("function"))
            out.append(f".SS {section.name}: {self.safe(section.title)}\n{names}\n")
        save(os.path.join(folder, "man7", "mlcore.7"),
             re.sub(r'(\.S[HS] .*\n)\.PP\n', r"\1", "".join(out)))


def save(path, text):
    """Writes a file."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def main(args):
    """Ends with 1 where a comment lacks, or with --check where examples/API.md is old."""
    if args != ["--check"] and (len(args) != 1 or args[0].startswith("-")):
        print(__doc__, end="")
        return args not in (["-h"], ["--help"])
    model = Model()
    text = api_md(model)
    for line in model.bad:
        print(line)
    if args == ["--check"]:
        with open(API, encoding="utf-8") as file:
            if file.read() != text:
                print(f"{API}: not what the headers say now: make reference")
                return 1
        return len(model.bad) > 0
    save(API, text)
    Manual(model).write(os.path.join(args[0], "man"))
    save(os.path.join(args[0], "index.html"), Page(model).write())
    return len(model.bad) > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
