/* cpp.cpp -- C++: a loop by hand over handles that free what they own, a loss made of operators
 *   build   make build/tasks/cpp
 *           c++ -O2 -I. -DMLCORE_IMPLEMENTATION examples/tasks/cpp.cpp -pthread -o cpp
 *   run     ./cpp             from the folder of mlcore.h; an error is a std::runtime_error   */
#include "mlcore.h"
#include <cstdio>

int main()
{
    mlc::context   ctx;
    mlc::tensor    data = mlc::csv_load(ctx, "examples/data/digits.csv", nullptr);
    mlc::tensor    x = mlc::slice(data, 1, 0, 64, 1) / 16;
    mlc::tensor    y = mlc::cast(mlc::select(data, 1, 64), MLC_I64);
    mlc::tensor    test_x = mlc_rows(x, 1500, 1797), test_y = mlc_rows(y, 1500, 1797);
    mlc::loader    train(mlc_loader_shuffled(ctx, mlc_rows(x, 0, 1500), mlc_rows(y, 0, 1500), 32));
    mlc::root      net(MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 64, 64), mlc_nn_relu(ctx),
                                      mlc_nn_dropout(ctx, 0.1), mlc_nn_linear(ctx, 64, 10)));
    mlc::optimizer adam(mlc_adam(net, 2e-3));
    mlc::check(ctx);
    for (int epoch = 1; epoch <= 10; epoch++) {
        for (mlc_batch b; mlc_loader_next(train, &b);) {
            mlc::scope  step(ctx);
            mlc::tensor loss = mlc::cross_entropy(mlc::forward(net, b.x), b.y);
            for (auto &p : mlc::params(net)) loss = loss + 1e-4 * mlc::sum(mlc::abs(p.tensor));
            mlc_optim_minimize(adam, loss);
            mlc::check(ctx, step.end());
        }
        mlc::scope      test(ctx);
        mlc::evaluation quiet(net);
        const double    right = mlc_accuracy(mlc::forward(net, test_x), test_y);
        mlc::check(ctx, test.end());
        std::printf("epoch %2d: accuracy %.3f\n", epoch, right);
    }
}
