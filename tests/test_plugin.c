/* Backends from shared objects: correct ones train, wrong ones are detected, unusable ones are refused. */
#include "tests/lockstep.h"

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "src/backend/plugin.h"

static char output[1 << 16];
#define RUN(...) support_run(output, sizeof output, __VA_ARGS__)

/* Trains three epochs; returns the exit code. */
static int train_with(const char *backend, const char *more) {
    return RUN("--data %s --layers 42-16-4 --batch-size 32 --epochs 3 --threads 2 --backend %s %s",
               support_data, backend, more);
}

/* --- correct ones --- */

/* 20 steps, each compared with serial's. */
static void check_steps(const char *path, const char *dtype) {
    static const char recipe[] = "layers=42-16-4 batch-size=32 epochs=10";
    struct bench serial, plugin;
    char settings[700];
    snprintf(settings, sizeof settings, "backend=serial threads=2 dtype=%s %s", dtype, recipe);
    bench_open(&serial, settings, NULL);
    snprintf(settings, sizeof settings, "backend=%s threads=2 dtype=%s %s", path, dtype, recipe);
    bench_open(&plugin, settings, NULL);
    lockstep_check(&serial, &plugin, recipe, &lockstep_float32);
    bench_close(&serial);
    bench_close(&plugin);
}

static void expect_good(const char *plugin, const char *dtype, const char *name) {
    char path[512], said[1200];
    snprintf(path, sizeof path, "%s", support_plugin(plugin));
    if (access(path, R_OK) != 0) {
        print_message("skipped: %s was not built (no compiler for it)\n", plugin);
        skip();
    }
    snprintf(said, sizeof said, "--dtype %s", dtype);
    if (train_with(path, said) != 0) fail_msg("%s", output);
    snprintf(said, sizeof said, "train: verified %s: ", path);
    assert_says(output, said);
    snprintf(said, sizeof said, "from %s", path); /* the header of the run */
    assert_says(output, said);
    snprintf(said, sizeof said, "backend %s (", name);
    assert_says(output, said);
    check_steps(path, dtype);
}

static void the_tutorial_works(void **state) {
    (void)state;
    expect_good("tutorial/my.so", "f32", "my-gemm");
    assert_says(output, "(2 threads, from ");
}

/* Each verifies a plug-in as a whole: one of them is enough for a slow tool. */
static void skip_if_sampled(void) {
    if (support_stride() == 1) return;
    print_message("skipped: TESSERA_TEST_STRIDE asks for a sample\n");
    skip();
}

static void the_tutorial_works_in_cplusplus(void **state) {
    (void)state;
    skip_if_sampled();
    expect_good("tutorial/my_cpp.so", "f32", "my-gemm");
}

static void the_tutorials_wrapper_works(void **state) {
    (void)state;
    skip_if_sampled();
    expect_good("tutorial/my_blas.so", "f64", "my-blas");
}

/* The examples, which the Makefile compiles, under the names that the user chooses. */
static void new_backend_writes_the_tutorials_examples(void **state) {
    (void)state;
    size_t count, wanted_count;
    char said[600];
    const char *path = support_path("my_gemm.c");
    assert_int_equal(RUN("new-backend %s", path), 0);
    char *written = (char *)support_read(path, &count);
    unsigned char *wanted = support_read(support_plugin("tutorial/my_gemm.c"), &wanted_count);
    assert_true(count == wanted_count && memcmp(written, wanted, count) == 0);
    free(written);
    free(wanted);
    path = support_path("so_fast.cpp");
    assert_int_equal(RUN("new-backend %s", path), 0);
    snprintf(said, sizeof said, "wrote %s: the backend 'so-fast', ", path);
    assert_says(output, said);
    assert_says(output, "compile  g++ -std=c++20 ");
    assert_says(output, " devices --backend ");
    written = (char *)support_read(path, &count);
    written[count] = '\0';
    assert_says(written, "/* so_fast.cpp */");
    assert_says(written, ".name = \"so-fast\"");
    free(written);
    assert_int_equal(RUN("new-backend %s", path), STATUS_FAILED);
    assert_says(output, "File exists; remove it, or choose another name");
    assert_int_equal(RUN("new-backend x.py"), STATUS_USAGE);
    assert_int_equal(RUN("new-backend"), STATUS_USAGE);
}

