/* test_terminal.c -- tests of section IMPL.TERMINAL: charts as text
 *
 * Texts are compared with those of golden/terminal.h, byte by byte, at 40, 80 and 200 columns. They
 * were looked at in a terminal. TERMINAL_GOLDEN=FILE in the environment writes what is drawn now.
 */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "files.h"
#include "golden/terminal.h"

typedef struct text {
    char   s[1 << 18];
    size_t n;
} text;

static text drawn;

static void collect(void *user, const char *s, size_t bytes)
{
    text *t = (text *)user;
    CHECK(bytes > 0);
    if (CHECK(t->n + bytes < sizeof t->s)) {
        memcpy(t->s + t->n, s, bytes);
        t->n += bytes;
        t->s[t->n] = 0;
    }
}

static mlc_terminal_desc desc_of(int32_t width, bool utf8, int32_t colours)
{
    mlc_terminal_desc d;
    memset(&d, 0, sizeof d);
    d.width = width;
    d.height = width == 40 ? 8 : 12;
    d.utf8 = utf8;
    d.colours = colours;
    return d;
}

/* ---- what is drawn --------------------------------------------------------------------------- */

enum { POINTS = 60 };

static double at[POINTS], loss[POINTS], val[POINTS], ten[POINTS];

static void series_of(mlc_plot_series *s)
{
    for (int i = 0; i < POINTS; i++) {
        const double noise = (i * 37 % 11 - 5) * 0.01;
        at[i] = i;
        loss[i] = 2.3 / (1 + 0.2 * i) + noise;
        val[i] = i % 10 == 9 ? 0.4 + 1.9 / (1 + 0.3 * i) : (double)NAN;
        ten[i] = 1000.0 / ((i + 1) * (i + 1));
    }
    const mlc_plot_series all[4] = {{"loss", at, loss, POINTS, MLC_PLOT_LINE},
                                    {"val_loss", at, val, POINTS, MLC_PLOT_MARKED},
                                    {"chance", at, at, 0, MLC_PLOT_DASHED},
                                    {NULL, at, ten, POINTS, MLC_PLOT_LINE}};
    memcpy(s, all, sizeof all);
}

static mlc_status draw_lines(mlc_ctx *ctx, const mlc_terminal_desc *d)
{
    static const double ends[2] = {0, 59}, level[2] = {1, 1};
    mlc_plot_series s[4];
    mlc_plot        p;
    series_of(s);
    s[2].x = ends;
    s[2].y = level;
    s[2].n = 2;
    memset(&p, 0, sizeof p);
    p.title = "Loss";
    p.x_label = "epoch";
    p.y_label = "nats";
    p.series = s;
    p.count = 3;
    return mlc_plot_print(ctx, &p, 1, d, collect, &drawn);
}

static mlc_status draw_two(mlc_ctx *ctx, const mlc_terminal_desc *d)
{
    mlc_plot_series s[4];
    mlc_plot        p[2];
    series_of(s);
    memset(p, 0, sizeof p);
    p[0].title = "caf\xC3\xA9 \xE2\x82\xAC and\ta title";
    p[0].series = s + 3;
    p[0].count = 1;
    p[0].y_log = p[0].x_log = true;
    return mlc_plot_print(ctx, p, 2, d, collect, &drawn);          /* the second one is empty */
}

static mlc_status draw_bars(mlc_ctx *ctx, const mlc_terminal_desc *d)
{
    static const double x[5] = {1, 2, 3, 4, 5}, y[5] = {3, -1, 4, 0.5, -2};
    const mlc_plot_series s = {"gain", x, y, 5, MLC_PLOT_BARS};
    mlc_plot              p;
    memset(&p, 0, sizeof p);
    p.series = &s;
    p.count = 1;
    return mlc_plot_print(ctx, &p, 1, d, collect, &drawn);
}

