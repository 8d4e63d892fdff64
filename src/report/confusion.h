/* The confusion matrix. */
#ifndef TESSERA_REPORT_CONFUSION_H
#define TESSERA_REPORT_CONFUSION_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "src/data/classes.h"

/* Counts `images` by label (row) and prediction (column) into counts[classes][classes], which starts at
   zero. */
void confusion_count(double *counts, size_t classes, const uint8_t *labels, const uint8_t *predicted,
                     size_t images);

/* Prints the matrix, then precision and recall of every class. Columns have numbers instead of names that are
   longer than five letters; then rows have both. */
void confusion_print(FILE *out, const double *counts, size_t classes, const struct class_names *names);

#endif
