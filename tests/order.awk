# order.awk -- a section of mlcore.h uses only what stands above it; prints a line a finding
#
# Reads the file twice. First the functions: where a body begins (IMPL), where a declaration stands
# (API). Then every name of them in code: a call, an address, a prototype. Names that macros paste
# are not seen; what MLC__ACROSS declares is the seam of the two halves. Called by lint.sh.

# The line without comments, texts and characters.
function code(line,    out, at)
{
    out = ""
    while (line != "") {
        if (inside) {
            at = index(line, "*/")
            if (!at) return out
            line = substr(line, at + 2)
            inside = 0
        } else if (match(line, /\/\*|"([^"\\]|\\.)*"|'([^'\\]|\\.)*'/)) {
            out = out substr(line, 1, RSTART - 1) " "
            inside = substr(line, RSTART, 2) == "/*"
            line = substr(line, RSTART + (inside ? 2 : RLENGTH))
        } else
            return out line
    }
    return out
}

# The name of a function at whose head this line begins, or nothing.
function head(line)
{
    if (line !~ /^[A-Za-z]/ || !match(line, /(^|[^A-Za-z0-9_])mlc_[a-z0-9_]+\(/)) return ""
    if (substr(line, 1, RSTART) ~ /[=({]/ || line ~ /^typedef/) return ""
    line = substr(line, RSTART, RLENGTH - 1)
    sub(/^[^m]/, "", line)
    return line
}

FNR == 1 { pass++; number = inside = 0; name = "" }
/^\/\* @@ / { title[++number] = $3; impl = $3 ~ /^IMPL/ }
inside || /[\/"']/ { $0 = code($0) }

# A body follows a head: { before any semicolon.
pass == 1 && number {
    if (name == "") name = head($0)
    if (name != "" && match($0, /[;{]/)) {
        if (!impl && !(name in declared)) declared[name] = number
        if (impl && substr($0, RSTART, 1) == "{" && !(name in defined)) defined[name] = number
        name = ""
    }
}
pass == 2 && number && /mlc_/ {
    rest = $0
    while (match(rest, /mlc_[A-Za-z0-9_]+/)) {
        name = substr(rest, RSTART, RLENGTH)
        before = substr(rest, 1, RSTART - 1)
        rest = substr(rest, RSTART + RLENGTH)
        below = impl ? defined[name] : declared[name]
        if (below > number && $0 !~ /^MLC__ACROSS / && before !~ /([A-Za-z0-9_]|struct |\.|->)$/)
            printf "%s:%d: %s names %s, which %s below it %s\n", FILENAME, FNR, title[number],
                   name, title[below], impl ? "defines" : "declares"
    }
}
