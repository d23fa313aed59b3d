/* rules.h -- an optimizer for each trace of golden/make_optim_goldens.py */
#ifndef RULES_H
#define RULES_H

#include "mlc_test.h"

/* An optimizer of the module m, by the desc d of a rate, with some settings.                    */
#define MAKE(name, rule, type, rate, ...) \
    static mlc_optim *make_##name(mlc_module *m) \
    { \
        mlc_##type##_desc d = mlc_##rule##_desc_make(rate); \
        __VA_ARGS__; \
        return mlc_##rule##_ex(m, &d); \
    }
#define EPS_F64 2.220446049250313e-16
#define KNOBS(b1, b2, e, decay) d.beta1 = b1, d.beta2 = b2, d.eps = e, d.weight_decay = decay

MAKE(adam_amsgrad, amsgrad, amsgrad, 0.05, (void)0)
MAKE(adam_amsgrad_decay, amsgrad, amsgrad, 0.05, KNOBS(0.8, 0.95, 1e-6, 0.02))
MAKE(adamw_amsgrad, amsgrad, amsgrad, 0.05, d.weight_decay = 0.1, d.decoupled = true)
MAKE(adamax, adamax, adam, 0.05, (void)0)
MAKE(adamax_decay, adamax, adam, 0.05, KNOBS(0.8, 0.99, 1e-6, 0.05))
MAKE(nadam, nadam, nadam, 0.05, (void)0)
MAKE(nadam_decay, nadam, nadam, 0.05, KNOBS(0.8, 0.95, 1e-6, 0.05))
MAKE(nadam_decoupled, nadam, nadam, 0.05, d.weight_decay = 0.05, d.decoupled = true)
MAKE(radam, radam, amsgrad, 0.05, (void)0)
MAKE(radam_decay, radam, amsgrad, 0.05, KNOBS(0.8, 0.98, 1e-6, 0.05))
MAKE(radam_decoupled, radam, amsgrad, 0.05, d.weight_decay = 0.05, d.decoupled = true)
MAKE(rmsprop, rmsprop, rmsprop, 0.01, (void)0)
MAKE(rmsprop_centered, rmsprop, rmsprop, 0.01, d.eps = 1e-6, d.centered = true, d.momentum = 0.8,
     d.weight_decay = 0.05)
MAKE(adagrad, adagrad, adagrad, 0.1, (void)0)
MAKE(adagrad_decay, adagrad, adagrad, 0.1, d.lr_decay = 0.05, d.initial = 0.1,
     d.weight_decay = 0.05)
MAKE(adadelta, adadelta, adadelta, 1, (void)0)
MAKE(adadelta_decay, adadelta, adadelta, 0.5, d.rho = 0.8, d.eps = 1e-4, d.weight_decay = 0.05)
MAKE(rprop, rprop, rprop, 0.015, (void)0)
MAKE(rprop_options, rprop, rprop, 0.1, d.shrink = 0.6, d.grow = 1.3, d.least = 1e-4, d.most = 1)
MAKE(lars, lars, lars, 1, (void)0)
MAKE(lars_decay, lars, lars, 5, d.trust = 0.002, d.momentum = 0.8, d.weight_decay = 0.05)
MAKE(lars_zero, lars, lars, 0.1, d.weight_decay = 0.05)
MAKE(lion, lion, lion, 0.01, (void)0)
MAKE(lion_decay, lion, lion, 0.02, d.beta1 = 0.95, d.beta2 = 0.98, d.weight_decay = 0.1)
MAKE(sophia, sophia, sophia, 0.01, (void)0)
MAKE(sophia_options, sophia, sophia, 0.02, d.beta1 = 0.9, d.beta2 = 0.95, d.gamma = 0.5,
     d.weight_decay = 0)
MAKE(adafactor, adafactor, adafactor, 0.01, d.eps1 = EPS_F64)
MAKE(adafactor_options, adafactor, adafactor, 0.2, d.power = 0.6, d.clip = 1.5, d.eps1 = 1e-10,
     d.eps2 = 1e-2, d.weight_decay = 0.05)
MAKE(muon, muon, muon, 0.02, (void)0)
MAKE(muon_options, muon, muon, 0.05, d.momentum = 0.8, d.nesterov = false, d.weight_decay = 0,
     d.match_adamw = true)
MAKE(sf_sgd, schedule_free_sgd, schedule_free_sgd, 0.1, (void)0)
MAKE(sf_sgd_warmup, schedule_free_sgd, schedule_free_sgd, 0.2, d.momentum = 0.8, d.warmup = 10,
     d.weight_decay = 0.05)
MAKE(sf_adamw, schedule_free_adamw, schedule_free_adamw, 0.05, (void)0)
MAKE(sf_adamw_warmup, schedule_free_adamw, schedule_free_adamw, 0.05,
     KNOBS(0.95, 0.99, 1e-6, 0.05), d.warmup = 10)

typedef struct trace {
    const char *name;
    mlc_optim *(*make)(mlc_module *m);
    int         curvature;             /* fed before each n-th step, of Sophia                 */
    bool        mean;                  /* it has one, of schedule-free rules                   */
} trace;

static const trace TRACES[] = {
    {"adam_amsgrad", make_adam_amsgrad, 0, false},
    {"adam_amsgrad_decay", make_adam_amsgrad_decay, 0, false},
    {"adamw_amsgrad", make_adamw_amsgrad, 0, false},
    {"adamax", make_adamax, 0, false},
    {"adamax_decay", make_adamax_decay, 0, false},
    {"nadam", make_nadam, 0, false},
    {"nadam_decay", make_nadam_decay, 0, false},
    {"nadam_decoupled", make_nadam_decoupled, 0, false},
    {"radam", make_radam, 0, false},
    {"radam_decay", make_radam_decay, 0, false},
    {"radam_decoupled", make_radam_decoupled, 0, false},
    {"rmsprop", make_rmsprop, 0, false},
    {"rmsprop_centered", make_rmsprop_centered, 0, false},
    {"adagrad", make_adagrad, 0, false},
    {"adagrad_decay", make_adagrad_decay, 0, false},
    {"adadelta", make_adadelta, 0, false},
    {"adadelta_decay", make_adadelta_decay, 0, false},
    {"rprop", make_rprop, 0, false},
    {"rprop_options", make_rprop_options, 0, false},
    {"lars", make_lars, 0, false},
    {"lars_decay", make_lars_decay, 0, false},
    {"lars_zero", make_lars_zero, 0, false},
    {"lion", make_lion, 0, false},
    {"lion_decay", make_lion_decay, 0, false},
    {"sophia", make_sophia, 10, false},
    {"sophia_options", make_sophia_options, 7, false},
    {"adafactor", make_adafactor, 0, false},
    {"adafactor_matrix", make_adafactor, 0, false},
    {"adafactor_options", make_adafactor_options, 0, false},
    {"muon", make_muon, 0, false},
    {"muon_tall", make_muon, 0, false},
    {"muon_options", make_muon_options, 0, false},
    {"sf_sgd", make_sf_sgd, 0, true},
    {"sf_sgd_warmup", make_sf_sgd_warmup, 0, true},
    {"sf_adamw", make_sf_adamw, 0, true},
    {"sf_adamw_warmup", make_sf_adamw_warmup, 0, true},
};
enum { N_TRACES = sizeof TRACES / sizeof *TRACES };

#endif
