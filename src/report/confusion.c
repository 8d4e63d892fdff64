/* Which class is taken for which: the matrix, and a table of the classes. */
#include "src/report/confusion.h"

#include "src/base/text.h"
#include "src/report/tables.h"

void confusion_count(double *counts, size_t classes, const uint8_t *labels, const uint8_t *predicted,
                     size_t images) {
    for (size_t i = 0; i < images; i++) counts[labels[i] * classes + predicted[i]]++;
}

/* --- precision and recall: the context is one class --- */

struct class {
    size_t label;
    double images, predicted, right;
};

static void class_cell(struct cell *cell) {
    cell_text(cell, "%zu", ((const struct class *)cell->context)->label);
}

static void images_cell(struct cell *cell) {
    const struct class *class = cell->context;
    cell_text(cell, "%s", text_grouped((uint64_t) class->images).text);
}

static void precision_cell(struct cell *cell) {
    const struct class *class = cell->context;
    cell_text(cell, "%s", text_percent(class->right / class->predicted, 2).text);
}

static void recall_cell(struct cell *cell) {
    const struct class *class = cell->context;
    cell_text(cell, "%s", text_percent(class->right / class->images, 2).text);
}

static const struct column columns[] = {
    {"class", COLUMN_TEXT, .cell = class_cell},
    {"images", COLUMN_NUMBER, .cell = images_cell},
    {"precision", COLUMN_NUMBER, .cell = precision_cell},
    {"recall", COLUMN_NUMBER, .cell = recall_cell},
};

void tables_classes(struct table *table, const double *counts, size_t classes) {
    table_open(table,
               "Precision: the share of the predictions of a class that are right. Recall: the share of "
               "its images that are found.");
    TABLE_COLUMNS(table, columns);
    for (size_t c = 0; c < classes; c++) {
        struct class class = {.label = c, .right = counts[c * classes + c]};
        for (size_t other = 0; other < classes; other++) {
            class.images += counts[c * classes + other];
            class.predicted += counts[other * classes + c];
        }
        table_row(table, NULL, &class);
    }
}

/* --- console --- */

static void print_matrix(FILE *out, const double *counts, size_t classes) {
    fprintf(out, "confusion matrix (row: label, column: prediction; . is none)\n      ");
    for (size_t c = 0; c < classes; c++) fprintf(out, " %5zu", c);
    fputc('\n', out);
    for (size_t r = 0; r < classes; r++) {
        fprintf(out, "%6zu", r);
        for (size_t c = 0; c < classes; c++) {
            const double count = counts[r * classes + c];
            fprintf(out, " %5s", count > 0 ? text_fixed(count, 0).text : ".");
        }
        fputc('\n', out);
    }
    fputc('\n', out);
}

void confusion_print(FILE *out, const double *counts, size_t classes) {
    struct table table;
    print_matrix(out, counts, classes);
    tables_classes(&table, counts, classes);
    table_console(out, &table);
    table_close(&table);
}
