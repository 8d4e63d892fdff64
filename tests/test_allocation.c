/* Memory that runs out: each allocation of a short run fails in its turn, alone, and now and then with all
   that follow. The run must say so, exit with code 1 (4 if a backend did not start), and leave every file old
   or new. An allocation that the run can do without may fail silently, if the results are those of the
   undisturbed run.
   The calls of Tessera's own code fail (ALLOCATING in the Makefile), those of cJSON by its hooks among them.
   Of zlib and the C library, the call that allocates fails as a whole (fopen, gzread). What libgomp and
   OpenBLAS allocate does not fail: they end the process themselves ("libgomp: Out of memory").
   Each run is a process of its own, forked before any OpenMP thread runs. Under AddressSanitizer it looks for
   leaks, too. */
#define _GNU_SOURCE
#include "tests/support.h"

#include <dirent.h>
#include <errno.h>
#include <locale.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

#include "src/base/platform.h"
#include "src/base/process.h"
#include "src/backend/verify.h"
#include "src/bench/agreement.h"
#include "src/bench/problem.h"
#include "src/cmd/command.h"

/* --- allocations that fail --- */

/* Of the child; `calls` is shared with the test. */
static struct {
    size_t *calls;     /* so far */
    size_t first, end; /* those that fail */
    bool armed;
} allocations;

static bool fails(void) {
    if (!allocations.armed) return false;
    const size_t call = __atomic_add_fetch(allocations.calls, 1, __ATOMIC_RELAXED);
    if (call < allocations.first || call >= allocations.end) return false;
    errno = ENOMEM;
    return true;
}

/* Defines __wrap_NAME, which fails in its turn, or calls __real_NAME. */
#define WRAP(type, name, parameters, arguments, failure)    \
    type __real_##name parameters;                          \
    type __wrap_##name parameters;                          \
    type __wrap_##name parameters {                         \
        return fails() ? failure : __real_##name arguments; \
    }

WRAP(void *, malloc, (size_t size), (size), NULL)
WRAP(void *, calloc, (size_t count, size_t size), (count, size), NULL)
WRAP(void *, realloc, (void *memory, size_t size), (memory, size), NULL)
WRAP(void *, aligned_alloc, (size_t unit, size_t size), (unit, size), NULL)
WRAP(char *, strdup, (const char *text), (text), NULL)
WRAP(char *, realpath, (const char *path, char *to), (path, to), NULL)
WRAP(FILE *, fopen, (const char *path, const char *mode), (path, mode), NULL)
WRAP(FILE *, fopencookie, (void *cookie, const char *mode, cookie_io_functions_t calls),
     (cookie, mode, calls), NULL)
WRAP(FILE *, fdopen, (int fd, const char *mode), (fd, mode), NULL)
WRAP(DIR *, opendir, (const char *path), (path), NULL)
WRAP(ssize_t, getline, (char **line, size_t *size, FILE *in), (line, size, in), -1)
WRAP(locale_t, newlocale, (int mask, const char *name, locale_t base), (mask, name, base), NULL)
WRAP(int, pthread_create,
     (pthread_t * thread, const pthread_attr_t *attributes, void *(*work)(void *), void *argument),
     (thread, attributes, work, argument), EAGAIN)
WRAP(ssize_t, getdelim, (char **text, size_t *size, int end, FILE *in), (text, size, end, in), -1)
WRAP(gzFile, gzdopen, (int fd, const char *mode), (fd, mode), NULL)

int __wrap_fsync(int fd);
int __wrap_fsync(int fd) { /* takes longer than all else, and no power failure is tested */
    (void)fd;
    return 0;
}

/* zlib allocates in the first gzread. */
static bool zlib_failed;

int __real_gzread(gzFile file, void *to, unsigned count);
int __wrap_gzread(gzFile file, void *to, unsigned count);
int __wrap_gzread(gzFile file, void *to, unsigned count) {
    zlib_failed = fails();
    return zlib_failed ? -1 : __real_gzread(file, to, count);
}

const char *__real_gzerror(gzFile file, int *code);
const char *__wrap_gzerror(gzFile file, int *code);
const char *__wrap_gzerror(gzFile file, int *code) {
    const char *text = __real_gzerror(file, code);
    if (zlib_failed) *code = Z_MEM_ERROR;
    return text;
}

/* --- a run in a process of its own --- */

int __lsan_do_recoverable_leak_check(void) __attribute__((weak)); /* of AddressSanitizer */

enum { LEAKED = 77, MOST_ARGUMENTS = 64, HANG_SECONDS = 100, MORE_RARELY = 20, MOST_PRODUCTS = 10000 };

static char data[256];
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

