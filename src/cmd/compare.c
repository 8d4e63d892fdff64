/* ./train compare: the same training on several backends, side by side. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "src/backend/registry.h"
#include "src/base/jsonl.h"
#include "src/base/platform.h"
#include "src/base/text.h"
#include "src/bench/comparison.h"
#include "src/bench/comparison_log.h"
#include "src/cmd/backend.h"
#include "src/cmd/command.h"
#include "src/cmd/console.h"
#include "src/cmd/options.h"

enum { LABEL = 30 };

static void on_progress(const struct comparison_row *row, const char *what) {
    if (!isatty(STDERR_FILENO)) return;
    fprintf(stderr, "\r\033[K%s%s%s", row ? row->sweep->label : "", row ? ": " : "", what);
    fflush(stderr);
}

/* --- the table --- */

static void print_header(const struct comparison *comparison) {
    const struct config *config = comparison->config;
    const struct agreement *agreement = &comparison->agreement;
    char layers[CONFIG_TEXT];
    config_value(config, config_key_find("layers"), layers, sizeof layers);
    printf("Tessera %s, commit %s\n", TESSERA_VERSION, platform_commit());
    printf("training  %s%s%s, batches of %s, %lld epoch%s, lr %g, seed %lld; data %s\n", layers,
           config->file[0] ? ", " : "", config->file, text_grouped((uint64_t)config->batch_size).text,
           (long long)config->epochs, config->epochs == 1 ? "" : "s", config->learning_rate,
           (long long)config->seed, comparison->data->name);
    printf("agreement the losses of %zu steps of %zu images against float64 on the reference loops\n",
           agreement->steps, agreement->rows);
    printf("times     %zu repeat%s in turn%s", comparison->repeats, comparison->repeats == 1 ? "" : "s",
           comparison->limit_seconds > 0 ? "" : "\n");
    if (comparison->limit_seconds > 0)
        printf(", each of at most %g s of training\n", comparison->limit_seconds);
    printf("machine   %s; %s; %s %s\n\n", platform_cpu(), platform_system(), platform_compiler(),
           platform_flags());
}

static void print_row(const struct comparison_row *row, double baseline) {
    const struct run_result *run = &row->runs[0];
    printf("%-*s %6.2f +- %4.2f %%%s  %s%9s%s", LABEL, row->sweep->label,
           100 * (double)run->test.correct / (double)run->test.total, console_binomial_error(&run->test),
           run->limited ? "*" : " ", row->extrapolated ? "~" : " ", text_seconds(row->epoch.median).text,
           row->epoch.noisy ? "?" : " ");
    printf(" %9s %9s", text_seconds(row->epoch.min).text, text_seconds(row->epoch.max).text);
    for (int op = 0; op < PROFILE_OPS; op++) printf(" %9s", text_seconds(row->gemm[op]).text);
    printf("  %6.3f", row->transfer_ratio);
    if (baseline > 0) {
        printf(" %8.2f", baseline / row->epoch.median);
    } else {
        printf(" %8s", "-");
    }
    printf(" %12s %8.0f  %7.1e\n",
           text_grouped((uint64_t)((double)run->images_per_epoch / row->epoch.median)).text,
           1e-9 * row->gemm_rate, row->drift.relative);
}

static void print_rows(const struct comparison *comparison, const struct comparison_row *baseline) {
    printf("%-*s %16s %11s %9s %9s %9s %9s %9s %7s %8s %12s %8s  %7s\n", LABEL, "backend", "test accuracy ",
           "epoch   ", "least", "most", "NN", "TN", "NT", "copies", "speed-up", "images/s", "GFLOP/s",
           "drift");
    for (size_t i = 0; i < comparison->count; i++)
        if (comparison->rows[i].outcome == OUTCOME_RIGHT)
            print_row(&comparison->rows[i], baseline ? baseline->epoch.median : 0);
}

