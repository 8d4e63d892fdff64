/* Files of a run: logs, checkpoints, resumed runs, signals. */
#include "tests/support.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char output[1 << 17];

#define RUN(...) support_run(output, sizeof output, __VA_ARGS__)
#define SMALL "--layers 42-16-4 --batch-size 32 --epochs 3 --threads 2"

static void logs_are_complete(void **state) {
    (void)state;
    const char *log = support_path("run.jsonl"), *csv = support_path("run.csv");
    cJSON *line;
    const double start = clock_seconds();
    assert_int_equal(
        RUN("--data %s " SMALL " --log %s --csv %s --log-steps 7 --seed 5", support_data, log, csv), 0);
    const double wall = clock_seconds() - start;
    assert_int_equal(support_log(log, "header", 0, &line), 1);
    static const char *const facts[] = {"machine", "cpu",       "compiler", "flags",     "commit", "backend",
                                        "dtype",   "precision", "engine",   "residency", "data"};
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++)
        assert_true(cJSON_IsString(cJSON_GetObjectItem(line, facts[i])));
    assert_true(support_number(line, "seed") == 5 && support_number(line, "threads") >= 1);
    cJSON_Delete(line);
    assert_int_equal(support_log(log, "step", 0, &line), 7);
    assert_true(support_number(line, "step") == 7 && support_number(line, "loss") > 0);
    cJSON_Delete(line);
    assert_int_equal(support_log(log, "epoch", 0, &line), 3);
    assert_true(support_number(line, "epoch") == 3 && support_number(line, "seconds") > 0 &&
                support_number(line, "images_per_second") > 0);
    assert_true(support_number(line, "train_accuracy") > 0 && support_number(line, "train_accuracy") <= 1);
    const double accuracy = support_number(line, "test_accuracy"), seconds = support_number(line, "seconds");
    cJSON_Delete(line);
    assert_int_equal(support_log(log, "summary", 0, &line), 1);
    assert_true(support_number(line, "test_accuracy") == accuracy &&
                support_number(line, "test_total") == 100);
    assert_true(support_number(line, "test_correct") == accuracy * 100);
    assert_true(support_number(line, "total_seconds") > 0 && support_number(line, "total_seconds") <= wall);
    assert_true(support_number(cJSON_GetObjectItem(line, "time"), "evaluation") > 0);
    assert_true(seconds + support_number(line, "startup_seconds") < support_number(line, "total_seconds"));
    const double total = support_number(line, "total_seconds");
    double sum = 0;
    const cJSON *part;
    cJSON_ArrayForEach(part, cJSON_GetObjectItem(line, "time")) sum += part->valuedouble;
    assert_near(sum / total, 1, 0.02);
    assert_true(support_number(line, "transfer_ratio") == 0 &&
                support_number(line, "median_epoch_seconds") > 0 &&
                support_number(line, "startup_seconds") > 0);
    cJSON_Delete(line);

    size_t length, lines = 0;
    unsigned char *text = support_read(csv, &length);
    text[length - 1] = '\0'; /* the last line's newline */
    const char *last = strrchr((char *)text, '\n') + 1;
    double fields[7];
    assert_int_equal(sscanf(last, "%lf,%lf,%lf,%lf,%lf,%lf,%lf", fields, fields + 1, fields + 2, fields + 3,
                            fields + 4, fields + 5, fields + 6),
                     7);
    assert_near(fields[4], accuracy, 1e-6);
    assert_near(fields[5] / seconds, 1, 1e-6);
    text[length - 1] = '\n';
    for (size_t i = 0; i < length; i++) lines += text[i] == '\n';
    assert_int_equal(lines, 4);
    free(text);
}

