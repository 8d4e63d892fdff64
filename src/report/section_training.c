/* Loss and accuracy of every logged run, epoch by epoch. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/memory.h"
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

static bool same_network(const struct record *a, const struct record *b) {
    return a->run == b->run && seed_of(a) == seed_of(b);
}

/* By run, seed, then position: networks that train at the same time write alternately. */
static int by_network(const void *a, const void *b) {
    const struct record *x = *(const struct record *const *)a, *y = *(const struct record *const *)b;
    if (x->run == y->run && !same_network(x, y)) return seed_of(x) < seed_of(y) ? -1 : 1;
    return (x > y) - (x < y); /* in the order of the files */
}

/* --- the networks of a recipe --- */

struct network {
    const struct record *const *rows; /* [count], its epochs */
    size_t count;
    char label[256];
    struct chart_style style;
};

struct networks {
    struct network *list;
    size_t count;
};

static const cJSON *config_of(const struct network *network) {
    return cJSON_GetObjectItemCaseSensitive(network->rows[0]->header, "config");
}

/* Does another network have another value of this key? */
static bool differs(const struct networks *all, const char *key, const char *value) {
    for (size_t i = 0; i < all->count; i++) {
        const char *other = record_text(config_of(&all->list[i]), key);
        if (other[0] && strcmp(other, value) != 0) return true;
    }
    return false;
}

/* "tuned, fused, 2 threads, seed 1, dropout 0.2": the compute, the seed, and each key of the config in which
   the networks differ. */
static void write_label(const struct networks *all, struct network *network) {
    const double seed = seed_of(network->rows[0]);
    const cJSON *item;
    row_label(network->rows[0]->header, network->label, sizeof network->label);
    if (seed >= 0) text_append(network->label, sizeof network->label, ", seed %.0f", seed);
    cJSON_ArrayForEach(item, config_of(network)) {
        const char *key = item->string, *value = cJSON_GetStringValue(item);
        if (!key || !value || !value[0] || strcmp(key, "seed") == 0 || strcmp(key, "dtype") == 0) continue;
        if (differs(all, key, value))
            text_append(network->label, sizeof network->label, ", %.40s %.60s", key, value);
    }
}

/* Networks that nothing tells apart are numbered. */
static void number_labels(struct networks *all) {
    for (size_t i = all->count; i-- > 0;) {
        size_t same = 0;
        for (size_t j = 0; j < i; j++) same += strcmp(all->list[i].label, all->list[j].label) == 0;
        if (same) text_append(all->list[i].label, sizeof all->list[i].label, ", run %zu", same + 1);
    }
}

/* The networks of sorted rows; none if memory ran out. The caller frees the list. */
static struct networks networks_of(const struct selection *rows) {
    struct networks all = {memory_zero(rows->count, sizeof *all.list), 0};
    for (size_t i = 0; all.list && i < rows->count; i++) {
        if (i == 0 || !same_network(rows->rows[i], rows->rows[i - 1]))
            all.list[all.count++] = (struct network){.rows = &rows->rows[i]};
        all.list[all.count - 1].count++;
    }
    for (size_t i = 0; i < all.count; i++) {
        write_label(&all, &all.list[i]);
        all.list[i].style = chart_style_of(i);
    }
    number_labels(&all);
    return all;
}

/* --- curves --- */

static double held_out(const cJSON *line, const char *quantity) {
    char test[32], validation[32];
    snprintf(test, sizeof test, "test_%s", quantity);
    snprintf(validation, sizeof validation, "validation_%s", quantity);
    return record_number(line, record_has(line, test) ? test : validation);
}

/* A solid line with markers for held-out images, and one for the training images, dashed. */
static void add_curves(struct chart *chart, const struct network *network, const char *quantity) {
    char training[32], name[300];
    struct chart_style dashed = network->style;
    dashed.dash = 1;
    snprintf(name, sizeof name, "%s, training images", network->label);
    snprintf(training, sizeof training, "train_%s", quantity);
    const size_t of_training = chart_series(chart, name, dashed),
                 of_others = chart_series(chart, network->label, network->style);
    if (of_training < chart->series_count) chart->series[of_training].marks = false;
    for (size_t i = 0; i < network->count; i++) {
        const cJSON *line = network->rows[i]->line;
        const double epoch = record_number(line, "epoch");
        chart_add_xy(chart, of_training, epoch, record_number(line, training));
        chart_add_xy(chart, of_others, epoch, held_out(line, quantity));
    }
}

static void curves(struct page *page, const struct networks *all, size_t number, const char *quantity) {
    const bool loss = strcmp(quantity, "loss") == 0;
    struct chart chart;
    char id[64];
    snprintf(id, sizeof id, "training-%s-%zu", quantity, number + 1);
    chart_open(&chart, CHART_LINES, id, loss ? "Loss" : "Accuracy");
    chart.x = (struct chart_axis){.title = "epoch", .whole = true};
    chart.y =
        loss ? (struct chart_axis){.title = "mean cross-entropy", .from_zero = true, .log_if_wide = true}
             : (struct chart_axis){.title = "share of images classified correctly", .unit = UNIT_PERCENT};
    for (size_t i = 0; i < all->count; i++) add_curves(&chart, &all->list[i], quantity);
    chart.unlisted = true;
    page_chart(
        page, &chart, "%s",
        loss ? "Lower is better. Dashed: training images, each before the update of its step. With markers: "
               "images that were not trained on."
             : "Higher is better. Dashed: training images. With markers: images that were not trained on. "
               "Differences below two standard errors (in the table) are noise.");
}

