/* Any bytes as a log of `train report`. The page is well-formed markup, whatever the log holds; and the rows,
   written and read again, are the same rows. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/report/page.h"
#include "tests/fuzz/fuzz.h"
#include "tests/markup_check.h"

static struct memory_file file;

static void check_rows(const struct records *records) {
    for (size_t i = 0; i < records->count; i++) {
        const struct record *row = &records->list[i];
        if (strcmp(row->type, record_text(row->line, "type")) != 0 || !row->run || row->run > records->runs)
            fuzz_fail("row %zu has the type '%s' and the run %zu of %zu", i, row->type, row->run,
                      records->runs);
        if (row->header && strcmp(record_text(row->header, "type"), "header") != 0)
            fuzz_fail("the header of row %zu is none", i);
    }
}

static void check_page(const struct records *records) {
    char *page = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&page, &size);
    if (!out) abort();
    const enum status status = page_write(out, records, NULL, NULL);
    fclose(out);
    if (status) fuzz_fail("no page: %s", status_message());
    const char *fault = strlen(page) == size ? markup_fault(page) : page + strlen(page);
    if (fault) fuzz_fail("the page is not well-formed at '%.200s'", fault);
    free(page);
}

static void check_round_trip(const struct records *records) {
    struct records again = {0};
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (!out) abort();
    for (size_t i = 0; i < records->count; i++) {
        char *line = cJSON_PrintUnformatted(records->list[i].line);
        fprintf(out, "%s\n", line);
        cJSON_free(line);
    }
    fclose(out);
    memory_file_fill(&file, text, size);
    if (records_read(&again, file.path)) fuzz_fail("written, but refused: %s", status_message());
    if (again.count != records->count) fuzz_fail("%zu rows, then %zu", records->count, again.count);
    for (size_t i = 0; i < again.count; i++)
        if (strcmp(again.list[i].type, records->list[i].type) != 0 ||
            again.list[i].run != records->list[i].run)
            fuzz_fail("row %zu changed its type or its run", i);
    records_free(&again);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct records records = {0};
    if (!file.fd) memory_file_open(&file);
    memory_file_fill(&file, data, size);
    forbid_writing(1);
    const enum status status = records_read(&records, file.path);
    if (status && status != STATUS_BAD_DATA)
        fuzz_fail("refused with status %d: %s", status, status_message());
    if (!status != (records.count > 0)) fuzz_fail("status %d with %zu rows", status, records.count);
    check_rows(&records);
    if (!status) check_round_trip(&records);
    if (!status) check_page(&records);
    records_free(&records);
    forbid_writing(0);
    return 0;
}
