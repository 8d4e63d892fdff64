/* Backends that end, stop, leave or change their process: each is a row with a reason and no time, and the
   other rows are measured as always. */
#define _GNU_SOURCE
#include "tests/support.h"

#include <errno.h>
#include <glob.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "src/base/text.h"
#include "src/bench/contestant.h"
#include "src/bench/serve.h"

static char output[1 << 16];
#define RUN(...) support_run(output, sizeof output, __VA_ARGS__)

/* What a plug-in of tests/plugins/hostile does, as the reason says it. */
static const struct {
    const char *name, *reason, *stage;
    bool compare_only; /* its verification is slow, or it is found after it */
} hostile[] = {
    {"exit-constructor", "it ended its process with exit code 0", "loading", false},
    {"exit-create", "it ended its process with exit code 0", "train, 1 of 1", true},
    {"exit-first", "it ended its process with exit code 0", "verification: f32 NN m=1 n=1 k=1 ", false},
    {"exit-later", "it ended its process with exit code 0", "verification: f32 ", false},
    {"loops", "no progress for 10 s (--timeout-seconds)", "verification: f32 NN m=1 n=1 k=1 ", false},
    {"aborts", "it crashed: signal 6, ", "verification: f32 NN m=1 n=1 k=1 ", false},
    {"overflows", "it crashed: stack overflow", "verification: f32 NN m=1 n=1 k=1 ", false},
    {"reads-on", "it crashed: signal 11, ", "verification: f32 ", false},
    {"reads-ahead", "it crashed: signal 11, ", "verification: f32 NN m=1 n=1 k=1 ", false},
    {"kills-parent", "it crashed: signal 31, ", "verification: f32 NN m=1 n=1 k=1 ", false},
    {"kills-parent-32", "it crashed: signal ", "verification: f32 NN m=1 n=1 k=1 ", false}, /* 31, or 11 */
    {"kills-itself", "it crashed: signal 9, ", "verification: f32 NN m=1 n=1 k=1 ", false},
    {"changes-directory", "it changed the working directory (chdir)", "", false},
    {"changes-locale", "it changed the locale (setlocale)", "", true},
    {"changes-affinity", "it changed the CPU affinity of the calling thread", "", true},
    {"spins", "its threads still run ", "", true},
    {"leaves-a-process", "a process that it started is still there ", "", true},
    {"slows-clock", "its clock is wrong: a request from ", "", true},
    {"closes-files", "it closed the connection to the program", "verification: f32 ", false},
    {"writes-replies", "it wrote to the connection to the program", "verification", false},
};
enum { HOSTILE = sizeof hostile / sizeof *hostile };

static bool is_possible(size_t i) {
    cpu_set_t cores;
#ifdef SANITIZED /* which have a clock_gettime of their own */
    if (strcmp(hostile[i].name, "slows-clock") == 0) {
        print_message("skipped: slows-clock needs the clock of the C library\n");
        return false;
    }
#endif
    if (strcmp(hostile[i].name, "changes-affinity") != 0) return true;
    if (sched_getaffinity(0, sizeof cores, &cores) == 0 && CPU_COUNT(&cores) > 1) return true;
    print_message("skipped: changes-affinity needs two cores\n");
    return false;
}

static const char *plugin_at(size_t i) {
    char name[64];
    snprintf(name, sizeof name, "plugins/hostile/%s.so", hostile[i].name);
    return support_plugin(name);
}

enum { TIMEOUT = 10 }; /* seconds; an honest backend needs far less, on a busy machine too */

/* The line of the table or list that begins with the text. */
static const char *line_of(const char *start) {
    const char *at = output;
    while (at && strncmp(at, start, strlen(start)) != 0) {
        at = strchr(at, '\n');
        at += at != NULL;
    }
    if (!at) fail_msg("no line '%s' in: %s", start, output);
    return at;
}

static void every_plugin_is_listed(void **state) {
    (void)state;
    glob_t found;
    assert_int_equal(glob(support_plugin("plugins/hostile/*.so"), 0, NULL, &found), 0);
    assert_int_equal(found.gl_pathc, HOSTILE);
    globfree(&found);
}

/* In `compare`, or in `bench` and `devices`. */
static bool takes_part(size_t i, bool compare) {
    return is_possible(i) && (compare || !hostile[i].compare_only);
}

