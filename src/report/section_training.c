/* Loss and accuracy of every logged run, epoch by epoch. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/text.h"
#include "src/report/cells.h"
#include "src/report/networks.h"
#include "src/report/page.h"
#include "src/report/row.h"

/* --- curves --- */

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
        chart_add_xy(chart, of_others, epoch, row_held_out(line, quantity));
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

/* NULL: the run has not ended. */
static const cJSON *summary_of(const struct records *records, const struct network *network) {
    const struct record *row = NULL;
    while ((row = records_after(records, row, "summary")))
        if (networks_same(row, network->rows[0])) return row->line;
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

/* Of the summary, else of the last epoch. */
static const cJSON *result_of(const cJSON *summary, const struct network *network) {
    const bool has_result = isfinite(row_held_out(summary, "accuracy"));
    return has_result ? summary : network->rows[network->count - 1]->line;
}

static void accuracy_cell(struct cell *cell) {
    const cJSON *line = result_of(cell->line, cell->context);
    const double total = row_held_out(line, "total"), accuracy = row_held_out(line, "accuracy");
    const bool known = total >= 1 && accuracy >= 0 && accuracy <= 1;
    cell_held_out(cell, line, known ? sqrt(accuracy * (1 - accuracy) / total) : (double)NAN);
}

static const struct column columns_of_training[] = {
    {"run", COLUMN_TEXT, .cell = run_cell},
    {"epochs", COLUMN_NUMBER, .cell = epochs_cell},
    {"training loss", COLUMN_NUMBER, .cell = loss_cell},
    {"training accuracy", COLUMN_NUMBER, .cell = train_accuracy_cell},
};

static const struct column columns_of_time[] = {
    {"epoch, median", COLUMN_NUMBER, .key = "median_epoch_seconds", .cell = cell_epoch},
    {"transfer/total", COLUMN_NUMBER, .key = "transfer_ratio", .unit = unit_share},
    {"whole run", COLUMN_NUMBER, .key = "total_seconds", .unit = text_seconds},
};

static void run_table(struct page *page, const struct networks *all) {
    struct table table;
    struct held_out_parts parts = {0};
    for (size_t i = 0; i < all->count; i++)
        held_out_add(&parts, result_of(summary_of(page->records, &all->list[i]), &all->list[i]));
    table_open(&table, "Each run after its last epoch. +- is one binomial standard error." NOISY);
    TABLE_COLUMNS(&table, columns_of_training);
    table_columns(&table, &(struct column){held_out_title(&parts), COLUMN_NUMBER, .cell = accuracy_cell}, 1);
    TABLE_COLUMNS(&table, columns_of_time);
    for (size_t i = 0; i < all->count; i++)
        table_row(&table, summary_of(page->records, &all->list[i]), &all->list[i]);
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
                  "Ensemble of %s networks. Their %s accuracy: mean %s, standard deviation %s; that of their "
                  "committee: %s. Training all of them took %s, one epoch of all %s.",
                  text_fixed(record_number(row->line, "members"), 0).text, row_held_out_part(row->line),
                  text_percent(row_held_out(row->line, "accuracy_mean"), 2).text,
                  text_percent(row_held_out(row->line, "accuracy_deviation"), 2).text,
                  text_percent(row_held_out(row->line, "accuracy"), 2).text,
                  text_seconds(record_number(row->line, "seconds")).text,
                  text_seconds(record_number(row->line, "epoch_seconds")).text);
    }
}

static void write_recipe(struct page *page, struct selection *rows, size_t number) {
    char common[1024];
    struct networks all = networks_of(rows);
    networks_common(&all, page->records, common, sizeof common);
    page_heading(page, "%s", rows->key);
    if (common[0]) page_note(page, "Recipe: %s.", common);
    page_columns_open(page);
    write_legend(page, &all);
    curves(page, &all, number, "loss");
    curves(page, &all, number, "accuracy");
    page_columns_close(page);
    run_table(page, &all);
    note_ensembles(page, rows);
    free(all.list);
}

/* The errors that ended runs. */
static void list_stopped(struct page *page) {
    struct names lines = {0};
    const struct record *row = NULL;
    while ((row = records_after(page->records, row, "stopped"))) {
        char recipe[256], label[256], text[1024];
        networks_recipe(row, recipe, sizeof recipe);
        row_label(row->header, label, sizeof label);
        snprintf(text, sizeof text, "%s, seed %.0f; %s: %.500s", label, networks_seed(row), recipe,
                 record_text(row->line, "reason"));
        names_index(&lines, text);
    }
    if (lines.count) {
        page_heading(page, "Runs that an error ended");
        page_list(page, &lines);
    }
    names_free(&lines);
}

static bool training_present(const struct records *records) {
    return records_any(records, "epoch") || records_any(records, "stopped");
}

static void write_training(struct page *page) {
    struct selections recipes = page_selections(page, "epoch", networks_recipe);
    list_stopped(page);
    for (size_t i = 0; i < recipes.count; i++) write_recipe(page, &recipes.list[i], i);
    selections_free(&recipes);
}

const struct section section_training = {"training", "Training curves", "./train --log FILE",
                                         .present = training_present, .write = write_training};
