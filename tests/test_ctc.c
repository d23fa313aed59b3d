/* test_ctc.c -- tests of IMPL.KERNELS.CTC and IMPL.LOSS.CTC: the loss and decoding */
#include "mlc_test.h"
#include "golden/golden.h"

static mlc_tensor *whole(mlc_ctx *ctx, mlc_dims dims, const int64_t *values)
{
    return mlc_from(ctx, MLC_I64, dims, values);
}

/* ---- PyTorch's values and gradients --------------------------------------------------------- */

/* Tolerances of f32 are PyTorch's; gradients of bf16 are rounded once. */
static bool golden_case(mlc_ctx *ctx, const golden_file *f, int k)
{
    char         label[32];
    double       ints[4] = {0};
    mlc_ctc_desc d = mlc_ctc_desc_make();
    mlc_tensor  *x = golden_find(f, "%d.x", k), *want = golden_find(f, "%d.dx", k);
    static double dx[GOLDEN_MOST];
    snprintf(label, sizeof label, "case %d", k);
    test_read(golden_find(f, "%d.ints", k), ints);
    d.reduction = (mlc_reduction)ints[0];
    d.blank = (int64_t)ints[1];
    d.zero_infinity = ints[2] != 0;
    d.time_first = ints[3] != 0;
    mlc_set_requires_grad(x, true);
    const bool  half = x->dtype == MLC_BF16;
    mlc_tensor *y = mlc_ctc_loss_ex(half ? x : mlc_log_softmax(x, 2),
                                    golden_find(f, "%d.targets", k), golden_find(f, "%d.in", k),
                                    golden_find(f, "%d.len", k), &d);
    if (!golden_equal(y, golden_find(f, "%d.out", k), label) ||
        !CHECK_EQ(mlc_backward_from(y, golden_find(f, "%d.dy", k)), MLC_OK))
        return CHECK_OK(ctx) && false;
    if (!half)
        return golden_equal(mlc_grad(x), want, label) && CHECK_OK(ctx);
    return test_read(want, dx) && golden_values(mlc_grad(x), mlc_numel(x), dx, 1e-6, 4e-3, label);
}

TEST(ctc, loss_and_gradients_are_pytorchs)
{
    FOR_EACH_ISA(ctx) {
        golden_file f = golden_open(ctx, "ctc.safetensors");
        for (int k = 0; k < 36; k++) {
            mlc_scope_begin(ctx);
            CHECK(golden_case(ctx, &f, k));
            mlc_scope_end(ctx);
        }
        CHECK(golden_find(&f, "35.x") && !golden_find(&f, "36.x"));
    }
}

/* ---- definition: all paths ------------------------------------------------------------------ */

enum { C = 3, T = 4, MOST = 40 };      /* classes, steps; labellings that they can read          */

typedef struct reading { int64_t n, label[T]; double p; } reading;

/* All labellings of some path and their probabilities, by log_probs [t,c]; how many. */
static int all_readings(const double *x, int64_t t, int64_t blank, reading *to)
{
    int found = 0;
    int64_t paths = 1;
    for (int64_t i = 0; i < t; i++) paths *= C;
    for (int64_t path = 0; path < paths; path++) {
        reading r = {0, {0}, 0};
        int64_t before = -1, code = path;
        int     k = 0;
        for (int64_t i = 0; i < t; i++, code /= C) {
            const int64_t c = code % C;
            if (c != blank && c != before) r.label[r.n++] = c;
            before = c;
            r.p += x[i * C + c];
        }
        r.p = exp(r.p);
        while (k < found && (to[k].n != r.n || memcmp(to[k].label, r.label, sizeof r.label))) k++;
        if (k == found) to[found++] = r;
        else to[k].p += r.p;
    }
    return found;
}

static void sort_readings(reading *r, int n)
{
    for (int i = 1; i < n; i++)
        for (int k = i; k > 0 && r[k].p > r[k - 1].p; k--) {
            const reading t = r[k];
            r[k] = r[k - 1];
            r[k - 1] = t;
        }
}

/* What beams found of sequence i is the likeliest of all, in order, with its probability. */
static void check_beams(mlc_tensor *x, int64_t t, int64_t blank, const reading *r, int found)
{
    int64_t out[MOST * T], n[MOST];
    double  score[MOST];
    mlc_ctc_decode_desc d = mlc_ctc_decode_desc_make();
    d.blank = blank;
    d.beams = d.best = MOST;
    CHECK_EQ(mlc_ctc_beam_search(x, NULL, &d, out, n, score), MLC_OK);
    for (int k = 0; k < MOST; k++) {
        if (k >= found) {
            CHECK(n[k] == -1 && score[k] == -INF && out[k * t] == -1);
            continue;
        }
        CHECK_NEAR(exp(score[k]), r[k].p, 1e-12);
        CHECK_EQ(n[k], r[k].n);
        for (int64_t i = 0; i < t; i++)
            CHECK_EQ(out[k * t + i], i < n[k] ? r[k].label[i] : -1);
    }
}

