/* ./train bench scaling: a training on an increasing number of threads. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/backend/registry.h"
#include "src/base/jsonl.h"
#include "src/base/platform.h"
#include "src/base/terminal.h"
#include "src/base/text.h"
#include "src/bench/amdahl.h"
#include "src/bench/comparison.h"
#include "src/bench/shapes.h"
#include "src/cmd/backend.h"
#include "src/cmd/bench_ranks.h"
#include "src/cmd/bench_table.h"
#include "src/cmd/command.h"
#include "src/cmd/options.h"

struct scaling {
    struct config config;
    struct dataset_pair data;
    struct comparison comparison;
    struct table table;
    struct logfile *log;
};

/* 1, 2, 4, ... and all cores. */
static void default_threads(char *list, size_t size) {
    const int most = platform_threads(0);
    list[0] = '\0';
    for (int threads = 1; threads < most; threads *= 2) text_append(list, size, "%d,", threads);
    text_append(list, size, "%d", most);
}

/* Every usable host backend that has threads. */
static void default_backends(char *list, size_t size) {
    char why[256];
    list[0] = '\0';
    for (size_t i = 0; i < registry_count(); i++) {
        const struct registry_entry *entry = registry_at(i);
        if (registry_usable(entry, why, sizeof why) && entry->backend->device == GEMM_ON_HOST &&
            entry->backend->set_threads)
            text_append(list, size, "%s%s", list[0] ? "," : "", entry->name);
    }
}

/* Seconds outside products, of the mean epoch. */
static double other_seconds(const struct comparison_row *row) {
    double seconds = 0;
    for (int part = 0; part < PART_COUNT; part++)
        if (profile_is_training((enum profile_part)part)) seconds += row->part[part];
    return seconds - row->gemm[0] - row->gemm[1] - row->gemm[2];
}

static cJSON *row_line(struct scaling *scaling, const struct comparison_row *row,
                       const struct comparison_row *base) {
    static const char *const ops[PROFILE_OPS] = {"gemm_nn", "gemm_tn", "gemm_nt"};
    char name[64];
    shapes_config_name(scaling->config.file, name, sizeof name);
    cJSON *line = jsonl_new("scaling");
    cJSON_AddStringToObject(line, "backend", row->sweep->name);
    cJSON_AddStringToObject(line, "description", row->runs[0].description);
    cJSON_AddStringToObject(line, "config", name);
    cJSON_AddStringToObject(line, "dtype", config_choice("dtype", row->sweep->config.dtype));
    cJSON_AddNumberToObject(line, "threads", row->runs[0].threads);
    jsonl_count(line, "repeats", row->repeats);
    cJSON_AddNumberToObject(line, "epoch_seconds", row->epoch.median);
    cJSON_AddNumberToObject(line, "min_epoch_seconds", row->epoch.min);
    cJSON_AddNumberToObject(line, "max_epoch_seconds", row->epoch.max);
    cJSON_AddBoolToObject(line, "noisy", row->epoch.noisy);
    cJSON_AddBoolToObject(line, "extrapolated", row->extrapolated);
    cJSON *time = cJSON_AddObjectToObject(line, "time");
    for (int op = 0; op < PROFILE_OPS; op++) cJSON_AddNumberToObject(time, ops[op], row->gemm[op]);
    cJSON_AddNumberToObject(time, "other", other_seconds(row));
    cJSON_AddNumberToObject(line, "speedup", base->epoch.median / row->epoch.median);
    cJSON_AddNumberToObject(line, "ideal", (double)row->runs[0].threads / base->runs[0].threads);
    return line;
}

static void write_fit(struct scaling *scaling, const char *backend, const struct amdahl *fit) {
    char name[64];
    shapes_config_name(scaling->config.file, name, sizeof name);
    cJSON *line = jsonl_new("amdahl");
    cJSON_AddStringToObject(line, "backend", backend);
    cJSON_AddStringToObject(line, "config", name);
    cJSON_AddNumberToObject(line, "serial_fraction", fit->serial_fraction);
    cJSON_AddNumberToObject(line, "error", fit->error);
    jsonl_write(scaling->log, line);
}

/* The reference of the speed-ups: the right row with the fewest threads. */
static const struct comparison_row *find_base(const struct comparison_row *rows, size_t count) {
    const struct comparison_row *base = NULL;
    for (size_t i = 0; i < count; i++)
        if (rows[i].outcome == OUTCOME_RIGHT && (!base || rows[i].runs[0].threads < base->runs[0].threads))
            base = &rows[i];
    return base;
}

