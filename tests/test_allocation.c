/* Memory that runs out: each allocation of a short run fails in its turn (tests/failing_runs.h). If the run
   can do without it, the allocation may fail silently; the results are those of the undisturbed run.
   The calls of Tessera's own code fail (ALLOCATING in the Makefile), those of cJSON by its hooks among them.
   Of zlib and the C library, the call that allocates fails as a whole (fopen, gzread). What libgomp and
   OpenBLAS allocate does not fail: they end the process themselves ("libgomp: Out of memory"). */
#define _GNU_SOURCE
#include "tests/failing_runs.h"

#include <dirent.h>
#include <errno.h>
#include <locale.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <zlib.h>

#include "src/backend/verify.h"
#include "src/bench/agreement.h"
#include "src/bench/problem.h"

/* --- allocations that fail --- */

/* Defines __wrap_NAME, which fails in its turn, or calls __real_NAME. */
#define WRAP(type, name, parameters, arguments, failure)               \
    type __real_##name parameters;                                     \
    type __wrap_##name parameters;                                     \
    type __wrap_##name parameters {                                    \
        return allocation_fails() ? failure : __real_##name arguments; \
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
    zlib_failed = allocation_fails();
    return zlib_failed ? -1 : __real_gzread(file, to, count);
}

const char *__real_gzerror(gzFile file, int *code);
const char *__wrap_gzerror(gzFile file, int *code);
const char *__wrap_gzerror(gzFile file, int *code) {
    const char *text = __real_gzerror(file, code);
    if (zlib_failed) *code = Z_MEM_ERROR;
    return text;
}

/* --- the commands --- */

static char data[256];

#define SMALL "--layers 42-8-4 --batch-size 25 --epochs 2 --threads 1"

static void training(void **state) {
    (void)state;
    const char *model = output_file("model.safetensors", false);
    run_before(&command_train, "--data %s " SMALL " --backend serial --save %s --seed 2", support_data,
               model);
    keep_old();
    const char *initial = output_file("initial.safetensors", false), *log = output_file("log.jsonl", true),
               *csv = output_file("epochs.csv", true);
    fail_each(1, &command_train,
              "--data %s " SMALL " --backend serial --audit all --save %s --save-init %s --log %s --csv %s "
              "--log-steps 2",
              data, model, initial, log, csv);
}

static void training_with_everything(void **state) {
    (void)state;
    const char *model = output_file("adam.safetensors", false);
    fail_each(2, &command_train,
              "--data %s " SMALL
              " --backend tuned --optimizer adam --learning-rate 0.001 --clip-norm 1 --dropout 0.1 "
              "--ema-decay 0.9 --validation 20 --patience 3 --augment on --audit all --save %s",
              data, model);
}

/* Without memory for its state, engine eager runs instead, and a warning says so. */
static void fused_training(void **state) {
    (void)state;
    const char *model = output_file("fused.safetensors", false);
    fail_each(1, &command_train,
              "--data %s " SMALL
              " --backend tuned --engine fused --momentum 0.9 --weight-decay 0.001 --save %s",
              data, model);
}

static void resumed_training(void **state) {
    (void)state;
    const char *model = output_file("resumed.safetensors", false);
    run_before(&command_train, "--data %s " SMALL " --momentum 0.9 --save %s", data, model);
    keep_old();
    fail_each(2, &command_train, "--resume %s --epochs 3 --engine eager --audit off --save %s", model, model);
}

static void ensemble(void **state) {
    (void)state;
    char model[256];
    snprintf(model, sizeof model, "%s", support_path("e.safetensors"));
    output_file("e-seed1.safetensors", false);
    output_file("e-seed2.safetensors", false);
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
    const char *log = output_file("eval.jsonl", true), *picture = output_file("mistakes.png", false);
    fail_each(2, &command_eval, "%s %s --log %s --picture %s", first, second, log, picture);
}

static void report(void **state) {
    (void)state;
    char log[256];
    snprintf(log, sizeof log, "%s", support_path("to-report.jsonl"));
    run_before(&command_train, "--data %s " SMALL " --audit off --log %s", data, log);
    const char *page = output_file("page.html", false), *tables = output_file("tables.md", false);
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
    const char *sheet = output_file("sheet.png", false);
    fail_each(1, &command_augment, "--data %s --show 2 -o %s", data, sheet);
}

static void exports(void **state) {
    (void)state;
    char model[256];
    snprintf(model, sizeof model, "%s", support_path("to-export.safetensors"));
    run_before(&command_train, "--data %s " SMALL " --activation tanh --save %s", data, model);
    const char *onnx = output_file("x.onnx", false), *source = output_file("x.c", false),
               *dict = output_file("dict.safetensors", false);
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
    const char *sheet = output_file("own.png", false);
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

enum { MOST_PRODUCTS = 10000 };

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
    failing_runs_open();
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
