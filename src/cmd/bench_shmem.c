/* ./train bench shmem: which layout of tiles in shared memory is fastest? */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/backend/registry.h"
#include "src/base/jsonl.h"
#include "src/base/terminal.h"
#include "src/base/text.h"
#include "src/bench/gemm_log.h"
#include "src/cmd/bench_table.h"
#include "src/cmd/command.h"
#include "src/cmd/options.h"

/* The options of cuda-order. */
static const char *const orders[] = {"RR", "RC", "CR", "CC"}, *const shareds[] = {"static", "dynamic"},
                         *const multiplies[] = {"plain", "fmul_rn"};
static const int tiles[] = {4, 8, 16, 32};

enum {
    ORDERS = sizeof orders / sizeof *orders,
    TILES = sizeof tiles / sizeof *tiles,
    SHAREDS = sizeof shareds / sizeof *shareds,
    MULTIPLIES = sizeof multiplies / sizeof *multiplies,
    PER_TILE = ORDERS * SHAREDS * MULTIPLIES,
    VARIANTS = TILES * PER_TILE,
    MOST_SIZES = 8
};

/* One set of options, and its result. */
struct variant {
    const char *order, *shared, *multiply;
    int tile;
    struct result result;
};

struct shmem_bench {
    struct config config;
    struct benchmark benchmark;
    struct contest_backend backend;
    struct contestant contestant;      /* one for all: a GPU has no memory for 128 contexts */
    struct candidates candidates;      /* a variant each */
    struct variant variants[VARIANTS]; /* tile by tile */
    struct table table;
    struct records records; /* a variant each */
    struct logfile *log;
    struct verdict verdict;
};

static void make_variants(struct shmem_bench *bench, const struct gemm_backend *backend,
                          struct sweep_row *rows) {
    bench->backend.device = backend->device;
    snprintf(bench->backend.bare, sizeof bench->backend.bare, "%s", backend->name);
    for (int v = 0; v < VARIANTS; v++) {
        struct variant *one = &bench->variants[v];
        struct sweep_row *row = &rows[v];
        one->tile = tiles[v / PER_TILE];
        one->order = orders[v / MULTIPLIES / SHAREDS % ORDERS];
        one->shared = shareds[v / MULTIPLIES % SHAREDS];
        one->multiply = multiplies[v % MULTIPLIES];
        *row = (struct sweep_row){
            .config = bench->config, .backend = &bench->backend, .contestant = &bench->contestant};
        snprintf(row->config.backend, sizeof row->config.backend, "%s:order=%s,tile=%d,shared=%s,multiply=%s",
                 backend->name, one->order, one->tile, one->shared, one->multiply);
        snprintf(row->name, sizeof row->name, "%.255s", row->config.backend);
        snprintf(row->label, sizeof row->label, "%s %d %s %s", one->order, one->tile, one->shared,
                 one->multiply);
    }
}

/* Opens all variants and measures the peak of the GPU once. */
static enum status open_variants(struct shmem_bench *bench, const struct gemm_backend *backend) {
    struct sweep_row *rows = calloc(VARIANTS, sizeof *rows);
    if (!rows) return status_set(STATUS_FAILED, "out of memory");
    make_variants(bench, backend, rows);
    const struct sweep sweep = {.rows = rows, .count = VARIANTS};
    const enum status status = candidates_open(&bench->candidates, &sweep);
    free(rows);
    if (status) return status;
    if (bench->candidates.left_out_count) {
        const struct left_out *out = &bench->candidates.left_out[0];
        return status_set(out->outcome == OUTCOME_FAILED ? STATUS_FAILED : STATUS_UNAVAILABLE, "%s",
                          out->reason);
    }
    gemm_log_open(bench->log, "bench shmem", &bench->candidates);
    printf("%s\n\n", bench->candidates.list[0].compute.gpu);
    tables_gemm_details(&bench->table, &(struct selection){0});
    for (size_t v = 0; v < VARIANTS; v++)
        table_reserve(&bench->table, "label", bench->candidates.list[v].label);
    table_console_titles(stdout, &bench->table);
    return STATUS_OK;
}

