/* digits_cnn.c -- trains a small convolutional network on real handwritten digits, draws pictures
 *
 *   build   make demo-cnn, or: cc -O2 examples/digits_cnn.c mlcore.o -lm -pthread
 *   run     ./digits_cnn      or: ./digits_cnn --help
 *   data    examples/data/digits.csv: 64 pixels 0..16, the label, 1 if held out (see its head);
 *           with --data the four files of MNIST, whose network is the same on 28 x 28 pixels
 *   writes  digits_cnn_filters.svg, digits_cnn_confusion.svg, digits_cnn.safetensors
 *
 * Images are moved and turned a little as their batches are fetched, each time in another way. The
 * network, the rate and the number of epochs were chosen among a dozen variants by five-fold
 * cross-validation on the rows that are not held out (99.65 %), as in digits.c.                */
#include "../mlcore.h"
#include "options.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CLASSES = 10, BATCH = 64, FILTERS = 32, KERNEL = 5 };
enum { CSV_SIDE = 8, CSV_PIXELS = CSV_SIDE * CSV_SIDE, CSV_COLUMNS = CSV_PIXELS + 2 };
enum { CSV_BLACK = 16, CSV_FINE = 15 };     /* images that are moved need finer shades        */

static const double RATE = 3e-3;            /* of AdamW, at its highest                       */

typedef struct options {
    const char *csv, *data, *out;           /* data: folder of IDX files, or NULL: csv        */
    int         seeds, epochs, threads;
    mlc_dtype   dtype;                      /* of factors of products; weights are always f32 */
} options;

typedef struct part {                       /* images for training, or images held out        */
    mlc_tensor *x, *y;                      /* u8 [n,side,side], 0 .. black; i64 [n], 0 .. 9  */
    int64_t     n, side;
    double      black;                      /* value of the darkest pixel                     */
} part;

typedef struct totals {                     /* of all seeds                                   */
    double  accuracy[1000];
    int64_t confusion[CLASSES][CLASSES];    /* [label][prediction]                            */
    int64_t peak;                           /* bytes that a context had in use at most        */
    double  spent;                          /* seconds                                        */
} totals;

static const char HELP[] =
    "usage: digits_cnn [DIGITS.CSV] [options]\n"
    "  --data DIR     MNIST's files in DIR instead: train-images-idx3-ubyte,\n"
    "                 train-labels-idx1-ubyte, t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte\n"
    "  --out DIR      where pictures and the last network go (.)\n"
    "  --seeds N      networks to train                      (5)\n"
    "  --epochs N     passes over the training images        (30; 3 with --data)\n"
    "  --threads N    threads; 0: all cores                  (0)\n"
    "  --dtype TYPE   f32, or bf16: mixed precision          (f32)\n"
    "  --help         this text\n";

static bool complain(const char *what, const char *why)
{
    fprintf(stderr, "digits_cnn: %s%s%s\n", what ? what : "", what ? ": " : "", why);
    return false;
}

/* What went wrong in the library, which says it in the context. */
static bool library_error(const mlc_ctx *ctx)
{
    return complain(NULL, ctx && *mlc_error(ctx) ? mlc_error(ctx) : "no memory");
}

/* ---- options ------------------------------------------------------------------------------ */

/* False: the program ends, with *status. */
static bool parse(options *o, int argc, char **argv, int *status)
{
    const option list[] = {
        OPTION_FILE(&o->csv), OPTION_NUMBER("--seeds", &o->seeds, 1, 1000),
        OPTION_NUMBER("--epochs", &o->epochs, 1, 100000),
        OPTION_NUMBER("--threads", &o->threads, 0, 1024), OPTION_DTYPE("--dtype", &o->dtype),
        OPTION_TEXT("--data", &o->data), OPTION_TEXT("--out", &o->out), OPTION_END
    };
    const bool goes_on = options_read("digits_cnn", HELP, list, argc, argv, status);
    if (o->epochs == 0) o->epochs = o->data ? 3 : 30;
    return goes_on;
}

/* ---- data --------------------------------------------------------------------------------- */

