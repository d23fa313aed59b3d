/* test_tensorboard.c -- tests of section IMPL.TENSORBOARD: records, events, summaries, callback
 *
 * Files are read back by a reader of records and of protobuf of their own. The golden bytes were
 * read by TensorBoard 2.21. With MLC_TEST_OUT=FOLDER runs stay there for
 * tests/python_reads_tensorboard.py.
 */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "watch.h"
#include "golden/tensorboard.h"

#include <signal.h>
#if defined(__linux__)
#  include <sys/resource.h>
#  include <sys/wait.h>
#endif

/* ---- records --------------------------------------------------------------------------------- */

typedef struct bytes { const unsigned char *p; size_t n; } bytes;

static uint32_t crc32c(const unsigned char *p, size_t n)
{
    uint32_t c = 0xffffffffu;
    for (size_t i = 0; i < n; i++) {
        c ^= p[i];
        for (int bit = 0; bit < 8; bit++) c = c & 1u ? c >> 1 ^ 0x82f63b78u : c >> 1;
    }
    return ~c;
}

static uint64_t le(const unsigned char *p, int n)
{
    uint64_t v = 0;
    for (int i = 0; i < n; i++) v |= (uint64_t)p[i] << 8 * i;
    return v;
}

static bool masked(const unsigned char *p, size_t n, const unsigned char *crc)
{
    const uint32_t c = crc32c(p, n);
    return (uint32_t)le(crc, 4) == (c >> 15 | c << 17) + 0xa282ead8u;
}

/* The next record of a file; false at its end, or where a record is cut off or damaged. */
static bool next_record(bytes *file, bytes *event)
{
    if (file->n < 16 || !masked(file->p, 8, file->p + 8)) return false;
    const uint64_t n = le(file->p, 8);
    if (n > file->n - 16 || !masked(file->p + 12, (size_t)n, file->p + 12 + n)) return false;
    event->p = file->p + 12;
    event->n = (size_t)n;
    file->p += n + 16;
    file->n -= (size_t)n + 16;
    return true;
}

static int count_records(bytes file)
{
    bytes e;
    int   n = 0;
    while (next_record(&file, &e)) n++;
    return n;
}

/* ---- protobuf -------------------------------------------------------------------------------- */

static uint64_t varint(bytes *b)
{
    uint64_t v = 0;
    for (int shift = 0; b->n; shift += 7) {
        const unsigned char c = *b->p++;
        b->n--;
        v |= (uint64_t)(c & 127) << shift;
        if (c < 128) break;
    }
    return v;
}

/* The which-th field of a number: its bytes, for a varint *v. */
static bool field(bytes b, unsigned number, int which, bytes *out, uint64_t *v)
{
    while (b.n) {
        const uint64_t key = varint(&b);
        uint64_t       n = key % 8 == 1 ? 8 : key % 8 == 5 ? 4 : 0;
        if (key % 8 == 0) *v = varint(&b);
        if (key % 8 == 2) n = varint(&b);
        if (!CHECK(n <= b.n && key % 8 != 3 && key % 8 != 4)) return false;
        out->p = b.p;
        out->n = (size_t)n;
        b.p += n;
        b.n -= (size_t)n;
        if (key >> 3 == number && which-- == 0) return true;
    }
    return false;
}

static bytes inside(bytes b, unsigned number, int which)
{
    bytes    out = {NULL, 0};
    uint64_t v;
    const bytes none = {NULL, 0};
    return field(b, number, which, &out, &v) ? out : none;
}

static int64_t whole(bytes b, unsigned number)
{
    bytes    out;
    uint64_t v = 0;
    return field(b, number, 0, &out, &v) ? (int64_t)v : -1;
}

static double real(bytes b, unsigned number)
{
    bytes  out = inside(b, number, 0);
    double v = (double)NAN;
    float  f;
    if (out.n == 8) { uint64_t u = le(out.p, 8); memcpy(&v, &u, 8); }
    if (out.n == 4) { uint32_t u = (uint32_t)le(out.p, 4); memcpy(&f, &u, 4); v = (double)f; }
    return v;
}

static bool text_is(bytes b, unsigned number, int which, const char *want)
{
    bytes out = inside(b, number, which);
    return out.p && out.n == strlen(want) && memcmp(out.p, want, out.n) == 0;
}

/* ---- runs ------------------------------------------------------------------------------------ */

typedef struct run {                   /* a folder of event files, read in the order of names     */
    char           dir[400];
    unsigned char *file[8];
    bytes          part[8];
    int            files;
} run;

static int by_text(const void *a, const void *b)
{
    return strcmp((const char *)a, (const char *)b);
}

static run read_run(const char *dir)
{
    run  r;
    char names[8][300], path[800];
    DIR *d = opendir(dir);
    memset(&r, 0, sizeof r);
    snprintf(r.dir, sizeof r.dir, "%s", dir);
    for (struct dirent *e; d && (e = readdir(d)) && r.files < 8; )
        if (strstr(e->d_name, "tfevents")) snprintf(names[r.files++], 300, "%s", e->d_name);
    if (d) closedir(d);
    qsort(names, (size_t)r.files, 300, by_text);
    for (int i = 0; i < r.files; i++) {
        snprintf(path, sizeof path, "%s/%.299s", dir, names[i]);
        r.file[i] = get_file(path, &r.part[i].n);
        r.part[i].p = r.file[i];
    }
    return r;
}

static void close_run(run *r, bool erase)
{
    for (int i = 0; i < r->files; i++) free(r->file[i]);
    if (!erase) return;
    box b;
    snprintf(b.dir, sizeof b.dir, "%.250s", r->dir);
    box_close(&b);
}

