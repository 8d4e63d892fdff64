/* The rounding errors of look-ahead in float32 against those of plain SGD in float32, both against float64.
   Prints the tables of docs/look-ahead.md; with TESSERA_TEST_FULL=1 for 784-128-10 at batch 128. */
#include "tests/lookahead.h"
#include "tests/lockstep.h"

#include <math.h>
#include <stdlib.h>

enum { DEPTHS = 5 /* 0 to 4 */ };

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
    struct lookahead exact[DEPTHS];  /* float64 */
    struct lookahead local[DEPTHS];  /* float32, from the exact history before each step */
    struct lookahead freely[DEPTHS]; /* float32, from the same initial weights */
    struct errors step[DEPTHS];      /* of Z1 of `local`, in 2^-24 of the sum of |x w| */
    struct errors drift[DEPTHS];     /* of Z1 of `freely` in the last epoch, absolute */
    struct errors size;              /* Z1 itself in the last epoch */
    double loss[DEPTHS];             /* the largest relative difference of losses */
};

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
        struct lookahead *const models[] = {&m->exact[d], &m->local[d], &m->freely[d]};
        for (size_t i = 0; i < 3; i++)
            lookahead_open(models[i], &m->bench.config, &m->bench.data.train, m->start, count, d);
        lookahead_round(&m->freely[d]);
    }
}

static void measurement_close(struct measurement *m) {
    for (size_t d = 0; d < DEPTHS; d++) {
        lookahead_close(&m->exact[d]);
        lookahead_close(&m->local[d]);
        lookahead_close(&m->freely[d]);
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

/* One step of all models. */
static void measure_step(struct measurement *m, const struct lookahead_batch *batch, bool last_epoch) {
    const size_t numbers = batch->rows * m->exact[0].layer[0].out;
    double losses[DEPTHS];
    lookahead_first_layer(&m->exact[0], batch);
    for (size_t d = 0; d < DEPTHS; d++) {
        lookahead_copy(&m->local[d], &m->exact[d]);
        lookahead_round(&m->local[d]);
        lookahead_first_layer(&m->local[d], batch);
        add_step_errors(&m->exact[0].layer[0], &m->local[d].layer[0], batch->rows, &m->step[d]);
    }
    for (size_t d = 0; d < DEPTHS; d++) {
        losses[d] = lookahead_step(&m->exact[d], batch);
        assert_near(losses[d] / losses[0], 1, 1e-11);
        m->loss[d] = fmax(m->loss[d], fabs(lookahead_step(&m->freely[d], batch) / losses[0] - 1));
        const double *z = m->freely[d].layer[0].pre, *exact = m->exact[0].layer[0].pre;
        for (size_t i = 0; last_epoch && i < numbers; i++) {
            add_error(&m->drift[d], z[i] - exact[i]);
            if (d == 0) add_error(&m->size, exact[i]);
        }
    }
}

static void measure(struct measurement *m) {
    struct trainer *trainer = &m->bench.trainer;
    const int64_t epochs = m->bench.config.epochs;
    for (int64_t epoch = 0; epoch < epochs; epoch++) {
        epoch_feed_begin(&trainer->feed, &m->bench.compute.device, epoch, (uint64_t)epoch * trainer->steps);
        for (size_t s = 0; s < trainer->steps; s++) {
            const struct lookahead_batch batch = {.rows = engine_rows(trainer, s),
                                                  .index = trainer->feed.order + s * trainer->batch,
                                                  .rate = trainer->feed.scalars[s].learning_rate};
            measure_step(m, &batch, epoch + 1 == epochs);
        }
    }
}

static void print_row(const struct measurement *m, const char *name, const char *sizes) {
    print_message("| %s, %s |", sizes, name);
    for (size_t d = 0; d < DEPTHS; d++) print_message(" %.2f (%.1f) |", rms(&m->step[d]), m->step[d].worst);
    print_message("\n| drift of Z1 |");
    for (size_t d = 0; d < DEPTHS; d++) print_message(" %.1e |", rms(&m->drift[d]) / rms(&m->size));
    print_message("\n| losses apart by up to |");
    for (size_t d = 0; d < DEPTHS; d++) print_message(" %.1e |", m->loss[d]);
    print_message("\n");
}

static const struct {
    const char *name, *settings;
} recipes[] = {
    {"tanh, rate 0.1", "activation=tanh lr=0.1"},
    {"relu, rate 1.2 after 20 steps", "activation=relu lr=1.2 warmup-steps=20"},
    {"relu, rate 0.05, momentum 0.9, decay 0.0005",
     "activation=relu lr=0.05 momentum=0.9 weight-decay=0.0005"},
};

static void test_rounding(void **state) {
    const bool full = getenv("TESSERA_TEST_FULL") != NULL;
    const char *sizes = full ? "784-128-10, batch 128" : "784-12-10, batch 250";
    (void)state;
    print_message("| | plain SGD | d = 1 | d = 2 | d = 3 | d = 4 |\n|---|---:|---:|---:|---:|---:|\n");
    for (size_t r = 0; r < sizeof recipes / sizeof *recipes; r++) {
        struct measurement *m = calloc(1, sizeof *m);
        char settings[256];
        assert_non_null(m);
        snprintf(settings, sizeof settings, "%s %s", recipes[r].settings,
                 full ? "layers=784-128-10 batch-size=128 epochs=4"
                      : "layers=784-12-10 batch-size=250 epochs=1");
        measurement_open(m, settings);
        measure(m);
        print_row(m, recipes[r].name, sizes);
        measurement_close(m);
        free(m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rounding)};
    return cmocka_run_group_tests_name("lookahead_rounding", tests, NULL, NULL);
}
