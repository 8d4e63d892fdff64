/* Selections: rows of one type and key (a config on a machine, say) for one table or chart. */
#ifndef TESSERA_REPORT_SELECTION_H
#define TESSERA_REPORT_SELECTION_H

#include "src/report/records.h"
#include "src/report/row.h"

enum { SELECTION_TEXT = 512 };

/* Distinct words in order of appearance; owned copies. */
struct names {
    char **list;
    size_t count;
};

/* The index of the name, added if new; SIZE_MAX if memory ran out (memory.h notes it). */
size_t names_index(struct names *names, const char *name);
void names_free(struct names *names);

struct selection {
    const struct record **rows;
    size_t count;
    char key[SELECTION_TEXT];
};

struct selections {
    struct selection *list;
    size_t count;
};

/* Writes the key of a row. */
typedef void selection_key(const struct record *record, char *key, size_t size);

/* Groups the rows of a type by key, in order of appearance. Of "compare" rows with the same label and
   settings (a baseline that several comparisons share) only the first is kept. `key` NULL: all rows in one
   selection. STATUS_FAILED if memory ran out. */
enum status selections_of(struct selections *selections, const struct records *records, const char *type,
                          selection_key *key);
/* How the row differs from others with its row_label: ", batch 64"; "" if there are none. */
void selection_difference(const struct selection *selection, size_t row, char *text, size_t size);
/* row_label and the difference. */
void selection_label(const struct selection *selection, size_t row, char *text, size_t size);
/* The distinct values of a key, ascending, as whole numbers; at most 64. The caller frees them. */
struct names selection_values(const struct selection *selection, const char *key);
/* row_backend; with the threads, if another row of this backend has others: "openblas, 2 threads". The
   selection may be NULL. */
struct row_name selection_backend(const struct selection *selection, const cJSON *line);
void selections_free(struct selections *selections);

/* Keys: the machine; "CONFIG on MACHINE", and likewise config and dtype, dtype, m x n x k. */
selection_key selection_machine, selection_config, selection_config_dtype, selection_dtype, selection_shape,
    selection_kmeans_steps, /* "4,194,304 points of 32 features, f64, K = 64" */
    selection_qr;           /* "Windows of 8,192 x 2,048, 1 row apart, f32" */

/* "Measured on: ..." with GPU, CPU, threads, compiler, version, commit and data of each distinct header. */
void selection_measured_on(const struct selection *selection, char *text, size_t size);

#endif