static void print_trace(const struct comparison_row *row) {
    const struct trace *trace = &row->trace;
    if (!trace->step) return;
    printf("  %-*s %s: step %zu, layer %zu, %s (%.1e of its size; %.0e allowed)\n", LABEL, row->sweep->label,
           trace->drifts ? "first past its tolerance" : "drifts most", trace->step, trace->layer,
           trace->tensor, trace->relative, trace->tolerance);
}

/* What a reader of the table must know, row by row. */
static void print_notes(const struct comparison *comparison, const char *wanted,
                        const struct comparison_row *baseline) {
    bool limited = false, extrapolated = false, noisy = false, apart = false;
    printf("\nepoch: seconds of training alone, median of all repeats; NN, TN, NT: an epoch's forward, "
           "weight gradient and input "
           "gradient\nproducts; copies: (host to device + device to host) / training; GFLOP/s: inside "
           "products; drift: the largest "
           "relative\ndifference of a loss; speed-up: against %s%s\n",
           baseline ? baseline->sweep->label : wanted,
           baseline ? "" : ", which is not among the rows that are right: none");
    for (size_t i = 0; i < comparison->count; i++) {
        const struct comparison_row *row = &comparison->rows[i];
        if (row->outcome != OUTCOME_RIGHT) continue;
        limited |= row->runs[0].limited;
        extrapolated |= row->extrapolated;
        noisy |= row->epoch.noisy;
        apart |= row->ops.images > 0;
    }
    if (limited) printf("* after the steps that --limit-seconds allowed, not the whole training\n");
    if (extrapolated) printf("~ extrapolated from fewer steps than an epoch has\n");
    if (noisy) printf("? noisy: the median is uncertain by more than 5 %%\n");
    if (comparison->repeats == 1) printf("one repeat: how far another would be off is not known\n");
    if (apart) printf("NN, TN, NT and GFLOP/s of a graph are those of one more epoch, op by op\n");
    printf("\n");
    for (size_t i = 0; i < comparison->count; i++)
        if (comparison->rows[i].outcome == OUTCOME_RIGHT)
            printf("  %-*s %s, %s, engine %s, residency %s\n", LABEL, comparison->rows[i].sweep->label,
                   comparison->rows[i].runs[0].description, comparison->rows[i].runs[0].precision,
                   comparison->rows[i].runs[0].engine, comparison->rows[i].runs[0].residency);
    for (size_t i = 0; i < comparison->count; i++) print_trace(&comparison->rows[i]);
    for (size_t i = 0; i < comparison->count; i++)
        if (comparison->rows[i].outcome != OUTCOME_RIGHT)
            printf("  %-*s %s: %s\n", LABEL, comparison->rows[i].sweep->label,
                   outcome_words(comparison->rows[i].outcome), comparison->rows[i].reason);
}

/* --- the command --- */

/* Is the baseline one of the rows? Only a name that was asked for must be. */
static enum status check_baseline(const struct sweep *sweep, const char *name, bool asked) {
    for (size_t i = 0; i < sweep->count; i++)
        if (sweep->rows[i].backend && strcmp(sweep->rows[i].backend->name, name) == 0) return STATUS_OK;
    return asked
               ? status_set(STATUS_USAGE, "--baseline '%s' is not among the backends that are compared", name)
               : STATUS_OK;
}

static enum status run_rows(struct comparison *comparison, struct sweep *sweep, const char *baseline_name) {
    const char *path = comparison->config->log;
    FILE *log;
    enum status status = jsonl_open(&log, path);
    if (status) return status;
    status = comparison_run(comparison, sweep);
    on_progress(NULL, "");
    if (status == STATUS_OK) {
        const struct comparison_row *baseline = comparison_find(comparison, baseline_name);
        print_header(comparison);
        print_rows(comparison, baseline);
        print_notes(comparison, baseline_name, baseline);
        if (log) comparison_write(log, comparison, baseline);
        status = comparison_verdict(comparison);
    }
    return jsonl_close(log, path, status);
}

