/* ./train report as a command: tables of a Markdown file, flags, exit codes, charts as files, a browser. */
#include "tests/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

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
        "4 threads; gcc 12.2.0; Tessera 0.1.0 commit 0123456789; data data/mnist.\n\nAll rows train the "
        "same");
    assert_says(text, "| `cublas` | device | graph | tf32 | 97.59 % +- 0.15 | 0.002 | 21.3 ms (20.7 ms to "
                      "22.2 ms) | 8.64 |");
    assert_says(text, "does not agree: the loss leaves");
    assert_says(text, "Shown: 2048 x 2048 x 2048.\n\nOrder: how");
    assert_says(text, "Shown: config validation, f32.");
    assert_says(text, "| `openmp` | validation | 3.00 % +- 0.40 % |");
    assert_says(text, "<!-- end -->\nbetween\n<!-- gemm -->");
    assert_int_equal(strcmp(text + strlen(text) - 5, "\nlast"), 0);
    char *again = rewritten(text, NULL); /* a second rewrite changes nothing */
    assert_string_equal(again, text);
    free(text);
    free(again);
}

/* Rows that could not run are listed below the table, one line per reason. */
static void rows_left_out_stand_below(void **state) {
    (void)state;
#define ROW(backend, rest) "{\"type\":\"compare\",\"config\":\"c\",\"backend\":\"" backend "\"," rest "}\n"
    const char *lines = write_text(
        "left_out.jsonl", ROW("a", "\"left_out\":\"no | toolkit\"") ROW("b", "\"agrees\":true,\"speedup\":2")
                              ROW("c", "\"left_out\":\"no room\"") ROW("d", "\"left_out\":\"no | toolkit\""));
    const char *path = write_text("left_out.md", "<!-- compare c -->\n<!-- end -->\n");
    assert_int_equal(RUN("report %s --tables %s", lines, path), 0);
    char *text = read_text(path);
    assert_int_equal(count_of(text, "\n| `"), 1);
    assert_says(text, "| `b` | - | - |");
    assert_says(
        text, "\n\nLeft out: `a`, `d`, because no \\| toolkit.\n\nLeft out: `c`, because no room.\n<!-- end");
    free(text);
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
               *fenced = write_text("fenced.txt", "```\nx\n```\n"),
               *markdown = write_text("table.md", "| a |\n|---|\n");
    snprintf(
        page, sizeof page,
        "<!-- file %s -->\n<!-- end -->\n<!-- file %s -->\n<!-- end -->\n<!-- file %s -->\n<!-- end -->\n",
        plain, fenced, markdown);
    text = rewritten(page, NULL);
    assert_says(text, "-->\n```text\none\ntwo\n```\n<!-- end -->");
    assert_says(text, "-->\n~~~~~~text\n```\nx\n```\n~~~~~~\n<!-- end -->");
    assert_says(text, "-->\n\n| a |\n|---|\n\n<!-- end -->");
    free(text);
}

static void broken_markers_change_nothing(void **state) {
    (void)state;
    char nested[512];
    snprintf(nested, sizeof nested, "<!-- file %s -->\n<!-- end -->\n",
             write_text("nested.md", "x\n<!--end-->\n"));
    const char *const broken[][2] = {
        {"x\n<!-- gemm -->\ny\n", "line 2: the marker has no <!-- end -->"},
        {"<!-- gemm -->\n<!-- peak -->\n<!-- end -->\n", "line 1: the marker has no"},
        {"<!-- file no-such.txt -->\n<!-- end -->\n", "no-such.txt"},
        {nested, "nested.md', line 2 is a marker"}};
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        const char *path = write_text("broken.md", broken[i][0]);
        assert_int_equal(RUN("report " FULL " --tables %s", path), 3);
        assert_says(output, broken[i][1]);
        char *text = read_text(path);
        assert_string_equal(text, broken[i][0]);
        free(text);
    }
}

/* What stands behind a NUL would be lost. */
static void binary_files_are_refused(void **state) {
    (void)state;
    static const char binary[] = "<!-- gemm -->\n<!-- end -->\nx\0y\n";
    const char *path = support_path("binary.md");
    size_t length;
    support_write(path, binary, sizeof binary - 1);
    assert_int_equal(RUN("report " FULL " --tables %s", path), 3);
    assert_says(output, "is no text: it holds a NUL byte");
    unsigned char *bytes = support_read(path, &length);
    assert_int_equal(length, sizeof binary - 1);
    assert_memory_equal(bytes, binary, length);
    free(bytes);
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

static void charts_become_files(void **state) {
    (void)state;
    const char *folder = support_path("png"), *page = support_path("png.html");
    char path[300], *text, program[256], nowhere[300];
    snprintf(program, sizeof program, "%s", getenv("TESSERA"));
    snprintf(nowhere, sizeof nowhere, "PATH=/no-such %s", program);
    setenv("TESSERA", nowhere, 1);
    const int code = RUN("report " FULL " -o %s --png %s", page, folder);
    setenv("TESSERA", program, 1);
    assert_int_equal(code, 4);
    assert_says(output, "--png needs rsvg-convert");
    assert_int_equal(access(page, F_OK), 0);
    static const char *const figures[] = {"breakeven-1", "time-seconds-1", "gemm-nn-f32-1", "shmem-1-1"};
    for (size_t i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "%s/%s.svg", folder, figures[i]);
        text = read_text(path);
        assert_null(markup_fault(text));
        assert_null(strstr(text, "var(")); /* colours are literal: no page defines variables */
        assert_says(text, ".f0{fill:#0072b2}");
        free(text);
    }
    snprintf(path, sizeof path, "%s/time-seconds-1.svg", folder);
    text = read_text(path);
    assert_says(text, ">openblas, 4 threads</text>");
    assert_says(text, ">GEMM TN (weight gradient)</text>"); /* in the legend */
    free(text);
    if (system("command -v rsvg-convert >/dev/null 2>&1") != 0) {
        print_message("skipped: no rsvg-convert\n");
        skip();
    }
    assert_int_equal(RUN("report " FULL " -o %s --png %s", page, folder), 0);
    assert_says(output, "42 charts as .png");
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
        cmocka_unit_test(known_markers_are_filled),
        cmocka_unit_test(rows_left_out_stand_below),
        cmocka_unit_test(tags_choose_their_markers),
        cmocka_unit_test(markers_without_data_stay),
        cmocka_unit_test(files_are_fenced),
        cmocka_unit_test(broken_markers_change_nothing),
        cmocka_unit_test(binary_files_are_refused),
        cmocka_unit_test(command_writes_the_page),
        cmocka_unit_test(command_mistakes_have_their_exit_codes),
        cmocka_unit_test(charts_become_files),
        cmocka_unit_test(browser_shows_it),
    };
    return cmocka_run_group_tests_name("report command", tests, NULL, NULL);
}