/* "a.so,b.so,..,serial": every support_stride()-th of those that take part. */
static const char *list_plugins(bool compare) {
    static char list[HOSTILE * 256];
    list[0] = '\0';
    for (size_t i = 0; i < HOSTILE; i += support_stride())
        if (takes_part(i, compare)) text_append(list, sizeof list, "%s,", plugin_at(i));
    text_append(list, sizeof list, "serial");
    return list;
}

/* Each of them has a line with `mark`, its reason and its stage, and no time. */
static void check_rows(bool compare, const char *mark) {
    for (size_t i = 0; i < HOSTILE; i += support_stride()) {
        bool found = !takes_part(i, compare);
        size_t length = 0;
        for (const char *at = output; *at && !found; at += length + (at[length] == '\n')) {
            char line[2048];
            length = strcspn(at, "\n");
            snprintf(line, sizeof line, "%.*s", (int)length, at);
            found = strstr(line, hostile[i].name) && strstr(line, mark) && strstr(line, hostile[i].reason) &&
                    strstr(line, hostile[i].stage);
        }
        const char *const own = strstr(output, hostile[i].name); /* a message has room for a few lines */
        if (!found) fail_msg("no '%s', '%s' in: %s", hostile[i].reason, hostile[i].stage, own ? own : output);
    }
}

/* The tasks that a contestant gets one after the other, in one process. */
static void compare_goes_on(void **state) {
    (void)state;
    assert_int_equal(
        RUN("compare --data %s --layers 42-16-4 --batch-size 32 --epochs 2 --repeat 1 --threads 1 "
            "--backends %s --timeout-seconds %d 2>/dev/null",
            support_data, list_plugins(true), TIMEOUT),
        STATUS_VERIFY_FAILED);
    check_rows(true, "does not agree: ");
    assert_says(line_of("serial "), " % +- "); /* its accuracy */
}

static void bench_goes_on(void **state) {
    (void)state;
    assert_int_equal(RUN("bench gemm --sizes 16 --ops NN --dtype f32 --repeat 2 --threads 1 --backends %s "
                         "--timeout-seconds %d 2>/dev/null",
                         list_plugins(false), TIMEOUT),
                     STATUS_VERIFY_FAILED);
    check_rows(false, "WRONG, no time: ");
    assert_says(output, "16x16x16  serial ");
    assert_null(strstr(line_of("NN  f32 "), "serial  WRONG"));
}

static void expect_failed_verification(size_t i, int code) {
    if (code != STATUS_VERIFY_FAILED) fail_msg("%s: %d: %s", hostile[i].name, code, output);
    assert_says(output, hostile[i].reason);
    assert_says(output, hostile[i].stage);
}

static void devices_go_on(void **state) {
    (void)state;
    for (size_t i = 0; i < HOSTILE; i += support_stride()) {
        if (!takes_part(i, false)) continue;
        expect_failed_verification(
            i, RUN("devices --verify --timeout-seconds %d --backend %s", TIMEOUT, plugin_at(i)));
        assert_says(output, "WRONG: ");
    }
    /* listed without a verification, one that ends the process is no crash of the program either */
    expect_failed_verification(0, RUN("devices --backend %s", plugin_at(0)));
}

/* `train` verifies in its own process: it can only say where it hangs. */
static void train_names_the_case_that_hangs(void **state) {
    (void)state;
    char limited[600], program[512];
    const char *path = support_path("hangs.txt");
    snprintf(program, sizeof program, "%s", getenv("TESSERA"));
    snprintf(limited, sizeof limited, "timeout 120 %s", program);
    setenv("TESSERA", limited, 1);
    const int code = RUN(
        "--backend %s --data %s --layers 42-16-4 >%s 2>&1 & pid=$!; "
        "until grep 'the backend has not returned for 5 seconds from f32 ' %s; do kill -0 $pid || exit 99; "
        "sleep 0.1; done; kill $pid",
        support_plugin("plugins/hostile/loops.so"), support_data, path, path);
    setenv("TESSERA", program, 1);
    if (code) fail_msg("%d: %s", code, output);
}

/* The process holds the output open as long as it sleeps: the training writes to a file. */
static void train_finds_a_process_that_stays(void **state) {
    (void)state;
    const char *path = support_path("train.txt");
    assert_int_equal(RUN("--backend %s --data %s --layers 42-16-4 --batch-size 8 --epochs 200 >%s 2>&1",
                         support_plugin("plugins/hostile/leaves-a-process.so"), support_data, path),
                     STATUS_VERIFY_FAILED);
    size_t size;
    char *said = (char *)support_read(path, &size);
    said[size] = '\0';
    assert_says(said, "a process that it started is still there (fork)");
    free(said);
}