TEST(ctc, loss_and_beams_are_sums_over_all_paths)
{
    FOR_EACH_ISA(ctx)
        for (int64_t t = 1; t <= T; t++)
            for (int64_t blank = 0; blank < C; blank++) {
                reading      r[MOST];
                double       p[T * C], sum = 0;
                mlc_ctc_desc d = mlc_ctc_desc_make();
                d.blank = blank;
                mlc_scope_begin(ctx);
                mlc_tensor *x = mlc_log_softmax(test_rand(ctx, MLC_F64, mlc_dims3(1, t, C),
                                                          (uint64_t)(t * C + blank), -2, 2), 2);
                test_read(x, p);
                const int found = all_readings(p, t, blank, r);
                sort_readings(r, found);
                for (int k = 0; k < found; k++) {
                    const int64_t y_shape = r[k].n;
                    d.reduction = MLC_REDUCTION_SUM;
                    mlc_tensor *y = mlc_ctc_loss_ex(x, whole(ctx, mlc_dims2(1, r[k].n), r[k].label),
                                                    whole(ctx, mlc_dims1(1), &t),
                                                    whole(ctx, mlc_dims1(1), &y_shape), &d);
                    CHECK_NEAR(exp(-mlc_item(y)), r[k].p, 1e-12);
                    sum += exp(-mlc_item(y));
                }
                CHECK_NEAR(sum, 1, 1e-12);
                check_beams(x, t, blank, r, found);
                mlc_scope_end(ctx);
            }
}

/* ---- gradients ------------------------------------------------------------------------------ */

typedef struct ctc_user {
    mlc_tensor  *y, *in, *n, *weight;
    mlc_ctc_desc d;
    bool         soft;
} ctc_user;

static mlc_tensor *ctc_scalar(void *user, mlc_tensor *const *in, int32_t n_in)
{
    ctc_user   *u = (ctc_user *)user;
    mlc_tensor *x = u->soft ? mlc_log_softmax(in[0], 2) : in[0];
    mlc_tensor *y = mlc_ctc_loss_ex(u->d.time_first ? mlc_transpose(x, 0, 1) : x, u->y, u->in, u->n,
                                    &u->d);
    (void)n_in;
    return mlc_sum(u->d.reduction == MLC_REDUCTION_NONE ? mlc_mul(y, u->weight) : y, mlc_dims0(),
                   false);
}

/* A repeated label, an empty target, a length below t; whether or not rows sum to 1. */
TEST(ctc, gradients_are_those_of_central_differences)
{
    static const int64_t padded[12] = {1, 1, 3, 0, 2, 0, -1, 9, 0, 0, 0, 0};
    static const int64_t row[6] = {1, 1, 3, 0, 2, 0}, in[3] = {7, 5, 6}, n[3] = {4, 2, 0};
    mlc_ctx *ctx = test_ctx();
    ctc_user u;
    memset(&u, 0, sizeof u);
    u.in = whole(ctx, mlc_dims1(3), in);
    u.n = whole(ctx, mlc_dims1(3), n);
    u.weight = test_rand(ctx, MLC_F64, mlc_dims1(3), 8, 0.5, 1.5);
    for (int mode = 0; mode < 12; mode++) {
        mlc_gradcheck_report r;
        mlc_tensor *x = test_rand(ctx, MLC_F64, mlc_dims3(3, 7, 5), 4, -2, 1);
        mlc_set_requires_grad(x, true);
        u.y = mode & 1 ? whole(ctx, mlc_dims1(6), row) : whole(ctx, mlc_dims2(3, 4), padded);
        u.d.reduction = (mlc_reduction)(mode % 3);
        u.d.blank = 4;
        u.d.time_first = mode / 3 % 2 != 0;
        u.soft = mode < 6;
        memset(&r, 0, sizeof r);
        CHECK_EQ(mlc_gradcheck(ctc_scalar, &u, &x, 1, NULL, &r), MLC_OK);
        if (!CHECK(r.ok))
            printf("  mode %d element %" PRId64 ": %g, numeric %g\n", mode, r.index, r.analytic,
                   r.numeric);
    }
    CHECK_OK(ctx);
}

/* Targets of s labels out of c - 1, with repeats, of lengths s, s - 7, .. */
typedef struct scene { mlc_tensor *x, *y, *in, *n; } scene;

static scene scene_of(mlc_ctx *ctx, mlc_dtype dtype, int64_t b, int64_t t, int64_t c, int64_t s)
{
    scene    z;
    int64_t *y = (int64_t *)malloc((size_t)(b * s) * sizeof *y), in[8], n[8];
    for (int64_t i = 0; i < b * s; i++)
        y[i] = 1 + (int64_t)test_random(5, i / 2, 0, (double)(c - 1));
    for (int64_t i = 0; i < b; i++) {
        in[i] = t - 3 * i;
        n[i] = s - 7 * i > 0 ? s - 7 * i : 0;
    }
    z.x = test_rand(ctx, dtype, mlc_dims3(b, t, c), 3, -3, 3);
    mlc_set_requires_grad(z.x, true);
    z.y = whole(ctx, mlc_dims2(b, s), y);
    z.in = whole(ctx, mlc_dims1(b), in);
    z.n = whole(ctx, mlc_dims1(b), n);
    free(y);
    return z;
}

