/* The confusion matrix of an evaluation, and its most confident mistakes as images. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/memory.h"
#include "src/base/text.h"
#include "src/report/page.h"
#include "src/report/png.h"
#include "src/report/tables.h"

enum { MOST_CLASSES = 256, MOST_MISTAKES = 36 /* of an evaluation: 2,000 px on a phone */ };

/* "digits.safetensors": the checkpoint without its folders; "" if its name was a temporary one of mktemp. */
static const char *checkpoint_name(const cJSON *evaluation) {
    const char *path = record_text(evaluation, "checkpoint"), *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    return strncmp(name, "tmp.", 4) == 0 ? "" : name;
}

static double count_at(const cJSON *counts, size_t row, size_t column) {
    const cJSON *item = cJSON_GetArrayItem(cJSON_GetArrayItem(counts, (int)row), (int)column);
    return cJSON_IsNumber(item) && item->valuedouble >= 0 && item->valuedouble <= 1e15 ? item->valuedouble
                                                                                       : 0;
}

/* counts[classes][classes], which the caller frees; NULL if invalid or out of memory. */
static double *read_counts(const cJSON *line, size_t *classes) {
    const cJSON *rows = cJSON_GetObjectItemCaseSensitive(line, "counts");
    const int count = cJSON_GetArraySize(rows);
    if (!cJSON_IsArray(rows) || count < 1 || count > MOST_CLASSES) return NULL;
    *classes = (size_t)count;
    double *counts = memory_zero(*classes * *classes, sizeof *counts);
    for (size_t r = 0; counts && r < *classes; r++)
        for (size_t c = 0; c < *classes; c++) counts[r * *classes + c] = count_at(rows, r, c);
    return counts;
}

/* The names in the log, if all of them are valid. */
static void read_names(const cJSON *line, size_t classes, struct class_names *names) {
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(line, "names");
    enum status status = (size_t)cJSON_GetArraySize(list) == classes ? STATUS_OK : STATUS_BAD_DATA;
    names->count = 0;
    for (size_t c = 0; c < classes && !status; c++) {
        const char *name = cJSON_GetStringValue(cJSON_GetArrayItem(list, (int)c));
        status = classes_add(names, name ? name : "", "the log");
    }
    if (status) names->count = 0;
}

static struct names list_names(size_t classes, const struct class_names *own) {
    struct names names = {0};
    for (size_t c = 0; c < classes; c++) names_index(&names, classes_label(own, c).text);
    return names;
}

static void matrix(struct page *page, const double *counts, size_t classes, const struct class_names *names,
                   size_t number) {
    struct heatmap map;
    char id[64];
    double worst = 0;
    snprintf(id, sizeof id, "confusion-%zu", number + 1);
    if (!heatmap_open(&map, id, "Confusion matrix", list_names(classes, names), list_names(classes, names))) {
        heatmap_close(&map);
        return;
    }
    map.row_title = "label";
    map.column_title = "prediction";
    for (size_t i = 0; i < classes * classes; i++)
        if (i / classes != i % classes) worst = fmax(worst, counts[i]);
    for (size_t r = 0; r < map.rows.count; r++)
        for (size_t c = 0; c < map.columns.count; c++) {
            const double count = counts[r * classes + c];
            struct heatmap_cell *cell = &map.cells[r * map.columns.count + c];
            if (!(count > 0)) continue;
            snprintf(cell->text, sizeof cell->text, "%.0f", count);
            snprintf(cell->title, sizeof cell->title, "label %s, predicted %s: %.0f images",
                     classes_label(names, r).text, classes_label(names, c).text, count);
            cell->colour = r == c ? 0 : 1;
            cell->strength = r == c ? 0.22 : 0.12 + 0.6 * count / worst;
        }
    page_heatmap(
        page, &map,
        "Row: the label. Column: the prediction. The diagonal counts the right ones. The stronger the "
        "colour beside it, the more common the mistake.");
}

/* An accuracy as "97.59 %, 9,759 of 10,000 correct"; its keys begin with the part: "test" or "validation". */
static void describe_accuracy(const cJSON *line, const char *part, char *text, size_t size) {
    enum { MOST = 1 << 30 };
    char accuracy[64], correct[64], total[64];
    snprintf(accuracy, sizeof accuracy, "%s_accuracy", part);
    snprintf(correct, sizeof correct, "%s_correct", part);
    snprintf(total, sizeof total, "%s_total", part);
    snprintf(text, size, "%s, %s of %s correct", text_percent(record_number(line, accuracy), 2).text,
             text_grouped(record_count(line, correct, MOST, 0)).text,
             text_grouped(record_count(line, total, MOST, 0)).text);
}

/* Writes the results of the evaluations in the same run. */
static void note_evaluation(struct page *page, const struct record *confusion) {
    const struct record *row = NULL;
    while ((row = records_after(page->records, row, "evaluation"))) {
        const cJSON *line = row->line;
        const char *part = record_has(line, "validation_total") ? "validation" : "test";
        const char *layers = record_text(line, "layers"); /* "": a committee */
        const char *name = checkpoint_name(line);
        char accuracy[128];
        if (row->run != confusion->run) continue;
        describe_accuracy(line, part, accuracy, sizeof accuracy);
        page_note(page, "%.120s%s%.80s%s%s, on %.80s: %s accuracy %s; loss %s; backend %.40s.", name,
                  name[0] && layers[0] ? ", network "
                  : layers[0]          ? "Network "
                                       : "",
                  layers, record_has(line, "ema") ? ", moving average of the weights" : "",
                  record_has(line, "tta") ? ", with test-time augmentation" : "", record_text(line, "data"),
                  part, accuracy, text_fixed(record_number(line, "loss"), 4).text,
                  record_text(line, "backend"));
    }
}

