/* Optimisers and schedules against PyTorch's rules, computed in double precision. */
#include "tests/support.h"
#include "tests/values.h"

#include <math.h>
#include <stdlib.h>

#include "kernels/host/ops/ops.h"
#include "src/nn/optimizer.h"
#include "src/nn/schedule.h"

static struct host_ops_context context = {.threads = 3};

static const struct update rules[] = {
    {.method = UPDATE_SGD},
    {.method = UPDATE_SGD, .weight_decay = 0.01},
    {.method = UPDATE_SGD, .momentum = 0.9, .weight_decay = 0.01},
    {.method = UPDATE_SGD, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true},
    {.method = UPDATE_ADAM, .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-3},
    {.method = UPDATE_ADAM, .beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1},
    {.method = UPDATE_ADAMW, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, .weight_decay = 0.1},
    {.method = UPDATE_NONE},
};

/* One weight and its state, as torch.optim.SGD, Adam and AdamW define them; t counts from 1. */
struct one {
    double w, buffer, exp_avg, exp_avg_sq, average;
};

static void step_of_pytorch(const struct update *rule, double lr, double t, double g, double average_decay,
                            struct one *one) {
    if (rule->method == UPDATE_SGD) {
        g += rule->weight_decay * one->w;
        if (rule->momentum > 0) {
            one->buffer = t > 1 ? rule->momentum * one->buffer + g : g;
            g = rule->nesterov ? g + rule->momentum * one->buffer : one->buffer;
        }
        one->w -= lr * g;
    } else if (rule->method != UPDATE_NONE) {
        if (rule->method == UPDATE_ADAM) g += rule->weight_decay * one->w;
        if (rule->method == UPDATE_ADAMW) one->w *= 1 - lr * rule->weight_decay;
        one->exp_avg += (1 - rule->beta1) * (g - one->exp_avg);
        one->exp_avg_sq = rule->beta2 * one->exp_avg_sq + (1 - rule->beta2) * g * g;
        const double denominator = sqrt(one->exp_avg_sq) / sqrt(1 - pow(rule->beta2, t)) + rule->epsilon;
        one->w -= lr / (1 - pow(rule->beta1, t)) * one->exp_avg / denominator;
    }
    one->average = average_decay * one->average + (1 - average_decay) * one->w;
}

static struct step_scalars scalars_of(const struct update *rule, double lr, double t, double average_decay) {
    return (struct step_scalars){.learning_rate = lr,
                                 .adam_rate = lr / (1 - pow(rule->beta1, t)),
                                 .adam_root = 1 / sqrt(1 - pow(rule->beta2, t)),
                                 .average_decay = average_decay,
                                 .number = (uint64_t)t - 1};
}

enum { COUNT = 40001, STEPS = 3 };

static void check_rule(enum gemm_dtype stored, const struct update *rule, bool clipped) {
    const enum gemm_dtype real = values_parameter_dtype((int)stored);
    struct values w = values_random(real, COUNT, 1, 5), m = values_make(real, COUNT),
                  v = values_make(real, COUNT), average = values_random(real, COUNT, 1, 7),
                  rounded = values_make(stored, COUNT);
    struct one *want = calloc(COUNT, sizeof *want);
    const double clip = 0.25;
    struct update update = *rule;
    struct tally guard = {0};
    assert_non_null(want);
    update.clip = clipped ? &clip : NULL;
    update.weights = w.data;
    update.moment1 = uses_second_moment(rule->method) || rule->momentum > 0 ? m.data : NULL;
    update.moment2 = uses_second_moment(rule->method) ? v.data : NULL;
    update.average = average.data;
    update.rounded = stored == real ? NULL : rounded.data;
    for (size_t i = 0; i < COUNT; i++)
        want[i] = (struct one){.w = values_get(w, i), .average = values_get(average, i)};
    for (int t = 1; t <= STEPS; t++) {
        const double lr = 0.05 / t, average_decay = 0.75;
        struct values g = values_random(real, COUNT, 1, 10 + (uint32_t)t);
        const struct step_scalars step = scalars_of(rule, lr, t, average_decay);
        update.grad = g.data;
        host_ops(stored)->update(&context, COUNT, &update, &step, &guard);
        for (size_t i = 0; i < COUNT; i++)
            step_of_pytorch(rule, lr, t, (clipped ? clip : 1) * values_get(g, i), average_decay, &want[i]);
        if (t == STEPS) { /* after a bad step nothing changes */
            struct values *all[] = {&w, &m, &v, &average, &rounded};
            unsigned char *before[5];
            guard.bad_step = 1;
            for (size_t i = 0; i < 5; i++) {
                const size_t bytes = COUNT * dtype_size(all[i]->dtype);
                before[i] = malloc(bytes);
                assert_non_null(before[i]);
                memcpy(before[i], all[i]->data, bytes);
            }
            host_ops(stored)->update(&context, COUNT, &update, &step, &guard);
            for (size_t i = 0; i < 5; i++) {
                assert_memory_equal(before[i], all[i]->data, COUNT * dtype_size(all[i]->dtype));
                free(before[i]);
            }
        }
        free(g.data);
    }
    /* Adam divides by a square root: a gradient near 0 has few correct digits, but its step is about lr */
    const double tolerance =
        uses_second_moment(rule->method) ? 1000 * dtype_epsilon(real) : 16 * dtype_epsilon(real);
    size_t moved = 0;
    struct values start = values_random(real, COUNT, 1, 5);
    for (size_t i = 0; i < COUNT; i++) {
        assert_near(values_get(w, i), want[i].w, tolerance);
        assert_near(values_get(average, i), want[i].average, tolerance);
        if (update.moment1 && rule->method == UPDATE_SGD)
            assert_near(values_get(m, i), want[i].buffer, 4 * tolerance);
        if (update.rounded) assert_near(values_get(rounded, i), values_get(w, i), 0x1p-8);
        moved += values_get(w, i) != values_get(start, i);
    }
    assert_true(rule->method == UPDATE_NONE ? moved == 0 : moved > COUNT * 9 / 10);
    struct values all[] = {w, m, v, average, rounded, start};
    for (size_t i = 0; i < 6; i++) free(all[i].data);
    free(want);
}

