/* test_plot.c -- tests of section IMPL.PLOT: charts as SVG
 *
 * The text is read as a browser reads it: tags in their order, attributes, characters. Places are
 * tenths of a pixel. */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "files.h"

typedef struct picture {
    char   text[1 << 20];
    size_t n;
} picture;

static picture drawn;

static void collect(void *user, const char *text, size_t bytes)
{
    picture *p = (picture *)user;
    CHECK(bytes > 0);
    if (CHECK(p->n + bytes < sizeof p->text)) {
        memcpy(p->text + p->n, text, bytes);
        p->n += bytes;
        p->text[p->n] = 0;
    }
}

/* Is every tag closed, in its order, and every & the beginning of one of three names? */
static bool well_formed(const char *text)
{
    char names[16][16];
    int  depth = 0;
    for (const char *at = text; *at;) {
        char name[16];
        if (*at == '&') {
            if (strncmp(at, "&amp;", 5) && strncmp(at, "&lt;", 4) && strncmp(at, "&gt;", 4))
                return false;
        } else if ((unsigned char)*at < 32 && *at != '\n') {
            return false;
        }
        if (*at++ != '<')
            continue;
        const char *end = strchr(at, '>');
        if (end == NULL || sscanf(at, "%15[/a-z]", name) != 1)
            return false;
        if (name[0] == '/') {
            if (depth == 0 || strcmp(names[--depth], name + 1) != 0)
                return false;
        } else if (end[-1] != '/') {
            if (depth == 16)
                return false;
            strcpy(names[depth++], name);
        }
        at = end + 1;
    }
    return depth == 0;
}

static const char *plotted(mlc_ctx *ctx, const mlc_plot *plots, int64_t count, int64_t columns)
{
    drawn.n = 0;
    drawn.text[0] = 0;
    CHECK_EQ(mlc_plot_write(ctx, plots, count, columns, collect, &drawn), MLC_OK);
    CHECK(well_formed(drawn.text));
    CHECK(strncmp(drawn.text, "<svg xmlns=\"http://www.w3.org/2000/svg\" ", 40) == 0);
    return drawn.text;
}

static int times(const char *text, const char *part)
{
    int n = 0;
    for (; (text = strstr(text, part)) != NULL; text++)
        n++;
    return n;
}

static mlc_plot chart_of(const mlc_plot_series *series, int64_t count)
{
    mlc_plot p;
    memset(&p, 0, sizeof p);
    p.series = series;
    p.count = count;
    return p;
}

/* The numbers along an axis ("middle": x, "end": y), with a space behind each. */
static const char *ticks_of(const char *text, const char *anchor)
{
    static char to[512];
    char        key[32];
    to[0] = 0;
    snprintf(key, sizeof key, "\"110\" text-anchor=\"%s\">", anchor);
    for (; (text = strstr(text, key)) != NULL; text++) {
        char number[32];
        if (CHECK(sscanf(text + strlen(key), "%31[^<]", number) == 1))
            strcat(strcat(to, number), " ");
    }
    return to;
}

TEST(plot, points_are_where_their_numbers_say)
{
    static const double x[] = {0, 5, 10}, y[] = {-1, 1, 3};
    const mlc_plot_series s = {NULL, x, y, 3, MLC_PLOT_MARKED};
    const mlc_plot        p = chart_of(&s, 1);
    const char           *text = plotted(test_ctx(), &p, 1, 1);
    CHECK_HAS(text, "width=\"360\" height=\"280\" viewBox=\"0 0 3600 2800\"");
    CHECK_STR(ticks_of(text, "middle"), "0 2 4 6 8 10 ");
    CHECK_STR(ticks_of(text, "end"), "-1 0 1 2 3 ");
    /* From 680 to 3370 and, without a title, from 2320 up to 170. */
    CHECK_HAS(text, "d=\"M680 2320L2025 1245L3370 170\"");
    CHECK_HAS(text, "<circle cx=\"2025\" cy=\"1245\" ");
    CHECK_EQ(times(text, "<circle"), 3);
}

