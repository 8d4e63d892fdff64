/* The look-ahead of tests/lookahead.h against engine eager in float64, step by step; and mistakes in it, each
   of which must be found. */
#include "tests/lookahead.h"
#include "tests/lockstep.h"

#include <math.h>
#include <stdlib.h>

/* What two float64 programs may differ by in a run of some dozen steps, relative: the largest difference of losses
   was 2e-15. A mistake must show as 1,000 times the bound. */
static const double BOUND = 1e-12, MISTAKE = 1e-9;

/* --- a training, and its replay by the model --- */

struct training {
    struct bench bench;
    double *start, *end; /* states */
    size_t count;
};

static void training_open(struct training *training, const char *settings) {
    struct bench *bench = &training->bench;
    struct run_summary summary;
    char all[512];
    snprintf(all, sizeof all, "%s backend=serial threads=1 dtype=f64 engine=eager audit=off log-steps=400",
             settings);
    bench_open(bench, all, NULL);
    training->count = lockstep_state_count(&bench->trainer);
    training->start = lockstep_state(&bench->trainer);
    assert_status(bench_run(bench, &summary), STATUS_OK);
    training->end = lockstep_state(&bench->trainer);
    assert_true(training->start && training->end);
    assert_int_equal(bench->steps, bench->trainer.steps * (size_t)bench->config.epochs);
}

static void training_close(struct training *training) {
    bench_close(&training->bench);
    free(training->start);
    free(training->end);
}

/* The images and the learning rate of a step of the epoch in the feed. */
static struct lookahead_batch batch_of(const struct trainer *trainer, size_t step) {
    return (struct lookahead_batch){.rows = engine_rows(trainer, step),
                                    .index = trainer->feed.order + step * trainer->batch,
                                    .rate = trainer->feed.scalars[step].learning_rate};
}

struct apart {
    double loss, weights; /* relative: the largest of all steps; the norm of all weights, to their change */
};

/* Drains the model every so many steps, and at the end of the training. */
static struct apart replay(struct training *training, struct lookahead *model, size_t drain_every) {
    struct bench *bench = &training->bench;
    struct trainer *trainer = &bench->trainer;
    struct apart apart = {0};
    size_t step = 0;
    for (int64_t epoch = 0; epoch < bench->config.epochs; epoch++) {
        epoch_feed_begin(&trainer->feed, &bench->compute.device, epoch, step);
        for (size_t s = 0; s < trainer->steps; s++, step++) {
            const struct lookahead_batch batch = batch_of(trainer, s);
            const double loss = lookahead_step(model, &batch), wanted = bench->losses[step];
            const double off = fabs(loss / wanted - 1);
            if (!(off <= apart.loss)) apart.loss = isnan(off) ? INFINITY : off;
            if ((step + 1) % drain_every == 0) lookahead_drain(model);
        }
    }
    lookahead_drain(model);
    apart.weights = lockstep_distance(model->state, training->end, training->count) /
                    lockstep_distance(training->start, training->end, training->count);
    return apart;
}

static struct apart replay_at(struct training *training, size_t depth, size_t drain_every) {
    struct lookahead model;
    lookahead_open(&model, &training->bench.config, &training->bench.data.train, training->start,
                   training->count, depth);
    const struct apart apart = replay(training, &model, drain_every);
    lookahead_close(&model);
    return apart;
}

/* --- the same losses and weights --- */

static const size_t NEVER = SIZE_MAX;

static void check_depth(struct training *training, const char *settings, size_t depth, size_t drain_every,
                        struct apart *worst) {
    const struct apart apart = replay_at(training, depth, drain_every);
    if (!(apart.loss <= BOUND) || !(apart.weights <= BOUND))
        fail_msg("%s, depth %zu, drained every %zu steps: losses differ by %.2g, weights by %.2g", settings,
                 depth, drain_every, apart.loss, apart.weights);
    worst->loss = fmax(worst->loss, apart.loss);
    worst->weights = fmax(worst->weights, apart.weights);
}

/* Depths from `least` to 4, and 8 if least is 0; drained at the end of each epoch, inside epochs, and never:
   look-ahead then runs on across epochs. */
static void check_from(const char *settings, size_t least) {
    struct training training;
    struct apart worst = {0};
    training_open(&training, settings);
    const size_t drain_every[] = {training.bench.trainer.steps, NEVER, 3};
    for (size_t depth = least; depth <= (least ? 4 : 8); depth += depth == 4 ? 4 : 1)
        for (size_t n = 0; n < (least ? 2 : 3); n++)
            check_depth(&training, settings, depth, drain_every[n], &worst);
    print_message("  %s: %zu steps, losses apart by up to %.1e, weights %.1e\n", settings,
                  training.bench.steps, worst.loss, worst.weights);
    training_close(&training);
}

static void check(const char *settings) {
    check_from(settings, 0);
}

/* 50 images of 42 pixels: four steps an epoch, the last of two images. */
#define SMALL "batch-size=16 epochs=6 "

static void test_rules(void **state) {
    (void)state;
    check(SMALL "layers=42-9-4 lr=0.1");
    check(SMALL "layers=42-9-4 lr=0.1 weight-decay=0.05");
    check(SMALL "layers=42-9-4 lr=0.05 momentum=0.9");
    check(SMALL "layers=42-9-4 lr=0.05 momentum=0.9 weight-decay=0.05");
    check(SMALL "layers=42-9-4 lr=0.05 momentum=0.8 nesterov=on");
    check(SMALL "layers=42-9-4 lr=0.05 momentum=0.8 nesterov=on weight-decay=0.05");
}

