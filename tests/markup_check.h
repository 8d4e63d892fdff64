/* Checks that a text is well-formed markup (XML, after an optional <!DOCTYPE>). */
#ifndef TESSERA_TESTS_MARKUP_CHECK_H
#define TESSERA_TESTS_MARKUP_CHECK_H

#include <stddef.h>

/* NULL if every tag is closed in order, every attribute quoted and given once, every & an entity;
   else the place of the first error. */
const char *markup_fault(const char *text);

/* How often `part` occurs. */
size_t count_of(const char *text, const char *part);

#endif