TEST(plot, logarithmic_axes_put_a_decade_where_the_next_is_as_far)
{
    static const double x[] = {1, 10, 100}, y[] = {1e-3, 1, 1e3};
    const mlc_plot_series s = {NULL, x, y, 3, MLC_PLOT_LINE};
    mlc_plot              p = chart_of(&s, 1);
    p.x_log = p.y_log = true;
    const char *text = plotted(test_ctx(), &p, 1, 1);
    CHECK_STR(ticks_of(text, "middle"), "1 2 5 10 20 50 100 ");
    CHECK_STR(ticks_of(text, "end"), "0.001 0.01 0.1 1 10 100 1000 ");
    CHECK_HAS(text, "d=\"M680 2320L2025 1245L3370 170\"");
    CHECK_EQ(times(text, "<circle"), 0);
}

/* What is shown is inside; ticks are few, in order, and begin at or below it. */
static void axis_holds(mlc_ctx *ctx, double low, double high, bool log)
{
    const double          x[2] = {low, high}, y[2] = {0, 1};
    const mlc_plot_series s = {NULL, x, y, 2, MLC_PLOT_LINE};
    mlc_plot              p = chart_of(&s, 1);
    double                first = 0, last = 0;
    int                   n = 0, used, a = 0, b = 0, c = 0, d = 0;
    p.x_log = log;
    const char *text = plotted(ctx, &p, 1, 1);
    for (const char *at = ticks_of(text, "middle"); *at; at += used, n++) {
        double v;
        if (!CHECK(sscanf(at, "%lf %n", &v, &used) == 1))
            return;
        CHECK(n == 0 || v > last);
        if (n == 0)
            first = v;
        last = v;
    }
    /* Numbers that would touch are left out, at the end, too: that the axis reaches `high` is what
     * the line's end shows. */
    const double slack = log ? 1e-6 * low : 1e-8 * (high / 2 - low / 2);
    bool good = n >= 2 && n <= 12 && first <= low + slack;
    const char *line = strstr(text, "class=\"l\" stroke=");
    line = line ? strstr(line, " d=\"") : NULL;
    good = good && line != NULL;
    if (good && sscanf(line, " d=\"M%d %dL%d %d", &a, &b, &c, &d) == 4)
        good = a >= 679 && a <= c && c <= 3371 && b == 2320 && d == 170;
    if (!CHECK(good))
        printf("  %.17g to %.17g: ticks %s, drawn from %d to %d\n", low, high,
               ticks_of(text, "middle"), a, c);
}

TEST(plot, axes_hold_any_range)
{
    const char *locale = getenv("MLC_TEST_LOCALE");
    if (!CHECK(true) || (locale && *locale))       /* sscanf reads decimal commas there */
        return;
    static const double at[][2] = {{0, 1}, {0, 0}, {5, 5}, {-5, -5}, {0.1, 0.3}, {-1e300, 1e300},
                                   {1e-300, 2e-300}, {1e6, 1e6 + 1}, {1, 1 + 1e-13}, {-3, -1},
                                   {99999, 100001}, {0, 7.5}, {1e-5, 9e-5}, {-1e-320, 1e-320}};
    mlc_ctx *ctx = test_ctx();
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        axis_holds(ctx, at[i][0], at[i][1], false);
        if (at[i][0] > 0)
            axis_holds(ctx, at[i][0], at[i][1], true);
    }
    axis_holds(ctx, 1e-300, 1e300, true);
    for (int64_t i = 0; i < 300; i++) {
        const double low = exp2(test_random(1, i, -60, 60)) * (i % 2 ? 1 : -1);
        const double high = low + exp2(test_random(2, i, -60, 60));
        axis_holds(ctx, low, high, false);
        if (low > 0)
            axis_holds(ctx, low, high, true);
    }
}

