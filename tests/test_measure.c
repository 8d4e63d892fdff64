/* The commands compare and bench: tables, logs, exit codes; wrong results are not timed. */
#include "tests/support.h"

#include <glob.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "src/base/text.h"
#include "tests/markup_check.h"

static char output[1 << 17];
#define RUN(...) support_run(output, sizeof output, __VA_ARGS__)
#define SMALL "--layers 42-16-4 --batch-size 32 --epochs 3"

/* The log's line with this type and label (NULL: any); fails if there is none. The caller deletes it. */
static cJSON *find_line(const char *path, const char *type, const char *label) {
    size_t length;
    char *text = (char *)support_read(path, &length);
    text[length] = '\0';
    cJSON *found = NULL;
    for (char *line = strtok(text, "\n"); line && !found; line = strtok(NULL, "\n")) {
        cJSON *object = cJSON_Parse(line);
        assert_non_null(object);
        const char *its = cJSON_GetStringValue(cJSON_GetObjectItem(object, "label"));
        if (strcmp(cJSON_GetStringValue(cJSON_GetObjectItem(object, "type")), type) == 0 &&
            (!label || (its && strcmp(its, label) == 0))) {
            found = object;
        } else {
            cJSON_Delete(object);
        }
    }
    free(text);
    if (!found) fail_msg("%s has no line '%s' of '%s'", path, type, label ? label : "any");
    return found;
}

static double number(const cJSON *object, const char *key) {
    const cJSON *item = cJSON_GetObjectItem(object, key);
    if (!cJSON_IsNumber(item)) fail_msg("no number '%s'", key);
    return item->valuedouble;
}

static void compares_backends(void **state) {
    (void)state;
    const char *log = support_path("compare.jsonl");
    assert_int_equal(RUN("compare --data %s " SMALL
                         " --lr 0.3 --backends serial,openmp --threads 1,2 --baseline serial --trace "
                         "--repeat 2 --log %s",
                         support_data, log),
                     0);
    assert_says(output, "openmp, 2 threads");
    assert_says(output, "transfer/total");
    assert_says(output, "drifts most: step ");
    assert_says(output, "speed-up: against serial");
    cJSON *line = find_line(log, "compare", "openmp, 2 threads");
    assert_true(cJSON_IsTrue(cJSON_GetObjectItem(line, "agrees")));
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(line, "epoch_seconds")), 6);
    assert_true(number(line, "drift") > 0 && number(line, "drift") < 1e-5);
    assert_true(number(line, "median_epoch_seconds") > 0 && number(line, "images_per_second") > 0);
    assert_true(number(line, "gflops") > 0 && number(line, "transfer_ratio") == 0);
    assert_near(number(line, "test_accuracy"), number(line, "test_correct") / number(line, "test_total"),
                1e-12);
    /* the parts of an epoch add up to its mean time */
    double parts = 0;
    for (const cJSON *part = cJSON_GetObjectItem(line, "time")->child; part; part = part->next)
        parts += part->valuedouble;
    double mean = 0;
    for (const cJSON *one = cJSON_GetObjectItem(line, "epoch_seconds")->child; one; one = one->next)
        mean += one->valuedouble / 6;
    assert_near(parts / mean, 1, 1e-6);
    cJSON *serial = find_line(log, "compare", "serial");
    assert_true(number(serial, "speedup") == 1);
    assert_near(number(line, "speedup"),
                number(serial, "median_epoch_seconds") / number(line, "median_epoch_seconds"), 1e-9);
    assert_true(number(serial, "test_correct") == number(line, "test_correct")); /* the same bits */
    assert_true(number(serial, "gemm_calls_audited") > 5 * 4); /* not just a sample: two layers, 4 steps */
    cJSON_Delete(serial);
    cJSON_Delete(line);
}

/* The sample of the timed runs may miss one step of an epoch; the audited epoch cannot. */
static void an_epoch_is_audited_whole(void **state) {
    (void)state;
    char command[1024];
    snprintf(command, sizeof command,
             "compare --data %s --layers 42-16-4 --batch-size 1 --epochs 1 --lr 0.005 --repeat 1 "
             "--backends %s:kind=always_loses_step_50",
             support_data, support_plugin("plugins/subtle/steps.so"));
    assert_int_equal(RUN("%s", command), STATUS_VERIFY_FAILED);
    assert_says(output, "does not compute what it should: backend 'steps' is wrong: audit of engine fused");
    assert_int_equal(RUN("%s --audit off", command), 0);
}

