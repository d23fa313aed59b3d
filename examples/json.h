/* json.h -- reads JSON from a text in memory (RFC 8259), and a text that grows, to write it
 *
 * A reader asks for what comes next: `{`, a string, a number. It takes no memory and calls nothing
 * of itself, so that no text is too deep for the stack. The first thing that is wrong is in `why`,
 * and from then on every question is answered by false. */
#ifndef EXAMPLES_JSON_H
#define EXAMPLES_JSON_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { JSON_DEPTH = 64 };

typedef struct json {
    char       *text;                     /* strings are decoded where they stand                 */
    size_t      at, n;
    const char *why;
} json;

static inline bool json_fail(json *j, const char *why)
{
    if (!j->why) j->why = why;
    return false;
}

static inline void json_space(json *j)
{
    while (j->at < j->n && j->text[j->at] && strchr(" \t\r\n", j->text[j->at])) j->at++;
}

/* Takes c if it comes next, after blanks. */
static inline bool json_take(json *j, char c)
{
    json_space(j);
    if (j->why || j->at >= j->n || j->text[j->at] != c) return false;
    j->at++;
    return true;
}

static inline bool json_need(json *j, char c, const char *why)
{
    return json_take(j, c) || json_fail(j, why);
}

/* Takes one of true, false and null. */
static inline bool json_word(json *j, const char *word)
{
    const size_t n = strlen(word);
    if (!json_take(j, word[0])) return false;
    if (j->n - j->at >= n - 1 && !memcmp(j->text + j->at, word + 1, n - 1)) {
        j->at += n - 1;
        return true;
    }
    j->at--;
    return false;
}

static inline bool json_bool(json *j, bool *out)
{
    *out = json_word(j, "true");
    return *out || json_word(j, "false") || json_fail(j, "true or false is missing");
}

/* Four digits in hex; -1 if they are none. */
static inline int32_t json_hex(json *j)
{
    int32_t v = 0;
    if (j->n - j->at < 4) return -1;
    for (int i = 0; i < 4; i++) {
        const char c = j->text[j->at++];
        const int  d = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ?
                       (c | 32) - 'a' + 10 : -1;
        if (d < 0) return -1;
        v = v * 16 + d;
    }
    return v;
}

/* The character of \uXXXX, or of two of them, as UTF-8 to *to. */
static inline bool json_unicode(json *j, char **to)
{
    int32_t u = json_hex(j), low;
    if (u >= 0xD800 && u < 0xDC00) {
        if (j->n - j->at < 2 || j->text[j->at] != '\\' || j->text[j->at + 1] != 'u')
            return json_fail(j, "half of a pair of surrogates");
        j->at += 2;
        low = json_hex(j);
        if (low < 0xDC00 || low > 0xDFFF) return json_fail(j, "half of a pair of surrogates");
        u = 0x10000 + ((u - 0xD800) << 10) + (low - 0xDC00);
    } else if (u <= 0 || (u >= 0xDC00 && u <= 0xDFFF)) {
        return json_fail(j, "an escape is not hex, or a 0, or half of a pair");
    }
    const int more = u < 0x80 ? 0 : u < 0x800 ? 1 : u < 0x10000 ? 2 : 3;
    static const int32_t first[4] = { 0, 0xC0, 0xE0, 0xF0 };
    *(*to)++ = (char)(first[more] | u >> (6 * more));
    for (int k = more - 1; k >= 0; k--) *(*to)++ = (char)(0x80 | (u >> (6 * k) & 63));
    return true;
}

/* A string, decoded and ended by a 0, which it does not contain; it is not checked to be UTF-8. */
static inline bool json_string(json *j, char **out)
{
    static const char from[] = "\"\\/bfnrt", into[] = "\"\\/\b\f\n\r\t";
    if (!json_need(j, '"', "a string is missing")) return false;
    char *to = *out = j->text + j->at;
    while (j->at < j->n && j->text[j->at] != '"') {
        const char c = j->text[j->at++];
        if ((unsigned char)c < 0x20) return json_fail(j, "a control character in a string");
        if (c != '\\') { *to++ = c; continue; }
        if (j->at >= j->n) break;
        const char  e     = j->text[j->at++];
        const char *known = e ? strchr(from, e) : NULL;
        if (known) *to++ = into[known - from];
        else if (e != 'u') return json_fail(j, "an escape that JSON lacks");
        else if (!json_unicode(j, &to)) return false;
    }
    if (j->at >= j->n) return json_fail(j, "a string does not end");
    j->at++;
    *to = 0;
    return true;
}

