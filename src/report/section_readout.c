/* Readouts: the accuracy along a stream, and fits of all images. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "src/base/text.h"
#include "src/report/cells.h"
#include "src/report/page.h"
#include "src/report/row.h"

enum { MEAN = 5 /* blocks of a point of a curve: a thousand images have an error of a percentage point */ };

static const char *setting(const struct record *record, const char *key) {
    return record_text(cJSON_GetObjectItemCaseSensitive(record->header, "config"), key);
}

static void stream_key(const struct record *record, char *key, size_t size) {
    const char *drift = setting(record, "drift");
    snprintf(key, size, "%.160s: features %.60s, ridge %.20s%s%.60s, seed %.0f",
             record_text(record->header, "data"), setting(record, "features"), setting(record, "ridge"),
             drift[0] ? ", drift " : "", drift, fmax(record_number(record->header, "seed"), 0));
}

/* --- the curves --- */

/* The mean of the last blocks up to this row of its memory. */
static double mean_until(const struct selection *rows, size_t index) {
    const struct record *last = rows->rows[index];
    double correct = 0, total = 0;
    size_t blocks = 0;
    for (size_t i = index + 1; i-- > 0 && blocks < MEAN;) {
        const struct record *row = rows->rows[i];
        if (row->run != last->run ||
            strcmp(record_text(row->line, "name"), record_text(last->line, "name")) != 0)
            continue;
        correct += record_number(row->line, "correct");
        total += record_number(row->line, "total");
        blocks++;
    }
    return total > 0 ? correct / total : (double)NAN;
}

static void stream_chart(struct page *page, const struct selection *rows, size_t number) {
    const size_t run = rows->rows[rows->count - 1]->run;
    struct names names = {0};
    struct chart chart;
    char id[64];
    snprintf(id, sizeof id, "readout-stream-%zu", number + 1);
    chart_open(&chart, CHART_LINES, id, "Accuracy along the stream");
    chart.x = (struct chart_axis){.title = "images of the stream", .from_zero = true};
    chart.y = (struct chart_axis){.title = "accuracy", .unit = UNIT_PERCENT};
    for (size_t i = 0; i < rows->count; i++) {
        const struct record *row = rows->rows[i];
        const char *name = record_text(row->line, "name");
        char title[96];
        if (row->run != run || !name[0]) continue;
        const size_t before = names.count, series = names_index(&names, name);
        const bool window = record_number(row->line, "window") > 0;
        snprintf(title, sizeof title, "%s%.60s%s", window ? "last " : "", name,
                 strcmp(name, "all") == 0 ? " images" : "");
        if (names.count > before) chart_series(&chart, title, chart_style_of(series));
        chart_add_xy(&chart, series, record_number(row->line, "images"), mean_until(rows, i));
    }
    names_free(&names);
    page_chart(
        page, &chart,
        "Higher is better. Each block of images is predicted before it enters the readouts: of the last "
        "images, of all images so far, and with exponential forgetting. A point is the mean of the last "
        "%d blocks.",
        MEAN);
}

static void best_cell(struct cell *cell) {
    cell_text(cell, "%s", record_true(cell->line, "best") ? "best" : "");
}

static struct text_number percent(double value) {
    return text_percent(value, 2);
}

static void squares_cell(struct cell *cell) {
    cell_text(cell, "%s", text_fixed(cell_number(cell, "squared_error"), 4).text);
}

static const struct column memory_columns[] = {
    {"readout of", COLUMN_TEXT, .key = "name"},
    {"accuracy", COLUMN_NUMBER, .key = "accuracy", .unit = percent},
    {"right", COLUMN_NUMBER, .key = "correct", .unit = unit_count},
    {"images", COLUMN_NUMBER, .key = "total", .unit = unit_count},
    {"squared error", COLUMN_NUMBER, .cell = squares_cell},
    {"", COLUMN_TEXT, .cell = best_cell},
};

static void memory_table(struct page *page, size_t run) {
    const struct record *row = NULL;
    struct table table;
    table_open(
        &table,
        "The whole stream: numbers are windows, in images. Each image was predicted before it entered.");
    TABLE_COLUMNS(&table, memory_columns);
    while ((row = records_after(page->records, row, "readout_memory")))
        if (row->run == run) table_row(&table, row->line, NULL);
    page_optional_table(page, &table);
}

/* --- fits of all images --- */

/* In these cells the context is the record. */
static void features_cell(struct cell *cell) {
    const struct record *record = cell->context;
    const char *model = record_text(record->header, "model");
    cell_text(cell, "%s%s%.200s", setting(record, "features"), model[0] ? " of " : "", model);
}

static void layers_cell(struct cell *cell) {
    cell_text(cell, "%s", setting(cell->context, "layers"));
}

static void backend_cell(struct cell *cell) {
    row_label(((const struct record *)cell->context)->header, cell->text, sizeof cell->text);
}

static const struct column fit_columns[] = {
    {"features", COLUMN_TEXT, .cell = features_cell},
    {"network", COLUMN_TEXT, .cell = layers_cell},
    {"backend", COLUMN_TEXT, .cell = backend_cell},
    {"accuracy", COLUMN_NUMBER, .key = "accuracy", .unit = percent},
    {"images of", COLUMN_TEXT, .key = "part"},
    {"ridge", COLUMN_NUMBER, .key = "ridge", .unit = text_short},
    {"features", COLUMN_NUMBER, .key = "features_seconds", .unit = text_seconds},
    {"QR", COLUMN_NUMBER, .key = "qr_seconds", .unit = text_seconds},
    {"ridge", COLUMN_NUMBER, .key = "ridge_seconds", .unit = text_seconds},
    {"whole run", COLUMN_NUMBER, .key = "total_seconds", .unit = text_seconds},
};

static void fit_table(struct page *page) {
    const struct record *row = NULL;
    struct table table;
    table_open(&table,
               "Last layers by least squares on all training images: accuracy, and seconds for features, "
               "QR and the choice of the ridge.");
    TABLE_COLUMNS(&table, fit_columns);
    while ((row = records_after(page->records, row, "readout"))) table_row(&table, row->line, row);
    page_optional_table(page, &table);
}

static void write_readout(struct page *page) {
    struct selections streams = page_selections(page, "readout_step", stream_key);
    fit_table(page);
    for (size_t i = 0; i < streams.count; i++) {
        page_heading(page, "%s", streams.list[i].key);
        stream_chart(page, &streams.list[i], i);
        memory_table(page, streams.list[i].rows[streams.list[i].count - 1]->run);
    }
    selections_free(&streams);
}

static bool is_present(const struct records *records) {
    return records_any(records, "readout") || records_any(records, "readout_step");
}

const struct section section_readout = {"readout", "Readouts", "./train readout --log FILE",
                                        .present = is_present, .write = write_readout};
