/* ./train bench breakeven: which backend wins, over batch and hidden size? */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/jsonl.h"
#include "src/base/platform.h"
#include "src/base/terminal.h"
#include "src/base/text.h"
#include "src/bench/comparison.h"
#include "src/cmd/backend.h"
#include "src/cmd/bench_table.h"
#include "src/cmd/command.h"
#include "src/cmd/options.h"
#include "src/report/cells.h"

enum { MOST_SIDE = 16 };

/* The outcome of a row of the sweep over all cells so far. */
struct standing {
    enum outcome outcome;
    char reason[640], gpu[256]; /* gpu: "" on the host */
};

/* The fastest row of a cell. */
struct map_cell {
    size_t winner;             /* its index, or the number of rows if none */
    struct statistics seconds; /* of its step */
};

struct breakeven {
    struct config config;
    struct dataset_pair data;
    struct sweep sweep;
    size_t batches[MOST_SIDE], batch_count, hidden[MOST_SIDE], hidden_count;
    size_t repeats;
    double cell_seconds;
    struct logfile *log;
    struct standing *standing;                   /* [rows of the sweep] */
    struct map_cell cells[MOST_SIDE][MOST_SIDE]; /* [batch][hidden] */
    struct verdict verdict;
    struct table table; /* on the console */
};

/* The config of a cell: one hidden layer. */
static struct config cell_config(const struct breakeven *breakeven, size_t row, size_t batch, size_t hidden) {
    struct config config = breakeven->sweep.rows[row].config;
    const struct layer_list *given = &breakeven->config.layers;
    config.layers =
        (struct layer_list){.count = 3, .width = {given->width[0], hidden, given->width[given->count - 1]}};
    config.batch_size = (int64_t)batch;
    config.epochs = 1000000; /* cell_seconds ends the run */
    config.schedule = SCHEDULE_CONSTANT;
    config.learning_rate = 1e-3; /* small, so that no loss diverges: only time matters */
    return config;
}

/* Seconds of a step, 0 if there is no result. */
static enum status time_cell(struct breakeven *breakeven, size_t row, size_t batch, size_t hidden,
                             double *seconds) {
    struct contest_request request = {.task = CONTEST_TRAIN,
                                      .config = cell_config(breakeven, row, batch, hidden),
                                      .limits = {.seconds = breakeven->cell_seconds}};
    struct contest_reply reply;
    struct run_result *result = &reply.run;
    const enum status status =
        contestant_ask(breakeven->sweep.rows[row].contestant, "train", &request, &reply);
    if (status) return status;
    snprintf(breakeven->standing[row].gpu, sizeof breakeven->standing[row].gpu, "%s", result->gpu);
    *seconds = result->images ? result->seconds * (double)result->batch / (double)result->images : 0;
    run_close(result);
    return STATUS_OK;
}

/* A backend that is wrong in one cell, or cannot be used, is excluded from all later cells. A failure
   excludes it from that cell only. */
static bool is_included(const struct breakeven *breakeven, size_t row) {
    const enum outcome outcome = breakeven->standing[row].outcome;
    return outcome == OUTCOME_RIGHT || outcome == OUTCOME_FAILED;
}

/* Is the status OK? If not, records it and its message as the standing of the row. */
static bool judge(struct breakeven *breakeven, size_t row, enum status status) {
    struct standing *standing = &breakeven->standing[row];
    if (!status) return true;
    standing->outcome = outcome_of(status);
    snprintf(standing->reason, sizeof standing->reason, "%s", status_message());
    verdict_note(&breakeven->verdict, standing->outcome, breakeven->sweep.rows[row].label, standing->reason);
    return false;
}

static enum status verify_cell(struct breakeven *breakeven, size_t row, size_t batch, size_t hidden,
                               enum problem_inputs inputs) {
    struct contest_request request = {.task = CONTEST_VERIFY,
                                      .config = cell_config(breakeven, row, batch, hidden),
                                      .inputs = inputs,
                                      .last = true};
    struct contest_reply reply;
    return contestant_ask(breakeven->sweep.rows[row].contestant,
                          inputs == PROBLEM_INTEGERS ? "verify" : "verify again", &request, &reply);
}

