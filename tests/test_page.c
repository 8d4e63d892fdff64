/* The report: rows of hostile files, the page with and without its data, tables in Markdown, the command. */
#include "tests/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "src/report/page.h"
#include "src/report/rewrite.h"
#include "tests/markup_check.h"

#define FULL "tests/fixtures/full.jsonl"

static char output[1 << 15];
#define RUN(...) support_run(output, sizeof output, __VA_ARGS__)

static const char *write_text(const char *name, const char *text) {
    const char *path = support_path(name);
    support_write(path, text, strlen(text));
    return path;
}

static char *read_text(const char *path) {
    size_t length;
    char *text = (char *)support_read(path, &length);
    text[length] = '\0';
    return text;
}

/* The page of these rows; to be freed. */
static char *page_of(const struct records *records) {
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    assert_status(page_write(out, records, NULL, NULL), STATUS_OK);
    fclose(out);
    const char *fault = markup_fault(text);
    if (fault) fail_msg("not well-formed at: %.200s", fault);
    return text;
}

static char *page_of_text(const char *jsonl) {
    struct records records = {0};
    assert_status(records_read(&records, write_text("lines.jsonl", jsonl)), STATUS_OK);
    char *text = page_of(&records);
    records_free(&records);
    return text;
}

/* --- rows --- */

static void rows_follow_their_header(void **state) {
    (void)state;
    struct records records = {0};
    const char *first =
        write_text("first.jsonl", "{\"type\":\"header\",\"cpu\":\"one\"}\n{\"type\":\"gemm\"}\n\n"
                                  "{\"type\":\"header\",\"cpu\":\"two\"}\n{\"type\":\"gemm\"}");
    const char *second = write_text("second.jsonl", "{\"type\":\"gemm\"}\n{\"type\":\"of the future\"}\n");
    assert_status(records_read(&records, first), STATUS_OK);
    assert_status(records_read(&records, second), STATUS_OK);
    const struct record *row = records_after(&records, NULL, "gemm");
    assert_string_equal(record_text(row->header, "cpu"), "one");
    const size_t run = row->run;
    row = records_after(&records, row, "gemm");
    assert_string_equal(record_text(row->header, "cpu"), "two");
    assert_int_not_equal(row->run, run);
    row = records_after(&records, row, "gemm");
    assert_null(row->header); /* not that of the file before */
    assert_null(records_after(&records, row, "gemm"));
    assert_int_equal(records.count, 5);
    records_free(&records);
}

static void broken_lines_are_named(void **state) {
    (void)state;
    static const char *const broken[] = {"{\"type\":\"gemm\"", "[1,2]",
                                         "{\"type\":3}",       "{}",
                                         "nonsense",           "{\"type\":\"gemm\"} {\"type\":\"gemm\"}",
                                         "{\"type\":\"\"}",    "null"};
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        struct records records = {0};
        char text[256];
        snprintf(text, sizeof text, "{\"type\":\"gemm\"}\n\n%s\n", broken[i]);
        assert_status(records_read(&records, write_text("broken.jsonl", text)), STATUS_BAD_DATA);
        assert_says(status_message(), "broken.jsonl, line 3: not a JSON object");
        records_free(&records);
    }
    char *deep = malloc(200001);
    assert_non_null(deep);
    memset(deep, '[', 200000);
    deep[200000] = '\0';
    struct records records = {0};
    assert_status(records_read(&records, write_text("deep.jsonl", deep)), STATUS_BAD_DATA);
    assert_status(records_read(&records, write_text("empty.jsonl", "\n \n")), STATUS_BAD_DATA);
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

/* --- the page --- */

static const char *const sections[] = {"environment", "accuracy",  "time",    "training",
                                       "gemm",        "roofline",  "scaling", "shmem",
                                       "breakeven",   "confusion", "mistakes"};
enum { SECTIONS = sizeof sections / sizeof *sections };

static bool has_section(const char *page, const char *id) {
    char tag[64];
    snprintf(tag, sizeof tag, "<section id=\"%s\">", id);
    return strstr(page, tag) != NULL;
}

