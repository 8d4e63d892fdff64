/* A comparison as JSON lines: a header, then one "compare" line for each row. */
#ifndef TESSERA_BENCH_COMPARISON_LOG_H
#define TESSERA_BENCH_COMPARISON_LOG_H

#include "src/bench/comparison.h"
#include "src/report/records.h"

/* Adds the lines to `records`. `baseline` may be NULL: no speed-ups. Rows that are wrong or left out have a
   reason and no time. */
enum status comparison_records(struct records *records, const struct comparison *comparison,
                               const struct comparison_row *baseline);

#endif