static inline size_t json_digits(const json *j, size_t at)
{
    size_t n = 0;
    while (at + n < j->n && j->text[at + n] >= '0' && j->text[at + n] <= '9') n++;
    return n;
}

/* Bytes of the number at the position, by JSON's grammar; 0 if there is none. */
static inline size_t json_number_bytes(const json *j)
{
    const size_t start = j->at;
    size_t       at = start, k;
    if (at < j->n && j->text[at] == '-') at++;
    if ((k = json_digits(j, at)) == 0 || (k > 1 && j->text[at] == '0')) return 0;
    at += k;
    if (at < j->n && j->text[at] == '.') {
        if ((k = json_digits(j, at + 1)) == 0) return 0;
        at += 1 + k;
    }
    if (at < j->n && (j->text[at] | 32) == 'e') {
        at++;
        if (at < j->n && (j->text[at] == '+' || j->text[at] == '-')) at++;
        if ((k = json_digits(j, at)) == 0) return 0;
        at += k;
    }
    return at - start;
}

/* A number. At most 15 digits, and powers of 10 that a double has, need one operation, which is
 * rounded right; others go through strtod. */
static inline bool json_number(json *j, double *out)
{
    static const double power[] = { 1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                    1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15 };
    char     copy[400];
    uint64_t v = 0;
    int      digits = 0, after = 0;
    bool     plain = true, point = false;
    json_space(j);
    const size_t n = j->why ? 0 : json_number_bytes(j);
    if (n == 0 || n >= sizeof copy) return json_fail(j, "a number is missing, or too long");
    const char *s = j->text + j->at;
    for (size_t i = s[0] == '-'; i < n && plain; i++) {
        if (s[i] == '.') { point = true; continue; }
        plain = s[i] >= '0' && s[i] <= '9' && ++digits <= 15;
        v     = v * 10 + (uint64_t)(s[i] - '0');
        after += point;
    }
    j->at += n;
    if (plain) {
        const double value = (double)v / power[after];
        *out = s[0] == '-' ? -value : value;
        return true;
    }
    memcpy(copy, s, n);
    copy[n] = 0;
    *out = strtod(copy, NULL);
    return true;
}

/* A number without fraction of at least lo and at most hi. */
static inline bool json_whole(json *j, int64_t lo, int64_t hi, int64_t *out)
{
    double v = 0;
    if (!json_number(j, &v)) return false;
    if (!(v >= (double)lo && v <= (double)hi) || v != (double)(int64_t)v)
        return json_fail(j, "a number is not whole, or out of its range");
    *out = (int64_t)v;
    return true;
}

/* Passes over a string without decoding it. */
static inline bool json_skip_string(json *j)
{
    for (; j->at < j->n && j->text[j->at] != '"'; j->at++) {
        if (j->text[j->at] == '\\' && ++j->at == j->n) break;
        if ((unsigned char)j->text[j->at] < 0x20)
            return json_fail(j, "a control character in a string");
    }
    if (j->at >= j->n) return json_fail(j, "a string does not end");
    j->at++;
    return true;
}

/* Passes over a value that begins here and is no list and no object. */
static inline bool json_skip_one(json *j)
{
    double number;
    if (json_take(j, '"')) return json_skip_string(j);
    if (json_word(j, "true") || json_word(j, "false") || json_word(j, "null")) return true;
    return json_number(j, &number);
}

/* Passes over a value, whatever it is; the text stays as it was. */
static inline bool json_skip(json *j)
{
    char end[JSON_DEPTH];
    int  depth = 0;
    do {
        bool open = false;
        if (json_take(j, '[') || json_take(j, '{')) {
            if (depth == JSON_DEPTH) return json_fail(j, "lists and objects are too deep");
            end[depth++] = j->text[j->at - 1] == '[' ? ']' : '}';
            open = true;
        } else if (!json_skip_one(j)) {
            return false;
        }
        while (depth && json_take(j, end[depth - 1])) { depth--; open = false; }
        if (depth && !open && !json_need(j, ',', "',' is missing")) return false;
        if (depth && end[depth - 1] == '}') {
            if (!json_need(j, '"', "a key is missing") || !json_skip_string(j) ||
                !json_need(j, ':', "':' is missing")) return false;
        }
    } while (depth);
    return !j->why;
}

