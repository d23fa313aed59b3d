/* model.hpp -- a network for handwritten digits and the step that trains it */
#ifndef MODEL_HPP
#define MODEL_HPP

#include <mlcore.h>

class model {
public:
    /* x: f32 [n,64], to which the scale of the pixels is fitted. */
    model(mlc_ctx *ctx, mlc::tensor x);
    double      train(const mlc_batch &b);         /* one step; its loss                         */
    double      accuracy(mlc::tensor x, mlc::tensor y);
    mlc_module *net() { return net_; }
private:
    mlc_ctx       *ctx_;
    mlc::root      net_;                           /* freed after the optimizer                  */
    mlc::optimizer opt_;
};

#endif
