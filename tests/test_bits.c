/* Training with backend tuned gives the same bits for any number of threads, on each instruction set. */
#include "tests/training_bench.h"

#include <stdlib.h>

#include "kernels/host/tuned/tuned.h"
#include "tests/tuned_emulated.h"

/* One to four layers, each activation, dtype and update; tails of rows, columns and k; several blocks of k,
   also of the last layer alone, and not for a thread's slice of the batch. */
static const char *const recipes[] = {
    "layers=784-10 batch-size=128",
    "layers=784-130-10 batch-size=37",
    "layers=784-33-10 batch-size=600 activation=gelu weight-decay=0.01",
    "layers=784-70-33-10 batch-size=100 activation=scaled-tanh momentum=0.9 input-range=-1,1",
    "layers=784-40-50-26 batch-size=1100 activation=tanh momentum=0.5 weight-decay=0.001",
    "layers=64-40-500-19-10 batch-size=128 activation=sigmoid",
    "layers=400-90-10 batch-size=101 dtype=f64 momentum=0.9 nesterov=on",
    "layers=784-48-17-10 batch-size=60 dtype=f64 activation=gelu weight-decay=0.01",
    "layers=784-256-10 batch-size=256 dtype=f64",
    "layers=784-300-26 batch-size=300",
    "layers=784-600-10 batch-size=128",
    "layers=784-65-10 batch-size=128 precision=bf16",
    "layers=784-70-33-40-10 batch-size=53 precision=bf16 activation=tanh momentum=0.9 weight-decay=0.01",
    "layers=400-39-10 batch-size=300 optimizer=adamw dropout=0.2 activation=gelu learning-rate=0.001",
    "layers=64-150-10 batch-size=129 optimizer=adam weight-decay=0.01 clip-norm=0.5 learning-rate=0.001",
};
enum { RECIPES = sizeof recipes / sizeof *recipes, MOST_THREADS = 8, STEPS = 3 };

/* Parameters, moments and losses after the first two steps of an epoch and the last, a partial batch. */
struct outcome {
    size_t parameter_bytes;
    void *parameters, *moment;
    double losses[STEPS];
};

static void *copy_of(const void *bytes, size_t count) {
    void *copy = malloc(count);
    assert_non_null(copy);
    memcpy(copy, bytes, count);
    return copy;
}

static struct outcome train(struct bench *bench, const struct gemm_backend *backend, const char *isa,
                            int threads) {
    struct compute_options options = config_compute(&bench->config);
    struct outcome outcome = {0};
    struct trainer trainer;
    options.threads = threads;
    options.options = isa;
    assert_status(compute_open(&bench->compute, backend, &options), STATUS_OK);
    assert_int_equal(bench->compute.threads, threads);
    assert_status(trainer_open(&trainer, &bench->compute, &bench->config, &bench->data, NULL), STATUS_OK);
    trainer_begin_epoch(&trainer);
    for (size_t s = 0; s < STEPS; s++) {
        const size_t step = s < STEPS - 1 ? s : trainer.steps - 1;
        size_t count = 1;
        assert_status(trainer.engine->run(&trainer, step, &count), STATUS_OK);
        outcome.losses[s] = trainer.losses[step];
    }
    outcome.parameter_bytes = trainer.mlp.parameter_elements * dtype_size(trainer.mlp.dtype);
    outcome.parameters = copy_of(trainer.mlp.parameters, outcome.parameter_bytes);
    if (trainer.optimizer.update.moment1)
        outcome.moment = copy_of(trainer.optimizer.update.moment1, outcome.parameter_bytes);
    trainer_close(&trainer);
    compute_close(&bench->compute);
    return outcome;
}

static void outcome_free(struct outcome *outcome) {
    free(outcome->parameters);
    free(outcome->moment);
}

/* A sample takes one number of threads, the next one for the next `index`. */
static void check(struct bench *bench, const char *recipe, const struct gemm_backend *backend,
                  const char *isa, size_t index) {
    const bool sampled = support_stride() > 1;
    struct outcome one = train(bench, backend, isa, 1);
    for (int threads = 2 + (sampled ? (int)(index % (MOST_THREADS - 1)) : 0); threads <= MOST_THREADS;
         threads += sampled ? MOST_THREADS : 1) {
        struct outcome more = train(bench, backend, isa, threads);
        const bool same = memcmp(one.parameters, more.parameters, one.parameter_bytes) == 0 &&
                          memcmp(one.losses, more.losses, sizeof one.losses) == 0 &&
                          (!one.moment || memcmp(one.moment, more.moment, one.parameter_bytes) == 0);
        if (!same) fail_msg("%s, %s: other bits on %d threads than on one", recipe, isa, threads);
        outcome_free(&more);
    }
    outcome_free(&one);
}

/* `state`: an entry of `recipes`. */
static void threads_change_no_bit(void **state) {
    static const struct {
        const char *option;
        const struct tuned_isa *isa;
    } isas[] = {
#if defined(__x86_64__)
        {"isa=avx512bf16", &tuned_avx512bf16},
        {"isa=avx512", &tuned_avx512},
        {"isa=avx2", &tuned_avx2},
#endif
        {"isa=portable", &tuned_portable}
    };
    const char *const *entry = *state;
    const char *recipe = *entry;
    const size_t number = (size_t)(entry - recipes);
    struct bench bench;
    char settings[256];
    snprintf(settings, sizeof settings, "backend=tuned epochs=2 seed=3 %s", recipe);
    bench_prepare(&bench, settings);
    compute_close(&bench.compute);
    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) {
        if (isas[i].isa->usable()) {
            check(&bench, recipe, &gemm_tuned, isas[i].option, number + i);
        } else if (i == 0) {
            check(&bench, recipe, tuned_emulated_backend(), "isa=auto", number + i);
        } else {
            print_message("skipped: this CPU does not support %s\n", isas[i].option);
        }
    }
    dataset_pair_free(&bench.data);
}

int main(void) {
    struct CMUnitTest tests[RECIPES];
    for (size_t r = 0; r < RECIPES; r++)
        tests[r] = (struct CMUnitTest){recipes[r], threads_change_no_bit, NULL, NULL, (void *)&recipes[r]};
    return cmocka_run_group_tests_name("bits", tests, NULL, NULL);
}