/* Times all variants of one tile, interleaved. */
static enum status run_tile(struct shmem_bench *bench, int tile, const struct gemm_shape *shape) {
    const enum gemm_dtype dtype = (enum gemm_dtype)bench->config.dtype;
    struct result results[PER_TILE];
    bench->benchmark.candidates = bench->candidates.list + tile * PER_TILE;
    bench->benchmark.count = PER_TILE;
    const enum status status = benchmark_run(&bench->benchmark, dtype, shape, results);
    for (size_t i = 0; i < PER_TILE && !status; i++) {
        const struct candidate *candidate = &bench->benchmark.candidates[i];
        bench->variants[tile * PER_TILE + (int)i].result = results[i];
        cJSON *line = gemm_line(candidate, dtype, shape, &results[i], bench->benchmark.warm);
        bench_print_row(&bench->table, line);
        cJSON_Delete(line);
        verdict_note(&bench->verdict, results[i].outcome, candidate->label, results[i].reason);
    }
    fflush(stdout);
    return status;
}

static const struct variant *find_best(const struct shmem_bench *bench) {
    const struct variant *best = NULL;
    for (int v = 0; v < VARIANTS; v++) {
        const struct variant *one = &bench->variants[v];
        if (one->result.outcome == OUTCOME_RIGHT &&
            (!best || one->result.seconds.median < best->result.seconds.median))
            best = one;
    }
    return best;
}

static enum status write_variant(struct shmem_bench *bench, const struct variant *variant,
                                 const struct gemm_shape *shape, bool best) {
    const struct result *result = &variant->result;
    const char *label = bench->candidates.list[variant - bench->variants].label;
    cJSON *line = jsonl_new("shmem");
    jsonl_text(line, "backend", bench->backend.bare);
    jsonl_text(line, "label", label);
    cJSON_AddStringToObject(line, "order", variant->order);
    cJSON_AddNumberToObject(line, "tile", variant->tile);
    cJSON_AddStringToObject(line, "shared", variant->shared);
    cJSON_AddStringToObject(line, "multiply", variant->multiply);
    cJSON_AddStringToObject(line, "dtype", config_choice("dtype", bench->config.dtype));
    jsonl_count(line, "m", shape->m);
    jsonl_count(line, "n", shape->n);
    jsonl_count(line, "k", shape->k);
    if (result->outcome == OUTCOME_LEFT_OUT || result->outcome == OUTCOME_FAILED) {
        cJSON_AddStringToObject(line, result->outcome == OUTCOME_FAILED ? "failed" : "left_out",
                                result->reason);
    } else {
        cJSON_AddBoolToObject(line, "verified", result->outcome == OUTCOME_RIGHT);
    }
    if (result->outcome == OUTCOME_RIGHT) {
        cJSON_AddNumberToObject(line, "median_seconds", result->seconds.median);
        cJSON_AddNumberToObject(line, "min_seconds", result->seconds.min);
        cJSON_AddNumberToObject(line, "max_seconds", result->seconds.max);
        cJSON_AddBoolToObject(line, "noisy", result->seconds.noisy);
        cJSON_AddNumberToObject(line, "gflops", 1e-9 * result->flops / result->seconds.median);
        cJSON_AddNumberToObject(line, "occupancy", result->kernel[0].occupancy);
        cJSON_AddNumberToObject(line, "registers", result->kernel[0].registers);
        jsonl_count(line, "shared_bytes", result->kernel[0].shared_bytes);
        cJSON_AddBoolToObject(line, "best", best);
        counters_add(line, &result->counters);
    } else if (result->outcome == OUTCOME_WRONG) {
        cJSON_AddStringToObject(line, "reason", result->reason);
    }
    jsonl_print(bench->log, line);
    return records_add(&bench->records, line);
}