static mlc_status draw_histogram(mlc_ctx *ctx, const mlc_terminal_desc *d)
{
    enum { BINS = 15 };
    double values[400], x[BINS], y[BINS];
    for (int i = 0; i < 400; i++)
        values[i] = (i * 7 % 20 + i * 11 % 20 + i * 13 % 17 + i / 40) * 0.1 - 3;
    CHECK_EQ(mlc_plot_bins(ctx, values, 400, BINS, x, y), MLC_OK);
    const mlc_plot_series s = {NULL, x, y, BINS, MLC_PLOT_BARS};
    mlc_plot              p;
    memset(&p, 0, sizeof p);
    p.title = "Weights";
    p.series = &s;
    p.count = 1;
    return mlc_plot_print(ctx, &p, 1, d, collect, &drawn);
}

static mlc_status draw_points(mlc_ctx *ctx, const mlc_terminal_desc *d)
{
    static const double x[4] = {1e5, 2e5, 3e5, 1e6}, y[4] = {0.001, 0.1, (double)INFINITY, 10};
    const mlc_plot_series s[2] = {{"a", x, y, 4, MLC_PLOT_POINTS}, {"b", y, x, 2, MLC_PLOT_POINTS}};
    mlc_plot              p;
    memset(&p, 0, sizeof p);
    p.series = s;
    p.count = 2;
    p.y_log = true;
    return mlc_plot_print(ctx, &p, 1, d, collect, &drawn);
}

static mlc_status matrix_of(mlc_ctx *ctx, const mlc_terminal_desc *d, int64_t classes,
                            const char *const *names)
{
    mlc_metric *m = mlc_metric_confusion(ctx, classes);
    int64_t     labels[600];
    float      *x = (float *)calloc((size_t)(600 * classes), sizeof *x);
    if (!CHECK(m && x)) return MLC_ERR_NOMEM;
    for (int i = 0; i < 600; i++) {
        labels[i] = i % classes;
        x[i * classes + (i % 7 ? labels[i] : (labels[i] + i / 7 % 3) % classes)] = 1;
    }
    CHECK_EQ(mlc_metric_update(m, mlc_from(ctx, MLC_F32, mlc_dims2(600, classes), x),
                               mlc_from(ctx, MLC_I64, mlc_dims1(600), labels), NULL), MLC_OK);
    free(x);
    const mlc_status st = mlc_confusion_print(m, names, d, collect, &drawn);
    mlc_metric_free(m);
    return st;
}

static mlc_status draw_confusion(mlc_ctx *ctx, const mlc_terminal_desc *d)
{
    static const char *const names[4] = {"cat", "dog", "caf\xC3\xA9", "a long name of a class"};
    return matrix_of(ctx, d, 4, names);
}

static mlc_status draw_many(mlc_ctx *ctx, const mlc_terminal_desc *d)
{
    return matrix_of(ctx, d, 30, NULL);
}

static mlc_status draw_image(mlc_ctx *ctx, const mlc_terminal_desc *d)
{
    enum { H = 15, W = 60 };
    static uint8_t x[3][H][W];
    for (int i = 0; i < H; i++)
        for (int k = 0; k < W; k++) {
            const int in = (i - 7) * (i - 7) * 16 + (k - 30) * (k - 30) < 600;
            x[0][i][k] = (uint8_t)(in ? 250 : k * 4);
            x[1][i][k] = (uint8_t)(in ? 40 : k * 4);
            x[2][i][k] = (uint8_t)(in ? 10 + i * 12 : k * 4);
        }
    return mlc_image_print(mlc_from(ctx, MLC_U8, mlc_dims3(3, H, W), x), d, collect, &drawn);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    mlc_status (*draw)(mlc_ctx *ctx, const mlc_terminal_desc *d);
} cases[8] = {{"lines", draw_lines}, {"two", draw_two}, {"bars", draw_bars},
              {"histogram", draw_histogram}, {"points", draw_points},
              {"confusion", draw_confusion}, {"many", draw_many}, {"image", draw_image}};

/* Writes a text as strings of C, in lines of less than 100 bytes. */
static void put_text(FILE *to, const char *name, const char *s)
{
    int n = 0;
    fprintf(to, "    {\"%s\",\n     \"", name);
    for (; *s; s++) {
        const bool plain = (unsigned char)*s >= 32 && *s != 127;
        if (n > 84 && *s != '\n' && ((unsigned char)*s & 0xC0) != 0x80) {
            fprintf(to, "\"\n     \"");
            n = 0;
        }
        if (*s == '\n') fprintf(to, s[1] ? "\\n\"\n     \"" : "\\n");
        else if (*s == '"' || *s == '\\') fprintf(to, "\\%c", *s);
        else if (!plain) fprintf(to, "\\%03o", (unsigned char)*s);
        else fputc(*s, to);
        n = *s == '\n' ? 0 : n + (plain ? 1 : 4);
    }
    fprintf(to, "\"},\n");
}

