/* vsnprintf.c -- formats text without a heap and without the C library's printf; see vsnprintf.h
 *   test    tests/test_print.c: against the C library's, each format that mlcore.h has          */
#include "vsnprintf.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

typedef struct target { char *to; size_t room, n; } target;

static void put(target *o, char c)
{
    if (o->n < o->room) o->to[o->n] = c;
    o->n++;
}

/* ---- numbers that are not whole -------------------------------------------------------------- */

/* A double in decimal, exactly: words of nine digits, the highest first, WHOLE of them before the
 * point, which hold 2^1024, and after it as many as 2^-1074 has digits.                        */
enum { WHOLE = 35, PLACES = 120 * 9, WORDS = WHOLE + PLACES / 9, BILLION = 1000000000 };

static const uint32_t tens[9] = {1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000};

/* The word that has the digit of 10^k, and what that digit counts in it.                       */
static int      word_of(int k) { return WORDS - 1 - (k + PLACES) / 9; }
static uint32_t ten_of(int k) { return tens[(k + PLACES) % 9]; }

static int digit(const uint32_t *w, int k)
{
    if (k < -PLACES || k >= 9 * WHOLE) return 0;
    return (int)(w[word_of(k)] / ten_of(k) % 10);
}

/* m 2^e                                                                                        */
static void expand(uint32_t *w, uint64_t m, int e)
{
    memset(w, 0, WORDS * sizeof *w);
    w[WHOLE - 2] = (uint32_t)(m / BILLION);
    w[WHOLE - 1] = (uint32_t)(m % BILLION);
    for (; e > 0; e--)
        for (uint32_t i = WHOLE, carry = 0; i-- > 0;) {
            const uint32_t v = 2 * w[i] + carry;
            carry = v >= BILLION;
            w[i] = carry ? v - BILLION : v;
        }
    for (; e < 0; e++)
        for (uint32_t i = WHOLE - 2, odd = 0; i < WORDS; i++) {
            const uint32_t v = w[i] + odd * BILLION;
            odd = v % 2;
            w[i] = v / 2;
        }
}

/* Exponent of the first digit that is not 0; of 0 it is 0.                                     */
static int first(const uint32_t *w)
{
    int k = 9 * WHOLE - 1;
    while (k > -PLACES && digit(w, k) == 0) k--;
    return k > -PLACES ? k : 0;
}

/* Rounds to multiples of 10^k, of two that are as near to the even one.                        */
static void round_at(uint32_t *w, int k)
{
    bool more = false;
    if (k <= -PLACES) return;
    for (int i = k - 2; i > -PLACES && !more; i--) more = digit(w, i) != 0;
    const int half = digit(w, k - 1);
    if (half < 5 || (half == 5 && !more && digit(w, k) % 2 == 0)) return;
    int i = word_of(k);
    w[i] += ten_of(k);
    for (; w[i] >= BILLION; i--) {
        w[i] -= BILLION;
        w[i - 1]++;
    }
}

static void put_real(target *o, double x, char kind, int precision)
{
    uint32_t w[WORDS];
    uint64_t bits;
    bool     e_form = kind == 'e', strip = kind == 'g';
    memcpy(&bits, &x, sizeof bits);
    const int exponent = (int)(bits >> 52 & 2047);
    const uint64_t m = bits & (((uint64_t)1 << 52) - 1);
    if (bits >> 63) put(o, '-');
    if (exponent == 2047) {
        for (const char *c = m ? "nan" : "inf"; *c; c++) put(o, *c);
        return;
    }
    expand(w, exponent ? m | (uint64_t)1 << 52 : m, (exponent ? exponent : 1) - 1075);
    if (precision < 0) precision = 6;
    if (kind == 'g' && precision > 0) precision--;
    round_at(w, (kind == 'f' ? 0 : first(w)) - precision);
    const int power = first(w);
    if (kind == 'g') {                 /* precision: digits after the first one                */
        e_form = power < -4 || power > precision;
        if (!e_form) precision -= power;
    }
    const int unit = e_form ? power : 0, top = power > 0 ? power : unit;
    while (strip && precision > 0 && digit(w, unit - precision) == 0) precision--;
    for (int k = top; k >= unit - precision; k--) {
        if (k == unit - 1) put(o, '.');
        put(o, (char)('0' + digit(w, k)));
    }
    if (!e_form) return;
    const int size = power < 0 ? -power : power;
    put(o, 'e');
    put(o, power < 0 ? '-' : '+');
    if (size >= 100) put(o, (char)('0' + size / 100));
    put(o, (char)('0' + size / 10 % 10));
    put(o, (char)('0' + size % 10));
}

