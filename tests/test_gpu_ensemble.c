/* Ensembles on the GPU, with every engine: concurrent members have the bits of single runs on the same share
   of the GPU, and each step is near that of a run on the whole GPU. */
#include "src/nn/ensemble.h"
#include "tests/gpu.h"
#include "tests/lockstep.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Each recipe also runs alone: with ensemble=N in its config, a run uses a member's share of the GPU. */
static const struct recipe {
    const char *engine, *settings;
    int members;
} recipes[] = {
    {"fused", "layers=784-128-10 batch-size=128 epochs=2 momentum=0.9 lr=0.05", 2}, /* split over units */
    {"fused", "layers=784-37-10 batch-size=127 epochs=2", 3},                       /* split over pixels */
    {"fused", "layers=784-128-10 batch-size=100 epochs=2 weight-decay=0.001", 8},   /* split over units */
    {"fused", "layers=784-97-12 batch-size=127 epochs=2 momentum=0.9 lr=0.05 activation=gelu",
     5}, /* the same, on an odd number of SMs */
    {"fused", "layers=784-20-10 batch-size=128 epochs=2 momentum=0.5 init=xavier",
     20}, /* each on 3 of its 6 SMs */
    {"fused", "layers=784-70-33-10 batch-size=37 epochs=1 activation=gelu", 5},
    {"fused", "layers=784-20-10 batch-size=300 epochs=2 dtype=f64", 40}, /* each on 3 SMs */
    {"graph", "layers=784-64-10 batch-size=100 epochs=2", 4},
    {"eager", "layers=784-64-10 batch-size=100 epochs=2 momentum=0.5", 4},
};
enum { RECIPES = sizeof recipes / sizeof *recipes, MOST = 40 };

static void settings_of(const struct recipe *recipe, int64_t seed, char *text, size_t size) {
    snprintf(text, size, "backend=cuda-tuned engine=%s seed=%lld ensemble=%d log-steps=60 %s", recipe->engine,
             (long long)seed, recipe->members, recipe->settings);
}

struct group {
    struct bench bench; /* config, compute and data */
    struct ensemble ensemble;
    double losses[MOST][60];
};

static void on_step(void *self, const struct member *member, size_t step, double loss) {
    struct group *group = self;
    group->losses[member - group->ensemble.member][step - 1] = loss;
}

/* The caller closes and frees it. */
static struct group *open_group(const char *settings) {
    gpu_needed();
    struct group *group = calloc(1, sizeof *group);
    assert_non_null(group);
    bench_prepare(&group->bench, settings);
    assert_true(ensemble_is_concurrent(&group->bench.compute));
    assert_status(ensemble_open(&group->ensemble, &group->bench.compute, &group->bench.config,
                                &group->bench.data, NULL, true, clock_seconds()),
                  STATUS_OK);
    return group;
}

static enum status run_group(struct group *group) {
    const struct ensemble_observer observer = {.self = group, .step = on_step};
    return ensemble_run(&group->ensemble, &observer, &group->bench.stop);
}

static void close_group(struct group *group) {
    ensemble_close(&group->ensemble);
    bench_close(&group->bench);
    free(group);
}

/* All parameters. The caller frees them. */
static void *parameters(const struct trainer *trainer, size_t *bytes) {
    struct device *device = &trainer->compute->device;
    *bytes = trainer->mlp.parameter_elements * dtype_size(trainer->mlp.dtype);
    void *values = malloc(*bytes);
    assert_non_null(values);
    device->driver->download(device, values, trainer->mlp.parameters, *bytes);
    return values;
}

static void members_are_runs_of_their_own(void **state) {
    (void)state;
    for (size_t r = 0; r < RECIPES; r += support_every(3)) {
        char settings[512], of_member[160], of_run[160];
        settings_of(&recipes[r], 3, settings, sizeof settings);
        struct group *group = open_group(settings);
        assert_status(run_group(group), STATUS_OK);
        assert_int_equal(group->ensemble.test.committee.members, recipes[r].members);
        for (int m = 0; m<recipes[r].members; m += recipes[r].members> 8 ? 13 : 1) {
            const struct trainer *trainer = &group->ensemble.member[m].trainer;
            struct bench alone;
            struct run_summary summary;
            size_t bytes;
            settings_of(&recipes[r], 3 + m, settings, sizeof settings);
            bench_open(&alone, settings, NULL);
            engine_describe(trainer, of_member, sizeof of_member);
            engine_describe(&alone.trainer, of_run, sizeof of_run);
            assert_string_equal(trainer->engine->name, recipes[r].engine);
            assert_string_equal(of_member, of_run);
            assert_status(bench_run(&alone, &summary), STATUS_OK);
            assert_memory_equal(group->losses[m], alone.losses, alone.steps * sizeof *alone.losses);
            void *x = parameters(trainer, &bytes), *y = parameters(&alone.trainer, &bytes);
            assert_memory_equal(x, y, bytes);
            assert_int_equal(group->ensemble.test.committee.member[m].correct, summary.test.correct);
            free(x);
            free(y);
            bench_close(&alone);
        }
        close_group(group);
    }
}