static void save_eval_and_target(void **state) {
    (void)state;
    const char *model = support_path("model.safetensors");
    assert_int_equal(RUN("--data %s " SMALL " --lr 0.3 --save %s --target-accuracy 90", support_data, model),
                     0);
    assert_int_equal(RUN("--data %s " SMALL " --lr 0 --target-accuracy 0.9", support_data), 6);
    assert_says(output, "is below the target of 90.00 %");
    assert_int_equal(RUN("eval %s --misclassified 3", model), 0); /* data and network from the checkpoint */
    assert_says(output, "confusion matrix");
    assert_says(output, "precision");
    assert_says(output, "most confident of");
    const int exited = RUN("eval %s --backend serial --target-accuracy 100.0", model);
    assert_int_equal(exited, strstr(output, "100/100") ? 0 : 6);
    assert_int_equal(RUN("eval %s --layers 42-9-4", model), 3);
    assert_says(output, "another architecture");
    assert_int_equal(RUN("--resume %s --epochs 4 --dtype f64 --data %s", model, support_data), 3);
    assert_int_equal(RUN("--data %s " SMALL " --save %s/no-such/x", support_data, support_data), 1);
}

/* Average weights and early stopping, on the console, in the logs and for eval. */
static void averages_and_early_stopping(void **state) {
    (void)state;
    const char *model = support_path("average.safetensors"), *log = support_path("average.jsonl"),
               *eval = support_path("average-eval.jsonl"), *csv = support_path("average.csv");
    cJSON *line;
    size_t size;
    assert_int_equal(
        RUN("--data %s --layers 42-16-4 --batch-size 32 --epochs 50 --lr 0.5 --validation 50 --patience 2 "
            "--ema-decay 0.9 --dropout 0.1 --save %s --log %s --csv %s",
            support_data, model, log, csv),
        0);
    assert_says(output, "average of weights 0.9, patience 2");
    assert_says(output, "of average weights");
    assert_says(output, "early stopping     the patience ran out; the weights are those of epoch ");
    char *text = (char *)support_read(csv, &size);
    text[size] = '\0';
    assert_says(text, "images_per_second,ema_loss,ema_accuracy\n");
    free(text);
    assert_true(support_log(log, "epoch", 0, &line) < 50);
    assert_true(support_number(line, "ema_validation_accuracy") > 0 &&
                support_number(line, "ema_validation_loss") > 0);
    cJSON_Delete(line);
    assert_int_equal(support_log(log, "summary", 0, &line), 1);
    const double plain = support_number(line, "test_loss"), average = support_number(line, "ema_test_loss");
    assert_true(support_number(line, "best_epoch") > 0 &&
                cJSON_IsTrue(cJSON_GetObjectItem(line, "stopped_early")));
    cJSON_Delete(line);
    assert_true(plain > 0 && average > 0 && plain != average);
    for (int ema = 0; ema < 2; ema++) {
        assert_int_equal(RUN("eval %s --log %s%s", model, eval, ema ? " --ema" : ""), 0);
        assert_true((strstr(output, "f32, moving average of the weights") != NULL) == ema);
        assert_true(support_log(eval, "evaluation", 0, &line) >= 1);
        assert_near(support_number(line, "loss"), ema ? average : plain, 1e-6);
        assert_true(cJSON_IsTrue(cJSON_GetObjectItem(line, "ema")) == ema);
        cJSON_Delete(line);
        remove(eval);
    }
    assert_int_equal(RUN("--data %s --resume %s", support_data, model), 0);
    assert_says(output, "the patience has run out: nothing to train");
    assert_says(output, "early stopping     the patience ran out");
    assert_int_equal(RUN("--data %s --resume %s --validation 40", support_data, model), 3);
    assert_says(output,
                "has a best epoch: to resume with --patience, validation must be 50 as before, not 40");
    assert_int_equal(RUN("--data %s --resume %s --validation 40 --patience 0 --dry-run", support_data, model),
                     0);
    assert_int_equal(RUN("--data %s --resume %s --validation 60 --patience 0 --dry-run", support_data, model),
                     3);
    assert_says(output,
                "was trained on images that --validation 60 would hold out: use --validation 50 or less");
}

