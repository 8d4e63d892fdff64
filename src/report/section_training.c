/* Loss and accuracy of every logged run, epoch by epoch. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/text.h"
#include "src/report/cells.h"
#include "src/report/page.h"
#include "src/report/row.h"

/* Runs with the same layers, batch size and learning rate share a chart. */
static void recipe_key(const struct record *record, char *key, size_t size) {
    const cJSON *config = cJSON_GetObjectItemCaseSensitive(record->header, "config");
    const char *layers = record_text(config, "layers"), *batch = record_text(config, "batch-size");
    snprintf(key, size, "%.160s, batch %.20s, learning rate %.20s", layers[0] ? layers : "unknown network",
             batch[0] ? batch : "unknown", record_text(config, "learning-rate"));
}

/* The seed of the network (in an ensemble) or of the run; -1: none. */
static double seed_of(const struct record *record) {
    const double seed =
        record_number(record_has(record->line, "seed") ? record->line : record->header, "seed");
    return isfinite(seed) ? seed : -1;
}

static void run_label(const struct record *record, char *label, size_t size) {
    const double seed = seed_of(record);
    row_label(record->header, label, size);
    if (seed >= 0) text_append(label, size, ", seed %.0f", seed);
}

static bool same_network(const struct record *a, const struct record *b) {
    return a->run == b->run && seed_of(a) == seed_of(b);
}

/* By run, seed, then position: networks that train at the same time write alternately. */
static int by_network(const void *a, const void *b) {
    const struct record *x = *(const struct record *const *)a, *y = *(const struct record *const *)b;
    if (x->run == y->run && !same_network(x, y)) return seed_of(x) < seed_of(y) ? -1 : 1;
    return (x > y) - (x < y); /* in the order of the files */
}

/* The end of the rows of one network. */
static size_t run_end(const struct selection *rows, size_t start) {
    size_t end = start + 1;
    while (end < rows->count && same_network(rows->rows[end], rows->rows[start])) end++;
    return end;
}

static struct chart_style run_style(struct page *page, const struct record *row, struct names *seen,
                                    unsigned *times) {
    const char *backend = record_text(row->header, "backend");
    struct chart_style style = page_style(page, backend);
    const size_t index = names_index(seen, backend);
    if (index < 64) style.dash = times[index]++ % CHART_DASHES;
    return style;
}

static double accuracy_of(const cJSON *line) {
    const double test = record_number(line, "test_accuracy");
    return isfinite(test) ? test : record_number(line, "validation_accuracy");
}

static void curves(struct page *page, const struct selection *rows, size_t number, bool loss) {
    struct chart chart;
    struct names seen = {0};
    unsigned times[64] = {0};
    char id[64];
    snprintf(id, sizeof id, "training-%s-%zu", loss ? "loss" : "accuracy", number + 1);
    chart_open(&chart, CHART_LINES, id, loss ? "Training loss" : "Accuracy on held-out images");
    chart.x = (struct chart_axis){.title = "epoch", .whole = true};
    chart.y = loss ? (struct chart_axis){.title = "mean cross-entropy", .from_zero = true}
                   : (struct chart_axis){.title = "correct", .unit = UNIT_PERCENT};
    for (size_t start = 0; start < rows->count;) {
        const size_t end = run_end(rows, start);
        char label[256];
        run_label(rows->rows[start], label, sizeof label);
        const size_t series = chart_series(&chart, label, run_style(page, rows->rows[start], &seen, times));
        for (; start < end; start++) {
            const cJSON *line = rows->rows[start]->line;
            const double value = loss ? record_number(line, "train_loss") : accuracy_of(line);
            if (isfinite(value)) chart_add_xy(&chart, series, record_number(line, "epoch"), value);
        }
    }
    names_free(&seen);
    struct legend legend = {0};
    if (loss) { /* shared by both charts */
        chart_legend(&legend, &chart);
        legend_html(page->out, &legend);
    }
    legend_free(&legend);
    chart.unlisted = true;
    page_chart(
        page, &chart, "%s",
        loss ? "Lower is better. Runs with the same seed coincide: the backends compute the same training."
             : "Higher is better. Differences below two standard errors of the table are noise.");
}

