/* export_digits.c -- a convolutional network for digits as a C file that needs no library
 *
 *   build   make demo-export, or: cc -O2 examples/export_digits.c mlcore.o -lm -pthread
 *   run     ./export_digits     or: ./export_digits --help
 *   data    examples/data/digits.csv: 64 pixels 0..16, the label, 1 if held out (see its head)
 *   writes  digits_f32.c, digits_int8.c, and beside each a program that includes it
 *
 * The network is trained, its norms are folded, and a copy becomes integers by the ranges of a few
 * batches. A plan of each, for one image, is written as C (mlc_plan_write_c), compiled by the
 * system's compiler, and run on all images that are held out; its outputs are compared with those
 * of the network in this program. */
#include "digits.h"
#include "options.h"

#include <stdlib.h>

enum { BATCH = 64, CALIBRATE = 8, CLASSES = 10 };

typedef struct options { const char *csv, *out, *cc; int epochs, threads; } options;

static const char HELP[] =
    "usage: export_digits [DIGITS.CSV] [options]\n"
    "  --out DIR      where files go                  (.)\n"
    "  --cc COMMAND   compiles a file                 (cc -O2)\n"
    "  --epochs N     passes of training              (12)\n"
    "  --threads N    threads; 0: all cores           (0)\n"
    "  --help         this text\n";

/* What runs a file on images: reads them from x.bin, writes outputs to y.bin. */
static const char DRIVER[] =
    "#include \"%s.c\"\n"
    "#include <stdio.h>\n"
    "int main(void)\n"
    "{\n"
    "    static net_io io;\n"
    "    FILE *x = fopen(\"%s/x.bin\", \"rb\"), *y = fopen(\"%s/y.bin\", \"wb\");\n"
    "    if (!x || !y) return 1;\n"
    "    net_reset(&io);\n"
    "    while (fread(io.x0, sizeof io.x0, 1, x) == 1)\n"
    "        if (net_run(&io) || fwrite(io.y0, sizeof io.y0, 1, y) != 1) return 2;\n"
    "    fprintf(stderr, \"%%d\\n\", NET_MEMORY);\n"
    "    return fclose(y) != 0;\n"
    "}\n";

/* False: the program ends with *status. */
static bool parse(options *o, int argc, char **argv, int *status)
{
    const option list[] = { OPTION_FILE(&o->csv), OPTION_TEXT("--out", &o->out),
                            OPTION_TEXT("--cc", &o->cc),
                            OPTION_NUMBER("--epochs", &o->epochs, 1, 10000),
                            OPTION_NUMBER("--threads", &o->threads, 0, 1024), OPTION_END };
    return options_read("export_digits", HELP, list, argc, argv, status);
}

/* Writes DIR/NAME.c of a plan for one image, and DIR/NAME_run.c. */
static bool write_files(const options *o, mlc_module *net, mlc_tensor *image, const char *name)
{
    char      path[512];
    mlc_plan *p = mlc_plan_capture(net, &image, 1, NULL);
    snprintf(path, sizeof path, "%s/%s.c", o->out, name);
    bool ok = p && mlc_plan_write_c(p, path, NULL) == MLC_OK;
    mlc_plan_free(p);
    snprintf(path, sizeof path, "%s/%s_run.c", o->out, name);
    FILE *f = ok ? fopen(path, "w") : NULL;
    ok = f && fprintf(f, DRIVER, name, o->out, o->out) > 0;
    return f && fclose(f) == 0 && ok;
}

/* Bytes to or from a file in DIR; a file that is read has no more. */
static bool bytes_of(const options *o, const char *name, const char *mode, void *bytes, size_t n)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", o->out, name);
    FILE  *f = fopen(path, mode);
    size_t m = 0;
    if (f) m = mode[0] == 'r' ? fread(bytes, 1, n, f) : fwrite(bytes, 1, n, f);
    return f && fclose(f) == 0 && m == n;
}

/* Compiles a file and runs it on the images. */
static bool compile_and_run(const options *o, const char *name)
{
    char command[2048];
    snprintf(command, sizeof command, "%s -o '%s/%s_run' '%s/%s_run.c' -lm", o->cc, o->out, name,
             o->out, name);
    if (system(command) != 0) return false;
    printf("%-12s", name);
    fflush(stdout);
    snprintf(command, sizeof command, "'%s/%s_run' 2>'%s/memory.txt'", o->out, name, o->out);
    return system(command) == 0;
}

/* Writes, compiles and runs the network, and prints how far it is from the network here. */
static bool check(const options *o, mlc_module *net, const split *s, const char *name)
{
    const int64_t n    = mlc_dim(s->x[1], 0);
    float        *got  = (float *)malloc((size_t)n * CLASSES * sizeof *got), most = 0;
    int           same = 0, right = 0;
    bool ok = got && write_files(o, net, mlc_rows(s->x[1], 0, 1), name) &&
              compile_and_run(o, name) &&
              bytes_of(o, "y.bin", "rb", got, (size_t)n * CLASSES * sizeof *got);
    mlc_eval_begin(net);
    mlc_tensor *want = ok ? mlc_forward(net, s->x[1]) : NULL;
    for (int64_t i = 0; i < n && want; i++) {
        const float   *a = got + i * CLASSES, *b = mlc_f32(want) + i * CLASSES;
        int            top[2] = { 0, 0 };
        for (int k = 0; k < CLASSES; k++) {
            most   = fmaxf(most, fabsf(a[k] - b[k]));
            top[0] = a[k] > a[top[0]] ? k : top[0];
            top[1] = b[k] > b[top[1]] ? k : top[1];
        }
        same  += top[0] == top[1];
        right += top[0] == mlc_i64(s->y[1])[i];
    }
    mlc_eval_end(net);
    free(got);
    if (!want) return false;
    char memory[16] = "";
    bytes_of(o, "memory.txt", "rb", memory, sizeof memory - 1);
    printf(" %6d bytes of memory, %.2f %% of %d held out right, %d answers as here, largest "
           "difference %.1e\n", atoi(memory), 100.0 * right / (double)n, (int)n, same,
           (double)most);
    return true;
}

int main(int argc, char **argv)
{
    options o = { "examples/data/digits.csv", ".", "cc -O2", 12, 0 };
    int     status = 0;
    if (!parse(&o, argc, argv, &status)) return status;
    mlc_ctx_desc d = mlc_ctx_desc_make();
    split        s;
    d.seed       = 1;
    d.threads    = o.threads;
    mlc_ctx *ctx = mlc_ctx_create(&d);
    bool     ok  = split_load(ctx, "export_digits", o.csv, BATCH * CALIBRATE, &s);
    if (ok) {
        mlc_module *net = split_net(ctx, 16);
        ok = net && split_train(net, &s, BATCH, o.epochs, 1, 2e-3) == MLC_OK &&
             mlc_nn_fold_batch_norm(net) == MLC_OK;
        mlc_module *copy = ok ? mlc_module_clone(net) : NULL;
        ok = copy && split_quantize(copy, &s, BATCH, CALIBRATE) == MLC_OK &&
             bytes_of(&o, "x.bin", "wb", mlc_f32(s.x[1]),
                      (size_t)mlc_numel(s.x[1]) * sizeof(float)) &&
             check(&o, net, &s, "digits_f32") && check(&o, copy, &s, "digits_int8");
        if (!ok)
            fprintf(stderr, "export_digits: %s\n", *mlc_error(ctx) ? mlc_error(ctx)
                                                  : "a file, the compiler or a program failed");
    }
    mlc_ctx_free(ctx);
    return !ok;
}
