#include "tests/failing_runs.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "src/base/platform.h"
#include "src/base/process.h"

/* --- allocations that fail --- */

/* Of the child; `calls` is shared with the test. */
static struct {
    size_t *calls;     /* so far */
    size_t first, end; /* those that fail */
    bool armed;
} allocations;

bool allocation_fails(void) {
    if (!allocations.armed) return false;
    const size_t call = __atomic_add_fetch(allocations.calls, 1, __ATOMIC_RELAXED);
    if (call < allocations.first || call >= allocations.end) return false;
    errno = ENOMEM;
    return true;
}

/* --- a run in a process of its own --- */

int __lsan_do_recoverable_leak_check(void) __attribute__((weak)); /* of AddressSanitizer */

enum { LEAKED = 77, MOST_ARGUMENTS = 64, HANG_SECONDS = 100, MORE_RARELY = 20 };

static char printed[256]; /* the file of what a run prints */

static _Noreturn void run_child(const struct command *command, char *line) {
    char *argv[MOST_ARGUMENTS] = {(char *)(uintptr_t)command->name};
    int argc = 1;
    for (char *word = strtok(line, " "); word && argc < MOST_ARGUMENTS; word = strtok(NULL, " "))
        argv[argc++] = word;
    if (!freopen(printed, "w", stdout) || dup2(STDOUT_FILENO, STDERR_FILENO) < 0) _exit(LEAKED);
    alarm(HANG_SECONDS);
    platform_load(); /* read once, as main does; without memory it is "unknown" */
    allocations.armed = true;
    process_open();
    const enum status status = command->run(argc, argv);
    if (status) fprintf(stderr, "train: %s\n", status_message());
    const int code = process_flush(status);
    allocations.armed = false;
    _exit(__lsan_do_recoverable_leak_check && __lsan_do_recoverable_leak_check() ? LEAKED : code);
}

/* Returns the exit code, or 128 + the signal. Allocations first to end - 1 fail. */
static int run(const struct command *command, const char *arguments, size_t first, size_t end) {
    char line[4096];
    int status;
    snprintf(line, sizeof line, "%s", arguments);
    *allocations.calls = 0;
    allocations.first = first;
    allocations.end = end;
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) run_child(command, line);
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* --- files --- */

enum { MOST_FILES = 4 };

/* A file that the run writes: replaced as a whole, or (a log) line by line. */
struct output {
    char path[256];
    bool lines;
    char *old, *new; /* before the run, NULL: absent; of the undisturbed run */
    size_t old_size, new_size;
};

static struct output outputs[MOST_FILES];
static size_t output_count;

const char *output_file(const char *name, bool lines) {
    assert_true(output_count < MOST_FILES);
    struct output *one = &outputs[output_count++];
    *one = (struct output){.lines = lines};
    snprintf(one->path, sizeof one->path, "%s", support_path(name));
    return one->path;
}

static char *read_if_any(const char *path, size_t *size) {
    *size = 0;
    if (access(path, F_OK) != 0) return NULL;
    char *text = (char *)support_read(path, size);
    text[*size] = '\0';
    return text;
}

void keep_old(void) {
    for (size_t i = 0; i < output_count; i++)
        if (!outputs[i].lines) outputs[i].old = read_if_any(outputs[i].path, &outputs[i].old_size);
}

static void restore_old(void) {
    for (size_t i = 0; i < output_count; i++)
        if (outputs[i].old) {
            support_write(outputs[i].path, outputs[i].old, outputs[i].old_size);
        } else {
            unlink(outputs[i].path);
        }
}

int forget_outputs(void **state) {
    (void)state;
    for (size_t i = 0; i < output_count; i++) {
        free(outputs[i].old);
        free(outputs[i].new);
    }
    output_count = 0;
    return 0;
}

/* Two logs of one run differ in times and in the name of the run. */
static size_t shape(const char *text) {
    size_t marks = 0;
    for (; *text; text++) marks += strchr("\"\n,:", *text) != NULL;
    return marks;
}

static bool same(const char *a, size_t a_size, const char *b, size_t b_size) {
    return a && b ? a_size == b_size && memcmp(a, b, a_size) == 0 : a == b;
}