static const struct record *summary_of(const struct records *records, const struct record *epoch) {
    const struct record *row = NULL;
    while ((row = records_after(records, row, "summary")))
        if (same_network(row, epoch)) return row;
    return NULL;
}

/* In these cells the record is the summary (NULL: none), the context the last epoch. */
static void run_cell(struct cell *cell) {
    run_label(cell->context, cell->text, sizeof cell->text);
}

static void epochs_cell(struct cell *cell) {
    const struct record *last = cell->context;
    cell_text(cell, "%s", unit_count(record_number(last->line, "epoch")).text);
}

static void loss_cell(struct cell *cell) {
    const struct record *last = cell->context;
    cell_text(cell, "%s", text_fixed(record_number(last->line, "train_loss"), 4).text);
}

static void accuracy_cell(struct cell *cell) {
    const struct record *last = cell->context;
    const double total = cell_number(cell, "test_total"), accuracy = cell_number(cell, "test_accuracy");
    if (total >= 1 && accuracy >= 0 && accuracy <= 1) {
        cell_text(cell, "%s +- %s", text_percent(accuracy, 2).text,
                  unit_ratio(100 * sqrt(accuracy * (1 - accuracy) / total)).text);
    } else {
        cell_text(cell, "%s", text_percent(accuracy_of(last->line), 2).text);
    }
}

static const struct column columns[] = {
    {"run", COLUMN_TEXT, .cell = run_cell},
    {"epochs", COLUMN_NUMBER, .cell = epochs_cell},
    {"loss at the end", COLUMN_NUMBER, .cell = loss_cell},
    {"test accuracy", COLUMN_NUMBER, .cell = accuracy_cell},
    {"epoch, median", COLUMN_NUMBER, .key = "median_epoch_seconds", .cell = cell_epoch},
    {"transfer/total", COLUMN_NUMBER, .key = "transfer_ratio", .unit = unit_share},
    {"whole run", COLUMN_NUMBER, .key = "total_seconds", .unit = text_seconds},
};

static void run_table(struct page *page, const struct selection *rows) {
    struct table table;
    table_open(&table, "Every run at its end. +- is one binomial standard error." NOISY);
    TABLE_COLUMNS(&table, columns);
    for (size_t start = 0; start < rows->count; start = run_end(rows, start)) {
        const struct record *last = rows->rows[run_end(rows, start) - 1],
                            *summary = summary_of(page->records, last);
        table_row(&table, summary ? summary->line : NULL, last);
    }
    page_table(page, &table);
}

/* Writes the results of the ensembles among these runs. */
static void note_ensembles(struct page *page, const struct selection *rows) {
    const struct record *row = NULL;
    while ((row = records_after(page->records, row, "ensemble"))) {
        size_t first = 0;
        while (first < rows->count && rows->rows[first]->run != row->run) first++;
        if (first == rows->count) continue;
        page_note(page,
                  "Ensemble of %s networks: mean %s, standard deviation %s; their committee %s; all of them "
                  "in %s, an epoch of all %s.",
                  text_fixed(record_number(row->line, "members"), 0).text,
                  text_percent(record_number(row->line, "test_accuracy_mean"), 2).text,
                  text_percent(record_number(row->line, "test_accuracy_deviation"), 2).text,
                  text_percent(record_number(row->line, "test_accuracy"), 2).text,
                  text_seconds(record_number(row->line, "seconds")).text,
                  text_seconds(record_number(row->line, "epoch_seconds")).text);
    }
}

static void write_training(struct page *page) {
    struct selections recipes = page_selections(page, "epoch", recipe_key);
    for (size_t i = 0; i < recipes.count; i++) {
        qsort(recipes.list[i].rows, recipes.list[i].count, sizeof *recipes.list[i].rows, by_network);
        page_heading(page, "%s", recipes.list[i].key);
        page_columns_open(page);
        curves(page, &recipes.list[i], i, true);
        curves(page, &recipes.list[i], i, false);
        page_columns_close(page);
        run_table(page, &recipes.list[i]);
        note_ensembles(page, &recipes.list[i]);
    }
    selections_free(&recipes);
}

const struct section section_training = {"training", "Training curves", "./train --log FILE", .type = "epoch",
                                         .write = write_training};
