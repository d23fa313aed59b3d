/* resume.c -- stops early, keeps the best weights and a log, goes on where Ctrl-C stopped it
 *   build   make build/tasks/resume
 *           cc -O2 -I. -DMLCORE_IMPLEMENTATION examples/tasks/resume.c -lm -pthread -o resume
 *   run     ./resume          from the folder of mlcore.h, with a folder runs in it, for its files;
 *           after Ctrl-C again: the same bits as without                                      */
#include "mlcore.h"
#include <stdio.h>
#include <stdlib.h>

int main(void)
{
    mlc_ctx    *ctx = mlc_ctx_create(NULL);
    mlc_tensor *data = mlc_csv_load(ctx, "examples/data/digits.csv", NULL);
    mlc_tensor *x = mlc_mul_scalar(mlc_slice(data, 1, 0, 64, 1), 1.0 / 16);
    mlc_tensor *y = mlc_cast(mlc_select(data, 1, 64), MLC_I64);
    mlc_tensor *val_x = mlc_rows(x, 1500, 1797), *val_y = mlc_rows(y, 1500, 1797);
    mlc_loader *train = mlc_loader_shuffled(ctx, mlc_rows(x, 0, 1500), mlc_rows(y, 0, 1500), 32);
    mlc_module *net = MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 64, 128), mlc_nn_relu(ctx),
                                     mlc_nn_dropout(ctx, 0.3), mlc_nn_linear(ctx, 128, 10));
    mlc_checkpoint_desc files = mlc_checkpoint_desc_make("runs/net");
    files.resume = true;
    mlc_callback *calls[] = { mlc_on_csv(ctx, "runs/log.csv"), mlc_on_early_stop(ctx, NULL),
                              mlc_on_checkpoint(ctx, &files), mlc_on_signal(ctx, NULL) };
    mlc_fit_metric accuracy = { "accuracy", mlc_metric_accuracy(ctx), true };
    mlc_fit_desc   d = mlc_fit_desc_make(mlc_cross_entropy);
    d.epochs = 40;
    d.validation = mlc_loader_ordered(ctx, val_x, val_y, 99);
    d.metrics = &accuracy, d.n_metrics = 1;
    d.callbacks = calls, d.n_callbacks = 4;
    if (mlc_fit(net, mlc_adamw(net, 1e-3), train, &d, NULL) == MLC_INTERRUPTED) {
        puts("stopped; start it again, and it goes on");
    } else {
        double loss;
        mlc_evaluate(net, d.validation, &d, &loss);
        mlc_save(net, "runs/best.safetensors");
        MLC_CHECK(ctx);
        printf("best: val_loss %.3f, accuracy %.3f\nwrote runs/best.safetensors, runs/log.csv\n",
               loss, mlc_metric_value(accuracy.metric));
    }
    mlc_ctx_free(ctx);
}