static mlc_tensor *scene_loss(const scene *z)
{
    return mlc_ctc_loss(mlc_log_softmax(z->x, 2), z->y, z->in, z->n);
}

/* Logarithms are large after many steps, but no digit is lost to them. */
TEST(ctc, long_sequences_in_f32_are_right_to_its_digits)
{
    static double want[2 * 400 * 9], got[2 * 400 * 9];
    FOR_EACH_ISA(ctx)
        for (int64_t s = 0; s < 120; s += test_stride(2) * 34) {
            mlc_scope_begin(ctx);
            const scene z = scene_of(ctx, MLC_F32, 2, 400, 9, s + 1);
            scene       wide = z;
            wide.x = mlc_cast(mlc_detach(z.x), MLC_F64);
            mlc_set_requires_grad(wide.x, true);
            mlc_tensor *y = scene_loss(&z), *y64 = scene_loss(&wide);
            CHECK_NEAR(mlc_item(y), mlc_item(y64), 1e-6 * fabs(mlc_item(y64)));
            CHECK_EQ(mlc_backward(y), MLC_OK);
            CHECK_EQ(mlc_backward(y64), MLC_OK);
            double most = 0, off = 0;
            if (test_read(mlc_grad(wide.x), want) && test_read(mlc_grad(z.x), got))
                for (int64_t i = 0; i < 2 * 400 * 9; i++) {
                    if (fabs(want[i]) > most) most = fabs(want[i]);
                    if (!(fabs(got[i] - want[i]) <= off)) off = fabs(got[i] - want[i]);
                }
            if (!CHECK(most > 0 && off <= 3e-4 * most))
                printf("  s %" PRId64 ": %g of %g\n", s + 1, off, most);
            mlc_scope_end(ctx);
        }
}

/* Probabilities of 0 and 1 give no NaN; what no path reaches has no gradient. */
TEST(ctc, certain_paths_have_no_loss_and_lost_ones_nothing_else)
{
    static const int64_t path[5] = {1, 1, 0, 1, 2}, in = 5, target[3] = {1, 1, 2}, n[2] = {3, 2};
    FOR_EACH_ISA(ctx)
        for (int wide = 0; wide < 2; wide++) {
            double      x[15], dx[15], zero[15] = {0}, lost[15];
            mlc_ctc_desc d = mlc_ctc_desc_make();
            d.reduction = MLC_REDUCTION_SUM;
            for (int i = 0; i < 15; i++) {
                x[i] = path[i / 3] == i % 3 ? 0 : -INF;
                dx[i] = path[i / 3] == i % 3 ? -1 : 0;
                lost[i] = NO_NUMBER;
            }
            for (int k = 0; k < 3; k++) {
                mlc_tensor *t = test_tensor(ctx, wide ? MLC_F64 : MLC_F32, mlc_dims3(1, 5, 3), x);
                mlc_set_requires_grad(t, true);
                d.zero_infinity = k == 2;
                mlc_tensor *y = mlc_ctc_loss_ex(t, whole(ctx, mlc_dims2(1, 3), target),
                                                whole(ctx, mlc_dims1(1), &in),
                                                whole(ctx, mlc_dims1(1), n + (k > 0)), &d);
                CHECK_NEAR(mlc_item(y), k == 1 ? INF : 0, 0);
                CHECK_EQ(mlc_backward(y), MLC_OK);
                CHECK_VALUES(mlc_grad(t), 15, k == 0 ? dx : k == 1 ? lost : zero, 0, 0);
            }
            for (uint32_t bits = 0; bits < 512; bits += 73) {
                x[4] = no_number_of(bits);
                mlc_tensor *t = test_tensor(ctx, wide ? MLC_F64 : MLC_F32, mlc_dims3(1, 5, 3), x);
                mlc_set_requires_grad(t, true);
                mlc_tensor *y = mlc_ctc_loss(t, whole(ctx, mlc_dims2(1, 3), target),
                                             whole(ctx, mlc_dims1(1), &in),
                                             whole(ctx, mlc_dims1(1), n));
                CHECK(isnan(mlc_item(y)));
                CHECK_EQ(mlc_backward(y), MLC_OK);
                CHECK_VALUES(mlc_grad(t), 15, lost, 0, 0);
            }
        }
}

/* ---- ways to call ------------------------------------------------------------------------- */

