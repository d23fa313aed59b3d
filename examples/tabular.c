/* tabular.c -- a table of numbers in a CSV file becomes a trained network in a file
 *
 *   build   make demo-table, or: cc -O2 examples/tabular.c mlcore.o -o tabular -lm -pthread
 *   run     ./tabular         or: ./tabular --help
 *   data    examples/data/breast_cancer.csv: 30 measures, 1 if benign, 1 if held out (see its head)
 *   writes  tabular.csv (a row an epoch), tabular.svg (its curves), tabular.safetensors
 *
 * The first layer standardises the columns by what the training rows have. It is saved with the
 * network, which therefore takes measures as they are.                                         */
#include "options.h"

enum { COLUMNS = 30, CLASSES = 2, HIDDEN = 32, BATCH = 32 };

static const char HELP[] =
    "usage: tabular [TABLE.CSV] [options]\n"
    "  --seed N       of the first weights and of the order (1)\n"
    "  --epochs N     passes over the training rows         (40)\n"
    "  --help         this text\n";

/* Of the rows that are held out, or of the others: the measures and the class. */
static void rows_of(mlc_tensor *table, bool held_out, mlc_tensor **x, mlc_tensor **y)
{
    mlc_tensor *which = mlc_eq_scalar(mlc_select(table, 1, COLUMNS + 1), held_out);
    mlc_tensor *rows  = mlc_gather_rows(table, mlc_select(mlc_nonzero(which), 1, 0));
    *x = mlc_slice(rows, 1, 0, COLUMNS, 1);
    *y = mlc_cast(mlc_select(rows, 1, COLUMNS), MLC_I64);
}

static mlc_status train(mlc_ctx *ctx, const char *path, int seed, int epochs)
{
    mlc_tensor  *x, *y, *held_x, *held_y;
    mlc_csv_desc csv = mlc_csv_desc_make();
    csv.header = true;
    mlc_tensor  *table = mlc_csv_load(ctx, path, &csv);
    rows_of(table, false, &x, &y);
    rows_of(table, true, &held_x, &held_y);
    mlc_loader_desc batches = mlc_loader_desc_make(x, y, BATCH);
    batches.shuffle = true;
    batches.seed    = (uint64_t)seed;

    mlc_module *scale = mlc_nn_standardize(ctx, COLUMNS);
    mlc_module *net   = MLC_SEQUENTIAL(ctx, scale, mlc_nn_linear(ctx, COLUMNS, HIDDEN),
                                       mlc_nn_relu(ctx), mlc_nn_linear(ctx, HIDDEN, CLASSES));
    mlc_nn_scale_fit(scale, x);

    mlc_fit_metric accuracy = { "accuracy", mlc_metric_accuracy(ctx), true };
    mlc_callback  *log[2]   = { mlc_on_progress(ctx, NULL, NULL), mlc_on_csv(ctx, "tabular.csv") };
    mlc_tracker   *history  = NULL;
    mlc_fit_desc   d = mlc_fit_desc_make(mlc_cross_entropy);
    d.epochs      = epochs;
    d.validation  = mlc_loader_ordered(ctx, held_x, held_y, 128);
    d.metrics     = &accuracy;
    d.n_metrics   = 1;
    d.callbacks   = log;
    d.n_callbacks = 2;
    mlc_fit(net, mlc_adam(net, 1e-3), mlc_loader_create(ctx, &batches), &d, &history);
    mlc_tracker_plot(history, "tabular.svg");
    mlc_save(net, "tabular.safetensors");
    if (mlc_ctx_status(ctx) == MLC_OK)
        printf("wrote tabular.csv, tabular.svg, tabular.safetensors\nheld-out accuracy %.2f %%\n",
               100 * mlc_tracker_last(history, "val_accuracy"));
    for (int i = 0; i < 2; i++) mlc_callback_free(ctx, log[i]);
    return mlc_ctx_status(ctx);
}

int main(int argc, char **argv)
{
    const char  *path = "examples/data/breast_cancer.csv";
    int          seed = 1, epochs = 40, status = 0;
    const option list[] = { OPTION_FILE(&path), OPTION_NUMBER("--seed", &seed, 0, 1000000),
                            OPTION_NUMBER("--epochs", &epochs, 1, 100000), OPTION_END };
    if (!options_read("tabular", HELP, list, argc, argv, &status)) return status;
    mlc_ctx_desc d = mlc_ctx_desc_make();
    d.seed = (uint64_t)seed;
    mlc_ctx *ctx = mlc_ctx_create(&d);
    const bool ok = train(ctx, path, seed, epochs) == MLC_OK;
    if (!ok) fprintf(stderr, "tabular: %s\n", ctx ? mlc_error(ctx) : "no memory");
    mlc_ctx_free(ctx);
    return ok ? 0 : 1;
}
