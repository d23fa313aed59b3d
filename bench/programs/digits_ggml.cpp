// digits_ggml.cpp -- the README's first program, by ggml (ggml-opt)
//
//   build   c++ -O2 -Iggml/include bench/programs/digits_ggml.cpp -lggml -lggml-cpu -lggml-base -pthread
//   run     ./a.out                                         from the folder of mlcore.h
//
// A graph has one batch size: an epoch leaves out 28 digits, other ones each time, and the digits
// held out are padded to whole batches.
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml-opt.h"
#include "ggml.h"

#include <cmath>
#include <cstdio>
#include <fstream>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

enum { PIXELS = 64, CLASSES = 10, HIDDEN = 128, BATCH = 32, TRAIN = 1500, TEST = 297 };

static std::vector<std::vector<float>> read_csv(const std::string & path) {
    std::ifstream file(path);
    if (!file) {
        throw std::runtime_error("cannot open " + path);
    }
    std::vector<std::vector<float>> rows;
    for (std::string line, field; std::getline(file, line);) {
        if (line.empty() || line[0] == '#') {
            continue;
        }
        std::vector<float> row;
        for (std::istringstream fields(line); std::getline(fields, field, ',');) {
            row.push_back(std::stof(field));
        }
        if (row.size() != PIXELS + 2) {
            throw std::runtime_error(path + ": want 66 numbers in each row");
        }
        rows.push_back(row);
    }
    if (rows.size() != TRAIN + TEST) {
        throw std::runtime_error(path + ": want 1797 rows");
    }
    return rows;
}

static ggml_opt_dataset_t make_dataset(const std::vector<std::vector<float>> & rows, int begin, int n, int n_padded) {
    ggml_opt_dataset_t dataset = ggml_opt_dataset_init(GGML_TYPE_F32, GGML_TYPE_F32, PIXELS, CLASSES, n_padded, 1);
    float * x = ggml_get_data_f32(ggml_opt_dataset_data(dataset));
    float * y = ggml_get_data_f32(ggml_opt_dataset_labels(dataset));
    for (int i = 0; i < n_padded; ++i) {
        const std::vector<float> & row = rows[begin + (i < n ? i : 0)];
        for (int j = 0; j < PIXELS; ++j) {
            x[i*PIXELS + j] = row[j] / 16.0f;
        }
        for (int j = 0; j < CLASSES; ++j) {
            y[i*CLASSES + j] = row[PIXELS] == j ? 1.0f : 0.0f;
        }
    }
    return dataset;
}

static ggml_tensor * dense(ggml_context * ctx, ggml_tensor * w, ggml_tensor * b, ggml_tensor * x) {
    ggml_set_param(w);
    ggml_set_param(b);
    return ggml_add(ctx, ggml_mul_mat(ctx, w, x), b);
}

static void init_uniform(ggml_tensor * t, float limit, std::mt19937 & gen) {
    std::uniform_real_distribution<float> dist(-limit, limit);
    std::vector<float> values(ggml_nelements(t));
    for (float & v : values) {
        v = dist(gen);
    }
    ggml_backend_tensor_set(t, values.data(), 0, ggml_nbytes(t));
}

