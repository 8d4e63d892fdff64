/* Engine fused against engine eager, for many networks, batches and numbers of threads. */
#include "kernels/fused.h"
#include "tests/lockstep.h"

#include <math.h>

#include "kernels/host/tuned/tuned.h"

static void open_engine(struct bench *bench, const char *engine, int threads, const char *settings) {
    char all[512];
    snprintf(all, sizeof all, "backend=tuned engine=%s threads=%d %s", engine, threads, settings);
    bench_open(bench, all, NULL);
    assert_string_equal(bench->trainer.engine->name, engine);
    assert_string_equal(bench->trainer.notice, "");
}

/* Networks of one to four layers. Batches: one image, small, not divisible by any tile, with several blocks
   of k, shared by threads. Some blocks of k begin inside a panel of the weights. The last batch of an epoch
   is partial. */
static const char *const recipes[] = {
    "layers=784-10 batch-size=128 epochs=2",
    "layers=784-128-10 batch-size=128 epochs=2 weight-decay=0.01",
    "layers=784-70-33-10 batch-size=37 epochs=1 activation=gelu",
    "layers=784-64-40-50-26 batch-size=600 epochs=6 activation=tanh init=xavier",
    "layers=784-90-10 batch-size=600 epochs=6 momentum=0.9 weight-decay=0.001 lr=0.02",
    "layers=784-48-32-10 batch-size=1100 epochs=6 momentum=0.5 activation=sigmoid schedule=cosine",
    "layers=784-40-500-10 batch-size=100 epochs=1",
    "layers=784-70-33-40-10 batch-size=1100 epochs=5 lr=0.2",
    ("layers=42-50-40-30-4 batch-size=1 epochs=4 lr=0.001 activation=scaled-tanh init=uniform "
     "init-range=0.05 input-range=-1,1"),
};
enum { RECIPES = sizeof recipes / sizeof *recipes };

/* Free-running, in float64. */
static void losses_of_eager(const char *isa, size_t first, size_t stride) {
    for (size_t r = first; r < RECIPES; r += stride) {
        struct bench eager, fused;
        struct run_summary a, b;
        char settings[320];
        snprintf(settings, sizeof settings, "%s backend=tuned:isa=%s dtype=f64 log-steps=400", recipes[r],
                 isa);
        open_engine(&eager, "eager", 2, settings);
        open_engine(&fused, "fused", 2, settings);
        assert_status(bench_run(&eager, &a), STATUS_OK);
        assert_status(bench_run(&fused, &b), STATUS_OK);
        assert_true(eager.steps == fused.steps && eager.steps > 10);
        for (size_t s = 0; s < eager.steps; s++) assert_near(fused.losses[s] / eager.losses[s], 1, 1e-11);
        assert_int_equal(a.test.correct, b.test.correct);
        assert_true(fused.last.train_images == eager.last.train_images);
        assert_near(fused.last.train_loss / eager.last.train_loss, 1, 1e-11);
        bench_close(&eager);
        bench_close(&fused);
    }
}

/* Step by step, in float32. */
static void steps_of_eager(const char *isa, size_t first, size_t stride) {
    for (size_t r = first; r < RECIPES; r += stride) {
        struct bench eager, fused;
        char settings[320];
        snprintf(settings, sizeof settings, "%s backend=tuned:isa=%s", recipes[r], isa);
        open_engine(&eager, "eager", 2, settings);
        open_engine(&fused, "fused", 2, settings);
        const struct lockstep_seen seen = lockstep_check(&eager, &fused, recipes[r], &lockstep_float32);
        assert_true(seen.steps > 10 && seen.discontinuous <= seen.steps / 20);
        bench_close(&eager);
        bench_close(&fused);
    }
}

/* Every recipe on every instruction set; a sample takes one recipe on each, `sample` and those after it. */
static void on_every_isa(void (*check)(const char *isa, size_t first, size_t stride), size_t sample) {
    const bool sampled = support_stride() > 1;
    const size_t stride = sampled ? RECIPES : 1;
    check("auto", sampled ? sample : 0, stride);
    check("portable", sampled ? sample + 1 : 0, stride);
#if defined(__x86_64__)
    if (tuned_avx2.usable()) check("avx2", sampled ? sample + 2 : 0, stride);
#endif
}

static void losses_of_eager_in_float64(void **state) {
    (void)state;
    on_every_isa(losses_of_eager, 0);
}

static void steps_of_eager_in_float32(void **state) {
    (void)state;
    on_every_isa(steps_of_eager, 6);
}

