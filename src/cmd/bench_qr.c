/* ./train bench qr: the methods of sliding windows, against the width of panels, the number of windows, sizes
   and condition numbers. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "src/base/platform.h"
#include "src/base/terminal.h"
#include "src/base/text.h"
#include "src/bench/gemm_log.h"
#include "src/bench/qr_log.h"
#include "src/cmd/backend.h"
#include "src/cmd/bench_table.h"
#include "src/cmd/command.h"
#include "src/cmd/options.h"

enum { MOST_SIZES = 16, MOST_VALUES = 16, MOST_BACKENDS = 8, METHODS = WINDOWS_GRAM + 1 };

struct qr_size {
    size_t window, n, count;
};

struct qr_bench {
    struct config config;
    struct qr_size sizes[MOST_SIZES];
    size_t size_count, nb[MOST_VALUES], nb_count, counts[MOST_VALUES], count_count;
    double conditions[MOST_VALUES];
    size_t condition_count, stride, group, repeats;
    double limit_seconds;
    bool host_panels, wanted[METHODS];
    char backend[MOST_BACKENDS][CONFIG_TEXT];
    size_t backend_count;
    struct rates rates[2]; /* by enum gemm_device; zero: not measured */
    struct qr_problem problem;
    double naive; /* seconds a window of method naive at its fastest nb, on the same backend; 0: unknown */
    struct table table;
    struct logfile *log;
    struct verdict verdict;
};

/* --- results --- */

/* May rounding make the matrix of the method singular? A Gram matrix has the square of the condition number;
   its Cholesky factorisation is certain to succeed only if n eps times that is below 1 (Higham 2002, Accuracy
   and Stability of Numerical Algorithms, section 10.1). */
static bool may_fail(const struct qr_bench *bench, enum windows_method method) {
    const struct qr_problem *problem = &bench->problem;
    const double condition = pow(problem->condition, method == WINDOWS_GRAM ? 2 : 1);
    return condition * (double)problem->n * dtype_epsilon(problem->dtype) >= 1;
}

/* Returns the seconds of a window; 0 without a result. */
static double run_variant(struct qr_bench *bench, const struct qr_variant *variant) {
    struct qr_time time;
    char label[CONFIG_TEXT + 64];
    snprintf(label, sizeof label, "%s on %s, nb %zu, %zu windows", windows_method_name(variant->method),
             variant->backend, variant->nb, variant->count);
    terminal_progress("%s", label);
    qr_race_run(&bench->problem, &bench->config, variant, &time);
    terminal_clear_progress();
    const bool right = time.outcome == OUTCOME_RIGHT;
    const double seconds = right ? time.seconds.median / (double)time.timed : 0;
    if (right && variant->method == WINDOWS_NAIVE && !(bench->naive > 0 && bench->naive <= seconds))
        bench->naive = seconds;
    cJSON *line = qr_line(&bench->problem, variant, &time, bench->rates, bench->naive);
    bench_print_row(&bench->table, line);
    jsonl_write(bench->log, line);
    fflush(stdout);
    if (time.outcome != OUTCOME_FAILED || !may_fail(bench, variant->method))
        verdict_note(&bench->verdict, time.outcome, label, time.reason);
    return seconds;
}

/* --- sweeps --- */

static struct qr_variant variant_of(const struct qr_bench *bench, const char *backend,
                                    enum windows_method method, size_t count, size_t nb) {
    return (struct qr_variant){.method = method,
                               .backend = backend,
                               .count = count,
                               .group = bench->group,
                               .nb = nb,
                               .host_panels = bench->host_panels,
                               .repeats = bench->repeats,
                               .limit_seconds = bench->limit_seconds};
}

/* All widths with all windows; returns the fastest. */
static size_t sweep_nb(struct qr_bench *bench, const char *backend, enum windows_method method,
                       size_t count) {
    size_t best = bench->nb[0];
    double least = 0;
    for (size_t i = 0; i < bench->nb_count; i++) {
        const struct qr_variant variant = variant_of(bench, backend, method, count, bench->nb[i]);
        const double seconds = run_variant(bench, &variant);
        if (!(seconds > 0) || (least > 0 && least <= seconds)) continue;
        least = seconds;
        best = bench->nb[i];
    }
    return best;
}

