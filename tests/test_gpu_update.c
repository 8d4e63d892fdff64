/* Updates, norms, dropout and label smoothing on the GPU against the same call on the host. */
#include "tests/mirror.h"

#include <math.h>

static const struct update rules[] = {
    {.method = UPDATE_SGD},
    {.method = UPDATE_SGD, .momentum = 0.9, .weight_decay = 0.01},
    {.method = UPDATE_SGD, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true},
    {.method = UPDATE_ADAM, .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-3, .weight_decay = 0.1},
    {.method = UPDATE_ADAMW, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, .weight_decay = 0.1},
    {.method = UPDATE_NONE},
};

/* Three steps of a rule on host and GPU, the last after a bad step; with all or no optional operands. */
static void compare_updates(struct device_pair *pair, const struct update *rule, size_t count, bool all) {
    enum { W, GRAD, M, V, AVERAGE, ROUNDED, CLIP, STEP, GUARD, MIRRORS };
    const bool adam = uses_second_moment(rule->method);
    struct mirror mirror[MIRRORS];
    mirror[W] = mirror_parameters(pair, count, 1, 20);
    mirror[GRAD] = mirror_parameters(pair, count, 1, 21);
    mirror[AVERAGE] = mirror_parameters(pair, count, 1, 22);
    mirror[M] = mirror_alloc(pair, count * dtype_size(pair->parameter_dtype));
    mirror[V] = mirror_alloc(pair, count * dtype_size(pair->parameter_dtype));
    mirror[ROUNDED] = mirror_activations(pair, count, 1, 30);
    mirror[CLIP] = mirror_alloc(pair, sizeof(double));
    mirror[STEP] = mirror_alloc(pair, sizeof(struct step_scalars));
    mirror[GUARD] = mirror_alloc(pair, sizeof(struct tally));
    *(double *)mirror[CLIP].host = 0.25;
    mirror_upload(pair, mirror[CLIP]);
    struct update updates[2];
    for (int gpu = 0; gpu < 2; gpu++) {
        void *at[MIRRORS];
        for (int i = 0; i < MIRRORS; i++) at[i] = gpu ? mirror[i].gpu : mirror[i].host;
        updates[gpu] = *rule;
        updates[gpu].weights = at[W];
        updates[gpu].grad = at[GRAD];
        updates[gpu].moment1 = adam || rule->momentum > 0 ? at[M] : NULL;
        updates[gpu].moment2 = adam ? at[V] : NULL;
        updates[gpu].clip = all ? at[CLIP] : NULL;
        updates[gpu].average = all ? at[AVERAGE] : NULL;
        updates[gpu].rounded = all ? at[ROUNDED] : NULL;
    }
    for (int t = 1; t <= 3; t++) {
        *(struct step_scalars *)mirror[STEP].host =
            (struct step_scalars){.learning_rate = 0.05,
                                  .adam_rate = 0.05 / (1 - pow(rule->beta1, t)),
                                  .adam_root = 1 / sqrt(1 - pow(rule->beta2, t)),
                                  .average_decay = 0.75};
        ((struct tally *)mirror[GUARD].host)->bad_step = t == 3;
        mirror_upload(pair, mirror[STEP]);
        mirror_upload(pair, mirror[GUARD]);
        pair->host_ops->update(pair->host.device.ops_context, count, &updates[0], mirror[STEP].host,
                               mirror[GUARD].host);
        pair->gpu_ops->update(pair->gpu.device.ops_context, count, &updates[1], mirror[STEP].gpu,
                              mirror[GUARD].gpu);
        /* Adam divides by a square root, which has few correct digits near 0 */
        for (int i = W; i <= AVERAGE; i++)
            mirror_compare(pair, pair->parameter_dtype, mirror[i], adam ? 256 : 8);
        if (all)
            mirror_compare(pair, pair->activation_dtype, mirror[ROUNDED],
                           adam && !gemm_is_16bit(pair->activation_dtype) ? 256 : 8);
    }
    for (int i = 0; i < MIRRORS; i++) mirror_free(pair, mirror[i]);
}

static void ops_update(void **state) {
    (void)state;
    struct device_pair pair;
    for (int dtype = GEMM_F32; dtype < DTYPES; dtype++) {
        pair_open(&pair, (enum gemm_dtype)dtype);
        for (size_t r = 0; r < sizeof rules / sizeof *rules; r++) {
            compare_updates(&pair, &rules[r], 100004, r % 2); /* packs, then single elements */
            compare_updates(&pair, &rules[r], 100003, true);
        }
        pair_close(&pair);
    }
}

/* Adam's root and quotient are approximate on a GPU: against float64, for gradients whose second moment is 0,
   next to the smallest float32 or large. Weights start at 0, so that they show their steps. */
