/* emulate_avx512.h -- the instructions of AVX-512, AVX512_BF16, VNNI and AMX that mlcore.h has, as
 * C for processors that have AVX2 alone: for tests/emulate.sh, which compiles a copy of mlcore.h
 * that includes this in the place of immintrin.h.
 *
 * em_NAME is the intrinsic _mm512_NAME, em_mask_256_NAME is _mm256_mask_NAME and em_tile_NAME is
 * _tile_NAME, by Intel's manual, bit for bit and with the same types; the script replaces names.
 * Bytes that a mask leaves out are neither read nor written, so pages that guard buffers find
 * accesses beyond them. Tiles that do not fit one another, or that are not configured, end the
 * program.
 */
#ifndef EMULATE_AVX512_H
#define EMULATE_AVX512_H
#include <immintrin.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef union em_512 {
    __m512   ps;
    __m512d  pd;
    __m512i  si;
    __m256   ps2[2];
    __m256d  pd2[2];
    __m256i  si2[2];
    __m128i  si4[4];
    float    f32[16];
    int32_t  i32[16];
    uint32_t u32[16];
    uint64_t u64[8];
    int16_t  i16[32];
    uint16_t u16[32];
    int8_t   i8[64];
    uint8_t  u8[64];
} em_512;

typedef union em_256 {
    __m256   ps;
    __m256i  si;
    float    f32[8];
    int32_t  i32[8];
    uint16_t u16[16];
    int16_t  i16[16];
    int8_t   i8[32];
    uint8_t  u8[32];
} em_256;

/* ---- all lanes: memory, constants, types */

#define EM_SAME(name, T) \
    static inline T em_loadu_##name(const void *p) { T x; memcpy(&x, p, sizeof x); return x; } \
    static inline void em_storeu_##name(void *p, T x) { memcpy(p, &x, sizeof x); } \
    static inline T em_setzero_##name(void) { return (T){ 0 }; }
EM_SAME(ps, __m512)
EM_SAME(pd, __m512d)
EM_SAME(si512, __m512i)
static inline __m512 em_set1_ps(float x)
{
    return (em_512){ .ps2 = { _mm256_set1_ps(x), _mm256_set1_ps(x) } }.ps;
}
static inline __m512d em_set1_pd(double x)
{
    return (em_512){ .pd2 = { _mm256_set1_pd(x), _mm256_set1_pd(x) } }.pd;
}
static inline __m512i em_set1_epi32(int x)
{
    return (em_512){ .si2 = { _mm256_set1_epi32(x), _mm256_set1_epi32(x) } }.si;
}
static inline __m512d em_castps_pd(__m512 x) { return (__m512d)x; }
static inline __m512i em_castps_si512(__m512 x) { return (__m512i)x; }
static inline __m512 em_castsi512_ps(__m512i x) { return (__m512)x; }

/* ---- all lanes: a function of 256 bits for each half */

#define EM_TWO(name, T, half, of) \
    static inline T em_##name(T x, T y) \
    { \
        const em_512 a = { .half = x }, b = { .half = y }; \
        em_512 r; \
        for (int i = 0; i < 2; i++) r.half##2[i] = of(a.half##2[i], b.half##2[i]); \
        return r.half; \
    }
EM_TWO(add_ps, __m512, ps, _mm256_add_ps)
EM_TWO(sub_ps, __m512, ps, _mm256_sub_ps)
EM_TWO(mul_ps, __m512, ps, _mm256_mul_ps)
EM_TWO(div_ps, __m512, ps, _mm256_div_ps)
EM_TWO(max_ps, __m512, ps, _mm256_max_ps)
EM_TWO(min_ps, __m512, ps, _mm256_min_ps)
EM_TWO(add_pd, __m512d, pd, _mm256_add_pd)
EM_TWO(add_epi32, __m512i, si, _mm256_add_epi32)
EM_TWO(and_si512, __m512i, si, _mm256_and_si256)
EM_TWO(or_si512, __m512i, si, _mm256_or_si256)
EM_TWO(madd_epi16, __m512i, si, _mm256_madd_epi16)
EM_TWO(mul_epu32, __m512i, si, _mm256_mul_epu32)
EM_TWO(unpacklo_epi32, __m512i, si, _mm256_unpacklo_epi32)
EM_TWO(unpackhi_epi32, __m512i, si, _mm256_unpackhi_epi32)
EM_TWO(unpacklo_epi64, __m512i, si, _mm256_unpacklo_epi64)
EM_TWO(unpackhi_epi64, __m512i, si, _mm256_unpackhi_epi64)