static void full_page_has_everything(void **state) {
    (void)state;
    struct records records = {0};
    assert_status(records_read(&records, FULL), STATUS_OK);
    char *page = page_of(&records);
    for (size_t i = 0; i < SECTIONS; i++)
        if (!has_section(page, sections[i])) fail_msg("no section %s", sections[i]);
    assert_null(strstr(page, "Not in this report"));
    /* curves 2, bars 2 configs x 2, sizes 3, roofs 4, scaling 1, shmem 4, map 1, confusion 1 */
    assert_int_equal(count_of(page, "<svg class=\"chart\""), 20);
    assert_int_equal(count_of(page, "<svg class=\"chart\""), count_of(page, "role=\"img\""));
    assert_int_equal(count_of(page, "<table"), count_of(page, "<caption>"));
    assert_int_equal(count_of(page, "<img "), 3);
    assert_says(page, "Best choice: order CC, block 16, static shared memory, plain multiply");
    assert_says(page, "openmp: serial fraction 3.00 % +- 0.40 %");
    assert_says(page,
                "Fastest: cublas tf32, device, graph, 21.3 ms an epoch, 8.64 times as fast as openblas.");
    assert_says(page, "(&lt;core&gt; &amp; kernels)");
    free(page);
    records_free(&records);
}

static void page_needs_nothing_from_elsewhere(void **state) {
    (void)state;
    struct records records = {0};
    assert_status(records_read(&records, FULL), STATUS_OK);
    char *page = page_of(&records);
    static const char *const outside[] = {"<script",  "<link",      "@import",    "@font-face",
                                          "url(http", "src=\"http", "href=\"http"};
    for (size_t i = 0; i < sizeof outside / sizeof *outside; i++) assert_null(strstr(page, outside[i]));
    assert_int_equal(count_of(page, "http"), count_of(page, "xmlns=\"http://www.w3.org/2000/svg\""));
    assert_says(page, "<html lang=\"en\">");
    assert_says(page, "prefers-color-scheme:dark");
    assert_says(page, "@media print");
    free(page);
    records_free(&records);
}

static void no_row_that_is_wrong_has_a_time(void **state) {
    (void)state;
    char *page =
        page_of_text("{\"type\":\"compare\",\"backend\":\"bad\",\"device\":\"host\",\"agrees\":false,"
                     "\"reason\":\"NaN in step 2\","
                     "\"median_epoch_seconds\":0.777,\"speedup\":77.7,\"test_accuracy\":0.777,\"time\":{"
                     "\"gemm_nn\":0.777}}\n"
                     "{\"type\":\"gemm\",\"backend\":\"bad\",\"op\":\"NN\",\"dtype\":\"f32\",\"m\":2,\"n\":2,"
                     "\"k\":2,\"verified\":false,"
                     "\"reason\":\"worst at (1, 1)\",\"median_seconds\":0.777,\"gflops\":777,\"bytes\":48}\n"
                     "{\"type\":\"shmem\",\"order\":\"RR\",\"tile\":4,\"verified\":false,\"median_seconds\":"
                     "0.777,\"gflops\":777}\n"
                     "{\"type\":\"peak\",\"device\":\"\",\"f32_gflops\":10,\"copy_gbytes_per_second\":5}\n");
    assert_says(page, "does not agree: NaN in step 2");
    assert_says(page, "wrong result: worst at (1, 1)");
    assert_null(strstr(page, "777"));
    assert_null(strstr(page, "77.7"));
    assert_true(!has_section(page, "time") && !has_section(page, "roofline"));
    free(page);
}

static void missing_sections_name_their_command(void **state) {
    (void)state;
    char *page = page_of_text("{\"type\":\"header\",\"cpu\":\"x\"}\n");
    for (size_t i = 1; i < SECTIONS; i++) assert_true(!has_section(page, sections[i]));
    assert_says(page, "Not in this report");
    assert_says(page, "./train bench shmem");
    assert_says(page, "./train compare");
    assert_says(page, "./train eval");
    free(page);
}