/* Columns that the longest line takes, without what switches colours. */
static int widest(const char *s)
{
    int most = 0, n = 0;
    for (; *s; s++) {
        if (*s == '\033') { while (*s != 'm') s++; continue; }
        n = *s == '\n' ? 0 : n + (((unsigned char)*s & 0xC0) != 0x80);
        most = n > most ? n : most;
    }
    return most;
}

TEST(terminal, texts_are_those_that_were_looked_at)
{
    static const int32_t widths[3] = {40, 80, 200}, colours[4] = {0, 0, 16, 1 << 24};
    static const bool    utf8[4] = {false, true, true, true};
    mlc_ctx    *ctx = test_ctx();
    const char *out = getenv("TERMINAL_GOLDEN");
    FILE       *to = out ? fopen(out, "w") : NULL;
    int         found = 0;
    if (to) fprintf(to, "/* terminal.h -- what IMPL.TERMINAL draws: test_terminal.c writes it */\n"
                    "static const struct { const char *name, *text; } terminal_golden[] = {\n");
    for (int i = 0; i < 8; i++)
        for (int w = 0; w < 3; w++)
            for (int k = 0; k < 4; k++) {
                const mlc_terminal_desc d = desc_of(widths[w], utf8[k], colours[k]);
                const bool again = k == 2 && i >= 5;       /* 16 colours are none to these */
                char name[64];
                if (k == 3 && (w > 0 || i < 5)) continue;
                snprintf(name, sizeof name, "%s %d %s %d", cases[i].name, (int)d.width,
                         d.utf8 ? "utf8" : "ascii", again ? 0 : (int)d.colours);
                drawn.n = 0;
                CHECK_EQ(cases[i].draw(ctx, &d), MLC_OK);
                CHECK(widest(drawn.s) <= widths[w]);
                if (to) {
                    if (!again) put_text(to, name, drawn.s);
                    continue;
                }
                for (size_t g = 0; g < sizeof terminal_golden / sizeof *terminal_golden; g++)
                    if (strcmp(terminal_golden[g].name, name) == 0) {
                        found++;
                        if (!CHECK(strcmp(terminal_golden[g].text, drawn.s) == 0))
                            fprintf(stderr, "%s\n%s\n", name, drawn.s);
                    }
            }
    if (to) {
        fprintf(to, "    {\"\", \"\"}};\n");
        fclose(to);
    } else CHECK_EQ(found, 8 * 9 + 3);
}

/* A line alone, and what cannot be shown. */
TEST(terminal, charts_of_nothing_and_of_values_that_cannot_be_shown)
{
    static const double x[3] = {0, 1, 2}, y[3] = {(double)NAN, (double)INFINITY, -1};
    mlc_ctx              *ctx = test_ctx();
    const mlc_terminal_desc d = desc_of(20, false, 0);
    const mlc_plot_series s[2] = {{NULL, x, y, 2, MLC_PLOT_LINE}, {"", x, y, 3, MLC_PLOT_BARS}};
    mlc_plot              p;
    memset(&p, 0, sizeof p);
    p.series = s;
    for (p.count = 0; p.count < 3; p.count++) {
        drawn.n = 0;
        CHECK_EQ(mlc_plot_print(ctx, &p, 1, &d, collect, &drawn), MLC_OK);
        CHECK(widest(drawn.s) <= 20);
        CHECK_EQ(strchr(drawn.s, '#') != NULL, p.count == 2);
    }
    p.count = 2;
    p.x_log = p.y_log = true;
    drawn.n = 0;
    CHECK_EQ(mlc_plot_print(ctx, &p, 1, &d, collect, &drawn), MLC_OK);
    CHECK(strchr(drawn.s, '*') == NULL);
}

/* At 20 columns the widest numbers of an axis leave a few cells; wild values, 10,000 of them; texts
 * that are cut between characters, and hold what would move a cursor. */
