/* grade as a command: interrupted and run again; submissions in CUDA. */
#define _GNU_SOURCE
#include "tests/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/files.h"
#include "src/report/records.h"

static char output[1 << 16], input[256], grades[300];
#define RUN(...) support_run(output, sizeof output, __VA_ARGS__)

/* New, empty folders of submissions and of results. */
static void use_folders(const char *name) {
    snprintf(input, sizeof input, "%s", support_path(name));
    snprintf(grades, sizeof grades, "%s-grades", input);
    assert_int_equal(mkdir(input, 0777), 0);
}

static const char *in(const char *folder, const char *name) {
    static char path[2][600];
    static int next;
    next = !next;
    snprintf(path[next], sizeof path[next], "%s/%s", folder, name);
    return path[next];
}

static void submit(const char *name, const char *text) {
    support_write(in(input, name), text, strlen(text));
}

static size_t count_lines(const char *path) {
    size_t length, lines = 0;
    char *text = (char *)support_read(path, &length);
    for (size_t i = 0; i < length; i++) lines += text[i] == '\n';
    free(text);
    return lines;
}

/* --- a signal --- */

/* The first submission is graded, the second hangs when the signal comes: at once there are files with the
   first, and the next run continues. SIGTERM has the handler of SIGINT, which shells ignore for background
   jobs. */
static void a_signal_writes_what_is_graded(void **state) {
    (void)state;
    use_folders("signal");
    submit("a.c", "int x = \"y\";\nerror\n");
    submit("c.c", "int x = \"y\";\nerror\n");
    char *hangs = realpath(support_plugin("plugins/hostile/loops.so"), NULL);
    assert_non_null(hangs);
    assert_int_equal(symlink(hangs, in(input, "b.so")), 0);
    free(hangs);
    const int code = RUN(
        "grade %s -o %s & pid=$!; until grep -q '\"a.c\"' %s; do kill -0 $pid || exit 99; sleep 0.1; done; "
        "sleep 0.5; kill -TERM $pid; wait $pid",
        input, grades, in(grades, "log.jsonl"));
    if (code != STATUS_INTERRUPTED) fail_msg("%d: %s", code, output);
    assert_says(output, "a.c   ");
    assert_says(output,
                "interrupted by SIGTERM: 1 of 3 submissions are graded; the same command grades the others");
    assert_null(strstr(output, "b.so"));
    assert_int_equal(count_lines(in(grades, "grades.csv")), 2);
    size_t size;
    char *page = (char *)support_read(in(grades, "grades.html"), &size);
    page[size] = '\0';
    assert_says(page, "Not complete: 2 further submissions are not graded yet.");
    free(page);
    assert_true(access(in(grades, "grades.html"), R_OK) == 0 && access(in(grades, "grades.xml"), R_OK) == 0);
    assert_int_equal(unlink(in(input, "b.so")), 0);
    assert_int_equal(RUN("grade %s -o %s", input, grades), 0);
    assert_says(output, "1 of 2 measured in this run");
    assert_int_equal(count_lines(in(grades, "grades.csv")), 3);
}

static void a_signal_before_the_first_is_graded(void **state) {
    (void)state;
    use_folders("early");
    char *hangs = realpath(support_plugin("plugins/hostile/loops.so"), NULL);
    assert_non_null(hangs);
    assert_int_equal(symlink(hangs, in(input, "a.so")), 0);
    free(hangs);
    const int code = RUN("grade %s -o %s & pid=$!; until grep -q assignment %s; do kill -0 $pid || exit 99; "
                         "sleep 0.1; done; sleep 0.5; kill -TERM $pid; wait $pid",
                         input, grades, in(grades, "log.jsonl"));
    if (code != STATUS_INTERRUPTED) fail_msg("%d: %s", code, output);
    assert_says(output, "0 of 1 submissions are graded");
    assert_int_equal(count_lines(in(grades, "grades.csv")), 1); /* the header */
}

/* --- CUDA --- */

static void cuda_is_compiled_and_needs_a_gpu(void **state) {
    (void)state;
    if (system("nvcc --version >/dev/null 2>&1") != 0) {
        print_message("skipped: no nvcc\n");
        skip();
    }
    use_folders("cuda");
    submit("my_wrong.cu", "#include \"kernels/gemm.h\"\nint x = nowhere;\n");
    assert_int_equal(RUN("new-backend %s", in(input, "my_right.cu")), 0);
    assert_int_equal(RUN("grade %s -o %s --dtypes f32 --shapes 64x64x64", input, grades), 0);
    assert_says(output, "my_wrong.cu");
    assert_says(output, "identifier \"nowhere\" is undefined");
    const char *row = strstr(output, "  my_right.cu ");
    assert_non_null(row);
    /* without a GPU, or in a program without CUDA, the row says what is missing */
    if (!strstr(row, "not usable: ")) {
        assert_says(row, " right\n");
    } else if (!strstr(row, "CUDA")) {
        assert_says(row, "GPU");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_signal_writes_what_is_graded),
        cmocka_unit_test(a_signal_before_the_first_is_graded),
        cmocka_unit_test(cuda_is_compiled_and_needs_a_gpu),
    };
    return cmocka_run_group_tests_name("grade command", tests, NULL, NULL);
}
