/* Hardware counters: those of the CPU through software events, which every machine has; those of the GPU from
   the output of a script in the place of ncu. */
#include "tests/support.h"

#include <errno.h>
#include <linux/perf_event.h>
#include <math.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "src/bench/counters.h"
#include "src/bench/gemm_log.h"
#include "src/report/tables.h"

static char output[1 << 17];
#define RUN(...) support_run(output, sizeof output, __VA_ARGS__)

/* --- the CPU --- */

enum { PAGES = 3000, CALLS = 2 };

/* Touches new pages, each of which is a page fault. */
static void touch_pages(void) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *memory = mmap(NULL, PAGES * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(memory != MAP_FAILED);
    madvise(memory, PAGES * page, MADV_NOHUGEPAGE);
    for (size_t i = 0; i < PAGES; i++) ((volatile char *)memory)[i * page] = 1;
    munmap(memory, PAGES * page);
}

static sem_t start;

static void *work(void *argument) {
    if (argument) sem_wait(argument);
    touch_pages();
    return NULL;
}

/* Three threads touch pages: this one, one that runs already, one that is started while events count. */
static void count_faults(struct counters *got, const struct cpu_event *events, size_t count) {
    struct cpu_counters counters;
    pthread_t early, late;
    sem_init(&start, 0, 0);
    assert_int_equal(pthread_create(&early, NULL, work, &start), 0);
    cpu_counters_start(&counters, events, count);
    sem_post(&start);
    assert_int_equal(pthread_create(&late, NULL, work, NULL), 0);
    touch_pages();
    pthread_join(early, NULL);
    pthread_join(late, NULL);
    cpu_counters_stop(&counters, CALLS, got);
    touch_pages(); /* not counted */
    sem_destroy(&start);
}

static void events_count_in_all_threads(void **state) {
    (void)state;
    static const struct cpu_event events[] = {
        {"page_faults", PERF_TYPE_SOFTWARE, PERF_COUNT_SW_PAGE_FAULTS},
        {"task_clock", PERF_TYPE_SOFTWARE, PERF_COUNT_SW_TASK_CLOCK},
        {"none", PERF_TYPE_HARDWARE, 999},
    };
    struct counters got;
    count_faults(&got, events, 3);
    assert_int_equal(got.of, COUNTERS_CPU);
    if (got.why[0]) { /* a container, an emulator or perf_event_paranoid forbids even these */
        struct perf_event_attr attributes = {.size = sizeof attributes, .type = PERF_TYPE_SOFTWARE};
        char why[400];
        attributes.exclude_kernel = 1;
        assert_int_equal(syscall(SYS_perf_event_open, &attributes, 0, -1, -1, 0), -1);
        cpu_counters_explain(errno, why, sizeof why);
        print_message("  only the reason is tested: %s\n", why);
        assert_string_equal(got.why, why);
        return;
    }
    assert_true(got.value[0] * CALLS >= 3 * PAGES && got.value[0] * CALLS < 4 * PAGES);
    assert_true(got.value[1] > 0); /* nanoseconds of all threads */
    assert_true(isnan(got.value[2]) && isnan(got.value[3]));
    assert_true(got.share > 0 && got.share <= 1);
    count_faults(&got, events + 2, 1); /* nothing that this kernel has */
    assert_true(isnan(got.value[0]) && got.why[0]);
}

static void reasons_say_what_to_do(void **state) {
    (void)state;
    static const struct {
        int error;
        const char *says;
    } reasons[] = {{ENOENT, "give the virtual machine a PMU"},
                   {EOPNOTSUPP, "bare machine"},
                   {EACCES, "sysctl kernel.perf_event_paranoid"},
                   {EPERM, "--cap-add PERFMON"},
                   {ENOSYS, "CONFIG_PERF_EVENTS"},
                   {EMFILE, "ulimit -n"},
                   {EINVAL, "Invalid argument; see perf_event_open(2)"}};
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++) {
        char why[400];
        cpu_counters_explain(reasons[i].error, why, sizeof why);
        assert_says(why, reasons[i].says);
    }
}

