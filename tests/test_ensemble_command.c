/* The commands train --ensemble and eval of several checkpoints; --verbose. */
#include "tests/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char output[1 << 16];

#define RUN(...) support_run(output, sizeof output, __VA_ARGS__)
#define SMALL "--data %s --layers 42-16-4 --batch-size 32 --epochs 2 --threads 1 "

static void assert_same_file(const char *one, const char *other) {
    size_t a, b;
    unsigned char *x = support_read(one, &a), *y = support_read(other, &b);
    assert_int_equal(a, b);
    assert_memory_equal(x, y, a);
    free(x);
    free(y);
}

/* eval of an ensemble's files prints what training printed for the committee. */
static void an_ensemble_and_its_files(void **state) {
    (void)state;
    const char *model = support_path("m.safetensors"), *log = support_path("e.jsonl"),
               *csv = support_path("e.csv"), *evaluated = support_path("v.jsonl");
    const char *file[3] = {support_path("m-seed4.safetensors"), support_path("m-seed5.safetensors"),
                           support_path("m-seed6.safetensors")};
    cJSON *line;
    assert_int_equal(RUN(SMALL "--ensemble 3 --seed 4 --lr 0.02 --log-steps 2 --save %s --log %s --csv %s",
                         support_data, model, log, csv),
                     0);
    assert_says(output, "seeds 4 to 6");
    assert_says(output, "3 networks, one after the other");
    assert_says(output, "mean of 3 ");
    assert_says(output, "committee ");
    assert_says(output, file[2]);
    assert_null(strstr(output, "where the time went"));
    assert_int_not_equal(access(model, F_OK), 0);

    double mean = 0;
    for (int m = 0; m < 3; m++) {
        assert_int_equal(support_log(log, "step", 4 + m, &line), 2);
        cJSON_Delete(line);
        assert_int_equal(support_log(log, "epoch", 4 + m, &line), 2);
        cJSON_Delete(line);
        assert_int_equal(support_log(log, "summary", 4 + m, &line), 1);
        mean += support_number(line, "test_accuracy") / 3;
        cJSON_Delete(line);
    }
    assert_int_equal(support_log(log, "ensemble", 0, &line), 1);
    assert_near(support_number(line, "test_accuracy_mean"), mean, 1e-12);
    assert_true(support_number(line, "members") == 3 && support_number(line, "test_total") == 100);
    assert_true(support_number(line, "seconds") > 0 && support_number(line, "epoch_seconds") > 0);
    assert_true(cJSON_IsFalse(cJSON_GetObjectItem(line, "at_once")));
    const double correct = support_number(line, "test_correct"), loss = support_number(line, "test_loss");
    cJSON_Delete(line);

    assert_int_equal(RUN("eval %s %s %s --threads 1 --log %s", file[0], file[1], file[2], evaluated), 0);
    assert_says(output, "mean of 3 ");
    assert_says(output, "confusion matrix");
    assert_int_equal(support_log(evaluated, "evaluation", 0, &line), 4); /* each member, and the committee */
    assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(line, "checkpoint")),
                        "committee of 3 networks");
    assert_true(support_number(line, "test_correct") == correct);
    assert_near(support_number(line, "loss"), loss, 1e-12);
    assert_near(support_number(line, "test_accuracy_mean"), mean, 1e-12);
    cJSON_Delete(line);

    char *text = (char *)support_read(csv, &(size_t){0});
    assert_int_equal(strncmp(text, "seed,epoch,train_loss", 21), 0);
    free(text);
    assert_int_equal(RUN("report %s %s -o %s", log, evaluated, support_path("e.html")), 0);
}

static void files_are_those_of_single_runs(void **state) {
    (void)state;
    const char *model = support_path("n.safetensors"), *single = support_path("single.safetensors"),
               *init = support_path("i.safetensors"), *init_single = support_path("i1.safetensors");
    const char *const pairs[][2] = {{support_path("n-seed2.safetensors"), single},
                                    {support_path("i-seed2.safetensors"), init_single}};
    assert_int_equal(RUN(SMALL "--ensemble 2 --save %s --save-init %s", support_data, model, init), 0);
    assert_int_equal(RUN(SMALL "--seed 2 --save %s --save-init %s", support_data, single, init_single), 0);
    for (size_t p = 0; p < 2; p++) assert_same_file(pairs[p][0], pairs[p][1]);
    assert_int_equal(RUN("--resume %s --ensemble 2 --epochs 3 --threads 1", model), 0);
    assert_says(output, "seeds 1 to 2");
    assert_int_equal(RUN("--resume %s --ensemble 2 --seed 9", model), 3);
    assert_says(output, "n-seed9.safetensors");
}

/* With --dry-run, too, each member has its own initial weights, equal to those of a single run. */
static void initial_weights_without_a_run(void **state) {
    (void)state;
    const char *dry = support_path("dry.safetensors"), *whole = support_path("whole.safetensors");
    const char *const pairs[][2] = {
        {support_path("dry-seed1.safetensors"), support_path("whole-seed1.safetensors")},
        {support_path("dry-seed2.safetensors"), support_path("whole-seed2.safetensors")},
        {support_path("dry-seed3.safetensors"), support_path("whole-seed3.safetensors")}};
    assert_int_equal(RUN(SMALL "--ensemble 3 --dry-run --save-init %s", support_data, dry), 0);
    assert_null(strstr(output, "train accuracy"));
    assert_int_equal(RUN(SMALL "--ensemble 3 --save-init %s", support_data, whole), 0);
    for (size_t p = 0; p < 3; p++) assert_same_file(pairs[p][0], pairs[p][1]);
}

