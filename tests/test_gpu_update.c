/* Updates, norms, dropout and label smoothing on the GPU against the same call on the host. */
#include "tests/twins.h"

#include <math.h>

static const struct update rules[] = {
    {.method = UPDATE_SGD},
    {.method = UPDATE_SGD, .momentum = 0.9, .weight_decay = 0.01},
    {.method = UPDATE_SGD, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true},
    {.method = UPDATE_ADAM, .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-3, .weight_decay = 0.1},
    {.method = UPDATE_ADAMW, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, .weight_decay = 0.1},
    {.method = UPDATE_NONE},
};

/* Three steps of a rule on both, the last of them after a bad step; with everything that is optional, or
   nothing of it. */
static void compare_updates(struct pair *pair, const struct update *rule, size_t count, bool all) {
    enum { W, GRAD, M, V, AVERAGE, ROUNDED, CLIP, STEP, GUARD, TWINS };
    const bool adam = uses_second_moment(rule->method);
    struct twin twin[TWINS];
    twin[W] = twin_reals(pair, count, 1, 20);
    twin[GRAD] = twin_reals(pair, count, 1, 21);
    twin[AVERAGE] = twin_reals(pair, count, 1, 22);
    twin[M] = twin_make(pair, count * dtype_size(pair->real));
    twin[V] = twin_make(pair, count * dtype_size(pair->real));
    twin[ROUNDED] = twin_stored(pair, count, 1, 30);
    twin[CLIP] = twin_make(pair, sizeof(double));
    twin[STEP] = twin_make(pair, sizeof(struct step_scalars));
    twin[GUARD] = twin_make(pair, sizeof(struct tally));
    *(double *)twin[CLIP].host = 0.25;
    twin_send(pair, twin[CLIP]);
    struct update updates[2];
    for (int gpu = 0; gpu < 2; gpu++) {
        void *at[TWINS];
        for (int i = 0; i < TWINS; i++) at[i] = gpu ? twin[i].gpu : twin[i].host;
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
        *(struct step_scalars *)twin[STEP].host =
            (struct step_scalars){.learning_rate = 0.05,
                                  .adam_rate = 0.05 / (1 - pow(rule->beta1, t)),
                                  .adam_root = 1 / sqrt(1 - pow(rule->beta2, t)),
                                  .average_keep = 0.75};
        ((struct tally *)twin[GUARD].host)->bad_step = t == 3;
        twin_send(pair, twin[STEP]);
        twin_send(pair, twin[GUARD]);
        pair->host_ops->update(pair->host.device.ops_context, count, &updates[0], twin[STEP].host,
                               twin[GUARD].host);
        pair->gpu_ops->update(pair->gpu.device.ops_context, count, &updates[1], twin[STEP].gpu,
                              twin[GUARD].gpu);
        /* Adam divides by a root, which near 0 has few right digits */
        for (int i = W; i <= AVERAGE; i++) twin_compare(pair, pair->real, twin[i], adam ? 256 : 8);
        if (all) twin_compare(pair, pair->stored, twin[ROUNDED], adam && pair->stored != GEMM_BF16 ? 256 : 8);
    }
    for (int i = 0; i < TWINS; i++) twin_free(pair, twin[i]);
}

static void ops_update(void **state) {
    (void)state;
    struct pair pair;
    for (int dtype = GEMM_F32; dtype <= GEMM_BF16; dtype++) {
        pair_open(&pair, (enum gemm_dtype)dtype);
        for (size_t r = 0; r < sizeof rules / sizeof *rules; r++) {
            compare_updates(&pair, &rules[r], 100004, r % 2); /* packs of any width, then single elements */
            compare_updates(&pair, &rules[r], 100003, true);
        }
        pair_close(&pair);
    }
}

static void ops_clip_norm(void **state) {
    (void)state;
    static const size_t counts[] = {1, 1000, 100003, 3000004};
    struct pair pair;
    for (int dtype = GEMM_F32; dtype <= GEMM_F64; dtype++) {
        pair_open(&pair, (enum gemm_dtype)dtype);
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
            struct twin grad = twin_reals(&pair, counts[c], 1, 3), factor = twin_make(&pair, sizeof(double));
            const double limits[] = {0.01, 1e6};
            for (size_t l = 0; l < 2; l++) {
                pair.host_ops->clip_norm(pair.host.device.ops_context, counts[c], grad.host, limits[l],
                                         factor.host);
                for (int twice = 0; twice < 2; twice++) {
                    pair.gpu_ops->clip_norm(pair.gpu.device.ops_context, counts[c], grad.gpu, limits[l],
                                            factor.gpu);
                    twin_compare(&pair, GEMM_F64, factor, 1e4); /* sums in another order */
                }
                assert_true(l == 1 || counts[c] == 1 || *(double *)factor.host < 1);
            }
            twin_free(&pair, grad);
            twin_free(&pair, factor);
        }
        pair_close(&pair);
    }
}