/* Event i of all files; without bytes if there is none. */
static bytes event_at(const run *r, int i)
{
    bytes e = {NULL, 0};
    for (int k = 0; k < r->files; k++) {
        bytes file = r->part[k];
        while (next_record(&file, &e)) if (i-- == 0) return e;
    }
    e.p = NULL;
    e.n = 0;
    return e;
}

static int events_of(const run *r)
{
    int n = 0;
    for (int k = 0; k < r->files; k++) n += count_records(r->part[k]);
    return n;
}

/* The value of the which-th event with a tag, and its step. */
static bytes tagged(const run *r, const char *tag, int which, int64_t *step)
{
    const bytes none = {NULL, 0};
    for (int i = 0; i < events_of(r); i++) {
        const bytes e = event_at(r, i), v = inside(inside(e, 5, 0), 1, 0);
        if (!v.n || !text_is(v, 1, 0, tag) || which-- > 0) continue;
        if (step) *step = whole(e, 2);
        return v;
    }
    return none;
}

/* Where runs go: a folder of their own, or one that stays. *keep says which. */
static const char *run_dir(box *b, const char *name, bool *kept)
{
    const char *out = getenv("MLC_TEST_OUT");
    *kept = out && *out;
    *b = box_open_fast("");
    if (!*kept) return b->dir;
    box_close(b);
    snprintf(b->path, sizeof b->path, "%.200s/%s", out, name);
    return b->path;
}

static mlc_tensorboard *opened(mlc_ctx *ctx, const char *dir)
{
    mlc_tensorboard_desc d = mlc_tensorboard_desc_make();
    d.has_time = true;
    d.time = 1.7e9;
    d.flush_seconds = 0;
    return mlc_tensorboard_open(ctx, dir, &d);
}

/* One event of each kind. */
static void put_all(mlc_ctx *ctx, mlc_tensorboard *tb)
{
    static const float      x[6] = {-1.0f, 0.0f, 0.5f, 0.5f, 2.0f, INFINITY};
    static const float      scores[4] = {0.1f, 0.4f, 0.35f, 0.8f};
    static const double     labels[4] = {0, 0, 1, 1};
    static const uint8_t    pixels[12] = {255, 0, 0, 0, 255, 0, 0, 0, 255, 255, 255, 255};
    static const mlc_hparam list[2] = {{"lr", NULL, 0.001}, {"rule", "adamw", 0}};
    static const char      *metrics[1] = {"loss"};
    mlc_tensor *y = test_tensor(ctx, MLC_I64, mlc_dims1(4), labels);
    mlc_tensor *w = mlc_from(ctx, MLC_F32, mlc_dims2(2, 3), x);
    mlc_tensor *picture = mlc_from(ctx, MLC_U8, mlc_dims3(2, 2, 3), pixels);
    CHECK_EQ(mlc_tensorboard_hparams(tb, list, 2, metrics, 1), MLC_OK);
    CHECK_EQ(mlc_tensorboard_scalar(tb, "loss", 0.5, 1), MLC_OK);
    CHECK_EQ(mlc_tensorboard_scalar(tb, "loss", 0.25, 300), MLC_OK);
    CHECK_EQ(mlc_tensorboard_histogram(tb, "w", w, 2), MLC_OK);
    CHECK_EQ(mlc_tensorboard_image(tb, "picture", picture, 3), MLC_OK);
    CHECK_EQ(mlc_tensorboard_text(tb, "note", "a *b* \xc3\xa9", 4), MLC_OK);
    CHECK_EQ(mlc_tensorboard_pr_curve(tb, "pr", mlc_from(ctx, MLC_F32, mlc_dims1(4), scores), y, 5),
             MLC_OK);
}

/* ---- tests ----------------------------------------------------------------------------------- */

TEST(tensorboard, golden_bytes)
{
    mlc_ctx *ctx = test_ctx();
    box      b;
    bool     kept;
    size_t   n;
    char     path[700];
    CHECK_EQ(crc32c((const unsigned char *)"123456789", 9), 0xe3069283u);
    if (!test_clock_begin(0)) return;
    const char      *dir = run_dir(&b, "golden", &kept);
    mlc_tensorboard *tb = opened(ctx, dir);
    if (!CHECK(tb != NULL)) return;
    put_all(ctx, tb);
    CHECK_EQ(mlc_tensorboard_close(tb), MLC_OK);
    CHECK_OK(ctx);
    snprintf(path, sizeof path, "%s/events.out.tfevents.1700000000.mlcore.00", dir);
    unsigned char *file = get_file(path, &n);
    CHECK(file && n > sizeof tensorboard_golden &&
          memcmp(file, tensorboard_golden, sizeof tensorboard_golden) == 0);
    free(file);
    test_clock_end();
    if (!kept) box_close(&b);
}