TEST(terminal, narrow_charts_of_anything)
{
    enum { MANY = 10000 };
    static double x[MANY], y[MANY];
    static const double scales[6] = {1, 1e-300, 1e290, 123456, -1e-7, 0};
    mlc_ctx *ctx = test_ctx();
    for (int k = 0; k < 6; k++)
        for (int mark = 0; mark <= (int)MLC_PLOT_BARS; mark++)
            for (int w = 20; w < 32; w += 3) {
                const mlc_terminal_desc d = desc_of(w, w % 2, 0);
                mlc_plot_series         s = {"\xE2\x82\xAC\xC2\x9B""31m\033[2J a name that is cut",
                                             x, y, MANY, (mlc_plot_mark)mark};
                mlc_plot                p;
                memset(&p, 0, sizeof p);
                p.title = "\xC3\xA9\xE2\x82\xAC\xC3\xA9\xE2\x82\xAC and a title that is cut";
                p.y_label = p.x_label = "\b\r\x7F and a long text that is cut, too";
                p.series = &s;
                p.count = 1;
                for (int i = 0; i < MANY; i++) {
                    x[i] = i % 97 == 5 ? (double)NAN : (1 + 1e-6 * i) * scales[(k + 1) % 6];
                    y[i] = i % 89 == 3 ? (double)INFINITY : (1 + 3e-6 * (i * 7 % MANY)) * scales[k];
                }
                drawn.n = 0;
                if (mark == (int)MLC_PLOT_BARS) s.n = 50;
                CHECK_EQ(mlc_plot_print(ctx, &p, 1, &d, collect, &drawn), MLC_OK);
                if (!CHECK(widest(drawn.s) <= w)) fprintf(stderr, "%d %d\n%s\n", k, mark, drawn.s);
                for (size_t i = 0; i < drawn.n; i++) {
                    const unsigned char c = (unsigned char)drawn.s[i];
                    CHECK(c >= 32 ? c != 127 : c == '\n');
                    CHECK(c != 0xC2 || (unsigned char)drawn.s[i + 1] >= 0xA0);
                }
            }
}

TEST(terminal, bins_are_those_of_numpy)
{
    static const double v[8] = {0, 1, 2, 3, 4, (double)NAN, (double)INFINITY, 1.9};
    double   x[4], y[4];
    mlc_ctx *ctx = test_ctx();
    CHECK_EQ(mlc_plot_bins(ctx, v, 8, 4, x, y), MLC_OK);
    CHECK(x[0] == 0.5 && x[3] == 3.5);
    CHECK(y[0] == 1 && y[1] == 2 && y[2] == 1 && y[3] == 2);       /* the last one has its end */
    CHECK_EQ(mlc_plot_bins(ctx, v, 1, 2, x, y), MLC_OK);
    CHECK(x[0] == -0.25 && y[0] == 0 && y[1] == 1);
    CHECK_EQ(mlc_plot_bins(ctx, NULL, 0, 2, x, y), MLC_OK);
    CHECK(y[0] == 0 && y[1] == 0);
    static const double large[6] = {1e20, 1e20, -1e300, 1e300, 0, 4.9e-324};
    for (int i = 0; i < 3; i++) {                  /* a value that a half does not change; ends */
        CHECK_EQ(mlc_plot_bins(ctx, large + 2 * i, 2, 4, x, y), MLC_OK);
        CHECK(y[0] + y[1] + y[2] + y[3] == 2);
        CHECK(i ? y[0] == 1 && y[3] == 1 : y[2] == 2);
        CHECK(i == 2 ? x[0] <= x[3] : x[0] < x[1] && x[2] < x[3]);
    }
    CHECK_EQ(mlc_plot_bins(ctx, v, 8, 0, x, y), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "plot_bins: 8 values");
    CHECK_EQ(mlc_plot_bins(NULL, v, 8, 4, x, y), MLC_ERR_ARG);
}

