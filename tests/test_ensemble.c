/* Ensembles: each member equals a single run, trained sequentially or concurrently; the committee,
   checkpoints, interruptions and failures. */
#include "src/nn/ensemble.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/training_bench.h"

enum { MEMBERS = 3 };
#define RECIPE "threads=1 layers=42-9-4 batch-size=16 epochs=5 momentum=0.9 lr=0.05 seed=7 "
#define THREE "ensemble=3 "

/* What the observer received for each member, in the order of the calls of `done`. */
struct group {
    struct bench bench; /* config, compute and data */
    struct ensemble ensemble;
    size_t epochs, steps, done;
    int64_t seed[MEMBERS];
    float *parameters[MEMBERS];
    double loss[MEMBERS]; /* of the last epoch */
    size_t stop_after;    /* epochs of all members; 0: never */
};

static void on_step(void *self, const struct member *member, size_t step, double loss) {
    struct group *group = self;
    assert_true(step > 0 && loss > 0 && member->config.seed >= group->bench.config.seed);
    group->steps++;
}

static void on_epoch(void *self, const struct member *member) {
    struct group *group = self;
    assert_int_equal(member->last.train_images, 50 - member->config.validation);
    group->epochs++;
    if (group->stop_after && group->epochs >= group->stop_after)
        __atomic_store_n(&group->bench.stop, 1, __ATOMIC_RELAXED); /* other threads read it */
}

static void on_done(void *self, const struct member *member) {
    struct group *group = self;
    const size_t bytes = member->trainer.mlp.parameter_elements * sizeof(float);
    float *copy = malloc(bytes);
    assert_non_null(copy);
    memcpy(copy, member->trainer.mlp.parameters, bytes); /* host memory */
    group->seed[group->done] = member->config.seed;
    group->loss[group->done] = member->last.train_loss;
    group->parameters[group->done++] = copy;
}

static enum status open_group(struct group *group, const char *settings, bool at_once) {
    *group = (struct group){0};
    bench_prepare(&group->bench, settings);
    return ensemble_open(&group->ensemble, &group->bench.compute, &group->bench.config, &group->bench.data,
                         NULL, at_once, clock_seconds());
}

static enum status run_group(struct group *group) {
    const struct ensemble_observer observer = {
        .self = group, .step = on_step, .epoch = on_epoch, .done = on_done};
    return ensemble_run(&group->ensemble, &observer, &group->bench.stop);
}

static void close_group(struct group *group) {
    for (size_t m = 0; m < group->done; m++) free(group->parameters[m]);
    ensemble_close(&group->ensemble);
    bench_close(&group->bench);
}

/* The host backends that may train several networks concurrently: those without a thread pool. */
static const char *const at_once_backends[] = {"serial", "openmp"};

static void check_members(const char *backend, bool at_once) {
    struct group group;
    char settings[256];
    snprintf(settings, sizeof settings, "backend=%s " RECIPE THREE "log-steps=6", backend);
    assert_status(open_group(&group, settings, at_once), STATUS_OK);
    assert_status(run_group(&group), STATUS_OK);
    assert_int_equal(group.done, MEMBERS);
    assert_int_equal(group.epochs, MEMBERS * 5);
    assert_int_equal(group.steps, MEMBERS * 6);
    for (int m = 0; m < MEMBERS; m++) {
        struct bench alone;
        struct run_summary summary;
        snprintf(settings, sizeof settings, "backend=%s " RECIPE "seed=%d", backend, 7 + m);
        bench_open(&alone, settings, NULL);
        assert_status(bench_run(&alone, &summary), STATUS_OK);
        assert_int_equal(group.seed[m], 7 + m);
        assert_true(group.loss[m] == alone.last.train_loss);
        assert_memory_equal(group.parameters[m], alone.trainer.mlp.parameters,
                            alone.trainer.mlp.parameter_elements * sizeof(float));
        const struct evaluation *test = &group.ensemble.test.committee.member[m];
        assert_int_equal(test->correct, summary.test.correct);
        assert_true(test->loss == summary.test.loss);
        bench_close(&alone);
    }
    assert_true(memcmp(group.parameters[0], group.parameters[1], 42 * 9 * sizeof(float)) != 0);
    assert_true(group.ensemble.seconds > 0 && group.ensemble.epoch_seconds > 0);
    close_group(&group);
}