/* Fits one time of each run: the epochs of a run are too similar to count as independent. */
static enum status report_fit(struct scaling *scaling, const struct comparison_row *rows, size_t count) {
    const size_t most = count * scaling->comparison.repeats;
    double *threads = malloc(2 * (most + 1) * sizeof *threads);
    if (!threads) return status_set(STATUS_FAILED, "out of memory");
    double *seconds = threads + most;
    size_t times = 0;
    for (size_t i = 0; i < count; i++)
        for (size_t r = 0; rows[i].outcome == OUTCOME_RIGHT && r < rows[i].repeats; r++) {
            threads[times] = rows[i].runs[r].threads;
            seconds[times++] = run_epoch_seconds(&rows[i].runs[r]);
        }
    const struct amdahl fit = amdahl_fit(threads, seconds, times);
    free(threads);
    if (fit.one <= 0) return STATUS_OK;
    char error[48] = "% (error unknown: two times)", bound[64] = "";
    if (times > 2) snprintf(error, sizeof error, "+- %.1f %%", 100 * fit.error);
    if (fit.serial_fraction >= 1) {
        snprintf(bound, sizeof bound, ": more threads are not faster");
    } else if (fit.serial_fraction > 0) {
        snprintf(bound, sizeof bound, ", so at most %.1f times as fast", 1 / fit.serial_fraction);
    }
    terminal_print(stdout, 4, "  Amdahl's law: serial fraction %.1f %s%s\n\n", 100 * fit.serial_fraction,
                   error, bound);
    write_fit(scaling, rows[0].sweep->name, &fit);
    return STATUS_OK;
}

/* The rows of one backend. */
static enum status report_backend(struct scaling *scaling, const struct comparison_row *rows, size_t count) {
    const struct comparison_row *base = find_base(rows, count);
    for (size_t i = 0; i < count; i++) {
        const struct comparison_row *row = &rows[i];
        if (row->outcome == OUTCOME_RIGHT) {
            cJSON *line = row_line(scaling, row, base);
            bench_print_row(&scaling->table, line);
            jsonl_write(scaling->log, line);
        } else {
            terminal_print(stdout, 4, "%-30s %s: %s\n", row->sweep->label, outcome_words(row->outcome),
                           row->reason);
        }
    }
    if (base && base->runs[0].threads > 1)
        printf("%-14s speed-up: against %d threads\n", "", base->runs[0].threads);
    return report_fit(scaling, rows, count);
}

static void write_header(struct scaling *scaling) {
    cJSON *header = jsonl_header();
    cJSON_AddStringToObject(header, "command", "bench scaling");
    cJSON_AddStringToObject(header, "data", scaling->data.name);
    jsonl_write(scaling->log, header);
}

static enum status report(struct scaling *scaling) {
    enum status status = STATUS_OK;
    const struct comparison *comparison = &scaling->comparison;
    char layers[CONFIG_TEXT];
    config_value(&scaling->config, config_key_find("layers"), layers, sizeof layers);
    bench_print_machine();
    terminal_print(stdout, 2, "%s, batches of %lld, data %s\n\n", layers,
                   (long long)scaling->config.batch_size, scaling->data.name);
    tables_scaling(&scaling->table, &(struct selection){0});
    table_console_titles(stdout, &scaling->table);
    write_header(scaling);
    for (size_t first = 0, next; first < comparison->count && !status; first = next) {
        next = first + 1;
        while (next < comparison->count &&
               strcmp(comparison->rows[next].sweep->name, comparison->rows[first].sweep->name) == 0)
            next++;
        status = report_backend(scaling, &comparison->rows[first], next - first);
    }
    table_console_end(stdout, &scaling->table);
    terminal_print(stdout, 0,
                   "epoch: seconds of training alone, median of %zu interleaved repeat%s (extrapolated: from "
                   "fewer steps; noisy: uncertain by more than 5 %%)\n",
                   comparison->repeats, comparison->repeats == 1 ? "" : "s");
    bench_print_load();
    table_close(&scaling->table);
    return status;
}

