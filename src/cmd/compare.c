/* ./train compare: the same training on several backends, side by side. */
#include <stdio.h>
#include <string.h>

#include "src/backend/registry.h"
#include "src/base/jsonl.h"
#include "src/base/platform.h"
#include "src/base/terminal.h"
#include "src/base/text.h"
#include "src/bench/comparison.h"
#include "src/bench/comparison_log.h"
#include "src/cmd/backend.h"
#include "src/cmd/bench_table.h"
#include "src/cmd/command.h"
#include "src/cmd/options.h"
#include "src/report/tables.h"

enum { LABEL = 22, INDENT = 10 };

/* --- the table --- */

static void print_header(const struct comparison *comparison) {
    const struct config *config = comparison->config;
    const struct agreement *agreement = &comparison->agreement;
    char layers[CONFIG_TEXT];
    config_value(config, config_key_find("layers"), layers, sizeof layers);
    printf("Tessera %s, commit %s\n", TESSERA_VERSION, platform_commit());
    terminal_print(stdout, INDENT,
                   "training  %s%s%s, batches of %s, %lld epoch%s, lr %g, seed %lld; data %s\n", layers,
                   config->file[0] ? ", " : "", config->file, text_grouped((uint64_t)config->batch_size).text,
                   (long long)config->epochs, config->epochs == 1 ? "" : "s", config->learning_rate,
                   (long long)config->seed, comparison->data->name);
    terminal_print(
        stdout, INDENT,
        "agreement each of %zu steps of %zu images against float64 on the reference loops, from the same "
        "state\n",
        agreement->steps, agreement->rows);
    printf("times     %zu interleaved repeat%s%s", comparison->repeats, comparison->repeats == 1 ? "" : "s",
           comparison->limit_seconds > 0 ? "" : "\n");
    if (comparison->limit_seconds > 0)
        printf(", each of at most %g s of training\n", comparison->limit_seconds);
    terminal_print(stdout, INDENT, "machine   %s; %s; %s; %s %s\n\n", platform_cpu(), platform_system(),
                   platform_load_text().text, platform_compiler(), platform_flags());
}

static enum status print_rows(const struct records *records, bool energy) {
    struct selections all;
    const enum status status = selections_of(&all, records, "compare", NULL);
    if (!status) {
        struct table table;
        tables_compare(&table, &all.list[0]);
        table_console(stdout, &table);
        table_close(&table);
    }
    if (!status && energy) {
        struct table table;
        tables_energy(&table, &all.list[0]);
        printf("\n");
        table_console(stdout, &table);
        table_close(&table);
    }
    selections_free(&all);
    return status;
}

static void print_trace(const struct comparison_row *row) {
    const struct trace *trace = &row->trace;
    if (!trace->step) return;
    terminal_print(stdout, LABEL + 3, "  %-*s %s: step %zu, layer %zu, %s (%.1e of its size; %.0e allowed)\n",
                   LABEL, row->sweep->label, trace->drifts ? "first past its tolerance" : "drifts most",
                   trace->step, trace->layer, trace->tensor, trace->relative, trace->tolerance);
}

static void print_notes(const struct comparison *comparison, const char *wanted,
                        const struct comparison_row *baseline) {
    bool eager = false;
    terminal_print(
        stdout, 0,
        "\nepoch: seconds of training alone, over all repeats (extrapolated: from fewer steps than an epoch "
        "has; noisy: the median is uncertain by more than 5 %%); transfer/total: (host to device + device "
        "to host) / training; GFLOP/s: inside products; NN, TN, NT: an epoch's forward, weight gradient "
        "and input gradient products; drift: the largest difference of a step's loss; speed-up: against "
        "%s%s\n",
        baseline ? baseline->sweep->label : wanted, baseline ? "" : ", which has no right row here: none");
    if (comparison->energy)
        terminal_print(
            stdout, 0,
            "J an epoch: of the GPU alone (NVML), or of the CPU's packages (RAPL), over repeated epochs, "
            "less the idle power that was measured before them; with idle: without this subtraction\n");
    for (size_t i = 0; i < comparison->count; i++) eager |= comparison->rows[i].ops.images > 0;
    printf("at the start: %s\n", platform_load_text().text);
    if (comparison->repeats == 1) printf("one repeat: the spread between repeats is unknown\n");
    if (eager) printf("NN, TN, NT and GFLOP/s of a graph are those of one more epoch, op by op\n");
    printf("\n");
    for (size_t i = 0; i < comparison->count; i++)
        if (comparison->rows[i].outcome == OUTCOME_RIGHT)
            terminal_print(stdout, LABEL + 3, "  %-*s %s, %s, engine %s, residency %s\n", LABEL,
                           comparison->rows[i].sweep->label, comparison->rows[i].runs[0].description,
                           comparison->rows[i].runs[0].precision, comparison->rows[i].runs[0].engine,
                           comparison->rows[i].runs[0].residency);
    for (size_t i = 0; i < comparison->count; i++) print_trace(&comparison->rows[i]);
}

/* --- the command --- */

/* Fails if a baseline that the user named is not among the rows. */
static enum status check_baseline(const struct sweep *sweep, const char *name, bool given) {
    for (size_t i = 0; i < sweep->count; i++)
        if (sweep_row_is(&sweep->rows[i], name)) return STATUS_OK;
    return given
               ? status_set(STATUS_USAGE, "--baseline '%s' is not among the backends that are compared", name)
               : STATUS_OK;
}