/* With a PMU or without one: times as usual, and counts or a reason. */
static void bench_shows_them(void **state) {
    (void)state;
    const char *log = support_path("counters.jsonl");
    assert_int_equal(RUN("bench gemm --sizes 96 --ops NN --dtype f32 --repeat 3 --backends serial,openmp "
                         "--threads 2 --counters --log %s",
                         log),
                     0);
    cJSON *line;
    assert_int_equal(support_log(log, "gemm", 0, &line), 2);
    const cJSON *counters = cJSON_GetObjectItem(line, "counters");
    assert_true(support_number(line, "median_seconds") > 0);
    if (cJSON_GetObjectItem(counters, "reason")) {
        assert_says(output, "Without counters: serial, openmp, because hardware counters are not "
                            "available here: ");
    } else { /* no core does more than 64 flops a cycle, or in an instruction */
        assert_says(output, "IPC");
        assert_true(support_number(counters, "cycles") > 2.0 * 96 * 96 * 96 / 64);
        assert_true(support_number(counters, "instructions") > 2.0 * 96 * 96 * 96 / 64);
    }
    cJSON_Delete(line);
    assert_int_equal(
        RUN("bench gemm --sizes 96 --ops NN --dtype f32 --repeat 3 --backends serial --log %s", log), 0);
    assert_int_equal(support_log(log, "gemm", 0, &line), 1);
    assert_null(cJSON_GetObjectItem(line, "counters"));
    cJSON_Delete(line);
}

/* --- the GPU --- */

static char *fixture(void) {
    size_t length;
    char *text = (char *)support_read("tests/fixtures/ncu.csv", &length);
    text[length] = '\0';
    return text;
}

static double counter(const struct counters *counters, const char *key) {
    for (size_t i = 0; gpu_counters_key(i); i++)
        if (strcmp(gpu_counters_key(i), key) == 0) return counters->value[i];
    fail_msg("no counter is called %s", key);
    return 0;
}

static void assert_fixture(const struct counters *got) {
    assert_string_equal(got->why, "");
    assert_int_equal(got->of, COUNTERS_GPU);
    assert_near(counter(got, "dram_bytes"), 68 << 20, 1e-12); /* of two kernels */
    assert_near(counter(got, "l2_bytes"), 404 << 20, 1e-12);
    assert_near(counter(got, "seconds"), 40e-6, 1e-12);
    assert_near(counter(got, "cycles"), 70400, 1e-12);
    assert_near(counter(got, "achieved_occupancy"), (3 * 0.25 + 0.65) / 4, 1e-12); /* weighted by time */
    assert_near(counter(got, "fma_pipe"), (3 * 0.80 + 0.04) / 4, 1e-12);
    assert_near(counter(got, "shared_wavefronts"), 2097152 + 65536, 1e-12);
    assert_near(counter(got, "bank_conflicts"), 1024, 1e-12);
    assert_true(isnan(counter(got, "tensor_pipe"))); /* n/a */
    assert_true(counter(got, "fp64_pipe") == 0);
}

static void output_of_ncu_is_read(void **state) {
    (void)state;
    struct counters got;
    char *text = fixture();
    gpu_counters_parse(&got, text);
    assert_fixture(&got);
    free(text);
    text = fixture();
    for (size_t cut = strlen(text); cut > 0; cut--) { /* from a process that was killed */
        char *copy = fixture();
        copy[cut] = '\0';
        gpu_counters_parse(&got, copy);
        free(copy);
    }
    assert_says(got.why, "ncu profiled no kernel");
    char forbidden[] = "==PROF== Connected\n==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n";
    gpu_counters_parse(&got, forbidden);
    assert_says(got.why, "run as root, or load the driver with NVreg_RestrictProfilingToAdminUsers=0");
    assert_true(got.nowhere);
    char unknown[] = "==ERROR== Failed to find metric regex:^lts__t_bytes.sum$\r\n==WARNING== No kernels\n";
    gpu_counters_parse(&got, unknown);
    assert_string_equal(got.why, "ncu: Failed to find metric regex:^lts__t_bytes.sum$");
    assert_false(got.nowhere);
    free(text);
}

/* Puts a folder in front of the PATH with an `ncu` that runs the command it is given, then `print`. */
static void install_ncu(const char *print) {
    char script[2048], path[4096];
    const char *folder = support_path("bin");
    mkdir(folder, 0777);
    snprintf(script, sizeof script,
             "#!/bin/sh\necho \"$*\" >%s.arguments\nwhile [ ! -f \"$1\" ]; do shift; done\n"
             "echo '==PROF== Connected to process 1'\n\"$@\" || { echo '==ERROR== The application returned "
             "an error code ('$?').'; exit 1; }\n%s\n",
             support_path("ncu"), print);
    const char *program = support_path("bin/ncu");
    support_write(program, script, strlen(script));
    chmod(program, 0777);
    snprintf(path, sizeof path, "%s:/usr/bin:/bin", folder);
    setenv("PATH", path, 1);
}

