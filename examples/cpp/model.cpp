/* model.cpp -- 64-128-10 with dropout, after a scale of the pixels that is saved with it */
#include "model.hpp"

model::model(mlc_ctx *ctx, mlc::tensor x)
    : ctx_(ctx), net_(MLC_SEQUENTIAL(ctx, mlc_nn_min_max(ctx, 64, 0, 1),
                                     mlc_nn_linear(ctx, 64, 128), mlc_nn_relu(ctx),
                                     mlc_nn_dropout(ctx, 0.2), mlc_nn_linear(ctx, 128, 10)))
{
    mlc_nn_scale_fit(mlc_module_child(net_, 0), x);
    opt_.reset(mlc_adamw(net_, 2e-3));
    mlc::check(ctx);
}

double model::train(const mlc_batch &b)
{
    mlc::scope  step(ctx_);
    mlc::tensor loss = mlc::cross_entropy(mlc::forward(net_, b.x), b.y);
    mlc_optim_minimize(opt_, loss);
    const double value = mlc_item(loss);
    mlc::check(ctx_, step.end());
    return value;
}

double model::accuracy(mlc::tensor x, mlc::tensor y)
{
    mlc::scope      step(ctx_);
    mlc::evaluation quiet(net_);
    const double    share = mlc_accuracy(mlc::forward(net_, x), y);
    mlc::check(ctx_, step.end());
    return share;
}
