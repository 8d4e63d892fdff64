#include "src/report/confusion.h"

#include <stdbool.h>

#include "src/base/text.h"
#include "src/report/cells.h"
#include "src/report/tables.h"

enum { COLUMN = 5 }; /* characters of a count */

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

void tables_classes(struct table *table, const double *counts, size_t classes,
                    const struct class_names *names) {
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
        cJSON_AddStringToObject(line, "class", classes_label(names, c).text);
        cJSON_AddNumberToObject(line, "images", images);
        cJSON_AddNumberToObject(line, "precision", counts[c * classes + c] / predictions);
        cJSON_AddNumberToObject(line, "recall", counts[c * classes + c] / images);
        table_row(table, line, NULL);
        cJSON_Delete(line);
    }
}

/* --- console --- */

/* Right-justified: the width counts letters, not the bytes of UTF-8. */
static void print_right(FILE *out, const char *text, size_t width) {
    fprintf(out, "%*s%s", text_padding(text, width), "", text);
}

static size_t longest_name(const struct class_names *names, size_t classes) {
    size_t longest = 0;
    for (size_t c = 0; c < classes; c++) {
        const size_t letters = text_letters(classes_label(names, c).text);
        if (letters > longest) longest = letters;
    }
    return longest;
}

static void print_matrix(FILE *out, const double *counts, size_t classes, const struct class_names *names) {
    const size_t longest = longest_name(names, classes);
    const bool numbered = longest > COLUMN;
    const size_t width = numbered ? longest : COLUMN + 1;
    fprintf(out, "confusion matrix (row: label, column: prediction; . is none)\n%*s", (int)width, "");
    if (numbered) fprintf(out, "%*s", COLUMN - 1, "");
    for (size_t c = 0; c < classes; c++) {
        const struct class_label number = classes_label(&(struct class_names){0}, c);
        fputc(' ', out);
        print_right(out, numbered ? number.text : classes_label(names, c).text, COLUMN);
    }
    fputc('\n', out);
    for (size_t r = 0; r < classes; r++) {
        print_right(out, classes_label(names, r).text, width);
        if (numbered) fprintf(out, " %*zu", COLUMN - 2, r);
        for (size_t c = 0; c < classes; c++) {
            const double count = counts[r * classes + c];
            fprintf(out, " %*s", COLUMN, count > 0 ? text_fixed(count, 0).text : ".");
        }
        fputc('\n', out);
    }
    fputc('\n', out);
}

void confusion_print(FILE *out, const double *counts, size_t classes, const struct class_names *names) {
    struct table table;
    print_matrix(out, counts, classes, names);
    tables_classes(&table, counts, classes, names);
    table_console(out, &table);
    table_close(&table);
}
