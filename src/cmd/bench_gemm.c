/* ./train bench gemm: squares and the products of a training, on several backends. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/jsonl.h"
#include "src/base/terminal.h"
#include "src/base/text.h"
#include "src/bench/baseline.h"
#include "src/bench/gemm_log.h"
#include "src/bench/shapes.h"
#include "src/cmd/backend.h"
#include "src/cmd/bench_table.h"
#include "src/cmd/command.h"
#include "src/cmd/options.h"

enum { MOST_SIZES = 32 };

/* The flags and the results. */
struct gemm_bench {
    struct config config;
    struct sweep sweep; /* its contestants are those of the candidates */
    struct candidates candidates;
    struct benchmark benchmark;
    struct result *results;    /* [candidates] */
    bool dtype[DTYPES], op[3]; /* wanted */
    struct baseline baseline;
    double slack; /* tolerated slowdown against the baseline */
    struct logfile *log;
    size_t slower, compared;
    struct table table;
    struct records records; /* all rows */
    struct verdict verdict;
    bool planning;     /* measure() only adds to the plan */
    size_t products;   /* of the plan */
    double plan, done; /* seconds of all products, as planned, and of those that are measured */
    double started;    /* the clock at the first product */
};

static void change_cell(struct cell *cell) {
    const double ratio = cell_number(cell, "median_seconds") / cell_number(cell, "baseline_seconds");
    cell_text(cell, ratio > 0 ? "%+.1f %%%s" : "-", 100 * (ratio - 1),
              record_true(cell->line, "slower") ? " SLOWER" : "");
}

static const struct column baseline_columns[] = {
    {"before", COLUMN_NUMBER, .key = "baseline_seconds", .unit = text_seconds},
    {"change", COLUMN_NUMBER, .cell = change_cell, .width = 8},
};

/* Adds the change against the baseline, if it has a time `before`. */
static void add_change(struct gemm_bench *bench, cJSON *line, double before, const struct result *result) {
    if (before <= 0 || result->outcome != OUTCOME_RIGHT) return;
    const bool slower = result->seconds.median > before * (1 + bench->slack);
    bench->compared++;
    bench->slower += slower;
    cJSON_AddNumberToObject(line, "baseline_seconds", before);
    cJSON_AddBoolToObject(line, "slower", slower);
}

/* --- products --- */

static void show_progress(const struct gemm_bench *bench, enum gemm_dtype dtype,
                          const struct gemm_shape *shape) {
    const double pace = bench->done > 0 ? (clock_seconds() - bench->started) / bench->done : 1;
    terminal_progress("%s %s %zux%zux%zu  about %s left", gemm_op_name(shape->op), dtype_name(dtype),
                      shape->m, shape->n, shape->k, text_wait((bench->plan - bench->done) * pace).text);
}

static enum status measure(struct gemm_bench *bench, enum gemm_dtype dtype, const struct gemm_shape *shape) {
    if (!bench->dtype[dtype] || !bench->op[shape->op]) return STATUS_OK;
    const double planned = benchmark_predict(&bench->benchmark, dtype, shape);
    if (bench->planning) {
        bench->products++;
        bench->plan += planned;
        return STATUS_OK;
    }
    show_progress(bench, dtype, shape);
    const enum status status = benchmark_run(&bench->benchmark, dtype, shape, bench->results);
    if (status) return status;
    terminal_clear_progress();
    bench->done += planned;
    for (size_t i = 0; i < bench->benchmark.count; i++) {
        const struct candidate *candidate = &bench->candidates.list[i];
        const struct result *result = &bench->results[i];
        cJSON *line = gemm_line(candidate, dtype, shape, result, bench->benchmark.warm);
        add_change(bench, line, baseline_seconds(&bench->baseline, candidate, dtype, shape), result);
        bench_print_row(&bench->table, line);
        jsonl_print(bench->log, line);
        verdict_note(&bench->verdict, result->outcome, candidate->label, result->reason);
        const enum status added = records_add(&bench->records, line);
        if (added) return added;
    }
    fflush(stdout);
    return STATUS_OK;
}

static enum status measure_square(struct gemm_bench *bench, size_t size) {
    enum status status = STATUS_OK;
    for (int dtype = GEMM_F32; dtype < DTYPES; dtype++)
        for (int op = GEMM_NN; op <= GEMM_NT && !status; op++) {
            const struct gemm_shape shape = {
                .op = (enum gemm_op)op, .m = size, .n = size, .k = size, .what = "square"};
            status = measure(bench, (enum gemm_dtype)dtype, &shape);
        }
    return status;
}

