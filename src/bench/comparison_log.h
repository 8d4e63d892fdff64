/* A comparison as JSON lines: a header, then one "compare" line a row. */
#ifndef TESSERA_BENCH_COMPARISON_LOG_H
#define TESSERA_BENCH_COMPARISON_LOG_H

#include <stdio.h>

#include "src/bench/comparison.h"

/* `baseline` may be NULL: no speed-ups. Rows that are wrong or left out have the reason and no time. */
void comparison_write(FILE *out, const struct comparison *comparison, const struct comparison_row *baseline);

#endif