/* Where a number is none from lo to hi; NaN is none. */
static mlc_tensor *outside(mlc_tensor *x, double lo, double hi)
{
    return mlc_logical_not(mlc_logical_and(mlc_ge_scalar(x, lo), mlc_le_scalar(x, hi)));
}

static part part_make(mlc_tensor *x, mlc_tensor *y, double black)
{
    const part p = { x, y, mlc_dim(x, 0), mlc_dim(x, 2), black };
    return p;
}

/* Those rows of the CSV file that are held out, or the others. */
static part part_of(mlc_tensor *table, bool held_out)
{
    mlc_tensor *mark = mlc_select(table, 1, CSV_COLUMNS - 1);
    mlc_tensor *which = held_out ? mlc_ne_scalar(mark, 0) : mlc_eq_scalar(mark, 0);
    mlc_tensor *rows = mlc_gather_rows(table, mlc_select(mlc_nonzero(which), 1, 0));
    mlc_tensor *x = mlc_mul_scalar(mlc_slice(rows, 1, 0, CSV_PIXELS, 1), CSV_FINE);
    x = mlc_reshape(mlc_cast(x, MLC_U8), mlc_dims3(mlc_dim(x, 0), CSV_SIDE, CSV_SIDE));
    return part_make(x, mlc_cast(mlc_select(rows, 1, CSV_PIXELS), MLC_I64), CSV_BLACK * CSV_FINE);
}

/* parts[0]: for training; parts[1]: held out. */
static mlc_status load_csv(mlc_ctx *ctx, const char *path, part parts[2])
{
    mlc_tensor *t = mlc_csv_load(ctx, path, NULL);
    if (t && mlc_dim(t, 1) != CSV_COLUMNS)
        return mlc_raise(ctx, MLC_ERR_SHAPE, "%s: want %d columns", path, (int)CSV_COLUMNS);
    mlc_tensor *pixels = outside(mlc_slice(t, 1, 0, CSV_PIXELS, 1), 0, CSV_BLACK);
    mlc_tensor *labels = outside(mlc_select(t, 1, CSV_PIXELS), 0, CLASSES - 1);
    mlc_tensor *bad = mlc_nonzero(mlc_logical_or(mlc_any(pixels, mlc_dims1(1), false), labels));
    if (mlc_dim(bad, 0) > 0)
        return mlc_raise(ctx, MLC_ERR_VALUE, "%s: row %lld: want 64 pixels 0 .. 16 and a digit",
                         path, (long long)mlc_item_at(bad, mlc_dims2(0, 0)) + 1);
    for (int i = 0; i < 2; i++) {
        parts[i] = part_of(t, i == 1);
        if (parts[i].x && parts[i].n == 0)
            return mlc_raise(ctx, MLC_ERR_VALUE, "%s: no row is %s", path,
                             i ? "held out" : "for training");
    }
    return mlc_ctx_status(ctx);
}

static bool join(char *path, size_t size, const char *dir, const char *name)
{
    int n = snprintf(path, size, "%s/%s", dir, name);
    return (n > 0 && (size_t)n < size) || complain(dir, "too long a name");
}

/* Images and labels of one pair of MNIST's files. */
static mlc_status load_idx(mlc_ctx *ctx, const char *dir, const char *name, part *p)
{
    char images[1024], labels[1024];
    snprintf(images, sizeof images, "%s/%s-images-idx3-ubyte", dir, name);
    snprintf(labels, sizeof labels, "%s/%s-labels-idx1-ubyte", dir, name);
    mlc_tensor *x = mlc_idx_load(ctx, images);
    mlc_tensor *y = mlc_cast(mlc_idx_load(ctx, labels), MLC_I64);
    *p = part_make(x, y, 255);
    if (!x || !y) return mlc_ctx_status(ctx);
    if (x->dtype != MLC_U8 || x->ndim != 3 || p->n < 1 || mlc_dim(x, 1) != p->side ||
        p->side < 4 || p->side > 256)
        return mlc_raise(ctx, MLC_ERR_SHAPE,
                         "%s: want bytes [n, side, side], 4 to 256 pixels a side", images);
    if (y->ndim != 1 || mlc_dim(y, 0) != p->n)
        return mlc_raise(ctx, MLC_ERR_SHAPE, "%s: want a label an image", labels);
    if (mlc_dim(mlc_nonzero(outside(y, 0, CLASSES - 1)), 0) > 0)
        return mlc_raise(ctx, MLC_ERR_VALUE, "%s: want labels 0 .. 9", labels);
    return mlc_ctx_status(ctx);
}

