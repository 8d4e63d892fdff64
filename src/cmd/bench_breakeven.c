/* ./train bench breakeven: which backend wins, over batch and hidden size? */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/jsonl.h"
#include "src/base/platform.h"
#include "src/base/text.h"
#include "src/bench/comparison.h"
#include "src/cmd/backend.h"
#include "src/cmd/bench_table.h"
#include "src/cmd/command.h"
#include "src/cmd/options.h"

enum { MOST_SIDE = 16, CELL = 24 };

struct breakeven {
    struct config config;
    struct dataset_pair data;
    struct sweep sweep;
    size_t batches[MOST_SIDE], batch_count, hidden[MOST_SIDE], hidden_count;
    size_t repeats;
    double cell_seconds;
    FILE *log;
    bool *wrong;  /* [rows of the sweep] */
    size_t *wins; /* [batch][hidden]: the row, or the count of rows if none */
    double *best; /* [batch][hidden]: seconds of a step */
    char first_wrong[768];
};

/* The config of a cell: one hidden layer. */
static struct config cell_config(const struct breakeven *breakeven, size_t row, size_t batch, size_t hidden) {
    struct config config = breakeven->sweep.rows[row].config;
    const struct layer_list *given = &breakeven->config.layers;
    config.layers =
        (struct layer_list){.count = 3, .width = {given->width[0], hidden, given->width[given->count - 1]}};
    config.batch_size = (int64_t)batch;
    config.epochs = 1000000; /* the clock ends it */
    config.schedule = SCHEDULE_CONSTANT;
    config.learning_rate = 1e-3; /* it is about time: nothing may diverge */
    return config;
}

/* Seconds of a step, 0 if the backend is wrong or cannot. */
static enum status time_cell(struct breakeven *breakeven, size_t row, size_t batch, size_t hidden,
                             double *seconds) {
    const struct config config = cell_config(breakeven, row, batch, hidden);
    const struct run_limits limits = {.seconds = breakeven->cell_seconds};
    struct run_result result;
    const enum status status =
        run_training(&config, breakeven->sweep.rows[row].backend, &breakeven->data, &limits, &result);
    if (status) return status;
    *seconds = result.images ? result.seconds * (double)result.batch / (double)result.images : 0;
    run_close(&result);
    return STATUS_OK;
}

/* A backend that is wrong once takes no part any more. */
static void find_wrong(struct breakeven *breakeven, size_t row, const char *reason) {
    breakeven->wrong[row] = true;
    if (!breakeven->first_wrong[0])
        snprintf(breakeven->first_wrong, sizeof breakeven->first_wrong, "%s", reason);
}

static enum status verify_cell(struct breakeven *breakeven, size_t row, size_t batch, size_t hidden,
                               enum problem_inputs inputs) {
    const struct config config = cell_config(breakeven, row, batch, hidden);
    const struct sweep_row *sweep = &breakeven->sweep.rows[row];
    const enum status status = comparison_verify(&config, sweep->backend, &breakeven->data, inputs);
    if (status != STATUS_VERIFY_FAILED) return status;
    find_wrong(breakeven, row, status_message());
    return STATUS_OK;
}

static void write_cell(struct breakeven *breakeven, size_t batch, size_t hidden, const double *seconds,
                       size_t winner) {
    for (size_t row = 0; row < breakeven->sweep.count; row++) {
        if (seconds[row] <= 0) continue;
        cJSON *line = jsonl_new("breakeven");
        jsonl_count(line, "batch", batch);
        jsonl_count(line, "hidden", hidden);
        cJSON_AddStringToObject(line, "backend", breakeven->sweep.rows[row].label);
        cJSON_AddStringToObject(line, "dtype",
                                config_choice("dtype", breakeven->sweep.rows[row].config.dtype));
        cJSON_AddNumberToObject(line, "step_seconds", seconds[row]);
        cJSON_AddBoolToObject(line, "wins", row == winner);
        jsonl_write(breakeven->log, line);
    }
}

