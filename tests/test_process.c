/* The process around a run: standard streams, signals, limits, locale, exit. */
#include "tests/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "src/base/platform.h"

static char output[1 << 16];

#define RUN(...) support_run(output, sizeof output, __VA_ARGS__)
#define SMALL "--layers 42-16-4 --batch-size 32 --epochs 3 --threads 2"
#define ENDLESS "--layers 42-64-4 --batch-size 4 --epochs 1000000 --threads 1"

/* Runs the program after these shell commands, which may set limits. */
static void run_after(const char *commands) {
    static char program[512], before[1024];
    if (!program[0]) snprintf(program, sizeof program, "%s", getenv("TESSERA"));
    snprintf(before, sizeof before, "%s %s", commands, program);
    setenv("TESSERA", before, 1);
}

static int restore_program(void **state) {
    (void)state;
    run_after("");
    return 0;
}

static void skip_with(const char *reason) {
    print_message("skipped: %s\n", reason);
    skip();
}

/* --- standard streams --- */

/* Without its own descriptors 0 to 2 the program would write the console's text into the log. */
static void closed_streams_are_no_files(void **state) {
    (void)state;
    const char *log = support_path("closed.jsonl"), *model = support_path("closed.safetensors");
    cJSON *line;
    assert_int_equal(RUN("--data %s " SMALL " --log %s --save %s <&- >&- 2>&-", support_data, log, model), 0);
    assert_int_equal(support_log(log, "epoch", 0, &line), 3); /* every line of the log is JSON */
    cJSON_Delete(line);
    assert_int_equal(RUN("eval %s --data %s", model, support_data), 0);
    assert_int_equal(RUN("--version >&-"), 0);
}

static void assert_file_says(const char *path, const char *text) {
    size_t size;
    char *content = (char *)support_read(path, &size);
    content[size] = '\0';
    assert_says(content, text);
    free(content);
}

/* `./train | head`: the first write after the reader has gone ends the training as SIGINT does. */
static void a_closed_pipe_interrupts(void **state) {
    (void)state;
    const char *model = support_path("pipe.safetensors"), *code = support_path("pipe.code"),
               *errors = support_path("pipe.errors");
    for (int both = 0; both < 2; both++) { /* the pipe is also the standard error */
        char command[1024];
        snprintf(command, sizeof command,
                 "{ %s --data %s " ENDLESS " --save %s 2>%s; echo $? > %s; } | head -n 9 >/dev/null",
                 getenv("TESSERA"), support_data, model, both ? "&1" : errors, code);
        assert_int_equal(system(command), 0);
        assert_file_says(code, "141\n");
        if (!both) assert_file_says(errors, "interrupted by SIGPIPE; go on with --resume");
        assert_int_equal(RUN("eval %s --data %s", model, support_data), 0);
        assert_int_equal(remove(model), 0);
    }
}

/* A signal that the parent ignores stays ignored: SIGTERM ends this run, not the SIGHUP before it. */
static void nohup_is_respected(void **state) {
    (void)state;
    char commands[512];
    const char *log = support_path("nohup.jsonl");
    snprintf(commands, sizeof commands,
             "trap '' HUP; (for i in $(seq 200); do grep -q '\"epoch\":2' %s && break; sleep 0.05; done; "
             "kill -HUP $$; sleep 0.5; kill $$) 2>/dev/null & exec",
             log);
    run_after(commands);
    assert_int_equal(RUN("--data %s " ENDLESS " --log %s >/dev/null", support_data, log), 130);
    assert_says(output, "interrupted by SIGTERM");
}

/* --- limits --- */

/* The system repeats SIGXCPU every second beyond the limit; one must not stop the checkpoint. */
static void the_cpu_limit_interrupts(void **state) {
    (void)state;
    const char *model = support_path("cpu.safetensors");
    run_after("ulimit -S -t 1; ");
    assert_int_equal(RUN("--data %s " ENDLESS " --save %s >/dev/null", support_data, model), 152);
    assert_says(output, "interrupted by SIGXCPU");
    run_after("");
    assert_int_equal(RUN("eval %s --data %s", model, support_data), 0);
}

/* OpenBLAS's constructor never returns if it cannot map its buffers, so the library is loaded on first use.
   */
static void little_address_space(void **state) {
    (void)state;
#if defined NORMAL_EXIT || defined HAVE_CUDA
    skip_with("sanitizers and the CUDA libraries need more address space");
#endif
    run_after("ulimit -v 150000; timeout 60");
    assert_int_equal(RUN("--version"), 0);
    assert_int_equal(RUN("devices"), 0);
    const bool built = strstr(output, "openblas        not usable: OpenBLAS was not found") == NULL;
    assert_int_equal(RUN("--backend openblas --data %s " SMALL, support_data), 4);
    char needs[64]; /* 128 MiB for each core and for the library */
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    snprintf(needs, sizeof needs, "OpenBLAS needs %ld MiB of address space", (cores + 1) * 128);
    if (built) assert_says(output, needs);
}

