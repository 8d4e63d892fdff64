/* Time by part of the run. A profile is a lap timer: the interval between two laps belongs to exactly one
   part, so that the parts add up to the total. */
#ifndef TESSERA_BASE_PROFILE_H
#define TESSERA_BASE_PROFILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum profile_part {
    PART_STARTUP, /* device and library start, reading the data, first touch of memory */
    PART_H2D,
    PART_D2H,
    PART_GEMM_NN, /* forward, by layer in `gemm` */
    PART_GEMM_TN, /* weight gradient */
    PART_GEMM_NT, /* input gradient */
    PART_PANEL,   /* Householder reflectors of QR */
    PART_ELEMENTWISE,
    PART_OPTIMIZER,
    PART_COMMUNICATION, /* sums over several processes */
    PART_STEPS,         /* whole steps of a captured graph or a fused kernel */
    PART_BATCH,         /* permutation, gather, pixel conversion */
    PART_AUGMENT,
    PART_EVALUATION, /* and early stopping, and the report of each epoch */
    PART_CHECKPOINT,
    PART_AUDIT, /* checks of real calls */
    PART_OTHER, /* loop, progress line */
    PART_COUNT
};

enum { PROFILE_MAX_LAYERS = 64, PROFILE_OPS = 3 };

struct profile_gemm {
    double seconds, flops;
    uint64_t calls;
};

struct profile {
    double last;   /* monotonic seconds: end of the previous lap */
    bool diverted; /* every lap goes to `divert` */
    enum profile_part divert;
    double seconds[PART_COUNT];
    double aside; /* of work on a second stream, beside the parts: in none of them, and in no sum */
    struct profile_gemm gemm[PROFILE_OPS][PROFILE_MAX_LAYERS]; /* [NN, TN, NT][layer] */
};

/* Monotonic seconds. */
double clock_seconds(void);

/* All zero; the first lap starts now. */
void profile_start(struct profile *profile);

/* What an interval was spent on. */
struct profile_slot {
    enum profile_part part;
    size_t layer; /* of a GEMM; 0 is the first */
    double flops; /* of a GEMM, else 0 */
};

/* One GEMM of a layer; part is PART_GEMM_NN, _TN or _NT. */
struct profile_slot profile_gemm_slot(enum profile_part part, size_t layer, size_t m, size_t n, size_t k);

/* Adds the time since the last lap to `slot`. */
void profile_lap(struct profile *profile, struct profile_slot slot);

/* Adds only the first `seconds` of that time, measured by another clock; the next lap gets the rest. */
void profile_take(struct profile *profile, struct profile_slot slot, double seconds);

/* Adds the time since the last lap to PART_OTHER. Every lap then counts as `part` until profile_restore:
   evaluation calls the same functions as training. */
void profile_divert(struct profile *profile, enum profile_part part);
void profile_restore(struct profile *profile);

/* later - earlier, part by part. */
struct profile profile_since(const struct profile *later, const struct profile *earlier);

/* The sum of all parts. */
double profile_total(const struct profile *profile);
/* False for start-up, evaluation, checkpoints and audits. */
bool profile_is_training(enum profile_part part);
/* The sum of the parts of training. */
double profile_training(const struct profile *profile);
/* (H2D + D2H) / training; 0 if no time passed. */
double profile_transfer_ratio(const struct profile *profile);

/* Seconds of communication that other parts hide, at least: those aside, less those that all waits for. */
double profile_hidden_communication(const struct profile *profile);

/* "GEMM NN forward", "batch preparation", ... */
const char *profile_part_title(enum profile_part part);
/* The key in logs: "gemm_nn", "batch", ... */
const char *profile_part_key(enum profile_part part);

#endif