static bool load(mlc_ctx *ctx, const options *o, part parts[2])
{
    if (!o->data) load_csv(ctx, o->csv, parts);
    else if (load_idx(ctx, o->data, "train", &parts[0]) == MLC_OK &&
             load_idx(ctx, o->data, "t10k", &parts[1]) == MLC_OK &&
             parts[0].side != parts[1].side)
        mlc_raise(ctx, MLC_ERR_SHAPE, "%s: images of two sizes", o->data);
    return mlc_ctx_status(ctx) == MLC_OK || library_error(ctx);
}

/* ---- batches ------------------------------------------------------------------------------ */

/* In training every image comes moved by up to a pixel and turned by up to 11 degrees, each time
 * another way. The loader copies its tensors. */
static mlc_loader *loader(mlc_ctx *ctx, const part *p, int64_t batch, bool training, uint64_t seed)
{
    mlc_tensor *x = mlc_wrap(ctx, MLC_U8, mlc_dims3(p->n, p->side, p->side), NULL, mlc_u8(p->x));
    mlc_tensor *y = mlc_wrap(ctx, MLC_I64, mlc_dims1(p->n), NULL, mlc_i64(p->y));
    mlc_loader_desc d = mlc_loader_desc_make(x, y, batch);
    d.shuffle = training;
    d.shift   = training ? 1 : 0;
    d.rotate  = training ? 11 : 0;
    d.seed    = seed;
    return mlc_loader_create(ctx, &d);
}

/* A batch as the network takes it, f32 [n, 1, side, side] from 0 to 1. */
static mlc_tensor *images(const part *p, const mlc_batch *b)
{
    mlc_tensor *x = mlc_mul_scalar(mlc_cast(b->x, MLC_F32), 1.0 / p->black);
    return mlc_unsqueeze(x, 1);
}

/* ---- network ------------------------------------------------------------------------------ */

/* A convolution whose result is as large as its input; the batch norm after it has a bias. */
static mlc_module *conv(mlc_ctx *ctx, int64_t in, int64_t out, int64_t kernel)
{
    mlc_nn_conv_desc d = mlc_nn_conv_desc_make(2, in, out, kernel);
    d.conv.same = true;
    d.no_bias   = true;
    return mlc_nn_conv(ctx, &d);
}

/* Of images [n, 1, side, side] the scores [n, 10]. */
static mlc_module *network(mlc_ctx *ctx, int64_t side)
{
    const int64_t left = side / 4;          /* pixels a side after both poolings              */
    return MLC_SEQUENTIAL(
        ctx, conv(ctx, 1, FILTERS, KERNEL), mlc_nn_batch_norm(ctx, FILTERS), mlc_nn_relu(ctx),
        mlc_nn_max_pool2d(ctx, 2),
        conv(ctx, FILTERS, 64, 3), mlc_nn_batch_norm(ctx, 64), mlc_nn_relu(ctx),
        conv(ctx, 64, 64, 3), mlc_nn_batch_norm(ctx, 64), mlc_nn_relu(ctx),
        mlc_nn_max_pool2d(ctx, 2), mlc_nn_flatten(ctx), mlc_nn_dropout(ctx, 0.3),
        mlc_nn_linear(ctx, 64 * left * left, CLASSES));
}

static mlc_ctx *context(const options *o, int seed)
{
    mlc_ctx_desc d = mlc_ctx_desc_make();
    d.seed    = (uint64_t)seed;
    d.threads = o->threads;
    return mlc_ctx_create(&d);
}

/* ---- training ----------------------------------------------------------------------------- */