/* Layouts, targets in a row, 16 bits and autocast; a second use adds to the gradient. */
TEST(ctc, any_layout_gives_the_same)
{
    static double want[3 * 20 * 6], twice[3 * 20 * 6];
    FOR_EACH_ISA(ctx) {
        const scene  z = scene_of(ctx, MLC_F32, 3, 20, 6, 9);
        mlc_ctc_desc d = mlc_ctc_desc_make();
        mlc_tensor  *p = mlc_log_softmax(z.x, 2), *rows[3];
        mlc_tensor  *y = mlc_ctc_loss_ex(p, z.y, z.in, z.n, NULL);
        const double loss = mlc_item(y);
        CHECK_EQ(mlc_backward(y), MLC_OK);
        test_read(mlc_grad(z.x), want);
        for (int i = 0; i < 3 * 20 * 6; i++) twice[i] = 2 * want[i];
        for (int64_t i = 0; i < 3; i++)
            rows[i] = mlc_slice(mlc_select(z.y, 0, i), 0, 0, 9 - 7 * i > 0 ? 9 - 7 * i : 0, 1);
        mlc_tensor *row = mlc_concat(rows, 3, 0);
        mlc_tensor *turned = mlc_contiguous(mlc_transpose(mlc_transpose(z.y, 0, 1), 0, 1));
        for (int k = 0; k < 4; k++) {
            mlc_tensor *x = mlc_detach(z.x), *q;
            mlc_set_requires_grad(x, true);
            q = mlc_log_softmax(x, 2);
            d.time_first = k > 0;
            if (k == 1) q = mlc_transpose(q, 0, 1);
            if (k == 2) q = mlc_contiguous(mlc_transpose(q, 0, 1));
            if (k == 3)
                q = mlc_transpose(mlc_contiguous(mlc_permute(q, mlc_dims3(1, 2, 0))), 1, 2);
            mlc_tensor *a = mlc_ctc_loss_ex(q, k & 1 ? row : turned, z.in, z.n, &d);
            mlc_tensor *b = mlc_ctc_loss_ex(q, row, z.in, z.n, &d);
            CHECK_NEAR(mlc_item(a), loss, 0);
            CHECK_EQ(mlc_backward(mlc_add(a, b)), MLC_OK);
            CHECK_VALUES(mlc_grad(x), 3 * 20 * 6, twice, 1e-7, 1e-5);
        }
        CHECK_EQ(mlc_autocast_begin(ctx, MLC_BF16), MLC_OK);
        y = mlc_ctc_loss(mlc_cast(p, MLC_BF16), z.y, z.in, z.n);
        CHECK(y != NULL && y->dtype == MLC_F32);
        CHECK_NEAR(mlc_item(y), loss, 0.01 * loss);
        mlc_autocast_end(ctx);
        y = mlc_ctc_loss(mlc_cast(p, MLC_F16), z.y, z.in, z.n);
        CHECK(y != NULL && y->dtype == MLC_F32);
        CHECK_NEAR(mlc_item(y), loss, 0.002 * loss);
        CHECK_OK(ctx);
    }
}

TEST(ctc, nothing_to_add_up_is_as_elsewhere)
{
    FOR_EACH_ISA(ctx) {
        mlc_ctc_desc d = mlc_ctc_desc_make();
        mlc_tensor  *none = mlc_zeros(ctx, MLC_I64, mlc_dims1(0));
        mlc_tensor  *x = mlc_zeros(ctx, MLC_F32, mlc_dims3(0, 4, 3));
        mlc_tensor  *y = mlc_zeros(ctx, MLC_I64, mlc_dims2(0, 2));
        CHECK(isnan(mlc_item(mlc_ctc_loss(x, y, none, none))));
        d.reduction = MLC_REDUCTION_SUM;
        CHECK_NEAR(mlc_item(mlc_ctc_loss_ex(x, none, none, none, &d)), 0, 0);
        d.reduction = MLC_REDUCTION_NONE;
        CHECK_EQ(mlc_numel(mlc_ctc_loss_ex(x, y, none, none, &d)), 0);
        mlc_tensor *two = mlc_zeros(ctx, MLC_I64, mlc_dims1(2));
        x = mlc_zeros(ctx, MLC_F32, mlc_dims3(2, 0, 3));
        mlc_set_requires_grad(x, true);
        mlc_tensor *l = mlc_ctc_loss(x, none, two, two);
        CHECK_NEAR(mlc_item(l), 0, 0);
        CHECK_EQ(mlc_backward(l), MLC_OK);
        CHECK_OK(ctx);
    }
}

/* ---- threads, memory ------------------------------------------------------------------------ */

enum { BITS = 1 << 17 };

static size_t bits_of(mlc_isa isa, int32_t threads, mlc_dtype dtype, char *to)
{
    mlc_ctx_desc d = test_desc();
    size_t       at = 0;
    d.isa = isa;
    d.threads = threads;
    mlc_ctx *ctx = mlc_ctx_create(&d);
    if (!CHECK(ctx != NULL)) return 0;
    const scene z = scene_of(ctx, dtype, 7, 60, 11, 40);
    mlc_tensor *y = scene_loss(&z);
    CHECK_EQ(mlc_backward(y), MLC_OK);
    mlc_tensor *const all[2] = {y, mlc_grad(z.x)};
    for (int i = 0; i < 2; i++) {
        const size_t bytes = (size_t)mlc_numel(all[i]) * mlc_dtype_bytes(dtype);
        if (!CHECK(at + bytes <= BITS)) break;
        CHECK_EQ(mlc_read(all[i], to + at, bytes), MLC_OK);
        at += bytes;
    }
    CHECK_OK(ctx);
    mlc_ctx_free(ctx);
    return at;
}