#define EM_FMA(name, T, half, of) \
    static inline T em_##name(T x, T y, T z) \
    { \
        const em_512 a = { .half = x }, b = { .half = y }, c = { .half = z }; \
        em_512 r; \
        for (int i = 0; i < 2; i++) r.half##2[i] = of(a.half##2[i], b.half##2[i], c.half##2[i]); \
        return r.half; \
    }
EM_FMA(fmadd_ps, __m512, ps, _mm256_fmadd_ps)
EM_FMA(fmadd_pd, __m512d, pd, _mm256_fmadd_pd)

#define EM_SHIFT(name, of) \
    static inline __m512i em_##name(__m512i x, unsigned n) \
    { \
        const em_512 a = { .si = x }; \
        return (em_512){ .si2 = { of(a.si2[0], (int)n), of(a.si2[1], (int)n) } }.si; \
    }
EM_SHIFT(slli_epi32, _mm256_slli_epi32)
EM_SHIFT(srli_epi32, _mm256_srli_epi32)

static inline __m512i em_shuffle_i32x4(__m512i x, __m512i y, int which)
{
    const em_512 a = { .si = x }, b = { .si = y };
    return (em_512){ .si4 = { a.si4[which & 3], a.si4[which >> 2 & 3], b.si4[which >> 4 & 3],
                              b.si4[which >> 6 & 3] } }.si;
}

/* ---- lanes of other types */

#define EM_WIDEN(name, From, from, to, n) \
    static inline __m512i em_##name(From x) \
    { \
        em_512 r; \
        em_256 a; \
        memcpy(&a, &x, sizeof x); \
        for (int i = 0; i < n; i++) r.to[i] = a.from[i]; \
        return r.si; \
    }
EM_WIDEN(cvtepu16_epi32, __m256i, u16, i32, 16)
EM_WIDEN(cvtepi8_epi16, __m256i, i8, i16, 32)
EM_WIDEN(cvtepi8_epi32, __m128i, i8, i32, 16)
static inline __m512 em_cvtph_ps(__m256i x)
{
    return (em_512){ .ps2 = { _mm256_cvtph_ps(_mm256_castsi256_si128(x)),
                              _mm256_cvtph_ps(_mm256_extracti128_si256(x, 1)) } }.ps;
}
static inline __m256i em_cvtepi32_epi16(__m512i x)
{
    const em_512 a = { .si = x };
    em_256 r;
    for (int i = 0; i < 16; i++) r.u16[i] = (uint16_t)a.u32[i];
    return r.si;
}
static inline __m512 em_cvtepi32_ps(__m512i x)
{
    const em_512 a = { .si = x };
    return (em_512){ .ps2 = { _mm256_cvtepi32_ps(a.si2[0]), _mm256_cvtepi32_ps(a.si2[1]) } }.ps;
}
static inline __m512d em_cvtps_pd(__m256 x)
{
    return (em_512){ .pd2 = { _mm256_cvtps_pd(_mm256_castps256_ps128(x)),
                              _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)) } }.pd;
}

/* ---- sums of all lanes, halves first, as gcc and clang compile them */

static inline float em_reduce_add_ps(__m512 x)
{
    const em_512 a = { .ps = x };
    const em_256 h = { .ps = _mm256_add_ps(a.ps2[1], a.ps2[0]) };
    float q[4];
    for (int i = 0; i < 4; i++) q[i] = h.f32[i + 4] + h.f32[i];
    return (q[0] + q[2]) + (q[1] + q[3]);
}
static inline int em_reduce_add_epi32(__m512i x)
{
    const em_512 a = { .si = x };
    uint32_t sum = 0;
    for (int i = 0; i < 16; i++) sum += a.u32[i];
    return (int)sum;
}

/* ---- masks: a bit a lane */

