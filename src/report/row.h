/* Names and parts of time of a row, for tables and charts. */
#ifndef TESSERA_REPORT_ROW_H
#define TESSERA_REPORT_ROW_H

#include "src/report/records.h"

/* "cublas", "cublas tf32": the backend, and the precision if it differs from the dtype. */
struct row_name {
    char text[128];
};
struct row_name row_backend(const cJSON *line);
/* "f32", "f64", "tf32", "bf16", "fp16" */
const char *row_precision(const cJSON *line);
/* Does the GEMM run on a GPU, whatever the residency? */
bool row_on_gpu(const cJSON *line);
/* The name of a row, mostly unique in a table: "cublas tf32, device, graph", "openmp, f64, 2 threads". */
void row_label(const cJSON *line, char *name, size_t size);

/* A setting in which rows of the same label may differ: "batch 64", "tile 16, static shared memory"; "":
   unknown. */
enum { ROW_SETUPS = 6 };
void row_setup(const cJSON *line, size_t part, char *text, size_t size);

/* The parts of an epoch that tables and bars show. */
enum { ROW_PARTS = 7 };
struct row_part {
    const char *title, *name; /* of a legend; of a column */
    const char *keys;         /* of the object "time", separated by spaces */
};
extern const struct row_part row_parts[ROW_PARTS];
/* The sum of these parts of the object "time"; 0 if nothing was measured there. */
double row_seconds(const cJSON *line, const char *keys);

/* The images that an accuracy of the row is of, those that were not trained on: "test", or "validation" if it
   has no accuracy on a test set. */
const char *row_held_out_part(const cJSON *line);
/* The value of "test_QUANTITY" or "validation_QUANTITY"; NaN if there is neither. */
double row_held_out(const cJSON *line, const char *quantity);

/* If the row has no result, writes why ("left out: ...", "wrong result: ...") and returns true; `why` may be
   NULL with size 0. */
bool row_refused(const cJSON *line, char *why, size_t size);

#endif