/* Outputs and loss of a batch of a part of the images. */
static mlc_tensor *forward(void *p, mlc_module *net, const mlc_batch *b, mlc_tensor **output)
{
    mlc_cross_entropy_desc d = mlc_cross_entropy_desc_make();
    d.label_smoothing = 0.1;
    *output = mlc_forward(net, images((const part *)p, b));
    return mlc_cross_entropy_ex(*output, b->y, &d);
}

/* A callback: the bar moves on with each batch. */
static mlc_status show(void *bar, mlc_event event, mlc_fit_state *s)
{
    char text[64];
    (void)event;
    snprintf(text, sizeof text, "epoch %d", (int)s->epoch + 1);
    mlc_progress_update((mlc_progress *)bar, s->step, text);
    return MLC_OK;
}

/* All epochs; *loss is the mean of the last one. The rate goes up in the first tenth of all steps,
 * then down to 0, both in straight lines. */
static mlc_status train(mlc_module *net, part *p, const options *o, int seed, double *loss)
{
    mlc_ctx        *ctx   = mlc_module_ctx(net);
    mlc_loader     *rows  = loader(ctx, p, BATCH, true, (uint64_t)seed);
    const int64_t   total = o->epochs * mlc_loader_batches(rows);
    mlc_optim      *opt   = mlc_adamw(net, RATE);
    const mlc_sched fall  = mlc_sched_linear(total - total / 10, 1, 0);
    const mlc_sched rate  = mlc_sched_warmup(total / 10, &fall);
    mlc_tracker    *history = NULL;
    char            label[64];              /* the bar reads its label until the end          */
    snprintf(label, sizeof label, "seed %d of %d", seed, o->seeds);
    mlc_progress       bar = mlc_progress_make(label, total + 1, NULL, NULL);
    const mlc_callback c = { "bar", &bar, 1u << MLC_EVENT_BATCH_END, show, NULL, 0, NULL };
    mlc_callback      *list[] = { mlc_callback_create(ctx, &c) };
    mlc_optim_schedule(opt, MLC_KNOB_LR, &rate);

    mlc_fit_desc d = mlc_fit_desc_make(NULL);
    d.epochs       = o->epochs;
    d.forward      = forward;
    d.user         = p;
    d.autocast     = o->dtype;
    d.has_autocast = true;
    d.callbacks    = list;
    d.n_callbacks  = 1;
    const mlc_status st = mlc_fit(net, opt, rows, &d, &history);
    *loss = mlc_tracker_last(history, "loss");
    mlc_tracker_free(history);
    if (bar.terminal) printf("\r\033[K");   /* a row of the table takes the bar's place       */
    mlc_callback_free(ctx, list[0]);
    mlc_loader_free(rows);
    return st;
}

/* What the network says of the rows of a batch, added to confusion. */
static mlc_status judge(mlc_module *net, const part *p, const mlc_batch *b, mlc_dtype dtype,
                        int64_t confusion[CLASSES][CLASSES])
{
    mlc_ctx *ctx = mlc_module_ctx(net);
    mlc_scope_begin(ctx);
    mlc_autocast_begin(ctx, dtype);
    mlc_tensor *out = mlc_forward(net, images(p, b));
    mlc_autocast_end(ctx);
    const int64_t *said = mlc_i64(mlc_argmax(out, 1, false)), *is = mlc_i64(b->y);
    for (int64_t i = 0; said && i < b->n; i++) confusion[is[i]][said[i]]++;
    return mlc_scope_end(ctx);
}

/* The share of p that net gets right; each image is counted in confusion. */
static mlc_status evaluate(mlc_module *net, const part *p, mlc_dtype dtype,
                           int64_t confusion[CLASSES][CLASSES], double *share)
{
    mlc_ctx    *ctx = mlc_module_ctx(net);
    mlc_loader *rows = loader(ctx, p, 256, false, 0);
    mlc_status  st = mlc_eval_begin(net);
    int64_t     right = 0;
    for (int k = 0; k < CLASSES; k++) right -= confusion[k][k];
    for (mlc_batch b; st == MLC_OK && mlc_loader_next(rows, &b);)
        st = judge(net, p, &b, dtype, confusion);
    mlc_eval_end(net);
    mlc_loader_free(rows);
    for (int k = 0; k < CLASSES; k++) right += confusion[k][k];
    *share = (double)right / (double)p->n;
    return st != MLC_OK ? st : mlc_ctx_status(ctx);
}