TEST(plot, what_is_no_number_is_a_gap)
{
    static const double x[] = {1, 2, 3, 4, 5, 6, 7, 8};
    const double        y[] = {1, 2, NO_NUMBER, 4, INF, -1, 7, 8};
    mlc_plot_series     s = {NULL, x, y, 8, MLC_PLOT_MARKED};
    mlc_plot            p = chart_of(&s, 1);
    const char         *text = plotted(test_ctx(), &p, 1, 1);
    const char         *line = strstr(strstr(text, "class=\"l\" stroke="), " d=");
    CHECK_EQ(times(text, "<circle"), 6);
    CHECK_EQ(strcspn(line, "M") < strcspn(line, "L"), 1);
    CHECK(strstr(text, "nan") == NULL && strstr(text, "inf") == NULL);
    p.y_log = true;
    CHECK_EQ(times(plotted(test_ctx(), &p, 1, 1), "<circle"), 5);
    s.mark = MLC_PLOT_LINE, s.n = 1;   /* a point alone is a dot, also between gaps */
    CHECK_EQ(times(plotted(test_ctx(), &p, 1, 1), "h0\""), 1);
    s.n = 8, p.y_log = false;
    CHECK_EQ(times(plotted(test_ctx(), &p, 1, 1), "h0M"), 1);
    p.y_log = true;
    s.n = 0, s.x = s.y = NULL;         /* nothing at all: empty axes */
    CHECK_STR(ticks_of(plotted(test_ctx(), &p, 1, 1), "middle"), "0 0.2 0.4 0.6 0.8 1 ");
    CHECK_STR(ticks_of(drawn.text, "end"), "0.1 0.2 0.5 1 ");
}

TEST(plot, points_on_one_another_are_drawn_once)
{
    static double   x[100000], y[100000];
    mlc_plot_series s = {NULL, x, y, 100000, MLC_PLOT_LINE};
    const mlc_plot  p = chart_of(&s, 1);
    for (int i = 0; i < 100000; i++)
        x[i] = i, y[i] = i < 50000 ? 1 : 2;
    CHECK(times(plotted(test_ctx(), &p, 1, 1), "L") < 2800);
    s.mark = MLC_PLOT_POINTS;
    CHECK(times(plotted(test_ctx(), &p, 1, 1), "<circle") < 2800);
}

TEST(plot, texts_are_as_they_were_given)
{
    static const double x[] = {1, 2};
    mlc_plot_series s[] = {{"a < b & c > d", x, x, 2, MLC_PLOT_LINE},
                           {"\xC3\xBC" "bung", x, x, 2, MLC_PLOT_POINTS},
                           {NULL, x, x, 2, MLC_PLOT_LINE},
                           {"dense", x, x, 2, MLC_PLOT_DASHED},
                           {"after", x, x, 2, MLC_PLOT_LINE}};
    mlc_plot p[3] = {chart_of(s, 5), chart_of(s, 2), chart_of(NULL, 0)};
    p[0].title = "line\nbreak\x01\xEF\xBF\xBF!";
    p[0].x_label = "steps";
    p[0].y_label = "<loss>";
    const char *text = plotted(test_ctx(), p, 3, 2);
    CHECK_HAS(text, "width=\"720\" height=\"560\"");
    CHECK_HAS(text, ">a &lt; b &amp; c &gt; d</text>");
    CHECK_HAS(text, ">\xC3\xBC" "bung</text>");
    CHECK_HAS(text, ">line break  !</text>");
    CHECK_HAS(text, "rotate(-90 120 ");
    CHECK_HAS(text, ">&lt;loss&gt;</text>");
    CHECK_EQ(times(text, "stroke-dasharray"), 2);  /* its line and the legend's */
    CHECK_EQ(times(text, "#cc79a7"), 2);           /* the fourth of eight: grey counts for none */
    CHECK(times(text, "<circle") > 0);
}