/* Without training, backends are verified and compared, but nothing has a time. */
static void no_epochs_have_no_time(void **state) {
    (void)state;
    const char *log = support_path("none.jsonl");
    assert_int_equal(
        RUN("compare --data %s --layers 42-16-4 --epochs 0 --backends serial,tuned --repeat 2 --log %s",
            support_data, log),
        0);
    assert_null(strstr(output, "extrapolated,"));
    cJSON *line = find_line(log, "compare", "tuned");
    assert_true(cJSON_IsTrue(cJSON_GetObjectItem(line, "agrees")));
    static const char *const times[] = {"median_epoch_seconds", "speedup", "images_per_second", "gflops"};
    for (size_t i = 0; i < sizeof times / sizeof *times; i++)
        if (cJSON_HasObjectItem(line, times[i])) fail_msg("%s", times[i]);
    cJSON_Delete(line);
}

static void limits_are_said(void **state) {
    (void)state;
    const char *log = support_path("limit.jsonl");
    assert_int_equal(RUN("compare --data %s --layers 42-300-4 --batch-size 10 --epochs 50 --backends serial "
                         "--limit-seconds 1e-6 "
                         "--repeat 1 --log %s",
                         support_data, log),
                     0);
    assert_says(output, "s, extrapolated");
    cJSON *line = find_line(log, "compare", "serial");
    assert_true(cJSON_IsTrue(cJSON_GetObjectItem(line, "extrapolated")));
    assert_true(number(line, "epochs_trained") < 1 && number(line, "median_epoch_seconds") > 0);
    cJSON_Delete(line);
}

static void left_out_ones_have_a_reason(void **state) {
    (void)state;
    const char *log = support_path("left.jsonl");
    assert_int_equal(RUN("compare --data %s " SMALL
                         " --backends serial --precision f32,tf32 --repeat 1 --log %s",
                         support_data, log),
                     0);
    assert_says(output, "Left out: serial, tf32, because backend 'serial' has no precision tf32");
    cJSON *line = find_line(log, "compare", "serial, tf32");
    assert_non_null(cJSON_GetObjectItem(line, "left_out"));
    assert_null(cJSON_GetObjectItem(line, "median_epoch_seconds"));
    cJSON_Delete(line);
    assert_int_equal(RUN("compare --data %s " SMALL " --backends no-such-thing", support_data), 4);
    assert_says(output, "usable here");
    assert_int_equal(RUN("compare --data %s " SMALL " --backends serial --repeat 0", support_data), 2);
    assert_int_equal(RUN("compare --data %s " SMALL " --backends serial --limit-seconds soon", support_data),
                     2);
}

/* Each wrong plug-in in both commands: exit code 5, a row with its reason, and no time. */
static void wrong_candidates_are_not_timed(void **state) {
    (void)state;
    glob_t wrong;
    char list[1 << 13] = "";
    const char *log = support_path("wrong.jsonl");
    const size_t stride = support_stride();
    assert_int_equal(glob(support_plugin("plugins/*.so"), 0, NULL, &wrong), 0);
    assert_true(wrong.gl_pathc >= 10);
    for (size_t i = 0; i < wrong.gl_pathc; i += stride)
        text_append(list, sizeof list, ",%s", wrong.gl_pathv[i]);
    assert_int_equal(
        RUN("compare --data %s " SMALL " --backends serial%s --repeat 1 --log %s", support_data, list, log),
        5);
    cJSON *line = find_line(log, "compare", "serial"); /* the other rows are measured */
    assert_non_null(cJSON_GetObjectItem(line, "median_epoch_seconds"));
    cJSON_Delete(line);
    for (size_t i = 0; i < wrong.gl_pathc; i += stride) {
        char name[64];
        snprintf(name, sizeof name, "%s", strrchr(wrong.gl_pathv[i], '/') + 1);
        *strrchr(name, '.') = '\0';
        line = find_line(log, "compare", name);
        assert_true(cJSON_IsFalse(cJSON_GetObjectItem(line, "agrees")));
        assert_null(cJSON_GetObjectItem(line, "median_epoch_seconds"));
        cJSON_Delete(line);
    }
    assert_int_equal(count_of(output, "does not agree: "), (wrong.gl_pathc + stride - 1) / stride);
    assert_int_equal(RUN("bench gemm --layers 42-16-4 --batch-size 32 --sizes none --backends %s", list + 1),
                     5);
    assert_null(strstr(output, " us  "));
    for (size_t i = 0; i < wrong.gl_pathc; i += stride) {
        char said[600];
        snprintf(said, sizeof said, "WRONG, no time: %s is not used: ", wrong.gl_pathv[i]);
        assert_says(output, said);
    }
    globfree(&wrong);
}

