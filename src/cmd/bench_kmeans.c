/* ./train bench kmeans: the steps of k-means, from one thread of the host to fused kernels on a GPU. */
#include <stdio.h>
#include <string.h>

#include "src/backend/registry.h"
#include "src/base/jsonl.h"
#include "src/base/platform.h"
#include "src/base/terminal.h"
#include "src/base/text.h"
#include "src/bench/gemm_log.h"
#include "src/bench/kmeans_race.h"
#include "src/cmd/backend.h"
#include "src/cmd/bench_table.h"
#include "src/cmd/command.h"
#include "src/cmd/options.h"

enum { MOST_BLOCKS = 16, MOST_SIZES = 8, MOST_BACKENDS = 8, MOST_VARIANTS = 128 };
static const char SERIAL[] = "serial"; /* the name of a variant, and of its backend */

struct kmeans_bench {
    struct config config;
    struct kmeans_race race;
    struct kmeans_variant variants[MOST_VARIANTS];
    size_t variant_count, blocks[MOST_BLOCKS], block_count, features[MOST_SIZES], feature_count;
    char backend[MOST_BACKENDS][CONFIG_TEXT]; /* of gemm and nearest */
    size_t backend_count;
    const char *gpu;   /* the first one on a GPU, which the other steps run on; NULL: none */
    char no_gpu[256];  /* why not */
    const char *steps; /* a list of names; NULL: all */
    double serial;     /* mean seconds of a loop; 0: not measured */
    struct table table;
    struct logfile *log;
    struct verdict verdict;
};

/* --- which variants --- */

static bool is_step(const char *name) {
    const char *const *choice = config_key_find("step")->choices + STEP_NAIVE;
    while (*choice && strcmp(*choice, name) != 0) choice++;
    return *choice || strcmp(name, SERIAL) == 0;
}

static enum status check_steps(const char *list) {
    while (list && *list) {
        char word[32];
        bench_next_word(&list, word, sizeof word);
        if (!is_step(word))
            return status_set(STATUS_USAGE,
                              "--steps has no step '%s': serial, naive, transpose, shared, atomics, partial, "
                              "gemm, nearest",
                              word);
    }
    return STATUS_OK;
}

static bool is_wanted(const struct kmeans_bench *bench, const char *name) {
    const char *list = bench->steps;
    while (list && *list) {
        char word[32];
        bench_next_word(&list, word, sizeof word);
        if (strcmp(word, name) == 0) return true;
    }
    return !bench->steps;
}

static enum status find_backends(struct kmeans_bench *bench, const char *list) {
    const struct gemm_backend *backend;
    const enum status status =
        bench_find_backends(list, MOST_BACKENDS, bench->backend, &bench->backend_count);
    for (size_t i = 0; i < bench->backend_count && !status && !bench->gpu; i++)
        if (!registry_find(bench->backend[i], &backend) && backend->device == GEMM_ON_CUDA)
            bench->gpu = bench->backend[i];
    return status;
}

/* Without a GPU backend in the list: is there one at all? */
static void find_reason(struct kmeans_bench *bench, bool chosen) {
    if (chosen) {
        snprintf(bench->no_gpu, sizeof bench->no_gpu, "--backends lists none of a GPU");
        return;
    }
    for (size_t i = 0; i < registry_count(); i++) {
        const struct registry_entry *entry = registry_at(i);
        if (strcmp(entry->name, "cublas") == 0) registry_usable(entry, bench->no_gpu, sizeof bench->no_gpu);
    }
}

static void add_variant(struct kmeans_bench *bench, const struct kmeans_variant *variant) {
    if (is_wanted(bench, variant->name) && bench->variant_count < MOST_VARIANTS)
        bench->variants[bench->variant_count++] = *variant;
}

static void add_kernels(struct kmeans_bench *bench, const struct kmeans_steps *steps) {
    for (size_t s = 0; steps && steps->list[s]; s++)
        for (size_t b = 0; b < bench->block_count; b++)
            add_variant(bench, &(struct kmeans_variant){.name = steps->list[s]->name,
                                                        .backend = bench->gpu,
                                                        .on_gpu = true,
                                                        .step = steps->list[s]->name,
                                                        .updates = steps->list[s]->updates,
                                                        .block = (unsigned)bench->blocks[b]});
}

