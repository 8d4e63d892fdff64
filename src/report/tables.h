/* The tables that both the page and a Markdown file show: each from the rows of one selection, opened here
   and to be closed by the caller. */
#ifndef TESSERA_REPORT_TABLES_H
#define TESSERA_REPORT_TABLES_H

#include "src/report/selection.h"
#include "src/report/table.h"

/* Rows of "compare": implementation, test accuracy, transfer/total, epoch, speed-up. A row that does not
   agree has its reason and no time. */
void tables_compare(struct table *table, const struct selection *rows);
/* Rows of "gemm": a row a shape, op and precision; a column a backend, with GFLOP/s and share of peak. */
void tables_gemm(struct table *table, const struct selection *rows);
/* The kernels that those rows ran, each once: threads, registers, shared memory, occupancy. */
void tables_kernels(struct table *table, const struct selection *rows);
/* Rows of "peak", "scaling", "amdahl", "shmem". */
void tables_peak(struct table *table, const struct selection *rows);
void tables_scaling(struct table *table, const struct selection *rows);
void tables_amdahl(struct table *table, const struct selection *rows);
void tables_shmem(struct table *table, const struct selection *rows);
/* Rows of "breakeven": batch down, hidden size across, the winner and its time in the cell. */
void tables_breakeven(struct table *table, const struct selection *rows);

#endif
