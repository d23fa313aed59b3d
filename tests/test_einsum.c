/* test_einsum.c -- tests of IMPL.OPS.EINSUM: sums of products, by letters
 *
 * The reference runs over all letters of the equation, one loop each, in double. Then gradients,
 * layouts and dtypes, and what is wrong with an equation, by position.
 */
#include "mlc_test.h"

#define MOST 4000

typedef struct ein_case {
    const char *text;
    const char *in[4];
    const char *labels, *shape;        /* letters of the result as the reference knows them    */
} ein_case;

/* `labels` has upper letters for axes of an ellipsis; see spell.                              */
static const ein_case CASES[] = {
    {"ij,jk->ik", {"3,4", "4,5", NULL, NULL}, "ij,jk->ik", "3,5"},
    {"ij,jk", {"3,4", "4,5", NULL, NULL}, "ij,jk->ik", "3,5"},
    {"ij,kj->ki", {"3,4", "5,4", NULL, NULL}, "ij,kj->ki", "5,3"},
    {"ba,cb", {"4,3", "5,4", NULL, NULL}, "ba,cb->ac", "3,5"},
    {"bij,bjk->bik", {"2,3,4", "2,4,5", NULL, NULL}, "bij,bjk->bik", "2,3,5"},
    {"bhqd,bhkd->bhqk", {"2,3,4,5", "2,3,6,5", NULL, NULL}, "bhqd,bhkd->bhqk", "2,3,4,6"},
    {"bqhd,bkhd->bhqk", {"2,4,3,5", "2,6,3,5", NULL, NULL}, "bqhd,bkhd->bhqk", "2,3,4,6"},
    {"i,i->", {"7", "7", NULL, NULL}, "i,i->", ""},
    {"i,i", {"7", "7", NULL, NULL}, "i,i->", ""},
    {"i,j->ij", {"3", "4", NULL, NULL}, "i,j->ij", "3,4"},
    {"i,i->i", {"7", "7", NULL, NULL}, "i,i->i", "7"},
    {"bi,bi->b", {"3,4", "3,4", NULL, NULL}, "bi,bi->b", "3"},
    {"ij,ij->", {"3,4", "3,4", NULL, NULL}, "ij,ij->", ""},
    {"ij,ji->", {"3,4", "4,3", NULL, NULL}, "ij,ji->", ""},
    {"ij->ji", {"3,4", NULL, NULL, NULL}, "ij->ji", "4,3"},
    {"ij->", {"3,4", NULL, NULL, NULL}, "ij->", ""},
    {"ij->i", {"3,4", NULL, NULL, NULL}, "ij->i", "3"},
    {"ba", {"3,4", NULL, NULL, NULL}, "ba->ab", "4,3"},
    {"ii", {"4,4", NULL, NULL, NULL}, "ii->", ""},
    {"ii->i", {"4,4", NULL, NULL, NULL}, "ii->i", "4"},
    {"iji->ij", {"3,2,3", NULL, NULL, NULL}, "iji->ij", "3,2"},
    {"iii->i", {"3,3,3", NULL, NULL, NULL}, "iii->i", "3"},
    {"iijj->ij", {"3,3,2,2", NULL, NULL, NULL}, "iijj->ij", "3,2"},
    {"ii,i->i", {"3,3", "3", NULL, NULL}, "ii,i->i", "3"},
    {"ij,k->i", {"3,4", "5", NULL, NULL}, "ij,k->i", "3"},
    {"ij,j,jk->ik", {"3,4", "4", "4,5", NULL}, "ij,j,jk->ik", "3,5"},
    {"i,j,k,l->lkji", {"2", "3", "4", "5"}, "i,j,k,l->lkji", "5,4,3,2"},
    {"ij,jk,kl,lm->im", {"2,3", "3,4", "4,5", "5,6"}, "ij,jk,kl,lm->im", "2,6"},
    {"bn,anm,bm->ba", {"2,3", "4,3,5", "2,5", NULL}, "bn,anm,bm->ba", "2,4"},
    {",i->i", {"", "3", NULL, NULL}, ",i->i", "3"},
    {"->", {"", NULL, NULL, NULL}, "->", ""},
    {"", {"", NULL, NULL, NULL}, "->", ""},
    {"...ij,...jk->...ik", {"2,3,4", "2,4,5", NULL, NULL}, "Aij,Ajk->Aik", "2,3,5"},
    {"...ij,jk", {"2,6,3,4", "4,5", NULL, NULL}, "BAij,jk->BAik", "2,6,3,5"},
    {"...ij,...jk", {"2,1,3,4", "6,4,5", NULL, NULL}, "BAij,Ajk->BAik", "2,6,3,5"},
    {"i...->...i", {"2,3,4", NULL, NULL, NULL}, "iBA->BAi", "3,4,2"},
    {"i...j->ij...", {"2,3,4", NULL, NULL, NULL}, "iAj->ijA", "2,4,3"},
    {"...", {"2,3", NULL, NULL, NULL}, "BA->BA", "2,3"},
    {"...i->i", {"2,3,4", NULL, NULL, NULL}, "BAi->i", "4"},
    {"...->", {"2,3", NULL, NULL, NULL}, "BA->", ""},
    {"...ii->...i", {"2,3,3", NULL, NULL, NULL}, "Aii->Ai", "2,3"},
    {"ij,...->ij...", {"2,3", "", NULL, NULL}, "ij,->ij", "2,3"},
    {"ij->ij...", {"2,3", NULL, NULL, NULL}, "ij->ij", "2,3"},
    {"ij,jk->ik", {"3,1", "4,5", NULL, NULL}, "ij,jk->ik", "3,5"},        /* 1 broadcasts      */
    {"bi,bi->bi", {"1,4", "3,4", NULL, NULL}, "bi,bi->bi", "3,4"},
    {"ij,jk->ik", {"0,4", "4,5", NULL, NULL}, "ij,jk->ik", "0,5"},
    {"ij,jk->ik", {"3,0", "0,5", NULL, NULL}, "ij,jk->ik", "3,5"},
    {" i j , j k -> i k ", {"3,4", "4,5", NULL, NULL}, "ij,jk->ik", "3,5"},
    {"aZ,Zb", {"2,3", "3,4", NULL, NULL}, "az,zb->ab", "2,4"},
    {"bA", {"2,3", NULL, NULL, NULL}, "ba->ab", "3,2"},
};
#define CASE_COUNT ((int)(sizeof CASES / sizeof *CASES))

