/* How many threads a team has: fewer beside busy processes, if that is faster. */
#ifndef TESSERA_KERNELS_HOST_TEAM_SIZE_H
#define TESSERA_KERNELS_HOST_TEAM_SIZE_H

#include <stdbool.h>
#include <stddef.h>

/* Between two calls, the next one may be a trial with one thread more or less. */
struct team_size {
    size_t most, now, trial; /* threads; trial 0: none */
    double seconds;          /* of a step in the last call with `now` threads */
    unsigned contended;      /* calls in a row */
    unsigned pause, rest;    /* calls between two trials, and until the next one */
};

/* Starts with all of `most` threads. */
static inline struct team_size team_size_init(size_t most) {
    return (struct team_size){.most = most, .now = most, .pause = 1};
}

/* Of the next call. */
static inline size_t team_size_next(const struct team_size *size) {
    return size->trial ? size->trial : size->now;
}

/* After a call: the seconds of a step, and the share of the time that a thread waited asleep (team_lost). A
   trial is kept if it was faster; else the next one comes later. On a quiet machine all threads stay. */
static inline void team_size_measured(struct team_size *size, double seconds, double lost) {
    enum { LONGEST_PAUSE = 8 };
    /* n threads that lose this share of their time are as fast as n - 1 that lose none */
    const double much = 1 / (double)size->now;
    if (size->trial) {
        const bool faster = seconds < size->seconds;
        size->pause = faster ? 1 : size->pause < LONGEST_PAUSE ? 2 * size->pause : LONGEST_PAUSE;
        if (faster) size->now = size->trial;
        if (faster) size->seconds = seconds;
        size->trial = 0;
        size->rest = size->pause;
        return;
    }
    size->seconds = seconds;
    size->contended = lost > 0.9 * much ? size->contended + 1 : 0;
    if (size->rest) {
        size->rest--;
    } else if (size->contended > 1 && size->now > 1) {
        size->trial = size->now - 1;
    } else if (size->now < size->most) {
        size->trial = size->now + 1;
    }
}

#endif
