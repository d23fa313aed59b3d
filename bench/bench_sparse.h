/* bench_sparse.h -- cases of products that skip zeros, beside dense ones; bench.c includes it
 *
 * infer_sparse_FORM_IN_OUT_ZEROS_bBATCH: a linear layer with so many percent of zeros, in blocks of
 * the form at random places. bench/sparse.awk makes the table of bench/RESULTS.md of it.       */

typedef struct sparse_shape {
    mlc_sparse_form form;
    int64_t         in, batch;            /* to 1024                                           */
    int32_t         zeros;                /* percent                                           */
} sparse_shape;

static const int32_t sparse_zeros[] = { 50, 60, 70, 80, 90, 95, 98 };
/* A batch of each class of AUTO: 1, 2 to 4, 5 to 15, more. */
static const int64_t sparse_batches[] = { 1, 4, 8, 32 };
enum {
    SPARSE_ZEROS   = sizeof sparse_zeros / sizeof *sparse_zeros,
    SPARSE_BATCHES = sizeof sparse_batches / sizeof *sparse_batches,
    SPARSE_FORMS   = 3,
    SPARSE_CASES   = SPARSE_ZEROS * SPARSE_BATCHES * SPARSE_FORMS,
    SPARSE_ALL     = SPARSE_CASES + SPARSE_ZEROS     /* and CSR of 4096 inputs, of f32 */
};

static sparse_shape sparse_of(int op)
{
    const bool         wide = op >= SPARSE_CASES;
    const int          form = wide ? 0 : op / (SPARSE_ZEROS * SPARSE_BATCHES);
    const sparse_shape p    = {
        (mlc_sparse_form)((int)MLC_SPARSE_CSR + form), wide ? 4096 : 1024,
        wide ? 1 : sparse_batches[op / SPARSE_ZEROS % SPARSE_BATCHES],
        sparse_zeros[op % SPARSE_ZEROS]
    };
    return p;
}

/* A pruned layer with a copy of the form; nets[0]: the same without. */
static bool sparse_setup(state *s)
{
    const sparse_shape p     = sparse_of(s->bc->op);
    mlc_prune_desc     prune = mlc_prune_desc_make((double)p.zeros / 100);
    mlc_sparsify_desc  d     = mlc_sparsify_desc_make();
    mlc_nn_linear_desc l     = mlc_nn_linear_desc_make(p.in, 1024);
    l.has_dtype = true;
    l.dtype     = s->bc->dtype;
    s->net      = mlc_nn_linear_ex(s->ctx, &l);
    s->a        = values(s, mlc_dims2(p.batch, p.in), -1, 1, NULL);
    prune.by    = MLC_PRUNE_RANDOM;
    prune.unit  = p.form == MLC_SPARSE_CSR ? MLC_PRUNE_ELEMENTS : MLC_PRUNE_BLOCKS;
    prune.n     = p.form == MLC_SPARSE_4X4 ? 4 : 1;
    prune.m     = p.form == MLC_SPARSE_4X4 ? 4 : 16;
    d.form      = p.form;
    s->nets     = (mlc_module **)calloc(1, sizeof *s->nets);
    if (!s->nets || mlc_prune(s->net, &prune) != MLC_OK) return false;
    mlc_no_grad_begin(s->ctx);
    s->nets[0] = mlc_module_clone(s->net);
    if (!s->nets[0] || mlc_sparsify(s->net, &d, NULL) != MLC_OK) return false;
    const double off = quant_apart(mlc_forward(s->net, s->a), mlc_forward(s->nets[0], s->a));
    const bool   ok  = off < (s->bc->dtype == MLC_F64 ? 1e-13 : 1e-5);
    if (!ok) fprintf(stderr, "%s: WRONG: %g off\n", s->bc->name, off);
    return ok;
}

/* The dense layer. */
static void sparse_probe(void *arg, double rate[2])
{
    state       *s     = (state *)arg;
    const int    loops = (int)(1 + 200 / s->bc->work);
    const double start = bench_now();
    for (int i = 0; i < loops; i++) {
        mlc_scope_begin(s->ctx);
        mlc_forward(s->nets[0], s->a);
        mlc_scope_end(s->ctx);
    }
    rate[0] = loops * s->bc->work / spent_since(s, start);
}

static void add_sparse(int op, mlc_dtype dtype)
{
    static char        names[SPARSE_ALL][48];
    static const char *forms[] = { "csr", "1x16", "4x4" };
    const sparse_shape p       = sparse_of(op);
    snprintf(names[op], sizeof names[op], "infer_sparse_%s_%d_1024_%d_b%d",
             forms[p.form - MLC_SPARSE_CSR], (int)p.in, (int)p.zeros, (int)p.batch);
    bench_case *c = add(names[op], dtype, "samples/s", (double)p.batch);
    c->setup      = sparse_setup;
    c->run        = run_apply;
    c->apply      = stored_apply;
    c->op         = op;
    c->probe      = sparse_probe;
    c->beside     = "dense";
    c->form       = BESIDE_TIMES;
}

static void add_sparses(void)
{
    for (int i = 0; i < SPARSE_ALL; i++) add_sparse(i, MLC_F32);
    for (int i = 0; i < SPARSE_CASES; i++) add_sparse(i, MLC_F64);
}