TEST(terminal, errors)
{
    mlc_ctx          *ctx = test_ctx();
    mlc_terminal_desc d = desc_of(80, true, 0);
    mlc_plot          p;
    memset(&p, 0, sizeof p);
    drawn.n = 0;
    d.width = 19;
    CHECK_EQ(mlc_plot_print(ctx, &p, 1, &d, collect, &drawn), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "plot_print: 19 columns, 12 rows; give 20 to 1000");
    d = desc_of(80, true, 8);
    CHECK_EQ(mlc_plot_print(ctx, &p, 1, &d, collect, &drawn), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "8 colours; there are 0, 16, 256");
    d.colours = 0;
    CHECK_EQ(mlc_plot_print(ctx, NULL, 1, &d, collect, &drawn), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "plot: no charts");
    CHECK_EQ(mlc_plot_print(NULL, &p, 1, &d, collect, &drawn), MLC_ERR_ARG);
    CHECK_EQ(mlc_confusion_print(NULL, NULL, &d, collect, &drawn), MLC_ERR_ARG);
    CHECK_EQ(mlc_image_print(NULL, &d, collect, &drawn), MLC_ERR_ARG);
    CHECK_EQ(mlc_image_print(mlc_zeros(ctx, MLC_I64, mlc_dims2(2, 2)), &d, collect, &drawn),
             MLC_ERR_DTYPE);
    CHECK_ERROR(ctx, MLC_ERR_DTYPE, "image_print: i64");
    d.width = 20;
    CHECK_EQ(matrix_of(ctx, &d, 30, NULL), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "30 classes do not fit into 20 columns");
    CHECK(mlc_on_curves(NULL, NULL, NULL, NULL, NULL) == NULL);
    d.height = 1;
    CHECK(mlc_on_curves(ctx, NULL, &d, collect, &drawn) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "on_curves: 20 columns, 1 rows");
    CHECK_EQ(drawn.n, 0);
}

/* What the environment says; the tests' own output is no terminal, or one: of a writer never. */
TEST(terminal, the_environment_says_what_there_is)
{
    static const char *const names[5] = {"LC_ALL", "LC_CTYPE", "LANG", "COLUMNS", "NO_COLOR"};
    char *old[5];
    for (int i = 0; i < 5; i++) {
        const char *v = getenv(names[i]);
        old[i] = v ? strdup(v) : NULL;
        unsetenv(names[i]);
    }
    mlc_terminal_desc d = mlc_terminal_desc_make(collect);
    CHECK(d.width == 80 && d.height == 14 && d.colours == 0 && !d.utf8 && !d.live);
    setenv("LANG", "C.UTF-8", 1);
    setenv("COLUMNS", "123", 1);
    d = mlc_terminal_desc_make(collect);
    CHECK(d.width == 123 && d.utf8);
    setenv("LC_ALL", "C", 1);
    setenv("COLUMNS", "5", 1);
    d = mlc_terminal_desc_make(collect);
    CHECK(d.width == 20 && !d.utf8);
    setenv("COLUMNS", "junk", 1);
    CHECK_EQ(mlc_terminal_desc_make(collect).width, 80);
    setenv("COLUMNS", "-7", 1);
    CHECK_EQ(mlc_terminal_desc_make(collect).width, 80);
    setenv("COLUMNS", "99999999999999999999", 1);
    CHECK_EQ(mlc_terminal_desc_make(collect).width, 1000);
    setenv("NO_COLOR", "1", 1);
    setenv("COLUMNS", "100000", 1);
    d = mlc_terminal_desc_make(NULL);
    CHECK(d.width == 1000 && d.colours == 0);
    for (int i = 0; i < 5; i++) {
        if (old[i]) setenv(names[i], old[i], 1);
        else unsetenv(names[i]);
        free(old[i]);
    }
}

/* ---- live curves ----------------------------------------------------------------------------- */

enum { ROWS = 60, COLUMNS = 80 };

/* What a terminal shows of bytes: control sequences K, J, A and B. */
typedef struct screen { char cell[ROWS][COLUMNS + 1]; int x, y; bool wrong; } screen;

