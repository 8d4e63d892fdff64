/* The most confident mistakes of an evaluation, as images. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/memory.h"
#include "src/base/text.h"
#include "src/report/evaluation.h"
#include "src/report/markup.h"
#include "src/report/page.h"
#include "src/report/png.h"

enum { MOST_MISTAKES = 36 /* of an evaluation: 2,000 px on a phone */ };

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

/* The names of the classes of a run; none if it logged none. */
static void find_names(const struct records *records, size_t run, struct class_names *names) {
    const struct record *row = NULL;
    names->count = 0;
    while ((row = records_after(records, row, "confusion")) && row->run != run) continue;
    if (!row) return;
    const cJSON *counts = cJSON_GetObjectItemCaseSensitive(row->line, "counts");
    evaluation_classes(row->line, (size_t)cJSON_GetArraySize(counts), names);
}

/* Writes the name of the class in the key, or its number. */
static void write_class(FILE *out, const cJSON *line, const char *key, const struct class_names *names) {
    const size_t class = record_count(line, key, EVALUATION_CLASSES, EVALUATION_CLASSES);
    markup_text(out, class < names->count ? classes_label(names, class).text
                                          : text_fixed(record_number(line, key), 0).text);
}

static void write_mistake(struct page *page, const cJSON *line, const struct class_names *names) {
    size_t height, width;
    uint8_t *pixels = read_pixels(line, &height, &width);
    if (!pixels) return;
    fputs("<figure class=\"digit\"><img width=\"84\" height=\"84\" alt=\"a ", page->out);
    write_class(page->out, line, "label", names);
    fputs(" taken for a ", page->out);
    write_class(page->out, line, "predicted", names);
    fputs("\" src=\"", page->out);
    const enum status status = png_data_uri(page->out, pixels, height, width);
    if (status && !page->status) page->status = status;
    fputs("\"/><figcaption><b>", page->out);
    write_class(page->out, line, "predicted", names);
    fputs("</b>, not ", page->out);
    write_class(page->out, line, "label", names);
    fprintf(page->out, "<br/>%s, #%s</figcaption></figure>\n",
            text_percent(record_number(line, "confidence"), 1).text,
            text_fixed(record_number(line, "image"), 0).text);
    free(pixels);
}

/* Names what was evaluated last in a run: a checkpoint, the committee of all, or at least the network. */
static void write_sheet_name(struct page *page, size_t run) {
    const struct record *row = NULL;
    const cJSON *last = NULL;
    while ((row = records_after(page->records, row, "evaluation")))
        if (row->run == run) last = row->line;
    if (evaluation_checkpoint(last)[0]) {
        page_heading(page, "%.120s", evaluation_checkpoint(last));
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
    struct class_names names;
    find_names(page->records, first->run, &names);
    write_sheet_name(page, first->run);
    if (count > MOST_MISTAKES) page_note(page, "The first %d of %zu in the log.", MOST_MISTAKES, count);
    fputs("<div class=\"digits\">\n", page->out);
    for (size_t shown = 0; row && shown < MOST_MISTAKES; row = records_after(page->records, row, "mistake")) {
        if (row->run != first->run) continue;
        write_mistake(page, row->line, &names);
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