TEST(tensorboard, events_have_what_was_given)
{
    mlc_ctx *ctx = test_ctx();
    box      b = box_open_fast("");
    int64_t  step;
    double   began = (double)time(NULL);
    mlc_tensorboard *tb = mlc_tensorboard_open(ctx, b.dir, NULL);
    if (!CHECK(tb != NULL)) return;
    put_all(ctx, tb);
    CHECK_EQ(mlc_tensorboard_close(tb), MLC_OK);
    run r = read_run(b.dir);
    CHECK_EQ(r.files, 1);
    CHECK_EQ(events_of(&r), 10);           /* the version, two of hparams, its end */
    CHECK(text_is(event_at(&r, 0), 3, 0, "brain.Event:2"));
    for (int i = 0; i < 10; i++)
        CHECK(fabs(real(event_at(&r, i), 1) - began) < 100);
    CHECK_NEAR(real(tagged(&r, "loss", 0, &step), 2), 0.5, 0);
    CHECK_EQ(step, 1);
    CHECK_NEAR(real(tagged(&r, "loss", 1, &step), 2), 0.25, 0);
    CHECK_EQ(step, 300);
    bytes image = inside(tagged(&r, "picture", 0, &step), 4, 0);
    CHECK(step == 3 && whole(image, 1) == 2 && whole(image, 2) == 2 && whole(image, 3) == 3);
    CHECK(inside(image, 4, 0).n > 60 && memcmp(inside(image, 4, 0).p, "\x89PNG", 4) == 0);
    bytes text = tagged(&r, "note", 0, &step);
    CHECK(step == 4 && text_is(inside(text, 8, 0), 8, 0, "a *b* \xc3\xa9"));
    CHECK(text_is(inside(inside(text, 9, 0), 1, 0), 1, 0, "text"));
    close_run(&r, true);
}

/* Limits are powers of 1.1 times 1e-12 and their negatives; the list begins one bucket before. */
TEST(tensorboard, histograms_count_in_buckets)
{
    static const double x[9] = {-1e30, -1.0, 0.0, 1e-13, 0.5, 0.5, 1.0, 1e30, (double)NAN};
    mlc_ctx *ctx = test_ctx();
    box      b = box_open_fast("");
    mlc_tensorboard *tb = opened(ctx, b.dir);
    if (!CHECK(tb != NULL)) return;
    mlc_tensor *all = mlc_from(ctx, MLC_F64, mlc_dims1(9), x), *two = mlc_rows(all, 4, 6);
    mlc_tensor *none = mlc_zeros(ctx, MLC_F32, mlc_dims1(0));
    mlc_tensor *ones = mlc_ones(ctx, MLC_BOOL, mlc_dims1(300));
    CHECK_EQ(mlc_tensorboard_histogram(tb, "a", all, 0), MLC_OK);
    CHECK_EQ(mlc_tensorboard_histogram(tb, "b", two, 0), MLC_OK);
    CHECK_EQ(mlc_tensorboard_histogram(tb, "c", none, 0), MLC_OK);
    CHECK_EQ(mlc_tensorboard_histogram(tb, "d", ones, 0), MLC_OK);
    CHECK_EQ(mlc_tensorboard_close(tb), MLC_OK);
    run r = read_run(b.dir);
    bytes h = inside(tagged(&r, "a", 0, NULL), 5, 0);
    CHECK(real(h, 1) == -1e30 && real(h, 2) == 1e30 && real(h, 3) == 8);
    bytes limits = inside(h, 6, 0), counts = inside(h, 7, 0);
    CHECK(limits.n >= 8 * 11 && limits.n <= 8 * 13 && counts.n == limits.n);
    double sum = 0;
    for (size_t i = 0; i + 8 <= counts.n; i += 8) {
        uint64_t u[3] = {le(counts.p + i, 8), le(limits.p + i, 8), i ? le(limits.p + i - 8, 8) : 0};
        double   v[3], want = 0;
        memcpy(v, u, sizeof v);
        for (int k = 0; k < 8; k++) want += x[k] < v[1] && (i == 0 || x[k] >= v[2]);
        if (v[0] != want) CHECK_NEAR(v[0], want, 0);
        sum += v[0];
    }
    CHECK_NEAR(sum, 8, 0);
    h = inside(tagged(&r, "b", 0, NULL), 5, 0);    /* 0.5 and the limits around it */
    limits = inside(h, 6, 0);
    counts = inside(h, 7, 0);
    CHECK(limits.n == 16 && counts.n == 16 && le(counts.p, 8) == 0);
    CHECK(real(h, 4) == 1.0 && real(h, 5) == 0.5);
    h = inside(tagged(&r, "c", 0, NULL), 5, 0);
    CHECK(real(h, 3) == 0 && inside(h, 7, 0).n == 8);
    h = inside(tagged(&r, "d", 0, NULL), 5, 0);
    CHECK(real(h, 3) == 300 && real(h, 1) == 1 && real(h, 5) == 300);
    close_run(&r, true);
}

/* Rows of torch.utils.tensorboard's compute_curve for 127 thresholds. */
TEST(tensorboard, curves_of_precision_and_recall)
{
    static const float scores[4] = {0.0f, 0.5f, 0.5f, 1.0f};
    static const float labels[4] = {0, 1, 0, 1};
    static const double want[3][6] = {{2, 2, 0, 0, 0.5, 1}, {2, 1, 1, 0, 2.0 / 3, 1},
                                      {1, 0, 2, 1, 1, 0.5}};
    static const int at[3] = {0, 63, 126};
    mlc_ctx *ctx = test_ctx();
    box      b = box_open_fast("");
    mlc_tensorboard *tb = opened(ctx, b.dir);
    if (!CHECK(tb != NULL)) return;
    mlc_tensor *x = mlc_from(ctx, MLC_F32, mlc_dims2(2, 2), scores);
    mlc_tensor *y = mlc_from(ctx, MLC_F32, mlc_dims1(4), labels);
    CHECK_EQ(mlc_tensorboard_pr_curve(tb, "pr", x, mlc_cast(y, MLC_BOOL), 7), MLC_OK);
    CHECK_EQ(mlc_tensorboard_close(tb), MLC_OK);
    run   r = read_run(b.dir);
    bytes v = tagged(&r, "pr", 0, NULL), t = inside(v, 8, 0);
    CHECK_EQ(whole(inside(inside(inside(v, 9, 0), 1, 0), 2, 0), 2), 127);
    CHECK_EQ(whole(inside(inside(t, 2, 0), 2, 0), 1), 6);
    CHECK_EQ(whole(inside(inside(t, 2, 0), 2, 1), 1), 127);
    for (int i = 0; i < 3; i++)
        for (int row = 0; row < 6; row++) {
            bytes    f = inside(t, 5, row * 127 + at[i]);
            uint32_t u = f.n == 4 ? (uint32_t)le(f.p, 4) : 0;
            float    got;
            memcpy(&got, &u, 4);
            CHECK_NEAR((double)got, want[i][row], 1e-6);
        }
    CHECK(!inside(t, 5, 6 * 127).p);
    close_run(&r, true);
}