/* Do the flags name a training? */
static bool names_training(const struct config *config) {
    static const char *const keys[] = {"layers", "batch-size"};
    for (int i = 0; i < 2; i++)
        if (config->origin[config_key_find(keys[i]) - config_key_at(0)] == FROM_FLAG) return true;
    return config->file[0] != '\0';
}

static enum status measure_training(struct gemm_bench *bench) {
    struct gemm_shape shapes[SHAPES_MOST];
    char name[64];
    shapes_config_name(bench->config.file, name, sizeof name);
    const size_t count = shapes_of_training(&bench->config.layers, bench->config.adversarial > 0,
                                            (size_t)bench->config.batch_size, name, shapes);
    enum status status = STATUS_OK;
    if (!bench->planning)
        terminal_print(stdout, 2, "\nthe products of a training step of %s, batches of %lld\n", name,
                       (long long)bench->config.batch_size);
    for (int dtype = GEMM_F32; dtype < DTYPES; dtype++)
        for (size_t s = 0; s < count && !status; s++)
            status = measure(bench, (enum gemm_dtype)dtype, &shapes[s]);
    return status;
}

/* Measures the products of the baseline alone. */
static enum status measure_baseline(struct gemm_bench *bench) {
    enum status status = STATUS_OK;
    for (size_t i = 0; i < bench->baseline.count && !status; i++) {
        const struct baseline_entry *entry = &bench->baseline.entries[i];
        bool first = true;
        for (size_t j = 0; j < i && first; j++) {
            const struct baseline_entry *other = &bench->baseline.entries[j];
            first = other->dtype != entry->dtype || !shapes_equal(&other->shape, &entry->shape);
        }
        if (first) status = measure(bench, entry->dtype, &entry->shape);
    }
    return status;
}

static enum status measure_all(struct gemm_bench *bench, const size_t *sizes, size_t count) {
    enum status status = STATUS_OK;
    if (bench->baseline.count) return measure_baseline(bench);
    for (size_t i = 0; i < count && !status; i++) status = measure_square(bench, sizes[i]);
    if (!status && names_training(&bench->config)) status = measure_training(bench);
    return status;
}

/* Tells a person who waits how long it takes, from the rates of one small product. */
static enum status tell_plan(struct gemm_bench *bench, const size_t *sizes, size_t count) {
    const struct gemm_shape small = {.op = GEMM_NN, .m = 192, .n = 192, .k = 192, .what = "probe"};
    struct benchmark once = bench->benchmark;
    once.repeats = 1;
    once.warm = true;
    if (!terminal_is_watched()) return STATUS_OK;
    enum status status = benchmark_run(&once, GEMM_F32, &small, bench->results);
    bench->planning = true;
    if (!status) status = measure_all(bench, sizes, count);
    bench->planning = false;
    if (bench->plan > BENCH_LONG)
        terminal_tell("%zu products on %zu backends: about %s (fewer: --sizes, --dtype, --ops, --backends)",
                      bench->products, bench->benchmark.count, text_wait(bench->plan).text);
    bench->started = clock_seconds();
    return status;
}

/* --- flags --- */

/* Marks the listed names; all names if there is no list. */
static enum status mark(const char *flag, const char *list, const char *const *names, int count,
                        bool *marked) {
    for (int i = 0; i < count; i++) marked[i] = list == NULL;
    while (list && *list) {
        const size_t length = strcspn(list, ",");
        bool known = false;
        for (int i = 0; i < count; i++) {
            if (strlen(names[i]) != length || strncmp(names[i], list, length) != 0) continue;
            known = marked[i] = true;
        }
        if (!known) {
            char others[64] = "";
            for (int i = 0; i + 1 < count; i++)
                text_append(others, sizeof others, "%s%s", i ? ", " : "", names[i]);
            return status_set(STATUS_USAGE, "--%s lists '%.*s'; known are %s and %s", flag, (int)length, list,
                              others, names[count - 1]);
        }
        list += length + (list[length] == ',');
    }
    return STATUS_OK;
}

