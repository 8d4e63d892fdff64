/* Text and numbers as they stand in HTML, SVG and Markdown. Everything that came from a file goes through
   here: no byte of it can become markup. */
#ifndef TESSERA_REPORT_MARKUP_H
#define TESSERA_REPORT_MARKUP_H

#include <stdio.h>

#include "src/base/text.h"

/* Text for HTML and SVG, attribute values too: & < > " ' as entities, control characters as spaces, bytes
   that are not UTF-8 as '?'. */
void markup_text(FILE *out, const char *text);

/* Text for a cell of a Markdown table: one line, no cell border, no HTML, no emphasis. */
void markup_markdown(FILE *out, const char *text);
/* The same as a code span: nothing is markup in there but the backtick and the border of the cell. */
void markup_code(FILE *out, const char *text);

/* Numbers for people; "-" for NaN. Seconds "14.8 ms"; three significant digits "1,540" "2.50" "0.00042";
   per cent of a fraction "97.59 %". */
struct text_number markup_seconds(double seconds);
struct text_number markup_short(double value);
struct text_number markup_percent(double fraction, int decimals);
struct text_number markup_fixed(double value, int decimals);

#endif