static void run() {
    const std::vector<std::vector<float>> rows = read_csv("examples/data/digits.csv");
    const int test_padded = (TEST + BATCH - 1) / BATCH * BATCH;
    ggml_opt_dataset_t train = make_dataset(rows, 0, TRAIN, TRAIN);
    ggml_opt_dataset_t test  = make_dataset(rows, TRAIN, TEST, test_padded);

    // Parameters and inputs are allocated here, the rest by the scheduler.
    ggml_backend_t backend = ggml_backend_cpu_init();
    ggml_backend_cpu_set_n_threads(backend, 1); // the network is small
    ggml_backend_sched_t sched = ggml_backend_sched_new(&backend, nullptr, 1, GGML_DEFAULT_GRAPH_SIZE, false, true);
    ggml_context * ctx_static  = ggml_init({ 16*ggml_tensor_overhead(), nullptr, /*no_alloc =*/ true });
    ggml_context * ctx_compute = ggml_init({
        GGML_DEFAULT_GRAPH_SIZE*ggml_tensor_overhead() + 3*ggml_graph_overhead(), nullptr, /*no_alloc =*/ true });
    ggml_tensor * x  = ggml_new_tensor_2d(ctx_static, GGML_TYPE_F32, PIXELS, BATCH);
    ggml_tensor * w1 = ggml_new_tensor_2d(ctx_static, GGML_TYPE_F32, PIXELS, HIDDEN);
    ggml_tensor * b1 = ggml_new_tensor_1d(ctx_static, GGML_TYPE_F32, HIDDEN);
    ggml_tensor * w2 = ggml_new_tensor_2d(ctx_static, GGML_TYPE_F32, HIDDEN, CLASSES);
    ggml_tensor * b2 = ggml_new_tensor_1d(ctx_static, GGML_TYPE_F32, CLASSES);
    ggml_set_input(x);
    ggml_tensor * logits = dense(ctx_compute, w2, b2, ggml_relu(ctx_compute, dense(ctx_compute, w1, b1, x)));
    ggml_set_output(logits);
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(ctx_static, backend);
    std::mt19937 gen(0);
    for (ggml_tensor * t : { w1, b1 }) {
        init_uniform(t, 1.0f / std::sqrt((float) PIXELS), gen);
    }
    for (ggml_tensor * t : { w2, b2 }) {
        init_uniform(t, 1.0f / std::sqrt((float) HIDDEN), gen);
    }

    ggml_opt_optimizer_params adamw = ggml_opt_get_default_optimizer_params(nullptr); // rate 1e-3
    adamw.adamw.wd = 0.01f;
    ggml_opt_params params = ggml_opt_default_params(sched, GGML_OPT_LOSS_TYPE_CROSS_ENTROPY);
    params.ctx_compute     = ctx_compute;
    params.inputs          = x;
    params.outputs         = logits;
    params.get_opt_pars    = ggml_opt_get_constant_optimizer_params;
    params.get_opt_pars_ud = &adamw;
    ggml_opt_context_t opt = ggml_opt_init(params);
    for (int epoch = 0; epoch < 20; ++epoch) {
        ggml_opt_dataset_shuffle(opt, train, -1);
        for (int ibatch = 0; ibatch < TRAIN / BATCH; ++ibatch) {
            ggml_opt_alloc(opt, /*backward =*/ true);
            ggml_opt_dataset_get_batch(train, ggml_opt_inputs(opt), ggml_opt_labels(opt), ibatch);
            ggml_opt_eval(opt, nullptr);
        }
    }

    ggml_opt_result_t    result = ggml_opt_result_init();
    std::vector<int32_t> pred(test_padded);
    ggml_opt_epoch(opt, test, nullptr, result, /*idata_split =*/ 0, nullptr, nullptr);
    ggml_opt_result_pred(result, pred.data());
    int right = 0;
    for (int i = 0; i < TEST; ++i) {
        right += pred[i] == (int) rows[TRAIN + i][PIXELS];
    }
    printf("%.1f %% of %d new digits are right\n", 100.0 * right / TEST, TEST);

    ggml_opt_result_free(result);
    ggml_opt_free(opt);
    ggml_opt_dataset_free(train);
    ggml_opt_dataset_free(test);
    ggml_backend_buffer_free(buffer);
    ggml_free(ctx_static);
    ggml_free(ctx_compute);
    ggml_backend_sched_free(sched);
    ggml_backend_free(backend);
}

int main() {
    try {
        run();
    } catch (const std::exception & e) {
        fprintf(stderr, "digits_ggml: %s\n", e.what());
        return 1;
    }
    return 0;
}