static mlc_dims dims_of(const char *text)
{
    mlc_dims d = mlc_dims0();
    while (*text != 0) {
        char *end;
        d.v[d.n++] = strtoll(text, &end, 10);
        text = *end == ',' ? end + 1 : end;
    }
    return d;
}

static int64_t count(mlc_dims d)
{
    int64_t n = 1;
    for (int32_t i = 0; i < d.n; i++) n *= d.v[i];
    return n;
}

static int inputs_of(const ein_case *c)
{
    int n = 0;
    while (n < 4 && c->in[n] != NULL) n++;
    return n;
}

/* Letters of term k of c->labels; the result is term inputs_of(c). */
static const char *term_of(const ein_case *c, int k, int *n)
{
    const char *t = c->labels;
    for (int i = 0; i < k; i++) t += strcspn(t, ",-") + (t[strcspn(t, ",-")] == '-' ? 2 : 1);
    *n = (int)strcspn(t, ",-");
    return t;
}

/* Row-major place of an element; an axis of size 1 is at 0. */
static int64_t place(const char *letters, mlc_dims d, const int64_t *at)
{
    int64_t to = 0;
    for (int32_t i = 0; i < d.n; i++)
        to = to * d.v[i] + (d.v[i] == 1 ? 0 : at[(unsigned char)letters[i]]);
    return to;
}

/* One loop over every combination of letters. */
static void reference(const ein_case *c, double v[4][MOST], double *want)
{
    const int n = inputs_of(c);
    int64_t   size[128], at[128] = {0}, all = 1;
    char      letters[32] = "";
    int       used = 0, k;
    for (int i = 0; i < 128; i++) size[i] = 0;
    for (int i = 0; i < n; i++) {
        const char *t = term_of(c, i, &k);
        for (int d = 0; d < k; d++) {
            int64_t s = dims_of(c->in[i]).v[d], *to = &size[(unsigned char)t[d]];
            if (memchr(letters, t[d], (size_t)used) == NULL) letters[used++] = t[d], *to = s;
            if (*to == 1) *to = s;
        }
    }
    for (int i = 0; i < used; i++) all *= size[(unsigned char)letters[i]];
    for (int64_t i = 0; i < count(dims_of(c->shape)); i++) want[i] = 0;
    for (int64_t e = 0; e < all; e++) {
        int64_t rest = e;
        double  product = 1;
        for (int i = 0; i < used; i++) {
            at[(unsigned char)letters[i]] = rest % size[(unsigned char)letters[i]];
            rest /= size[(unsigned char)letters[i]];
        }
        for (int i = 0; i < n; i++)
            product *= v[i][place(term_of(c, i, &k), dims_of(c->in[i]), at)];
        want[place(term_of(c, n, &k), dims_of(c->shape), at)] += product;
    }
}

