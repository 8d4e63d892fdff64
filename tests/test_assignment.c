/* Assignments: their keys, the rubric, and the example of docs/assignment graded. */
#include "tests/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "src/base/files.h"
#include "src/bench/grade.h"
#include "src/report/records.h"
#include "tests/grades.h"
#include "tests/markup_check.h"

static char output[1 << 16];
#define RUN(...) support_run(output, sizeof output, __VA_ARGS__)

/* --- the assignment file --- */

static void keys_are_read(void **state) {
    (void)state;
    struct assignment assignment;
    enum gemm_dtype dtype;
    assignment_defaults(&assignment);
    assert_status(assignment_read(&assignment, "docs/assignment/matmul.cfg"), STATUS_OK);
    assert_status(assignment_check(&assignment), STATUS_OK);
    assert_string_equal(assignment.name, "Matrix multiply, week 3");
    assert_int_equal(assignment_products(&assignment), 6);
    const struct gemm_shape shape = assignment_product(&assignment, 4, &dtype);
    assert_true(shape.op == GEMM_TN && shape.m == 128 && shape.n == 10 && shape.k == 784);
    assert_int_equal(dtype, GEMM_F32);
    assert_status(assignment_set(&assignment, "dtypes", "f32,f64", "t"), STATUS_OK);
    assert_status(assignment_set(&assignment, "ops", "NN", "t"), STATUS_OK);
    assert_int_equal(assignment_products(&assignment), 4);
    assignment_product(&assignment, 1, &dtype);
    assert_int_equal(dtype, GEMM_F64);
}

static void wrong_keys_are_named(void **state) {
    (void)state;
    static const struct {
        const char *name, *value, *says;
    } cases[] = {
        {"shape", "1x1x1", "a.cfg:3: unknown key 'shape'; did you mean 'shapes'?"},
        {"threads", "0", "a.cfg:3: threads must be a whole number from 1 to 4096, not '0'"},
        {"dtypes", "bf16", "dtypes must be f32 | f64 | f32,f64, not 'bf16'"},
        {"full-speed", "0", "full-speed must be a number from 1e-09"},
    };
    static const char *const shapes[] = {"",       "8",       "8x8",   "8x8x",      "8x8x0",
                                         "8x8x8,", "8x8x8x8", "8 8 8", "8x8x70000", "-8x8x8"};
    struct assignment assignment;
    assignment_defaults(&assignment);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_status(assignment_set(&assignment, cases[i].name, cases[i].value, "a.cfg:3"), STATUS_USAGE);
        assert_says(status_message(), cases[i].says);
    }
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        assert_status(assignment_set(&assignment, "shapes", shapes[i], "t"), STATUS_OK);
        assert_status(assignment_check(&assignment), STATUS_USAGE);
        assert_says(status_message(), "shapes must be MxNxK");
    }
    assert_status(assignment_read(&assignment, support_path("absent")), STATUS_USAGE);
    assert_says(status_message(), "the assignment ");
}

/* Points may change without a new measurement, all else not. */
static void the_hash_is_of_what_is_measured(void **state) {
    (void)state;
    struct assignment assignment;
    assignment_defaults(&assignment);
    const uint64_t before = assignment_hash(&assignment);
    assignment_set(&assignment, "points-speed", "7", "t");
    assignment_set(&assignment, "full-speed", "0.25", "t");
    assert_true(assignment_hash(&assignment) == before);
    assignment_set(&assignment, "repeats", "9", "t");
    assert_true(assignment_hash(&assignment) != before);
}

/* --- points --- */

#define PRODUCT(op, share) \
    "{\"op\":\"" op "\",\"median_seconds\":1e-3,\"gflops\":2,\"relative\":0.5,\"share_of_peak\":" share "}"

static void points_follow_the_rubric(void **state) {
    (void)state;
    static const char *const texts[] = {
        "{\"file\":\"c\",\"outcome\":\"wrong\",\"reason\":\"it is\"}",
        "{\"file\":\"b\",\"outcome\":\"forward only\",\"products\":[" PRODUCT("NN", "0.9") "]}",
        "{\"file\":\"a\",\"outcome\":\"right\",\"products\":[" PRODUCT("NN", "0.9") "," PRODUCT(
            "TN", "0.1") ",{\"op\":\"NT\",\"left_out\":\"it is slow\"}]}",
        "{\"file\":\"d\",\"outcome\":\"crashes\",\"reason\":\"it did\"}"};
    struct assignment assignment;
    cJSON *lines[4];
    assignment_defaults(&assignment);
    assignment_set(&assignment, "shapes", "8x8x8", "t");
    assert_status(assignment_check(&assignment), STATUS_OK);
    for (int i = 0; i < 4; i++) assert_non_null(lines[i] = cJSON_Parse(texts[i]));
    grade_rank(lines, 4, &assignment);
    assert_string_equal(record_text(lines[0], "file"), "a");
    assert_near(support_number(lines[0], "points"), 50 + 50 * (1 + 0.2 + 0) / 3, 1e-12);
    assert_near(support_number(lines[0], "tn_gflops"), 2, 1e-12);
    assert_false(record_has(lines[0], "nt_gflops"));
    assert_near(support_number(lines[0], "share_of_peak"), 0.5, 1e-12);
    assert_near(support_number(lines[1], "points"), 20 + 50 * 1.0 / 3, 1e-12);
    assert_near(support_number(lines[2], "points"), 0, 1e-12);
    assert_near(support_number(lines[2], "rank"), 3, 0);
    assert_near(support_number(lines[3], "rank"), 3, 0);
    assignment_set(&assignment, "relative", "serial", "t");
    assignment_set(&assignment, "full-speed", "2", "t");
    grade_rank(lines, 4, &assignment); /* again, with another rubric */
    assert_near(support_number(lines[0], "points_speed"), 50 * (0.25 + 0.25 + 0) / 3, 1e-12);
    for (int i = 0; i < 4; i++) cJSON_Delete(lines[i]);
}

