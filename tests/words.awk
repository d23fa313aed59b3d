# words.awk -- comments of mlcore.h: how many, and in whose words; prints a line a finding
#
# Lines of comments, whole lines, are at least 12 in 100 of the implementation and 8 in 100 of each
# of its sections; patterns below, each a riddle to who has not seen the code, stand in no comment;
# a comment on a struct stands directly above it. Called by lint.sh.

function bad(text) { printf "%s:%d: %s\n", FILENAME, FNR, text }

function end_section()
{
    if (section ~ /^IMPL\./) {
        all += FNR - section_line
        all_said += said
        if (100 * said < 8 * (FNR - section_line))
            bad(sprintf("%s has comments in %.1f of 100 lines: under 8", section,
                        100 * said / (FNR - section_line)))
    }
    said = 0
}

/^\/\* @@ / {
    end_section()
    section = $3
    section_line = FNR
}

# text: the comments of this line, without what is quoted.
{
    text = ""
    rest = $0
    if (!in_comment && rest ~ /^[ \t]*\/\*/) whole = 1
    while (rest != "") {
        if (!in_comment) {
            if (!(at = index(rest, "/*"))) break
            rest = substr(rest, at + 2)
            in_comment = 1
        }
        at = index(rest, "*/")
        text = text " " (at ? substr(rest, 1, at - 1) : rest)
        rest = at ? substr(rest, at + 2) : ""
        if (at) in_comment = 0
    }
    if (whole) said++
    if (!in_comment) whole = 0
    gsub(/"[^"]*"/, "", text)
}

text ~ /(^|[^a-z])(lies|nobody|meets)([^a-z]|$)/ ||
text ~ /(^|[^a-z])(what (is|was)|is met|are met|have met|has met|it met|behind)([^a-z]|$)/ {
    bad("a comment says `" $0 "`: see the glossary of the manual for the word")
}

END {
    end_section()
    if (100 * all_said < 12 * all)
        bad(sprintf("comments are %.1f of 100 lines of the implementation: under 12",
                    100 * all_said / all))
}