/* ---- pictures: SVG, which is text ----------------------------------------------------------- */

enum { WHITE = 0xffffff, INK = 0x333333, FAINT = 0xf3f3f3, BLUE = 0x2166ac, RED = 0xb2182b };

/* Opens DIR/name and writes the head and a white ground; NULL and a message if it cannot. */
static FILE *svg_open(const char *dir, const char *name, int w, int h)
{
    char path[1024];
    if (!join(path, sizeof path, dir, name)) return NULL;
    FILE *f = fopen(path, "w");
    if (!f) {
        complain(path, strerror(errno));
        return NULL;
    }
    fprintf(f, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
            "viewBox=\"0 0 %d %d\" font-family=\"sans-serif\">\n"
            "<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n", w, h, w, h, w, h);
    return f;
}

static void svg_box(FILE *f, int x, int y, int w, int h, unsigned colour)
{
    fprintf(f, "<path fill=\"#%06x\" d=\"M%d %dh%dv%dh-%dz\"/>\n", colour, x, y, w, h, w);
}

/* anchor: what of the text is at x: "start", "middle" or "end". y is its base line. */
static void svg_text(FILE *f, int x, int y, int size, const char *anchor, unsigned colour,
                     const char *format, ...)
{
    va_list list;
    fprintf(f, "<text x=\"%d\" y=\"%d\" font-size=\"%d\" text-anchor=\"%s\" fill=\"#%06x\">", x, y,
            size, anchor, colour);
    va_start(list, format);
    vfprintf(f, format, list);
    va_end(list);
    fprintf(f, "</text>\n");
}

static bool svg_close(FILE *f, const char *name)
{
    fprintf(f, "</svg>\n");
    const bool good = !ferror(f);
    return (fclose(f) == 0 && good) || complain(name, "cannot be written");
}

/* The colour that is share (0 .. 1) of the way from a to b. */
static unsigned blend(unsigned a, unsigned b, double share)
{
    unsigned mixed = 0;
    for (int shift = 0; shift < 24; shift += 8) {
        const double from = (double)(a >> shift & 255), to = (double)(b >> shift & 255);
        mixed |= (unsigned)(from + (to - from) * share + 0.5) << shift;
    }
    return mixed;
}

/* Negative: blue; 0: white; positive: red; v in -1 .. 1. */
static unsigned diverging(double v)
{
    return v < 0 ? blend(WHITE, BLUE, -v) : blend(WHITE, RED, v);
}

/* A bar of all colours with the values at its ends. */
static void draw_scale(FILE *f, int x, int y, double most)
{
    for (int i = 0; i < 41; i++) svg_box(f, x + 4 * i, y, 4, 12, diverging((i - 20) / 20.0));
    svg_text(f, x - 6, y + 11, 12, "end", INK, "%.2f", -most);
    svg_text(f, x + 170, y + 11, 12, "start", INK, "%.2f", most);
}

static bool draw_filters(const char *dir, mlc_module *net, int seed)
{
    static const char name[] = "digits_cnn_filters.svg";
    enum { AREA = KERNEL * KERNEL, ROW = 8, CELL = 12, STEP = KERNEL * CELL + 12, LEFT = 16,
           TOP = 44, BOTTOM = TOP + (FILTERS + ROW - 1) / ROW * STEP };
    float  w[FILTERS * AREA];
    double most = 1e-30;
    if (mlc_read(mlc_module_param(net, "0.weight"), w, sizeof w) != MLC_OK)
        return library_error(mlc_module_ctx(net));
    for (int i = 0; i < FILTERS * AREA; i++) most = fmax(most, fabs((double)w[i]));
    FILE *f = svg_open(dir, name, 2 * LEFT + ROW * STEP - 12, BOTTOM + 32);
    if (!f) return false;
    svg_text(f, LEFT, 26, 15, "start", INK, "%d filters of %d x %d in the first layer, seed %d",
             (int)FILTERS, (int)KERNEL, (int)KERNEL, seed);
    for (int i = 0; i < FILTERS; i++) {
        const int x = LEFT + i % ROW * STEP, y = TOP + i / ROW * STEP;
        svg_box(f, x - 1, y - 1, KERNEL * CELL + 2, KERNEL * CELL + 2, 0xbbbbbb);
        for (int j = 0; j < AREA; j++)
            svg_box(f, x + j % KERNEL * CELL, y + j / KERNEL * CELL, CELL, CELL,
                    diverging((double)w[i * AREA + j] / most));
    }
    draw_scale(f, LEFT + 60, BOTTOM + 4, most);
    return svg_close(f, name);
}

