/* main.cpp -- reads the digits, holds a fifth of them out, trains, and says how many it knows
 *
 *     digits [examples/data/digits.csv]
 */
#include "model.hpp"

#include <cstdio>

static double run(const char *path)
{
    const double        shares[2] = {0.8, 0.2};
    mlc::context        ctx;
    mlc::tensor         data = mlc_csv_load(ctx, path, nullptr);             /* [1797,66]        */
    mlc::tensor         x = mlc_slice(data, 1, 0, 64, 1);
    mlc::tensor         y = mlc_cast(mlc_select(data, 1, 64), MLC_I64);
    mlc_split_rows_desc s = mlc_split_rows_desc_make(shares, 2);
    mlc_tensor         *rows[2];
    s.labels = y;
    mlc::check(ctx);
    mlc_split_rows(ctx, mlc_dim(x, 0), &s, rows);
    mlc::tensor train = mlc_gather_rows(x, rows[0]), held_out = mlc_gather_rows(x, rows[1]);
    mlc::loader loader(mlc_loader_shuffled(ctx, train, mlc_gather_rows(y, rows[0]), 32));
    model       m(ctx, train);
    for (auto &p : mlc::params(m.net()))
        if (p.trainable)
            std::printf("%-10s %lld numbers\n", p.name, (long long)mlc_numel(p.tensor));
    for (int epoch = 1; epoch <= 20; epoch++) {
        double loss = 0;
        for (mlc_batch b; mlc_loader_next(loader, &b);) loss += m.train(b);
        if (epoch % 5 == 0)
            std::printf("epoch %2d  loss %.4f\n", epoch, loss / (double)mlc_loader_batches(loader));
    }
    mlc::check(ctx);
    return m.accuracy(held_out, mlc_gather_rows(y, rows[1]));
}

int main(int argc, char **argv)
{
    try {
        std::printf("held-out accuracy %.2f %%\n", 100 * run(argc > 1 ? argv[1]
                                                            : "examples/data/digits.csv"));
    } catch (const std::exception &e) {
        std::fprintf(stderr, "digits: %s\n", e.what());
        return 1;
    }
    return 0;
}