/* Every type with nothing, with everything of the wrong type, with numbers out of all bounds, with markup as text. */
static void hostile_rows_are_harmless(void **state) {
    (void)state;
    static const char *const types[] = {"header",    "step",       "epoch",     "summary", "compare",
                                        "peak",      "gemm",       "scaling",   "amdahl",  "shmem",
                                        "breakeven", "evaluation", "confusion", "mistake"};
    static const char *const keys[] = {"backend",
                                       "device",
                                       "gpu",
                                       "cpu",
                                       "config",
                                       "op",
                                       "dtype",
                                       "precision",
                                       "order",
                                       "tile",
                                       "m",
                                       "n",
                                       "k",
                                       "batch",
                                       "hidden",
                                       "threads",
                                       "epoch",
                                       "train_loss",
                                       "test_accuracy",
                                       "median_seconds",
                                       "min_seconds",
                                       "max_seconds",
                                       "median_epoch_seconds",
                                       "gflops",
                                       "bytes",
                                       "f32_gflops",
                                       "f64_gflops",
                                       "copy_gbytes_per_second",
                                       "speedup",
                                       "time",
                                       "kernels",
                                       "trace",
                                       "warnings",
                                       "counts",
                                       "pixels",
                                       "height",
                                       "width",
                                       "label",
                                       "serial_fraction",
                                       "step_seconds",
                                       "what",
                                       "reason",
                                       "warning",
                                       "residency",
                                       "engine",
                                       "layers",
                                       "seed",
                                       "share_of_peak",
                                       "checkpoint",
                                       "shared"};
    static const char *const values[] = {"1e999",
                                         "-1e308",
                                         "1e18",
                                         "-5",
                                         "0",
                                         "\"<script>alert('&')</script>\"",
                                         "null",
                                         "[[[1]]]",
                                         "{\"name\":\"</table>\"}",
                                         "[\"<\",{},3]",
                                         "true",
                                         "\"-->\\u0001\\ud800|`\"",
                                         "9007199254740993",
                                         "1e-300"};
    for (size_t v = 0; v <= sizeof values / sizeof *values; v++) {
        char *text = calloc(1, 1 << 16);
        assert_non_null(text);
        for (size_t round = 0; round < 2; round++)
            for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
                char *at = text + strlen(text);
                at += sprintf(
                    at, "{\"type\":\"%s\",\"agrees\":true,\"verified\":true,\"wins\":true,\"best\":true",
                    types[t]);
                for (size_t k = 0; k < sizeof keys / sizeof *keys && v < sizeof values / sizeof *values; k++)
                    at += sprintf(at, ",\"%s\":%s", keys[k], values[v]);
                sprintf(at, "}\n");
            }
        struct records records = {0};
        const enum status status = records_read(&records, write_text("hostile.jsonl", text));
        if (!status) { /* cJSON itself refuses half a surrogate */
            char *page = page_of(&records);
            assert_null(strstr(page, "<script"));
            free(page);
        }
        records_free(&records);
        free(text);
    }
}

static void odd_images_are_left_out(void **state) {
    (void)state;
    char *page = page_of_text("{\"type\":\"mistake\",\"height\":2,\"width\":2,\"pixels\":\"00ff00\"}\n"
                              "{\"type\":\"mistake\",\"height\":2,\"width\":1,\"pixels\":\"0zff\"}\n"
                              "{\"type\":\"mistake\",\"height\":1e9,\"width\":1e9,\"pixels\":\"\"}\n"
                              "{\"type\":\"confusion\",\"counts\":[[1,2],[\"x\"]]}\n");
    assert_true(!has_section(page, "mistakes") && has_section(page, "confusion"));
    free(page);
}

/* --- tables in Markdown --- */

static char *rewritten(const char *text, const char *tag) {
    struct records records = {0};
    assert_status(records_read(&records, FULL), STATUS_OK);
    const char *path = write_text("page.md", text);
    assert_status(rewrite_tables(path, tag, &records), STATUS_OK);
    records_free(&records);
    return read_text(path);
}