/* Lanes of x where the mask has a bit, else those of y. */
static inline __m512i em_pick_32(__mmask16 m, __m512i x, __m512i y)
{
    em_512 a = { .si = x };
    const em_512 b = { .si = y };
    for (int i = 0; i < 16; i++)
        if (!(m >> i & 1)) a.u32[i] = b.u32[i];
    return a.si;
}
static inline __m512i em_pick_64(__mmask8 m, __m512i x)
{
    em_512 a = { .si = x };
    for (int i = 0; i < 8; i++)
        if (!(m >> i & 1)) a.u64[i] = 0;
    return a.si;
}
#define EM_ZERO          em_setzero_si512()
#define EM_KEPT_PS(m, x) ((__m512)em_pick_32(m, (__m512i)(x), EM_ZERO))
static inline __m512 em_mask_blend_ps(__mmask16 m, __m512 x, __m512 y)
{
    return (__m512)em_pick_32(m, (__m512i)y, (__m512i)x);
}
static inline __m512 em_maskz_mov_ps(__mmask16 m, __m512 x) { return EM_KEPT_PS(m, x); }
static inline __m512 em_maskz_max_ps(__mmask16 m, __m512 x, __m512 y)
{
    return EM_KEPT_PS(m, em_max_ps(x, y));
}
static inline __m512 em_maskz_min_ps(__mmask16 m, __m512 x, __m512 y)
{
    return EM_KEPT_PS(m, em_min_ps(x, y));
}
static inline __m512i em_maskz_add_epi32(__mmask16 m, __m512i x, __m512i y)
{
    return em_pick_32(m, em_add_epi32(x, y), EM_ZERO);
}
static inline __m512i em_mask_or_epi32(__m512i s, __mmask16 m, __m512i x, __m512i y)
{
    return em_pick_32(m, em_or_si512(x, y), s);
}
static inline __m512i em_maskz_slli_epi32(__mmask16 m, __m512i x, unsigned n)
{
    return em_pick_32(m, em_slli_epi32(x, n), EM_ZERO);
}
static inline __m512i em_maskz_sll_epi32(__mmask16 m, __m512i x, __m128i n)
{
    return em_maskz_slli_epi32(m, x, (unsigned)_mm_cvtsi128_si32(n));
}
static inline __m512i em_maskz_mul_epu32(__mmask8 m, __m512i x, __m512i y)
{
    return em_pick_64(m, em_mul_epu32(x, y));
}
static inline __m512i em_maskz_unpacklo_epi64(__mmask8 m, __m512i x, __m512i y)
{
    return em_pick_64(m, em_unpacklo_epi64(x, y));
}
static inline __m512i em_maskz_unpackhi_epi64(__mmask8 m, __m512i x, __m512i y)
{
    return em_pick_64(m, em_unpackhi_epi64(x, y));
}
static inline __m512d em_maskz_cvtps_pd(__mmask8 m, __m256 x)
{
    return (__m512d)em_pick_64(m, (__m512i)em_cvtps_pd(x));
}
static inline __m256 em_maskz_extractf32x8_ps(__mmask8 m, __m512 x, int half)
{
    const em_512 a = { .ps = x };
    em_256 r = { .ps = a.ps2[half & 1] };
    for (int i = 0; i < 8; i++)
        if (!(m >> i & 1)) r.i32[i] = 0;
    return r.ps;
}
static inline __m256d em_maskz_extractf64x4_pd(__mmask8 m, __m512d x, int half)
{
    const __mmask8 pairs = (__mmask8)((m & 1) * 3 | (m >> 1 & 1) * 12 | (m >> 2 & 1) * 48 |
                                      (m >> 3 & 1) * 192);
    return (__m256d)em_maskz_extractf32x8_ps(pairs, (__m512)x, half);
}
static inline __mmask16 em_cmp(__m256 low, __m256 high)
{
    return (__mmask16)(_mm256_movemask_ps(low) | _mm256_movemask_ps(high) << 8);
}
#define EM_HALF(x, i) (((em_512){ .ps = (x) }).ps2[i])
#define em_cmp_ps_mask(x, y, how) em_cmp(_mm256_cmp_ps(EM_HALF(x, 0), EM_HALF(y, 0), how), \
                                         _mm256_cmp_ps(EM_HALF(x, 1), EM_HALF(y, 1), how))

/* Loads with what is in lanes without a bit, and stores. */
#define EM_LOAD(name, T, Room, field, lane, n, mask) \
    static inline T em_mask_##name(T else_, mask m, const void *p) \
    { \
        Room r = { .field = else_ }; \
        for (int i = 0; i < n; i++) \
            if (m >> i & 1) \
                memcpy(&r.lane[i], (const char *)p + i * sizeof *r.lane, sizeof *r.lane); \
        return r.field; \
    } \
    static inline T em_maskz_##name(mask m, const void *p) \
    { \
        return em_mask_##name((T){ 0 }, m, p); \
    }
EM_LOAD(loadu_ps, __m512, em_512, ps, f32, 16, __mmask16)
EM_LOAD(loadu_epi16, __m512i, em_512, si, u16, 32, __mmask32)
EM_LOAD(256_loadu_epi16, __m256i, em_256, si, u16, 16, __mmask16)