static void adam_of_extreme_gradients(void **state) {
    (void)state;
    static const float gradients[] = {0, -0.0F, 1e-30F, -1e-17F, 1e-10F, 1e-3F, -1, 1e10F, -1e18F};
    static const double epsilons[] = {1e-30, 1e-8, 1e-3};
    enum { COUNT = sizeof gradients / sizeof *gradients, STEPS = 3 };
    struct device_pair pair;
    pair_open(&pair, GEMM_F32);
    for (size_t e = 0; e < sizeof epsilons / sizeof *epsilons; e++) {
        struct mirror w = mirror_alloc(&pair, sizeof gradients), g = mirror_alloc(&pair, sizeof gradients),
                      m = mirror_alloc(&pair, sizeof gradients), v = mirror_alloc(&pair, sizeof gradients),
                      scalars = mirror_alloc(&pair, sizeof(struct step_scalars)),
                      guard = mirror_alloc(&pair, sizeof(struct tally));
        memcpy(g.host, gradients, sizeof gradients);
        mirror_upload(&pair, g);
        const struct update update = {.method = UPDATE_ADAM,
                                      .beta1 = 0.9,
                                      .beta2 = 0.999,
                                      .epsilon = epsilons[e],
                                      .weights = w.gpu,
                                      .grad = g.gpu,
                                      .moment1 = m.gpu,
                                      .moment2 = v.gpu};
        double weight[COUNT] = {0}, moment1[COUNT] = {0};
        float moment2[COUNT] = {0}; /* may underflow */
        for (int t = 1; t <= STEPS; t++) {
            const double rate = 0.05 / (1 - pow(0.9, t)), root = 1 / sqrt(1 - pow(0.999, t));
            *(struct step_scalars *)scalars.host =
                (struct step_scalars){.adam_rate = rate, .adam_root = root};
            mirror_upload(&pair, scalars);
            pair.gpu_ops->update(pair.gpu.device.ops_context, COUNT, &update, scalars.gpu, guard.gpu);
            pair.gpu.device.driver->download(&pair.gpu.device, w.host, w.gpu, w.bytes);
            for (int i = 0; i < COUNT; i++) {
                const double gradient = gradients[i];
                moment1[i] = 0.9 * moment1[i] + 0.1 * gradient;
                moment2[i] = (float)(0.999 * moment2[i] + 0.001 * gradient * gradient);
                weight[i] -= rate * moment1[i] / (root * sqrt(moment2[i]) + epsilons[e]);
                /* about ten roundings of 6e-8 a step */
                assert_true(fabs(((float *)w.host)[i] - weight[i]) <= 2e-6 * fabs(weight[i]));
            }
        }
        const struct mirror all[] = {w, g, m, v, scalars, guard};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) mirror_free(&pair, all[i]);
    }
    pair_close(&pair);
}

static void ops_clip_norm(void **state) {
    (void)state;
    static const size_t counts[] = {1, 1000, 100003, 3000004};
    struct device_pair pair;
    for (int dtype = GEMM_F32; dtype <= GEMM_F64; dtype++) {
        pair_open(&pair, (enum gemm_dtype)dtype);
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
            struct mirror grad = mirror_parameters(&pair, counts[c], 1, 3),
                          factor = mirror_alloc(&pair, sizeof(double));
            const double limits[] = {0.01, 1e6};
            for (size_t l = 0; l < 2; l++) {
                pair.host_ops->clip_norm(pair.host.device.ops_context, counts[c], grad.host, limits[l],
                                         factor.host);
                for (int twice = 0; twice < 2; twice++) {
                    pair.gpu_ops->clip_norm(pair.gpu.device.ops_context, counts[c], grad.gpu, limits[l],
                                            factor.gpu);
                    mirror_compare(&pair, GEMM_F64, factor, 1e4); /* sums in another order */
                }
                assert_true(l == 1 || counts[c] == 1 || *(double *)factor.host < 1);
            }
            mirror_free(&pair, grad);
            mirror_free(&pair, factor);
        }
        pair_close(&pair);
    }
}

static void ops_max_norm(void **state) {
    (void)state;
    static const size_t shapes[][2] = {{1, 1}, {784, 128}, {2500, 2003}, {100, 10}, {33, 5000}};
    struct device_pair pair;
    for (int dtype = GEMM_F32; dtype <= GEMM_F64; dtype++) {
        pair_open(&pair, (enum gemm_dtype)dtype);
        struct mirror guard = mirror_alloc(&pair, sizeof(struct tally));
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            const size_t rows = shapes[s][0], cols = shapes[s][1];
            const double limit = sqrt((double)rows / 3); /* about half of the columns are longer */
            struct mirror weights = mirror_parameters(&pair, rows * cols, 1, 4);
            for (uint64_t bad = 2; bad-- > 0;) { /* skipped after a bad step, then applied */
                ((struct tally *)guard.host)->bad_step = bad;
                mirror_upload(&pair, guard);
                pair.host_ops->max_norm(pair.host.device.ops_context, rows, cols, limit, guard.host,
                                        weights.host);
                pair.gpu_ops->max_norm(pair.gpu.device.ops_context, rows, cols, limit, guard.gpu,
                                       weights.gpu);
                /* the double sums of squares are in another order: a random walk of `rows` roundings */
                mirror_compare(&pair, pair.parameter_dtype, weights,
                               dtype == GEMM_F64 ? 4 + sqrt((double)rows) : 4);
            }
            mirror_free(&pair, weights);
        }
        mirror_free(&pair, guard);
        pair_close(&pair);
    }
}

