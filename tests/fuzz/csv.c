/* Any bytes as a CSV file of images, with and without labels, and as names of classes. What was read and
   written again reads back. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/data/csv.h"
#include "tests/fuzz/fuzz.h"

static struct memory_file file;

/* Reads the file; the set is empty if it was refused. */
static struct dataset read_file(size_t unlabelled) {
    struct dataset set;
    const enum status status = csv_read(&set, file.path, unlabelled);
    if (status && (status != STATUS_BAD_DATA || !status_message()[0] || set.images || set.count))
        fuzz_fail("refused with status %d: %s", status, status_message());
    if (!status && (!set.count || !set.height || !set.width)) fuzz_fail("accepted without images");
    return set;
}

static void write_again(const struct dataset *set) {
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    if (!out) abort();
    for (size_t i = 0; i < set->count; i++) {
        fprintf(out, "%u", set->labels[i]);
        for (size_t p = 0; p < set->height * set->width; p++)
            fprintf(out, ",%u", set->images[i * set->height * set->width + p]);
        fputc('\n', out);
    }
    fclose(out);
    memory_file_fill(&file, text, size);
    free(text);
}

static void check_round_trip(size_t unlabelled) {
    struct dataset set = read_file(unlabelled), again;
    if (!set.count) return;
    write_again(&set);
    again = read_file(0);
    if (again.count != set.count || again.height != set.height || again.width != set.width ||
        memcmp(again.labels, set.labels, set.count) != 0 ||
        memcmp(again.images, set.images, set.count * set.height * set.width) != 0)
        fuzz_fail("read, written and read again, the images differ");
    dataset_free(&set);
    dataset_free(&again);
}

/* The same bytes as the names of classes. */
static void check_classes(const uint8_t *data, size_t size) {
    static struct class_names names, again;
    static char text[CLASSES_TEXT + 1];
    memory_file_fill(&file, data, size);
    memset(&names, 0, sizeof names);
    memset(&again, 0, sizeof again);
    if (classes_read(&names, file.path)) return;
    classes_text(&names, text);
    if (classes_parse(&again, text, "fuzz") || memcmp(&again, &names, sizeof names) != 0)
        fuzz_fail("the names of %zu classes do not read back", names.count);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!file.fd) memory_file_open(&file);
    forbid_writing(1);
    memory_file_fill(&file, data, size);
    check_round_trip(0);
    memory_file_fill(&file, data, size);
    check_round_trip(4);
    check_classes(data, size);
    forbid_writing(0);
    return 0;
}