TEST(ctc, bits_are_those_of_any_number_of_threads)
{
    static const int32_t threads[] = {2, 3, 5};
    static char          one[BITS], more[BITS];
    FOR_EACH_LEVEL(isa)
        for (int wide = 0; wide < 2; wide++) {
            const mlc_dtype dtype = wide ? MLC_F64 : MLC_F32;
            const size_t    n = bits_of((mlc_isa)isa, 1, dtype, one);
            for (int t = 0; t < 3; t++) {
                CHECK_EQ(bits_of((mlc_isa)isa, threads[t], dtype, more), n);
                CHECK(memcmp(one, more, n) == 0);
            }
        }
}

/* A kernel writes neither before nor behind the workspace that it asked for. */
TEST(ctc, the_kernel_stays_in_its_workspace)
{
    FOR_EACH_LEVEL(isa)
        for (int64_t s = 0; s < 50; s += 5)
            for (int back = 0; back < 2; back++) {
                const mlc_kernels *k = mlc_cpu_kernels((mlc_isa)isa);
                enum { B = 2, STEPS = 40, CLASSES = 4 };
                static float     x[B * STEPS * CLASSES], dx[B * STEPS * CLASSES];
                static int64_t   y[B * 50];
                const int64_t    in[B] = {STEPS, STEPS - 1}, n[B] = {s, s / 2};
                float            loss[B], dy = 1;
                int64_t          error[4] = {0};
                struct mlc_k_ctc a;
                memset(&a, 0, sizeof a);
                for (int64_t i = 0; i < B * STEPS * CLASSES; i++)
                    x[i] = (float)test_random(1, i, -3, 0);
                for (int64_t i = 0; i < B * 50; i++) y[i] = 1 + i / 2 % 3;
                a.dtype = MLC_F32;
                a.b = B, a.t = STEPS, a.c = CLASSES, a.s = s;
                a.x = x, a.x_stride[0] = STEPS * CLASSES, a.x_stride[1] = CLASSES;
                a.targets = y, a.lengths = in, a.target_lengths = n;
                a.reduction = MLC_REDUCTION_NONE;
                a.loss = loss, a.dy = &dy, a.error = error, a.bad = MLC_K_ERROR_CTC;
                a.dx = back ? dx : NULL;
                a.dx_stride[0] = a.x_stride[0], a.dx_stride[1] = a.x_stride[1];
                a.workspace_bytes = k->ctc_workspace(NULL, &a);
                char *room = (char *)test_aligned_alloc(64, a.workspace_bytes + 128);
                memset(room, 0x7f, a.workspace_bytes + 128);
                a.workspace = room + 64;
                CHECK_EQ(k->ctc(NULL, &a), MLC_OK);
                CHECK_EQ(error[0], 0);
                for (int i = 0; i < 64; i++)
                    if (room[i] != 0x7f || room[a.workspace_bytes + 64 + (size_t)i] != 0x7f)
                        CHECK(false);
                a.workspace_bytes--;
                CHECK_EQ(k->ctc(NULL, &a), MLC_ERR_INTERNAL);
                a.dtype = MLC_BF16;
                CHECK_EQ(k->ctc(NULL, &a), MLC_ERR_UNSUPPORTED);
                test_aligned_free(room);
            }
}

/* ---- bad input ------------------------------------------------------------------------------ */

static void refused(mlc_ctx *ctx, const mlc_tensor *y, mlc_status status, const char *text)
{
    if (status != MLC_ERR_VALUE) CHECK(y == NULL);
    mlc_ctx_sync(ctx);
    CHECK_ERROR(ctx, status, text);
}

TEST(ctc, wrong_inputs_are_named)
{
    FOR_EACH_ISA(ctx) {
        mlc_ctc_desc d = mlc_ctc_desc_make();
        mlc_tensor  *x = mlc_zeros(ctx, MLC_F32, mlc_dims3(2, 6, 5));
        mlc_tensor  *y = mlc_ones(ctx, MLC_F32, mlc_dims2(2, 3)), *i = mlc_cast(y, MLC_I64);
        mlc_tensor  *n = mlc_zeros(ctx, MLC_I64, mlc_dims1(2));
        mlc_tensor  *three = mlc_zeros(ctx, MLC_I64, mlc_dims1(3));
        refused(ctx, mlc_ctc_loss(n, i, n, n), MLC_ERR_DTYPE, "ctc_loss: log_probs are i64");
        refused(ctx, mlc_ctc_loss(y, i, n, n), MLC_ERR_SHAPE,
                "ctc_loss: log_probs must be [b,t,c] with a class at least, they are [2,3]");
        refused(ctx, mlc_ctc_loss(mlc_zeros(ctx, MLC_F32, mlc_dims3(2, 6, 0)), i, n, n),
                MLC_ERR_SHAPE, "they are [2,6,0]");
        refused(ctx, mlc_ctc_loss(x, y, n, n), MLC_ERR_DTYPE,
                "ctc_loss: targets are f32; write mlc_cast(targets, MLC_I64)");
        refused(ctx, mlc_ctc_loss(x, mlc_transpose(i, 0, 1), n, n), MLC_ERR_SHAPE,
                "log_probs [2,6,5] need targets [2,s], or [n] one after the other; they are [3,2]");
        refused(ctx, mlc_ctc_loss(x, i, y, n), MLC_ERR_DTYPE, "input_lengths are f32");
        refused(ctx, mlc_ctc_loss(x, i, n, three), MLC_ERR_SHAPE,
                "log_probs [2,6,5] need target_lengths [2], they are [3]");
        d.blank = 5;
        refused(ctx, mlc_ctc_loss_ex(x, i, n, n, &d), MLC_ERR_ARG,
                "blank is 5; it must be in [0,5), the classes of log_probs [2,6,5]");
        d.blank = -1;
        refused(ctx, mlc_ctc_loss_ex(x, i, n, n, &d), MLC_ERR_ARG, "blank is -1");
        d.blank = 0;
        d.time_first = true;
        refused(ctx, mlc_ctc_loss_ex(x, i, n, n, &d), MLC_ERR_SHAPE, "targets [6,s]");
        d.reduction = MLC_REDUCTION_BATCHMEAN;
        refused(ctx, mlc_ctc_loss_ex(x, i, n, n, &d), MLC_ERR_ARG, "ctc_loss: unknown reduction");
        CHECK(mlc_ctc_loss(NULL, i, n, n) == NULL);
        CHECK_ERROR(ctx, MLC_ERR_ARG, "ctc_loss: input 1 is NULL");
        CHECK(mlc_ctc_loss(x, i, n, NULL) == NULL);
        CHECK_ERROR(ctx, MLC_ERR_ARG, "ctc_loss: input 4 is NULL");
        CHECK(mlc_ctc_loss(NULL, NULL, NULL, NULL) == NULL);
    }
}