static void add_backend(struct kmeans_bench *bench, const char *name, enum gemm_device where) {
    const struct gemm_backend *backend;
    if (registry_find(name, &backend) || backend->device != where) return;
    struct kmeans_variant variant = {
        .name = "gemm", .backend = name, .on_gpu = where == GEMM_ON_CUDA, .engine = ENGINE_EAGER};
    add_variant(bench, &variant);
    variant.name = "nearest";
    variant.engine = ENGINE_FUSED;
    if (backend->nearest) add_variant(bench, &variant);
}

static enum status make_variants(struct kmeans_bench *bench) {
    add_variant(bench, &(struct kmeans_variant){
                           .name = SERIAL, .backend = SERIAL, .engine = ENGINE_EAGER, .threads = 1});
    for (size_t b = 0; b < bench->backend_count; b++) add_backend(bench, bench->backend[b], GEMM_ON_HOST);
    if (bench->gpu) add_kernels(bench, registry_device(GEMM_ON_CUDA)->kmeans_steps);
    for (size_t b = 0; b < bench->backend_count; b++) add_backend(bench, bench->backend[b], GEMM_ON_CUDA);
    for (int step = STEP_NAIVE; step <= STEP_PARTIAL; step++)
        if (bench->variant_count || is_wanted(bench, config_choice("step", step))) return STATUS_OK;
    return status_set(STATUS_USAGE, "--steps and --backends leave nothing to measure");
}

/* --- results --- */

static cJSON *row_of(const struct kmeans_bench *bench, const char *step, const char *backend, bool on_gpu) {
    const struct points *points = &bench->race.on_host.train;
    cJSON *line = jsonl_new("kmeans_step");
    cJSON_AddStringToObject(line, "step", step);
    jsonl_text(line, "backend", backend);
    cJSON_AddStringToObject(line, "device", on_gpu ? "cuda" : "host");
    cJSON_AddStringToObject(line, "data", bench->config.data);
    cJSON_AddStringToObject(line, "dtype", config_choice("dtype", bench->config.dtype));
    jsonl_count(line, "points", points->count);
    jsonl_count(line, "features", points->features);
    jsonl_count(line, "clusters", (size_t)bench->config.clusters);
    return line;
}

/* The labels are a product of all points with all centres; points and centres are read, labels written. */
static void add_rate(const struct kmeans_bench *bench, cJSON *line, double seconds) {
    const struct points *points = &bench->race.on_host.train;
    const double count = (double)points->count, clusters = (double)bench->config.clusters,
                 features = (double)points->features;
    cJSON_AddNumberToObject(line, "flops", 2 * count * clusters * features);
    cJSON_AddNumberToObject(line, "bytes",
                            (count + clusters) * features * (double)dtype_size(points->dtype) +
                                count * sizeof(uint32_t));
    cJSON_AddNumberToObject(line, "gflops", 2e-9 * count * clusters * features / seconds);
}

static void add_time(const struct kmeans_bench *bench, cJSON *line, const struct kmeans_time *time) {
    jsonl_count(line, "loops", time->loops);
    cJSON_AddNumberToObject(line, "mean_seconds", time->seconds.mean);
    cJSON_AddNumberToObject(line, "median_seconds", time->seconds.median);
    cJSON_AddNumberToObject(line, "min_seconds", time->seconds.min);
    cJSON_AddNumberToObject(line, "max_seconds", time->seconds.max);
    cJSON *parts = cJSON_AddObjectToObject(line, "time");
    cJSON_AddNumberToObject(parts, "gpu", time->gpu);
    cJSON_AddNumberToObject(parts, "cpu", time->cpu);
    cJSON_AddNumberToObject(parts, "transfers", time->transfers);
    cJSON_AddNumberToObject(line, "startup_seconds", time->startup);
    cJSON_AddNumberToObject(line, "inertia", time->inertia);
    add_rate(bench, line, time->seconds.mean);
    if (bench->serial > 0) cJSON_AddNumberToObject(line, "speedup", bench->serial / time->seconds.mean);
}

static void show(struct kmeans_bench *bench, cJSON *line) {
    bench_print_row(&bench->table, line);
    jsonl_write(bench->log, line);
    fflush(stdout);
}

