/* Mistakes in look-ahead, each of which the comparison with engine eager finds. */
#include "tests/lookahead_replay.h"

#include <stdio.h>

/* The least relative difference of a loss that counts as found: 1,000 times the bound of test_lookahead.c. */
static const double FOUND = 1e-9;

/* --- Gram matrices --- */

static void gram_off_by_one(struct lookahead *model, const struct lookahead_batch *a,
                            const struct lookahead_batch *b, int32_t *products) {
    lookahead_gram(model, a, b, products);
    products[a->rows * b->rows - 1]++;
}

static void gram_without_bias(struct lookahead *model, const struct lookahead_batch *a,
                              const struct lookahead_batch *b, int32_t *products) {
    lookahead_gram(model, a, b, products);
    for (size_t i = 0; i < a->rows * b->rows; i++) products[i] -= LOOKAHEAD_ONE * LOOKAHEAD_ONE;
}

static void gram_transposed(struct lookahead *model, const struct lookahead_batch *a,
                            const struct lookahead_batch *b, int32_t *products) {
    lookahead_gram(model, b, a, products);
}

/* Of the images in file order, not in that of the epoch. */
static void gram_of_file_order(struct lookahead *model, const struct lookahead_batch *a,
                               const struct lookahead_batch *b, int32_t *products) {
    uint32_t index[64];
    for (uint32_t i = 0; i < 64; i++) index[i] = i;
    lookahead_gram(model, &(struct lookahead_batch){.rows = a->rows, .index = index},
                   &(struct lookahead_batch){.rows = b->rows, .index = index}, products);
}

/* The short batch is filled up to a full one: its last image counts again. */
static void gram_of_full_batches(struct lookahead *model, const struct lookahead_batch *a,
                                 const struct lookahead_batch *b, int32_t *products) {
    lookahead_gram(model, a, b, products);
    if (b->rows < (size_t)model->config->batch_size)
        for (size_t i = 0; i < a->rows; i++) products[(i + 1) * b->rows - 1] *= 2;
}

/* --- terms --- */

static struct lookahead_terms terms_without_newest(const struct config *config, const double *rates,
                                                   size_t count) {
    struct lookahead_terms terms = lookahead_terms(config, rates, count);
    if (count) terms.gradient[count - 1] = 0;
    return terms;
}

static struct lookahead_terms terms_without_oldest(const struct config *config, const double *rates,
                                                   size_t count) {
    struct lookahead_terms terms = lookahead_terms(config, rates, count);
    if (count > 1) terms.gradient[0] = 0;
    return terms;
}

/* Each step has the learning rate of the step before. */
static struct lookahead_terms terms_of_stale_rates(const struct config *config, const double *rates,
                                                   size_t count) {
    double stale[LOOKAHEAD_MOST_DEPTH];
    for (size_t k = 0; k < count; k++) stale[k] = rates[k ? k - 1 : 0];
    return lookahead_terms(config, stale, count);
}

static struct lookahead_terms terms_without_velocity(const struct config *config, const double *rates,
                                                     size_t count) {
    struct lookahead_terms terms = lookahead_terms(config, rates, count);
    terms.velocity = 0;
    return terms;
}

/* A gradient enters the weights once, not again through the velocity. */
static struct lookahead_terms terms_of_plain_gradients(const struct config *config, const double *rates,
                                                       size_t count) {
    struct lookahead_terms terms = lookahead_terms(config, rates, count);
    for (size_t k = 0; k < count; k++) terms.gradient[k] = -rates[k];
    return terms;
}

static struct lookahead_terms terms_without_decay(const struct config *config, const double *rates,
                                                  size_t count) {
    struct config other = *config;
    other.weight_decay = 0;
    return lookahead_terms(&other, rates, count);
}

static struct lookahead_terms terms_without_nesterov(const struct config *config, const double *rates,
                                                     size_t count) {
    struct config other = *config;
    other.nesterov = false;
    return lookahead_terms(&other, rates, count);
}

/* --- the comparison --- */

static const struct {
    const char *name, *settings;
    void (*gram)(struct lookahead *, const struct lookahead_batch *, const struct lookahead_batch *,
                 int32_t *);
    struct lookahead_terms (*terms)(const struct config *, const double *, size_t);
} mistakes[] = {
    {"a Gram matrix with one entry off by one", "", .gram = gram_off_by_one},
    {"a Gram matrix without the bias", "", .gram = gram_without_bias},
    {"a transposed Gram matrix", "", .gram = gram_transposed},
    {"a Gram matrix of the images in file order", "", .gram = gram_of_file_order},
    {"a short batch as if it were full", "", .gram = gram_of_full_batches},
    {"the newest correction forgotten", "", .terms = terms_without_newest},
    {"the oldest correction forgotten", "", .terms = terms_without_oldest},
    {"stale learning rates", " schedule=cosine", .terms = terms_of_stale_rates},
    {"the velocity forgotten", " momentum=0.9", .terms = terms_without_velocity},
    {"gradients without momentum", " momentum=0.9", .terms = terms_of_plain_gradients},
    {"weights that do not decay", " weight-decay=0.01", .terms = terms_without_decay},
    {"no Nesterov momentum", " momentum=0.9 nesterov=on", .terms = terms_without_nesterov},
};

static void test_mistakes(void **state) {
    (void)state;
    for (size_t m = 0; m < sizeof mistakes / sizeof *mistakes; m += support_stride())
        for (size_t depth = 2; depth <= 4; depth += 2) {
            struct lookahead_training training;
            struct lookahead model;
            char settings[256];
            snprintf(settings, sizeof settings, "layers=42-9-4 batch-size=16 epochs=6 lr=0.05%s",
                     mistakes[m].settings);
            lookahead_training_open(&training, settings);
            lookahead_open(&model, &training.bench.config, &training.bench.data.train, training.start,
                           training.count, depth);
            if (mistakes[m].gram) model.gram = mistakes[m].gram;
            if (mistakes[m].terms) model.terms = mistakes[m].terms;
            const struct lookahead_apart apart = lookahead_replay(&training, &model, LOOKAHEAD_NEVER);
            print_message("  %s, depth %zu: losses apart by %.1e\n", mistakes[m].name, depth, apart.loss);
            if (!(apart.loss >= FOUND)) fail_msg("%s is not found: %.2g", mistakes[m].name, apart.loss);
            lookahead_close(&model);
            lookahead_training_close(&training);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_mistakes)};
    return cmocka_run_group_tests_name("lookahead_mistakes", tests, NULL, NULL);
}