/* One line for each tile, one column for each order; plain multiplies, static memory. */
static void print_summary(const struct shmem_bench *bench, const struct gemm_shape *shape,
                          const struct variant *best) {
    printf("\nm = n = k = %zu, %s, static shared memory, plain multiply\ntile   occupancy  registers  shared "
           "memory",
           shape->m, config_choice("dtype", bench->config.dtype));
    for (int order = 0; order < ORDERS; order++) printf("  %7s", orders[order]);
    printf("\n");
    for (int tile = 0; tile < TILES; tile++) {
        const struct gemm_kernel *kernel = &bench->variants[tile * PER_TILE].result.kernel[0];
        printf("%4d %9.0f %%  %9u  %13s", tiles[tile], 100 * kernel->occupancy, kernel->registers,
               text_bytes((double)kernel->shared_bytes).text);
        for (int order = 0; order < ORDERS; order++) {
            const struct result *result =
                &bench->variants[tile * PER_TILE + order * SHAREDS * MULTIPLIES].result;
            printf("  %7s",
                   result->outcome == OUTCOME_RIGHT ? text_seconds(result->seconds.median).text : "-");
        }
        printf("\n");
    }
    if (best)
        terminal_print(
            stdout, 6,
            "best: --backend cuda-order:order=%s,tile=%d,shared=%s,multiply=%s: %s, %.0f GFLOP/s\n\n",
            best->order, best->tile, best->shared, best->multiply,
            text_seconds(best->result.seconds.median).text,
            1e-9 * best->result.flops / best->result.seconds.median);
}

static enum status run_size(struct shmem_bench *bench, size_t size) {
    const struct gemm_shape shape = {.op = GEMM_NN, .m = size, .n = size, .k = size, .what = "square"};
    enum status status = STATUS_OK;
    for (int tile = 0; tile < TILES && !status; tile++) status = run_tile(bench, tile, &shape);
    if (status) return status;
    const struct variant *best = find_best(bench);
    for (int v = 0; v < VARIANTS && !status; v++) {
        const struct variant *one = &bench->variants[v];
        status = write_variant(bench, one, &shape, one == best);
    }
    print_summary(bench, &shape, best);
    return status;
}

static enum status run_bench_shmem(int argc, char **argv) {
    static struct shmem_bench bench; /* zero */
    static const char *const keys[] = {"device", "dtype", "log", NULL};
    const char *size_list = "2048", *repeat = NULL, *counters = NULL;
    size_t sizes[MOST_SIZES], count;
    const struct option_extra extras[] = {
        {"sizes", "N,..", "of squares m = n = k [2048]", &size_list},
        {"repeat", "N", "timings of each, interleaved; three rounds with new operands if they are short [7]",
         &repeat},
        BENCH_COUNTERS_FLAG(&counters),
    };
    const struct option_set set = {
        .usage = "bench shmem [--sizes N,..] [--dtype f32|f64] [--log FILE]",
        .details = "A study of layouts in shared memory, with the backend cuda-order: tiles of A and B, each "
                   "row-major (R) or "
                   "transposed (C), side 4 to 32, static or dynamic shared memory, multiply-add fused or "
                   "not; with registers, shared "
                   "memory and theoretical occupancy. Needs a GPU.",
        .keys = keys,
        OPTION_EXTRAS(extras),
    };
    bool help;
    const struct gemm_backend *backend;
    enum status status = options_parse(&set, argc, argv, &bench.config, &help);
    if (status || help) return status;
    bench.benchmark.repeats = 7;
    bench.benchmark.counters = counters != NULL;
    status = bench_parse_list("sizes", size_list, MOST_SIZES, sizes, &count);
    if (!status && !count) status = status_set(STATUS_USAGE, "--sizes lists nothing");
    if (!status) status = bench_parse_count("repeat", repeat, 1000, &bench.benchmark.repeats);
    if (!status) status = options_check_files(&(struct files){0}, &bench.config);
    if (!status) status = registry_find("cuda-order", &backend);
    if (!status) status = contestants_prepare(NULL, &(struct contest_limits){0});
    if (!status) status = logfile_open(&bench.log, bench.config.log, false);
    if (!status) status = open_variants(&bench, backend);
    if (!status && counters) terminal_tell("--counters runs each kernel under ncu too: some seconds each");
    for (size_t i = 0; i < count && !status; i++) status = run_size(&bench, sizes[i]);
    if (!status) status = bench_print_counters(&bench.records, "shmem", selection_shape);
    if (!status) bench_print_load();
    if (!status) status = verdict_status(&bench.verdict);
    candidates_close(&bench.candidates);
    contestant_end(&bench.contestant);
    if (table_rows(&bench.table)) table_console_end(stdout, &bench.table);
    table_close(&bench.table);
    records_free(&bench.records);
    return logfile_close(bench.log, status);
}

const struct command bench_shmem = {"shmem", "tiles row-major or transposed in shared memory (GPU)",
                                    run_bench_shmem};