/* Linux would grant the memory, and kill the process that touches it. */
static void the_limit_that_binds_is_named(void **state) {
    (void)state;
#if defined NORMAL_EXIT || defined HAVE_CUDA
    skip_with("sanitizers and the CUDA libraries need more address space");
#endif
    run_after("ulimit -v 600000;");
    assert_int_equal(RUN("--data %s --layers 42-9000-9000-4 --backend serial", support_data), 1);
    assert_says(output, "out of memory: ");
    assert_says(output, " available (limited by ulimit -v)");
}

/* --- load --- */

static void the_load_is_said(void **state) {
    (void)state;
    const char *log = support_path("load.jsonl");
    cJSON *line;
    const bool known = access("/proc/loadavg", R_OK) == 0;
    const char *text = known ? "; load " : "; load unknown";
    assert_int_equal(RUN("--data %s " SMALL " --log %s", support_data, log), 0);
    assert_says(output, text);
    assert_int_equal(support_log(log, "header", 0, &line), 1);
    assert_true(support_number(line, "cores") >= support_number(line, "usable_cores") &&
                support_number(line, "usable_cores") >= 1);
    if (known) assert_true(support_number(line, "load") >= 0 && support_number(line, "other_tasks") >= 0);
    cJSON_Delete(line);
    assert_int_equal(RUN("compare --data %s " SMALL " --backends serial --repeat 1", support_data), 0);
    assert_says(output, text);
    assert_says(output, "\nat the start: load ");
}

static void too_many_threads_are_warned_of(void **state) {
    (void)state;
    static const char *const commands[] = {"", "compare --repeat 1"};
    const int too_many[] = {1000, platform_usable_cores() + 1};
    for (size_t i = 0; i < 2; i++) {
        char warning[64];
        RUN("%s --data %s --layers 42-4-4 --epochs 1 --backend openmp --threads %d", commands[i],
            support_data, too_many[i]);
        if (i == 0 && strstr(output, "'openmp' cannot be used")) skip_with("no OpenMP");
        snprintf(warning, sizeof warning, "train: warning: %d threads on ", too_many[i]);
        assert_says(output, warning);
        assert_int_equal(RUN("%s --data %s --layers 42-4-4 --epochs 1 --backend openmp --threads 1",
                             commands[i], support_data),
                         0);
        assert_null(strstr(output, "train: warning"));
    }
}

/* --- plug-ins --- */

/* A destructor that hangs cannot keep the program from ending, nor change its exit code. */
static void exit_handlers_are_left_out(void **state) {
    (void)state;
#ifdef NORMAL_EXIT
    skip_with("sanitizers report in an exit handler: all of them run");
#endif
    run_after("timeout 60");
    const char *plugin = support_plugin("plugins/good/side-effects.so");
    assert_int_equal(RUN("--backend %s:on=destructor --data %s " SMALL " --lr 0 --target-accuracy 99", plugin,
                         support_data),
                     6);
    assert_says(output, "is below the target");
}

/* setlocale changes the decimal point of the process, but not of its files. */
static void the_locale_of_a_plugin_is_ignored(void **state) {
    (void)state;
    const char *plugin = support_plugin("plugins/good/side-effects.so"), *log = support_path("locale.jsonl"),
               *model = support_path("locale.safetensors");
    char command[512];
    cJSON *line;
    snprintf(command, sizeof command, "localedef -c -i de_DE -f UTF-8 %s >/dev/null 2>&1",
             support_path("de_DE.UTF-8"));
    if (system(command) == 0) setenv("LOCPATH", support_path(""), 1);
    const int code = RUN("--backend %s --data %s " SMALL " --lr 0.25 --log %s --save %s", plugin,
                         support_data, log, model);
    assert_int_equal(code, 0);
    if (!strstr(output, "locale de_DE.UTF-8"))
        skip_with("no locale de_DE.UTF-8, and localedef cannot make it");
    assert_says(output, "lr 0.25 ");
    assert_int_equal(support_log(log, "summary", 0, &line), 1);
    const double accuracy = support_number(line, "test_accuracy");
    assert_true(accuracy > 0 && accuracy * 100 == support_number(line, "test_correct"));
    cJSON_Delete(line);
    assert_int_equal(
        RUN("--resume %s --epochs 4 --backend %s --data %s --log %s", model, plugin, support_data, log), 0);
    assert_says(output, "lr 0.25 ");
    unsetenv("LOCPATH");
    assert_int_equal(RUN("eval %s --data %s", model, support_data), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(closed_streams_are_no_files),
        cmocka_unit_test(a_closed_pipe_interrupts),
        cmocka_unit_test_teardown(nohup_is_respected, restore_program),
        cmocka_unit_test_teardown(the_cpu_limit_interrupts, restore_program),
        cmocka_unit_test_teardown(little_address_space, restore_program),
        cmocka_unit_test_teardown(the_limit_that_binds_is_named, restore_program),
        cmocka_unit_test(the_load_is_said),
        cmocka_unit_test(too_many_threads_are_warned_of),
        cmocka_unit_test_teardown(exit_handlers_are_left_out, restore_program),
        cmocka_unit_test(the_locale_of_a_plugin_is_ignored),
    };
    return cmocka_run_group_tests_name("process", tests, support_make_data, NULL);
}
