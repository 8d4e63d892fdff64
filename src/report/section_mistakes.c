/* The most confident mistakes of an evaluation, as images. */
#include <stdio.h>

#include "src/base/text.h"
#include "src/report/evaluation.h"
#include "src/report/page.h"

enum { MOST_MISTAKES = 36 /* of an evaluation: 2,000 px on a phone */ };

static bool mistakes_present(const struct records *records) {
    const struct record *row = NULL;
    while ((row = records_after(records, row, "mistake")))
        if (page_has_image(row->line)) return true;
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

/* The name of the class in the key, or its number. */
static struct class_label class_of(const cJSON *line, const char *key, const struct class_names *names) {
    const size_t class = record_count(line, key, EVALUATION_CLASSES, EVALUATION_CLASSES);
    struct class_label label;
    if (class < names->count) return classes_label(names, class);
    snprintf(label.text, sizeof label.text, "%s", text_fixed(record_number(line, key), 0).text);
    return label;
}

static void write_mistake(struct page *page, const cJSON *line, const struct class_names *names) {
    const struct class_label label = class_of(line, "label", names),
                             predicted = class_of(line, "predicted", names);
    struct image_text text;
    snprintf(text.alternative, sizeof text.alternative, "a %s taken for a %s", label.text, predicted.text);
    snprintf(text.bold, sizeof text.bold, "%s", predicted.text);
    snprintf(text.rest, sizeof text.rest, ", not %s", label.text);
    snprintf(text.below, sizeof text.below, "%s, #%s",
             text_percent(record_number(line, "confidence"), 1).text,
             text_fixed(record_number(line, "image"), 0).text);
    page_image(page, line, &text);
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
    page_images_open(page);
    for (size_t shown = 0; row && shown < MOST_MISTAKES; row = records_after(page->records, row, "mistake")) {
        if (row->run != first->run) continue;
        write_mistake(page, row->line, &names);
        shown++;
    }
    page_images_close(page);
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