/* Before the first shape its rate is estimated, on operands at the same addresses in each call. */
static void the_estimate_is_verified(void **state) {
    (void)state;
    char stale[300];
    snprintf(stale, sizeof stale, "%s:kind=stale_after_corner", support_plugin("plugins/subtle/kinds.so"));
    assert_int_equal(RUN("bench gemm --sizes 64 --ops NN --dtype f32 --repeat 2 --backends %s", stale), 5);
    assert_says(output, "wrong result: in the timed calls: backend 'subtle' is wrong: f32 NN m=192 ");
}

/* If a backend fails, the other rows are measured and the exit code is 1. */
static void failures_are_no_success(void **state) {
    (void)state;
    char fails[300], wrong[300];
    const char *log = support_path("failed.jsonl"), *said = "FAILED: backend 'too-wide' failed in f32 ";
    snprintf(fails, sizeof fails, "%s", support_plugin("plugins/refused/too-wide.so"));
    snprintf(wrong, sizeof wrong, "%s", support_plugin("plugins/always-zero.so"));
    assert_int_equal(RUN("compare --data %s --layers 42-1001-4 --epochs 1 --backends %s,serial "
                         "--baseline serial --repeat 1 --log %s",
                         support_data, fails, log),
                     1);
    assert_says(output, "failed: backend 'too-wide' failed in f32 ");
    assert_says(output, ": no memory for the workspace");
    cJSON *line = find_line(log, "compare", "serial");
    assert_true(number(line, "median_epoch_seconds") > 0);
    cJSON_Delete(line);
    line = find_line(log, "compare", "too-wide");
    assert_non_null(cJSON_GetObjectItem(line, "failed"));
    assert_null(cJSON_GetObjectItem(line, "left_out"));
    assert_null(cJSON_GetObjectItem(line, "agrees"));
    cJSON_Delete(line);
    assert_int_equal(RUN("report %s -o %s", log, support_path("failed.html")), 0);
    /* a wrong row takes precedence, in any position */
    assert_int_equal(RUN("compare --data %s --layers 42-1001-4 --epochs 1 --backends %s,%s --repeat 1",
                         support_data, fails, wrong),
                     5);
    assert_int_equal(RUN("bench gemm --layers 42-1001-4 --batch-size 8 --sizes none --ops NN --dtype f32 "
                         "--backends %s,serial --repeat 1",
                         fails),
                     1);
    assert_says(output, "failed: backend 'too-wide' failed in f32 ");
    assert_int_equal(RUN("bench breakeven --data %s --layers 42-16-4 --backends %s,serial --batches 8 "
                         "--hidden 16,1001 --cell-seconds 0.01 --repeat 1",
                         support_data, fails),
                     1);
    assert_says(output, said);
}