/* --evaluate-every: a skipped epoch has no accuracy in any output; the last epoch always has one. */
static void epochs_without_evaluation(void **state) {
    (void)state;
    const char *log = support_path("every.jsonl"), *csv = support_path("every.csv");
    static const struct {
        const char *every, *part;
        int evaluated[5];
    } cases[] = {{"0 --ema-decay 0.5", "test", {0, 0, 0, 0, 1}},
                 {"2", "test", {0, 1, 0, 1, 1}},
                 {"3 --validation 40", "validation", {0, 0, 1, 0, 1}}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        char key[64];
        size_t size;
        assert_int_equal(RUN("--data %s --layers 42-16-4 --epochs 5 --evaluate-every %s --log %s --csv %s",
                             support_data, cases[c].every, log, csv),
                         0);
        assert_says(output, "test accuracy ");
        snprintf(key, sizeof key, "\"%s_accuracy\"", cases[c].part);
        char *lines = (char *)support_read(log, &size), *line = lines;
        lines[size] = '\0';
        char *text = (char *)support_read(csv, &size), *row = text;
        text[size] = '\0';
        for (int e = 0; e < 5; e++) {
            line = strchr(line, '\n') + 1;
            row = strchr(row, '\n') + 1;
            const char *found = strstr(line, key), *empty = strstr(row, ",,,");
            assert_non_null(strchr(line, '\n'));
            assert_int_equal(found && found < strchr(line, '\n'), cases[c].evaluated[e]);
            assert_int_equal(empty && empty < strchr(row, '\n'), !cases[c].evaluated[e]);
        }
        free(lines);
        free(text);
        remove(log);
        remove(csv);
    }
    /* patience is checked after evaluations: epoch 4 is the best, 7 is 3 epochs later, and 8 is the next with
       an evaluation */
    cJSON *line;
    assert_int_equal(
        RUN("--data %s --layers 42-16-4 --epochs 50 --lr 0 --validation 40 --evaluate-every 4 --patience 3 "
            "--log %s",
            support_data, log),
        0);
    assert_int_equal(support_log(log, "epoch", 0, &line), 8);
    assert_int_equal(cJSON_HasObjectItem(line, "validation_accuracy"), 1);
    cJSON_Delete(line);
}

static void resumed_run_continues(void **state) {
    (void)state;
    const char *half = support_path("half.safetensors"), *whole = support_path("whole.safetensors");
    const char *rest = support_path("rest.safetensors");
    size_t a, b;
    assert_int_equal(RUN("--data %s " SMALL " --momentum 0.9 --epochs 4 --save %s", support_data, whole), 0);
    assert_int_equal(RUN("--data %s " SMALL " --momentum 0.9 --epochs 2 --save %s", support_data, half), 0);
    assert_int_equal(RUN("--resume %s --epochs 4 --threads 2 --save %s", half, rest), 0);
    unsigned char *x = support_read(whole, &a), *y = support_read(rest, &b);
    assert_int_equal(a, b);
    assert_memory_equal(x, y, a); /* weights, velocity, recipe and state */
    free(x);
    free(y);
}

