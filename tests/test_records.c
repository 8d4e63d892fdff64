/* The rows that the report reads: which run they belong to, broken lines, values of another type. */
#include "tests/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/pages.h"

static void rows_follow_their_header(void **state) {
    (void)state;
    struct records records = {0};
    const char *first =
        pages_write_text("first.jsonl", "{\"type\":\"header\",\"cpu\":\"one\"}\n{\"type\":\"gemm\"}\n\n"
                                        "{\"type\":\"header\",\"cpu\":\"two\"}\n{\"type\":\"gemm\"}");
    const char *second =
        pages_write_text("second.jsonl", "{\"type\":\"gemm\"}\n{\"type\":\"of the future\"}\n");
    assert_status(records_read(&records, first), STATUS_OK);
    assert_status(records_read(&records, second), STATUS_OK);
    const struct record *row = records_after(&records, NULL, "gemm");
    assert_string_equal(record_text(row->header, "cpu"), "one");
    const size_t run = row->run;
    row = records_after(&records, row, "gemm");
    assert_string_equal(record_text(row->header, "cpu"), "two");
    assert_int_not_equal(row->run, run);
    row = records_after(&records, row, "gemm");
    assert_null(row->header); /* not the previous file's */
    assert_null(records_after(&records, row, "gemm"));
    assert_int_equal(records.count, 5);
    records_free(&records);
}

/* Two processes wrote one log: rows belong to the header with the same run. Rows of earlier versions, without
   a run, belong to the header before them. */
static void rows_of_two_runs_are_told_apart(void **state) {
    (void)state;
#define LINE(type, run, cpu) "{\"type\":\"" type "\",\"run\":\"" run "\",\"cpu\":\"" cpu "\"}\n"
    struct records records = {0};
    const char *text = LINE("header", "x", "one") LINE("header", "y", "two") LINE("gemm", "x", "one")
        LINE("gemm", "y", "two") LINE("gemm", "lost", "") LINE("gemm", "x", "one");
    assert_status(records_read(&records, pages_write_text("mixed.jsonl", text)), STATUS_OK);
    assert_int_equal(records.warning_count, 1);
    assert_says(records.warnings[0], "mixed.jsonl, line 3: of another run");
    const struct record *row = NULL;
    size_t run = 0;
    for (int i = 0; (row = records_after(&records, row, "gemm")); i++) {
        assert_string_equal(record_text(row->header, "cpu"), record_text(row->line, "cpu"));
        if (i == 0) run = row->run;
        assert_int_equal(row->run == run, i == 0 || i == 3);
    }
    /* the same file again is another run */
    assert_status(records_read(&records, pages_write_text("mixed.jsonl", text)), STATUS_OK);
    assert_int_not_equal(records.list[records.count - 1].run, run);
    records_free(&records);
}

/* A broken line is skipped with a warning; a file without any other line is refused. */
static void broken_lines_are_named(void **state) {
    (void)state;
    static const char *const broken[] = {"{\"type\":\"gemm\"", "[1,2]",
                                         "{\"type\":3}",       "{}",
                                         "nonsense",           "{\"type\":\"gemm\"} {\"type\":\"gemm\"}",
                                         "{\"type\":\"\"}",    "null"};
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        struct records records = {0};
        char text[256];
        snprintf(text, sizeof text, "{\"type\":\"gemm\"}\n\n%s\n%s\n{\"type\":\"gemm\"}", broken[i],
                 broken[i]);
        assert_status(records_read(&records, pages_write_text("broken.jsonl", text)), STATUS_OK);
        assert_int_equal(records.count, 2);
        assert_int_equal(records.warning_count, 1);
        assert_says(records.warnings[0], "broken.jsonl, line 3: not a JSON object");
        assert_says(records.warnings[0], "skipped, like 1 more");
        records_free(&records);
        assert_status(records_read(&records, pages_write_text("broken.jsonl", broken[i])), STATUS_BAD_DATA);
        assert_says(status_message(), "broken.jsonl, line 1: not a JSON object");
        records_free(&records);
    }
    char *deep = malloc(200001);
    assert_non_null(deep);
    memset(deep, '[', 200000);
    deep[200000] = '\0';
    struct records records = {0};
    assert_status(records_read(&records, pages_write_text("deep.jsonl", deep)), STATUS_BAD_DATA);
    assert_status(records_read(&records, pages_write_text("empty.jsonl", "\n \n")), STATUS_BAD_DATA);
    assert_says(status_message(), "no line of a known type");
    assert_status(records_read(&records, "no-such-file.jsonl"), STATUS_BAD_DATA);
    assert_says(status_message(), "no-such-file.jsonl");
    records_free(&records);
    free(deep);
}

static void values_of_another_type_are_absent(void **state) {
    (void)state;
    cJSON *line = cJSON_Parse(
        "{\"a\":1e999,\"b\":\"text\",\"c\":true,\"d\":-3,\"e\":2.5,\"f\":null,\"g\":1e300,\"h\":7}");
    static const char *const not_numbers[] = {"a", "b", "c", "f", "g", "z"};
    for (size_t i = 0; i < 6; i++) assert_true(isnan(record_number(line, not_numbers[i])));
    assert_string_equal(record_text(line, "b"), "text");
    assert_string_equal(record_text(line, "a"), "");
    assert_true(record_true(line, "c") && !record_true(line, "b") && !record_true(line, "f"));
    assert_int_equal(record_count(line, "h", 10, 99), 7);
    assert_int_equal(record_count(line, "h", 6, 99), 99);
    assert_int_equal(record_count(line, "d", 10, 99), 99);
    assert_int_equal(record_count(line, "e", 10, 99), 99);
    assert_true(isnan(record_number(NULL, "a")) && !record_text(NULL, "b")[0]);
    cJSON_Delete(line);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_follow_their_header),
        cmocka_unit_test(rows_of_two_runs_are_told_apart),
        cmocka_unit_test(broken_lines_are_named),
        cmocka_unit_test(values_of_another_type_are_absent),
    };
    return cmocka_run_group_tests_name("records", tests, NULL, NULL);
}