/* Shared by both charts. */
static void write_legend(struct page *page, const struct networks *all) {
    struct legend legend = {0};
    for (size_t i = 0; i < all->count; i++) {
        struct legend_entry entry = {.style = all->list[i].style, .line = true, .marks = true};
        snprintf(entry.name, sizeof entry.name, "%s", all->list[i].label);
        legend_add(&legend, entry);
    }
    legend_html(page->out, &legend);
    legend_free(&legend);
}

/* --- the table --- */

static const struct record *summary_of(const struct records *records, const struct record *epoch) {
    const struct record *row = NULL;
    while ((row = records_after(records, row, "summary")))
        if (same_network(row, epoch)) return row;
    return NULL;
}

/* In these cells the record is the summary (NULL: none), the context the network. */
static void run_cell(struct cell *cell) {
    const struct network *network = cell->context;
    cell_text(cell, "%s", network->label);
}

static const cJSON *last_epoch(const struct cell *cell) {
    const struct network *network = cell->context;
    return network->rows[network->count - 1]->line;
}

static void epochs_cell(struct cell *cell) {
    cell_text(cell, "%s", unit_count(record_number(last_epoch(cell), "epoch")).text);
}

static void loss_cell(struct cell *cell) {
    cell_text(cell, "%s", text_fixed(record_number(last_epoch(cell), "train_loss"), 4).text);
}

static void train_accuracy_cell(struct cell *cell) {
    cell_text(cell, "%s", text_percent(record_number(last_epoch(cell), "train_accuracy"), 2).text);
}

static void accuracy_cell(struct cell *cell) {
    const double total = cell_number(cell, "test_total"), accuracy = cell_number(cell, "test_accuracy");
    if (total >= 1 && accuracy >= 0 && accuracy <= 1) {
        cell_text(cell, "%s +- %s", text_percent(accuracy, 2).text,
                  unit_ratio(100 * sqrt(accuracy * (1 - accuracy) / total)).text);
    } else {
        cell_text(cell, "%s", text_percent(held_out(last_epoch(cell), "accuracy"), 2).text);
    }
}

static const struct column columns[] = {
    {"run", COLUMN_TEXT, .cell = run_cell},
    {"epochs", COLUMN_NUMBER, .cell = epochs_cell},
    {"training loss", COLUMN_NUMBER, .cell = loss_cell},
    {"training accuracy", COLUMN_NUMBER, .cell = train_accuracy_cell},
    {"test accuracy", COLUMN_NUMBER, .cell = accuracy_cell},
    {"epoch, median", COLUMN_NUMBER, .key = "median_epoch_seconds", .cell = cell_epoch},
    {"transfer/total", COLUMN_NUMBER, .key = "transfer_ratio", .unit = unit_share},
    {"whole run", COLUMN_NUMBER, .key = "total_seconds", .unit = text_seconds},
};

static void run_table(struct page *page, const struct networks *all) {
    struct table table;
    table_open(&table, "Each run after its last epoch. +- is one binomial standard error." NOISY);
    TABLE_COLUMNS(&table, columns);
    for (size_t i = 0; i < all->count; i++) {
        const struct record *summary = summary_of(page->records, all->list[i].rows[0]);
        table_row(&table, summary ? summary->line : NULL, &all->list[i]);
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
        page_note(
            page,
            "Ensemble of %s networks. Accuracy of one network: mean %s, standard deviation %s. Accuracy of "
            "their committee: %s. Training all of them took %s, one epoch of all %s.",
            text_fixed(record_number(row->line, "members"), 0).text,
            text_percent(record_number(row->line, "test_accuracy_mean"), 2).text,
            text_percent(record_number(row->line, "test_accuracy_deviation"), 2).text,
            text_percent(record_number(row->line, "test_accuracy"), 2).text,
            text_seconds(record_number(row->line, "seconds")).text,
            text_seconds(record_number(row->line, "epoch_seconds")).text);
    }
}

static void write_recipe(struct page *page, struct selection *rows, size_t number) {
    qsort(rows->rows, rows->count, sizeof *rows->rows, by_network);
    struct networks all = networks_of(rows);
    page_heading(page, "%s", rows->key);
    page_columns_open(page);
    write_legend(page, &all);
    curves(page, &all, number, "loss");
    curves(page, &all, number, "accuracy");
    page_columns_close(page);
    run_table(page, &all);
    note_ensembles(page, rows);
    free(all.list);
}

static void write_training(struct page *page) {
    struct selections recipes = page_selections(page, "epoch", recipe_key);
    for (size_t i = 0; i < recipes.count; i++) write_recipe(page, &recipes.list[i], i);
    selections_free(&recipes);
}

const struct section section_training = {"training", "Training curves", "./train --log FILE", .type = "epoch",
                                         .write = write_training};