/* Fewer windows at the fastest width. A window of method naive takes the same time among any others. */
static void sweep_counts(struct qr_bench *bench, const char *backend, enum windows_method method, size_t most,
                         size_t nb) {
    for (size_t i = 0; i < bench->count_count && method != WINDOWS_NAIVE; i++) {
        const struct qr_variant variant = variant_of(bench, backend, method, bench->counts[i], nb);
        if (bench->counts[i] < most) run_variant(bench, &variant);
    }
}

static void run_backend(struct qr_bench *bench, const char *backend, size_t count) {
    size_t best[METHODS];
    bench->naive = 0;
    for (int method = 0; method < METHODS; method++)
        if (bench->wanted[method])
            best[method] = sweep_nb(bench, backend, (enum windows_method)method, count);
    for (int method = 0; method < METHODS; method++)
        if (bench->wanted[method])
            sweep_counts(bench, backend, (enum windows_method)method, count, best[method]);
}

static void print_size(const struct qr_bench *bench, const struct qr_size *size) {
    const struct qr_problem *problem = &bench->problem;
    terminal_print(
        stdout, 0, "\n%s windows of %s x %s, %s row%s apart, %s, condition %g; one by one %s GFLOP\n",
        text_grouped(size->count).text, text_grouped(size->window).text, text_grouped(size->n).text,
        text_grouped(problem->stride).text, problem->stride == 1 ? "" : "s", dtype_name(problem->dtype),
        problem->condition, text_short(1e-9 * qr_flops_one_by_one(problem, size->count)).text);
}

static enum status run_size(struct qr_bench *bench, const struct qr_size *size, double condition) {
    bench->problem = (struct qr_problem){.dtype = (enum gemm_dtype)bench->config.dtype,
                                         .window = size->window,
                                         .n = size->n,
                                         .stride = bench->stride,
                                         .most = size->count,
                                         .condition = condition,
                                         .seed = (uint64_t)bench->config.seed};
    terminal_progress("drawing %zu windows of %zu x %zu", size->count, size->window, size->n);
    const enum status status = qr_problem_open(&bench->problem);
    terminal_clear_progress();
    if (!status) {
        print_size(bench, size);
        tables_qr(&bench->table, &(struct selection){0});
        table_console_titles(stdout, &bench->table);
        for (size_t b = 0; b < bench->backend_count; b++) run_backend(bench, bench->backend[b], size->count);
        table_console_end(stdout, &bench->table);
        table_close(&bench->table);
    }
    qr_problem_close(&bench->problem);
    return status;
}

/* --- the whole --- */

/* The peak rates of the devices, which shares are of. */
static void measure_rates(struct qr_bench *bench) {
    const int threads = platform_threads((int)bench->config.threads);
    for (size_t i = 0; i < bench->backend_count; i++) {
        const enum gemm_device device = qr_device_of(bench->backend[i]);
        struct rates *rates = &bench->rates[device];
        if (rates->bandwidth > 0 || candidates_rates(&bench->config, device, threads, true, rates)) continue;
        gemm_log_peak(bench->log, device, "", threads, rates);
        terminal_print(stdout, 2, "%s: peak %.0f GFLOP/s f32, %.0f f64, copies %.1f GB/s\n",
                       device == GEMM_ON_CUDA ? "GPU" : "host", 1e-9 * rates->flops[GEMM_F32],
                       1e-9 * rates->flops[GEMM_F64], 1e-9 * rates->bandwidth);
    }
}

static enum status measure(struct qr_bench *bench) {
    enum status status = logfile_open(&bench->log, bench->config.log, false);
    if (status) return status;
    cJSON *header = jsonl_header();
    jsonl_text(header, "command", "bench qr");
    bench_print_machine();
    jsonl_write(bench->log, header);
    measure_rates(bench);
    for (size_t s = 0; s < bench->size_count; s++)
        for (size_t c = 0; c < bench->condition_count && !status; c++)
            status = run_size(bench, &bench->sizes[s], bench->conditions[c]);
    if (!status) bench_print_load();
    return status ? status : verdict_status(&bench->verdict);
}

/* --- flags --- */