/* Is nothing left but blanks? */
static inline bool json_end(json *j)
{
    json_space(j);
    return !j->why && (j->at == j->n || json_fail(j, "more text after the end"));
}

/* The next member of an object after its '{' (first: *more true beforehand): its key. False at the
 * end of the object, and after anything that is wrong. */
static inline bool json_member(json *j, bool *first, char **key)
{
    const bool was = *first;
    *first = false;
    if (json_take(j, '}')) return false;
    if (!was && !json_need(j, ',', "',' is missing")) return false;
    return json_string(j, key) && json_need(j, ':', "':' is missing");
}

/* The same of a list after its '['. */
static inline bool json_item(json *j, bool *first)
{
    const bool was = *first;
    *first = false;
    if (json_take(j, ']')) return false;
    return was ? !j->why : json_need(j, ',', "',' is missing");
}

/* ---- text that grows; after a failed allocation it takes nothing more, and `full` says so */

typedef struct json_text { char *s; size_t n, room; bool full; } json_text;

static inline void text_put(json_text *t, const void *bytes, size_t n)
{
    if (t->n + n + 1 > t->room && !t->full) {
        size_t room = t->room ? t->room : 1024;
        while (room < t->n + n + 1) room *= 2;
        char *s = (char *)realloc(t->s, room);
        t->full = !s;
        if (s) { t->s = s; t->room = room; }
    }
    if (t->full) return;
    if (n) memcpy(t->s + t->n, bytes, n);
    t->n += n;
    t->s[t->n] = 0;
}

static inline void text_say(json_text *t, const char *s) { text_put(t, s, strlen(s)); }

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static inline void text_print(json_text *t, const char *format, ...)
{
    char    line[512];
    va_list list;
    va_start(list, format);
    const int n = vsnprintf(line, sizeof line, format, list);
    va_end(list);
    if (n > 0) text_put(t, line, (size_t)n < sizeof line ? (size_t)n : sizeof line - 1);
}

/* Bytes of the UTF-8 character at s (RFC 3629); 0: what is there is none; -1: it may become one. */
static inline int text_utf8(const char *s, size_t n)
{
    const unsigned char *u = (const unsigned char *)s;
    const int most = u[0] < 0x80 ? 1 : u[0] >= 0xC2 && u[0] < 0xE0 ? 2 :
                     (u[0] & 0xF0) == 0xE0 ? 3 : u[0] >= 0xF0 && u[0] < 0xF5 ? 4 : 0;
    for (int i = 1; i < most; i++) {
        if ((size_t)i == n) return -1;
        const int lo = i > 1 ? 0x80 : u[0] == 0xE0 ? 0xA0 : u[0] == 0xF0 ? 0x90 : 0x80;
        const int hi = i > 1 ? 0xBF : u[0] == 0xED ? 0x9F : u[0] == 0xF4 ? 0x8F : 0xBF;
        if (u[i] < lo || u[i] > hi) return 0;
    }
    return most;
}

/* A string of JSON; bytes that are no UTF-8 become U+FFFD. */
static inline void text_json(json_text *t, const char *s, size_t n)
{
    text_put(t, "\"", 1);
    for (size_t i = 0; i < n;) {
        const int k = text_utf8(s + i, n - i);
        if (s[i] == '"' || s[i] == '\\') text_put(t, "\\", 1);
        if (k <= 0) text_say(t, "\xEF\xBF\xBD");
        else if ((unsigned char)s[i] < 0x20) text_print(t, "\\u%04x", (unsigned)s[i]);
        else text_put(t, s + i, (size_t)k);
        i += k > 0 ? (size_t)k : 1;
    }
    text_put(t, "\"", 1);
}

/* Drops all; memory of more than `keep` bytes is freed. */
static inline void text_reset(json_text *t, size_t keep)
{
    if (t->room > keep) {
        free(t->s);
        t->s    = NULL;
        t->room = 0;
    }
    t->n = 0;
}

/* Drops the first n bytes. */
static inline void text_drop(json_text *t, size_t n)
{
    if (n) memmove(t->s, t->s + n, t->n - n);
    t->n -= n;
}

#endif