static void known_markers_are_filled(void **state) {
    (void)state;
    char *text = rewritten(
        "# Top\n<!-- note -->\n<!-- compare validation -->\nold\n<!-- end -->\nbetween\n<!-- gemm -->\nold\n"
        "<!-- end -->\n<!-- peak -->\n<!-- end -->\n<!-- scaling -->\n<!-- end -->\n<!-- shmem -->\n"
        "<!-- end -->\n<!-- breakeven -->\n<!-- end -->\nlast",
        NULL);
    assert_null(strstr(text, "old"));
    assert_int_equal(count_of(text, "Measured on: "), 6);
    assert_int_equal(count_of(text, "<!-- end -->"), 6);
    assert_says(
        text,
        "# Top\n<!-- note -->\n<!-- compare validation -->\nMeasured on: Example GPU, 100 SMs; host Example "
        "CPU, "
        "4 threads; gcc 12.2.0; Tessera 0.1.0 commit 0123456789; data data/mnist.\n\n| implementation |");
    assert_says(text, "| `cublas` | device | graph | tf32 | 97.59 % +- 0.15 | 0.002 | 21.3 ms (20.7 ms to "
                      "22.2 ms) | 8.64 |");
    assert_says(text, "does not agree: the loss leaves");
    assert_says(text, "<!-- end -->\nbetween\n<!-- gemm -->");
    assert_int_equal(strcmp(text + strlen(text) - 5, "\nlast"), 0);
    char *again = rewritten(text, NULL); /* nothing grows */
    assert_string_equal(again, text);
    free(text);
    free(again);
}

static void tags_choose_their_markers(void **state) {
    (void)state;
    const char *text = "<!-- peak -->\na\n<!-- end -->\n<!-- peak h100 -->\nb\n<!-- end -->\n"
                       "<!-- compare validation h100 -->\nc\n<!-- end -->\n";
    char *plain = rewritten(text, NULL), *tagged = rewritten(text, "h100");
    assert_says(plain, "\nb\n<!-- end -->\n<!-- compare validation h100 -->\nc\n");
    assert_null(strstr(plain, "\na\n"));
    assert_says(tagged, "<!-- peak -->\na\n<!-- end -->");
    assert_true(!strstr(tagged, "\nb\n") && !strstr(tagged, "\nc\n"));
    free(plain);
    free(tagged);
}

static void markers_without_data_stay(void **state) {
    (void)state;
    const char *path = write_text(
        "stay.md", "<!-- shmem -->\nkept\n<!-- end -->\n<!-- compare other -->\nkept too\n<!-- end -->\n");
    const char *lines = write_text("peak.jsonl", "{\"type\":\"peak\",\"device\":\"host\"}\n");
    assert_int_equal(RUN("report %s --tables %s", lines, path), 0);
    assert_says(output, "line 1: the files have no data for 'shmem'; left as it is");
    assert_says(output, "line 4: the files have no data for 'compare other'");
    char *text = read_text(path);
    assert_string_equal(
        text, "<!-- shmem -->\nkept\n<!-- end -->\n<!-- compare other -->\nkept too\n<!-- end -->\n");
    free(text);
}

static void files_are_fenced(void **state) {
    (void)state;
    char page[512], *text;
    const char *plain = write_text("plain.txt", "one\ntwo"),
               *fenced = write_text("fenced.txt", "```\nx\n```\n");
    snprintf(page, sizeof page, "<!-- file %s -->\n<!-- end -->\n<!-- file %s -->\n<!-- end -->\n", plain,
             fenced);
    text = rewritten(page, NULL);
    assert_says(text, "-->\n```text\none\ntwo\n```\n<!-- end -->");
    assert_says(text, "-->\n~~~~~~text\n```\nx\n```\n~~~~~~\n<!-- end -->");
    free(text);
}

static void broken_markers_change_nothing(void **state) {
    (void)state;
    static const char *const broken[][2] = {
        {"x\n<!-- gemm -->\ny\n", "line 2: the marker has no <!-- end -->"},
        {"<!-- gemm -->\n<!-- peak -->\n<!-- end -->\n", "line 1: the marker has no"},
        {"<!-- file no-such.txt -->\n<!-- end -->\n", "no-such.txt"}};
    for (size_t i = 0; i < 3; i++) {
        const char *path = write_text("broken.md", broken[i][0]);
        assert_int_equal(RUN("report " FULL " --tables %s", path), 3);
        assert_says(output, broken[i][1]);
        char *text = read_text(path);
        assert_string_equal(text, broken[i][0]);
        free(text);
    }
}

/* --- the command --- */

static void command_writes_the_page(void **state) {
    (void)state;
    const char *page = support_path("out.html");
    assert_int_equal(RUN("report " FULL " tests/fixtures/full.jsonl -o %s", page), 0);
    assert_says(output, "of 2 files");
    char *text = read_text(page);
    assert_null(markup_fault(text));
    free(text);
    assert_int_equal(RUN("report -o%s " FULL, page), 0);
    assert_int_equal(RUN("report --output=%s -- " FULL, page), 0);
    assert_int_equal(RUN("report --help"), 0);
    assert_says(output, "  -o FILE");
    assert_says(output, "--tables FILE");
}

