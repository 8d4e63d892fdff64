/* Images as comma-separated values: a row an image, the label and then its pixels from 0 to 255, row by row.
   */
#ifndef TESSERA_DATA_CSV_H
#define TESSERA_DATA_CSV_H

#include <stdbool.h>

#include "src/data/dataset.h"

/* Reads a file, raw or gzip. A first row with anything but numbers is a header; if it calls a column label,
   class or target, that is the label, else the first is. Rows of exactly `unlabelled` values (0: none) are
   pixels without a label, which is then 0. A square number of pixels is a square image, another a single row.
   STATUS_BAD_DATA names line and column. */
enum status csv_read(struct dataset *set, const char *path, size_t unlabelled);

/* Does the name end in .csv or .csv.gz? */
bool csv_has_name(const char *name);

#endif
