/* What tables and charts ask of a row: its name, its parts of time. */
#ifndef TESSERA_REPORT_ROW_H
#define TESSERA_REPORT_ROW_H

#include "src/report/records.h"

/* "cublas", "cublas tf32": the backend, with the precision where it is not that of the dtype. */
void row_backend(const cJSON *line, char *name, size_t size);
/* "f32", "f64", "tf32", "bf16" */
const char *row_precision(const cJSON *line);
/* Does the GEMM run on a GPU? With residency host the tensors live on the host all the same. */
bool row_on_gpu(const cJSON *line);
/* The name of a row, which tells most rows of a comparison apart: "cublas tf32, device, graph", "openmp, 2
   threads, f64". */
void row_label(const cJSON *line, char *name, size_t size);

/* What rows of the same label may differ in, a part at a time: "batch 64", "tile 16, static shared memory";
   "" where nothing is known. */
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

/* Why a row has no time: "left out: ..." or "wrong: ..."; false if it has one. */
bool row_refused(const cJSON *line, char *why, size_t size);

#endif
