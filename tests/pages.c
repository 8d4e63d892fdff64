#include "tests/pages.h"

#include <stdio.h>

#include "src/report/page.h"
#include "tests/markup_check.h"
#include "tests/support.h"

const char *pages_write_text(const char *name, const char *text) {
    const char *path = support_path(name);
    support_write(path, text, strlen(text));
    return path;
}

char *page_of(const struct records *records) {
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    assert_status(page_write(out, records, NULL, NULL), STATUS_OK);
    fclose(out);
    const char *fault = markup_fault(text);
    if (fault) fail_msg("not well-formed at: %.200s", fault);
    return text;
}

char *page_of_text(const char *jsonl) {
    struct records records = {0};
    assert_status(records_read(&records, pages_write_text("lines.jsonl", jsonl)), STATUS_OK);
    char *text = page_of(&records);
    records_free(&records);
    return text;
}

bool has_section(const char *page, const char *id) {
    char tag[64];
    snprintf(tag, sizeof tag, "<section id=\"%s\">", id);
    return strstr(page, tag) != NULL;
}

size_t place_of(const char *text, const char *part) {
    const char *place = strstr(text, part);
    if (!place) fail_msg("'%s' is not in the page", part);
    return (size_t)(place - text);
}