static size_t times(const char *what) {
    size_t count = 0;
    for (const char *at = output; (at = strstr(at, what)); at++) count++;
    return count;
}

/* The line of a network is that of its current weights, even if nothing was left to train or its best epoch
   was restored. If a later file cannot be read, the results so far are reported. */
static void lines_are_of_the_weights_as_they_are(void **state) {
    (void)state;
    const char *model = support_path("b.safetensors"), *second = support_path("b-seed2.safetensors"),
               *log = support_path("b.jsonl");
    cJSON *line;
    char best[64];
    assert_int_equal(RUN("--data %s --layers 42-16-4 --batch-size 32 --threads 1 --ensemble 2 --epochs 40 "
                         "--lr 0.5 --validation 60 "
                         "--patience 2 --save %s --log %s",
                         support_data, model, log),
                     0);
    assert_int_equal(support_log(log, "ensemble", 0, &line), 1);
    const double most = support_number(line, "validation_accuracy_max");
    cJSON_Delete(line);
    snprintf(best, sizeof best, "%.0f/60 ", 60 * most);
    assert_int_equal(times("/60 "), 3);
    assert_true(times(best) >= 1);

    assert_int_equal(RUN("--resume %s --ensemble 2 --threads 1", model), 0);
    assert_int_equal(times("0/0"), 0);
    assert_int_equal(times("/60 "), 3);
    assert_true(times(best) >= 1);

    support_write(second, "no checkpoint", 13);
    assert_int_equal(RUN("--resume %s --ensemble 2 --threads 1", model), 3);
    assert_says(output, "b-seed2.safetensors");
    assert_says(output, "mean of 1 ");
    assert_int_equal(times("/60 "), 2);
}

/* The committee must reach the target; the mean of its members may be below. */
static void targets_are_the_committees(void **state) {
    (void)state;
    const char *log = support_path("t.jsonl");
    cJSON *line;
    assert_int_equal(RUN(SMALL "--ensemble 3 --lr 0.02 --log %s", support_data, log), 0);
    assert_int_equal(support_log(log, "ensemble", 0, &line), 1);
    const double reached = support_number(line, "test_accuracy");
    assert_true(reached > 0 && reached < 1);
    cJSON_Delete(line);
    assert_int_equal(RUN(SMALL "--ensemble 3 --lr 0.02 --target-accuracy %.17g", support_data, reached), 0);
    assert_int_equal(
        RUN(SMALL "--ensemble 3 --lr 0.02 --target-accuracy %.17g", support_data, reached + 1e-9), 6);
}

static void mistakes_are_named(void **state) {
    (void)state;
    const char *four = support_path("four.safetensors"), *five = support_path("five.safetensors");
    assert_int_equal(RUN(SMALL "--ensemble 0", support_data), 2);
    assert_says(output, "ensemble must be a whole number from 1");
    assert_int_equal(RUN(SMALL "--ensemble 2 --save %s/no-such/x", support_data, support_data), 1);
    assert_null(strstr(output, "train accuracy"));
    assert_int_equal(RUN(SMALL "--ensemble 2 --lr 1000 --weight-decay 100", support_data), 1);
    assert_says(output, "train: seed 1: the loss is not finite");
    assert_int_equal(RUN(SMALL "--save %s", support_data, four), 0);
    assert_int_equal(RUN("--data %s --layers 42-5 --epochs 1 --threads 1 --save %s", support_data, five), 0);
    assert_int_equal(RUN("eval %s %s", four, five), 3);
    assert_says(output,
                "five.safetensors: a committee needs networks with the same number of classes: 4, not 5");
}

static void the_plan_is_explained(void **state) {
    (void)state;
    assert_int_equal(RUN(SMALL "--dry-run", support_data), 0);
    assert_null(strstr(output, "plan"));
    assert_null(strstr(output, "warning"));
    assert_int_equal(RUN(SMALL "--dry-run --verbose", support_data), 0);
    assert_says(output, "plan      fused, one team of 1 thread");
    assert_says(output, "graph: no, it needs a CUDA backend");
    assert_says(output, "--engine auto takes fused");
    assert_says(output, "until the backend is found (its driver)");
    assert_int_equal(RUN(SMALL "--dry-run --verbose --backend serial --engine eager", support_data), 0);
    assert_says(output, "fused: no, backend 'serial' has no fused steps");
    assert_says(output, "--engine eager takes eager");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_ensemble_and_its_files),
        cmocka_unit_test(files_are_those_of_single_runs),
        cmocka_unit_test(initial_weights_without_a_run),
        cmocka_unit_test(lines_are_of_the_weights_as_they_are),
        cmocka_unit_test(targets_are_the_committees),
        cmocka_unit_test(mistakes_are_named),
        cmocka_unit_test(the_plan_is_explained),
    };
    return cmocka_run_group_tests_name("ensemble command", tests, support_make_data, NULL);
}