static void run_variant(struct kmeans_bench *bench, const struct kmeans_variant *variant) {
    struct kmeans_time time;
    char label[128];
    snprintf(label, sizeof label, "%s of %s", variant->name, variant->backend);
    if (variant->block) text_append(label, sizeof label, ", blocks of %u", variant->block);
    terminal_progress("%s", label);
    kmeans_race_run(&bench->race, variant, &time);
    terminal_clear_progress();
    if (strcmp(variant->name, SERIAL) == 0 && time.outcome == OUTCOME_RIGHT)
        bench->serial = time.seconds.mean;
    cJSON *line = row_of(bench, variant->name, variant->backend, variant->on_gpu);
    if (variant->block) jsonl_count(line, "block_size", variant->block);
    const bool on_host = !variant->on_gpu || (variant->step && !variant->updates);
    if (on_host && time.threads) cJSON_AddNumberToObject(line, "threads", time.threads);
    jsonl_text(line, "kernel", time.kernel);
    if (time.outcome == OUTCOME_LEFT_OUT || time.outcome == OUTCOME_FAILED) {
        jsonl_text(line, time.outcome == OUTCOME_FAILED ? "failed" : "left_out", time.reason);
    } else {
        cJSON_AddBoolToObject(line, "verified", time.outcome == OUTCOME_RIGHT);
        jsonl_text(line, "reason", time.reason);
    }
    if (time.outcome == OUTCOME_RIGHT) add_time(bench, line, &time);
    show(bench, line);
    verdict_note(&bench->verdict, time.outcome, label, time.reason);
}

/* A line for each kernel that needs a GPU. */
static void leave_kernels_out(struct kmeans_bench *bench) {
    for (int step = STEP_NAIVE; step <= STEP_PARTIAL && !bench->gpu; step++) {
        const char *name = config_choice("step", step);
        if (!is_wanted(bench, name)) continue;
        cJSON *line = row_of(bench, name, "", true);
        cJSON_AddStringToObject(line, "left_out", bench->no_gpu);
        jsonl_write(bench->log, line);
    }
}

static enum status run_points(struct kmeans_bench *bench, const char *size, size_t features) {
    struct kmeans_race *race = &bench->race;
    snprintf(bench->config.data, sizeof bench->config.data, "uniform:%.64s,%zu", size, features);
    const enum status status = kmeans_race_open(race, &bench->config, bench->gpu);
    if (!status) {
        terminal_print(stdout, 0,
                       "\n%s points of %zu features, %s, K = %lld, %lld loops from the first K points\n",
                       text_grouped(race->on_host.train.count).text, features,
                       config_choice("dtype", bench->config.dtype), (long long)bench->config.clusters,
                       (long long)bench->config.iterations);
        bench->serial = 0;
        tables_kmeans_steps(&bench->table, &(struct selection){0});
        table_console_titles(stdout, &bench->table);
        for (size_t v = 0; v < bench->variant_count; v++) run_variant(bench, &bench->variants[v]);
        leave_kernels_out(bench);
        table_console_end(stdout, &bench->table);
        table_close(&bench->table);
    }
    kmeans_race_close(race);
    return status;
}

/* Measures the peak rates that bound the rows, for the log alone: without them it has no roofline. */
static void write_peak(const struct kmeans_bench *bench, enum gemm_device device, const char *gpu,
                       int threads) {
    struct rates rates;
    if (!candidates_rates(&bench->config, device, threads, true, &rates))
        gemm_log_peak(bench->log, device, gpu, threads, &rates);
}

static void write_header(const struct kmeans_bench *bench) {
    const int threads = platform_threads((int)bench->config.threads);
    char text[256] = "";
    cJSON *header = jsonl_header();
    jsonl_text(header, "command", "bench kmeans");
    if (bench->gpu) {
        struct device device = {.driver = registry_device(GEMM_ON_CUDA)};
        const struct device_options options = {.threads = 1, .ordinal = (int)bench->config.device};
        if (!device.driver->open(&device, &options)) {
            device.driver->describe(&device, text, sizeof text);
            device.driver->close(&device);
        }
        jsonl_text(header, "gpu", text);
        terminal_print(stdout, 2, "%s\n", text);
    }
    jsonl_write(bench->log, header);
    if (bench->log) write_peak(bench, GEMM_ON_HOST, "", threads);
    if (bench->log && bench->gpu) write_peak(bench, GEMM_ON_CUDA, text, threads);
}