static enum status compare(struct comparison *comparison, const struct sweep_lists *lists,
                           const char *baseline_name, bool baseline_asked) {
    struct sweep sweep;
    enum status status = sweep_open(&sweep, comparison->config, lists);
    if (status) return status;
    status = check_baseline(&sweep, baseline_name, baseline_asked);
    if (!status) status = backend_check_plugins(&sweep, true);
    if (!status) status = run_rows(comparison, &sweep, baseline_name);
    comparison_close(comparison);
    sweep_close(&sweep);
    return status;
}

static enum status parse_numbers(const char *repeat, const char *limit, struct comparison *comparison) {
    int64_t repeats = 3;
    double seconds = 60;
    if (repeat && (!text_parse_int(repeat, &repeats) || repeats < 1 || repeats > COMPARISON_MOST_REPEATS))
        return status_set(STATUS_USAGE, "--repeat must be a whole number from 1 to %d, not '%s'",
                          COMPARISON_MOST_REPEATS, repeat);
    if (limit && (!text_parse_real(limit, &seconds) || seconds < 0))
        return status_set(STATUS_USAGE, "--limit-seconds must be a number from 0, not '%s'", limit);
    comparison->repeats = (size_t)repeats;
    comparison->limit_seconds = seconds;
    return STATUS_OK;
}

static enum status run_compare(int argc, char **argv) {
    static struct config config;
    struct sweep_lists lists = {0};
    const char *repeat = NULL, *limit = NULL, *baseline = NULL, *trace = NULL;
    const struct option_extra extras[] = {
        {"backends", "A,B,..", "the GEMMs to compare, or 'all' that can be used here [all]", &lists.backends},
        {"threads", "N,..", "of host backends, each count a row", &lists.threads},
        {"dtype", "f32,f64", "of weights and arithmetic, each a row", &lists.dtypes},
        {"precision", "f32,..", "of float32 runs (f32, tf32, bf16), each a row", &lists.precisions},
        {"engine", "auto,..", "how steps are issued (auto, eager, graph, fused), each a row", &lists.engines},
        {"residency", "device,host", "where the tensors of GPU backends live, each a row",
         &lists.residencies},
        {"pin", "off,on", "page-locked host memory, with residency host, each a row", &lists.pins},
        {"repeat", "N", "trainings of each row, in turn [3]", &repeat},
        {"limit-seconds", "S",
         "of training, for each row and repeat; slower ones do fewer steps, and say so; 0: none [60]",
         &limit},
        {"baseline", "NAME", "the backend that speed-ups are against [openblas]", &baseline},
        {"trace", NULL,
         "name for every row the tensor that drifts first or most (always done for one whose losses drift)",
         &trace},
    };
    const struct option_set set = {
        .usage = "compare [--config FILE] [--backends A,B,..] [--KEY VALUE]...",
        .details =
            "Trains the same network from the same seed on each backend, in turn, and prints accuracy, epoch "
            "times, transfers\n"
            "and speed-up. Each backend is verified on the very shapes of the training, before and after, "
            "and its losses are\n"
            "compared with a float64 run: one that is wrong gets no time, and the command exits with 5 (with "
            "1 "
            "if one fails).\n"
            "  ./train compare --config configs/validation.cfg --backends serial,openmp,openblas --threads "
            "1,2\n"
            "  ./train compare --backends cublas,cuda-tuned --residency device,host",
        .extras = extras,
        .extra_count = sizeof extras / sizeof *extras,
    };
    bool help;
    enum status status = options_parse(&set, argc, argv, &config, &help);
    if (status || help) return status;
    if (!lists.backends && config.origin[config_key_find("backend") - config_key_at(0)] == FROM_DEFAULT)
        lists.backends = "all";
    struct comparison comparison = {.config = &config, .trace = trace != NULL, .progress = on_progress};
    struct dataset_pair data = {0};
    status = parse_numbers(repeat, limit, &comparison);
    if (!status) status = dataset_load(&data, config.data, DATASET_ALL);
    comparison.data = &data;
    if (!status) status = config_check_data(&config, &data);
    if (!status) status = compare(&comparison, &lists, baseline ? baseline : "openblas", baseline != NULL);
    dataset_pair_free(&data);
    return status;
}

const struct command command_compare = {"compare", "train on several backends, side by side", run_compare};
