/* Text in HTML, SVG and Markdown. All text from files is escaped here: none of it can become markup. */
#ifndef TESSERA_REPORT_MARKUP_H
#define TESSERA_REPORT_MARKUP_H

#include <stdio.h>

/* Text for HTML and SVG, attribute values too: & < > " ' as entities, control characters as spaces, bytes
   that are not UTF-8 as '?'. */
void markup_text(FILE *out, const char *text);

/* Text for a cell of a Markdown table: one line, no cell border, no HTML, no emphasis. */
void markup_markdown(FILE *out, const char *text);
/* The same as a code span, where only the backtick and the border of the cell are markup. */
void markup_code(FILE *out, const char *text);

#endif