static void members_are_runs_of_their_own(void **state) {
    (void)state;
    check_members("serial", false);
    check_members("tuned", false);
    for (size_t b = 0; b < sizeof at_once_backends / sizeof *at_once_backends; b++)
        check_members(at_once_backends[b], true);
}

/* --- the committee, computed here --- */

/* Log softmax of a network 42-9-4 with ReLU. */
static void log_probabilities(const float *parameters, const struct mlp *like, const uint8_t *image,
                              double *to) {
    const char *base = like->parameters;
    const struct mlp_layer *layer = like->layer;
    const float *at[2][2];
    double x[42], y[9], sum = 0;
    for (int l = 0; l < 2; l++) {
        at[l][0] = parameters + ((const char *)layer[l].weight - base) / (ptrdiff_t)sizeof(float);
        at[l][1] = parameters + ((const char *)layer[l].bias - base) / (ptrdiff_t)sizeof(float);
    }
    for (int i = 0; i < 42; i++) x[i] = image[i] / 255.0;
    for (int j = 0; j < 9; j++) {
        y[j] = at[0][1][j];
        for (int i = 0; i < 42; i++) y[j] += x[i] * at[0][0][i * 9 + j];
        y[j] = fmax(y[j], 0);
    }
    for (int c = 0; c < 4; c++) {
        to[c] = at[1][1][c];
        for (int j = 0; j < 9; j++) to[c] += y[j] * at[1][0][j * 4 + c];
        sum += exp(to[c]);
    }
    for (int c = 0; c < 4; c++) to[c] -= log(sum);
}

static void the_committee_is_the_mean_log_probability(void **state) {
    (void)state;
    struct group group;
    assert_status(open_group(&group, "backend=serial " RECIPE THREE, true), STATUS_OK);
    assert_status(run_group(&group), STATUS_OK);
    const struct dataset *test = &group.bench.data.test;
    const struct mlp *like = &group.ensemble.member[0].trainer.mlp;
    uint64_t correct = 0;
    double loss = 0;
    for (size_t i = 0; i < test->count; i++) {
        double mean[4] = {0}, sum = 0;
        size_t best = 0;
        for (int m = 0; m < MEMBERS; m++) {
            double one[4];
            log_probabilities(group.parameters[m], like, test->images + i * 42, one);
            for (int c = 0; c < 4; c++) mean[c] += one[c] / MEMBERS;
        }
        for (size_t c = 0; c < 4; c++) {
            sum += exp(mean[c]);
            if (mean[c] > mean[best]) best = c;
        }
        correct += best == test->labels[i];
        loss -= (mean[test->labels[i]] - log(sum)) / (double)test->count;
    }
    const struct ensemble_part *part = &group.ensemble.test;
    assert_int_equal(part->evaluation.total, test->count);
    assert_int_equal(part->evaluation.correct, correct);
    assert_near(part->evaluation.loss, loss, 1e-5);
    double accuracy = 0, least = 1;
    for (int m = 0; m < MEMBERS; m++) {
        const double one = (double)part->committee.member[m].correct / (double)test->count;
        accuracy += one / MEMBERS;
        least = fmin(least, one);
    }
    assert_near(part->accuracy.mean, accuracy, 1e-12);
    assert_true(part->accuracy.min == least && part->accuracy.count == MEMBERS);
    assert_int_equal(group.ensemble.validation.committee.members, 0);
    close_group(&group);
}

