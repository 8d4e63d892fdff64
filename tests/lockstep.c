#include "tests/lockstep.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Asserts that the low-precision copy is that of the updated weights. */
static void check_copy(struct bench *bench) {
    struct device *device = &bench->compute.device;
    const struct mlp *mlp = &bench->trainer.mlp;
    if (!mlp->low_precision) return;
    float *weights = malloc(mlp->parameter_elements * sizeof *weights);
    uint16_t *copy = malloc(mlp->parameter_elements * sizeof *copy);
    assert_true(weights && copy);
    device->driver->download(device, weights, mlp->parameters, mlp->parameter_elements * sizeof *weights);
    device->driver->download(device, copy, mlp->low_precision, mlp->parameter_elements * sizeof *copy);
    for (size_t i = 0; i < mlp->parameter_elements; i++) {
        double rounded = 0; /* room for every type */
        dtype_set(mlp->activation_dtype, &rounded, 0, (double)weights[i]);
        assert_memory_equal(copy + i, &rounded, sizeof *copy);
    }
    free(weights);
    free(copy);
}

static struct tally end_epoch(struct bench *bench) {
    struct trainer *trainer = &bench->trainer;
    struct device *device = &bench->compute.device;
    struct tally tally;
    check_copy(bench);
    device->driver->download(device, &tally, trainer->tally, sizeof tally);
    assert_status(device->driver->synchronize(device), STATUS_OK);
    trainer->state =
        (struct train_state){.epoch = trainer->state.epoch + 1, .updates = trainer->state.updates};
    return tally;
}

/* A bench of the same recipe in float64, opened when it is first needed. */
struct exact {
    const char *recipe;
    const struct trainer *reference;
    struct bench bench;
    bool open;
};

static struct trainer *exact_trainer(void *self) {
    struct exact *exact = self;
    struct trainer *trainer = &exact->bench.trainer;
    if (!exact->open) {
        char settings[1024];
        snprintf(settings, sizeof settings, "%s backend=tuned engine=eager dtype=f64 threads=2",
                 exact->recipe);
        bench_open(&exact->bench, settings, NULL);
        trainer->state.epoch = -1;
        exact->open = true;
    }
    if (trainer->state.epoch != exact->reference->state.epoch) {
        trainer->state = exact->reference->state;
        trainer->state.tally = (struct tally){0};
        trainer_begin_epoch(trainer);
    }
    return trainer;
}

static void compare_tallies(const struct tally *x, const struct tally *y, size_t images,
                            const struct lockstep_bound *bound) {
    const double differ = fabs((double)x->correct - (double)y->correct);
    assert_true(x->images == images && y->images == images);
    assert_true(x->batches == y->batches && !x->bad_step && !y->bad_step);
    if (!(differ <= fmax(1, bound->correct * (double)images)))
        fail_msg("%llu and %llu images were classified right", (unsigned long long)x->correct,
                 (unsigned long long)y->correct);
    assert_near(y->loss_sum / x->loss_sum, 1, bound->loss * 2);
}

struct lockstep_seen lockstep_check(struct bench *reference, struct bench *other, const char *recipe,
                                    const struct lockstep_bound *bound) {
    struct exact *exact = calloc(1, sizeof *exact);
    struct bench *const benches[] = {reference, other};
    struct lockstep lockstep = {.reference = &reference->trainer,
                                .other = &other->trainer,
                                .bound = *bound,
                                .halve = true,
                                .exact = exact_trainer,
                                .self = exact};
    assert_non_null(exact);
    *exact = (struct exact){.recipe = recipe, .reference = &reference->trainer};
    assert_status(lockstep_open(&lockstep), STATUS_OK);
    assert_int_equal(lockstep_state_count(&reference->trainer), lockstep_state_count(&other->trainer));
    assert_int_equal(reference->trainer.steps, other->trainer.steps);
    for (int64_t epoch = 0; epoch < reference->config.epochs; epoch++) {
        struct tally tallies[2];
        for (int b = 0; b < 2; b++) trainer_begin_epoch(&benches[b]->trainer);
        for (size_t step = 0; step < reference->trainer.steps; step++)
            if (lockstep_step(&lockstep, step))
                fail_msg("epoch %lld: %s", (long long)epoch + 1, status_message());
        for (int b = 0; b < 2; b++) tallies[b] = end_epoch(benches[b]);
        compare_tallies(&tallies[0], &tallies[1], reference->trainer.train.count, bound);
    }
    lockstep_close(&lockstep);
    if (exact->open) bench_close(&exact->bench);
    free(exact);
    return lockstep.seen;
}

void lockstep_check_audits(const char *settings) {
    double *weights[2];
    size_t bytes = 0;
    for (int audited = 0; audited < 2; audited++) {
        char all[512];
        struct bench bench;
        struct run_summary summary;
        snprintf(all, sizeof all, "%s audit=%s", settings, audited ? "all" : "off");
        bench_open(&bench, all, NULL);
        assert_status(bench_run(&bench, &summary), STATUS_OK);
        assert_true(audited ? summary.steps_audited > 0 : summary.steps_audited == 0);
        assert_true((bench.profile.seconds[PART_AUDIT] > 0) == audited);
        weights[audited] = lockstep_state(&bench.trainer);
        bytes = lockstep_state_count(&bench.trainer) * sizeof **weights;
        bench_close(&bench);
    }
    assert_true(weights[0] && weights[1]);
    assert_memory_equal(weights[0], weights[1], bytes);
    free(weights[0]);
    free(weights[1]);
}

void lockstep_print(const struct lockstep_seen *seen) {
    print_message("  %zu steps: losses up to %.2g of the bound, updates %.2g; %zu discontinuous\n",
                  seen->steps, seen->loss, seen->update, seen->discontinuous);
}