static void write_cell(struct breakeven *breakeven, size_t batch, size_t hidden,
                       const struct statistics *seconds, size_t winner) {
    for (size_t row = 0; row < breakeven->sweep.count; row++) {
        if (seconds[row].median <= 0) continue;
        cJSON *line = jsonl_new("breakeven");
        jsonl_count(line, "batch", batch);
        jsonl_count(line, "hidden", hidden);
        cJSON_AddStringToObject(line, "backend", breakeven->sweep.rows[row].label);
        cJSON_AddStringToObject(line, "dtype",
                                config_choice("dtype", breakeven->sweep.rows[row].config.dtype));
        jsonl_text(line, "gpu", breakeven->standing[row].gpu);
        jsonl_count(line, "repeats", seconds[row].count);
        cJSON_AddNumberToObject(line, "step_seconds", seconds[row].median);
        cJSON_AddNumberToObject(line, "min_step_seconds", seconds[row].min);
        cJSON_AddNumberToObject(line, "max_step_seconds", seconds[row].max);
        cJSON_AddBoolToObject(line, "noisy", seconds[row].noisy);
        cJSON_AddBoolToObject(line, "wins", row == winner);
        jsonl_write(breakeven->log, line);
    }
}

/* Verifies all rows, times them interleaved, and verifies them again. seconds[row] is zero if a step
   failed. */
static void time_rows(struct breakeven *breakeven, size_t batch, size_t hidden, double *times, bool *in,
                      struct statistics *seconds) {
    const size_t rows = breakeven->sweep.count, repeats = breakeven->repeats;
    for (size_t row = 0; row < rows; row++)
        in[row] = is_included(breakeven, row) &&
                  judge(breakeven, row, verify_cell(breakeven, row, batch, hidden, PROBLEM_INTEGERS));
    for (size_t repeat = 0; repeat < repeats; repeat++)
        for (size_t row = 0; row < rows; row++)
            in[row] =
                in[row] && judge(breakeven, row,
                                 time_cell(breakeven, row, batch, hidden, &times[row * repeats + repeat]));
    for (size_t row = 0; row < rows; row++)
        if (in[row] && judge(breakeven, row, verify_cell(breakeven, row, batch, hidden, PROBLEM_REALS)))
            seconds[row] = statistics_of(times + row * repeats, repeats);
}

static enum status measure_cell(struct breakeven *breakeven, size_t b, size_t h) {
    const size_t rows = breakeven->sweep.count, batch = breakeven->batches[b], hidden = breakeven->hidden[h];
    double *times = calloc(rows * breakeven->repeats, sizeof *times);
    bool *in = calloc(rows, sizeof *in);
    struct statistics *seconds = calloc(rows, sizeof *seconds);
    struct map_cell *cell = &breakeven->cells[b][h];
    const bool memory = times && in && seconds;
    if (memory) {
        time_rows(breakeven, batch, hidden, times, in, seconds);
        *cell = (struct map_cell){.winner = rows};
        for (size_t row = 0; row < rows; row++) {
            const double median = seconds[row].median;
            if (median > 0 && (cell->winner == rows || median < cell->seconds.median))
                *cell = (struct map_cell){row, seconds[row]};
        }
        write_cell(breakeven, batch, hidden, seconds, cell->winner);
    }
    free(times);
    free(in);
    free(seconds);
    return memory ? STATUS_OK : status_set(STATUS_FAILED, "out of memory");
}

static void winner_cell(struct cell *cell) {
    const struct breakeven *breakeven = cell->context;
    const size_t winner = record_count(cell->line, "winner", breakeven->sweep.count, breakeven->sweep.count);
    cell_text(cell, "%s", winner < breakeven->sweep.count ? breakeven->sweep.rows[winner].label : "-");
}

static const struct column columns[] = {
    {"batch", COLUMN_NUMBER, .key = "batch", .unit = unit_count, .width = 6},
    {"hidden", COLUMN_NUMBER, .key = "hidden", .unit = unit_count},
    {"fastest", COLUMN_TEXT, .cell = winner_cell, .width = 24},
    {"step", COLUMN_NUMBER, .cell = cell_median, .key = "median_seconds", .width = 14},
    {"min to max", COLUMN_NUMBER, .cell = cell_spread, .width = 18},
};