/* One cell: verified, timed in turn, verified again. A backend that fails here has no time here, and the map goes on. */
static enum status measure_cell(struct breakeven *breakeven, size_t b, size_t h) {
    const size_t rows = breakeven->sweep.count, batch = breakeven->batches[b], hidden = breakeven->hidden[h],
                 repeats = breakeven->repeats;
    double *times = calloc(rows * (repeats + 1), sizeof *times), *medians = times + rows * repeats;
    bool *out = calloc(rows, sizeof *out);
    if (!times || !out) {
        free(times);
        free(out);
        return status_set(STATUS_FAILED, "out of memory");
    }
    for (size_t row = 0; row < rows; row++)
        out[row] = !breakeven->sweep.rows[row].backend || breakeven->wrong[row] ||
                   verify_cell(breakeven, row, batch, hidden, PROBLEM_INTEGERS) || breakeven->wrong[row];
    for (size_t repeat = 0; repeat < repeats; repeat++)
        for (size_t row = 0; row < rows; row++)
            if (!out[row])
                out[row] =
                    time_cell(breakeven, row, batch, hidden, &times[row * repeats + repeat]) != STATUS_OK;
    size_t *winner = &breakeven->wins[b * MOST_SIDE + h];
    *winner = rows;
    for (size_t row = 0; row < rows; row++) {
        if (out[row] || verify_cell(breakeven, row, batch, hidden, PROBLEM_REALS) || breakeven->wrong[row])
            continue;
        medians[row] = statistics_of(times + row * repeats, repeats).median;
        if (medians[row] > 0 && (*winner == rows || medians[row] < medians[*winner])) *winner = row;
    }
    breakeven->best[b * MOST_SIDE + h] = *winner < rows ? medians[*winner] : 0;
    write_cell(breakeven, batch, hidden, medians, *winner);
    free(times);
    free(out);
    return STATUS_OK;
}

static enum status measure(struct breakeven *breakeven) {
    enum status status = STATUS_OK;
    printf("%-10s", "batch");
    for (size_t h = 0; h < breakeven->hidden_count; h++)
        printf("  hidden %-*zu", CELL - 7, breakeven->hidden[h]);
    printf("\n");
    for (size_t b = 0; b < breakeven->batch_count && !status; b++) {
        printf("%-10zu", breakeven->batches[b]);
        for (size_t h = 0; h < breakeven->hidden_count && !status; h++) {
            status = measure_cell(breakeven, b, h);
            const size_t winner = breakeven->wins[b * MOST_SIDE + h];
            char cell[160] = "-";
            if (!status && winner < breakeven->sweep.count)
                snprintf(cell, sizeof cell, "%s %s", breakeven->sweep.rows[winner].label,
                         text_seconds(breakeven->best[b * MOST_SIDE + h]).text);
            printf("  %-*s", CELL, cell);
            fflush(stdout);
        }
        printf("\n");
    }
    return status;
}