static void command_mistakes_have_their_exit_codes(void **state) {
    (void)state;
    assert_int_equal(RUN("report"), 2);
    assert_says(output, "report needs the files");
    assert_int_equal(RUN("report " FULL " -o"), 2);
    assert_says(output, "-o needs a value");
    assert_int_equal(RUN("report " FULL " -x"), 2);
    assert_int_equal(RUN("report " FULL " --outptu x"), 2);
    assert_says(output, "did you mean '--output'?");
    assert_int_equal(RUN("report " FULL " --tag x"), 2);
    assert_int_equal(RUN("report no-such.jsonl"), 3);
    assert_int_equal(RUN("report README.md"), 3);
    assert_says(output, "README.md, line 1");
    assert_int_equal(RUN("report " FULL " -o /no-such/folder/x.html"), 1);
    assert_int_equal(RUN("report " FULL " --tables no-such.md"), 3);
}

static void pictures_need_gnuplot(void **state) {
    (void)state;
    const char *folder = support_path("png"), *page = support_path("png.html");
    char path[300], *text;
    setenv("SAVED_PATH", getenv("PATH"), 1);
    setenv("PATH", "/no-such", 1); /* popen names the shell by its whole path */
    const int code = RUN("report " FULL " -o %s --png %s", page, folder);
    setenv("PATH", getenv("SAVED_PATH"), 1);
    assert_int_equal(code, 4);
    assert_says(output, "--png needs gnuplot");
    snprintf(path, sizeof path, "%s/breakeven-1.gp", folder);
    text = read_text(path);
    assert_says(text, "set output \"breakeven-1.png\"");
    assert_null(strchr(text, '`')); /* gnuplot would run what stands there */
    free(text);
    snprintf(path, sizeof path, "%s/time-seconds-1.dat", folder);
    text = read_text(path);
    assert_says(text, "\"openblas, 4 threads\" 0 0.0662");
    free(text);
    assert_int_equal(access(page, F_OK), 0);
    if (system("command -v gnuplot >/dev/null 2>&1") != 0) {
        print_message("skipped: no gnuplot\n");
        skip();
    }
    assert_int_equal(RUN("report " FULL " -o %s --png %s", page, folder), 0);
    assert_says(output, "20 charts as .png");
    snprintf(path, sizeof path, "%s/confusion-1.png", folder);
    struct stat info;
    assert_true(stat(path, &info) == 0 && info.st_size > 1000);
}

static void browser_shows_it(void **state) {
    (void)state;
    const char *page = support_path("browser.html");
    assert_int_equal(RUN("report " FULL " -o %s", page), 0);
    char command[512];
    snprintf(command, sizeof command, "tests/browser.sh %s %s", page, support_path("shots"));
    const int status = system(command);
    if (status != 0 && WEXITSTATUS(status) == 77) {
        print_message("skipped: no chromium\n");
        skip();
    }
    assert_int_equal(status, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_follow_their_header),
        cmocka_unit_test(broken_lines_are_named),
        cmocka_unit_test(values_of_another_type_are_absent),
        cmocka_unit_test(full_page_has_everything),
        cmocka_unit_test(page_needs_nothing_from_elsewhere),
        cmocka_unit_test(no_row_that_is_wrong_has_a_time),
        cmocka_unit_test(missing_sections_name_their_command),
        cmocka_unit_test(hostile_rows_are_harmless),
        cmocka_unit_test(odd_images_are_left_out),
        cmocka_unit_test(known_markers_are_filled),
        cmocka_unit_test(tags_choose_their_markers),
        cmocka_unit_test(markers_without_data_stay),
        cmocka_unit_test(files_are_fenced),
        cmocka_unit_test(broken_markers_change_nothing),
        cmocka_unit_test(command_writes_the_page),
        cmocka_unit_test(command_mistakes_have_their_exit_codes),
        cmocka_unit_test(pictures_need_gnuplot),
        cmocka_unit_test(browser_shows_it),
    };
    return cmocka_run_group_tests_name("page", tests, NULL, NULL);
}