static void benches_gemms(void **state) {
    (void)state;
    char log[300], slow[300], again[320];
    snprintf(log, sizeof log, "%s", support_path("gemm.jsonl"));
    snprintf(slow, sizeof slow, "%s", support_path("slow.jsonl"));
    assert_int_equal(RUN("bench gemm --layers 42-16-4 --batch-size 32 --sizes 48 --ops NN,NT --dtype f32 "
                         "--backends serial,openmp "
                         "--repeat 3 --log %s",
                         log),
                     0);
    assert_says(output, "NT  f32          48x48x48  openmp");
    assert_says(output, "NN  f32          32x16x42  serial");
    assert_null(strstr(output, "TN  f32"));
    cJSON *line = find_line(log, "gemm", "openmp");
    assert_true(number(line, "gflops") > 0 && number(line, "m") == 48 &&
                fmod(number(line, "repeats"), 3) == 0 && number(line, "repeats") > 0);
    assert_near(number(line, "gflops"), 2e-9 * 48 * 48 * 48 / number(line, "median_seconds"), 1e-9);
    cJSON_Delete(line);
    line = find_line(log, "peak", NULL);
    assert_true(number(line, "f32_gflops") > 0 && number(line, "copy_gbytes_per_second") > 0);
    cJSON_Delete(line);
    /* not slower than itself within a wide tolerance; slower than impossible times */
    assert_int_equal(RUN("bench --baseline %s --tolerance 100000 --repeat 3", log), 0);
    assert_int_equal(RUN("bench --baseline %s --operands warm", log), 2);
    assert_says(output, "the operands of the baseline are cold");
    assert_int_equal(RUN("bench gemm --operands hot"), 2);
    assert_int_equal(RUN("bench gemm --sizes 48 --ops NT --dtype f64 --backends serial --repeat 3 --operands "
                         "warm --log %s",
                         slow),
                     0);
    line = find_line(slow, "gemm", "serial");
    assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(line, "operands")), "warm");
    cJSON_Delete(line);
    assert_int_equal(RUN("bench --baseline %s --tolerance 100000 --repeat 3 --log %s.again", slow, slow), 0);
    snprintf(again, sizeof again, "%s.again", slow);
    line = find_line(again, "gemm", "serial"); /* as in the baseline */
    assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(line, "operands")), "warm");
    cJSON_Delete(line);
    /* one product of pixels and one of signed reals, of the same size */
#define PRODUCT                                                                                    \
    "{\"type\":\"gemm\",\"backend\":\"serial\",\"threads\":1,\"precision\":\"f32\",\"op\":\"NN\"," \
    "\"dtype\":\"f32\",\"m\":48,\"n\":48,\"k\":48,"
    const char *fast =
        PRODUCT "\"pixels\":true,\"median_seconds\":1e-12}\n" PRODUCT "\"median_seconds\":1000}\n";
    support_write(slow, fast, strlen(fast));
    assert_int_equal(RUN("compare --data %s " SMALL " --backends serial --baseline opneblas", support_data),
                     2);
    assert_int_equal(
        RUN("bench gemm --sizes 16 --ops NN --dtype f32 --backends serial --repeat 3 --log /dev/full"), 1);
    assert_int_equal(RUN("bench --baseline %s --repeat 3", slow), 6);
    assert_says(output, "SLOWER");
    assert_says(output, "1 of 2 times");
    assert_int_equal(RUN("bench --baseline %s", support_data), 3); /* a directory */
    support_write(slow, "{\"type\":\"gemm\"", 14);
    assert_int_equal(RUN("bench --baseline %s", slow), 3);
    assert_says(output, ", line 1: not a JSON object");
}

static void benches_scaling(void **state) {
    (void)state;
    const char *log = support_path("scaling.jsonl");
    assert_int_equal(RUN("bench scaling --data %s " SMALL
                         " --backends openmp --threads 1,2 --repeat 2 --log %s",
                         support_data, log),
                     0);
    assert_says(output, "Amdahl's law: serial fraction ");
    cJSON *line = find_line(log, "scaling", NULL);
    assert_true(number(line, "threads") == 1 && number(line, "speedup") == 1);
    assert_true(number(line, "min_epoch_seconds") > 0 &&
                number(line, "min_epoch_seconds") < number(line, "max_epoch_seconds")); /* of six epochs */
    assert_true(number(line, "epoch_seconds") >= number(line, "min_epoch_seconds") &&
                number(line, "epoch_seconds") <= number(line, "max_epoch_seconds"));
    assert_true(number(line, "repeats") == 2);
    const cJSON *time = cJSON_GetObjectItem(line, "time");
    const double parts = number(time, "gemm_nn") + number(time, "gemm_tn") + number(time, "gemm_nt") +
                         number(time, "other"); /* of the mean epoch */
    assert_true(parts >= number(line, "min_epoch_seconds") && parts <= number(line, "max_epoch_seconds"));
    assert_true(number(time, "other") > 0);
    cJSON_Delete(line);
    line = find_line(log, "amdahl", NULL);
    assert_true(number(line, "error") > 0);
    cJSON_Delete(line);
}