static void write_confusion(struct page *page) {
    const struct record *row = NULL;
    size_t number = 0, classes;
    struct class_names names;
    struct table table;
    while ((row = records_after(page->records, row, "confusion"))) {
        double *counts = read_counts(row->line, &classes);
        if (!counts) continue;
        note_evaluation(page, row);
        page_columns_open(page);
        read_names(row->line, classes, &names);
        matrix(page, counts, classes, &names, number++);
        tables_classes(&table, counts, classes, &names);
        page_table(page, &table);
        page_columns_close(page);
        free(counts);
    }
}

const struct section section_confusion = {"confusion", "Confusion matrix",
                                          "./train eval CHECKPOINT --log FILE", .type = "confusion",
                                          .write = write_confusion};

/* --- mistakes --- */

static int hex_digit(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* The image of a row, which the caller frees; NULL if invalid. */
static uint8_t *read_pixels(const cJSON *line, size_t *height, size_t *width) {
    const char *hex = record_text(line, "pixels");
    *height = record_count(line, "height", PNG_MOST_PIXELS, 0);
    *width = record_count(line, "width", PNG_MOST_PIXELS, 0);
    const size_t count = *height * *width;
    if (!count || count > PNG_MOST_PIXELS || strlen(hex) != 2 * count) return NULL;
    uint8_t *pixels = memory_zero(count, 1);
    for (size_t i = 0; pixels && i < count; i++) {
        const int high = hex_digit(hex[2 * i]), low = hex_digit(hex[2 * i + 1]);
        if (high < 0 || low < 0) {
            free(pixels);
            return NULL;
        }
        pixels[i] = (uint8_t)(high << 4 | low);
    }
    return pixels;
}

static bool mistakes_present(const struct records *records) {
    const struct record *row = NULL;
    size_t height, width;
    while ((row = records_after(records, row, "mistake"))) {
        uint8_t *pixels = read_pixels(row->line, &height, &width);
        const bool found = pixels != NULL;
        free(pixels);
        if (found) return true;
    }
    return false;
}

static void write_mistake(struct page *page, const cJSON *line) {
    size_t height, width;
    uint8_t *pixels = read_pixels(line, &height, &width);
    if (!pixels) return;
    const struct text_number label = text_fixed(record_number(line, "label"), 0);
    const struct text_number predicted = text_fixed(record_number(line, "predicted"), 0);
    fprintf(page->out,
            "<figure class=\"digit\"><img width=\"84\" height=\"84\" alt=\"a %s taken for a %s\" src=\"",
            label.text, predicted.text);
    const enum status status = png_data_uri(page->out, pixels, height, width);
    if (status && !page->status) page->status = status;
    fprintf(page->out, "\"/><figcaption><b>%s</b>, not %s<br/>%s, #%s</figcaption></figure>\n",
            predicted.text, label.text, text_percent(record_number(line, "confidence"), 1).text,
            text_fixed(record_number(line, "image"), 0).text);
    free(pixels);
}

/* Names what was evaluated last in a run: a checkpoint, the committee of all, or at least the network. */
static void write_sheet_name(struct page *page, size_t run) {
    const struct record *row = NULL;
    const cJSON *last = NULL;
    while ((row = records_after(page->records, row, "evaluation")))
        if (row->run == run) last = row->line;
    if (checkpoint_name(last)[0]) {
        page_heading(page, "%.120s", checkpoint_name(last));
    } else if (record_text(last, "layers")[0]) {
        page_heading(page, "Network %.80s", record_text(last, "layers"));
    }
}

static size_t mistakes_of(const struct records *records, size_t run) {
    const struct record *row = NULL;
    size_t count = 0;
    while ((row = records_after(records, row, "mistake"))) count += row->run == run;
    return count;
}

static bool begins_run(const struct records *records, const struct record *mistake) {
    const struct record *row = records_after(records, NULL, "mistake");
    while (row->run != mistake->run) row = records_after(records, row, "mistake");
    return row == mistake;
}

/* The mistakes of the run of the first of them. */
static void write_sheet(struct page *page, const struct record *first) {
    const struct record *row = first;
    const size_t count = mistakes_of(page->records, first->run);
    write_sheet_name(page, first->run);
    if (count > MOST_MISTAKES) page_note(page, "The first %d of %zu in the log.", MOST_MISTAKES, count);
    fputs("<div class=\"digits\">\n", page->out);
    for (size_t shown = 0; row && shown < MOST_MISTAKES; row = records_after(page->records, row, "mistake")) {
        if (row->run != first->run) continue;
        write_mistake(page, row->line);
        shown++;
    }
    fputs("</div>\n", page->out);
}

static void write_mistakes(struct page *page) {
    const struct record *row = NULL;
    page_note(page,
              "Below each image: the prediction in bold and the label, then how sure the network was, and "
              "the number of the image in the test set (in the training set if a validation set was "
              "evaluated).");
    while ((row = records_after(page->records, row, "mistake"))) {
        if (begins_run(page->records, row)) write_sheet(page, row);
    }
}

const struct section section_mistakes = {"mistakes", "Most confident mistakes",
                                         "./train eval CHECKPOINT --misclassified 20 --log FILE",
                                         .present = mistakes_present, .write = write_mistakes};