/* ---- the rest -------------------------------------------------------------------------------- */

/* n bytes, and blanks or zeros up to the width, these after a sign.                            */
static void put_wide(target *o, const char *s, int n, int width, bool left, bool zero)
{
    if (zero && n > 0 && *s == '-') {
        put(o, *s++);
        n--, width--;
    }
    for (int i = n; i < width && !left; i++) put(o, zero ? '0' : ' ');
    for (int i = 0; i < n; i++) put(o, s[i]);
    for (int i = n; i < width && left; i++) put(o, ' ');
}

static void put_whole(target *o, unsigned long long v, bool minus, unsigned base, int width,
                      bool left, bool zero)
{
    char text[24];
    int  at = sizeof text;
    do text[--at] = "0123456789abcdef"[v % base]; while ((v /= base) != 0);
    if (minus) text[--at] = '-';
    put_wide(o, text + at, (int)sizeof text - at, width, left, zero);
}

int board_vsnprintf(char *to, size_t n, const char *f, va_list args)
{
    target o = {to, n, 0};
    for (; *f; f++) {
        bool left = false, zero = false;
        int  width = 0, precision = -1, longs = 0, length = 0;
        if (*f != '%') {
            put(&o, *f);
            continue;
        }
        for (f++; *f == '-' || *f == '0'; f++) *f == '-' ? (left = true) : (zero = true);
        if (*f == '*') width = va_arg(args, int), f++;
        for (; *f >= '0' && *f <= '9'; f++) width = 10 * width + *f - '0';
        if (width < 0) left = true, width = -width;
        if (*f == '.') {
            precision = 0;
            if (*++f == '*') precision = va_arg(args, int), f++;
            for (; *f >= '0' && *f <= '9'; f++) precision = 10 * precision + *f - '0';
        }
        for (; *f == 'l'; f++) longs++;
        if (*f == 's') {
            const char *s = va_arg(args, const char *);
            while ((precision < 0 || length < precision) && s[length]) length++;
            put_wide(&o, s, length, width, left, false);
        } else if (*f == 'd') {
            const long long v = longs > 1 ? va_arg(args, long long) : longs ? va_arg(args, long)
                                                                    : va_arg(args, int);
            const unsigned long long size = (unsigned long long)v;
            put_whole(&o, v < 0 ? 0 - size : size, v < 0, 10, width, left, zero && !left);
        } else if (*f == 'u' || *f == 'x') {
            const unsigned long long v = longs > 1 ? va_arg(args, unsigned long long)
                                       : longs ? va_arg(args, unsigned long)
                                               : va_arg(args, unsigned);
            put_whole(&o, v, false, *f == 'u' ? 10 : 16, width, left, zero && !left);
        } else if (*f == 'f' || *f == 'e' || *f == 'g') {
            put_real(&o, va_arg(args, double), *f, precision);
        } else if (*f == 'p') {
            put(&o, '0');
            put(&o, 'x');
            put_whole(&o, (uintptr_t)va_arg(args, void *), false, 16, 0, false, false);
        } else if (*f == 'c') {
            put(&o, (char)va_arg(args, int));
        } else if (*f) {
            put(&o, *f);               /* %%                                                   */
        } else {
            break;
        }
    }
    if (n) to[o.n < n ? o.n : n - 1] = 0;
    return (int)o.n;
}