/* What kernels find in lengths and labels; padding may hold anything. */
TEST(ctc, wrong_values_are_named_with_their_places)
{
    static const struct { int64_t y[6], in[2], n[2]; bool row; const char *text; } bad[] = {
        {{1, 2, 3, 1, 2, 3}, {6, 7}, {3, 3}, false,
         "ctc_loss: input_lengths[1] is 7; it must be in [0, 6], the steps of log_probs"},
        {{1, 2, 3, 1, 2, 3}, {-1, 6}, {3, 3}, false, "ctc_loss: input_lengths[0] is -1"},
        {{1, 2, 3, 1, 2, 3}, {6, 6}, {3, 4}, false,
         "ctc_loss: target_lengths[1] is 4; it must be in [0, 3], the labels of targets"},
        {{1, 2, 3, 1, 2, 3}, {6, 6}, {-2, 3}, false, "ctc_loss: target_lengths[0] is -2"},
        {{1, 2, 3, 1, 5, 9}, {6, 6}, {3, 2}, false,
         "ctc_loss: label 1 of sequence 1 is 5; it must be in [0,5), the classes of log_probs"},
        {{1, -4, 3, 1, 2, 3}, {6, 6}, {3, 2}, false, "ctc_loss: label 1 of sequence 0 is -4"},
        {{1, 2, 3, 1, 2, 0}, {6, 6}, {3, 3}, false,
         "ctc_loss: label 2 of sequence 1 is 0, the blank, which no target has"},
        {{1, 2, 3, 1, 2, 3}, {6, 6}, {3, 4}, true,
         "ctc_loss: target_lengths add up to 7 or more; targets that follow one another have 6"},
        {{1, 2, 3, 1, 2, 3}, {6, 6}, {2, 3}, true, "ctc_loss: target_lengths add up to 5"},
        {{1, 2, 3, 1, 2, 0}, {6, 6}, {2, 4}, true, "ctc_loss: label 3 of sequence 1 is 0"},
    };
    FOR_EACH_ISA(ctx) {
        mlc_tensor *x = mlc_zeros(ctx, MLC_F32, mlc_dims3(2, 6, 5));
        mlc_set_requires_grad(x, true);
        for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
            CHECK_EQ(mlc_scope_begin(ctx), MLC_OK);
            mlc_tensor *y = whole(ctx, bad[k].row ? mlc_dims1(6) : mlc_dims2(2, 3), bad[k].y);
            mlc_ctc_loss(x, y, whole(ctx, mlc_dims1(2), bad[k].in),
                         whole(ctx, mlc_dims1(2), bad[k].n));
            mlc_ctx_sync(ctx);
            CHECK_EQ(mlc_scope_end(ctx), MLC_ERR_VALUE);
            CHECK_HAS(mlc_error(ctx), bad[k].text);
        }
    }
}

/* ---- decoding ------------------------------------------------------------------------------- */