/* Text of a submission must not become a formula, a new cell or markup. */
static void files_are_escaped(void **state) {
    (void)state;
    struct assignment assignment;
    cJSON *line =
              cJSON_Parse("{\"file\":\"=cmd|'\\\" <b>,.so\",\"outcome\":\"wrong\",\"reason\":\"a\\nb]]>&\"}"),
          *header = cJSON_CreateObject();
    size_t length;
    assert_non_null(line);
    assignment_defaults(&assignment);
    assert_status(assignment_check(&assignment), STATUS_OK);
    assert_status(files_make_folder(support_path("escaped")), STATUS_OK);
    grade_rank(&line, 1, &assignment);
    assert_status(grade_write(support_path("escaped"), &line, 1, header, &assignment), STATUS_OK);
    char *csv = (char *)support_read(support_path("escaped/grades.csv"), &length);
    csv[length] = '\0';
    assert_says(csv, "\n1,\"'=cmd|'\"\" <b>,.so\",\"wrong\",0,0,0,,,,,,,,\"a b]]>&\"\n");
    char *xml = (char *)support_read(support_path("escaped/grades.xml"), &length);
    xml[length] = '\0';
    assert_null(markup_fault(strchr(xml, '\n') + 1));
    assert_null(strstr(xml, "<b>"));
    free(csv);
    free(xml);
    cJSON_Delete(line);
    cJSON_Delete(header);
}

/* --- the example --- */

/* Grades docs/assignment, and a file that the tests change. */
static void grade(const char *flags) {
    const int code = RUN("grade docs/assignment %s --assignment docs/assignment/matmul.cfg -o %s "
                         "--shapes 24x24x24 --repeats 3 --relative serial %s",
                         support_path("mine.c"), support_path("grades"), flags);
    if (code) fail_msg("%d: %s", code, output);
}

static void the_example_is_graded(void **state) {
    (void)state;
    support_write(support_path("mine.c"), "int x;\n", 7);
    grade("");
    assert_says(output, "; 3 of 3 measured in this run");
    cJSON *object = grades_read(support_path("grades"));
    const cJSON *solution = grade_of(object, "solution.c"), *starter = grade_of(object, "starter.c");
    assert_string_equal(record_text(solution, "outcome"), "right");
    assert_string_equal(record_text(starter, "outcome"), "forward only");
    assert_near(support_number(solution, "rank"), 1, 0);
    assert_near(support_number(solution, "points_correct"), 50, 0);
    assert_true(support_number(solution, "points_speed") <= 50 && support_number(solution, "relative") > 0);
    assert_near(support_number(starter, "points_correct"), 15, 0);
    assert_true(support_number(starter, "points_speed") <= 50.0 / 3); /* one of three products */
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(solution, "products")), 3);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(starter, "products")), 1);
    cJSON_Delete(object);
}

/* Only a changed file is measured again. */
static void a_rerun_continues(void **state) {
    (void)state;
    grade("--points-correct 7 --name 'Week 4'");
    assert_says(output, "; 0 of 3 measured in this run");
    assert_says(output, "Week 4: ");
    cJSON *object = grades_read(support_path("grades"));
    assert_near(support_number(grade_of(object, "solution.c"), "points_correct"), 7, 0);
    cJSON_Delete(object);
    support_write(support_path("mine.c"), "int y;\n", 7);
    grade("");
    assert_says(output, "; 1 of 3 measured in this run");
    assert_int_equal(RUN("report %s -o %s", support_path("grades/log.jsonl"), support_path("again.html")), 0);
}

static void devices_log_what_they_verify(void **state) {
    (void)state;
    cJSON *line;
    const char *log = support_path("devices.jsonl");
    assert_int_equal(RUN("devices --verify --log %s --backend %s", log, support_plugin("plugins/cached.so")),
                     STATUS_VERIFY_FAILED);
    assert_int_equal(support_log(log, "verification", 0, &line), 1);
    assert_true(record_has(line, "verified") && !record_true(line, "verified"));
    assert_says(record_text(line, "reason"), "backend 'cached' is wrong: f32 NN");
    assert_string_equal(record_text(line, "backend"), "cached");
    cJSON_Delete(line);
    assert_int_equal(RUN("devices --log %s", log), 0);
    assert_true(support_log(log, "verification", 0, &line) > 2);
    assert_false(record_has(line, "verified"));
    cJSON_Delete(line);
    assert_int_equal(support_log(log, "header", 0, &line), 1);
    cJSON_Delete(line);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_are_read),
        cmocka_unit_test(wrong_keys_are_named),
        cmocka_unit_test(the_hash_is_of_what_is_measured),
        cmocka_unit_test(points_follow_the_rubric),
        cmocka_unit_test(files_are_escaped),
        cmocka_unit_test(the_example_is_graded),
        cmocka_unit_test(a_rerun_continues),
        cmocka_unit_test(devices_log_what_they_verify),
    };
    return cmocka_run_group_tests_name("assignment", tests, NULL, NULL);
}
