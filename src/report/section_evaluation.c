/* The confusion matrix of an evaluation. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/memory.h"
#include "src/base/text.h"
#include "src/report/evaluation.h"
#include "src/report/page.h"
#include "src/report/tables.h"

const char *evaluation_checkpoint(const cJSON *evaluation) {
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
    if (!cJSON_IsArray(rows) || count < 1 || count > EVALUATION_CLASSES) return NULL;
    *classes = (size_t)count;
    double *counts = memory_zero(*classes * *classes, sizeof *counts);
    for (size_t r = 0; counts && r < *classes; r++)
        for (size_t c = 0; c < *classes; c++) counts[r * *classes + c] = count_at(rows, r, c);
    return counts;
}

void evaluation_classes(const cJSON *line, size_t classes, struct class_names *names) {
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

static void describe_evaluation(const cJSON *line, char *text, size_t size) {
    const char *part = record_has(line, "validation_total") ? "validation" : "test";
    const char *layers = record_text(line, "layers"); /* "": a committee */
    const char *name = evaluation_checkpoint(line);
    char accuracy[128];
    describe_accuracy(line, part, accuracy, sizeof accuracy);
    snprintf(text, size, "%.120s%s%.80s%s%s, on %.80s: %s accuracy %s; loss %s; backend %.40s.", name,
             name[0] && layers[0] ? ", network "
             : layers[0]          ? "Network "
                                  : "",
             layers, record_has(line, "ema") ? ", moving average of the weights" : "",
             record_has(line, "tta") ? ", with test-time augmentation" : "", record_text(line, "data"), part,
             accuracy, text_fixed(record_number(line, "loss"), 4).text, record_text(line, "backend"));
}

/* Writes the results of the evaluations in the same run. */
static void list_evaluations(struct page *page, const struct record *confusion) {
    const struct record *row = NULL;
    struct names lines = {0};
    while ((row = records_after(page->records, row, "evaluation"))) {
        char text[1024];
        if (row->run != confusion->run) continue;
        describe_evaluation(row->line, text, sizeof text);
        names_index(&lines, text);
    }
    if (lines.count > 1) {
        page_list(page, &lines);
    } else if (lines.count) {
        page_note(page, "%s", lines.list[0]);
    }
    names_free(&lines);
}

static void write_confusion(struct page *page) {
    const struct record *row = NULL;
    size_t number = 0, classes;
    struct class_names names;
    struct table table;
    while ((row = records_after(page->records, row, "confusion"))) {
        double *counts = read_counts(row->line, &classes);
        if (!counts) continue;
        list_evaluations(page, row);
        page_columns_open(page);
        evaluation_classes(row->line, classes, &names);
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