static void check_case(mlc_ctx *ctx, const ein_case *c, mlc_dtype dtype, bool turned)
{
    static double v[4][MOST], want[MOST];
    const double  tol = dtype == MLC_F64 ? 1e-13 : dtype == MLC_F32 ? 2e-6
                      : dtype == MLC_F16 ? 4e-3 : 3e-2;
    mlc_tensor   *in[4];
    const int     n = inputs_of(c);
    for (int i = 0; i < n; i++) {
        in[i] = test_rand(ctx, dtype, dims_of(c->in[i]), 3 + (uint64_t)i, -1, 1);
        test_read(in[i], v[i]);
        if (turned && in[i]->ndim > 1)
            in[i] = mlc_transpose(mlc_contiguous(mlc_transpose(in[i], 0, -1)), 0, -1);
    }
    reference(c, v, want);
    mlc_tensor    *y = mlc_einsum(c->text, in, n);
    const mlc_dims shape = dims_of(c->shape);
    if (!CHECK_VALUES(y, count(shape), want, 8 * tol, tol) || !CHECK_EQ(y->ndim, shape.n) ||
        !CHECK(memcmp(y->shape, shape.v, (size_t)shape.n * sizeof *shape.v) == 0))
        printf("  \"%s\" in %s\n", c->text, mlc_dtype_name(dtype));
    CHECK_OK(ctx);
}

TEST(einsum, values_agree_with_a_loop_over_all_letters)
{
    static const mlc_dtype dtypes[] = {MLC_F32, MLC_F64, MLC_BF16, MLC_F16};
    FOR_EACH_ISA(ctx)
        for (int c = 0; c < CASE_COUNT; c++)
            for (int k = 0; k < (c < 8 ? 8 : 4); k++) {
                mlc_scope_begin(ctx);
                check_case(ctx, &CASES[c], dtypes[k / 2], k % 2);
                mlc_scope_end(ctx);
            }
}

static mlc_tensor *ein_loss(void *user, mlc_tensor *const *in, int32_t n_in)
{
    const ein_case *c = (const ein_case *)user;
    mlc_tensor     *y = mlc_einsum(c->text, in, n_in);
    mlc_tensor     *w = y ? test_rand(y->ctx, MLC_F64, mlc_dims_of(y->ndim, y->shape), 9, 0.5, 1.5)
                          : NULL;
    return mlc_sum(mlc_mul(mlc_mul(y, y), w), mlc_dims0(), false);
}

TEST(einsum, gradients_match_central_differences)
{
    mlc_ctx *ctx = test_ctx();
    for (int k = 0; k < CASE_COUNT; k++) {
        ein_case             c = CASES[k];
        mlc_gradcheck_report r;
        mlc_tensor          *in[4];
        const int32_t        n = inputs_of(&c);
        mlc_scope_begin(ctx);
        for (int32_t i = 0; i < n; i++) {
            in[i] = test_rand(ctx, MLC_F64, dims_of(c.in[i]), 5 + (uint64_t)i, -2, 2);
            mlc_set_requires_grad(in[i], true);
        }
        memset(&r, 0, sizeof r);
        CHECK_EQ(mlc_gradcheck(ein_loss, &c, in, n, NULL, &r), MLC_OK);
        if (!CHECK(r.ok))
            printf("  \"%s\": input %d element %" PRId64 ": %.9g, by differences %.9g\n", c.text,
                   (int)r.input, r.index, r.analytic, r.numeric);
        CHECK_OK(ctx);
        mlc_scope_end(ctx);
    }
}