static enum status run_scaling(struct scaling *scaling, const struct sweep_lists *lists,
                               const char *timeout) {
    struct sweep sweep;
    enum status status =
        dataset_load(&scaling->data, scaling->config.data, config_dataset(&scaling->config, DATASET_ALL));
    if (!status) status = config_check_training(&scaling->config, &scaling->data);
    if (!status) status = backend_prepare_contest(&scaling->data, timeout, scaling->comparison.limit_seconds);
    if (!status) status = sweep_open(&sweep, &scaling->config, lists);
    if (status) return status;
    status = logfile_open(&scaling->log, scaling->config.log, false);
    scaling->comparison.config = &scaling->config;
    scaling->comparison.data = &scaling->data;
    scaling->comparison.progress = bench_print_progress;
    if (!status) status = backend_check_plugins(&sweep, true);
    bench_tell_most(&scaling->comparison, sweep.count);
    if (!status) status = comparison_run(&scaling->comparison, &sweep);
    terminal_clear_progress();
    if (!status) status = report(scaling);
    if (!status) status = comparison_verdict(&scaling->comparison);
    status = logfile_close(scaling->log, status);
    comparison_close(&scaling->comparison);
    sweep_close(&sweep);
    return status;
}

/* `threads`: of each process; NULL: not given. */
static enum status run_ranks(struct scaling *scaling, const char *ranks, const char *threads) {
    if (threads && (!text_parse_int(threads, &scaling->config.threads) || scaling->config.threads < 1))
        return status_set(STATUS_USAGE, "with --ranks, --threads is one number, of each process; not '%s'",
                          threads);
    enum status status = logfile_open(&scaling->log, scaling->config.log, false);
    if (!status) status = bench_ranks(&scaling->config, ranks, scaling->comparison.repeats, scaling->log);
    return logfile_close(scaling->log, status);
}

static enum status run_bench_scaling(int argc, char **argv) {
    static struct scaling scaling; /* zero */
    static struct files files;
    char threads[256], backends[256];
    const char *repeat = NULL, *limit = NULL, *timeout = NULL, *ranks = NULL;
    struct sweep_lists lists = {.backends = backends, .threads = threads};
    const struct option_extra extras[] = {
        {"backends", "A,B,..", "host backends with threads [all of them]", &lists.backends},
        {"threads", "N,..", "thread counts [1,2,4,.. and all cores]", &lists.threads},
        {"ranks", "N,..",
         "instead of threads: processes of this host, connected by sockets (docs/scaling.md)", &ranks},
        {"repeat", "N", "trainings of each, interleaved [3]", &repeat},
        {"limit-seconds", "S", "limit of training for each row and repeat; 0: none [10]", &limit},
        BACKEND_TIMEOUT_FLAG(&timeout),
    };
    const struct option_set set = {
        .usage =
            "bench scaling [--backends A,B,..] [--threads 1,2,..] [--ranks 1,2,..] [--config FILE] [--KEY "
            "VALUE]...",
        .details = "Trains on each number of threads: seconds of an epoch by part, speed-up, ideal speed-up, "
                   "and the serial "
                   "fraction of Amdahl's law, fitted to the epoch time of each run. Verified as in "
                   "'./train compare'.\n"
                   "No effect here: " OPTIONS_OF_TRAIN ".",
        OPTION_EXTRAS(extras),
        .files = &files,
    };
    bool help;
    default_threads(threads, sizeof threads);
    default_backends(backends, sizeof backends);
    enum status status = options_parse(&set, argc, argv, &scaling.config, &help);
    if (status || help) return status;
    if (!lists.backends[0])
        return status_set(STATUS_UNAVAILABLE, "no usable backend has threads: build with OpenMP or OpenBLAS");
    scaling.comparison.repeats = 3;
    scaling.comparison.limit_seconds = 10;
    status = bench_parse_count("repeat", repeat, COMPARISON_MOST_REPEATS, &scaling.comparison.repeats);
    if (!status) status = bench_parse_real("limit-seconds", limit, &scaling.comparison.limit_seconds);
    if (!status) status = options_check_files(&files, &scaling.config);
    if (!status)
        status = ranks ? run_ranks(&scaling, ranks, lists.threads == threads ? NULL : lists.threads)
                       : run_scaling(&scaling, &lists, timeout);
    dataset_pair_free(&scaling.data);
    return status;
}

const struct command bench_scaling = {"scaling", "training on 1, 2, 4, .. threads, and Amdahl's law",
                                      run_bench_scaling};