/* The masks equal the host's, bit for bit, in every dtype. */
static void ops_dropout(void **state) {
    (void)state;
    static const size_t counts[] = {1, 7, 100000, 100003};
    struct device_pair pair;
    for (int dtype = GEMM_F32; dtype < DTYPES; dtype++) {
        pair_open(&pair, (enum gemm_dtype)dtype);
        struct mirror step = mirror_alloc(&pair, sizeof(struct step_scalars));
        *(struct step_scalars *)step.host = (struct step_scalars){.number = 12345678901234};
        mirror_upload(&pair, step);
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
            struct mirror in = mirror_activations(&pair, counts[c], 1, 5),
                          out = mirror_activations(&pair, counts[c], 1, 6);
            const struct dropout host = {0.3, 1ull << 40 | 7, 2, step.host, 16},
                                 gpu = {0.3, 1ull << 40 | 7, 2, step.gpu, 16};
            pair.host_ops->dropout(pair.host.device.ops_context, counts[c], &host, in.host, out.host);
            pair.gpu_ops->dropout(pair.gpu.device.ops_context, counts[c], &gpu, in.gpu, out.gpu);
            mirror_compare(&pair, pair.activation_dtype, out, 0);
            pair.host_ops->dropout(pair.host.device.ops_context, counts[c], &host, in.host, in.host);
            pair.gpu_ops->dropout(pair.gpu.device.ops_context, counts[c], &gpu, in.gpu, in.gpu);
            mirror_compare(&pair, pair.activation_dtype, in, 0);
            mirror_free(&pair, in);
            mirror_free(&pair, out);
        }
        mirror_free(&pair, step);
        pair_close(&pair);
    }
}

static void ops_sign_step(void **state) {
    (void)state;
    static const size_t counts[] = {1, 1000, 802817};
    static const double special[] = {0, -0.0, (double)NAN, (double)INFINITY, -1e-30};
    struct device_pair pair;
    for (int dtype = GEMM_F32; dtype < DTYPES; dtype++) {
        pair_open(&pair, (enum gemm_dtype)dtype);
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
            struct mirror grad = mirror_activations(&pair, counts[c], 1, 5),
                          x = mirror_activations(&pair, counts[c], 1, 6);
            for (size_t i = 0; i < 5 && i < counts[c]; i++)
                dtype_set(pair.activation_dtype, grad.host, counts[c] - 1 - i, special[i]);
            mirror_upload(&pair, grad);
            pair.host_ops->sign_step(pair.host.device.ops_context, counts[c], 0.3, grad.host, x.host);
            pair.gpu_ops->sign_step(pair.gpu.device.ops_context, counts[c], 0.3, grad.gpu, x.gpu);
            mirror_compare(&pair, pair.activation_dtype, x, 0);
            mirror_free(&pair, grad);
            mirror_free(&pair, x);
        }
        pair_close(&pair);
    }
}

static void ops_label_smoothing(void **state) {
    (void)state;
    static const size_t shapes[][2] = {{1, 2}, {128, 10}, {8192, 10}, {501, 40}};
    struct device_pair pair;
    for (int dtype = GEMM_F32; dtype < DTYPES; dtype++) {
        pair_open(&pair, (enum gemm_dtype)dtype);
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            const size_t rows = shapes[s][0], classes = shapes[s][1];
            struct mirror logits = mirror_activations(&pair, rows * classes, 5, 6),
                          grad = mirror_activations(&pair, rows * classes, 1, 7),
                          labels = mirror_alloc(&pair, rows), loss = mirror_alloc(&pair, sizeof(double)),
                          tally = mirror_alloc(&pair, sizeof(struct tally));
            for (size_t r = 0; r < rows; r++) ((uint8_t *)labels.host)[r] = (uint8_t)(r * 7 % classes);
            mirror_upload(&pair, labels);
            pair.host_ops->softmax_cross_entropy(pair.host.device.ops_context, rows, (double)rows, classes,
                                                 0.1, logits.host, labels.host, grad.host, loss.host,
                                                 tally.host, true);
            pair.gpu_ops->softmax_cross_entropy(pair.gpu.device.ops_context, rows, (double)rows, classes, 0.1,
                                                logits.gpu, labels.gpu, grad.gpu, loss.gpu, tally.gpu, true);
            mirror_compare(&pair, pair.activation_dtype, grad, 32);
            mirror_compare(&pair, GEMM_F64, loss, dtype == GEMM_F64 ? 1e3 : 1e10); /* float32 exponentials */
            const struct mirror all[] = {logits, grad, labels, loss, tally};
            for (size_t i = 0; i < 5; i++) mirror_free(&pair, all[i]);
        }
        pair_close(&pair);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ops_update),          cmocka_unit_test(adam_of_extreme_gradients),
        cmocka_unit_test(ops_clip_norm),       cmocka_unit_test(ops_max_norm),
        cmocka_unit_test(ops_dropout),         cmocka_unit_test(ops_sign_step),
        cmocka_unit_test(ops_label_smoothing),
    };
    return cmocka_run_group_tests_name("gpu update", tests, NULL, NULL);
}