/* It keeps the bytes that the product alone does: a copied operand would be more. */
TEST(einsum, a_product_is_that_of_matmul_and_copies_no_operand)
{
    enum { B = 2, H = 3, Q = 17, K = 19, E = 40 };
    static const char *const text[2] = {"bhqe,bhke->bhqk", "bqhe,bkhe->bhqk"};
    static double want[B * H * Q * K];
    FOR_EACH_ISA(ctx)
        for (int d = 0; d < 2; d++)
            for (int heads = 0; heads < 2; heads++) {
                const mlc_dtype dtype = d ? MLC_F64 : MLC_F32;
                mlc_memory  before, between, after;
                const mlc_dims q = heads ? mlc_dims4(B, Q, H, E) : mlc_dims4(B, H, Q, E);
                const mlc_dims k = heads ? mlc_dims4(B, K, H, E) : mlc_dims4(B, H, K, E);
                mlc_tensor *in[2] = {test_rand(ctx, dtype, q, 1, -1, 1),
                                     test_rand(ctx, dtype, k, 2, -1, 1)};
                mlc_tensor *x = heads ? mlc_transpose(in[0], 1, 2) : in[0];
                mlc_tensor *y = heads ? mlc_transpose(in[1], 1, 2) : in[1];
                mlc_set_requires_grad(in[0], true);
                CHECK_EQ(mlc_memory_info(ctx, &before), MLC_OK);
                mlc_tensor *product = mlc_matmul(x, mlc_transpose(y, -1, -2));
                CHECK_EQ(mlc_memory_info(ctx, &between), MLC_OK);
                mlc_tensor *sum = mlc_einsum(text[heads], in, 2);
                CHECK_EQ(mlc_memory_info(ctx, &after), MLC_OK);
                CHECK_EQ(after.now[MLC_MEM_ACTIVATION] - between.now[MLC_MEM_ACTIVATION],
                         between.now[MLC_MEM_ACTIVATION] - before.now[MLC_MEM_ACTIVATION]);
                CHECK(test_read(product, want));
                CHECK_VALUES(sum, B * H * Q * K, want, 0, 0);
                CHECK_OK(ctx);
            }
}

TEST(einsum, a_transpose_is_a_view)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = mlc_zeros(ctx, MLC_F32, mlc_dims3(2, 3, 4));
    CHECK(mlc_einsum("ijk->kij", &x, 1)->storage == x->storage);
    CHECK_OK(ctx);
}

TEST(einsum, outer_and_dot_of_vectors)
{
    static const double a[] = {1, 2, 3}, b[] = {4, 5}, outer[] = {4, 5, 8, 10, 12, 15};
    static const double square[] = {14}, da[] = {9, 9, 9}, db[] = {6, 6};
    static const mlc_dtype floats[] = {MLC_F32, MLC_F64, MLC_BF16, MLC_F16};
    FOR_EACH_ISA(ctx)
        for (int k = 0; k < 4; k++) {
            mlc_tensor *x = test_tensor(ctx, floats[k], mlc_dims1(3), a);
            mlc_tensor *y = test_tensor(ctx, floats[k], mlc_dims1(2), b);
            CHECK_VALUES(mlc_outer(x, y), 6, outer, 0, 0);
            CHECK_VALUES(mlc_dot(x, x), 1, square, 0, 0);
            if (k > 1) continue;
            mlc_set_requires_grad(x, true);
            mlc_set_requires_grad(y, true);
            CHECK_EQ(mlc_backward_from(mlc_outer(x, y), NULL), MLC_OK);
            CHECK_VALUES(mlc_grad(x), 3, da, 0, 0);
            CHECK_VALUES(mlc_grad(y), 2, db, 0, 0);
            CHECK_OK(ctx);
        }
}

/* ---- what is wrong ------------------------------------------------------------------------ */

typedef struct wrong_case {
    const char *text;
    const char *in[3];
    mlc_status  status;
    const char *says;
} wrong_case;