static void test_learning_rates(void **state) {
    (void)state;
    check(SMALL "layers=42-9-4 lr=0.2 schedule=cosine warmup-steps=5");
    check(SMALL "layers=42-9-4 lr=0.2 schedule=one-cycle momentum=0.9 weight-decay=0.01");
    check(SMALL "layers=42-9-4 lr=0.2 schedule=step lr-step-epochs=2 lr-gamma=0.1 momentum=0.5");
}

static void test_activations(void **state) {
    (void)state;
    check(SMALL "layers=42-9-4 activation=tanh momentum=0.9 init=xavier");
    check(SMALL "layers=42-9-4 activation=scaled-tanh weight-decay=0.01 init=xavier");
    check(SMALL "layers=42-9-4 activation=sigmoid momentum=0.5 init=xavier");
    check(SMALL "layers=42-9-4 activation=gelu momentum=0.9 weight-decay=0.01");
}

static void test_networks(void **state) {
    (void)state;
    check(SMALL "layers=42-4 lr=0.1 momentum=0.9");
    check(SMALL "layers=42-9-7-4 lr=0.1 momentum=0.9 weight-decay=0.01");
    check(SMALL "layers=42-9-8-7-4 lr=0.1 input-range=-1,1 momentum=0.9");
}

/* Epochs of one step and of two, which are shorter than the depth; of whole batches; not shuffled. */
static void test_epochs(void **state) {
    (void)state;
    check("layers=42-9-4 batch-size=50 epochs=12 lr=0.1 momentum=0.9 weight-decay=0.01");
    check("layers=42-9-4 batch-size=49 epochs=8 lr=0.1 momentum=0.9");
    check("layers=42-9-4 batch-size=25 epochs=8 lr=0.1 momentum=0.9");
    check("layers=42-9-4 batch-size=16 epochs=6 lr=0.1 shuffle=off");
    check("layers=42-9-4 batch-size=1 epochs=2 lr=0.01 momentum=0.5");
}

/* 2,500 digits of 784 pixels: 20 steps an epoch, the last of 68 images. */
static void test_digits(void **state) {
    (void)state;
    check_from(
        "layers=784-16-10 batch-size=128 epochs=2 lr=0.1 momentum=0.9 weight-decay=0.001 schedule=cosine", 4);
}

/* The largest sums need more bits than a float32 has, and fit an int32. */
static void test_gram(void **state) {
    enum { PIXELS = 784, IMAGES = 3 };
    uint8_t images[IMAGES * PIXELS];
    const uint32_t index[] = {2, 0, 1};
    struct dataset data = {.count = IMAGES, .height = 28, .width = 28, .classes = 2, .images = images};
    const struct lookahead_batch a = {.rows = 1, .index = index}, b = {.rows = IMAGES, .index = index};
    (void)state;
    for (int range = 0; range < 2; range++) {
        struct config config;
        struct lookahead model;
        int32_t products[IMAGES];
        double weights[785 * 2] = {0};
        support_config(&config, range == INPUT_SIGNED ? "layers=784-2 input-range=-1,1" : "layers=784-2");
        lookahead_open(&model, &config, &data, weights, 785 * 2, 1);
        memset(images, 0, PIXELS);
        memset(images + PIXELS, 1, PIXELS);
        memset(images + 2 * PIXELS, 255, PIXELS);
        lookahead_gram(&model, &a, &b, products);
        assert_int_equal(products[0], 785 * 255 * 255);
        assert_int_equal(products[1], range == INPUT_SIGNED ? -783 * 255 * 255 : 255 * 255);
        assert_int_equal(products[2], (range == INPUT_SIGNED ? -253 : 1) * 255 * 784 + 255 * 255);
        lookahead_close(&model);
    }
}

/* --- mistakes --- */

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
    for (size_t m = 0; m < sizeof mistakes / sizeof *mistakes; m++)
        for (size_t depth = 2; depth <= 4; depth += 2) {
            struct training training;
            struct lookahead model;
            char settings[256];
            snprintf(settings, sizeof settings, SMALL "layers=42-9-4 lr=0.05%s", mistakes[m].settings);
            training_open(&training, settings);
            lookahead_open(&model, &training.bench.config, &training.bench.data.train, training.start,
                           training.count, depth);
            if (mistakes[m].gram) model.gram = mistakes[m].gram;
            if (mistakes[m].terms) model.terms = mistakes[m].terms;
            const struct apart apart = replay(&training, &model, NEVER);
            print_message("  %s, depth %zu: losses apart by %.1e\n", mistakes[m].name, depth, apart.loss);
            if (!(apart.loss >= MISTAKE)) fail_msg("%s is not found: %.2g", mistakes[m].name, apart.loss);
            lookahead_close(&model);
            training_close(&training);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gram),           cmocka_unit_test(test_rules),
        cmocka_unit_test(test_learning_rates), cmocka_unit_test(test_activations),
        cmocka_unit_test(test_networks),       cmocka_unit_test(test_epochs),
        cmocka_unit_test(test_digits),         cmocka_unit_test(test_mistakes)};
    return cmocka_run_group_tests_name("lookahead", tests, NULL, NULL);
}
