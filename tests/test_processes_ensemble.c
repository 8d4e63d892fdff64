/* The members of an ensemble, shared out to several processes. */
#define _GNU_SOURCE
#include "tests/jobs.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "src/base/profile.h"

static char output[1 << 16];
#define RUN(...) support_run(output, sizeof output, __VA_ARGS__)

#define GROUP JOB_RECIPE " --ensemble 5 --validation 40 --ema-decay 0.9 --log-steps 3"

/* The values of a key in all lines of a type, as text: those of each seed in their order. */
static char *values_of(const char *log, const char *type, const char *key) {
    char *text = NULL, line[1 << 16], name[64];
    size_t size;
    FILE *to = open_memstream(&text, &size), *from = fopen(log, "r");
    assert_true(to && from);
    snprintf(name, sizeof name, "\"%s\":", key);
    for (int seed = 0; seed <= 5; seed++, rewind(from))
        while (fgets(line, sizeof line, from)) {
            cJSON *object = cJSON_Parse(line);
            const cJSON *of = cJSON_GetObjectItem(object, "seed");
            const char *at = strstr(line, name);
            if (at && strcmp(cJSON_GetObjectItem(object, "type")->valuestring, type) == 0 &&
                (of ? of->valueint : 0) == seed)
                fprintf(to, "%.*s;", (int)strcspn(at, ",}"), at);
            cJSON_Delete(object);
        }
    fclose(from);
    fclose(to);
    return text;
}

static void assert_same_values(const char *one, const char *other, const char *type, const char *key) {
    char *a = values_of(one, type, key), *b = values_of(other, type, key);
    assert_true(a[0]);
    assert_string_equal(a, b);
    free(a);
    free(b);
}

/* Checkpoints, committees, and the events of all members in the log of rank 0: also with fewer members than
   processes, and with a different number on each. */
static void any_number_trains_the_same_members(void **state) {
    (void)state;
    static const char *const keys[][2] = {{"ensemble", "validation_loss"},
                                          {"ensemble", "ema_test_loss"},
                                          {"ensemble", "test_accuracy_deviation"},
                                          {"epoch", "train_loss"},
                                          {"epoch", "seed"},
                                          {"step", "loss"},
                                          {"summary", "test_loss"}};
    char *log = job_path("one.jsonl"), *others = job_path("several.jsonl");
    char *one = job_path("one.safetensors"), *several = job_path("several.safetensors");
    assert_int_equal(RUN("--data %s" GROUP " --log %s --save %s", support_data, log, one), 0);
    for (int size = 2; size <= 6; size += 4) {
        remove(others);
        job_run(size, job_text("--data %s" GROUP " --log %s --save %s", support_data, others, several));
        assert_says(job.said[0], job_text("5 networks, shared out to %d processes by sockets", size));
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
            assert_same_values(log, others, keys[k][0], keys[k][1]);
        job_assert_same_members("one", "several", 5);
    }
    char *const all[] = {log, others, one, several};
    for (size_t i = 0; i < 4; i++) free(all[i]);
}

static void members_resume_on_other_ranks(void **state) {
    (void)state;
    char *whole = job_path("whole.safetensors"), *half = job_path("half.safetensors");
    const char *recipe = "--data %s" JOB_RECIPE " --ensemble 3 --epochs %d --save %s";
    job_run(2, job_text(recipe, support_data, 4, whole));
    job_run(3, job_text(recipe, support_data, 2, half));
    job_run(2, job_text("--data %s --threads 1 --ensemble 3 --epochs 4 --resume %s --save %s", support_data,
                        half, half));
    job_assert_same_members("whole", "half", 3);
    free(whole);
    free(half);
}

/* As in one process: the results are of the members that trained. Both fail in their first steps; the one
   that does so first stops the other, which then has not failed. */
static void a_failed_member_is_named(void **state) {
    (void)state;
    job_start(2, job_text("--data %s" JOB_RECIPE " --ensemble 2 --lr 1e6 --weight-decay 1", support_data));
    job_end();
    assert_int_equal(job.code[0], 1);
    if (!strstr(job.said[0], "seed 2: the loss is not finite"))
        assert_says(job.said[0], "seed 1: the loss is not finite");
}

/* Waits until both ranks train, and catch signals. */
static void start_long_job(void) {
    char *const saved[] = {job_path("long-seed1.safetensors"), job_path("long-seed2.safetensors")};
    for (int i = 0; i < 2; i++) remove(saved[i]);
    job_start(2, job_text("--data %s" JOB_RECIPE " --ensemble 2 --epochs 1000000 --comm-timeout 4 --save %s "
                          "--save-every 1",
                          support_data, support_path("long.safetensors")));
    const double start = clock_seconds();
    for (int i = 0; i < 2; i++) {
        while (access(saved[i], R_OK) != 0 && clock_seconds() - start < JOB_PATIENCE)
            nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
        free(saved[i]);
    }
}

/* A signal to one process stops all. */
static void interrupts_stop_all(void **state) {
    (void)state;
    for (int rank = 0; rank < 2; rank++) {
        start_long_job();
        kill(job.pid[rank], SIGTERM);
        job_end();
        assert_int_equal(job.code[0], 130);
        assert_says(job.said[0], "go on with --resume");
        assert_says(job.said[0],
                    rank ? "interrupted by a signal to another process" : "interrupted by SIGTERM");
    }
}

static void the_dead_are_named(void **state) {
    (void)state;
    start_long_job();
    kill(job.pid[1], SIGKILL);
    job_end();
    assert_int_equal(job.code[0], 1);
    assert_says(job.said[0], "rank 1 of 2: its process has ended: it was killed, or it crashed");
}

static void others_are_refused(void **state) {
    (void)state;
    job = (struct job){.size = 2, .port = job_port()};
    job_start_rank(0, job_text("--data %s" JOB_RECIPE " --ensemble 3", support_data));
    job_start_rank(1, job_text("--data %s" JOB_RECIPE " --ensemble 4", support_data));
    job_end();
    assert_int_equal(job.code[0], STATUS_USAGE);
    assert_says(job.said[0], "rank 1 differs from rank 0 in the value of --ensemble");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_number_trains_the_same_members),
        cmocka_unit_test(members_resume_on_other_ranks),
        cmocka_unit_test(a_failed_member_is_named),
        cmocka_unit_test(interrupts_stop_all),
        cmocka_unit_test(the_dead_are_named),
        cmocka_unit_test(others_are_refused),
    };
    return cmocka_run_group_tests_name("processes of an ensemble", tests, support_make_data, NULL);
}