/* Cut off at any byte, a file has the records that are whole, and its reader finds no more. */
TEST(tensorboard, a_file_cut_off_anywhere_is_read_up_to_there)
{
    mlc_ctx *ctx = test_ctx();
    box      b = box_open_fast("");
    int      ends = 0;
    mlc_tensorboard *tb = opened(ctx, b.dir);
    if (!CHECK(tb != NULL)) return;
    put_all(ctx, tb);
    CHECK_EQ(mlc_tensorboard_close(tb), MLC_OK);
    run    r = read_run(b.dir);
    bytes  cut = r.part[0];
    size_t whole_ends[16];
    bytes  rest = r.part[0], e;
    for (whole_ends[0] = 0; ends < 15 && next_record(&rest, &e); )
        whole_ends[++ends] = (size_t)(rest.p - r.part[0].p);
    CHECK_EQ(ends, 10);
    int wrong = 0, k = 0;
    for (cut.n = 0; cut.n <= r.part[0].n; cut.n++) {
        while (k < ends && whole_ends[k + 1] <= cut.n) k++;
        wrong += count_records(cut) != k;
    }
    CHECK_EQ(wrong, 0);
    for (size_t i = 0; i < r.part[0].n; i += 7) {          /* a byte that is wrong is found */
        r.file[0][i] ^= 16;
        wrong += count_records(r.part[0]) == ends;
        r.file[0][i] ^= 16;
    }
    CHECK_EQ(wrong, 0);
    close_run(&r, true);
}

TEST(tensorboard, waits_for_two_seconds_and_no_longer)
{
    mlc_ctx *ctx = test_ctx();
    box      b = box_open_fast("");
    if (!test_clock_begin(0)) return;
    mlc_tensorboard *tb = mlc_tensorboard_open(ctx, b.dir, NULL);
    if (!CHECK(tb != NULL)) return;
    static const int want[6] = {1, 1, 4, 4, 6, 7};
    for (int i = 0; i < 6; i++) {
        if (i == 4) CHECK_EQ(mlc_tensorboard_flush(tb), MLC_OK);
        else CHECK_EQ(mlc_tensorboard_scalar(tb, "a", i, i), MLC_OK);
        if (i == 3) CHECK_EQ(mlc_tensorboard_scalar(tb, "a", i, i), MLC_OK);
        if (i == 5) CHECK_EQ(mlc_tensorboard_flush(tb), MLC_OK);
        run r = read_run(b.dir);
        CHECK_EQ(events_of(&r), want[i]);
        close_run(&r, false);
        test_clock_pass(1);
    }
    CHECK_EQ(mlc_tensorboard_close(tb), MLC_OK);
    run r = read_run(b.dir);
    CHECK_NEAR(real(event_at(&r, 2), 1) - real(event_at(&r, 1), 1), 1, 1e-6);
    close_run(&r, true);
    test_clock_end();
}

/* A second writer of the folder has a file of its own, which hides steps of the first. */
TEST(tensorboard, a_run_that_goes_on_has_another_file)
{
    mlc_ctx *ctx = test_ctx();
    box      b = box_open_fast("");
    char     dir[300];
    snprintf(dir, sizeof dir, "%.250s/a//b/", b.dir);
    mlc_tensorboard_desc d = mlc_tensorboard_desc_make();
    for (int i = 0; i < 2; i++) {
        d.has_purge = i == 1;
        d.purge = i ? 42 : 0;
        mlc_tensorboard *tb = mlc_tensorboard_open(ctx, dir, &d);
        if (!CHECK(tb != NULL)) return;
        CHECK_EQ(mlc_tensorboard_scalar(tb, "a", 1.0, 41 + i), MLC_OK);
        CHECK_EQ(mlc_tensorboard_close(tb), MLC_OK);
    }
    run r = read_run(dir);
    CHECK_EQ(r.files, 2);
    CHECK_EQ(events_of(&r), 5);
    CHECK(whole(event_at(&r, 3), 2) == 42 && whole(inside(event_at(&r, 3), 7, 0), 1) == 1);
    CHECK_EQ(whole(event_at(&r, 4), 2), 42);
    close_run(&r, true);
    snprintf(dir, sizeof dir, "%.250s/a", b.dir);
    rmdir(dir);
    box_close(&b);
}