static enum status set_sizes(struct qr_bench *bench, const char *sizes, const char *windows) {
    size_t counts[MOST_SIZES], count;
    enum status status = bench_parse_list("windows", windows, MOST_SIZES, counts, &count);
    while (*sizes && !status) {
        struct qr_size *size = &bench->sizes[bench->size_count];
        char word[64], end;
        bench_next_word(&sizes, word, sizeof word);
        if (bench->size_count == MOST_SIZES ||
            sscanf(word, "%8zux%8zu%c", &size->window, &size->n, &end) != 2 || !size->n ||
            size->window < size->n)
            return status_set(STATUS_USAGE,
                              "--sizes must be up to %d sizes ROWSxCOLUMNS with at least as many rows as "
                              "columns, as in 8192x2048,640x128, not '%s'",
                              MOST_SIZES, word);
        if (count) size->count = counts[count == 1 || bench->size_count >= count ? 0 : bench->size_count];
        bench->size_count++;
    }
    if (!status && (!bench->size_count || (count != 1 && count != bench->size_count)))
        status = status_set(STATUS_USAGE, "--windows must be one number, or one for each of --sizes");
    return status;
}

/* A list, or A..B: the first multiple of QR_WIDTH and its doubles up to B. */
static enum status set_nb(struct qr_bench *bench, const char *text) {
    size_t first, last;
    char end;
    enum status status = STATUS_OK;
    if (sscanf(text, "%8zu..%8zu%c", &first, &last, &end) == 2 && first && first <= last) {
        first = (first + QR_WIDTH - 1) / QR_WIDTH * QR_WIDTH;
        for (size_t nb = first; nb <= last && bench->nb_count < MOST_VALUES; nb *= 2)
            bench->nb[bench->nb_count++] = nb;
    } else {
        status = bench_parse_list("nb", text, MOST_VALUES, bench->nb, &bench->nb_count);
    }
    for (size_t i = 0; i < bench->nb_count && !status; i++)
        if (bench->nb[i] > QR_MOST_BLOCK || bench->nb[i] % QR_WIDTH)
            status = status_set(STATUS_USAGE, "--nb must be multiples of %d up to %d, not %zu", QR_WIDTH,
                                QR_MOST_BLOCK, bench->nb[i]);
    if (!status && !bench->nb_count) status = status_set(STATUS_USAGE, "--nb lists nothing");
    return status;
}

static enum status set_counts(struct qr_bench *bench, const char *text) {
    if (text) return bench_parse_list("counts", text, MOST_VALUES, bench->counts, &bench->count_count);
    for (size_t i = 0; i < MOST_VALUES; i++) bench->counts[bench->count_count++] = (size_t)2 << i;
    return STATUS_OK;
}

static enum status set_conditions(struct qr_bench *bench, const char *text) {
    while (*text) {
        char word[32];
        double value = 0;
        bench_next_word(&text, word, sizeof word);
        if (bench->condition_count == MOST_VALUES || !text_parse_real(word, &value) || value < 1 ||
            value > 1e15)
            return status_set(STATUS_USAGE,
                              "--condition must be up to %d numbers from 1 to 1e15, as in 1,1e3, not '%s'",
                              MOST_VALUES, word);
        bench->conditions[bench->condition_count++] = value;
    }
    return bench->condition_count ? STATUS_OK : status_set(STATUS_USAGE, "--condition lists nothing");
}

static enum status set_methods(struct qr_bench *bench, const char *list) {
    for (int method = 0; method < METHODS; method++) bench->wanted[method] = !list;
    while (list && *list) {
        char word[32];
        int method = 0;
        bench_next_word(&list, word, sizeof word);
        while (method < METHODS && strcmp(word, windows_method_name((enum windows_method)method)) != 0)
            method++;
        if (method == METHODS)
            return status_set(STATUS_USAGE, "--methods has no method '%s': naive, common, tree, gram", word);
        bench->wanted[method] = true;
    }
    return STATUS_OK;
}

static enum status set_panel(struct qr_bench *bench, const char *name) {
    bench->host_panels = strcmp(name, "host") == 0;
    if (bench->host_panels || strcmp(name, "device") == 0 || strcmp(name, "auto") == 0) return STATUS_OK;
    return status_set(STATUS_USAGE, "--panel must be host, device or auto, not '%s'", name);
}