static void ops_max_norm(void **state) {
    (void)state;
    static const size_t shapes[][2] = {{1, 1}, {784, 128}, {2500, 2003}, {100, 10}, {33, 5000}};
    struct pair pair;
    for (int dtype = GEMM_F32; dtype <= GEMM_F64; dtype++) {
        pair_open(&pair, (enum gemm_dtype)dtype);
        struct twin guard = twin_make(&pair, sizeof(struct tally));
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            const size_t rows = shapes[s][0], cols = shapes[s][1];
            const double limit = sqrt((double)rows / 3); /* about half of the columns are longer */
            struct twin weights = twin_reals(&pair, rows * cols, 1, 4);
            for (uint64_t bad = 2; bad-- > 0;) { /* nothing happens, then something */
                ((struct tally *)guard.host)->bad_step = bad;
                twin_send(&pair, guard);
                pair.host_ops->max_norm(pair.host.device.ops_context, rows, cols, limit, guard.host,
                                        weights.host);
                pair.gpu_ops->max_norm(pair.gpu.device.ops_context, rows, cols, limit, guard.gpu,
                                       weights.gpu);
                /* the double sums of squares are in another order: a random walk of `rows` roundings */
                twin_compare(&pair, pair.real, weights, dtype == GEMM_F64 ? 4 + sqrt((double)rows) : 4);
            }
            twin_free(&pair, weights);
        }
        twin_free(&pair, guard);
        pair_close(&pair);
    }
}

/* The same mask, to the bit, whatever the dtype. */
static void ops_dropout(void **state) {
    (void)state;
    static const size_t counts[] = {1, 7, 100000, 100003};
    struct pair pair;
    for (int dtype = GEMM_F32; dtype <= GEMM_BF16; dtype++) {
        pair_open(&pair, (enum gemm_dtype)dtype);
        struct twin step = twin_make(&pair, sizeof(struct step_scalars));
        *(struct step_scalars *)step.host = (struct step_scalars){.number = 12345678901234};
        twin_send(&pair, step);
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
            struct twin in = twin_stored(&pair, counts[c], 1, 5), out = twin_stored(&pair, counts[c], 1, 6);
            const struct dropout host = {0.3, 1ull << 40 | 7, 2, step.host},
                                 gpu = {0.3, 1ull << 40 | 7, 2, step.gpu};
            pair.host_ops->dropout(pair.host.device.ops_context, counts[c], &host, in.host, out.host);
            pair.gpu_ops->dropout(pair.gpu.device.ops_context, counts[c], &gpu, in.gpu, out.gpu);
            twin_compare(&pair, pair.stored, out, 0);
            pair.host_ops->dropout(pair.host.device.ops_context, counts[c], &host, in.host, in.host);
            pair.gpu_ops->dropout(pair.gpu.device.ops_context, counts[c], &gpu, in.gpu, in.gpu);
            twin_compare(&pair, pair.stored, in, 0);
            twin_free(&pair, in);
            twin_free(&pair, out);
        }
        twin_free(&pair, step);
        pair_close(&pair);
    }
}

static void ops_sign_step(void **state) {
    (void)state;
    static const size_t counts[] = {1, 1000, 802817};
    static const double special[] = {0, -0.0, (double)NAN, (double)INFINITY, -1e-30};
    struct pair pair;
    for (int dtype = GEMM_F32; dtype <= GEMM_BF16; dtype++) {
        pair_open(&pair, (enum gemm_dtype)dtype);
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
            struct twin grad = twin_stored(&pair, counts[c], 1, 5), x = twin_stored(&pair, counts[c], 1, 6);
            for (size_t i = 0; i < 5 && i < counts[c]; i++)
                dtype_set(pair.stored, grad.host, counts[c] - 1 - i, special[i]);
            twin_send(&pair, grad);
            pair.host_ops->sign_step(pair.host.device.ops_context, counts[c], 0.3, grad.host, x.host);
            pair.gpu_ops->sign_step(pair.gpu.device.ops_context, counts[c], 0.3, grad.gpu, x.gpu);
            twin_compare(&pair, pair.stored, x, 0);
            twin_free(&pair, grad);
            twin_free(&pair, x);
        }
        pair_close(&pair);
    }
}

static void ops_label_smoothing(void **state) {
    (void)state;
    static const size_t shapes[][2] = {{1, 2}, {128, 10}, {8192, 10}, {501, 40}};
    struct pair pair;
    for (int dtype = GEMM_F32; dtype <= GEMM_BF16; dtype++) {
        pair_open(&pair, (enum gemm_dtype)dtype);
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            const size_t rows = shapes[s][0], classes = shapes[s][1];
            struct twin logits = twin_stored(&pair, rows * classes, 5, 6),
                        grad = twin_stored(&pair, rows * classes, 1, 7), labels = twin_make(&pair, rows),
                        loss = twin_make(&pair, sizeof(double)),
                        tally = twin_make(&pair, sizeof(struct tally));
            for (size_t r = 0; r < rows; r++) ((uint8_t *)labels.host)[r] = (uint8_t)(r * 7 % classes);
            twin_send(&pair, labels);
            pair.host_ops->softmax_cross_entropy(pair.host.device.ops_context, rows, classes, 0.1,
                                                 logits.host, labels.host, grad.host, loss.host, tally.host,
                                                 true);
            pair.gpu_ops->softmax_cross_entropy(pair.gpu.device.ops_context, rows, classes, 0.1, logits.gpu,
                                                labels.gpu, grad.gpu, loss.gpu, tally.gpu, true);
            twin_compare(&pair, pair.stored, grad, 32);
            twin_compare(&pair, GEMM_F64, loss, dtype == GEMM_F64 ? 1e3 : 1e10); /* float32 exponentials */
            const struct twin all[] = {logits, grad, labels, loss, tally};
            for (size_t i = 0; i < 5; i++) twin_free(&pair, all[i]);
        }
        pair_close(&pair);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ops_update),  cmocka_unit_test(ops_clip_norm), cmocka_unit_test(ops_max_norm),
        cmocka_unit_test(ops_dropout), cmocka_unit_test(ops_sign_step), cmocka_unit_test(ops_label_smoothing),
    };
    return cmocka_run_group_tests_name("gpu update", tests, NULL, NULL);
}
