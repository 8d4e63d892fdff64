/* Pages of the report, made from lines of a log and checked to be well-formed. */
#ifndef TESSERA_TESTS_PAGES_H
#define TESSERA_TESTS_PAGES_H

#include <stdbool.h>

#include "src/report/records.h"

/* Writes a file of the test's folder and returns its path. */
const char *pages_write_text(const char *name, const char *text);

/* The page of these rows, or of these lines. The caller frees it. */
char *page_of(const struct records *records);
char *page_of_text(const char *jsonl);

/* True if the page has the section with this id. */
bool has_section(const char *page, const char *id);

/* Where `part` begins in `text`; fails the test if it does not. */
size_t place_of(const char *text, const char *part);

#endif