/* A legend that is long takes rows; the chart below it stays inside. */
TEST(plot, many_long_labels_leave_room_for_the_chart)
{
    static char         names[40][300];
    static const double x[] = {1, 2};
    mlc_plot_series     s[40];
    for (int i = 0; i < 40; i++) {
        memset(names[i], 'a' + i % 26, sizeof names[i] - 1);
        s[i] = (mlc_plot_series){names[i], x, x, 2, MLC_PLOT_LINE};
    }
    const mlc_plot p = chart_of(s, 40);
    int            top, bottom, left, right;
    const char    *axes = strstr(plotted(test_ctx(), &p, 1, 1), "class=\"a\" d=\"M");
    if (CHECK(axes != NULL &&
              sscanf(axes, "class=\"a\" d=\"M%d %dV%dH%d\"", &left, &top, &bottom, &right) == 4))
        CHECK(top > 170 && top + 500 < bottom && left == 680 && right == 3370);
    for (const char *at = drawn.text; (at = strstr(at, "<text ")) != NULL; at++) {
        int across, down;
        CHECK(sscanf(at, "<text x=\"%d\" y=\"%d\"", &across, &down) == 2 && down > 0 &&
              down < 2800);
    }
}

TEST(plot, refuses_what_it_cannot_draw)
{
    static const double x[] = {1, 2};
    mlc_ctx        *ctx = test_ctx();
    mlc_plot_series s = {NULL, x, x, 2, MLC_PLOT_LINE};
    mlc_plot        p = chart_of(&s, 1);
    drawn.n = 0;
    CHECK_EQ(mlc_plot_write(NULL, &p, 1, 1, collect, &drawn), MLC_ERR_ARG);
    CHECK_EQ(mlc_plot_write(ctx, NULL, 1, 1, collect, &drawn), MLC_ERR_ARG);
    CHECK_EQ(mlc_plot_write(ctx, &p, 0, 1, collect, &drawn), MLC_ERR_ARG);
    CHECK_EQ(mlc_plot_write(ctx, &p, 1, 0, collect, &drawn), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "no charts");
    mlc_error_clear(ctx);
    p.count = -1;
    CHECK_EQ(mlc_plot_write(ctx, &p, 1, 1, collect, &drawn), MLC_ERR_ARG);
    p.count = 1;
    s.y = NULL;
    CHECK_EQ(mlc_plot_write(ctx, &p, 1, 1, collect, &drawn), MLC_ERR_ARG);
    s.y = x, s.n = -2;
    CHECK_EQ(mlc_plot_write(ctx, &p, 1, 1, collect, &drawn), MLC_ERR_ARG);
    s.n = 2, s.mark = (mlc_plot_mark)5;
    CHECK_EQ(mlc_plot_write(ctx, &p, 1, 1, collect, &drawn), MLC_ERR_ARG);
    s.mark = MLC_PLOT_LINE, s.label = "\xC3";
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_plot_write(ctx, &p, 1, 1, collect, &drawn), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "a label is not valid UTF-8");
    CHECK_EQ(drawn.n, 0);              /* nothing was written by any of them */
    mlc_error_clear(ctx);
}

static void file_is(const char *path, const char *want, size_t n)
{
    static char text[1 << 16];
    FILE       *f = fopen(path, "rb");
    if (!CHECK(f != NULL))
        return;
    CHECK_EQ(fread(text, 1, sizeof text, f), n);
    CHECK(memcmp(text, want, n) == 0);
    fclose(f);
}

TEST(plot, a_file_holds_what_is_written_and_an_error_leaves_it)
{
    static const double x[] = {1, 2};
    mlc_ctx        *ctx = test_ctx();
    mlc_plot_series s = {NULL, x, x, 2, MLC_PLOT_LINE};
    const mlc_plot  p = chart_of(&s, 1);
    box             b = box_open("chart.svg");
    plotted(ctx, &p, 1, 1);
    CHECK_EQ(mlc_plot_save(ctx, b.path, &p, 1, 1), MLC_OK);
    file_is(b.path, drawn.text, drawn.n);
    s.n = -1;
    CHECK_EQ(mlc_plot_save(ctx, b.path, &p, 1, 1), MLC_ERR_ARG);
    CHECK_EQ(mlc_plot_save(ctx, NULL, &p, 1, 1), MLC_ERR_ARG);
    CHECK_EQ(mlc_plot_save(ctx, "", &p, 1, 1), MLC_ERR_ARG);
    file_is(b.path, drawn.text, drawn.n);
    mlc_error_clear(ctx);
    CHECK_EQ(box_count(&b), 1);
    box_close(&b);
    s.n = 2;
    CHECK_EQ(mlc_plot_save(ctx, "/nowhere/at/all.svg", &p, 1, 1), MLC_ERR_IO);
    CHECK_HAS(mlc_error(ctx), "/nowhere/at/all.svg");
    mlc_error_clear(ctx);
}