static void show(screen *s, const char *t)
{
    memset(s, 0, sizeof *s);
    memset(s->cell, ' ', sizeof s->cell);
    for (; *t && !s->wrong; t++) {
        int n = 0;
        if (*t == '\r') s->x = 0;
        else if (*t == '\n') { s->x = 0; s->y++; }
        else if (*t == '\033') {
            for (t += 2; *t >= '0' && *t <= '9'; t++) n = 10 * n + *t - '0';
            if (*t == 'K' || *t == 'J') memset(s->cell[s->y] + s->x, ' ', (size_t)(COLUMNS - s->x));
            for (int y = s->y + 1; *t == 'J' && y < ROWS; y++) memset(s->cell[y], ' ', COLUMNS);
            if (*t == 'A') s->y -= n;
            if (*t == 'B') s->y += n;
            if (!strchr("KJABm", *t)) s->wrong = true;
        } else if (((unsigned char)*t & 0xC0) != 0x80) {
            if (s->x < COLUMNS) s->cell[s->y][s->x] = *t & 0x80 ? '*' : *t;
            s->wrong = s->wrong || s->x >= COLUMNS;
            s->x++;
        }
        s->wrong = s->wrong || s->y < 0 || s->y >= ROWS - 1;
    }
    for (int y = 0; y < ROWS; y++) s->cell[y][COLUMNS] = 0;
}

/* Trains three epochs of four batches with live curves, or not. */
static void train(mlc_ctx *ctx, const char *name, const mlc_terminal_desc *d, mlc_status want)
{
    mlc_module *net = MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 3, 4));
    mlc_optim  *opt = mlc_sgd(net, 0.01);
    double      labels[16];
    for (int i = 0; i < 16; i++) labels[i] = i % 4;
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(16, 3), 1, -1, 1);
    mlc_tensor *y = test_tensor(ctx, MLC_I64, mlc_dims1(16), labels);
    mlc_loader *loader = mlc_loader_shuffled(ctx, x, y, 4);
    mlc_loader_desc of = mlc_loader_desc_make(x, y, 8);
    mlc_loader *held = mlc_loader_create(ctx, &of);
    mlc_callback *list[1] = {mlc_on_curves(ctx, name, d, collect, &drawn)};
    mlc_fit_desc  f = mlc_fit_desc_make(mlc_cross_entropy);
    f.epochs = 3;
    f.validation = held;
    f.callbacks = list;
    f.n_callbacks = 1;
    drawn.n = 0;
    drawn.s[0] = 0;
    CHECK_EQ(mlc_fit(net, opt, loader, &f, NULL), want);
    mlc_callback_free(ctx, list[0]);
}

/* Lines of epochs stay, above one chart; in between there is never more than a screen. */
TEST(terminal, live_curves_are_drawn_over)
{
    static screen     s;
    mlc_terminal_desc d = desc_of(COLUMNS, true, 16);
    const bool        own = test_clock_begin(0.2);
    d.live = true;
    train(test_ctx(), NULL, &d, MLC_OK);
    test_clock_end();
    show(&s, drawn.s);
    CHECK(!s.wrong);
    for (int i = 0; i < 3; i++) {
        char begin[32];
        snprintf(begin, sizeof begin, "epoch %d/3 100%% **********", i + 1);
        CHECK(strncmp(s.cell[i], begin, strlen(begin)) == 0);
    }
    CHECK(strspn(s.cell[3], " ") == COLUMNS);
    CHECK_HAS(s.cell[4], "** loss  ** val_loss");
    CHECK_HAS(s.cell[5 + d.height + 2], "epoch");
    CHECK(s.y == 5 + d.height + 3 && s.x == 0);
    int ups = 0;
    for (const char *c = drawn.s; (c = strstr(c, "A\r\033[K")) != NULL; c++) ups++;
    CHECK(!own || ups >= 9);
}

/* In a file there are lines, and one chart at the end; nothing that moves a cursor. */
TEST(terminal, curves_off_a_terminal_are_drawn_once)
{
    mlc_terminal_desc d = desc_of(COLUMNS, false, 0);
    train(test_ctx(), "loss", &d, MLC_OK);
    int lines = 0;
    for (size_t i = 0; i < drawn.n; i++) {
        lines += drawn.s[i] == '\n';
        if (drawn.s[i] != '\n') CHECK((unsigned char)drawn.s[i] >= 32);
    }
    CHECK_EQ(lines, 3 + 1 + d.height + 3);
    CHECK_HAS(drawn.s, "** loss  ++ val_loss");
    train(test_ctx(), "none", &d, MLC_ERR_ARG);
    CHECK_EQ(drawn.n, 0);
}