static enum status open_bench(struct gemm_bench *bench, const struct sweep_lists *lists) {
    struct sweep *sweep = &bench->sweep;
    enum status status = sweep_open(sweep, &bench->config, lists);
    if (!status) status = backend_check_plugins(sweep, false);
    if (!status) status = candidates_open(&bench->candidates, sweep);
    if (status) return status;
    bench->benchmark.candidates = bench->candidates.list;
    bench->benchmark.count = bench->candidates.count;
    bench->results = calloc(bench->benchmark.count + 1, sizeof *bench->results);
    if (!bench->results) return status_set(STATUS_FAILED, "out of memory");
    status = logfile_open(&bench->log, bench->config.log, false);
    if (status) return status;
    gemm_log_open(bench->log, "bench gemm", &bench->candidates);
    for (size_t i = 0; i < bench->candidates.left_out_count; i++) {
        const struct left_out *out = &bench->candidates.left_out[i];
        verdict_note(&bench->verdict, out->outcome, out->label, out->reason);
    }
    return bench->benchmark.count || bench->verdict.worst
               ? STATUS_OK
               : status_set(STATUS_UNAVAILABLE, "none of the backends can be used here");
}

static enum status judge(struct gemm_bench *bench) {
    const enum status verdict = verdict_status(&bench->verdict);
    if (verdict) return verdict;
    if (bench->baseline.count && !bench->compared)
        return status_set(STATUS_BAD_DATA, "nothing that the baseline has could be measured here");
    if (bench->compared < bench->baseline.count)
        return status_set(STATUS_TARGET_MISSED,
                          "%zu of %zu times of the baseline could not be measured again",
                          bench->baseline.count - bench->compared, bench->baseline.count);
    if (bench->slower)
        return status_set(STATUS_TARGET_MISSED,
                          "%zu of %zu times are more than %.0f %% slower than the baseline's", bench->slower,
                          bench->compared, 100 * bench->slack);
    return STATUS_OK;
}

static enum status print_kernels(const struct records *records) {
    struct selections all;
    const enum status status = selections_of(&all, records, "gemm", NULL);
    struct table table;
    tables_kernels(&table, all.count ? &all.list[0] : &(struct selection){0});
    if (table_rows(&table)) {
        printf("\n");
        table_console(stdout, &table);
    }
    table_close(&table);
    selections_free(&all);
    return status;
}

static enum status run_gemm(struct gemm_bench *bench, const struct sweep_lists *lists,
                            const char *size_list) {
    size_t sizes[MOST_SIZES], count;
    enum status status = bench_parse_list("sizes", size_list, MOST_SIZES, sizes, &count);
    if (!status) status = open_bench(bench, lists);
    if (status) return status;
    bench_print_header(&bench->candidates);
    tables_gemm_details(&bench->table, &(struct selection){0});
    if (bench->baseline.count) TABLE_COLUMNS(&bench->table, baseline_columns);
    for (size_t i = 0; i < bench->candidates.count; i++)
        table_reserve(&bench->table, "label", bench->candidates.list[i].label);
    status = tell_plan(bench, sizes, count);
    terminal_print(stdout, 0, "%s\n", bench->table.caption);
    table_console_titles(stdout, &bench->table);
    if (!status) status = measure_all(bench, sizes, count);
    table_console_end(stdout, &bench->table);
    if (!status) status = print_kernels(&bench->records);
    if (!status) status = bench_print_counters(&bench->records, "gemm", NULL);
    bench_print_load();
    return status ? status : judge(bench);
}

static void close_bench(struct gemm_bench *bench) {
    baseline_close(&bench->baseline);
    candidates_close(&bench->candidates);
    sweep_close(&bench->sweep);
    table_close(&bench->table);
    records_free(&bench->records);
    free(bench->results);
}

/* Operands must be those of the baseline, if there is one. */
static enum status choose_operands(struct gemm_bench *bench, const char *text) {
    bool warm;
    const enum status status = bench_parse_operands(text, &warm);
    if (status) return status;
    if (bench->baseline.count && warm != bench->baseline.warm)
        return status_set(STATUS_USAGE, "the operands of the baseline are %s", warm ? "cold" : "warm");
    bench->benchmark.warm = warm;
    return STATUS_OK;
}

/* Measures what the baseline has, on its backends and thread counts unless the flags list others. */
static enum status read_baseline(struct gemm_bench *bench, const char *path, struct sweep_lists *lists,
                                 bool unlimited) {
    static char backends[1024], threads[256]; /* `lists` points to them */
    const enum status status = baseline_read(&bench->baseline, path);
    baseline_backends(&bench->baseline, backends, sizeof backends);
    baseline_threads(&bench->baseline, threads, sizeof threads);
    if (strcmp(lists->backends, "all") == 0) lists->backends = backends;
    if (!lists->threads) lists->threads = threads;
    if (unlimited) bench->benchmark.limit_seconds = 0; /* even a much slower product is timed */
    for (int i = 0; i < DTYPES; i++) bench->dtype[i] = true;
    bench->benchmark.warm = bench->baseline.warm;
    return status;
}