/* What is wrong with the file after a run that ended with this code; NULL: nothing. Another engine rounds in
   another order. */
static const char *damage(const struct output *one, int code, bool other_engine) {
    size_t size;
    char *now = read_if_any(one->path, &size);
    const char *what = NULL;
    if (one->lines) {
        if (now && size && now[size - 1] != '\n') what = "has a torn line";
        if (code == 0 && (!now || shape(now) != shape(one->new))) what = "is not complete";
    } else if (!(other_engine && now && size == one->new_size) && !same(now, size, one->new, one->new_size) &&
               (code == 0 || !same(now, size, one->old, one->old_size))) {
        what = code ? "is neither the old nor the new one" : "is not that of the undisturbed run";
    }
    free(now);
    return what;
}

static bool any_temporary(void) {
    DIR *folder = opendir(support_path(""));
    bool found = false;
    assert_non_null(folder);
    for (const struct dirent *entry; (entry = readdir(folder));)
        found |= strstr(entry->d_name, ".tmp") != NULL;
    closedir(folder);
    return found;
}

/* --- one allocation after the other --- */

static bool says_why(const char *text) {
    return strstr(text, "out of memory") || strstr(text, "Cannot allocate memory");
}

/* Runs with the n-th allocation failing, alone or with all that follow. Returns false, with a message, if the
   end of the run or its files are not as they should be. */
static bool survives(const struct command *command, const char *arguments, size_t n, bool alone) {
    size_t size;
    restore_old();
    const int code = run(command, arguments, n, alone ? n + 1 : SIZE_MAX);
    char *text = read_if_any(printed, &size), why[400] = "";
    /* a backend that does not start is unavailable, for whatever reason */
    if (code == LEAKED) snprintf(why, sizeof why, "memory leaked");
    if (code != 0 && code != STATUS_FAILED && code != STATUS_UNAVAILABLE)
        snprintf(why, sizeof why, "exit code %d", code);
    if (code != 0 && !why[0] && !says_why(text)) snprintf(why, sizeof why, "no word of memory");
    for (size_t i = 0; i < output_count && !why[0]; i++) {
        const char *what = damage(&outputs[i], code, strstr(text, "eager instead"));
        if (what) snprintf(why, sizeof why, "%.300s %s (exit code %d)", outputs[i].path, what, code);
    }
    if (!why[0] && any_temporary()) snprintf(why, sizeof why, "a temporary file is left");
    if (why[0]) print_error("allocation %zu%s: %s\n%s", n, alone ? "" : " and later", why, text);
    free(text);
    return !why[0];
}

void fail_each(size_t stride, const struct command *command, const char *format, ...) {
    char arguments[2048];
    size_t wrong = 0;
    va_list args;
    va_start(args, format);
    vsnprintf(arguments, sizeof arguments, format, args);
    va_end(args);
    restore_old();
    if (run(command, arguments, 0, 0) != 0) {
        size_t size;
        fail_msg("the undisturbed run failed: %s", read_if_any(printed, &size));
    }
    const size_t total = *allocations.calls;
    for (size_t i = 0; i < output_count; i++) {
        free(outputs[i].new);
        outputs[i].new = read_if_any(outputs[i].path, &outputs[i].new_size);
        assert_non_null(outputs[i].new);
        assert_false(outputs[i].old &&
                     same(outputs[i].old, outputs[i].old_size, outputs[i].new, outputs[i].new_size));
    }
    for (size_t n = 1; n <= total; n += stride * support_stride()) {
        wrong += !survives(command, arguments, n, true);
        if (n % MORE_RARELY == 1) wrong += !survives(command, arguments, n, false);
    }
    assert_true(total > 0);
    assert_int_equal(wrong, 0);
}

void run_before(const struct command *command, const char *format, ...) {
    char arguments[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(arguments, sizeof arguments, format, args);
    va_end(args);
    assert_int_equal(run(command, arguments, 0, 0), 0);
}

void failing_runs_open(void) {
    allocations.calls =
        mmap(NULL, sizeof *allocations.calls, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(allocations.calls != MAP_FAILED);
    snprintf(printed, sizeof printed, "%s", support_path("printed"));
}