/* If two members prefer different classes, the more confident one decides. */
static void the_more_confident_member_wins(void **state) {
    (void)state;
    double sum[] = {log(0.9) + log(0.4), log(0.1) + log(0.6)};
    uint8_t label;
    double confidence;
    const uint8_t truth = 0;
    const struct committee both = {.members = 2, .count = 1, .classes = 2, .sum = sum};
    const struct predictions predictions = {.label = &label, .confidence = &confidence};
    const struct evaluation evaluation = committee_evaluate(&both, &truth, &predictions);
    const double right = sqrt(0.9 * 0.4), wrong = sqrt(0.1 * 0.6);
    assert_int_equal(label, 0);
    assert_int_equal(evaluation.correct, 1);
    assert_near(confidence, right / (right + wrong), 1e-12);
    assert_near(evaluation.loss, -log(right / (right + wrong)), 1e-12);
}

/* If a member's output has a NaN, the image counts as wrong for every label. */
static void a_nan_is_never_right(void **state) {
    (void)state;
    double sum[] = {NAN, NAN, log(0.9), log(0.1)};
    const uint8_t truth[] = {0, 0};
    const struct committee both = {.members = 1, .count = 2, .classes = 2, .sum = sum};
    const struct evaluation evaluation = committee_evaluate(&both, truth, NULL);
    assert_int_equal(evaluation.correct, 1);
    assert_true(isnan(evaluation.loss));
}

static void committees_evaluate_the_validation_part(void **state) {
    (void)state;
    struct group group;
    assert_status(open_group(&group, "backend=serial " RECIPE THREE "epochs=0 validation=20", false),
                  STATUS_OK);
    assert_status(run_group(&group), STATUS_OK);
    assert_int_equal(group.ensemble.validation.committee.members, MEMBERS);
    assert_int_equal(group.ensemble.validation.evaluation.total, 20);
    assert_int_equal(group.ensemble.test.evaluation.total, 50);
    close_group(&group);
}

static void averages_have_a_committee(void **state) {
    (void)state;
    static const char *const precisions[] = {"f32", "bf16"};
    for (int i = 0; i < 4; i++) {
        struct group group;
        char settings[256];
        snprintf(settings, sizeof settings,
                 "backend=serial " RECIPE THREE "epochs=2 validation=20 ema-decay=0.8 precision=%s",
                 precisions[i / 2]);
        assert_status(open_group(&group, settings, i % 2), STATUS_OK);
        assert_status(run_group(&group), STATUS_OK);
        bench_check_averages(&group.ensemble);
        close_group(&group);
    }
}

/* --- files --- */

static void files_are_named_by_seed(void **state) {
    (void)state;
    static const char *const cases[][2] = {{"model.safetensors", "model-seed3.safetensors"},
                                           {"a.b/model", "a.b/model-seed3"},
                                           {"./.hidden", "./.hidden-seed3"},
                                           {"x.y.z", "x.y-seed3.z"},
                                           {"", ""}};
    struct config config = {.seed = 3, .ensemble = 2};
    char text[32];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_status(ensemble_path(&config, cases[i][0], text, sizeof text), STATUS_OK);
        assert_string_equal(text, cases[i][1]);
    }
    assert_status(ensemble_path(&config, "a-name-that-is-too-long.safetensors", text, sizeof text),
                  STATUS_USAGE);
    config.ensemble = 1;
    assert_status(ensemble_path(&config, "model.safetensors", text, sizeof text), STATUS_OK);
    assert_string_equal(text, "model.safetensors");
}

/* Interrupted and resumed, an ensemble ends with the weights of an uninterrupted one. A single run can also
   resume a member's file. */