TEST(tensorboard, errors)
{
    static const mlc_hparam wrong[2] = {{"lr", NULL, 1}, {NULL, NULL, 1}};
    static const mlc_hparam infinite = {"clip", NULL, (double)INFINITY};
    mlc_ctx *ctx = test_ctx();
    box      b = box_open_fast("file");
    char     below[400];
    mlc_tensorboard_desc d = mlc_tensorboard_desc_make();
    CHECK(mlc_tensorboard_open(NULL, "a", NULL) == NULL);
    CHECK(mlc_tensorboard_open(ctx, "", NULL) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "tensorboard_open: no folder");
    d.time = 5;
    CHECK(mlc_tensorboard_open(ctx, b.dir, &d) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "has_time");
    d.has_time = true;
    d.flush_seconds = -1;
    CHECK(mlc_tensorboard_open(ctx, b.dir, &d) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "flush_seconds");
    CHECK(put_file(b.path, "x", 1));
    snprintf(below, sizeof below, "%s/below", b.path);
    CHECK(mlc_tensorboard_open(ctx, below, NULL) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_IO, "tensorboard_open: cannot make the folder '");
    CHECK(mlc_tensorboard_open(ctx, "/proc/mlcore/a/b", NULL) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_IO, "cannot make the folder '/proc/mlcore/a/b': ");
    CHECK(mlc_tensorboard_open(ctx, b.path, NULL) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_IO, "cannot make the folder '");
    CHECK_EQ(box_count(&b), 1);
    CHECK_EQ(mlc_tensorboard_scalar(NULL, "a", 1, 1), MLC_ERR_ARG);
    CHECK_EQ(mlc_tensorboard_close(NULL), MLC_ERR_ARG);
    mlc_tensorboard *tb = opened(ctx, b.dir);
    if (!CHECK(tb != NULL)) return;
    mlc_tensor *x = mlc_ones(ctx, MLC_F32, mlc_dims1(3)), *y = mlc_ones(ctx, MLC_I64, mlc_dims1(3));
    CHECK_EQ(mlc_tensorboard_scalar(tb, "", 1, 1), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "tensorboard_scalar: no tag");
    CHECK_EQ(mlc_tensorboard_scalar(tb, "\xff", 1, 1), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "not UTF-8");
    CHECK_EQ(mlc_tensorboard_text(tb, "a", "\xff", 1), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "the text is not UTF-8");
    CHECK_EQ(mlc_tensorboard_text(tb, "a", NULL, 1), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "the text is NULL");
    CHECK_EQ(mlc_tensorboard_histogram(tb, "a", NULL, 1), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "the tensor is NULL");
    CHECK_EQ(mlc_tensorboard_image(tb, "a", x, 1), MLC_ERR_SHAPE);
    CHECK_ERROR(ctx, MLC_ERR_SHAPE, "tensorboard_image: [3] is no picture");
    mlc_ctx    *other = test_ctx();
    mlc_tensor *foreign = mlc_ones(other, MLC_F32, mlc_dims2(3, 1));
    CHECK_EQ(mlc_tensorboard_histogram(tb, "a", foreign, 1), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "tensorboard_histogram: the tensor belongs to another context");
    CHECK_EQ(mlc_tensorboard_image(tb, "a", foreign, 1), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "tensorboard_image: the tensor belongs to another context");
    CHECK_EQ(mlc_tensorboard_pr_curve(tb, "a", foreign, y, 1), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "scores belongs to another context");
    CHECK_EQ(mlc_tensorboard_pr_curve(tb, "a", x, foreign, 1), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "labels belongs to another context");
    CHECK_OK(other);
    CHECK_EQ(mlc_tensorboard_pr_curve(tb, "a", NULL, y, 1), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "scores is NULL");
    CHECK_EQ(mlc_tensorboard_pr_curve(tb, "a", y, y, 1), MLC_ERR_DTYPE);
    CHECK_ERROR(ctx, MLC_ERR_DTYPE, "scores are i64");
    CHECK_EQ(mlc_tensorboard_pr_curve(tb, "a", x, mlc_rows(y, 0, 2), 1), MLC_ERR_SHAPE);
    CHECK_ERROR(ctx, MLC_ERR_SHAPE, "scores are [3], labels [2]");
    CHECK_EQ(mlc_tensorboard_pr_curve(tb, "a", mlc_add(x, x), y, 1), MLC_ERR_VALUE);
    CHECK_ERROR(ctx, MLC_ERR_VALUE, "score 0 is 2");
    CHECK_EQ(mlc_tensorboard_pr_curve(tb, "a", x, mlc_add(y, y), 1), MLC_ERR_VALUE);
    CHECK_ERROR(ctx, MLC_ERR_VALUE, "label 0 is 2");
    CHECK_EQ(mlc_tensorboard_hparams(tb, NULL, 0, NULL, 0), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "no settings");
    CHECK_EQ(mlc_tensorboard_hparams(tb, wrong, 2, NULL, 0), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "setting 1 has no name");
    CHECK_EQ(mlc_tensorboard_hparams(tb, &infinite, 1, NULL, 0), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "'clip' is inf, and TensorBoard's table has finite numbers");
    CHECK_EQ(mlc_tensorboard_hparams(tb, wrong, 1, NULL, 0), MLC_OK);
    CHECK_EQ(mlc_tensorboard_hparams(tb, wrong, 1, NULL, 0), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "a run has its settings once");
    CHECK_EQ(mlc_tensorboard_graph(tb, NULL, x), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "the module is NULL");
    mlc_raise(ctx, MLC_ERR_VALUE, "mine");
    CHECK_EQ(mlc_tensorboard_scalar(tb, "late", 1, 1), MLC_ERR_VALUE);
    CHECK_EQ(mlc_tensorboard_close(tb), MLC_OK);           /* the run has failed: 2 */
    CHECK_ERROR(ctx, MLC_ERR_VALUE, "mine");
    run   r = read_run(b.dir);
    bytes v = tagged(&r, "_hparams_/session_end_info", 0, NULL);
    CHECK_EQ(whole(inside(inside(inside(inside(v, 9, 0), 1, 0), 2, 0), 4, 0), 1), 2);
    CHECK_EQ(events_of(&r), 4);
    close_run(&r, true);
}

