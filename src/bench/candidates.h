/* Opens those that take part in a bench. */
#ifndef TESSERA_BENCH_CANDIDATES_H
#define TESSERA_BENCH_CANDIDATES_H

#include "src/bench/benchmark.h"
#include "src/bench/sweep.h"

/* What could not take part, and why. */
struct left_out {
    char label[128], reason[512];
    enum outcome outcome;
};

struct candidates {
    struct candidate *list;
    size_t count;
    struct left_out *left_out;
    size_t left_out_count;
};

/* One for each row of the sweep that can be opened here, with the rates of its device (the same device and
   thread count are measured once). */
enum status candidates_open(struct candidates *candidates, const struct sweep *sweep);
void candidates_close(struct candidates *candidates);

#endif