static enum status run_bench_qr(int argc, char **argv) {
    static struct qr_bench bench; /* zero */
    static const char *const keys[] = {"threads", "device", "seed", "log", NULL};
    static const struct option_help helps[] = {{"seed", "of the random matrix"}, {NULL, NULL}};
    const char *sizes = "8192x2048,640x128", *windows = "58,64", *nb = "8..128", *counts = NULL,
               *condition = "1", *methods = NULL, *backends = NULL, *dtype = "f32", *stride = NULL,
               *group = NULL, *repeat = NULL, *limit = NULL, *panel = "auto";
    const struct option_extra extras[] = {
        {"sizes", "ROWSxCOLUMNS,..", "of a window; a table for each [8192x2048,640x128]", &sizes},
        {"windows", "P,..", "number of windows: one for all sizes, or one for each [58,64]", &windows},
        {"nb", "NB,..|A..B",
         "columns of a panel, multiples of 16; A..B: the first of them and its doubles [8..128]", &nb},
        {"counts", "P,..", "fewer windows, too, at the fastest nb; none: no others [2,4,8, ..]", &counts},
        {"methods", "NAME,..", "of naive, common, tree, gram [all]", &methods},
        {"backends", "NAME,..", "[openblas, tuned, cublas and cuda-tuned, as far as they are here]",
         &backends},
        {"dtype", "f32|f64", "[f32]", &dtype},
        {"stride", "N", "rows from a window to the next one [1]", &stride},
        {"group", "N", "windows with a common part (methods common, tree) [by the flops]", &group},
        {"panel", "host|device|auto",
         "with a GPU backend: where the panels of common rows are factored; auto: on the device [auto]",
         &panel},
        {"condition", "KAPPA,..", "ratio of the largest to the smallest singular value, about [1]",
         &condition},
        {"repeat", "N", "timed runs of each row, at least; short ones are repeated for 0.2 s [7]", &repeat},
        {"limit-seconds", "S", "naive factors as few windows as take so long in all runs; 0: all [10]",
         &limit},
    };
    const struct option_set set = {
        .usage = "bench qr [--sizes MxN,..] [--windows P,..] [--nb LIST] [--FLAG VALUE]...",
        .details =
            "Times the triangles R of overlapping windows of a random matrix (docs/windows.md), by each "
            "method: every nb with all windows, then fewer windows. Each row is checked before and after it "
            "is timed: |R^T R - A^T A| of three windows, in float64. A time is that of all windows from "
            "rows in memory, R only.",
        .keys = keys,
        .helps = helps,
        OPTION_EXTRAS(extras),
    };
    bool help;
    bench.stride = 1;
    bench.repeats = 7;
    bench.limit_seconds = 10;
    enum status status = options_parse(&set, argc, argv, &bench.config, &help);
    if (status || help) return status;
    status = config_set(&bench.config, "dtype", dtype, FROM_FLAG, "--dtype");
    if (!status) status = set_sizes(&bench, sizes, windows);
    if (!status) status = set_nb(&bench, nb);
    if (!status) status = set_counts(&bench, counts);
    if (!status) status = set_conditions(&bench, condition);
    if (!status) status = set_methods(&bench, methods);
    if (!status) status = set_panel(&bench, panel);
    if (!status) status = bench_parse_count("stride", stride, 1 << 24, &bench.stride);
    if (!status) status = bench_parse_count("group", group, 1 << 24, &bench.group);
    if (!status) status = bench_parse_count("repeat", repeat, QR_MOST_REPEATS, &bench.repeats);
    if (!status) status = bench_parse_real("limit-seconds", limit, &bench.limit_seconds);
    if (!status) status = bench_find_backends(backends, MOST_BACKENDS, bench.backend, &bench.backend_count);
    if (!status) status = options_check_files(&(struct files){0}, &bench.config);
    if (!status) status = backend_prepare_contest(NULL, NULL, 0);
    if (!status) status = measure(&bench);
    return logfile_close(bench.log, status);
}

const struct command bench_qr = {"qr", "R of sliding windows, by method, panel width and number of windows",
                                 run_bench_qr};
