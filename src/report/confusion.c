#include "src/report/confusion.h"

#include "src/report/cells.h"
#include "src/report/tables.h"

void confusion_count(double *counts, size_t classes, const uint8_t *labels, const uint8_t *predicted,
                     size_t images) {
    for (size_t i = 0; i < images; i++) counts[labels[i] * classes + predicted[i]]++;
}

/* --- precision and recall --- */

static struct text_number two_decimals(double fraction) {
    return text_percent(fraction, 2);
}

static const struct column columns[] = {
    {"class", COLUMN_TEXT, .key = "class"},
    {"images", COLUMN_NUMBER, .key = "images", .unit = unit_count},
    {"precision", COLUMN_NUMBER, .key = "precision", .unit = two_decimals},
    {"recall", COLUMN_NUMBER, .key = "recall", .unit = two_decimals},
};

void tables_classes(struct table *table, const double *counts, size_t classes) {
    table_open(table, "Precision: the share of the predictions of this class that are right. Recall: the "
                      "share of the images of this class that are found.");
    TABLE_COLUMNS(table, columns);
    for (size_t c = 0; c < classes; c++) {
        double images = 0, predictions = 0;
        for (size_t other = 0; other < classes; other++) {
            images += counts[c * classes + other];
            predictions += counts[other * classes + c];
        }
        cJSON *line = cJSON_CreateObject();
        cJSON_AddStringToObject(line, "class", text_grouped(c).text);
        cJSON_AddNumberToObject(line, "images", images);
        cJSON_AddNumberToObject(line, "precision", counts[c * classes + c] / predictions);
        cJSON_AddNumberToObject(line, "recall", counts[c * classes + c] / images);
        table_row(table, line, NULL);
        cJSON_Delete(line);
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
