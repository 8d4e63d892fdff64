/* The rounding errors of look-ahead in float32 against those of plain SGD in float32, both against float64.
   Prints the tables of docs/look-ahead.md; with TESSERA_TEST_FULL=1 for 784-128-10 at batch 128. */
#include "tests/lookahead_replay.h"

#include <math.h>
#include <stdlib.h>

#include "tests/lockstep.h"

enum { DEPTHS = 5 /* 0 to 4 */, SEEDS = 100 };

/* Rounding errors of look-ahead, by those of plain SGD: at most so large in one step, and after a whole
   training, where chance has a part. */
static const double MOST_STEP = 1.5, MOST_DRIFT = 4;

struct errors {
    double squares, worst, count;
};

static void add_error(struct errors *errors, double error) {
    errors->squares += error * error;
    errors->count++;
    if (!(fabs(error) <= errors->worst)) errors->worst = isnan(error) ? INFINITY : fabs(error);
}

static double rms(const struct errors *errors) {
    return sqrt(errors->squares / errors->count);
}

/* A training in float64 and its copies in float32, all by the model. */
struct measurement {
    struct bench bench; /* data, order and rates; its trainer makes no step */
    double *start;
    struct lookahead exact[DEPTHS];    /* float64 */
    struct lookahead local[DEPTHS];    /* float32, from the exact history before each step */
    struct lookahead freely[DEPTHS];   /* float32, from the same initial weights */
    struct lookahead lacking[DEPTHS];  /* float64, from the exact history, without corrections */
    struct errors step[DEPTHS];        /* of Z1 of `local`, in 2^-24 of the sum of |x w| */
    struct errors corrections[DEPTHS]; /* their sum, in the last epoch */
    struct errors drift[DEPTHS];       /* of Z1 of `freely` in the last epoch, absolute */
    bool free_alone;                   /* only exact[0] and `freely` train */
    struct errors size;                /* Z1 itself in the last epoch */
    double loss[DEPTHS];               /* the largest relative difference of losses */
};

static void no_gram(struct lookahead *model, const struct lookahead_batch *a, const struct lookahead_batch *b,
                    int32_t *products) {
    (void)model;
    memset(products, 0, a->rows * b->rows * sizeof *products);
}

static void measurement_open(struct measurement *m, const char *settings) {
    char all[512];
    snprintf(all, sizeof all, "%s backend=serial threads=1 dtype=f64 engine=eager audit=off", settings);
    bench_open(&m->bench, all, NULL);
    struct trainer *trainer = &m->bench.trainer;
    const size_t count = lockstep_state_count(trainer);
    m->start = lockstep_state(trainer);
    assert_non_null(m->start);
    for (size_t i = 0; i < count; i++) m->start[i] = (double)(float)m->start[i];
    for (size_t d = 0; d < DEPTHS; d++) {
        struct lookahead *const models[] = {&m->exact[d], &m->local[d], &m->freely[d], &m->lacking[d]};
        for (size_t i = 0; i < 4; i++)
            lookahead_open(models[i], &m->bench.config, &m->bench.data.train, m->start, count, d);
        lookahead_round(&m->freely[d]);
        m->lacking[d].gram = no_gram;
    }
}

static void measurement_close(struct measurement *m) {
    for (size_t d = 0; d < DEPTHS; d++) {
        lookahead_close(&m->exact[d]);
        lookahead_close(&m->local[d]);
        lookahead_close(&m->freely[d]);
        lookahead_close(&m->lacking[d]);
    }
    free(m->start);
    bench_close(&m->bench);
}

/* Adds the errors of the pre-activations of layer 1 in `local`, in units of 2^-24 of the sum of |x w|.
   `exact` has depth 0, and the weights of this step. */