static void the_other_benches_go_on(void **state) {
    (void)state;
    const char *exits = plugin_at(3);
    assert_int_equal(RUN("bench breakeven --data %s --layers 42-16-4 --backends %s,serial --batches 8 "
                         "--hidden 16 --cell-seconds 0.01 --repeat 1",
                         support_data, exits),
                     STATUS_VERIFY_FAILED);
    assert_says(output, "exit code 0 (verification: f32 ");
    assert_says(line_of("     8 "), "serial ");
    assert_int_equal(RUN("bench scaling --data %s --layers 42-16-4 --batch-size 32 --epochs 1 --repeat 1 "
                         "--threads 1 --backends %s,serial",
                         support_data, exits),
                     STATUS_VERIFY_FAILED);
    assert_says(output, "exit code 0 (verification: f32 ");
}

/* --- the process itself: this test program is its own contestant --- */

/* 'R', 'S', 'T' ..; 0: there is no such process, or it is a zombie that another process waits for. */
static char state_of(pid_t pid) {
    char path[64], text[512] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    const size_t length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[length] = '\0';
    const char *after = strrchr(text, ')');
    return !after || after[2] == 'Z' || after[2] == 'X' ? 0 : after[2];
}

static enum status ask(struct contestant *contestant) {
    struct contest_request request = {.task = CONTEST_FIND};
    struct contest_reply reply;
    snprintf(request.config.backend, sizeof request.config.backend, "serial");
    const enum status status = contestant_ask(contestant, "loading", &request, &reply);
    if (!status) assert_string_equal(reply.backend.name, "serial");
    return status;
}

static void contestants_wait_stopped(void **state) {
    (void)state;
    struct contestant contestant = {0};
    for (int i = 0; i < 3; i++) {
        assert_status(ask(&contestant), STATUS_OK);
        assert_int_equal(state_of(contestant.pid), 'T');
    }
    const pid_t pid = contestant.pid;
    assert_int_equal(kill(pid, SIGKILL), 0); /* as the kernel does if memory runs out */
    assert_status(ask(&contestant), STATUS_VERIFY_FAILED);
    assert_says(status_message(), "signal 9");
    assert_int_equal(waitpid(pid, NULL, 0), -1); /* no zombie is left */
    assert_status(ask(&contestant), STATUS_VERIFY_FAILED);
    assert_says(status_message(), "signal 9"); /* the reason stays */
    contestant_end(&contestant);
    assert_status(ask(&contestant), STATUS_OK);
    contestant_end(&contestant);
    assert_int_equal(waitpid(-1, NULL, 0), -1);
    assert_int_equal(errno, ECHILD);
}

/* If the program is killed, its contestants end too. */
static void none_is_orphaned(void **state) {
    (void)state;
    int ends[2];
    pid_t pid = 0;
    assert_int_equal(pipe(ends), 0);
    const pid_t program = fork();
    if (program == 0) {
        struct contestant contestant = {0};
        ask(&contestant);
        if (write(ends[1], &contestant.pid, sizeof contestant.pid) < 0) _exit(1);
        kill(getpid(), SIGKILL);
    }
    assert_int_equal(read(ends[0], &pid, sizeof pid), sizeof pid);
    assert_true(pid > 0);
    assert_int_equal(waitpid(program, NULL, 0), program);
    for (int wait = 0; wait < 1000 && state_of(pid); wait++)
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    assert_int_equal(state_of(pid), 0);
    close(ends[0]);
    close(ends[1]);
}

/* As users run it: the program itself limits how long idle threads spin. */
static int set_up(void **state) {
    support_make_data(state);
    return unsetenv("OMP_WAIT_POLICY");
}

int main(int argc, char **argv) {
    if (serve_requested(argc, argv)) serve_contest();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_plugin_is_listed),
        cmocka_unit_test(compare_goes_on),
        cmocka_unit_test(bench_goes_on),
        cmocka_unit_test(devices_go_on),
        cmocka_unit_test(train_finds_a_process_that_stays),
        cmocka_unit_test(the_other_benches_go_on),
        cmocka_unit_test(contestants_wait_stopped),
        cmocka_unit_test(none_is_orphaned),
        cmocka_unit_test(train_names_the_case_that_hangs),
    };
    return cmocka_run_group_tests_name("hostile", tests, set_up, NULL);
}
