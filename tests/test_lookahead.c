/* The look-ahead of tests/lookahead.h against engine eager in float64, step by step. */
#include "tests/lookahead_replay.h"

#include <math.h>

/* What two float64 programs may differ by in a run of some dozen steps, relative: the largest difference was
   2e-15. */
static const double BOUND = 1e-12;

static struct lookahead_apart lookahead_replay_at(struct lookahead_training *training, size_t depth,
                                                  size_t drain_every) {
    struct lookahead model;
    lookahead_open(&model, &training->bench.config, &training->bench.data.train, training->start,
                   training->count, depth);
    const struct lookahead_apart apart = lookahead_replay(training, &model, drain_every);
    lookahead_close(&model);
    return apart;
}

static void check_depth(struct lookahead_training *training, const char *settings, size_t depth,
                        size_t drain_every, struct lookahead_apart *worst) {
    const struct lookahead_apart apart = lookahead_replay_at(training, depth, drain_every);
    if (!(apart.loss <= BOUND) || !(apart.weights <= BOUND))
        fail_msg("%s, depth %zu, drained every %zu steps: losses differ by %.2g, weights by %.2g", settings,
                 depth, drain_every, apart.loss, apart.weights);
    worst->loss = fmax(worst->loss, apart.loss);
    worst->weights = fmax(worst->weights, apart.weights);
}

/* Depths from `least` to 4, and 8 if least is 0; drained at the end of each epoch, inside epochs, and never:
   look-ahead then runs on across epochs. */
static void check_from(const char *settings, size_t least) {
    struct lookahead_training training;
    struct lookahead_apart worst = {0};
    lookahead_training_open(&training, settings);
    const size_t drain_every[] = {training.bench.trainer.steps, LOOKAHEAD_NEVER, 3};
    for (size_t depth = least; depth <= (least ? 4 : 8); depth += depth == 4 ? 4 : 1)
        for (size_t n = 0; n < (least ? 2 : 3); n++)
            check_depth(&training, settings, depth, drain_every[n], &worst);
    print_message("  %s: %zu steps, losses apart by up to %.1e, weights %.1e\n", settings,
                  training.bench.steps, worst.loss, worst.weights);
    lookahead_training_close(&training);
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gram),           cmocka_unit_test(test_rules),
        cmocka_unit_test(test_learning_rates), cmocka_unit_test(test_activations),
        cmocka_unit_test(test_networks),       cmocka_unit_test(test_epochs),
        cmocka_unit_test(test_digits)};
    return cmocka_run_group_tests_name("lookahead", tests, NULL, NULL);
}