/* Runs one epoch in calls of at most 1, 2, 3 .. steps; stops the third call after its first step. */
static void in_pieces(const char *settings) {
    struct bench whole, pieces;
    struct run_summary summary;
    open_engine(&whole, "fused", 2, settings);
    open_engine(&pieces, "fused", 2, settings);
    assert_status(bench_run(&whole, &summary), STATUS_OK);
    struct trainer *trainer = &pieces.trainer;
    trainer_begin_epoch(trainer);
    for (size_t step = 0, call = 0; step < trainer->steps; call++) {
        size_t count = call + 1 < trainer->steps - step ? call + 1 : trainer->steps - step;
        const size_t asked = count;
        pieces.stop = call == 2;
        assert_status(trainer->engine->run(trainer, step, &count), STATUS_OK);
        assert_in_range(count, 1, call == 2 ? 1 : asked); /* fewer if steps are slow */
        step += count;
        assert_int_equal(trainer->tally->batches, step);
    }
    assert_memory_equal(whole.trainer.mlp.parameters, trainer->mlp.parameters,
                        trainer->mlp.parameter_elements * sizeof(float));
    assert_int_equal(trainer->tally->images, 2500);
    bench_close(&whole);
    bench_close(&pieces);
}

/* After each call the weights are in the arena of the network. */
static void steps_in_pieces(void **state) {
    (void)state;
    in_pieces("layers=784-40-10 batch-size=64 epochs=1 momentum=0.9");
    in_pieces("layers=784-40-50-10 batch-size=64 epochs=1");
}

static void audits_change_nothing(void **state) {
    (void)state;
    char settings[512];
    for (size_t r = 0; r < RECIPES; r += support_every(8)) {
        snprintf(settings, sizeof settings, "backend=tuned engine=fused threads=2 %s", recipes[r]);
        lockstep_check_audits(settings);
    }
}

/* A backend whose steps are right alone and in short calls, and wrong in long ones. */
extern const struct gemm_backend gemm_tuned; /* kernels/host/tuned/tuned.c */
static struct fused_network long_network;

static void *open_long(void *context, const struct fused_network *network, bool forced, char *why,
                       size_t size) {
    long_network = *network;
    return gemm_tuned.fused->open(context, network, forced, why, size);
}

static size_t run_long(void *state, size_t first, size_t count, const volatile sig_atomic_t *stop,
                       struct fused_times *times) {
    const size_t done = gemm_tuned.fused->run(state, first, count, stop, times);
    const struct fused_layer *layer = &long_network.layer[0];
    for (size_t i = 0; i < layer->in * layer->out && done > 16; i++) ((float *)layer->weight)[i] *= 1.1F;
    return done;
}

static void long_calls_are_audited(void **state) {
    (void)state;
    struct gemm_fused fused = *gemm_tuned.fused;
    struct gemm_backend backend = gemm_tuned;
    struct bench bench;
    struct run_summary summary;
    fused.open = open_long;
    fused.run = run_long;
    backend.fused = &fused;
    for (int wrong = 0; wrong < 2; wrong++) {
        bench_prepare(&bench, "backend=tuned engine=fused audit=all layers=784-30-10 batch-size=20 epochs=2");
        if (wrong) bench.compute.backend = &backend;
        assert_status(trainer_open(&bench.trainer, &bench.compute, &bench.config, &bench.data, NULL),
                      STATUS_OK);
        bench.trainer.stop = &bench.stop;
        assert_status(bench_run(&bench, &summary), wrong ? STATUS_VERIFY_FAILED : STATUS_OK);
        if (wrong) assert_says(status_message(), "steps in one call the weights of layer 1 are ");
        bench_close(&bench);
    }
}

/* A fault of one step is found with the same probability wherever it is. */
static void the_first_audit_is_at_a_random_step(void **state) {
    (void)state;
    enum { RUNS = 24 };
    struct bench bench;
    size_t seen[2] = {0}; /* steps in halves of an epoch */
    bench_open(&bench, "backend=tuned engine=fused layers=784-8-10 batch-size=125", NULL);
    const size_t steps = bench.trainer.steps;
    bench_close(&bench);
    assert_int_equal(steps, 20);
    for (int run = 0; run < RUNS; run++) {
        bench_open(&bench, "backend=tuned engine=fused layers=784-8-10 batch-size=125", NULL);
        const uint64_t step = bench.trainer.step_audit.next;
        assert_true(step < steps);
        seen[step / 10]++;
        bench_close(&bench);
    }
    assert_true(seen[0] > 0 && seen[1] > 0); /* chance of a wrong alarm: 2^-23 */
}