TEST(ctc, greedy_merges_repeats_and_drops_blanks)
{
    static const int64_t path[2][7] = {{0, 2, 2, 0, 2, 1, 1}, {1, 0, 0, 1, 1, 2, 2}};
    static const int64_t want[2][7] = {{2, 2, 1, -1, -1, -1, -1}, {1, 1, -1, -1, -1, -1, -1}};
    FOR_EACH_ISA(ctx)
        for (int first = 0; first < 2; first++) {
            double              x[42], score[2], sum[2] = {0};
            int64_t             out[14], n[2], in[2] = {7, 5};
            mlc_ctc_decode_desc d = mlc_ctc_decode_desc_make();
            for (int i = 0; i < 42; i++) {
                const int s = i / 21, t = i / 3 % 7;
                x[i] = test_random(7, i, -3, -2) + (path[s][t] == i % 3 ? 1.5 : 0);
                if (path[s][t] == i % 3 && t < in[s]) sum[s] += (double)(float)x[i];
            }
            mlc_tensor *p = test_tensor(ctx, MLC_F32, mlc_dims3(2, 7, 3), x);
            d.time_first = first != 0;
            CHECK_EQ(mlc_ctc_greedy(first ? mlc_transpose(p, 0, 1) : p,
                                    whole(ctx, mlc_dims1(2), in), &d, out, n, score), MLC_OK);
            CHECK(memcmp(out, want, sizeof want) == 0);
            CHECK(n[0] == 3 && n[1] == 2);
            CHECK_NEAR(score[0], sum[0], 1e-12);
            CHECK_NEAR(score[1], sum[1], 1e-12);
            CHECK_EQ(mlc_ctc_greedy(mlc_slice(p, 0, 1, 2, 1), NULL, NULL, NULL, n, NULL), MLC_OK);
            CHECK_EQ(n[0], 3);
            CHECK_OK(ctx);
        }
}

/* The best labelling need not be that of the best path, and few beams may miss it. */
TEST(ctc, beams_count_all_paths_of_a_labelling)
{
    FOR_EACH_ISA(ctx) {
        const double        p[4] = {log(0.6), log(0.4), log(0.6), log(0.4)};
        int64_t             out[2], n;
        double              score;
        mlc_ctc_decode_desc d = mlc_ctc_decode_desc_make();
        mlc_tensor         *x = test_tensor(ctx, MLC_F64, mlc_dims3(1, 2, 2), p);
        CHECK_EQ(mlc_ctc_greedy(x, NULL, NULL, out, &n, &score), MLC_OK);
        CHECK_EQ(n, 0);
        CHECK_NEAR(exp(score), 0.36, 1e-12);
        CHECK_EQ(mlc_ctc_beam_search(x, NULL, NULL, out, &n, &score), MLC_OK);
        CHECK(n == 1 && out[0] == 1 && out[1] == -1);
        CHECK_NEAR(exp(score), 0.64, 1e-12);
        d.beams = 1;
        CHECK_EQ(mlc_ctc_beam_search(x, NULL, &d, NULL, NULL, &score), MLC_OK);
        CHECK_NEAR(exp(score), 0.36, 1e-12);
    }
}

/* Algorithm 1 of the paper as it stands there, on strings that are compared. */
enum { STEPS = 24, CLASSES = 5, BEAMS = 9, BEST = 4 };

typedef struct prefix { int64_t n, label[STEPS]; double blank, last; } prefix;

static prefix *same_prefix(prefix *all, int *n, const prefix *p, int64_t more)
{
    prefix q = *p;
    q.blank = q.last = 0;
    if (more >= 0) q.label[q.n++] = more;
    for (int i = 0; i < *n; i++)
        if (all[i].n == q.n && !memcmp(all[i].label, q.label, (size_t)q.n * sizeof *q.label))
            return &all[i];
    all[*n] = q;
    return &all[(*n)++];
}

static int by_probability(const void *a, const void *b)
{
    const prefix *p = (const prefix *)a, *q = (const prefix *)b;
    const double  x = p->blank + p->last, y = q->blank + q->last;
    return (x < y) - (x > y);
}

/* Of log_probs [t,CLASSES]; how many there are in to[BEAMS], best first. */
static int plain_beams(const double *x, int64_t t, int64_t blank, prefix *to)
{
    static prefix next[BEAMS * (CLASSES + 1)];
    int           n = 1;
    memset(to, 0, sizeof *to);
    to->blank = 1;
    for (int64_t i = 0; i < t; i++, x += CLASSES) {
        int m = 0;
        for (int k = 0; k < n; k++)
            for (int64_t c = 0; c < CLASSES; c++) {
                const double  p = exp(x[c]), all = to[k].blank + to[k].last;
                const bool    again = to[k].n && to[k].label[to[k].n - 1] == c;
                prefix       *q;
                if (c == blank) {
                    same_prefix(next, &m, &to[k], -1)->blank += p * all;
                    continue;
                }
                if (again) same_prefix(next, &m, &to[k], -1)->last += p * to[k].last;
                q = same_prefix(next, &m, &to[k], c);
                q->last += p * (again ? to[k].blank : all);
            }
        qsort(next, (size_t)m, sizeof *next, by_probability);
        n = m < BEAMS ? m : BEAMS;
        memcpy(to, next, (size_t)n * sizeof *to);
    }
    return n;
}

/* Labellings that were dropped and come back are merged with their own; no score is above the
 * probability of its labelling.                                                                  */