static void fused_steps_are_audited(void **state) {
    (void)state;
    assert_int_equal(train_with(support_plugin("plugins/subtle/steps.so"), "--engine fused"), 0);
    assert_says(output, "steps of engine fused were repeated op by op: all right");
}

static void the_header_is_c11(void **state) {
    (void)state;
    skip_if_sampled();
    expect_good("plugins/good/c11.so", "f32", "c11");
}

static void the_header_is_cplusplus(void **state) {
    (void)state;
    skip_if_sampled();
    expect_good("plugins/good/cplusplus.so", "f64", "cplusplus");
}

static void the_header_is_cuda(void **state) {
    (void)state;
    if (!registry_device(GEMM_ON_CUDA)) {
        print_message("skipped: built without CUDA\n");
        skip();
    }
    assert_int_equal(access(support_plugin("tutorial/my_cuda.so"), R_OK), 0);
    if (train_with(support_plugin("tutorial/my_cuda.so"), "") == STATUS_UNAVAILABLE) {
        assert_says(output, "cannot be used: no ");
        print_message("skipped: no GPU\n");
        skip();
    }
    expect_good("tutorial/my_cuda.so", "f32", "my-cuda");
}

/* Its table lacks the newer slots, and its name is that of a built-in backend. */
static void older_plugins_still_work(void **state) {
    (void)state;
    skip_if_sampled();
    char name[600];
    snprintf(name, sizeof name, "serial (%s)", support_plugin("plugins/good/older.so"));
    expect_good("plugins/good/older.so", "f32", name);
}

static void the_same_file_is_the_same_backend(void **state) {
    (void)state;
    const struct gemm_backend *first, *second, *other;
    char path[512], again[600], here[512];
    assert_non_null(getcwd(here, sizeof here));
    snprintf(path, sizeof path, "%s", support_plugin("plugins/cached.so"));
    snprintf(again, sizeof again, "%s", support_plugin("plugins/../plugins/cached.so"));
    assert_status(registry_find(path, &first), STATUS_OK);
    assert_status(registry_find(again, &second), STATUS_OK);
    assert_ptr_equal(first, second);
    assert_string_equal(plugin_path(first), path);
    assert_int_equal(chdir(support_plugin("plugins")), 0);
    assert_status(registry_find("cached.so", &second), STATUS_OK); /* in the current folder */
    assert_ptr_equal(first, second);
    assert_status(registry_find("race.so", &other), STATUS_OK);
    assert_ptr_not_equal(first, other);
    assert_string_equal(plugin_path(other), "./race.so");
    assert_int_equal(chdir(here), 0);
    assert_status(registry_find("serial", &other), STATUS_OK);
    assert_null(plugin_path(other));
}

static void plugins_have_options(void **state) {
    (void)state;
    char one[600], other[600], list[1400];
    const char *path = support_plugin("plugins/good/options.so");
    snprintf(one, sizeof one, "%s:block=32,layout=columns,tune=/x:y", path);
    assert_int_equal(train_with(one, ""), 0);
    assert_says(output,
                "backend with-options:block=32,layout=columns,tune=/x:y (block 32, layout 1, tune '/x:y'");
    snprintf(one, sizeof one, "%s:blok=32", path);
    assert_int_equal(train_with(one, ""), STATUS_USAGE);
    assert_says(output,
                "backend 'with-options' has no option 'blok' (did you mean 'block'?); its options are "
                "block=1..256, layout=rows|columns, tune=FILE");
    snprintf(one, sizeof one, "%s:tune=?", path); /* checked by its `create` */
    assert_int_equal(RUN("devices --backend '%s'", one), 0);
    assert_says(output, "not usable: backend 'with-options' did not start: it cannot read tune=?");
    assert_int_equal(RUN("devices --backend %s", path), 0);
    assert_says(output, "block=1..256: rows of a block [64]");
    assert_says(output, "block 64, layout 0, tune ''");
    snprintf(one, sizeof one, "%s:block=8,layout=columns", path);
    snprintf(other, sizeof other, "%s:block=16", path);
    snprintf(list, sizeof list, "--backends %s,%s,serial", one, other);
    assert_int_equal(RUN("bench gemm --sizes 24 --repeat 1 --ops NN --dtype f32 %s", list), 0);
    assert_says(output, "with-options:block=8,layout=columns ");
    assert_says(output, "with-options:block=16 ");
    snprintf(one, sizeof one, "%s", support_path("odd:x=1.so"));
    assert_int_equal(RUN("--version && cp %s %s", path, one), 0);
    assert_int_equal(RUN("devices --backend %s:", one), 0);
    assert_says(output, "block 64");
}