#if defined(__linux__)
/* Writes events of all sizes without end, event i at step i; from the 50th on a byte says that it
 * writes. Of three processes one flushes each event, one after a hundred, one by itself. */
static void write_for_ever(const char *dir, int round, int to)
{
    mlc_ctx             *ctx = mlc_ctx_create(NULL);
    mlc_tensorboard_desc d = mlc_tensorboard_desc_make();
    d.flush_seconds = round % 3 ? 1000 : 0;
    mlc_tensorboard *tb = mlc_tensorboard_open(ctx, dir, &d);
    mlc_tensor      *x = mlc_arange(ctx, MLC_F32, 0, 300, 1);
    mlc_tensor      *picture = mlc_zeros(ctx, MLC_U8, mlc_dims2(40, 40));
    for (int64_t i = 0; tb; i++) {
        if (i % 7 == 3) mlc_tensorboard_histogram(tb, "h", x, i);
        else if (i % 31 == 5) mlc_tensorboard_image(tb, "i", picture, i);
        else mlc_tensorboard_scalar(tb, "a", (double)i, i);
        if (round % 3 == 1 && i % 100 == 49) mlc_tensorboard_flush(tb);
        if (i == 50 && write(to, "x", 1) != 1) break;
    }
    _exit(1);
}

/* Killed while it writes, again and again: what was flushed is there, and each file is read up to
 * its last whole record. MLC_TEST_KILLS: how often; .ci/full says 1000. With MLC_TEST_OUT the first
 * twelve stay for TensorBoard's reader. */
TEST(tensorboard, a_run_that_is_killed_has_whole_records)
{
    ONLY_ON_HOST();                    /* a device outlives no fork                            */
    const char *often = getenv("MLC_TEST_KILLS"), *out = getenv("MLC_TEST_OUT");
    const int   kills = often ? atoi(often) : 12;
    unsigned    random = 5;
    box         b = box_open_fast("");
    for (int round = 0; round < kills; round++) {
        char dir[400];
        int  pipes[2];
        char sign;
        snprintf(dir, sizeof dir, "%.250s/killed%d", out && round < 12 ? out : b.dir, round);
        if (!CHECK(pipe(pipes) == 0)) return;
        fflush(NULL);
        const pid_t child = fork();
        if (child == 0) write_for_ever(dir, round, pipes[1]);
        close(pipes[1]);
        CHECK(read(pipes[0], &sign, 1) == 1);
        random = random * 1103515245u + 12345u;
        usleep((random >> 16) % 5000);
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        close(pipes[0]);
        run       r = read_run(dir);
        const int n = events_of(&r);
        CHECK_EQ(r.files, 1);
        CHECK(n >= (round % 3 == 0 ? 52 : round % 3 == 1 ? 51 : 1));
        bytes file = r.part[0], e;
        for (int i = 0; next_record(&file, &e); i++)       /* step 0 is left out of an event    */
            if (!CHECK(i < 2 || whole(e, 2) == i - 1)) break;
        close_run(&r, !out || round >= 12);
    }
    box_close(&b);
}

/* A full disk: the rest goes to another file once there is room, and no record is lost. */
TEST(tensorboard, what_a_full_disk_refused_is_in_the_next_file)
{
    mlc_ctx      *ctx = test_ctx();
    box           b = box_open_fast("");
    struct rlimit limit, small;
    int           failed = 0;
    mlc_tensorboard *tb = opened(ctx, b.dir);
    if (!CHECK(tb != NULL && getrlimit(RLIMIT_FSIZE, &limit) == 0)) return;
    void (*before)(int) = signal(SIGXFSZ, SIG_IGN);
    small = limit;
    small.rlim_cur = 250;
    CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
    for (int64_t i = 0; i < 8; i++) {
        if (i == 6) setrlimit(RLIMIT_FSIZE, &limit);
        const mlc_status st = mlc_tensorboard_scalar(tb, "a", (double)i, i);
        if (st != MLC_OK) {
            failed++;
            CHECK_ERROR(ctx, MLC_ERR_IO, "cannot write '");
        }
        mlc_error_clear(ctx);
    }
    CHECK_EQ(mlc_tensorboard_close(tb), MLC_OK);
    signal(SIGXFSZ, before);
    CHECK(failed > 0);
    run r = read_run(b.dir);
    CHECK(r.files > 1);
    for (int64_t i = 0; i < 8; i++) {
        int64_t step = -1;
        CHECK_NEAR(real(tagged(&r, "a", (int)i, &step), 2), (double)i, 0);
        CHECK_EQ(step, i);
    }
    CHECK(!tagged(&r, "a", 8, NULL).p);
    close_run(&r, true);
}
#endif

/* ---- graphs and trainings -------------------------------------------------------------------- */

/* Which node of a graph has a name; -1: none. */
static int node_named(bytes graph, const char *name)
{
    for (int i = 0; inside(graph, 1, i).n; i++)
        if (text_is(inside(graph, 1, i), 1, 0, name)) return i;
    return -1;
}

