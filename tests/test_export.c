/* test_export.c -- tests of the sections IMPL.EXPORT.*: plans as files of C
 *
 * A file with its self-test is compiled by the system's cc, as C99 and as C++, and run: its main
 * compares the outputs with those of the plan. Without a compiler these tests are skipped.
 */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "files.h"
#include "plans.h"

#if !defined(MLC_NO_EXPORT) && !defined(_WIN32)

/* ---- compiling ------------------------------------------------------------------------------- */

static int runs(const char *format, const char *a, const char *b)
{
    char command[1400];
    snprintf(command, sizeof command, format, a, b);
    return system(command);
}

static bool has_compiler(void)
{
    static int has = -1;
    if (has < 0) has = runs("cc --version%s%s >/dev/null 2>&1", "", "") == 0;
    if (!has) printf("  skipped: there is no cc\n");
    return has != 0;
}

#define STRICT "-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror"

/* Compiles a file strictly and runs its self-test. */
static bool compiles_and_runs(const char *path, const char *name)
{
    bool fine = CHECK_EQ(runs("cc -std=c99 " STRICT " -O1 -o '%s.out' '%s' -lm", path, path), 0);
    fine = fine && CHECK_EQ(runs("'%s.out'%s", path, ""), 0);
    if (runs("c++ --version%s%s >/dev/null 2>&1", "", "") == 0)
        fine = CHECK_EQ(runs("c++ -std=c++11 " STRICT " -fsyntax-only -x c++ '%s'%s", path, ""),
                        0) && fine;
    if (!fine) printf("  %s: %s\n", name, path);
    return fine;
}

static mlc_plan_c_desc tested(void)
{
    mlc_plan_c_desc d = mlc_plan_c_desc_make();
    d.self_test = true;
    return d;
}

/* Writes a plan's file and runs it. */
static void check_plan(mlc_ctx *ctx, mlc_plan *p, const mlc_plan_c_desc *d, const char *path,
                       const char *name)
{
    if (!CHECK_EQ(mlc_plan_write_c(p, path, d), MLC_OK)) {
        printf("  %s: %s\n", name, mlc_error(ctx));
        mlc_error_clear(ctx);
    } else if (has_compiler()) {
        compiles_and_runs(path, name);
    }
}

static void check_net(mlc_ctx *ctx, mlc_module *net, mlc_tensor *x, const char *path,
                      const char *name)
{
    const mlc_plan_c_desc d = tested();
    mlc_plan             *p = mlc_plan_capture(net, &x, 1, NULL);
    if (!CHECK(p != NULL)) {
        printf("  %s: %s\n", name, mlc_error(ctx));
        return;
    }
    check_plan(ctx, p, &d, path, name);
    mlc_plan_free(p);
    mlc_module_free(net);
}

TEST(export, networks)
{
    ONLY_ON_HOST();
    for (int i = 0; i < COUNT(NETWORKS); i++) {
        const box   b = box_open_fast("net.c");
        mlc_ctx    *ctx = test_ctx();
        mlc_module *net = NETWORKS[i].make(ctx);
        check_net(ctx, net, sample(ctx, &NETWORKS[i], MLC_F32, 2, 3), b.path, NETWORKS[i].name);
        box_close(&b);
    }
}
#endif