static void add_step_errors(const struct lookahead_layer *exact, const struct lookahead_layer *local,
                            size_t rows, struct errors *errors) {
    const size_t length = exact->in + 1, out = exact->out;
    double *sizes = malloc(out * sizeof *sizes);
    assert_non_null(sizes);
    for (size_t i = 0; i < rows; i++) {
        for (size_t j = 0; j < out; j++) sizes[j] = 0;
        for (size_t p = 0; p < length; p++)
            for (size_t j = 0; j < out; j++)
                sizes[j] += fabs(exact->input[i * length + p] * exact->weight[p * out + j]);
        for (size_t j = 0; j < out; j++)
            add_error(errors, (local->pre[i * out + j] - exact->pre[i * out + j]) / (0x1p-24 * sizes[j]));
    }
    free(sizes);
}

/* Adds x - y for the pre-activations of layer 1; y NULL: x. */
static void add_differences(const struct lookahead *x, const struct lookahead *y, size_t rows,
                            struct errors *errors) {
    for (size_t i = 0; i < rows * x->layer[0].out; i++)
        add_error(errors, x->layer[0].pre[i] - (y ? y->layer[0].pre[i] : 0));
}

/* One step of all models. */
static void measure_step(struct measurement *m, const struct lookahead_batch *batch, bool last_epoch) {
    const size_t rows = batch->rows;
    double losses[DEPTHS];
    for (size_t d = 0; d < DEPTHS && !m->free_alone; d++) {
        lookahead_copy(&m->local[d], &m->exact[d]);
        lookahead_round(&m->local[d]);
        lookahead_first_layer(&m->local[d], batch);
        lookahead_copy(&m->lacking[d], &m->exact[d]);
        if (last_epoch) lookahead_first_layer(&m->lacking[d], batch);
    }
    lookahead_first_layer(&m->exact[0], batch);
    for (size_t d = 0; d < DEPTHS && !m->free_alone; d++)
        add_step_errors(&m->exact[0].layer[0], &m->local[d].layer[0], rows, &m->step[d]);
    for (size_t d = 0; d < DEPTHS; d++) {
        losses[d] = d && m->free_alone ? losses[0] : lookahead_step(&m->exact[d], batch);
        assert_near(losses[d] / losses[0], 1, 1e-8);
        m->loss[d] = fmax(m->loss[d], fabs(lookahead_step(&m->freely[d], batch) / losses[0] - 1));
        if (!last_epoch) continue;
        add_differences(&m->freely[d], &m->exact[0], rows, &m->drift[d]);
        add_differences(&m->lacking[d], &m->exact[0], rows, &m->corrections[d]);
        if (d == 0) add_differences(&m->exact[0], NULL, rows, &m->size);
    }
}

static void measure(struct measurement *m) {
    struct trainer *trainer = &m->bench.trainer;
    const int64_t epochs = m->bench.config.epochs;
    for (int64_t epoch = 0; epoch < epochs; epoch++) {
        epoch_feed_begin(&trainer->feed, &m->bench.compute.device, epoch, (uint64_t)epoch * trainer->steps);
        for (size_t s = 0; s < trainer->steps; s++) {
            const struct lookahead_batch batch = lookahead_batch_of(trainer, s);
            measure_step(m, &batch, epoch + 1 == epochs);
        }
    }
}

/* The rows of one recipe: the table of docs/look-ahead.md. */
static void print_rows(const struct measurement *m, const char *name) {
    print_message("| **%s** | | | | | |\n| error of Z1 in one step, rms (max) |", name);
    for (size_t d = 0; d < DEPTHS; d++) print_message(" %.2f (%.1f) |", rms(&m->step[d]), m->step[d].worst);
    print_message("\n| drift of Z1 at the end, of its rms |");
    for (size_t d = 0; d < DEPTHS; d++) print_message(" %.1e |", rms(&m->drift[d]) / rms(&m->size));
    print_message("\n| losses apart by up to |");
    for (size_t d = 0; d < DEPTHS; d++) print_message(" %.1e |", m->loss[d]);
    print_message("\n| corrections, of the rms of Z1 |");
    for (size_t d = 0; d < DEPTHS; d++) print_message(" %.3f |", rms(&m->corrections[d]) / rms(&m->size));
    print_message("\n");
}