static void maps_the_breakeven(void **state) {
    (void)state;
    const char *log = support_path("breakeven.jsonl");
    assert_int_equal(RUN("bench breakeven --data %s --layers 42-16-4 --backends serial,openmp --batches 8,64 "
                         "--hidden 4,16 "
                         "--cell-seconds 0.01 --repeat 3 --log %s",
                         support_data, log),
                     0);
    size_t length, cells = 0, wins = 0;
    char *text = (char *)support_read(log, &length);
    text[length] = '\0';
    for (const char *at = text; (at = strstr(at, "\"type\":\"breakeven\"")); at++) cells++;
    for (const char *at = text; (at = strstr(at, "\"wins\":true")); at++) wins++;
    free(text);
    assert_int_equal(cells, 8);
    assert_int_equal(wins, 4); /* one in each cell */
    cJSON *line = find_line(log, "breakeven", NULL);
    assert_true(number(line, "repeats") == 3 && number(line, "min_step_seconds") > 0);
    assert_true(number(line, "min_step_seconds") < number(line, "max_step_seconds"));
    assert_true(number(line, "step_seconds") >= number(line, "min_step_seconds") &&
                number(line, "step_seconds") <= number(line, "max_step_seconds"));
    cJSON_Delete(line);
}

static void the_rest_of_bench(void **state) {
    (void)state;
    assert_int_equal(RUN("bench"), 2);
    assert_int_equal(RUN("bench gem"), 2);
    assert_says(output, "did you mean 'gemm'?");
    assert_int_equal(RUN("bench --help"), 0);
    assert_says(output, "breakeven");
    assert_int_equal(RUN("bench gemm --sizes 12,x"), 2);
    assert_int_equal(RUN("bench gemm --ops NN,XX"), 2);
    assert_says(output, "--ops lists 'XX'");
    const int code = RUN("bench shmem --sizes 64 --repeat 1"); /* needs a GPU */
    assert_true(code == 4 || code == 0);
    assert_says(output, code == 4 ? "usable here: " : "best: --backend cuda-order:order=");
}

static void evaluations_are_logged(void **state) {
    (void)state;
    char model[300], log[300];
    snprintf(model, sizeof model, "%s", support_path("model.safetensors"));
    snprintf(log, sizeof log, "%s", support_path("eval.jsonl"));
    assert_int_equal(RUN("--data %s " SMALL " --lr 0 --save %s", support_data, model), 0);
    assert_int_equal(RUN("eval %s --log %s", model, log), 0);
    cJSON *result = find_line(log, "evaluation", NULL), *confusion = find_line(log, "confusion", NULL),
          *mistake = find_line(log, "mistake", NULL);
    double right = 0, all = 0;
    const cJSON *counts = cJSON_GetObjectItem(confusion, "counts");
    assert_int_equal(cJSON_GetArraySize(counts), 4);
    for (int r = 0; r < 4; r++)
        for (int c = 0; c < 4; c++) {
            const double count = cJSON_GetArrayItem(cJSON_GetArrayItem(counts, r), c)->valuedouble;
            all += count;
            right += r == c ? count : 0;
        }
    assert_true(all == 100 && right == number(result, "test_correct"));
    assert_true(number(mistake, "label") != number(mistake, "predicted"));
    assert_int_equal(strlen(cJSON_GetStringValue(cJSON_GetObjectItem(mistake, "pixels"))), 2 * 6 * 7);
    cJSON_Delete(result);
    cJSON_Delete(confusion);
    cJSON_Delete(mistake);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(compares_backends),
        cmocka_unit_test(an_epoch_is_audited_whole),
        cmocka_unit_test(no_epochs_have_no_time),
        cmocka_unit_test(limits_are_said),
        cmocka_unit_test(left_out_ones_have_a_reason),
        cmocka_unit_test(wrong_candidates_are_not_timed),
        cmocka_unit_test(the_estimate_is_verified),
        cmocka_unit_test(failures_are_no_success),
        cmocka_unit_test(benches_gemms),
        cmocka_unit_test(benches_scaling),
        cmocka_unit_test(maps_the_breakeven),
        cmocka_unit_test(the_rest_of_bench),
        cmocka_unit_test(evaluations_are_logged),
    };
    return cmocka_run_group_tests_name("measure", tests, support_make_data, NULL);
}