static enum status run_bench_gemm(int argc, char **argv) {
    static struct gemm_bench bench; /* zero */
    static struct files files;
    static const char *const dtypes[DTYPES] = {"f32", "f64", "bf16", "fp16"}, *const ops[] = {"NN", "TN",
                                                                                              "NT"};
    static const char *const keys[] = {"layers", "batch-size", "precision", "device", "log", NULL};
    struct sweep_lists lists = {.backends = "all"};
    const char *dtype = "f32,f64", *op = NULL, *sizes = "256,512,1024,2048,4096,8192", *repeat = NULL,
               *limit = NULL, *timeout = NULL;
    const char *baseline = NULL, *tolerance = NULL, *config = NULL, *operands = NULL, *counters = NULL;
    double percent = 10;
    const struct option_extra extras[] = {
        {"config", "FILE",
         "the training whose products are measured too; likewise --layers or --batch-size [none]", &config},
        {"backends", "A,B,..",
         "the GEMMs, as in --backends openblas,tuned:isa=avx2; 'all': each usable one [all]",
         &lists.backends},
        {"threads", "N,..", "thread counts of host backends, each a row [all cores]", &lists.threads},
        {"dtype", "f32,..", "f32, f64, bf16, fp16 (operands; C is float32) [f32,f64]", &dtype},
        {"ops", "NN,..", "NN, TN, NT [all]", &op},
        {"sizes", "N,..", "of squares m = n = k, or none [256,512,1024,2048,4096,8192]", &sizes},
        BENCH_OPERANDS_FLAG(&operands),
        {"repeat", "N", "timings of each, interleaved; three rounds with new operands if they are short [7]",
         &repeat},
        {"limit-seconds", "S",
         "leave out a product of a backend if its timing would take longer; 0: no limit [10]", &limit},
        BACKEND_TIMEOUT_FLAG(&timeout),
        {"baseline", "FILE", "measure the products of this earlier log; exit with 6 if one is slower",
         &baseline},
        {"tolerance", "PERCENT", "tolerated slowdown against the baseline [10]", &tolerance},
        BENCH_COUNTERS_FLAG(&counters),
    };
    const struct option_set set = {
        .usage = "bench gemm [--backends A,B,..] [--sizes N,..] [--config FILE]...",
        .details =
            "Times C = op(A) op(B) of squares and of the products of a training step (--config), whose first "
            "layer multiplies pixels. Every backend is verified on "
            "each timed shape, before and after the timing: exact integers, a float64 reference, NaN in C "
            "beforehand, guard bands "
            "around C, the same bits from every copy of the operands. A wrong one gets no time, and the "
            "command exits with 5.\n"
            "'of peak' is the rate relative to a loop of multiply-adds, which runs on the host after each "
            "sample, because the clock "
            "depends on the load.\n"
            "  ./train bench gemm --sizes 1024,2048 --dtype f32 --log now.jsonl\n"
            "  ./train bench gemm --baseline now.jsonl",
        .keys = keys,
        OPTION_EXTRAS(extras),
    };
    bool help;
    enum status status = options_parse(&set, argc, argv, &bench.config, &help);
    if (status || help) return status;
    if (config) status = options_read_config(&files, &bench.config, config);
    files_add(&files, "--baseline", baseline, FILE_READ);
    if (!status) status = options_check_files(&files, &bench.config);
    bench.config.residency = RESIDENCY_DEVICE; /* transfers are measured separately */
    bench.benchmark.repeats = 7;
    bench.benchmark.limit_seconds = 10;
    bench.benchmark.counters = counters != NULL;
    if (!status) status = bench_parse_count("repeat", repeat, 1000, &bench.benchmark.repeats);
    if (!status) status = bench_parse_real("limit-seconds", limit, &bench.benchmark.limit_seconds);
    if (!status) status = bench_parse_real("tolerance", tolerance, &percent);
    bench.slack = percent / 100;
    if (!status) status = mark("dtype", dtype, dtypes, DTYPES, bench.dtype);
    if (!status) status = mark("ops", op, ops, 3, bench.op);
    if (!status && baseline) status = read_baseline(&bench, baseline, &lists, !limit);
    if (!status && operands) status = choose_operands(&bench, operands);
    if (!status) status = backend_prepare_contest(NULL, timeout, bench.benchmark.limit_seconds);
    if (!status) status = run_gemm(&bench, &lists, sizes);
    status = logfile_close(bench.log, status);
    close_bench(&bench);
    return status;
}

const struct command bench_gemm = {"gemm", "rates of squares and of the products of a training",
                                   run_bench_gemm};
