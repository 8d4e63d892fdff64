/* grade: every submission is a row with the reason, and no wrong one has a time. */
#define _GNU_SOURCE
#include "tests/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/files.h"
#include "src/bench/grade.h"
#include "src/report/records.h"
#include "tests/grades.h"
#include "tests/markup_check.h"

static char output[1 << 16], input[256], grades[256];
#define RUN(...) support_run(output, sizeof output, __VA_ARGS__)

/* --- a folder of submissions --- */

/* What becomes of a file. tests/bench/grade_plugins.py has those that take longer. */
static const struct {
    const char *file, *outcome, *reason;
} expected[] = {
    {"always-zero.so", "wrong", "C[0][0] is 0"},
    {"cached.so", "wrong", " is wrong: "},
    {"forgets-alpha.so", "wrong", "alpha=-0.5"},
    {"ignores-ldb.so", "wrong", "pad=3"},
    {"ignores-ldc.so", "wrong", "pad=3"},
    {"missing-last-column.so", "wrong", " is wrong: "},
    {"nan-output.so", "wrong", " is nan"},
    {"race.so", "wrong", " is wrong: "},
    {"reads-c.so", "wrong", "beta=0"},
    {"transposed-index.so", "wrong", " is wrong: "},
    {"truncates-bfloat16.so", "wrong", " is wrong: "},
    {"writes-past-the-end.so", "wrong", " is wrong: "},
    {"hostile/aborts.so", "crashes", "signal 6"},
    {"hostile/changes-affinity.so", "crashes", "change its cores"},
    {"hostile/changes-directory.so", "wrong", "chdir"},
    {"hostile/changes-locale.so", "wrong", "setlocale"},
    {"hostile/exit-constructor.so", "crashes", "exit code 0 (loading)"},
    {"hostile/exit-first.so", "crashes", "exit code 0"},
    {"hostile/exit-later.so", "crashes", "exit code 0"},
    {"hostile/kills-itself.so", "crashes", "signal 9"},
    {"hostile/kills-parent.so", "crashes", "signal other processes"},
    {"hostile/overflows.so", "crashes", "stack overflow"},
    {"hostile/reads-ahead.so", "crashes", "signal 11"},
    {"hostile/reads-on.so", "crashes", "signal 11"},
    {"hostile/writes-replies.so", "interferes", "it wrote to the connection"},
    {"refused/abi-1.so", "not usable", "ABI 1"},
    {"refused/crashes.so", "crashes", "m=17"},
    {"refused/empty-slot.so", "not usable", "its slot 'gemm' is empty"},
    {"refused/fails.so", "wrong", "the tile is too small"},
    {"refused/no-symbol.so", "not usable", "no symbol gemm_plugin"},
    {"refused/not-here.so", "not usable", "this machine has no abacus"},
    {"refused/other-abi.so", "not usable", "ABI"},
    {"typing-error.c", "does not compile", "error"},
};
enum { FILES = sizeof expected / sizeof *expected };

/* A sanitizer reports crashes in its own way: its runs have a stride, and so a few files. */
static size_t file_count(void) {
    return (FILES + support_stride() - 1) / support_stride();
}

static void grade_all(void) {
    const int code = RUN("grade %s --assignment docs/assignment/matmul.cfg -o %s", input, grades);
    if (code) fail_msg("%d: %s", code, output);
}

static void every_file_is_a_row(void **state) {
    (void)state;
    cJSON *object = grades_read(grades);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(object, "grades")), file_count());
    for (size_t i = 0; i < FILES; i += support_stride()) {
        const cJSON *line = grade_of(object, expected[i].file);
        if (strcmp(record_text(line, "outcome"), expected[i].outcome) != 0)
            fail_msg("%s: %s: %s", expected[i].file, record_text(line, "outcome"),
                     record_text(line, "reason"));
        assert_says(record_text(line, "reason"), expected[i].reason);
        assert_false(record_has(line, "products") || record_has(line, "gflops"));
        assert_near(support_number(line, "points"), 0, 0);
    }
    cJSON_Delete(object);
}

static void the_files_agree(void **state) {
    (void)state;
    char path[512], failures[64];
    size_t length;
    snprintf(path, sizeof path, "%s/grades.html", grades);
    char *page = (char *)support_read(path, &length);
    page[length] = '\0';
    assert_null(markup_fault(page));
    assert_says(page, "<h3>Matrix multiply, week 3</h3>");
    assert_null(strstr(page, "Not in this report"));
    for (size_t i = 0; i < FILES; i += support_stride()) assert_says(page, expected[i].file);
    snprintf(path, sizeof path, "%s/grades.xml", grades);
    char *xml = (char *)support_read(path, &length);
    xml[length] = '\0';
    snprintf(failures, sizeof failures, "tests=\"%zu\" failures=\"%zu\"", file_count(), file_count());
    assert_says(xml, failures);
    assert_int_equal(count_of(xml, "<failure "), file_count());
    snprintf(path, sizeof path, "%s/grades.csv", grades);
    char *csv = (char *)support_read(path, &length);
    csv[length] = '\0';
    assert_int_equal(count_of(csv, "\n"), file_count() + 1);
    free(page);
    free(xml);
    free(csv);
}

