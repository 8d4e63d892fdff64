/* Rows that belong into one table or chart: same type, and same key (a config on a machine, say). */
#ifndef TESSERA_REPORT_SELECTION_H
#define TESSERA_REPORT_SELECTION_H

#include "src/report/records.h"

enum { SELECTION_TEXT = 512 };

/* Distinct words in the order in which they came. Owned copies. */
struct names {
    char **list;
    size_t count;
};

/* The index of the name, which is added if it is new; SIZE_MAX if memory ran out. */
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

/* Writes what rows that belong together have in common. */
typedef void selection_key(const struct record *record, char *key, size_t size);

/* The rows of a type, apart by key, in the order in which they came. Of rows of "compare" with the same label
   and set-up (a baseline that several comparisons share), and of "peak" of the same device, the first stays.
   `key` NULL: all rows in one selection. STATUS_FAILED if memory ran out. */
enum status selections_of(struct selections *selections, const struct records *records, const char *type,
                          selection_key *key);
/* What tells a row from those of the same row_label: ", batch 64"; "" if it is the only one. */
void selection_difference(const struct selection *selection, size_t row, char *text, size_t size);
/* row_label with that. */
void selection_label(const struct selection *selection, size_t row, char *text, size_t size);
void selections_free(struct selections *selections);

/* Keys: the machine that measured; a config, a config and dtype, a dtype, an m x n x k on a machine. What
   comes before " on " is the same for all rows of the selection; nothing for the machine alone. */
selection_key selection_machine, selection_config, selection_config_dtype, selection_dtype, selection_shape;

/* "Measured on: ..." for these rows: GPU, CPU, threads, compiler, version, commit, data; the rows' distinct
   headers one after another. */
void selection_measured_on(const struct selection *selection, char *text, size_t size);

#endif