static void take(struct counters *got, const char *backend) {
    const struct gemm_shape shape = {.op = GEMM_TN, .m = 30, .n = 20, .k = 40};
    struct config config;
    support_config(&config, "threads=1");
    snprintf(config.backend, sizeof config.backend, "%s", backend);
    gpu_counters_take(got, getenv("TESSERA"), &config, GEMM_F32, &shape, true);
}

/* An `ncu` that does not run the command: here it would be this test program. */
static void install_printer(void) {
    char script[600], folder[256];
    assert_non_null(getcwd(folder, sizeof folder));
    install_ncu("");
    const int length =
        snprintf(script, sizeof script, "#!/bin/sh\ncat '%s/tests/fixtures/ncu.csv'\n", folder);
    support_write(support_path("bin/ncu"), script, (size_t)length);
}

/* A backend that computes on the host and claims to be on a GPU. */
static void a_bench_of_a_gpu_counts(void **state) {
    (void)state;
    char path[4096];
    const struct gemm_shape shape = {.op = GEMM_NN, .m = 64, .n = 48, .k = 40, .what = "square"};
    struct candidate one = {.label = "gpu"};
    struct result result;
    snprintf(path, sizeof path, "%s", getenv("PATH"));
    support_open(&one.compute, "serial", 1);
    support_config(&one.config, "backend=serial");
    struct gemm_backend gpu = *one.compute.backend;
    gpu.device = GEMM_ON_CUDA;
    one.compute.backend = &gpu;
    struct benchmark benchmark = {.candidates = &one, .count = 1, .repeats = 3, .warm = true};
    assert_status(benchmark_run(&benchmark, GEMM_F32, &shape, &result), STATUS_OK);
    assert_int_equal(result.counters.of, COUNTERS_NONE);
    benchmark.counters = true;
    install_printer();
    assert_status(benchmark_run(&benchmark, GEMM_F32, &shape, &result), STATUS_OK);
    assert_int_equal(result.outcome, OUTCOME_RIGHT);
    assert_true(result.seconds.median > 0);
    assert_fixture(&result.counters);
    cJSON *line = gemm_line(&one, GEMM_F32, &shape, &result, true);
    assert_near(support_number(cJSON_GetObjectItem(line, "counters"), "dram_bytes"), 68 << 20, 1e-12);
    cJSON_Delete(line);
    setenv("PATH", "/nowhere", 1);
    assert_status(benchmark_run(&benchmark, GEMM_F32, &shape, &result), STATUS_OK);
    assert_says(result.counters.why, "is not on the PATH");
    install_printer(); /* it is not tried again */
    assert_status(benchmark_run(&benchmark, GEMM_F32, &shape, &result), STATUS_OK);
    assert_true(result.outcome == OUTCOME_RIGHT && result.seconds.median > 0);
    assert_says(result.counters.why, "is not on the PATH");
    compute_close(&one.compute);
    setenv("PATH", path, 1);
}

/* The whole path but for the tool itself: `bench call` runs on the host here. */
static void ncu_runs_one_call(void **state) {
    (void)state;
    char path[4096], print[600], folder[512];
    size_t length;
    struct counters got;
    snprintf(path, sizeof path, "%s", getenv("PATH"));
    assert_non_null(getcwd(folder, sizeof folder));
    snprintf(print, sizeof print, "cat '%s/tests/fixtures/ncu.csv'", folder);
    install_ncu(print);
    take(&got, "serial");
    assert_fixture(&got);
    char *arguments = (char *)support_read(support_path("ncu.arguments"), &length);
    arguments[length] = '\0';
    assert_says(arguments, "--csv --page raw --print-units base --clock-control none --cache-control none "
                           "--nvtx --nvtx-include counted/ --metrics gpu__time_duration.sum,");
    assert_says(arguments, "--dtype f32 --op TN --size 30,20,40 --operands warm");
    free(arguments);
    take(&got, "none-of-these"); /* the call fails: not the numbers of another one */
    assert_string_equal(got.why, "ncu: The application returned an error code (4).");
    text_append(print, sizeof print, "; exit 3");
    install_ncu(print); /* ncu fails after it printed numbers */
    take(&got, "serial");
    assert_says(got.why, "ncu ended with exit code 3");
    install_ncu("echo '==WARNING== No kernels were profiled.'");
    take(&got, "serial");
    assert_says(got.why, "ncu profiled no kernel");
    setenv("PATH", "/nowhere", 1);
    take(&got, "serial");
    assert_says(got.why, "ncu (Nsight Compute) is not on the PATH");
    assert_true(got.nowhere);
    setenv("PATH", path, 1);
}