enum { BOX = 40, BOX_LEFT = 72, BOX_TOP = 90 };

/* One row: its digit, its ten counts, the share that is right. Errors are few: the root makes a
 * single one visible. */
static void draw_row(FILE *f, int is, const int64_t counts[CLASSES])
{
    const int y = BOX_TOP + is * BOX, base = y + 26;
    double    n = 1e-30;
    for (int k = 0; k < CLASSES; k++) n += (double)counts[k];
    svg_text(f, BOX_LEFT - 10, base, 14, "end", INK, "%d", is);
    for (int k = 0; k < CLASSES; k++) {
        const int      x     = BOX_LEFT + k * BOX;
        const double   share = (double)counts[k] / n;
        const double   depth = k == is ? share : 0.25 + 0.75 * sqrt(share);
        const unsigned back  = blend(WHITE, k == is ? BLUE : RED, depth);
        svg_box(f, x, y, BOX - 2, BOX - 2, counts[k] ? back : (unsigned)FAINT);
        if (counts[k])
            svg_text(f, x + BOX / 2 - 1, base, 14, "middle", depth > 0.6 ? WHITE : INK, "%lld",
                     (long long)counts[k]);
    }
    svg_text(f, BOX_LEFT + CLASSES * BOX + 66, base, 14, "end", INK, "%.1f %%",
             100 * (double)counts[is] / n);
}

static bool draw_confusion(const char *dir, const totals *t, int seeds)
{
    static const char name[] = "digits_cnn_confusion.svg";
    const int middle = BOX_LEFT + CLASSES * BOX / 2, below = BOX_TOP + CLASSES * BOX + 22;
    int64_t   n = 0;
    for (int i = 0; i < CLASSES * CLASSES; i++) n += t->confusion[i / CLASSES][i % CLASSES];
    FILE *f = svg_open(dir, name, BOX_LEFT + CLASSES * BOX + 82, below + 18);
    if (!f) return false;
    svg_text(f, 16, 26, 15, "start", INK, "%lld held-out digits, each shown to %d network%s",
             (long long)n / seeds, seeds, seeds == 1 ? "" : "s");
    svg_text(f, middle, 56, 13, "middle", INK, "the network said");
    svg_text(f, 16, BOX_TOP - 10, 13, "start", INK, "it is");
    svg_text(f, BOX_LEFT + CLASSES * BOX + 66, BOX_TOP - 10, 13, "end", INK, "right");
    for (int k = 0; k < CLASSES; k++) {
        svg_text(f, BOX_LEFT + k * BOX + BOX / 2 - 1, BOX_TOP - 10, 14, "middle", INK, "%d", k);
        draw_row(f, k, t->confusion[k]);
    }
    svg_box(f, BOX_LEFT, below - 10, 12, 12, BLUE);
    svg_text(f, BOX_LEFT + 18, below, 13, "start", INK, "right");
    for (int i = 0; i < 4; i++)
        svg_box(f, BOX_LEFT + 74 + 12 * i, below - 10, 12, 12, blend(WHITE, RED, 0.25 * (i + 1)));
    svg_text(f, BOX_LEFT + 128, below, 13, "start", INK, "wrong: one in many .. all of a row");
    return svg_close(f, name);
}

/* ---- the whole run ------------------------------------------------------------------------ */

