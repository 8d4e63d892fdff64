/* Shared by the columns of several tables: units, and cells that combine values of a record. */
#ifndef TESSERA_REPORT_CELLS_H
#define TESSERA_REPORT_CELLS_H

#include "src/report/table.h"

/* Explains the mark of cell_noise at the end of a caption. */
#define NOISY " noisy: the median is uncertain by more than 5 %%."
/* ", noisy" if the record says so, else "". */
const char *cell_noise(const cJSON *line);

/* Units that text.h does not have. */
struct text_number unit_count(double value);   /* a whole number */
struct text_number unit_ratio(double value);   /* two decimals */
struct text_number unit_share(double value);   /* three decimals */
struct text_number unit_percent(double value); /* no decimals */
struct text_number unit_bytes(double value);

void cell_backend(struct cell *cell); /* as row_backend */
void cell_label(struct cell *cell);   /* as selection_label; the context is the selection */
void cell_shape(struct cell *cell);   /* m x n x k */
void cell_median(struct cell *cell);  /* median_seconds, and "noisy" if so */
void cell_spread(struct cell *cell);  /* min_seconds to max_seconds */
void cell_epoch(struct cell *cell);   /* the column's key, min to max, and "extrapolated", "noisy" if so */
void cell_epoch_median(struct cell *cell); /* the same without min to max; and these alone */
void cell_epoch_spread(struct cell *cell);
void cell_time(struct cell *cell); /* the seconds of the parts in the column's key (see row_seconds) */

void cell_error(struct cell *cell); /* the column's key, with two digits: "4.9e-07"; "-" without a value */

/* A column of accuracies is called "test accuracy", or "validation accuracy" if all its rows are of
   validation images. Start with zero, add each row, then take the title. */
struct held_out_parts {
    bool test, validation;
};
void held_out_add(struct held_out_parts *parts, const cJSON *line);
const char *held_out_title(const struct held_out_parts *parts);
/* Writes the accuracy of the line (row_held_out), its standard error as a fraction unless that is NaN, and
   its part if the column's title names the other: "97.59 % +- 0.15 (validation)". */
void cell_held_out(struct cell *cell, const cJSON *line, double error);

#endif
