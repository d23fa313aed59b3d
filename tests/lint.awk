# lint.awk -- what can be said of mlcore.h line by line; prints a line a finding
#
# Contents and banners agree; declarations have their comment and their definition; nothing is too
# long; the tests and errors of functions are named. Called by lint.sh.

function bad(text) { printf "%s:%d: %s\n", FILENAME, FNR, text }

function public_name(line)
{
    return match(line, /mlc_[a-z0-9_]+\(/) ? substr(line, RSTART, RLENGTH - 1) : ""
}

function end_section()
{
    if (section != "" && FNR - section_line > 1500)
        bad(section " has " FNR - section_line " lines: over 1500, split it")
    if (stage == "open") bad(section " ends within the #if of" family)
    stage = "new"
    family = ""
    popped = 0
}

# Macros of families that a line names, with a blank before each.
function families(line,    names, name)
{
    while (match(line, /MLC_NO_[A-Z_]+/)) {
        name = substr(line, RSTART, RLENGTH)
        if (name in is_family) names = names " " name
        line = substr(line, RSTART + RLENGTH)
    }
    return names
}

function compare(half,    i, n, a, b)
{
    n = n_contents[half] > n_banners[half] ? n_contents[half] : n_banners[half]
    for (i = 1; i <= n; i++) {
        a = contents[half, i]
        b = banners[half, i]
        if (a != b) {
            bad("contents say " (a ? a : "nothing") " where the banner is " (b ? b : "missing"))
            return
        }
    }
}

length($0) > 100 { bad("over 100 columns") }
/[ \t]$/ { bad("blanks at the end of the line") }
/^ *(\* *)?\*\/$/ { bad("a comment ends alone on the line") }

# The contents stand in the first comment: banner names, up to a line that is only " *".
!in_contents && !contents_seen && /^ \* *Contents/ { in_contents = contents_seen = 1; next }
in_contents && /^ \*[ \t]*$/ { in_contents = 0 }
in_contents {
    for (i = 1; i <= NF; i++)
        if (match($i, /^(API|IMPL)\.[A-Z0-9_.]+$/)) {
            half = substr($i, 1, index($i, ".") - 1)
            contents[half, ++n_contents[half]] = $i
        }
}

/^\/\* @@ / {
    end_section()
    section = $3
    section_line = FNR
    half = substr($3, 1, index($3, ".") - 1)
    banners[half, ++n_banners[half]] = $3
}

# The comment directly above a declaration begins with its name.
/^\/\*/ { comment = $2; comment_end = 0 }
/\*\/[ \t]*$/ && comment_end == 0 { comment_end = FNR }

# What is said of a function: by its comment and by the banners of its section and its part of it.
/^\/\*/ {
    where = $2 == "@@" ? "section" : $2 == "--" ? "part" : "own"
    said[where] = ""
    if (where == "section") said["part"] = ""
    in_comment = 1
}
in_comment {
    said[where] = said[where] $0 "\n"
    comment_line = FNR
}
/\*\/[ \t]*$/ { in_comment = 0 }

# A desc's struct is followed by the declaration of what makes it.
/^\} mlc_[a-z0-9_]+_desc;/ { desc = $2; sub(/;.*/, "", desc) }