static enum status run_rows(struct comparison *comparison, struct sweep *sweep, const char *baseline_name) {
    struct logfile *log;
    enum status status = logfile_open(&log, comparison->config->log, false);
    if (status) return status;
    bench_tell_most(comparison, sweep->count);
    status = comparison_run(comparison, sweep);
    terminal_clear_progress();
    const struct comparison_row *baseline = comparison_find(comparison, baseline_name);
    struct records records = {0};
    if (!status) status = comparison_records(&records, comparison, baseline);
    records_write(&records, log);
    if (!status) print_header(comparison);
    if (!status) status = print_rows(&records, comparison->energy);
    if (!status) print_notes(comparison, baseline_name, baseline);
    if (!status) status = comparison_verdict(comparison);
    records_free(&records);
    return logfile_close(log, status);
}

static enum status compare(struct comparison *comparison, const struct sweep_lists *lists,
                           const char *baseline_name, bool baseline_given) {
    struct sweep sweep;
    enum status status = sweep_open(&sweep, comparison->config, lists);
    if (status) return status;
    status = check_baseline(&sweep, baseline_name, baseline_given);
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

static enum status parse_energy(const char *energy, struct comparison *comparison) {
    comparison->energy = energy && strcmp(energy, "on") == 0;
    return !energy || comparison->energy || strcmp(energy, "off") == 0
               ? STATUS_OK
               : status_set(STATUS_USAGE, "--energy must be on or off, not '%s'", energy);
}

static enum status run_compare(int argc, char **argv) {
    static struct config config;
    static struct files files;
    struct sweep_lists lists = {0};
    const char *repeat = NULL, *limit = NULL, *baseline = NULL, *trace = NULL, *timeout = NULL,
               *energy = NULL;
    const struct option_extra extras[] = {
        {"backends", "A,B,..",
         "the GEMMs to compare, each with its options: tuned,tuned:isa=avx2; 'all': each usable one [all]",
         &lists.backends},
        {"threads", "N,..", "thread counts of host backends, each a row", &lists.threads},
        {"dtype", "f32,f64", "of weights and arithmetic, each a row", &lists.dtypes},
        {"precision", "f32,..", "of float32 runs (f32, tf32, bf16, fp16), each a row", &lists.precisions},
        {"engine", "auto,..", "how steps are issued (auto, eager, graph, fused), each a row", &lists.engines},
        {"residency", "device,host", "where the tensors of GPU backends live, each a row",
         &lists.residencies},
        {"pin", "off,on", "page-locked host memory, with residency host, each a row", &lists.pins},
        {"repeat", "N", "trainings of each row, interleaved [3]", &repeat},
        {"limit-seconds", "S",
         "limit of training for each row and repeat; a slower row stops after fewer steps, and its epoch is "
         "extrapolated; 0: none [60]",
         &limit},
        BACKEND_TIMEOUT_FLAG(&timeout),
        {"baseline", "NAME", "the backend that speed-ups are relative to [openblas]", &baseline},
        {"energy", "on|off",
         "on: also measure the energy of an epoch, over 10 s or more of repeated epochs after 4 s of idle "
         "power, of GPUs by NVML and of CPUs by RAPL [off]",
         &energy},
        {"trace", NULL,
         "name for every row the tensor that drifts first or most (always done for a row with a wrong loss "
         "or update)",
         &trace},
    };
    const struct option_set set = {
        .usage = "compare [--config FILE] [--backends A,B,..] [--KEY VALUE]...",
        .details =
            "Trains the same network from the same seed on each backend, interleaved, and prints "
            "accuracy, epoch times, transfers "
            "and speed-up. Each backend is verified on the shapes of the training, before and after; losses "
            "and updates of its "
            "first steps are compared with float64, each step from the same state. One that is wrong gets no "
            "time, and the "
            "command exits with 5 (with 1 if one fails).\n"
            "Each runs in a process of its own: one that exits, crashes or hangs is wrong, and the others go "
            "on.\n"
            "No effect here: " OPTIONS_OF_TRAIN ".\n"
            "  ./train compare --config validation --backends serial,openmp --threads 1,2\n"
            "  ./train compare --backends cublas,cuda-tuned --residency device,host",
        OPTION_EXTRAS(extras),
        .files = &files,
    };
    bool help;
    enum status status = options_parse(&set, argc, argv, &config, &help);
    if (status || help) return status;
    if (!lists.backends && config.origin[config_key_find("backend") - config_key_at(0)] == FROM_DEFAULT)
        lists.backends = "all";
    struct comparison comparison = {
        .config = &config, .trace = trace != NULL, .progress = bench_print_progress};
    struct dataset_pair data = {0};
    status = parse_numbers(repeat, limit, &comparison);
    if (!status) status = parse_energy(energy, &comparison);
    if (!status) status = options_check_files(&files, &config);
    if (!status) status = dataset_load(&data, config.data, config_dataset(&config, DATASET_ALL));
    comparison.data = &data;
    if (!status) status = config_check_training(&config, &data);
    if (!status) status = backend_prepare_contest(&data, timeout, comparison.limit_seconds);
    if (!status) status = compare(&comparison, &lists, baseline ? baseline : "openblas", baseline != NULL);
    dataset_pair_free(&data);
    return status;
}

const struct command command_compare = {"compare", "train on several backends, side by side", run_compare};
