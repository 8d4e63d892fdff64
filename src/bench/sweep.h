/* The rows of a comparison: one config for each combination of the values that were listed. */
#ifndef TESSERA_BENCH_SWEEP_H
#define TESSERA_BENCH_SWEEP_H

#include "src/bench/contestant.h"

struct sweep_row {
    struct config config;
    const struct contest_backend *backend; /* NULL: not usable here */
    struct contestant *contestant;         /* the process that runs it; started by the first request */
    char left_out[256];                    /* why it is not usable */
    char wrong[640];                       /* why it is excluded as wrong */
    char name[256];                        /* of the backend, with its options */
    char label[256];                       /* the name and what differs between rows */
};

/* Comma-separated values; NULL or "": the value of the config. */
struct sweep_lists {
    /* "NAME:key=value,key=value,NAME,..": an element that begins with "key=" belongs to the backend before
       it. "all": every backend; unusable ones get a row with the reason. */
    const char *backends;
    const char *threads, *dtypes, *precisions, *engines, *residencies, *pins;
};

struct sweep {
    struct sweep_row *rows;
    size_t count;
    struct contest_backend *backends; /* one for each of the list */
    struct contestant *contestants;   /* one for each row */
};

/* Combinations that differ only in what their backend lacks (threads on a GPU, residency on the host) make
   one row. A plug-in is loaded in a process of its own alone; if that ends it, its rows are wrong.
   STATUS_UNAVAILABLE if a backend was named that cannot be used, STATUS_USAGE for a wrong value. */
enum status sweep_open(struct sweep *sweep, const struct config *config, const struct sweep_lists *lists);
void sweep_close(struct sweep *sweep);

/* Is it a row of the backend "NAME:options", or of any options if the text has none? */
bool sweep_row_is(const struct sweep_row *row, const char *backend);

#endif