static const wrong_case WRONG[] = {
    {"ij,j?", {"2,3", "3,4", NULL}, MLC_ERR_ARG,
     "einsum: \"ij,j?\": '?' at position 5; there are letters, ',', '...' and '->'"},
    {"ij,j1->ik", {"2,3", "3,4", NULL}, MLC_ERR_ARG, "'1' at position 5"},
    {"ij..,jk", {"2,3", "3,4", NULL}, MLC_ERR_ARG, "'.' at position 3"},
    {"ij-jk", {"2,3", "3,4", NULL}, MLC_ERR_ARG, "'-' at position 3"},
    {"ij>", {"2,3", NULL, NULL}, MLC_ERR_ARG, "'>' at position 3"},
    {"ij->i,j", {"2,3", NULL, NULL}, MLC_ERR_ARG, "',' at position 6 follows the result"},
    {"ij->i->j", {"2,3", NULL, NULL}, MLC_ERR_ARG, "'-' at position 6 follows the result"},
    {"ij,jk->ik", {"2,3", NULL, NULL}, MLC_ERR_ARG,
     "einsum: \"ij,jk->ik\": operand 2 at position 4, but there are 1 tensors"},
    {"ij->ij", {"2,3", "3,4", NULL}, MLC_ERR_ARG,
     "einsum: \"ij->ij\" has 1 operands, there are 2 tensors"},
    {"...i...", {"2,3", NULL, NULL}, MLC_ERR_ARG, "a second '...' at position 5"},
    {"ij->ii", {"2,3", NULL, NULL}, MLC_ERR_ARG, "'i' at position 6 is in the result twice"},
    {"ij->ik", {"2,3", NULL, NULL}, MLC_ERR_ARG, "'k' of the result is in no operand"},
    {"abcdefghi", {"2,3", NULL, NULL}, MLC_ERR_ARG, "more than 8 letters at position 9"},
    {"ijk,jk->i", {"2,3", "3,4", NULL}, MLC_ERR_SHAPE,
     "einsum: \"ijk,jk->i\": operand 1 has 3 letters, its tensor is [2,3]"},
    {"i,jk->i", {"2,3", "3,4", NULL}, MLC_ERR_SHAPE, "operand 1 has 1 letters"},
    {"...ijk->i", {"2,3", NULL, NULL}, MLC_ERR_SHAPE, "operand 1 has 3 letters"},
    {"ij,jk->ik", {"2,3", "4,5", NULL}, MLC_ERR_SHAPE,
     "einsum: \"ij,jk->ik\": 'j' is 4 at axis 0 of operand 2, 3 before"},
    {"ii->i", {"2,3", NULL, NULL}, MLC_ERR_SHAPE, "'i' is 3 at axis 1 of operand 1, 2 before"},
    {"ii->i", {"1,3", NULL, NULL}, MLC_ERR_SHAPE, "'i' is 3 at axis 1 of operand 1, 1 before"},
    {"...,...", {"2,3", "2,4", NULL}, MLC_ERR_SHAPE, "'.' is 4 at axis 1 of operand 2, 3 before"},
    {"abcd,efgh,ij->aj", {"1,1,1,1", "1,1,1,1", "1,1", }, MLC_OK, ""},
    {"abcde,fghij->abcdefgh", {"1,1,1,1,1", "1,1,1,1,1", NULL}, MLC_OK, ""},
    {"abcde,fghij,jihgf,edcba->", {"1,1,1,1,1", "1,1,1,1,1", NULL}, MLC_ERR_ARG, "operand 3"},
    {"abcde,fghij,aj", {"1,1,1,1,1", "1,1,1,1,1", "1,1"}, MLC_ERR_SHAPE, "more than 8 axes"},
    {"abcdefgh...->...abcdefgh", {"1,1,1,1,1,1,1,1", NULL, NULL}, MLC_OK, ""},
};
#define WRONG_COUNT ((int)(sizeof WRONG / sizeof *WRONG))

TEST(einsum, wrong_equations_are_named_by_position)
{
    mlc_ctx *ctx = test_ctx();
    for (int k = 0; k < WRONG_COUNT; k++) {
        const wrong_case *c = &WRONG[k];
        mlc_tensor       *in[3];
        int32_t           n = 0;
        for (; n < 3 && c->in[n]; n++) in[n] = mlc_ones(ctx, MLC_F32, dims_of(c->in[n]));
        mlc_tensor *y = mlc_einsum(c->text, in, n);
        if (!CHECK((y != NULL) == (c->status == MLC_OK))) printf("  \"%s\"\n", c->text);
        if (c->status != MLC_OK) CHECK_HAS(mlc_error(ctx), c->says);
        CHECK_STATUS(ctx, c->status);
    }
}