static const char *output(const char *name, bool lines) {
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

static void keep_old(void) {
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

static int forget_outputs(void **state) {
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

/* Every `stride`-th allocation fails in its turn: all of `training`, whose log takes most of them. */
static void fail_each(size_t stride, const struct command *command, const char *format, ...) {
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

/* Runs once and writes the outputs, which the runs of fail_each then replace. */
static void run_before(const struct command *command, const char *format, ...) {
    char arguments[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(arguments, sizeof arguments, format, args);
    va_end(args);
    assert_int_equal(run(command, arguments, 0, 0), 0);
}

/* --- the commands --- */

#define SMALL "--layers 42-8-4 --batch-size 25 --epochs 2 --threads 1"

static void training(void **state) {
    (void)state;
    const char *model = output("model.safetensors", false);
    run_before(&command_train, "--data %s " SMALL " --backend serial --save %s --seed 2", support_data,
               model);
    keep_old();
    const char *initial = output("initial.safetensors", false), *log = output("log.jsonl", true),
               *csv = output("epochs.csv", true);
    fail_each(1, &command_train,
              "--data %s " SMALL " --backend serial --audit all --save %s --save-init %s --log %s --csv %s "
              "--log-steps 2",
              data, model, initial, log, csv);
}

static void training_with_everything(void **state) {
    (void)state;
    const char *model = output("adam.safetensors", false);
    fail_each(2, &command_train,
              "--data %s " SMALL
              " --backend tuned --optimizer adam --learning-rate 0.001 --clip-norm 1 --dropout 0.1 "
              "--ema-decay 0.9 --validation 20 --patience 3 --augment on --audit all --save %s",
              data, model);
}

/* Without memory for its state, engine eager runs instead, and a warning says so. */
static void fused_training(void **state) {
    (void)state;
    const char *model = output("fused.safetensors", false);
    fail_each(1, &command_train,
              "--data %s " SMALL
              " --backend tuned --engine fused --momentum 0.9 --weight-decay 0.001 --save %s",
              data, model);
}

static void resumed_training(void **state) {
    (void)state;
    const char *model = output("resumed.safetensors", false);
    run_before(&command_train, "--data %s " SMALL " --momentum 0.9 --save %s", data, model);
    keep_old();
    fail_each(2, &command_train, "--resume %s --epochs 3 --engine eager --audit off --save %s", model, model);
}

static void ensemble(void **state) {
    (void)state;
    char model[256];
    snprintf(model, sizeof model, "%s", support_path("e.safetensors"));
    output("e-seed1.safetensors", false);
    output("e-seed2.safetensors", false);
    fail_each(1, &command_train, "--data %s " SMALL " --backend serial --audit off --ensemble 2 --save %s",
              data, model);
}

static void evaluation(void **state) {
    (void)state;
    char first[256], second[256];
    snprintf(first, sizeof first, "%s", support_path("first.safetensors"));
    snprintf(second, sizeof second, "%s", support_path("second.safetensors"));
    run_before(&command_train, "--data %s " SMALL " --save %s", data, first);
    run_before(&command_train, "--data %s " SMALL " --save %s --seed 2", data, second);
    const char *log = output("eval.jsonl", true), *picture = output("mistakes.png", false);
    fail_each(2, &command_eval, "%s %s --log %s --picture %s", first, second, log, picture);
}

static void report(void **state) {
    (void)state;
    char log[256];
    snprintf(log, sizeof log, "%s", support_path("to-report.jsonl"));
    run_before(&command_train, "--data %s " SMALL " --audit off --log %s", data, log);
    const char *page = output("page.html", false), *tables = output("tables.md", false);
    const char text[] = "# Tables\n<!-- peak -->\n<!-- end -->\n<!-- gemm -->\n<!-- end -->\n"
                        "<!-- file LICENSE -->\n<!-- end -->\n";
    support_write(page, "old", 3);
    support_write(tables, text, sizeof text - 1);
    keep_old();
    fail_each(2, &command_report, "%s -o %s --tables %s", log, page, tables);
    fail_each(199, &command_report, "tests/fixtures/full.jsonl -o %s --tables %s", page, tables);
}

static void augmentation(void **state) {
    (void)state;
    const char *sheet = output("sheet.png", false);
    fail_each(1, &command_augment, "--data %s --show 2 -o %s", data, sheet);
}

static void exports(void **state) {
    (void)state;
    char model[256];
    snprintf(model, sizeof model, "%s", support_path("to-export.safetensors"));
    run_before(&command_train, "--data %s " SMALL " --activation tanh --save %s", data, model);
    const char *onnx = output("x.onnx", false), *source = output("x.c", false),
               *dict = output("dict.safetensors", false);
    fail_each(1, &command_export, "%s --data %s --onnx %s --c %s --int8 --torch %s", model, data, onnx,
              source, dict);
}

/* Eight pictures in two classes; `file` receives the name of one. Returns the folder. */
static const char *make_pictures(char file[300]) {
    const char *folder = support_path("pictures");
    mkdir(folder, 0777);
    for (int i = 0; i < 8; i++) {
        snprintf(file, 300, "%s/%d", folder, i % 2);
        mkdir(file, 0777);
        snprintf(file, 300, "%s/%d/%d.pgm", folder, i % 2, i);
        support_write(file, "P5 4 4 255 a23456789ABCDEFz", 27);
    }
    return folder;
}

static void own_images(void **state) {
    (void)state;
    char file[300];
    const char *sheet = output("own.png", false);
    fail_each(1, &command_data, "%s --sheet %s --input-size 3 --like-mnist", make_pictures(file), sheet);
}

static void prediction(void **state) {
    (void)state;
    char file[300], model[256];
    snprintf(model, sizeof model, "%s", support_path("own.safetensors"));
    run_before(&command_train,
               "--data %s --layers 16-2 --epochs 1 --threads 1 --validation 2 --backend serial --save %s",
               make_pictures(file), model);
    fail_each(1, &command_predict, "%s %s --csv --threads 1 --backend serial", model, file);
}

static void list_of_devices(void **state) {
    (void)state;
    fail_each(1, &command_devices, "--backend serial");
}

/* What a contestant of `compare` and `bench` does; they run it in another process. */
static enum status compare_and_bench(int argc, char **argv) {
    static struct config config;
    struct dataset_pair pair;
    struct agreement agreement;
    const struct gemm_backend *backend;
    const struct gemm_shape shape = {.op = GEMM_NT, .m = 20, .n = 10, .k = 30};
    struct compute compute;
    struct problem problem;
    struct drift drift;
    struct trace trace;
    double seconds;
    bool skipped;
    (void)argc;
    config_defaults(&config);
    enum status status =
        config_parse(&config, "layers = 42-8-4\nbatch-size = 25\nthreads = 1", FROM_FILE, "test");
    if (!status) status = dataset_load(&pair, argv[1], (struct dataset_options){0});
    if (status) return status;
    agreement_plan(&agreement, &config, &pair);
    agreement.steps = 2;
    status = registry_find("tuned", &backend);
    if (!status) status = agreement_check(&agreement, &config, backend, &pair, &drift);
    if (!status) status = agreement_trace(&agreement, &config, backend, &pair, &trace);
    dataset_pair_free(&pair);
    if (!status) status = compute_open(&compute, backend, &(struct compute_options){.threads = 1});
    if (status) return status;
    for (size_t i = 0, checked = 0; checked < 4 && !status; i += 1999) {
        const struct verify_case test = verify_case_at(i % verify_case_count());
        if (test.m * test.n * test.k > MOST_PRODUCTS) continue;
        status = verify_gemm(&compute, &test, &skipped);
        checked++;
    }
    if (!status) {
        status = problem_open(&problem, &compute, GEMM_BF16, &shape, 0);
        if (!status) status = problem_verify(&problem, PROBLEM_REALS, 1);
        if (!status) status = problem_time(&problem, 1, &seconds);
        problem_close(&problem);
    }
    compute_close(&compute);
    return status;
}

static void parts_of_compare_and_bench(void **state) {
    (void)state;
    const struct command command = {"compare and bench", "", compare_and_bench};
    fail_each(1, &command, "%s", data);
}

int main(void) {
    allocations.calls =
        mmap(NULL, sizeof *allocations.calls, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    snprintf(printed, sizeof printed, "%s", support_path("printed"));
    support_make_data(NULL);
    snprintf(data, sizeof data, "%s", support_data_directory("little", 60, 40, 6, 7, 4));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(training, forget_outputs),
        cmocka_unit_test_teardown(training_with_everything, forget_outputs),
        cmocka_unit_test_teardown(fused_training, forget_outputs),
        cmocka_unit_test_teardown(resumed_training, forget_outputs),
        cmocka_unit_test_teardown(ensemble, forget_outputs),
        cmocka_unit_test_teardown(evaluation, forget_outputs),
        cmocka_unit_test_teardown(report, forget_outputs),
        cmocka_unit_test_teardown(augmentation, forget_outputs),
        cmocka_unit_test_teardown(exports, forget_outputs),
        cmocka_unit_test_teardown(own_images, forget_outputs),
        cmocka_unit_test_teardown(prediction, forget_outputs),
        cmocka_unit_test_teardown(list_of_devices, forget_outputs),
        cmocka_unit_test_teardown(parts_of_compare_and_bench, forget_outputs),
    };
    return cmocka_run_group_tests_name("allocation", tests, NULL, NULL);
}
