/* Training by several processes: the same results, whatever their number. */
#include "tests/jobs.h"

#include <stdio.h>
#include <stdlib.h>

static char output[1 << 16];
#define RUN(...) support_run(output, sizeof output, __VA_ARGS__)

/* --- the same results --- */

/* 300 images in batches of 70, so the last one is smaller; parts are cut at multiples of 8. */
static void fixed_reduction_has_the_same_bits(void **state) {
    (void)state;
    static const char recipe[] = "--data %s" JOB_RECIPE " --reduction fixed --validation 40 %s --save %s";
    static const char *const ways[] = {"", "--backend serial --precision fp16"};
    char *alone = job_path("alone.safetensors"), *saved = job_path("together.safetensors");
    for (int way = 0; way < 2; way++) {
        assert_int_equal(RUN(recipe, support_data, ways[way], alone), 0);
        assert_says(output, "processes 1, reduction fixed: 4 parts of each batch");
        for (int size = 2; size <= 4; size += 2) {
            job_run(size, job_text(recipe, support_data, ways[way], saved));
            assert_says(job.said[0], job_text("processes %d by sockets", size));
            job_assert_same_files(alone, saved);
        }
    }
    free(alone);
    free(saved);
}

static void trainings_resume_on_another_number(void **state) {
    (void)state;
    char *whole = job_path("whole.safetensors"), *half = job_path("half.safetensors");
    const char *common = "--reduction fixed --threads 1";
    job_run(2, job_text("--data %s" JOB_RECIPE " --reduction fixed --save %s", support_data, whole));
    job_run(4,
            job_text("--data %s" JOB_RECIPE " --reduction fixed --epochs 2 --save %s", support_data, half));
    assert_int_equal(RUN("--data %s --resume %s --epochs 3 %s --save %s", support_data, half, common, half),
                     0);
    job_run(2, job_text("--data %s --resume %s --epochs 4 %s --save %s", support_data, half, common, half));
    job_assert_same_files(whole, half);
    free(whole);
    free(half);
}

/* Also where some processes have no image of the last batch: 300 images in batches of 99, for 8 processes. */
static void any_number_trains_the_same_network(void **state) {
    (void)state;
    static const char recipe[] = "--data %s" JOB_RECIPE " --batch-size 99 --engine eager --log %s";
    char *log = job_path("alone.jsonl"), *others = job_path("together.jsonl");
    assert_int_equal(RUN(recipe, support_data, log), 0);
    for (int size = 2; size <= 8; size += size == 3 ? 5 : 1) {
        job_run(size, job_text(recipe, support_data, others));
        assert_near(job_last_number(others, "epoch", "train_loss"),
                    job_last_number(log, "epoch", "train_loss"), 1e-5);
        assert_near(job_last_number(others, "epoch", "test_loss"), job_last_number(log, "epoch", "test_loss"),
                    1e-5);
        assert_true(job_last_number(others, "header", "processes") == size);
    }
    free(log);
    free(others);
}

/* Gradients of more than 1 MB are summed before the backward pass ends; 99 images are too few for 8
   processes to have some in each batch. */
static void large_layers_are_summed_early(void **state) {
    (void)state;
    static const char recipe[] = "--data %s --layers 42-600-600-4 --batch-size 99 --epochs 2 --threads 1 "
                                 "--optimizer adam --lr 0.001 --ema-decay 0.9 "
                                 "--engine eager --backend tuned%s --save %s --log %s";
    char *alone = job_path("alone.safetensors"), *saved = job_path("together.safetensors");
    char *log = job_path("alone.jsonl"), *others = job_path("together.jsonl");
    assert_int_equal(RUN(recipe, support_data, " --reduction fixed", alone, log), 0);
    for (int size = 2; size <= 4; size += 2) {
        job_run(size, job_text(recipe, support_data, " --reduction fixed", saved, others));
        job_assert_same_files(alone, saved);
    }
    for (int size = 3; size <= 8; size += 5) {
        job_run(size, job_text(recipe, support_data, "", saved, others));
        assert_near(job_last_number(others, "epoch", "train_loss"),
                    job_last_number(log, "epoch", "train_loss"), 1e-5);
    }
    char *const all[] = {alone, saved, log, others};
    for (size_t i = 0; i < 4; i++) free(all[i]);
}