static void one_call_is_verified(void **state) {
    (void)state;
    assert_int_equal(RUN("bench call --backend serial --size 33,10,17 --op NT --dtype f64"), 0);
    assert_says(output, "one NT product of f64 in the NVTX range 'counted': right");
    assert_int_equal(RUN("bench call --backend %s", support_plugin("plugins/missing-last-column.so")), 5);
    assert_int_equal(RUN("bench call --size 3,4"), 2);
    assert_int_equal(RUN("bench call --op TT"), 2);
    assert_int_equal(RUN("bench call --dtype f16"), 2);
    assert_int_equal(RUN("bench call --operands hot"), 2);
}

/* --- tables --- */

static void add_row(struct records *records, const char *line, const struct counters *counters) {
    cJSON *object = cJSON_Parse(line);
    assert_non_null(object);
    counters_add(object, counters);
    assert_status(records_add(records, object), STATUS_OK);
}

static char *written(void (*build)(struct table *, const struct selection *), const char *type,
                     const struct records *records) {
    struct selections all;
    struct table table;
    char *text = NULL;
    size_t length;
    FILE *out = open_memstream(&text, &length);
    assert_non_null(out);
    assert_status(selections_of(&all, records, type, NULL), STATUS_OK);
    build(&table, &all.list[0]);
    table_markdown(out, &table);
    table_close(&table);
    selections_free(&all);
    fclose(out);
    return text;
}

static void tables_show_them(void **state) {
    (void)state;
    static const char product[] = "\"dtype\":\"f32\",\"m\":100,\"n\":200,\"k\":50,\"bytes\":128000,"
                                  "\"verified\":true}";
    struct records records = {0};
    struct counters cpu = {.of = COUNTERS_CPU, .share = 0.5}, none = cpu, gpu;
    const double values[CPU_EVENTS] = {250000, 500000, 3000, 9000, 4000};
    char line[512], *text = fixture();
    memcpy(cpu.value, values, sizeof values);
    snprintf(none.why, sizeof none.why, "no PMU: get one");
    gpu_counters_parse(&gpu, text);
    free(text);
    snprintf(line, sizeof line,
             "{\"type\":\"gemm\",\"label\":\"tuned\",\"backend\":\"tuned\",\"op\":\"NN\",%s", product);
    add_row(&records, line, &cpu);
    add_row(&records, line, &none);
    add_row(&records, line, &gpu);
    snprintf(line, sizeof line, "{\"type\":\"shmem\",\"label\":\"CC 16 static plain\",%s", product);
    add_row(&records, line, &gpu);
    text = written(tables_counters_cpu, "gemm", &records);
    assert_says(text, "| NN f32 100x200x50 | `tuned` | 2.00 | 8.00 | 4,000 | "); /* IPC, flop a cycle */
    assert_says(text, "Without counters: `tuned`, because hardware counters are not available here: no PMU");
    free(text);
    text = written(tables_counters_gpu, "gemm", &records);
    assert_says(text, "| NN f32 100x200x50 | `tuned` | 68.0 MiB | 404.0 MiB | 35 % | - | 61 % | 1,024 | ");
    free(text);
    text = written(tables_counters_gpu, "shmem", &records);
    assert_says(text, "| backend | DRAM | L2 | occupancy |");
    assert_says(text, "| `CC 16 static plain` | 68.0 MiB |");
    free(text);
    const char *log = support_path("rows.jsonl"), *page = support_path("page.html");
    struct logfile *file;
    size_t length;
    assert_status(logfile_open(&file, log, false), STATUS_OK);
    records_write(&records, file);
    assert_status(logfile_close(file, STATUS_OK), STATUS_OK);
    records_free(&records);
    assert_int_equal(RUN("report %s -o %s", log, page), 0);
    text = (char *)support_read(page, &length);
    text[length] = '\0';
    assert_says(text, "Hardware counters of the CPU");
    assert_says(text, "<code>CC 16 static plain</code></th><td class=\"n\">68.0 MiB</td>");
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_count_in_all_threads),
        cmocka_unit_test(reasons_say_what_to_do),
        cmocka_unit_test(bench_shows_them),
        cmocka_unit_test(output_of_ncu_is_read),
        cmocka_unit_test(ncu_runs_one_call),
        cmocka_unit_test(one_call_is_verified),
        cmocka_unit_test(a_bench_of_a_gpu_counts),
        cmocka_unit_test(tables_show_them),
    };
    return cmocka_run_group_tests_name("counters", tests, NULL, NULL);
}