static void print_cell(struct breakeven *breakeven, size_t b, size_t h) {
    const struct map_cell *cell = &breakeven->cells[b][h];
    cJSON *line = cJSON_CreateObject();
    jsonl_count(line, "batch", breakeven->batches[b]);
    jsonl_count(line, "hidden", breakeven->hidden[h]);
    jsonl_count(line, "winner", cell->winner);
    if (cell->winner < breakeven->sweep.count) {
        cJSON_AddNumberToObject(line, "median_seconds", cell->seconds.median);
        cJSON_AddNumberToObject(line, "min_seconds", cell->seconds.min);
        cJSON_AddNumberToObject(line, "max_seconds", cell->seconds.max);
        cJSON_AddBoolToObject(line, "noisy", cell->seconds.noisy);
    }
    table_row(&breakeven->table, line, breakeven);
    table_console_row(stdout, &breakeven->table, table_rows(&breakeven->table) - 1);
    cJSON_Delete(line);
    fflush(stdout);
}

static enum status measure(struct breakeven *breakeven) {
    const size_t cells = breakeven->batch_count * breakeven->hidden_count;
    enum status status = STATUS_OK;
    table_open(&breakeven->table, "fastest backend");
    TABLE_COLUMNS(&breakeven->table, columns);
    table_console_titles(stdout, &breakeven->table);
    for (size_t i = 0; i < cells && !status; i++) {
        const size_t b = i / breakeven->hidden_count, h = i % breakeven->hidden_count;
        terminal_progress("batch %zu, hidden %zu  (%zu of %zu)", breakeven->batches[b], breakeven->hidden[h],
                          i + 1, cells);
        status = measure_cell(breakeven, b, h);
        terminal_clear_progress();
        if (!status) print_cell(breakeven, b, h);
    }
    table_close(&breakeven->table);
    return status;
}

static void tell_wait(const struct breakeven *breakeven) {
    const size_t cells = breakeven->batch_count * breakeven->hidden_count;
    const double wait =
        (double)(cells * breakeven->sweep.count * breakeven->repeats) * breakeven->cell_seconds;
    if (wait > BENCH_LONG)
        terminal_tell("%zu cells, %zu backends, %zu timings of %g s each: about %s, and the verification",
                      cells, breakeven->sweep.count, breakeven->repeats, breakeven->cell_seconds,
                      text_wait(wait).text);
}

/* Starts the standing of each row: left out, wrong, or right so far. */
static enum status open_standing(struct breakeven *breakeven) {
    breakeven->standing = calloc(breakeven->sweep.count, sizeof *breakeven->standing);
    if (!breakeven->standing) return status_set(STATUS_FAILED, "out of memory");
    for (size_t row = 0; row < breakeven->sweep.count; row++) {
        const struct sweep_row *one = &breakeven->sweep.rows[row];
        struct standing *standing = &breakeven->standing[row];
        standing->outcome = !one->backend ? OUTCOME_LEFT_OUT : one->wrong[0] ? OUTCOME_WRONG : OUTCOME_RIGHT;
        snprintf(standing->reason, sizeof standing->reason, "%s", one->backend ? one->wrong : one->left_out);
        verdict_note(&breakeven->verdict, standing->outcome, one->label, standing->reason);
    }
    return STATUS_OK;
}