TEST(tensorboard, a_graph_has_operations_parameters_and_wires)
{
    mlc_ctx    *ctx = test_ctx();
    box         b;
    bool        kept;
    const char *dir = run_dir(&b, "graph", &kept);
    mlc_module *net = MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 4, 5), mlc_nn_tanh(ctx),
                                     mlc_nn_dropout(ctx, 0.5), mlc_nn_linear(ctx, 5, 3));
    mlc_tensorboard *tb = opened(ctx, dir);
    if (!CHECK(tb != NULL)) return;
    const mlc_rng_state rng = mlc_ctx_rng(ctx);
    CHECK_EQ(mlc_tensorboard_graph(tb, net, mlc_ones(ctx, MLC_F32, mlc_dims2(2, 4))), MLC_OK);
    CHECK_OK(ctx);
    const mlc_rng_state after = mlc_ctx_rng(ctx);
    CHECK(memcmp(&rng, &after, sizeof rng) == 0);
    CHECK_EQ(mlc_tensorboard_close(tb), MLC_OK);
    run   r = read_run(dir);
    bytes graph = inside(event_at(&r, 1), 4, 0);
    CHECK_EQ(whole(inside(graph, 4, 0), 1), 22);
    const int x = node_named(graph, "input"), w = node_named(graph, "0/weight");
    const int first = node_named(graph, "0/linear"), last = node_named(graph, "3/linear");
    CHECK(x >= 0 && w >= 0 && first >= 0 && last > first);
    bytes node = inside(graph, 1, first);
    CHECK(text_is(node, 2, 0, "linear"));
    CHECK(text_is(node, 3, 0, "input") && text_is(node, 3, 1, "0/weight") &&
          text_is(node, 3, 2, "0/bias"));
    CHECK(text_is(inside(graph, 1, w), 2, 0, "Parameter"));
    bytes attr = inside(node, 5, 0), shape = inside(inside(inside(attr, 2, 0), 1, 0), 7, 0);
    CHECK(text_is(attr, 1, 0, "_output_shapes"));
    CHECK(whole(inside(shape, 2, 0), 1) == 2 && whole(inside(shape, 2, 1), 1) == 5);
    int n = 0, inputs = 0;
    for (; inside(graph, 1, n).n; n++)             /* each input is a node that stands before */
        for (int i = 0; inside(inside(graph, 1, n), 3, i).p; i++) {
            bytes from = inside(inside(graph, 1, n), 3, i);
            char  name[100];
            snprintf(name, sizeof name, "%.*s", (int)from.n, (const char *)from.p);
            CHECK(node_named(graph, name) >= 0);
            inputs++;
        }
    CHECK(n >= 7 && inputs >= 6);
    close_run(&r, !kept);
}

static mlc_tensor *adds(void *user, mlc_tensor *x)
{
    (void)user;
    for (int i = 0; i < 3000; i++) x = mlc_add(x, x);
    return x;
}

/* Thousands of operations of one name have a number each, in a time that is not felt. */
TEST(tensorboard, a_graph_numbers_names_that_come_again)
{
    mlc_ctx *ctx = test_ctx();
    box      b = box_open_fast("");
    mlc_tensorboard *tb = opened(ctx, b.dir);
    if (!CHECK(tb != NULL)) return;
    mlc_module *net = mlc_nn_lambda(ctx, adds, NULL);
    CHECK_EQ(mlc_tensorboard_graph(tb, net, mlc_ones(ctx, MLC_F32, mlc_dims1(1))), MLC_OK);
    CHECK_EQ(mlc_tensorboard_close(tb), MLC_OK);
    run   r = read_run(b.dir);
    bytes graph = inside(event_at(&r, 1), 4, 0);
    CHECK(text_is(inside(graph, 1, 1), 1, 0, "add") && text_is(inside(graph, 1, 2), 1, 0, "add_1"));
    CHECK(text_is(inside(graph, 1, 3000), 1, 0, "add_2999"));
    CHECK(text_is(inside(graph, 1, 3000), 3, 0, "add_2998"));
    close_run(&r, true);
}

typedef struct scene { mlc_ctx *ctx; mlc_module *net; mlc_optim *opt; mlc_loader *train; } scene;

static scene scene_make(void)
{
    scene  s;
    double labels[40];
    s.ctx = test_ctx();
    for (int i = 0; i < 40; i++) labels[i] = i * i % 7 % 3;
    mlc_seed(s.ctx, 3);
    s.net = MLC_SEQUENTIAL(s.ctx, mlc_nn_linear(s.ctx, 5, 8), mlc_nn_relu(s.ctx),
                           mlc_nn_linear(s.ctx, 8, 3));
    s.opt = mlc_adamw(s.net, 0.01);
    mlc_tensor *x = test_rand(s.ctx, MLC_F32, mlc_dims2(40, 5), 1, -1, 1);
    s.train = mlc_loader_shuffled(s.ctx, x, test_tensor(s.ctx, MLC_I64, mlc_dims1(40), labels), 8);
    return s;
}

static mlc_status trained(scene *s, mlc_callback *c, int64_t epochs, const char *resume,
                          mlc_tracker **history)
{
    mlc_callback *list[2] = {c, resume ? mlc_on_checkpoint(s->ctx, NULL) : NULL};
    mlc_fit_desc  d = mlc_fit_desc_make(mlc_cross_entropy);
    if (resume) {
        mlc_checkpoint_desc k = mlc_checkpoint_desc_make(resume);
        mlc_error_clear(s->ctx);
        k.resume = true;
        list[1] = mlc_on_checkpoint(s->ctx, &k);
    }
    d.epochs = epochs;
    d.callbacks = list;
    d.n_callbacks = resume ? 2 : 1;
    const mlc_status st = mlc_fit(s->net, s->opt, s->train, &d, history);
    mlc_callback_free(s->ctx, list[0]);
    mlc_callback_free(s->ctx, list[1]);
    return st;
}