static const char FULL[] = "layers=784-128-10 batch-size=128 epochs=4";

static const struct {
    const char *name, *settings;
} recipes[] = {
    {"tanh, rate 0.1", "activation=tanh lr=0.1"},
    {"relu, rate 0.5 after a warm-up of 20 steps", "activation=relu lr=0.5 warmup-steps=20"},
    {"relu, rate 0.05, momentum 0.9, decay 0.0005",
     "activation=relu lr=0.05 momentum=0.9 weight-decay=0.0005"},
};

/* One recipe without ReLU, which may fall on either side and so part two right programs by 1e-4. */
enum { SMOOTH = 0 };

static void check_recipe(size_t r, const char *network) {
    struct measurement *m = calloc(1, sizeof *m);
    char settings[256];
    assert_non_null(m);
    snprintf(settings, sizeof settings, "%s %s", recipes[r].settings, network);
    measurement_open(m, settings);
    measure(m);
    print_rows(m, recipes[r].name);
    for (size_t d = 1; d < DEPTHS; d++) {
        assert_true(rms(&m->step[d]) <= MOST_STEP * rms(&m->step[0]) && rms(&m->step[d]) > 0.1);
        if (r == SMOOTH) assert_true(rms(&m->drift[d]) <= MOST_DRIFT * rms(&m->drift[0]));
        assert_true(rms(&m->drift[d]) > 0);
        assert_true(rms(&m->corrections[d]) > 0.01 * rms(&m->size));
    }
    measurement_close(m);
    free(m);
}

static void test_rounding(void **state) {
    const char *small = "layers=400-12-10 batch-size=32 epochs=1",
               *network = getenv("TESSERA_TEST_FULL") ? FULL : small;
    (void)state;
    print_message("| %s | plain SGD | d = 1 | d = 2 | d = 3 | d = 4 |\n|---|---:|---:|---:|---:|---:|\n",
                  network);
    for (size_t r = 0; r < sizeof recipes / sizeof *recipes; r += support_stride()) check_recipe(r, network);
}

/* Counts the float32 trainings that leave the float64 one by more than rounding: a ReLU fell on the other
   side. GELU, whose derivative is continuous, shows whether there is another cause. */
static void count_parted(const char *activation, size_t *parted) {
    for (int seed = 1; seed <= SEEDS; seed++) {
        struct measurement *m = calloc(1, sizeof *m);
        char settings[256];
        assert_non_null(m);
        snprintf(settings, sizeof settings, "%s lr=0.5 warmup-steps=20 activation=%s seed=%d", FULL,
                 activation, seed);
        measurement_open(m, settings);
        m->free_alone = true;
        measure(m);
        for (size_t d = 0; d < DEPTHS; d++) parted[d] += rms(&m->drift[d]) > 1e-5 * rms(&m->size);
        measurement_close(m);
        free(m);
    }
}

static void test_parted(void **state) {
    static const char *const activations[] = {"relu", "gelu"};
    (void)state;
    if (!getenv("TESSERA_TEST_FULL")) {
        print_message("skipped: takes minutes; TESSERA_TEST_FULL=1\n");
        skip();
    }
    for (size_t a = 0; a < 2; a++) {
        size_t parted[DEPTHS] = {0};
        count_parted(activations[a], parted);
        print_message("| %s: parted, of %d trainings |", activations[a], SEEDS);
        for (size_t d = 0; d < DEPTHS; d++) print_message(" %zu |", parted[d]);
        print_message("\n");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rounding), cmocka_unit_test(test_parted)};
    return cmocka_run_group_tests_name("lookahead_rounding", tests, NULL, NULL);
}
