/* The backends of a bench, opened. */
#ifndef TESSERA_BENCH_CANDIDATES_H
#define TESSERA_BENCH_CANDIDATES_H

#include "src/bench/benchmark.h"
#include "src/bench/sweep.h"

/* A row that cannot run, and why. */
struct left_out {
    char label[256], reason[640];
    enum outcome outcome;
};

struct candidates {
    struct candidate *list;
    size_t count;
    struct left_out *left_out;
    size_t left_out_count;
};

/* Opens the backend in a slot of its contestant. `label` is its name. The candidate must not move in memory,
   and the backend must outlive it. */
enum status candidate_open(struct candidate *one, struct contestant *contestant, const struct config *config,
                           const struct contest_backend *backend, size_t slot);
/* Measures the rates of a device (that of copies if `bandwidth`), in a process without a plug-in. */
enum status candidates_rates(const struct config *config, enum gemm_device device, int threads,
                             bool bandwidth, struct rates *rates);

/* Opens each row of the sweep that can be used here in its contestant, and measures the rates of its device,
   once for each device and thread count. The contestants are the sweep's. */
enum status candidates_open(struct candidates *candidates, const struct sweep *sweep);
void candidates_close(struct candidates *candidates);

#endif
