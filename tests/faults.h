/* faults.h -- scenarios in which memory runs out, each a small use of a function; run by
 * test_faults.c
 *
 * Define _POSIX_C_SOURCE 200809L and _DEFAULT_SOURCE before any include.
 */
#ifndef FAULTS_H
#define FAULTS_H

#include "watch.h"

typedef struct memory {
    int64_t live, blocks;              /* bytes and blocks not yet released                    */
    int64_t calls, fail_at;            /* while armed; fail_at 0: never                        */
    bool    armed, ever, hit;          /* ever: all later calls fail, too                      */
} memory;

/* The allocator that takes its memory from user, a memory, while that has some. */
void *memory_alloc(void *user, size_t bytes, size_t align);
void memory_release(void *user, void *ptr, size_t bytes);

/* ---- the world in which scenarios run ------------------------------------------------------- */

typedef struct world {
    memory       mem;
    mlc_ctx     *ctx;
    const box   *files;                /* in.npy, ...: to be read; out: to be replaced         */
    mlc_tensor  *leaf_x, *leaf_y;      /* f32 [3,4], which ask for gradients                   */
    mlc_tensor  *x, *y;                /* copies of them in the scope                          */
    mlc_tensor  *v, *w, *m;            /* f32 [4]; [4,3] by stride; [3,3]                      */
    mlc_tensor  *d;                    /* f64 [2,2] by stride, asks for gradients              */
    mlc_tensor  *mask, *mask2;         /* bool [3,4]                                           */
    mlc_tensor  *i, *rows, *labels;    /* i64 [3,4] and [2] in 0..2, [3] in 0..2               */
    mlc_module  *net;                  /* linear 4 5, relu, linear 5 3: built                  */
    mlc_optim   *opt;                  /* of it; its gradients are there                       */
    mlc_tensor  *out[4];               /* what the scenario made                               */
    int          n_out;
    uint64_t     text;                 /* hash of text that the scenario was given             */
    mlc_module  *module;               /* objects that it made, to be freed                    */
    mlc_optim   *optim;
    mlc_loader  *loader;
    mlc_dataset *sets[4];              /* datasets, before those that are made of them         */
    int          n_sets;
    mlc_table   *table;
    mlc_tokenizer *tokenizer;
    mlc_metric  *metric, *other;
    mlc_tracker *tracker;
    mlc_safetensors *file;
    char         in[340], to[340];     /* buffers for two paths                                */
} world;

typedef mlc_status (*scenario_fn)(world *w);

typedef struct scenario {
    const char      *name;
    scenario_fn      run;
    bool             quiet;            /* allocates nothing                                    */
    struct scenario *next;
} scenario;

void scenario_add(scenario *s);

#define SCENARIO(name, quiet) \
    static mlc_status run_##name(world *w); \
    __attribute__((constructor)) static void register_##name(void) \
    { \
        static scenario self = {#name, run_##name, quiet, NULL}; \
        scenario_add(&self); \
    } \
    static mlc_status run_##name(world *w)

#define DO(name)         SCENARIO(name, false)
/* The function makes a tensor, for which the runner calls backward if it can.                  */
#define CASE(name, call) SCENARIO(name, false) { return keep(w, call); }
#define UNARY(name)      CASE(name, name(w->x))
#define BINARY(name)     CASE(name, name(w->x, w->y))
#define SCALAR(name)     CASE(name, name(w->x, 0.5))

/* Status of a call that makes something: that of the context if there is nothing.              */
static inline mlc_status made(const world *w, const void *p)
{
    return p != NULL ? MLC_OK : mlc_ctx_status(w->ctx);
}

static inline mlc_status keep(world *w, mlc_tensor *t)
{
    if (t != NULL)
        w->out[w->n_out++] = t;
    return made(w, t);
}

static inline mlc_status first_of(mlc_status a, mlc_status b)
{
    return a != MLC_OK ? a : b;
}

static inline const char *in(world *w, const char *file)
{
    snprintf(w->in, sizeof w->in, "%s/%s", w->files->dir, file);
    return w->in;
}

static inline const char *to(world *w)
{
    snprintf(w->to, sizeof w->to, "%s/out", w->files->dir);
    return w->to;
}

/* A value as the scenario's result.                                                             */
static inline mlc_status hash_value(world *w, double v)
{
    w->text = (w->text ^ (isnan(v) ? 1 : (uint64_t)(int64_t)(v * 1e6))) * 1099511628211u;
    return mlc_ctx_status(w->ctx);
}

static inline void hash_text(void *user, const char *text, size_t n)
{
    world *w = (world *)user;
    for (size_t i = 0; i < n; i++)
        w->text = (w->text ^ (unsigned char)text[i]) * 1099511628211u;
}

/* Initial values depend on how many networks there were before: these do not.                  */
static inline void set_values(world *w, mlc_module *m)
{
    static float   values[2048];
    const bool     armed = w->mem.armed;
    mlc_param_iter it = mlc_param_iter_make(m);
    w->mem.armed = false;
    for (int i = 0; i < 2048; i++)
        values[i] = (float)(i % 7) - 3;
    while (mlc_param_next(&it))
        if (it.tensor->dtype == MLC_F32 && CHECK(mlc_numel(it.tensor) <= 2048))
            CHECK_EQ(mlc_write(it.tensor, values, (size_t)mlc_numel(it.tensor) * 4), MLC_OK);
    w->mem.armed = armed;
}

static inline void discard(void *user, const char *text, size_t n)
{
    (void)user; (void)text; (void)n;
}

/* The module is the scenario's from now on; true once it is built and has values.               */
static inline bool own_module(world *w, mlc_module *m)
{
    if (m != NULL)
        w->module = m;
    if (m == NULL || mlc_module_build(m) != MLC_OK)
        return false;
    set_values(w, m);
    return true;
}

/* A part that is NULL becomes the error of m; the others stay the program's, which frees them.  */
static inline mlc_module *made_of(mlc_module *m, int n, mlc_module *const *part)
{
    for (int i = 0; i < n && !m; i++) mlc_module_free(part[i]);
    return m;
}

#endif