/* Both engines: a step, all parameters halved, another step. */
static void weights_may_change_between_calls(void **state) {
    (void)state;
    struct bench bench[2];
    for (int b = 0; b < 2; b++) {
        open_engine(&bench[b], b ? "fused" : "eager", 2, "layers=784-40-50-10 batch-size=64 epochs=1");
        struct trainer *trainer = &bench[b].trainer;
        float *parameter = trainer->mlp.parameters;
        trainer_begin_epoch(trainer);
        for (size_t step = 0; step < 2; step++) {
            size_t count = 1;
            assert_status(trainer->engine->run(trainer, step, &count), STATUS_OK);
            for (size_t i = 0; i < trainer->mlp.parameter_elements && step == 0; i++) parameter[i] *= 0.5F;
        }
    }
    const float *eager = bench[0].trainer.mlp.parameters, *fused = bench[1].trainer.mlp.parameters;
    for (size_t i = 0; i < bench[0].trainer.mlp.parameter_elements; i++)
        assert_near(fused[i], eager[i], 1e-6); /* a few roundings of values below 1 */
    bench_close(&bench[0]);
    bench_close(&bench[1]);
}

static void a_bad_step_changes_no_weight(void **state) {
    (void)state;
    struct bench bench;
    struct run_summary summary;
    open_engine(&bench, "fused", 2, "layers=42-20-18-4 batch-size=16 epochs=2");
    float *weight = bench.trainer.mlp.layer[1].weight, kept[20 * 18];
    memcpy(kept, weight, sizeof kept);
    weight[3] = NAN;
    assert_status(bench_run(&bench, &summary), STATUS_FAILED);
    assert_says(status_message(),
                "epoch 1, step 1; it starts in layer 2 (20 to 18), whose weights are not finite");
    weight[3] = kept[3];
    assert_memory_equal(kept, weight, sizeof kept);
    bench_close(&bench);
}

static void unsupported_networks_fall_back_to_eager(void **state) {
    (void)state;
    struct bench bench;
    bench_open(&bench, "backend=serial engine=fused layers=42-9-4 batch-size=16", NULL);
    assert_string_equal(bench.trainer.engine->name, "eager");
    assert_says(bench.trainer.notice,
                "engine fused cannot be used here: backend 'serial' has no fused steps; eager instead");
    bench_close(&bench);
    bench_open(&bench, "backend=serial layers=42-9-4 batch-size=16", NULL);
    assert_string_equal(bench.trainer.notice, ""); /* engine=auto needs no notice */
    bench_close(&bench);
    bench_open(&bench, "backend=tuned layers=42-9-4 batch-size=16", NULL);
    assert_string_equal(bench.trainer.engine->name, "fused");
    bench_close(&bench);
}

/* The profile has the flops of an epoch and accounts for all of the time. */
static void profile_covers_a_step(void **state) {
    (void)state;
    struct bench bench;
    struct run_summary summary;
    open_engine(&bench, "fused", 2, "layers=784-300-200-10 batch-size=100 epochs=2");
    assert_status(bench_run(&bench, &summary), STATUS_OK);
    const struct profile *time = &summary.time;
    assert_near(time->gemm[0][0].flops, 2.0 * 784 * 300 * 2500 * 2, 1);
    assert_near(time->gemm[1][1].flops, 2.0 * 300 * 200 * 2500 * 2, 1);
    assert_near(time->gemm[2][2].flops, 2.0 * 200 * 10 * 2500 * 2, 1);
    assert_true(time->gemm[2][0].flops == 0);
    const double parts = time->seconds[PART_GEMM_NN] + time->seconds[PART_GEMM_TN] +
                         time->seconds[PART_GEMM_NT] + time->seconds[PART_BATCH] +
                         time->seconds[PART_ELEMENTWISE];
    assert_true(parts > 0.8 * profile_training(time) && parts <= profile_training(time) * 1.000001);
    bench_close(&bench);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(losses_of_eager_in_float64),
        cmocka_unit_test(steps_of_eager_in_float32),
        cmocka_unit_test(steps_in_pieces),
        cmocka_unit_test(audits_change_nothing),
        cmocka_unit_test(long_calls_are_audited),
        cmocka_unit_test(the_first_audit_is_at_a_random_step),
        cmocka_unit_test(weights_may_change_between_calls),
        cmocka_unit_test(a_bad_step_changes_no_weight),
        cmocka_unit_test(unsupported_networks_fall_back_to_eager),
        cmocka_unit_test(profile_covers_a_step),
    };
    return cmocka_run_group_tests_name("fused", tests, NULL, NULL);
}