/* The attacked images diverge first: no process may apply that step. */
static void a_bad_step_changes_nothing(void **state) {
    (void)state;
    assert_int_equal(RUN("--data synthetic --layers 784-64-10 --batch-size 100 --lr 3e4 --adversarial 0.3 "
                         "--threads 1 --reduction fixed"),
                     1);
    assert_says(output, "the loss is not finite");
    assert_null(strstr(output, "weights are not finite"));
}

static void scaling_is_measured(void **state) {
    (void)state;
    static const char recipe[] =
        "bench scaling --data %s --layers 42-16-4 --batch-size 32 --epochs 3 --ranks";
    char *log = job_path("ranks.jsonl"), command[512];
    cJSON *line;
    snprintf(command, sizeof command, recipe, support_data);
    assert_int_equal(RUN("%s 1,2 --threads 1 --repeat 2 --log %s", command, log), 0);
    assert_says(output,
                "strong: one batch for all processes; weak: one for each. 1 thread each; median of 2");
    assert_int_equal(support_log(log, "ranks", 0, &line), 4); /* the last one: weak, two processes */
    assert_true(support_number(line, "ranks") == 2 && support_number(line, "batch_size") == 64);
    assert_true(support_number(line, "communication") > 0 && support_number(line, "epoch_seconds") > 0);
    assert_true(support_number(line, "hidden_communication") == 0); /* the host sums, and computes, in turn */
    cJSON_Delete(line);
    free(log);
    assert_int_equal(RUN("%s 2 --engine fused", command), 1);
    assert_says(output, "a training by 2 processes failed: engine fused makes whole steps");
}

/* --- MPI --- */

static void mpi_has_the_bits_of_sockets(void **state) {
    (void)state;
#if defined(HAVE_MPI) && !defined(SANITIZED)
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 1); /* which containers forbid */
    if (system("timeout 60 mpirun --oversubscribe -n 4 true >/dev/null 2>&1") != 0) {
        print_message("skipped: mpirun does not start processes here\n");
        skip();
    }
    char *saved = job_path("mpi.safetensors"), *sockets = job_path("sockets.safetensors");
    job_run(4, job_text("--data %s" JOB_RECIPE " --reduction fixed --save %s", support_data, sockets));
    for (int size = 2; size <= 4; size += 2) {
        assert_int_equal(
            RUN("--version >/dev/null; timeout 120 mpirun --oversubscribe -n %d %s --data %s" JOB_RECIPE
                " --reduction fixed --save %s",
                size, getenv("TESSERA"), support_data, saved),
            0);
        assert_says(output, job_text("processes %d by ", size));
        job_assert_same_files(sockets, saved);
    }
    assert_int_equal(
        RUN("--version >/dev/null; timeout 120 mpirun --oversubscribe -n 3 %s --data %s" JOB_RECIPE,
            getenv("TESSERA"), support_data),
        0);
    free(saved);
    free(sockets);
#else
    print_message("skipped: built without MPI, or with sanitizers\n");
    skip();
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fixed_reduction_has_the_same_bits),
        cmocka_unit_test(trainings_resume_on_another_number),
        cmocka_unit_test(any_number_trains_the_same_network),
        cmocka_unit_test(large_layers_are_summed_early),
        cmocka_unit_test(a_bad_step_changes_nothing),
        cmocka_unit_test(scaling_is_measured),
        cmocka_unit_test(mpi_has_the_bits_of_sockets),
    };
    return cmocka_run_group_tests_name("processes", tests, support_make_data, NULL);
}
