/* Which class is taken for which. */
#ifndef TESSERA_REPORT_CONFUSION_H
#define TESSERA_REPORT_CONFUSION_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Counts `images` by label (row) and prediction (column) into counts[classes][classes], which starts at
   zero. */
void confusion_count(uint32_t *counts, size_t classes, const uint8_t *labels, const uint8_t *predicted,
                     size_t images);

/* The matrix, then precision and recall of every class: tp / (tp + fp) and tp / (tp + fn), "-" where nothing
 * counts. */
void confusion_print(FILE *out, const uint32_t *counts, size_t classes);

#endif