/* Starts the program, waits for its second epoch, sends the signal `times` times. */
static int interrupt(int signal, int times, const char *save) {
    char command[1024];
    snprintf(
        command, sizeof command,
        "%s --data %s --layers 42-64-4 --batch-size 4 --epochs 1000000 --threads 1 --save %s > %s 2>&1 & "
        "pid=$!; for i in $(seq 200); do grep -q '^ *2 ' %s && break; sleep 0.05; done; "
        "for i in $(seq %d); do kill -%d $pid; done; wait $pid",
        getenv("TESSERA"), support_data, save, support_path("out"), support_path("out"), times, signal);
    remove(support_path("out")); /* of the previous signal */
    const int status = system(command);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void resumed_log_is_continued(void **state) {
    (void)state;
    const char *model = support_path("log.safetensors"), *log = support_path("two.jsonl"),
               *csv = support_path("two.csv");
    cJSON *line;
    assert_int_equal(RUN("--data %s " SMALL " --save %s --log %s --csv %s", support_data, model, log, csv),
                     0);
    assert_int_equal(RUN("--resume %s --epochs 5 --log %s --csv %s", model, log, csv), 0);
    assert_int_equal(support_log(log, "epoch", 0, &line), 5);
    cJSON_Delete(line);
    assert_int_equal(RUN("--resume %s", model), 0);
    assert_says(output, "nothing to train");
}

/* Only regular files are replaced; a device or folder is refused before training begins. */
static void only_files_are_replaced(void **state) {
    (void)state;
    char name[400];
    memset(name, 'x', 300);
    name[300] = '\0';
    const char *const targets[] = {"/dev/null", support_data, name};
    for (size_t i = 0; i < 3; i++)
        for (int init = 0; init < 2; init++) {
            assert_int_equal(
                RUN("--data %s " SMALL " --%s %s", support_data, init ? "save-init" : "save", targets[i]), 1);
            assert_says(output, "cannot write the checkpoint");
            assert_null(strstr(output, "train accuracy"));
        }
    struct stat info;
    assert_true(stat("/dev/null", &info) == 0 && S_ISCHR(info.st_mode));
}

/* A closed terminal sends SIGHUP twice, and SIGXCPU comes every second. */
static void signals_save(void **state) {
    (void)state;
    /* a shell starts background jobs with SIGINT ignored; SIGTERM has the same handler */
    static const struct {
        int number, times, code;
        const char *name;
    } signals[] = {{SIGTERM, 1, 130, "SIGTERM"},
                   {SIGHUP, 2, 128 + SIGHUP, "SIGHUP"},
                   {SIGXCPU, 2, 128 + SIGXCPU, "SIGXCPU"}};
    const char *model = support_path("interrupted.safetensors");
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        char message[64];
        size_t length;
        assert_int_equal(interrupt(signals[i].number, signals[i].times, model), signals[i].code);
        char *text = (char *)support_read(support_path("out"), &length);
        text[length] = '\0';
        assert_says(text, "Interrupted");
        assert_says(text, "test accuracy");
        snprintf(message, sizeof message, "interrupted by %s; go on with --resume", signals[i].name);
        assert_says(text, message);
        free(text);
        assert_int_equal(RUN("eval %s", model), 0);
        assert_int_equal(remove(model), 0);
    }
}

/* With a limit on file sizes, writes fail as on a full disk: the run is reported, the exit code is 1. */
static void a_failed_save_loses_no_result(void **state) {
    (void)state;
    const char *model = support_path("limited.safetensors");
    char command[64];
    snprintf(command, sizeof command, "%s", getenv("TESSERA"));
    /* a limit of two blocks of 512 bytes: clang's OpenMP runtime needs a file of that size in /dev/shm, the
       checkpoint needs more */
    setenv("TESSERA", "ulimit -f 2; exec", 1);
    const int code = RUN("%s --data %s " SMALL " --save %s --save-every 1", command, support_data, model);
    setenv("TESSERA", command, 1);
    assert_int_equal(code, 1);
    assert_says(output, "train: warning: cannot write the checkpoint");
    assert_says(output, "test accuracy");
    assert_says(output, "where the time went");
    assert_int_not_equal(access(model, F_OK), 0);
}

static void unwritable_logs_are_errors(void **state) {
    (void)state;
    assert_int_equal(RUN("--data %s " SMALL " --log %s/no-such/x.jsonl", support_data, support_data), 1);
    assert_says(output, "cannot write the log");
    if (access("/dev/full", W_OK) == 0)
        assert_int_equal(RUN("--data %s " SMALL " --log /dev/full", support_data), 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logs_are_complete),
        cmocka_unit_test(save_eval_and_target),
        cmocka_unit_test(averages_and_early_stopping),
        cmocka_unit_test(epochs_without_evaluation),
        cmocka_unit_test(resumed_run_continues),
        cmocka_unit_test(resumed_log_is_continued),
        cmocka_unit_test(only_files_are_replaced),
        cmocka_unit_test(signals_save),
        cmocka_unit_test(a_failed_save_loses_no_result),
        cmocka_unit_test(unwritable_logs_are_errors),
    };
    return cmocka_run_group_tests_name("cli files", tests, support_make_data, NULL);
}
