/* How many threads a team has: fewer beside busy processes, if that is faster. */
#ifndef TESSERA_KERNELS_HOST_TEAM_SIZE_H
#define TESSERA_KERNELS_HOST_TEAM_SIZE_H

#include <stdbool.h>
#include <stddef.h>

/* Between two calls, the next one may be a trial with one thread more or less. */
struct team_size {
    size_t most, now, trial; /* threads; trial 0: none */
    double seconds;          /* of a step in the last call with `now` threads */
    unsigned rest;           /* calls until the next trial */
};

/* Starts with all of `most` threads. */
static inline struct team_size team_size_init(size_t most) {
    return (struct team_size){.most = most, .now = most};
}

/* Of the next call. */
static inline size_t team_size_next(const struct team_size *size) {
    return size->trial ? size->trial : size->now;
}

/* After a call: the seconds of a step, and the share of the time that a thread waited for one without a core
   (team_lost). A trial is kept if it was faster. On a quiet machine all threads stay. */
static inline void team_size_measured(struct team_size *size, double seconds, double lost) {
    enum { REST = 8 };
    static const double MUCH = 0.25;
    if (size->trial) {
        if (seconds < size->seconds) size->now = size->trial;
        if (seconds < size->seconds) size->seconds = seconds;
        size->trial = 0;
        size->rest = REST;
        return;
    }
    size->seconds = seconds;
    if (size->rest) {
        size->rest--;
    } else if (lost > MUCH && size->now > 1) {
        size->trial = size->now - 1;
    } else if (size->now < size->most) {
        size->trial = size->now + 1;
    }
}

#endif