static void rules_are_those_of_pytorch(void **state) {
    (void)state;
    bool tested[UPDATE_NONE + 1] = {false};
    for (int dtype = GEMM_F32; dtype < DTYPES; dtype++)
        for (size_t r = 0; r < sizeof rules / sizeof *rules; r++) {
            check_rule((enum gemm_dtype)dtype, &rules[r], r % 2);
            tested[rules[r].method] = true;
        }
    for (size_t m = 0; m < sizeof tested; m++) assert_true(tested[m]);
}

/* --- norms --- */

static void clipping_by_norm(void **state) {
    (void)state;
    for (int dtype = GEMM_F32; dtype <= GEMM_F64; dtype++) {
        struct values g = values_random((enum gemm_dtype)dtype, COUNT, 1, 3);
        double squares = 0, factor[2];
        for (size_t i = 0; i < COUNT; i++) squares += values_get(g, i) * values_get(g, i);
        const double norm = sqrt(squares), limits[] = {norm / 7, 2 * norm, 1e-9};
        for (size_t l = 0; l < 3; l++) {
            const double wanted = fmin(1, limits[l] / (norm + 1e-6));
            for (int threads = 1; threads < 3; threads++) { /* both have the same bits */
                struct host_ops_context some = {.threads = threads};
                host_ops((enum gemm_dtype)dtype)
                    ->clip_norm(&some, COUNT, g.data, limits[l], &factor[threads - 1]);
            }
            assert_near(factor[0] / wanted, 1, 1e-12);
            assert_true(factor[0] == factor[1]);
        }
        values_set(g, 0, 1e-3);
        host_ops((enum gemm_dtype)dtype)->clip_norm(&context, 1, g.data, 0.5, &factor[0]); /* norm < limit */
        assert_true(factor[0] == 1);
        free(g.data);
    }
}

static void max_norm_of_columns(void **state) {
    (void)state;
    static const size_t shapes[][2] = {{1, 1}, {300, 129}, {784, 64}, {17, 70}};
    for (int dtype = GEMM_F32; dtype <= GEMM_F64; dtype++)
        for (size_t s = 0; s < 4; s++) {
            const size_t rows = shapes[s][0], cols = shapes[s][1];
            struct values w = values_random((enum gemm_dtype)dtype, rows * cols, 1, 4),
                          before = values_random((enum gemm_dtype)dtype, rows * cols, 1, 4);
            const double limit = sqrt((double)rows / 3); /* about half of the columns are longer */
            struct tally guard = {.bad_step = 1};
            const struct ops *ops = host_ops((enum gemm_dtype)dtype);
            ops->max_norm(&context, rows, cols, limit, &guard, w.data);
            assert_memory_equal(w.data, before.data, rows * cols * dtype_size((enum gemm_dtype)dtype));
            guard.bad_step = 0;
            ops->max_norm(&context, rows, cols, limit, &guard, w.data);
            size_t scaled = 0;
            for (size_t c = 0; c < cols; c++) {
                double squares = 0;
                for (size_t r = 0; r < rows; r++) squares += pow(values_get(before, r * cols + c), 2);
                const double factor = sqrt(squares) > limit ? limit / sqrt(squares) : 1;
                scaled += factor < 1;
                for (size_t r = 0; r < rows; r++)
                    assert_near(values_get(w, r * cols + c), factor * values_get(before, r * cols + c),
                                4 * dtype_epsilon((enum gemm_dtype)dtype) + 1e-7);
            }
            if (cols > 1) assert_in_range(scaled, cols / 5, cols - cols / 5);
            free(w.data);
            free(before.data);
        }
}