/* A run on a member's share of the GPU against one on the whole GPU, which may use another form or grid. */
static void steps_of_runs_on_the_whole_gpu(void **state) {
    (void)state;
    for (size_t r = 0; r < RECIPES; r += support_every(3)) {
        struct bench part, whole;
        struct run_summary summary;
        char settings[512];
        gpu_needed();
        settings_of(&recipes[r], 3, settings, sizeof settings);
        bench_open(&part, settings, NULL);
        snprintf(settings + strlen(settings), sizeof settings - strlen(settings), " ensemble=1");
        bench_open(&whole, settings, NULL);
        if (whole.trainer.mlp.dtype == GEMM_F64) {
            assert_status(bench_run(&part, &summary), STATUS_OK);
            assert_status(bench_run(&whole, &summary), STATUS_OK);
            assert_true(whole.steps >= 8);
            for (size_t s = 0; s < whole.steps; s++) assert_near(part.losses[s] / whole.losses[s], 1, 1e-11);
        } else {
            char recipe[300];
            snprintf(recipe, sizeof recipe, "seed=3 %s", recipes[r].settings);
            const struct lockstep_seen seen = lockstep_check(&whole, &part, recipe, &lockstep_float32);
            lockstep_print(&seen);
            assert_true(seen.steps >= 8);
        }
        bench_close(&part);
        bench_close(&whole);
    }
}

/* The thread blocks of all members together do not exceed the number of SMs. */
static void the_blocks_of_all_fit(void **state) {
    (void)state;
    static const char *const networks[] = {"layers=784-128-10", "layers=784-64-40-10", "layers=784-10"};
    char settings[256], how[160];
    int sms = 0;
    for (size_t n = 0; n < sizeof networks / sizeof *networks; n++)
        for (int members = 1; members <= 32; members *= 2) {
            struct bench bench;
            gpu_needed();
            snprintf(settings, sizeof settings, "backend=cuda-tuned engine=fused ensemble=%d %s", members,
                     networks[n]);
            bench_open(&bench, settings, NULL);
            const char *found = strstr(bench.compute.gpu, " SMs");
            while (found && found > bench.compute.gpu && found[-1] >= '0' && found[-1] <= '9') found--;
            assert_non_null(found);
            sms = atoi(found);
            engine_describe(&bench.trainer, how, sizeof how);
            int a = 0, b = 1, chain, workers;
            const char *on = strstr(how, " on ");
            assert_non_null(on);
            const bool cluster = sscanf(on, " on a cluster of %d and %d workers", &chain, &workers) == 2;
            assert_true(cluster || sscanf(on, " on %d x %d blocks", &a, &b) >= 1);
            const int blocks = cluster ? chain + workers : a * b;
            assert_true(blocks >= 1 && (blocks * members <= sms || blocks == 1));
            bench_close(&bench);
        }
}

static void a_failed_member_stops_the_others(void **state) {
    (void)state;
    const float wrong = NAN;
    struct group *group =
        open_group("backend=cuda-tuned engine=fused ensemble=4 seed=3 layers=784-40-10 epochs=100000");
    const struct trainer *bad = &group->ensemble.member[2].trainer;
    bad->compute->device.driver->upload(&bad->compute->device, bad->mlp.layer[0].weight, &wrong,
                                        sizeof wrong);
    assert_status(run_group(group), STATUS_FAILED);
    assert_says(status_message(), "seed 5: the loss is not finite at epoch 1, step 1");
    assert_int_equal(group->ensemble.test.committee.members, 3);
    close_group(group);
}

static void several_networks_in_one_process(void **state) {
    (void)state;
    double accuracy[2];
    for (int i = 0; i < 2; i++) {
        struct group *group = open_group("backend=cuda-tuned ensemble=6 layers=784-64-10 epochs=3");
        assert_status(run_group(group), STATUS_OK);
        accuracy[i] = group->ensemble.test.evaluation.loss;
        close_group(group);
    }
    assert_true(accuracy[0] == accuracy[1]);
}

static void averages_have_a_committee(void **state) {
    (void)state;
    static const char *const settings[] = {
        "backend=cuda-tuned ensemble=3 layers=784-64-10 epochs=2 validation=500 ema-decay=0.9",
        "backend=cublas ensemble=2 layers=784-64-10 epochs=2 validation=500 ema-decay=0.9 precision=bf16 "
        "engine=eager"};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        struct group *group = open_group(settings[i]);
        assert_status(run_group(group), STATUS_OK);
        bench_check_averages(&group->ensemble);
        close_group(group);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(members_are_runs_of_their_own),   cmocka_unit_test(steps_of_runs_on_the_whole_gpu),
        cmocka_unit_test(the_blocks_of_all_fit),           cmocka_unit_test(a_failed_member_stops_the_others),
        cmocka_unit_test(several_networks_in_one_process), cmocka_unit_test(averages_have_a_committee),
    };
    return cmocka_run_group_tests_name("gpu ensemble", tests, NULL, NULL);
}