#define EM_STORE(name, T, Room, lane, n, mask) \
    static inline void em_mask_##name(void *p, mask m, T x) \
    { \
        const Room a = { .si = x }; \
        for (int i = 0; i < n; i++) \
            if (m >> i & 1) memcpy((char *)p + i * sizeof *a.lane, &a.lane[i], sizeof *a.lane); \
    }
EM_STORE(storeu_epi32, __m512i, em_512, u32, 16, __mmask16)
EM_STORE(storeu_epi16, __m512i, em_512, u16, 32, __mmask32)
EM_STORE(256_storeu_epi16, __m256i, em_256, u16, 16, __mmask16)

/* ---- bf16: denormals are zeros of their sign, before and after each operation */

static inline float em_flush(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7f800000u) == 0) bits &= 0x80000000u;
    memcpy(&x, &bits, sizeof bits);
    return x;
}
static inline float em_of_bf16(uint16_t x)
{
    const uint32_t bits = (uint32_t)x << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return em_flush(f);
}
static inline uint16_t em_to_bf16(uint32_t x)
{
    if ((x & 0x7f800000u) == 0) return (uint16_t)(x >> 16 & 0x8000u);
    if ((x & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(x >> 16 | 0x40);
    return (uint16_t)((x + 0x7fffu + (x >> 16 & 1)) >> 16);
}
static inline float em_fma_bf16(uint16_t x, uint16_t y, float sum)
{
    return em_flush(__builtin_fmaf(em_of_bf16(x), em_of_bf16(y), em_flush(sum)));
}
static inline __m256bh em_cvtneps_pbh(__m512 x)
{
    const em_512 a = { .ps = x };
    em_256 r;
    for (int i = 0; i < 16; i++) r.u16[i] = em_to_bf16(a.u32[i]);
    return (__m256bh)r.si;
}
static inline __m512bh em_cvtne2ps_pbh(__m512 high, __m512 low)
{
    const em_512 a = { .ps = low }, b = { .ps = high };
    em_512 r;
    for (int i = 0; i < 16; i++) {
        r.u16[i] = em_to_bf16(a.u32[i]);
        r.u16[i + 16] = em_to_bf16(b.u32[i]);
    }
    return (__m512bh)r.si;
}
/* Of each pair the second product is added first. */
static inline __m512 em_dpbf16_ps(__m512 sum, __m512bh x, __m512bh y)
{
    const em_512 a = { .si = (__m512i)x }, b = { .si = (__m512i)y };
    em_512 r = { .ps = sum };
    for (int i = 0; i < 16; i++) {
        r.f32[i] = em_fma_bf16(a.u16[2 * i + 1], b.u16[2 * i + 1], r.f32[i]);
        r.f32[i] = em_fma_bf16(a.u16[2 * i], b.u16[2 * i], r.f32[i]);
    }
    return r.ps;
}

/* ---- products of bytes: u8 of x, i8 of y */

static inline int32_t em_dot_4(int32_t sum, const uint8_t *x, const int8_t *y)
{
    for (int i = 0; i < 4; i++) sum = (int32_t)((uint32_t)sum + (uint32_t)(x[i] * y[i]));
    return sum;
}
#define EM_DOTS(name, T, Room, n) \
    static inline T em_##name(T sum, T x, T y) \
    { \
        const Room a = { .si = x }, b = { .si = y }; \
        Room r = { .si = sum }; \
        for (int i = 0; i < n; i++) r.i32[i] = em_dot_4(r.i32[i], a.u8 + 4 * i, b.i8 + 4 * i); \
        return r.si; \
    }
EM_DOTS(dpbusd_epi32, __m512i, em_512, 16)
EM_DOTS(256_dpbusd_avx_epi32, __m256i, em_256, 8)

/* ---- tiles: eight registers of up to 16 rows of up to 64 bytes, of this thread */

typedef struct em_tiles {
    uint8_t  palette, start, pad[14];
    uint16_t bytes[16];
    uint8_t  rows[16];
    uint8_t  at[8][16][64];
} em_tiles;
static __thread em_tiles em_tile;

static inline void em_tile_demand(int ok, const char *what)
{
    if (ok) return;
    fprintf(stderr, "emulate_avx512.h: %s\n", what);
    abort();
}
static inline void em_tile_release(void) { memset(&em_tile, 0, sizeof em_tile); }
static inline void em_tile_loadconfig(const void *p)
{
    em_tile_release();
    memcpy(&em_tile, p, 64);
    em_tile_demand(em_tile.palette == 1, "tiles of an unknown palette");
    for (int i = 0; i < 14; i++) em_tile_demand(em_tile.pad[i] == 0, "configuration: padding");
    for (int i = 0; i < 16; i++)
        em_tile_demand(em_tile.rows[i] <= (i < 8) * 16 && em_tile.bytes[i] <= (i < 8) * 64 &&
                           !em_tile.rows[i] == !em_tile.bytes[i], "configuration: a tile's size");
}
static inline void em_tile_zero(int t)
{
    em_tile_demand(em_tile.rows[t] > 0, "a tile that is not configured");
    memset(em_tile.at[t], 0, sizeof em_tile.at[t]);
}
static inline void em_tile_loadd(int t, const void *p, size_t stride)
{
    em_tile_zero(t);
    for (size_t i = 0; i < em_tile.rows[t]; i++)
        memcpy(em_tile.at[t][i], (const char *)p + i * stride, em_tile.bytes[t]);
}
static inline void em_tile_stored(int t, void *p, size_t stride)
{
    em_tile_demand(em_tile.rows[t] > 0, "a tile that is not configured");
    for (size_t i = 0; i < em_tile.rows[t]; i++)
        memcpy((char *)p + i * stride, em_tile.at[t][i], em_tile.bytes[t]);
}
static inline void em_tile_fit(int c, int a, int b)
{
    const em_tiles *t = &em_tile;
    em_tile_demand(c != a && c != b && a != b, "a product of a tile and itself");
    em_tile_demand(t->rows[c] > 0 && t->rows[c] == t->rows[a] && t->bytes[c] == t->bytes[b] &&
                       t->bytes[a] == 4 * t->rows[b] && t->bytes[c] % 4 == 0,
                   "a product of tiles that do not fit");
}
/* Sums of a row and a column of pairs: first products and second ones apart, their sum to c. */
static inline float em_tile_bf16(float c, const uint8_t *a, const uint8_t *b, int pairs)
{
    float sum[2] = { 0, 0 };
    for (int k = 0; k < pairs; k++) {
        uint16_t x[2], y[2];
        memcpy(x, a + 4 * k, 4);
        memcpy(y, b + 64 * k, 4);
        for (int i = 0; i < 2; i++) sum[i] = em_fma_bf16(x[i], y[i], sum[i]);
    }
    return em_flush(em_flush(c) + em_flush(sum[0] + sum[1]));
}
static inline void em_tile_dpbf16ps(int c, int a, int b)
{
    em_tiles *t = &em_tile;
    em_tile_fit(c, a, b);
    for (int i = 0; i < t->rows[c]; i++)
        for (int j = 0; j < t->bytes[c]; j += 4) {
            float sum;
            memcpy(&sum, t->at[c][i] + j, 4);
            sum = em_tile_bf16(sum, t->at[a][i], t->at[b][0] + j, t->rows[b]);
            memcpy(t->at[c][i] + j, &sum, 4);
        }
}
/* i8 of a, u8 of b. */
static inline void em_tile_dpbsud(int c, int a, int b)
{
    em_tiles *t = &em_tile;
    em_tile_fit(c, a, b);
    for (int i = 0; i < t->rows[c]; i++)
        for (int j = 0; j < t->bytes[c]; j += 4) {
            int32_t sum;
            memcpy(&sum, t->at[c][i] + j, 4);
            for (int k = 0; k < t->rows[b]; k++)
                sum = em_dot_4(sum, t->at[b][k] + j, (const int8_t *)t->at[a][i] + 4 * k);
            memcpy(t->at[c][i] + j, &sum, 4);
        }
}

/* ---- the processor: what CPUID and XGETBV say; EMULATE_DOTS=0: no products of bytes, 1: those of
 * AVX2 alone */

static inline void em_cpuid(uint32_t leaf, uint32_t sub, uint32_t r[4])
{
    const char *dots = getenv("EMULATE_DOTS");
    const uint32_t some = dots == NULL || *dots == '1', all = dots == NULL;
    if (leaf == 0 && r[0] < 7) r[0] = 7;
    if (leaf == 7 && sub == 0) {
        r[0] = 1;
        r[1] |= 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;
        r[2] |= all << 11;
        r[3] |= 1u << 22 | 1u << 24 | all << 25;
    }
    if (leaf == 7 && sub == 1) r[0] |= 1u << 5 | some << 4;
}

static inline uint64_t em_xgetbv(void) { return 0x600e6; }
#endif
