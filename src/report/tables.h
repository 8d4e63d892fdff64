/* The tables that the console, the page or a Markdown file share. Each builder opens its table; the caller
   closes it. */
#ifndef TESSERA_REPORT_TABLES_H
#define TESSERA_REPORT_TABLES_H

#include "src/data/classes.h"
#include "src/report/selection.h"
#include "src/report/table.h"

/* Appends all rows of a selection, which is the context of their cells. */
void tables_fill(struct table *table, const struct selection *rows);

/* Rows of "compare": one implementation each. */
void tables_compare(struct table *table, const struct selection *rows);
/* Of these rows, the energy of an epoch, or why it was not measured; empty if it was not requested. */
void tables_energy(struct table *table, const struct selection *rows);
/* Rows of "gemm": one product each. */
void tables_gemm_details(struct table *table, const struct selection *rows);
/* The same rows as a pivot: GFLOP/s and share of peak, products down, backends across. */
void tables_gemm(struct table *table, const struct selection *rows);
/* The kernels that those rows ran, each once: threads, registers, shared memory, occupancy. */
void tables_kernels(struct table *table, const struct selection *rows);
/* The hardware counters of rows of "gemm" or "shmem", and the reasons of rows without. */
void tables_counters_cpu(struct table *table, const struct selection *rows);
void tables_counters_gpu(struct table *table, const struct selection *rows);
/* Rows of "peak", "scaling", "amdahl", "shmem". */
void tables_peak(struct table *table, const struct selection *rows);
void tables_scaling(struct table *table, const struct selection *rows);
void tables_amdahl(struct table *table, const struct selection *rows);
void tables_shmem(struct table *table, const struct selection *rows);
/* Rows of "ranks": one number of processes each. */
void tables_ranks(struct table *table, const struct selection *rows);
/* Rows of "kmeans_step": one variant each; without the selection, for a single row. */
void tables_kmeans_steps(struct table *table, const struct selection *rows);
/* Rows of "qr": one method each. */
void tables_qr(struct table *table, const struct selection *rows);
/* Rows of "breakeven": batch down, hidden size across, the winner and its time in the cell. */
void tables_breakeven(struct table *table, const struct selection *rows);
/* Rows of "grade": one submission each, with its points. */
void tables_grades(struct table *table, const struct selection *rows);
/* Precision and recall of every class, from counts[label][prediction]. */
void tables_classes(struct table *table, const double *counts, size_t classes,
                    const struct class_names *names);

#endif