TEST(einsum, wrong_calls_say_what_is_wrong)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = mlc_ones(ctx, MLC_F32, mlc_dims1(3)), *i = mlc_ones(ctx, MLC_I64, mlc_dims1(3));
    mlc_tensor *in[9] = {x, i, x, x, x, x, x, x, x};
    CHECK(mlc_einsum("i,i->", in, 2) == NULL);
    CHECK_HAS(mlc_error(ctx), "einsum: operand 2 is i64, not a float");
    CHECK_STATUS(ctx, MLC_ERR_DTYPE);
    CHECK(mlc_einsum("i->", &i, 1) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_DTYPE);
    CHECK(mlc_einsum(NULL, in, 1) == NULL);
    CHECK_HAS(mlc_error(ctx), "einsum: the equation is NULL");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(mlc_einsum("i", in, 9) == NULL);
    CHECK_HAS(mlc_error(ctx), "einsum: 9 operands; it takes up to 8");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    in[1] = NULL;
    CHECK(mlc_einsum("i,i->", in, 2) == NULL);
    CHECK_HAS(mlc_error(ctx), "einsum: input 2 is NULL");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(mlc_einsum("i", NULL, 1) == NULL && mlc_einsum("i", in, 0) == NULL);
    CHECK(mlc_outer(x, mlc_ones(ctx, MLC_F32, mlc_dims2(1, 1))) == NULL);
    CHECK_HAS(mlc_error(ctx), "outer: a [3], b [1,1]; both must be 1-d");
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    CHECK(mlc_outer(x, i) == NULL);
    CHECK_HAS(mlc_error(ctx), "outer: a is f32, b is i64; they must be floats of one dtype");
    CHECK_STATUS(ctx, MLC_ERR_DTYPE);
    CHECK(mlc_dot(x, mlc_ones(ctx, MLC_F32, mlc_dims1(4))) == NULL);
    CHECK_HAS(mlc_error(ctx), "dot: a [3], b [4]; both must be 1-d, of one length");
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    CHECK(mlc_dot(x, NULL) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(mlc_dot(NULL, NULL) == NULL && mlc_outer(NULL, NULL) == NULL);
    CHECK_OK(ctx);
}

static mlc_tensor *einsum_of_two(mlc_tensor *a, mlc_tensor *b)
{
    mlc_tensor *in[2] = {a, b};
    return mlc_einsum("i,i->i", in, 2);
}

typedef struct family {
    const char *name;
    mlc_tensor *(*call)(mlc_tensor *a, mlc_tensor *b);
} family;

TEST(einsum, each_names_itself_in_its_errors)
{
    static const family all[] = {
        {"mlc_einsum", einsum_of_two}, {"mlc_outer", mlc_outer}, {"mlc_dot", mlc_dot}};
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = mlc_ones(ctx, MLC_F32, mlc_dims1(3));
    for (int k = 0; k < 3; k++) {
        char text[64];
        CHECK(all[k].call(NULL, x) == NULL);
        snprintf(text, sizeof text, "%s: input 1 is NULL", all[k].name + 4);
        CHECK_HAS(mlc_error(ctx), text);
        CHECK_STATUS(ctx, MLC_ERR_ARG);
        CHECK(all[k].call(x, mlc_cast(x, MLC_F64)) == NULL);
        snprintf(text, sizeof text, "%s: ", all[k].name + 4);
        CHECK_HAS(mlc_error(ctx), text);
        CHECK_HAS(mlc_error(ctx), "mlc_cast");
        CHECK_STATUS(ctx, MLC_ERR_DTYPE);
    }
}

/* Products have autocast's dtype; what they are multiplied by follows. */
TEST(einsum, operands_of_the_other_16_bits_go_under_autocast)
{
    static const mlc_dtype DTYPES[] = {MLC_BF16, MLC_F16};
    static const double    want[4] = {19, 22, 43, 50};       /* [1 2; 3 4] [5 6; 7 8] times 1 */
    const double           a[4] = {1, 2, 3, 4}, b[4] = {5, 6, 7, 8};
    for (int k = 0; k < 4; k++) {
        mlc_ctx    *ctx = test_ctx();
        mlc_dtype   dtype = DTYPES[k / 2], low = DTYPES[k % 2];
        mlc_tensor *in[3] = {test_tensor(ctx, dtype, mlc_dims2(2, 2), a),
                             test_tensor(ctx, dtype, mlc_dims2(2, 2), b),
                             mlc_ones(ctx, dtype, mlc_dims2(2, 2))};
        for (int i = 0; i < 3; i++) mlc_set_requires_grad(in[i], true);
        mlc_autocast_begin(ctx, low);
        mlc_tensor *y = mlc_einsum("ij,jk,ik->ik", in, 3);
        mlc_autocast_end(ctx);
        if (!CHECK(y != NULL)) { CHECK_OK(ctx); continue; }
        CHECK_VALUES(y, 4, want, 0, 0);
        CHECK_EQ(mlc_backward(mlc_sum_all(y)), MLC_OK);
        CHECK_VALUES(mlc_grad(in[2]), 4, want, 0, 0);
        CHECK(mlc_grad(in[0])->dtype == dtype);
        CHECK_OK(ctx);
    }
}
