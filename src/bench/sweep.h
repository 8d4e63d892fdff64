/* The rows of a comparison: one config for each combination of the values that were listed. */
#ifndef TESSERA_BENCH_SWEEP_H
#define TESSERA_BENCH_SWEEP_H

#include "src/nn/config.h"

struct sweep_row {
    struct config config;
    const struct gemm_backend *backend; /* NULL: not usable here, */
    char left_out[256];                 /* because of this */
    char wrong[512];                    /* (optional) why the caller excludes the backend as wrong */
    char label[128];                    /* the backend and what differs between rows */
};

/* Comma-separated values; NULL or "": what the config says. */
struct sweep_lists {
    const char *backends; /* or "all": every backend that can be used here, the others with the reason */
    const char *threads, *dtypes, *precisions, *engines, *residencies, *pins;
};

struct sweep {
    struct sweep_row *rows;
    size_t count;
};

/* Combinations that differ only in what their backend lacks (threads on a GPU, residency on the host) make
   one row. STATUS_UNAVAILABLE if a backend was named that cannot be used, STATUS_USAGE for a wrong value. */
enum status sweep_open(struct sweep *sweep, const struct config *config, const struct sweep_lists *lists);
void sweep_close(struct sweep *sweep);

#endif