TEST(ctc, beams_are_those_of_the_paper)
{
    mlc_ctx *ctx = test_ctx();
    for (uint64_t seed = 0; seed < 20; seed++) {
        static double       x[2 * STEPS * CLASSES];
        static prefix       want[BEAMS];
        int64_t             out[2 * BEST * STEPS], n[2 * BEST], in[2] = {STEPS, STEPS - 9};
        double              score[2 * BEST];
        mlc_ctc_decode_desc d = mlc_ctc_decode_desc_make();
        mlc_ctc_desc        l = mlc_ctc_desc_make();
        d.beams = BEAMS;
        d.best = BEST;
        d.blank = l.blank = (int64_t)seed % CLASSES;
        l.reduction = MLC_REDUCTION_SUM;
        mlc_tensor *p = test_rand(ctx, MLC_F64, mlc_dims3(2, STEPS, CLASSES), seed, -2, 2);
        p = mlc_log_softmax(p, 2);
        test_read(p, x);
        CHECK_EQ(mlc_ctc_beam_search(p, whole(ctx, mlc_dims1(2), in), &d, out, n, score), MLC_OK);
        for (int64_t s = 0; s < 2; s++) {
            CHECK_EQ(plain_beams(x + s * STEPS * CLASSES, in[s], d.blank, want), BEAMS);
            for (int64_t k = 0; k < BEST; k++) {
                const int64_t  i = s * BEST + k;
                const prefix  *w = &want[k];
                mlc_tensor    *y = whole(ctx, mlc_dims1(n[i]), out + i * STEPS);
                mlc_tensor    *loss = mlc_ctc_loss_ex(mlc_slice(p, 0, s, s + 1, 1), y,
                                                      whole(ctx, mlc_dims1(1), in + s),
                                                      whole(ctx, mlc_dims1(1), n + i), &l);
                CHECK_EQ(n[i], w->n);
                CHECK(memcmp(out + i * STEPS, w->label, (size_t)w->n * sizeof *w->label) == 0);
                CHECK_NEAR(score[i], log(w->blank + w->last), 1e-9);
                CHECK(score[i] <= -mlc_item(loss) + 1e-9);
            }
        }
    }
    CHECK_OK(ctx);
}

TEST(ctc, decoding_refuses_what_it_cannot_read)
{
    static const double  numbers[4] = {-1, -2, INF, -1};
    static const int64_t over[1] = {3};
    FOR_EACH_ISA(ctx) {
        int64_t             out[2] = {7, 7}, n = 7;
        mlc_ctc_decode_desc d = mlc_ctc_decode_desc_make();
        mlc_tensor *x = test_tensor(ctx, MLC_F32, mlc_dims3(1, 2, 2), numbers);
        mlc_tensor *in = whole(ctx, mlc_dims1(1), over);
        CHECK_EQ(mlc_ctc_greedy(x, NULL, NULL, out, &n, NULL), MLC_ERR_VALUE);
        CHECK_ERROR(ctx, MLC_ERR_VALUE,
                    "ctc_greedy: log_probs of sequence 0 at step 1, class 0, are inf");
        CHECK_EQ(mlc_ctc_greedy(x, in, NULL, out, &n, NULL), MLC_ERR_VALUE);
        CHECK_ERROR(ctx, MLC_ERR_VALUE, "ctc_greedy: lengths[0] is 3; it must be in [0, 2]");
        CHECK_EQ(mlc_ctc_beam_search(x, NULL, NULL, out, &n, NULL), MLC_ERR_VALUE);
        CHECK_ERROR(ctx, MLC_ERR_VALUE, "ctc_beam_search: log_probs of sequence 0 at step 1");
        CHECK_EQ(mlc_ctc_beam_search(mlc_select(x, 0, 0), NULL, NULL, out, &n, NULL),
                 MLC_ERR_SHAPE);
        CHECK_ERROR(ctx, MLC_ERR_SHAPE, "log_probs must be [b,t,c]");
        in = mlc_zeros(ctx, MLC_I64, mlc_dims1(2));
        CHECK_EQ(mlc_ctc_beam_search(x, in, NULL, out, &n, NULL), MLC_ERR_SHAPE);
        CHECK_ERROR(ctx, MLC_ERR_SHAPE, "log_probs [1,2,2] need lengths [1], they are [2]");
        d.best = 17;
        CHECK_EQ(mlc_ctc_beam_search(x, NULL, &d, out, &n, NULL), MLC_ERR_ARG);
        CHECK_ERROR(ctx, MLC_ERR_ARG, "ctc_beam_search: beams 16, best 17");
        d.best = 1;
        d.beams = INT64_C(1) << 29;
        CHECK_EQ(mlc_ctc_beam_search(x, NULL, &d, out, &n, NULL), MLC_ERR_ARG);
        CHECK_ERROR(ctx, MLC_ERR_ARG, "more than 2^29 labels");
        d.beams = 1;
        d.blank = 2;
        CHECK_EQ(mlc_ctc_greedy(x, NULL, &d, out, &n, NULL), MLC_ERR_ARG);
        CHECK_ERROR(ctx, MLC_ERR_ARG, "ctc_greedy: blank is 2");
        CHECK_EQ(mlc_ctc_greedy(NULL, NULL, NULL, out, &n, NULL), MLC_ERR_ARG);
        CHECK_EQ(out[0], 7);
        CHECK_EQ(n, 7);
    }
}