static enum status run(struct breakeven *breakeven, const struct sweep_lists *lists, const char *timeout) {
    enum status status = dataset_load(&breakeven->data, breakeven->config.data,
                                      config_dataset(&breakeven->config, DATASET_ALL));
    if (!status) status = config_check_training(&breakeven->config, &breakeven->data);
    for (size_t b = 0; b < breakeven->batch_count && !status; b++)
        if (breakeven->batches[b] > breakeven->data.train.count - (size_t)breakeven->config.validation)
            status = status_set(STATUS_USAGE, "--batches: %zu is more than the %zu training images",
                                breakeven->batches[b],
                                breakeven->data.train.count - (size_t)breakeven->config.validation);
    if (!status) status = backend_prepare_contest(&breakeven->data, timeout, breakeven->cell_seconds);
    if (!status) status = sweep_open(&breakeven->sweep, &breakeven->config, lists);
    if (!status) status = backend_check_plugins(&breakeven->sweep, true);
    if (status) return status;
    status = open_standing(breakeven);
    if (!status) status = logfile_open(&breakeven->log, breakeven->config.log, false);
    if (status) return status;
    cJSON *header = jsonl_header();
    cJSON_AddStringToObject(header, "command", "bench breakeven");
    cJSON_AddStringToObject(header, "data", breakeven->data.name);
    jsonl_write(breakeven->log, header);
    bench_print_machine();
    terminal_print(
        stdout, 0,
        "fastest backend, and the time of a training step of %zu-hidden-%zu, median of %zu (least to "
        "most)\n\n",
        breakeven->config.layers.width[0], breakeven->config.layers.width[breakeven->config.layers.count - 1],
        breakeven->repeats);
    tell_wait(breakeven);
    status = measure(breakeven);
    printf("\n");
    bench_print_load();
    for (size_t row = 0; row < breakeven->sweep.count; row++) {
        const struct standing *standing = &breakeven->standing[row];
        if (standing->outcome != OUTCOME_RIGHT)
            terminal_print(stdout, BENCH_LABEL + 1, "%-*s %s: %s\n", BENCH_LABEL,
                           breakeven->sweep.rows[row].label, outcome_words(standing->outcome),
                           standing->reason);
    }
    return status ? status : verdict_status(&breakeven->verdict);
}

static void close_breakeven(struct breakeven *breakeven) {
    free(breakeven->standing);
    sweep_close(&breakeven->sweep);
    dataset_pair_free(&breakeven->data);
}

static enum status run_bench_breakeven(int argc, char **argv) {
    static struct breakeven breakeven; /* zero */
    static struct files files;
    struct sweep_lists lists = {.backends = "all"};
    const char *batches = "16,64,256,1024,4096", *hidden = "32,128,512,2048", *repeat = NULL, *seconds = NULL,
               *timeout = NULL;
    const struct option_extra extras[] = {
        {"backends", "A,B,..", "the GEMMs; 'all': each usable one [all]", &lists.backends},
        {"residency", "device,..", "where the tensors of GPU backends live, each a row", &lists.residencies},
        {"batches", "N,..", "batch sizes [16,64,256,1024,4096]", &batches},
        {"hidden", "N,..", "widths of the hidden layer [32,128,512,2048]", &hidden},
        {"repeat", "N", "timings of each, interleaved [3]", &repeat},
        {"cell-seconds", "S", "seconds of training for each timing of a backend [0.1]", &seconds},
        BACKEND_TIMEOUT_FLAG(&timeout),
    };
    const struct option_set set = {
        .usage = "bench breakeven [--backends A,B,..] [--batches N,..] [--hidden N,..] [--KEY VALUE]...",
        .details =
            "Times training steps of a network with one hidden layer, and names the fastest backend for each "
            "batch and hidden size. Every backend is verified on each shape, before and after.\n"
            "No effect here: --epochs, --batch-size, --learning-rate, --schedule, the hidden widths of "
            "--layers; " OPTIONS_OF_TRAIN ".",
        OPTION_EXTRAS(extras),
        .files = &files,
    };
    bool help;
    enum status status = options_parse(&set, argc, argv, &breakeven.config, &help);
    if (status || help) return status;
    breakeven.repeats = 3;
    breakeven.cell_seconds = 0.1;
    status = bench_parse_list("batches", batches, MOST_SIDE, breakeven.batches, &breakeven.batch_count);
    if (!status)
        status = bench_parse_list("hidden", hidden, MOST_SIDE, breakeven.hidden, &breakeven.hidden_count);
    if (!status) status = bench_parse_count("repeat", repeat, 1000, &breakeven.repeats);
    if (!status) status = bench_parse_real("cell-seconds", seconds, &breakeven.cell_seconds);
    if (!status && breakeven.cell_seconds <= 0)
        status = status_set(STATUS_USAGE, "--cell-seconds must be above 0");
    if (!status) status = options_check_files(&files, &breakeven.config);
    if (!status) status = run(&breakeven, &lists, timeout);
    status = logfile_close(breakeven.log, status);
    close_breakeven(&breakeven);
    return status;
}

const struct command bench_breakeven = {"breakeven", "which backend wins, over batch and hidden size",
                                        run_bench_breakeven};