/* --- limits --- */

static void one_thread_is_one_core(void **state) {
    (void)state;
    cJSON *line;
    const char *folder = support_path("cores");
    /* of float64, which it does not have: it is opened, but not verified */
    assert_int_equal(
        RUN("grade %s -o %s --dtypes f64", support_plugin("plugins/graded/counts-cores.so"), folder), 0);
    assert_int_equal(support_log(support_path("cores/log.jsonl"), "grade", 0, &line), 1);
    assert_says(record_text(line, "description"), "cores: 1");
    assert_says(record_text(line, "reason"), "supports none of the ops and dtypes");
    cJSON_Delete(line);
    assert_int_equal(RUN("grade %s -o %s --threads 4096", support_plugin("plugins/cached.so"), folder),
                     STATUS_UNAVAILABLE);
    assert_says(output, "4096 threads need as many cores");
}

static void time_and_memory_are_limited(void **state) {
    (void)state;
    const char *folder = support_path("limits");
    assert_int_equal(
        RUN("grade %s -o %s --timeout-seconds 3", support_plugin("plugins/hostile/loops.so"), folder), 0);
    assert_says(output, "hangs: no progress for 3 s (--timeout-seconds) (verification: f32 NN m=1");
    assert_int_equal(
        RUN("grade %s -o %s --total-seconds 0.3", support_plugin("plugins/good/options.so"), folder), 0);
    assert_says(output, "over a limit: it took more than 0.3 s in all (--total-seconds)");
    assert_int_equal(
        RUN("grade %s -o %s --memory-mib 128", support_plugin("plugins/graded/takes-memory.so"), folder), 0);
    assert_says(output, "of memory; it may take 128.0 MiB (");
}

static void compilations_are_limited(void **state) {
    (void)state;
    const char *endless = support_path("endless.cc");
    support_write(endless, "", 0);
    assert_int_equal(
        RUN("grade %s -o %s --compile-seconds 1 --compile-cpp 'sleep 100'", endless, support_path("endless")),
        0);
    assert_says(output, "does not compile: the compilation took more than 1 s (--compile-seconds)");
}

static void wrong_usage_is_said(void **state) {
    (void)state;
    assert_int_equal(RUN("grade"), STATUS_USAGE);
    assert_says(output, "grade needs files or folders");
    assert_int_equal(RUN("grade configs -o %s", support_path("x")), STATUS_BAD_DATA);
    assert_says(output, "'configs' has no .so, .c, .cc, .cpp or .cu file");
    assert_int_equal(RUN("grade no-such.so -o %s", support_path("x")), STATUS_BAD_DATA);
    assert_int_equal(
        RUN("grade %s -o %s --relative absent", support_plugin("plugins/cached.so"), support_path("x")),
        STATUS_UNAVAILABLE);
    assert_says(output, "relative = absent: ");
    assert_int_equal(RUN("grade --shap 1x1x1 --help"), 0);
    assert_says(output, "--points-correct X");
}

/* A folder with a link to each file. */
static int set_up(void **state) {
    (void)state;
    char to[512], from[600], here[400];
    unsetenv("OMP_WAIT_POLICY");
    if (!getcwd(here, sizeof here)) return 1;
    snprintf(input, sizeof input, "%s", support_path("input"));
    snprintf(grades, sizeof grades, "%s", support_path("grades"));
    mkdir(input, 0777);
    mkdir(support_path("input/hostile"), 0777);
    mkdir(support_path("input/refused"), 0777);
    for (size_t i = 0; i < FILES; i += support_stride()) {
        const char *file = expected[i].file, *dot = strrchr(file, '.');
        snprintf(to, sizeof to, "%s/%s", input, file);
        snprintf(from, sizeof from, "plugins/%s", file);
        const char *plugin = support_plugin(from);
        snprintf(from, sizeof from, "%s%s%.100s", plugin[0] == '/' ? "" : here, plugin[0] == '/' ? "" : "/",
                 plugin);
        if (strcmp(dot, ".so") != 0) snprintf(from, sizeof from, "%s/docs/assignment/%s", here, file);
        if (symlink(from, to) != 0) return 1;
        if (access(from, R_OK) == 0) continue;
        unlink(to);
        support_write(to, "int x = \"y\";\nerror\n", 20);
    }
    grade_all();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_file_is_a_row),      cmocka_unit_test(the_files_agree),
        cmocka_unit_test(one_thread_is_one_core),   cmocka_unit_test(time_and_memory_are_limited),
        cmocka_unit_test(compilations_are_limited), cmocka_unit_test(wrong_usage_is_said),
    };
    return cmocka_run_group_tests_name("grade", tests, set_up, NULL);
}