static enum status run(struct breakeven *breakeven, const struct sweep_lists *lists) {
    enum status status = dataset_load(&breakeven->data, breakeven->config.data, DATASET_ALL);
    if (!status) status = config_check_data(&breakeven->config, &breakeven->data);
    for (size_t b = 0; b < breakeven->batch_count && !status; b++)
        if (breakeven->batches[b] > breakeven->data.train.count - (size_t)breakeven->config.validation)
            status = status_set(STATUS_USAGE, "--batches: %zu is more than the %zu training images",
                                breakeven->batches[b],
                                breakeven->data.train.count - (size_t)breakeven->config.validation);
    if (!status) status = sweep_open(&breakeven->sweep, &breakeven->config, lists);
    if (!status) status = backend_check_plugins(&breakeven->sweep, true);
    if (status) return status;
    breakeven->wrong = calloc(breakeven->sweep.count, sizeof *breakeven->wrong);
    breakeven->wins = calloc(MOST_SIDE * MOST_SIDE, sizeof *breakeven->wins);
    breakeven->best = calloc(MOST_SIDE * MOST_SIDE, sizeof *breakeven->best);
    if (!breakeven->wrong || !breakeven->wins || !breakeven->best)
        return status_set(STATUS_FAILED, "out of memory");
    for (size_t row = 0; row < breakeven->sweep.count; row++)
        if (breakeven->sweep.rows[row].wrong[0]) find_wrong(breakeven, row, breakeven->sweep.rows[row].wrong);
    status = jsonl_open(&breakeven->log, breakeven->config.log);
    if (status) return status;
    cJSON *header = jsonl_header();
    cJSON_AddStringToObject(header, "command", "bench breakeven");
    cJSON_AddStringToObject(header, "data", breakeven->data.name);
    jsonl_write(breakeven->log, header);
    printf("Tessera %s, commit %s; %s; %s %s\nfastest backend, and seconds of a training step of "
           "%zu-hidden-%zu, median of %zu\n\n",
           TESSERA_VERSION, platform_commit(), platform_cpu(), platform_compiler(), platform_flags(),
           breakeven->config.layers.width[0],
           breakeven->config.layers.width[breakeven->config.layers.count - 1], breakeven->repeats);
    status = measure(breakeven);
    printf("\n");
    for (size_t row = 0; row < breakeven->sweep.count; row++) {
        const struct sweep_row *one = &breakeven->sweep.rows[row];
        if (!one->backend) printf("%-*s left out: %s\n", BENCH_LABEL, one->label, one->left_out);
        if (breakeven->wrong[row]) printf("%-*s WRONG, no time\n", BENCH_LABEL, one->label);
    }
    if (!status && breakeven->first_wrong[0])
        status = status_set(STATUS_VERIFY_FAILED, "%s", breakeven->first_wrong);
    return status;
}

static void close_breakeven(struct breakeven *breakeven) {
    free(breakeven->wrong);
    free(breakeven->wins);
    free(breakeven->best);
    sweep_close(&breakeven->sweep);
    dataset_pair_free(&breakeven->data);
}

static enum status run_bench_breakeven(int argc, char **argv) {
    static struct breakeven breakeven; /* zero */
    struct sweep_lists lists = {.backends = "all"};
    const char *batches = "16,64,256,1024,4096", *hidden = "32,128,512,2048", *repeat = NULL, *seconds = NULL;
    const struct option_extra extras[] = {
        {"backends", "A,B,..", "the GEMMs, or 'all' that can be used here [all]", &lists.backends},
        {"residency", "device,..", "where the tensors of GPU backends live, each a contestant",
         &lists.residencies},
        {"batches", "N,..", "batch sizes [16,64,256,1024,4096]", &batches},
        {"hidden", "N,..", "widths of the hidden layer [32,128,512,2048]", &hidden},
        {"repeat", "N", "times of each, in turn [3]", &repeat},
        {"cell-seconds", "S", "of training, for each backend and time [0.1]", &seconds},
    };
    const struct option_set set = {
        .usage = "bench breakeven [--backends A,B,..] [--batches N,..] [--hidden N,..] [--KEY VALUE]...",
        .details =
            "Times training steps of a network with one hidden layer, over batch and hidden size, and names "
            "the fastest\n"
            "backend of each: from which size on does another one pay? Each is verified on each shape first.",
        .extras = extras,
        .extra_count = sizeof extras / sizeof *extras,
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
    if (!status) status = run(&breakeven, &lists);
    status = jsonl_close(breakeven.log, breakeven.config.log, status);
    close_breakeven(&breakeven);
    return status;
}

const struct command bench_breakeven = {"breakeven", "which backend wins, over batch and hidden size",
                                        run_bench_breakeven};