/* --- schedules --- */

static double rate_of(const char *settings, size_t epoch, size_t step) {
    struct config config;
    struct step_scalars scalars[4];
    support_config(&config, settings);
    schedule_epoch(&config, epoch, 4, 4 * epoch, scalars);
    return scalars[step].learning_rate;
}

static void learning_rates(void **state) {
    (void)state;
    static const struct {
        const char *settings;
        size_t epoch, step;
        double want;
    } cases[] = {
        {"lr=0.8 schedule=constant", 9, 3, 0.8},
        {"lr=0.8 schedule=step lr-step-epochs=2 lr-gamma=0.5 warmup-steps=2", 0, 0, 0.4},
        {"lr=0.8 schedule=step lr-step-epochs=2 lr-gamma=0.5 warmup-steps=2", 0, 1, 0.8},
        {"lr=0.8 schedule=step lr-step-epochs=2 lr-gamma=0.5 warmup-steps=2", 0, 3, 0.8},
        {"lr=0.8 schedule=step lr-step-epochs=2 lr-gamma=0.5", 5, 0, 0.2},
        {"lr=0.8 schedule=exponential lr-gamma=0.5", 3, 3, 0.1},
        {"lr=0.8 schedule=cosine lr-min=0.2 epochs=2", 0, 0, 0.8},
        {"lr=0.8 schedule=cosine lr-min=0.2 epochs=2", 1, 0, 0.5}, /* half-way */
        {"lr=0.8 schedule=cosine lr-min=0.2 epochs=2", 1, 2, 0.2 + 0.3 * (1 + -0.70710678118654752)},
        {"lr=0.8 schedule=cosine warmup-steps=2 epochs=2", 1, 1, 0.4}, /* over the 6 steps after warm-up */
        {"lr=0.8 schedule=cosine warmup-epochs=0.5 epochs=2", 0, 0, 0.4},
        {"lr=0.8 schedule=cosine warmup-epochs=0.5 epochs=2", 1, 1, 0.4},
        {"lr=0.8 warmup-epochs=0.375", 0, 1, 0.8}, /* 1.5 steps */
        {"lr=0.8 warmup-epochs=2", 1, 3, 0.8},
        {"lr=0.8 warmup-epochs=2", 1, 0, 0.5},
        /* 40 steps: torch.optim.lr_scheduler.OneCycleLR(max_lr=0.5, total_steps=40, pct_start=0.3) rises to
           step 11 */
        {"lr=0.5 schedule=one-cycle epochs=10", 0, 0, 0.02},
        {"lr=0.5 schedule=one-cycle epochs=10", 1, 1, 0.2258444388144},
        {"lr=0.5 schedule=one-cycle epochs=10", 2, 3, 0.5},
        {"lr=0.5 schedule=one-cycle epochs=10", 6, 1, 0.25000100000},
        {"lr=0.5 schedule=one-cycle epochs=10", 9, 3, 0.02 / 1e4},
        {"lr=0.5 schedule=one-cycle epochs=1 pct-start=0.25", 0, 0, 0.5}, /* no step of rising rates */
        {"lr=0.5 schedule=one-cycle epochs=10 div-factor=10 final-div-factor=5 pct-start=0.5", 0, 0, 0.05},
        {"lr=0.5 schedule=one-cycle epochs=10 div-factor=10 final-div-factor=5 pct-start=0.5", 4, 3, 0.5},
        {"lr=0.5 schedule=one-cycle epochs=10 div-factor=10 final-div-factor=5 pct-start=0.5", 9, 3, 0.01},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_near(rate_of(cases[i].settings, cases[i].epoch, cases[i].step), cases[i].want, 1e-9);
}

static void scalars_of_adam_and_the_average(void **state) {
    (void)state;
    struct config config;
    struct step_scalars scalars[4];
    support_config(&config, "lr=0.8 optimizer=adam beta1=0.5 beta2=0.75");
    config.ema_decay = 0.6;
    schedule_epoch(&config, 2, 4, 1, scalars); /* the number of updates counts, not the epoch */
    assert_true(scalars[0].number == 1 && scalars[3].number == 4);
    assert_near(scalars[0].adam_rate, 0.8 / (1 - 0.25), 1e-15);
    assert_near(scalars[0].adam_root, 1 / sqrt(1 - 0.5625), 1e-15);
    assert_near(scalars[0].average_decay, 1.0 / 10, 1e-15);
    schedule_epoch(&config, 2, 4, 100, scalars);
    assert_near(scalars[0].average_decay, 0.6, 1e-15);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rules_are_those_of_pytorch),
        cmocka_unit_test(clipping_by_norm),
        cmocka_unit_test(max_norm_of_columns),
        cmocka_unit_test(learning_rates),
        cmocka_unit_test(scalars_of_adam_and_the_average),
    };
    return cmocka_run_group_tests_name("optimizer", tests, NULL, NULL);
}