/* ---- confusion matrices ---------------------------------------------------------------------- */

static const char *confused(mlc_metric *m, const char *const *names)
{
    drawn.n = 0;
    drawn.text[0] = 0;
    CHECK_EQ(mlc_confusion_write(m, names, collect, &drawn), MLC_OK);
    CHECK(well_formed(drawn.text));
    CHECK(strncmp(drawn.text, "<svg xmlns=\"http://www.w3.org/2000/svg\" ", 40) == 0);
    return drawn.text;
}

TEST(plot, a_confusion_matrix_has_rows_of_targets_and_shades_of_shares)
{
    static const double      p[] = {0, 1, 1, 1, 1, 1}, t[] = {0, 0, 0, 0, 1, 1};
    static const char *const names[] = {"cat & <dog>", "\xC3\xA9l\xC3\xA9phant"};
    mlc_ctx    *ctx = test_ctx();
    mlc_metric *m = mlc_metric_confusion(ctx, 2);
    CHECK_EQ(times(confused(m, NULL), "fill=\"#ffffff\""), 4);     /* nothing counted yet        */
    CHECK_EQ(mlc_metric_update(m, test_tensor(ctx, MLC_I64, mlc_dims1(6), p),
                               test_tensor(ctx, MLC_I64, mlc_dims1(6), t), NULL), MLC_OK);
    const char *text = confused(m, names);
    CHECK_EQ(times(text, "<rect "), 5);
    CHECK_EQ(times(text, "cat &amp; &lt;dog&gt;"), 2);
    CHECK_EQ(times(text, names[1]), 2);
    /* 11 characters of 130 take 858 and 400 lie left of them; squares are 2000 wide.            */
    CHECK_HAS(text, "<rect x=\"1258\" y=\"400\" width=\"2000\" height=\"2000\" fill=\"#bfdbeb\" ");
    CHECK_HAS(text, "<rect x=\"3258\" y=\"400\" width=\"2000\" height=\"2000\" fill=\"#3f95c5\" ");
    CHECK_HAS(text, "<rect x=\"1258\" y=\"2400\" width=\"2000\" height=\"2000\" fill=\"#ffffff\" ");
    CHECK_HAS(text, "<rect x=\"3258\" y=\"2400\" width=\"2000\" height=\"2000\" fill=\"#0072b2\" ");
    CHECK_EQ(times(text, ">3</text>"), 1);
    CHECK_EQ(times(text, ">0</text>"), 0);
    CHECK_EQ(times(text, "rotate"), 1);                    /* "target"; names have room          */
    CHECK_OK(ctx);
}

TEST(plot, a_confusion_matrix_of_many_classes_has_shades_alone)
{
    static const double p[] = {63, 5, 5}, t[] = {63, 5, 62};
    mlc_ctx    *ctx = test_ctx();
    mlc_metric *m = mlc_metric_confusion(ctx, 64);
    CHECK_EQ(mlc_metric_update(m, test_tensor(ctx, MLC_I64, mlc_dims1(3), p),
                               test_tensor(ctx, MLC_I64, mlc_dims1(3), t), NULL), MLC_OK);
    const char *text = confused(m, NULL);
    CHECK_EQ(times(text, "<rect "), 1 + 64 * 64);
    CHECK_EQ(times(text, "fill=\"#0072b2\""), 3);
    CHECK_EQ(times(text, ">62</text>"), 2);
    CHECK_OK(ctx);
}