TEST(tensorboard, a_training_writes_rows_losses_histograms_and_its_graph)
{
    static const mlc_hparam list[1] = {{"lr", NULL, 0.01}};
    static const char      *metrics[1] = {"loss"};
    scene         s = scene_make(), plain = scene_make();
    box           b;
    bool          kept;
    mlc_tracker  *history, *other;
    const double *loss, *want;
    int64_t       step;
    mlc_tensorboard_fit_desc d = mlc_tensorboard_fit_desc_make(run_dir(&b, "fit", &kept));
    d.every = 2;
    d.histograms = 7;
    d.graph = true;
    d.hparams = list;
    d.n_hparams = 1;
    d.metrics = metrics;
    d.n_metrics = 1;
    CHECK_EQ(trained(&s, mlc_on_tensorboard_ex(s.ctx, &d), 3, NULL, &history), MLC_OK);
    CHECK_OK(s.ctx);
    run r = read_run(d.dir);
    CHECK_EQ(r.files, 1);
    mlc_tracker_history(history, "loss", NULL, &loss);
    for (int i = 0; i < 3; i++) {
        CHECK_NEAR(real(tagged(&r, "loss", i, &step), 2), (double)(float)loss[i], 0);
        CHECK_EQ(step, 5 * (i + 1));
        CHECK_NEAR(real(tagged(&r, "lr", i, &step), 2), 0.01, 1e-9);
    }
    CHECK(!tagged(&r, "loss", 3, NULL).p);
    for (int i = 0; i < 7; i++) {
        CHECK(real(tagged(&r, "batch/loss", i, &step), 2) > 0);
        CHECK_EQ(step, 2 * (i + 1));
    }
    CHECK(!tagged(&r, "batch/loss", 7, NULL).p);
    CHECK_NEAR(real(inside(tagged(&r, "parameters/0.weight", 0, &step), 5, 0), 3), 40, 0);
    CHECK_EQ(step, 7);
    CHECK_NEAR(real(inside(tagged(&r, "gradients/2.bias", 1, &step), 5, 0), 3), 3, 0);
    CHECK_EQ(step, 14);
    CHECK(!tagged(&r, "gradients/2.bias", 2, NULL).p);
    CHECK(tagged(&r, "_hparams_/session_end_info", 0, NULL).p != NULL);
    int graphs = 0;
    for (int i = 0; i < events_of(&r); i++) graphs += inside(event_at(&r, i), 4, 0).n > 100;
    CHECK_EQ(graphs, 1);
    /* What is written changes no bit of the training. */
    CHECK_EQ(trained(&plain, mlc_on_memory(plain.ctx, 1 << 30), 3, NULL, &other), MLC_OK);
    mlc_tracker_history(other, "loss", NULL, &want);
    CHECK(memcmp(loss, want, 3 * sizeof *loss) == 0);
    mlc_tracker_free(history);
    mlc_tracker_free(other);
    close_run(&r, !kept);
}

TEST(tensorboard, a_training_that_resumes_goes_on_in_its_folder)
{
    box     b = box_open_fast("net"), board;
    bool    kept;
    int64_t step;
    char    dir[400];
    snprintf(dir, sizeof dir, "%s", run_dir(&board, "resumed", &kept));
    for (int i = 0; i < 2; i++) {
        scene s = scene_make();
        CHECK_EQ(trained(&s, mlc_on_tensorboard(s.ctx, dir), i ? 3 : 2, b.path, NULL), MLC_OK);
        CHECK_OK(s.ctx);
    }
    run r = read_run(dir);
    CHECK_EQ(r.files, 2);
    for (int i = 0; i < 3; i++) {
        CHECK(real(tagged(&r, "loss", i, &step), 2) > 0);
        CHECK_EQ(step, 5 * (i + 1));
    }
    CHECK(!tagged(&r, "loss", 3, NULL).p);
    int n = 0;
    for (int i = 0; i < events_of(&r); i++) {
        const bytes e = event_at(&r, i);
        if (whole(inside(e, 7, 0), 1) != 1) continue;
        CHECK_EQ(whole(e, 2), n++ ? 11 : 1);
    }
    CHECK_EQ(n, 2);
    close_run(&r, !kept);
    box_close(&b);
}

TEST(tensorboard, a_callback_says_what_is_wrong)
{
    scene s = scene_make();
    box   b = box_open_fast("file");
    mlc_tensorboard_fit_desc d = mlc_tensorboard_fit_desc_make(b.dir);
    CHECK(mlc_on_tensorboard(NULL, b.dir) == NULL);
    CHECK(mlc_on_tensorboard(s.ctx, NULL) == NULL);
    CHECK_ERROR(s.ctx, MLC_ERR_ARG, "on_tensorboard: no folder");
    CHECK(mlc_on_tensorboard_ex(s.ctx, NULL) == NULL);
    CHECK_ERROR(s.ctx, MLC_ERR_ARG, "on_tensorboard: no folder");
    d.every = -1;
    CHECK(mlc_on_tensorboard_ex(s.ctx, &d) == NULL);
    CHECK_ERROR(s.ctx, MLC_ERR_ARG, "every, histograms");
    d.every = 0;
    d.n_hparams = 1;
    CHECK(mlc_on_tensorboard_ex(s.ctx, &d) == NULL);
    CHECK_ERROR(s.ctx, MLC_ERR_ARG, "hparams");
    CHECK(put_file(b.path, "x", 1));
    CHECK_EQ(trained(&s, mlc_on_tensorboard(s.ctx, b.path), 1, NULL, NULL), MLC_ERR_IO);
    CHECK_ERROR(s.ctx, MLC_ERR_IO, "cannot make the folder '");
    CHECK_EQ(box_count(&b), 1);
    box_close(&b);
}