/^MLC_API / {
    name = public_name($0)
    if (name == "") { bad("no function name on the MLC_API line"); next }
    if (desc != "" && name != desc "_make") bad(desc " is not followed by " desc "_make")
    desc = ""
    declared[name] = family == "" ? "of no family" : "left out by" family
    if (comment != name ":" || comment_end != FNR - 1)
        bad(name " has no comment directly above that begins with its name")
    text = said["section"] said["part"] said["own"]
    if (text !~ /tests\/test_/) bad(name ": no comment or banner names its test")
    if (/^MLC_API (mlc_tensor \*|mlc_status ).*\(.*mlc_tensor \*/ &&
        text !~ /[^a-z]err(or|ors)?[^a-z]/)
        bad(name ": no comment or banner names its errors")
}
# API.CPP lists what returns a tensor, without the prefix.
/^MLC_API mlc_tensor \*/ { returned[substr(public_name($0), 5)] = 1 }
/^    X\(/ && section == "API.CPP" {
    rest = $0
    while (match(rest, /X\([a-z0-9_]+\)/)) {
        name = substr(rest, RSTART + 2, RLENGTH - 3)
        if (name in wrapped) bad("API.CPP lists " name " twice")
        wrapped[name] = 1
        rest = substr(rest, RSTART + RLENGTH)
    }
}
/^MLC_IMPL / {
    name = public_name($0)
    if (name == "") { bad("no function name on the MLC_IMPL line"); next }
    if (name in defined) bad(name " is defined twice")
    defined[name] = family == "" ? "of no family" : "left out by" family
}

# What makes a desc clears it, or makes it by another, and sets fields by their names: a field that
# is inserted shifts no value.
/^MLC_IMPL mlc_[a-z0-9_]+_desc mlc_[a-z0-9_]+_desc_make\(/ { maker = public_name($0) }
maker != "" && /memset\(&|= mlc_[a-z0-9_]+_desc_make\(/ { maker = "" }
maker != "" && /^\}|\}$/ { bad(maker " does not begin with memset"); maker = "" }
half == "IMPL" && /mlc_[a-z0-9_]+_desc [a-z0-9_]+ = *(\{|$)/ { bad("a desc is filled by position") }

# Families are whole sections: the #if of a family's macro is the first line under the banner's
# comment, and its #endif the last of the section, but for the level, the half and what is read once.
# A section of the API has it twice: first to change MLC_API, last to change it back.
section == "API.CONFIG" && /^#  define MLC_NO_[A-Z_]+$/ { is_family[$3] = 1 }
/^# *if/ { depth++ }
section ~ /^(API|IMPL)\./ && section !~ /\.(CONFIG|PLATFORM)$/ && comment_line != FNR && NF {
    names = /^# *(el)?if/ ? families($0) : ""
    if (stage == "new") {
        stage = names == "" ? "whole" : "open"
        family = names
        family_depth = depth
    } else if (names != "" && (names != family || half == "IMPL" || depth != family_depth))
        bad(section " has" names " in its middle: a family is a section of its own")
    else if (stage == "ended" && !/^MLC__LEVEL_/ && !/^#(if|endif).*MLC__(HAS_|ONCE)/)
        bad(section " goes on after the #endif of" family)
    if (/MLC__LEFT_OUT\("/ && families($0) != family)
        bad("MLC__LEFT_OUT says" families($0) ", the section is of" family)
    if (/^#  pragma pop_macro\("MLC_API"\)$/) popped = 1
    if (stage == "open" && depth == family_depth && /^# *endif/ && (half == "IMPL" || popped))
        stage = "ended"
}
/^# *endif/ { depth-- }

# A switch of the compiler's level goes to another one, but that of a text which is read again.
/^#if .*MLC__(READING|BY_)/ { level = "" }
/^MLC__LEVEL_/ && $1 != "MLC__LEVEL_END" {
    if ($1 == level) bad("the level is " level " already")
    level = $1
}

# No section knows a layer by its class: a layer says what it is in its mlc__fuse. Nothing that a
# layer's class or fuse holds, nor their addresses, is compared with anything.
/(->|\.)(cls|fuse)((->|\.)[a-z_]+)* *[!=]=/ || /[!=]= *&?[a-z_>.-]*(->|\.)(cls|fuse)([^a-z_]|$)/ ||
/[!=]= *&mlc__[a-z0-9_]+_(class|fuses?)([^a-z0-9_]|$)/ ||
/(str(n?cmp|str)|memcmp)\([^;]*(->|\.)cls/ { bad("a layer is found by its class") }

# A function's body is from { to } in the first column.
/^\{/ { body = FNR }
/^\}/ {
    if (body && FNR - body > 120 && section !~ /^IMPL\.KERNELS/)
        bad("a function of " FNR - body " lines: over 120")
    body = 0
}

END {
    end_section()
    if (!contents_seen) bad("the manual has no Contents")
    compare("API")
    compare("IMPL")
    for (name in declared) if (!(name in defined)) bad(name " is declared, not defined")
    for (name in returned) if (!(name in wrapped)) bad("mlc_" name " is not in a list of API.CPP")
    for (name in wrapped) if (!(name in returned)) bad("API.CPP lists " name ", which returns no tensor")
    for (name in defined) if (!(name in declared)) bad(name " is defined, not declared")
    for (name in declared) if (name in defined && declared[name] != defined[name])
        bad(name ": its declaration is " declared[name] ", its definition " defined[name])
}