static double seconds(void)
{
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Found out before an hour of training, not after it. */
static bool writable(const char *dir)
{
    char path[1024];
    if (!join(path, sizeof path, dir, "digits_cnn_confusion.svg")) return false;
    FILE *f = fopen(path, "a");
    return (f && fclose(f) == 0) || complain(path, strerror(errno));
}

/* The last network: to a file, its filters to a picture. */
static bool keep(const options *o, mlc_module *net, int seed)
{
    char path[1024];
    if (!join(path, sizeof path, o->out, "digits_cnn.safetensors")) return false;
    if (mlc_save(net, path) != MLC_OK) return library_error(mlc_module_ctx(net));
    return draw_filters(o->out, net, seed);
}

/* One seed: trains, measures, prints a row of the table. */
static bool run_seed(const options *o, int seed, const part *tr, const part *te, totals *all)
{
    const double start = seconds();
    double      *share = &all->accuracy[seed - 1], loss = 0;
    mlc_memory   memory;
    mlc_ctx     *ctx = context(o, seed);
    mlc_module  *net = network(ctx, tr->side);
    part         p = *tr;
    bool ok = ctx && train(net, &p, o, seed, &loss) == MLC_OK &&
              evaluate(net, te, o->dtype, all->confusion, share) == MLC_OK &&
              mlc_memory_info(ctx, &memory) == MLC_OK;
    if (!ok) library_error(ctx);
    else {
        const double spent = seconds() - start;
        all->spent += spent;
        if (memory.peak > all->peak) all->peak = memory.peak;
        printf("%4d  %6d  %.4f  %16.2f %%  %5.1f s\n", seed, o->epochs, loss, 100 * *share, spent);
        fflush(stdout);
    }
    ok = ok && (seed < o->seeds || keep(o, net, seed));
    mlc_ctx_free(ctx);
    return ok;
}

/* Mean and spread: the standard deviation of a seed, 0 for one alone. */
static void report(const options *o, const totals *all)
{
    double mean = 0, square = 0, least = 1, most = 0;
    for (int i = 0; i < o->seeds; i++) mean += all->accuracy[i] / o->seeds;
    for (int i = 0; i < o->seeds; i++) {
        const double a = all->accuracy[i];
        square += (a - mean) * (a - mean);
        if (a < least) least = a;
        if (a > most) most = a;
    }
    printf("%.1f s, peak memory %.1f MB\n", all->spent, (double)all->peak / 1e6);
    printf("wrote digits_cnn_filters.svg, digits_cnn_confusion.svg, digits_cnn.safetensors in %s\n",
           o->out);
    printf("held-out accuracy %.2f %%, spread %.2f (%.2f to %.2f) over %d seed%s\n", 100 * mean,
           100 * sqrt(square / (o->seeds > 1 ? o->seeds - 1 : 1)), 100 * least, 100 * most,
           o->seeds, o->seeds == 1 ? "" : "s");
}

int main(int argc, char **argv)
{
    static totals all;
    options  o = { "examples/data/digits.csv", NULL, ".", 5, 0, 0, MLC_F32 };
    part     parts[2] = { { NULL, NULL, 0, 0, 0 }, { NULL, NULL, 0, 0, 0 } };
    int      status;
    if (!parse(&o, argc, argv, &status)) return status;
    mlc_ctx *ctx = mlc_ctx_create(NULL);    /* of the images; each network has its own        */
    bool     ok = load(ctx, &o, parts) && writable(o.out);
    if (ok) {
        const int side = (int)parts[0].side;
        printf("%lld digits of %d x %d to train on, %lld held out; %s\n", (long long)parts[0].n,
               side, side, (long long)parts[1].n, mlc_dtype_name(o.dtype));
        printf("seed  epochs    loss  held-out accuracy     time\n");
    }
    for (int seed = 1; ok && seed <= o.seeds; seed++)
        ok = run_seed(&o, seed, &parts[0], &parts[1], &all);
    ok = ok && draw_confusion(o.out, &all, o.seeds);
    if (ok) report(&o, &all);
    mlc_ctx_free(ctx);
    return ok ? 0 : 1;
}