static enum status measure(struct kmeans_bench *bench, const char *size) {
    enum status status = logfile_open(&bench->log, bench->config.log, false);
    if (status) return status;
    bench_print_machine();
    write_header(bench);
    if (!bench->gpu)
        terminal_print(stdout, 0, "no GPU, and so no steps naive to partial: %s\n", bench->no_gpu);
    for (size_t i = 0; i < bench->feature_count && !status; i++)
        status = run_points(bench, size, bench->features[i]);
    if (!status) bench_print_load();
    return status ? status : verdict_status(&bench->verdict);
}

static enum status set_sizes(struct kmeans_bench *bench, const char *blocks, const char *features) {
    enum status status =
        bench_parse_list("block-sizes", blocks, MOST_BLOCKS, bench->blocks, &bench->block_count);
    if (!status)
        status = bench_parse_list("features", features, MOST_SIZES, bench->features, &bench->feature_count);
    for (size_t b = 0; b < bench->block_count && !status; b++)
        if (bench->blocks[b] < KMEANS_LEAST_BLOCK || bench->blocks[b] > KMEANS_MOST_BLOCK)
            status = status_set(STATUS_USAGE, "--block-sizes must be from %d to %d, not %zu",
                                KMEANS_LEAST_BLOCK, KMEANS_MOST_BLOCK, bench->blocks[b]);
    if (!status && !bench->feature_count) status = status_set(STATUS_USAGE, "--features lists nothing");
    return status;
}

static enum status run_bench_kmeans(int argc, char **argv) {
    static struct kmeans_bench bench; /* zero */
    static const char *const keys[] = {"threads", "device", "log", NULL};
    const char *size = "1024MB", *features = "32,2", *clusters = "64", *iterations = "10", *dtype = "f64",
               *blocks = "32,64,128,256,512,1024", *backends = NULL;
    const struct option_extra extras[] = {
        {"size", "SIZE", "bytes of uniform random points, in KB, MB or GB [1024MB]", &size},
        {"features", "D,..", "features of a point; a table for each [32,2]", &features},
        {"clusters", "K", "[64]", &clusters},
        {"iterations", "N", "loops of each run [10]", &iterations},
        {"dtype", "f32|f64", "[f64]", &dtype},
        {"steps", "NAME,..", "of serial, naive, transpose, shared, atomics, partial, gemm, nearest [all]",
         &bench.steps},
        {"block-sizes", "THREADS,..", "of the steps naive to partial [32,64,128,256,512,1024]", &blocks},
        {"backends", "NAME,..",
         "of the steps gemm and nearest; the first of a GPU runs the others [openblas, tuned, cublas and "
         "cuda-tuned, as far as they are here]",
         &backends},
    };
    const struct option_set set = {
        .usage = "bench kmeans [--size SIZE] [--features D,..] [--FLAG VALUE]...",
        .details =
            "Times the loop of Lloyd's algorithm step by step (docs/kmeans.md): one thread of the host; on a "
            "GPU a thread a point, columns, shared memory, atomics, sums of blocks; a GEMM; a fused "
            "kernel. Every row is checked before and after it is timed. Without a GPU its rows are left "
            "out.",
        .keys = keys,
        OPTION_EXTRAS(extras),
    };
    bool help;
    enum status status = options_parse(&set, argc, argv, &bench.config, &help);
    if (status || help) return status;
    status = config_set(&bench.config, "clusters", clusters, FROM_FLAG, "--clusters");
    if (!status) status = config_set(&bench.config, "iterations", iterations, FROM_FLAG, "--iterations");
    if (!status) status = config_set(&bench.config, "dtype", dtype, FROM_FLAG, "--dtype");
    if (!status && bench.config.iterations < 1)
        status = status_set(STATUS_USAGE, "--iterations must be at least 1");
    if (!status) status = set_sizes(&bench, blocks, features);
    if (!status) status = check_steps(bench.steps);
    if (!status) status = find_backends(&bench, backends);
    if (!status && !bench.gpu) find_reason(&bench, backends != NULL);
    if (!status) status = make_variants(&bench);
    if (!status) status = options_check_files(&(struct files){0}, &bench.config);
    if (!status) status = backend_prepare_contest(NULL, NULL, 0);
    if (!status) status = measure(&bench, size);
    return logfile_close(bench.log, status);
}

const struct command bench_kmeans = {"kmeans", "the steps of k-means, from one thread to fused kernels",
                                     run_bench_kmeans};