static void members_resume_from_their_files(void **state) {
    (void)state;
    for (int at_once = 0; at_once < 2; at_once++) {
        struct group whole, first, second;
        char path[256], settings[600];
        snprintf(path, sizeof path, "%s",
                 support_path(at_once ? "concurrent.safetensors" : "sequential.safetensors"));
        assert_status(open_group(&whole, "backend=serial " RECIPE THREE, at_once), STATUS_OK);
        assert_status(run_group(&whole), STATUS_OK);

        snprintf(settings, sizeof settings, "backend=serial " RECIPE THREE "save=%s", path);
        assert_status(open_group(&first, settings, at_once), STATUS_OK);
        first.stop_after = 7; /* sequentially: in the second member's third epoch */
        assert_status(run_group(&first), STATUS_INTERRUPTED);
        assert_int_equal(first.done, at_once ? 3 : 2);
        assert_int_equal(first.ensemble.test.committee.members, first.done);
        assert_int_equal(first.ensemble.test.accuracy.count, first.done);

        snprintf(settings, sizeof settings, "backend=serial " RECIPE THREE "resume=%s", path);
        assert_status(open_group(&second, settings, at_once), STATUS_OK);
        assert_status(run_group(&second), STATUS_OK);
        assert_int_equal(second.done, MEMBERS);
        const size_t bytes = (42 * 9 + 9 * 4) * sizeof(float);
        for (int m = 0; m < MEMBERS; m++)
            assert_memory_equal(whole.parameters[m], second.parameters[m], bytes);

        struct bench alone;
        struct run_summary summary;
        struct checkpoint checkpoint;
        second.bench.config.seed = 8;
        assert_status(ensemble_path(&second.bench.config, path, settings, sizeof settings), STATUS_OK);
        assert_status(checkpoint_open(&checkpoint, settings), STATUS_OK);
        bench_open(&alone, "backend=serial " RECIPE "seed=8", &checkpoint);
        checkpoint_close(&checkpoint);
        assert_status(bench_run(&alone, &summary), STATUS_OK);
        assert_memory_equal(whole.parameters[1], alone.trainer.mlp.parameters, bytes);
        bench_close(&alone);
        close_group(&whole);
        close_group(&first);
        close_group(&second);
    }
    struct group none;
    char settings[400];
    snprintf(settings, sizeof settings, "backend=serial " RECIPE THREE "resume=%s", support_path("none"));
    assert_status(open_group(&none, settings, false), STATUS_BAD_DATA);
    assert_says(status_message(), "seed 7: ");
    assert_says(status_message(), "none-seed7");
    bench_close(&none.bench);
}

/* --- failures --- */

static void a_failed_member_stops_the_others(void **state) {
    (void)state;
    struct group group;
    assert_status(open_group(&group, "backend=serial " RECIPE THREE "epochs=100000", true), STATUS_OK);
    ((float *)group.ensemble.member[1].trainer.mlp.layer[0].weight)[3] = NAN;
    assert_status(run_group(&group), STATUS_FAILED);
    assert_says(status_message(), "seed 8: the loss is not finite at epoch 1, step 1");
    assert_int_equal(group.ensemble.test.committee.members, 2); /* the other members' results remain */
    assert_true(group.seed[0] == 7 && group.seed[1] == 9);
    close_group(&group);

    assert_status(open_group(&group, "backend=serial " RECIPE THREE "lr=1000 weight-decay=100", false),
                  STATUS_OK);
    assert_status(run_group(&group), STATUS_FAILED);
    assert_says(status_message(), "seed 7: the loss is not finite");
    assert_int_equal(group.done, 0);
    close_group(&group);
}

static void stopped_before_it_begins(void **state) {
    (void)state;
    struct group group;
    assert_status(open_group(&group, "backend=serial " RECIPE THREE, false), STATUS_OK);
    group.bench.stop = 1;
    assert_status(run_group(&group), STATUS_INTERRUPTED);
    assert_int_equal(group.ensemble.test.committee.members, 0);
    close_group(&group);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(members_are_runs_of_their_own),
        cmocka_unit_test(the_committee_is_the_mean_log_probability),
        cmocka_unit_test(the_more_confident_member_wins),
        cmocka_unit_test(a_nan_is_never_right),
        cmocka_unit_test(committees_evaluate_the_validation_part),
        cmocka_unit_test(averages_have_a_committee),
        cmocka_unit_test(files_are_named_by_seed),
        cmocka_unit_test(members_resume_from_their_files),
        cmocka_unit_test(a_failed_member_stops_the_others),
        cmocka_unit_test(stopped_before_it_begins),
    };
    return cmocka_run_group_tests_name("ensemble", tests, NULL, NULL);
}