/* --- wrong ones --- */

static void wrong_backends_are_caught(void **state) {
    (void)state;
    glob_t found;
    assert_int_equal(glob(support_plugin("plugins/*.so"), 0, NULL, &found), 0);
    assert_true(found.gl_pathc >= 14);
    for (size_t i = 0; i < found.gl_pathc; i += support_stride()) {
        const char *path = found.gl_pathv[i], *name = strrchr(path, '/') + 1;
        char said[800];
        if (train_with(path, "") != STATUS_VERIFY_FAILED) fail_msg("%s was not caught: %s", path, output);
        snprintf(said, sizeof said, "train: %s is not used: backend '%.*s' is wrong: ", path,
                 (int)strlen(name) - 3, name);
        assert_says(output, said);
        assert_says(output, " m=");
        assert_null(strstr(output, "verified"));
        assert_null(strstr(output, "epoch")); /* no header, no training */
    }
    globfree(&found);
}

/* The message says where the wrong elements are, which mistake gives them, and what the wrong cases share. */
static void mistakes_are_guessed(void **state) {
    (void)state;
    static const char *const cases[][3] = {
        {"always-zero", "; all of C is 0; ", "small cases are wrong"},
        {"forgets-alpha", "; as if alpha were 1; ", "all with an alpha that is not 1"},
        {"ignores-ldb", "; as if ldb were the columns of B: is ldb used?; ",
         "all with padding between the rows"},
        {"missing-last-column", "; only the last column is wrong; ", "small cases are wrong"},
        {"reads-c", "; it was not written, or read although beta is 0; ", "all with beta = 0"},
        {"tf32-as-f32", "; the error is that of operands rounded to TF32; ", "; 0 of "},
        {"transposed-index", "; as if B were not transposed; ", "small cases are wrong"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i += support_stride()) {
        char path[600];
        snprintf(path, sizeof path, "%s/%s.so", support_plugin("plugins"), cases[i][0]);
        assert_int_equal(RUN("devices --verify --threads 2 --backend %s", path), STATUS_VERIFY_FAILED);
        assert_says(output, cases[i][1]);
        assert_says(output, cases[i][2]);
    }
}

static void every_command_verifies(void **state) {
    (void)state;
    const char *wrong = support_plugin("plugins/always-zero.so"), *model = support_path("model.safetensors");
    assert_int_equal(RUN("devices --backend %s --verify", wrong), STATUS_VERIFY_FAILED);
    assert_says(output, "WRONG: backend 'always-zero' is wrong: f32 NN");
    assert_int_equal(RUN("devices --backend %s", support_plugin("tutorial/my.so")), 0);
    assert_says(output, "tiles of 6 x 32 in registers");
    assert_null(strstr(output, "openblas"));
    char more[320];
    snprintf(more, sizeof more, "--save %s", model);
    assert_int_equal(train_with("serial", more), 0);
    assert_int_equal(RUN("eval %s --data %s --backend %s", model, support_data, wrong), STATUS_VERIFY_FAILED);
    assert_says(output, "is not used: backend 'always-zero' is wrong: f32 NN");
    assert_int_equal(
        RUN("eval %s --data %s --backend %s", model, support_data, support_plugin("plugins/good/c11.so")), 0);
    assert_says(output, "train: verified");
}

/* The program reports the tutorial's mistake with the tutorial's message, except for the path. */
static void the_tutorial_shows_what_happens(void **state) {
    (void)state;
    size_t length;
    assert_int_equal(train_with(support_plugin("tutorial/wrong.so"), ""), STATUS_VERIFY_FAILED);
    char *said = strstr(output, " is not used:");
    assert_non_null(said);
    char *text = (char *)support_read("docs/your-own-gemm.md", &length);
    text[length] = '\0';
    assert_says(text, said); /* up to the end of the line */
    free(text);
}

static void a_crash_names_the_case(void **state) {
    (void)state;
    const int code = train_with(support_plugin("plugins/refused/crashes.so"), "");
    assert_true(code != 0 && code != STATUS_VERIFY_FAILED); /* the signal reaches a debugger */
    assert_says(output, "train: the backend crashed in f32 NN m=17 n=1 k=1 ");
}

static void failing_is_wrong(void **state) {
    (void)state;
    assert_int_equal(train_with(support_plugin("plugins/refused/fails.so"), ""), STATUS_VERIFY_FAILED);
    assert_says(output, "backend 'fails' failed in f32 NN with m=1 n=1 k=17: the tile is too small");
}

/* --- files that are no backend --- */

static void expect_refusal(const char *path, const char *words) {
    assert_int_equal(train_with(path, ""), STATUS_UNAVAILABLE);
    assert_says(output, words);
    assert_null(strstr(output, "epoch"));
}

static void refusals_say_what_to_do(void **state) {
    (void)state;
    const char *text = support_path("text.so");
    support_write(text, "not a shared object", 19);
    expect_refusal("./nothing.so", "cannot load the backend './nothing.so': No such file or directory");
    expect_refusal("nothing.so", "'./nothing.so'");
    expect_refusal("/tmp/", "it is not a file");
    expect_refusal(text, "a plug-in is a shared object");
    expect_refusal(support_plugin("plugins/refused/no-symbol.so"), "put GEMM_PLUGIN(backend);");
    expect_refusal(support_plugin("plugins/refused/other-abi.so"),
                   "was built for ABI 5 of kernels/gemm.h, and this program has ABI 4: compile it again");
    assert_says(output, "`supports` must name each dtype that it has");
    expect_refusal(
        support_plugin("plugins/refused/abi-1.so"),
        "was built for ABI 1 of kernels/gemm.h, and this program has ABI 4: in its source, let `create` "
        "take a struct gemm_setup");
    expect_refusal(support_plugin("plugins/refused/empty-slot.so"), "its slot 'gemm' is empty");
    expect_refusal(support_plugin("plugins/refused/not-here.so"),
                   "this machine has no abacus; usable here: serial");
    expect_refusal(support_plugin("plugins/refused/forward-only.so"), "does not support f32 TN");
    if (!registry_device(GEMM_ON_CUDA))
        expect_refusal(support_plugin("plugins/refused/on-cuda.so"), "it runs on a GPU, but ");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_tutorial_works),
        cmocka_unit_test(the_header_is_c11),
        cmocka_unit_test(the_tutorial_works_in_cplusplus),
        cmocka_unit_test(the_tutorials_wrapper_works),
        cmocka_unit_test(new_backend_writes_the_tutorials_examples),
        cmocka_unit_test(fused_steps_are_audited),
        cmocka_unit_test(the_header_is_cplusplus),
        cmocka_unit_test(the_header_is_cuda),
        cmocka_unit_test(older_plugins_still_work),
        cmocka_unit_test(plugins_have_options),
        cmocka_unit_test(the_same_file_is_the_same_backend),
        cmocka_unit_test(wrong_backends_are_caught),
        cmocka_unit_test(mistakes_are_guessed),
        cmocka_unit_test(every_command_verifies),
        cmocka_unit_test(the_tutorial_shows_what_happens),
        cmocka_unit_test(a_crash_names_the_case),
        cmocka_unit_test(failing_is_wrong),
        cmocka_unit_test(refusals_say_what_to_do),
    };
    return cmocka_run_group_tests_name("plugin", tests, support_make_data, NULL);
}
