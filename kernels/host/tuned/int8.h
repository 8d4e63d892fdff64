/* Scores of pixels by integer products: shared by nearest.c and the kernels int8_*.c.

   A centre becomes q = round(c / scale), 16 bits, as two slices: q = 256 high + low, each a signed byte. Then
   x.q = 256 x.high + x.low, where both products are exact in int32.

   Packed centres: for each block of INT8_COLUMNS centres, for each step of INT8_STEP features, the slices
   high and low, [INT8_STEP / 4][INT8_COLUMNS][4]: what TDPBUSD and VPDPBUSD read. Zeros fill up the last step
   and the last block. */
#ifndef TESSERA_KERNELS_HOST_TUNED_INT8_H
#define TESSERA_KERNELS_HOST_TUNED_INT8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/host/tuned/tuned.h"

enum {
    INT8_ROWS = 32,    /* of a call of `scores` */
    INT8_COLUMNS = 16, /* centres of a block */
    INT8_STEP = 64,    /* features of a step */
    INT8_SLICE = INT8_STEP * INT8_COLUMNS,
    INT8_MOST_FEATURES = 1 << 16 /* 255 * 128 * 65536 < 2^31 */
};

struct int8_kernel {
    const char *name;
    bool (*usable)(void);
    void (*begin)(void); /* by each thread before its first call, and after its last one */
    void (*end)(void);

    /* scores[r][j] = scale (256 x.high + x.low) + bias[j] in float32, for INT8_ROWS rows of `steps` INT8_STEP
       bytes, `stride` bytes apart, and one block of packed centres. */
    void (*scores)(const uint8_t *x, size_t stride, size_t steps, const int8_t *packed, float scale,
                   const float *bias, float *scores, size_t ld);
};

extern const struct int8_kernel int8_amx, int8_vnni;

/* Centres in one slice, for int8_candidates: tiles of INT8_TILE centres, in each of which a word of four
   signed bytes of every centre follows the other: [clusters / INT8_TILE][words][INT8_TILE]. */
enum { INT8_GROUP = 64 /* points */, INT8_TILE = 6, INT8_ZERO = 128 /* the byte of 0 */ };
struct int8_slice {
    size_t clusters, words;  /* clusters: a multiple of INT8_TILE */
    int32_t *values, *start; /* start: of the sum of a centre */
    float *bias;
};

/* Rounds x to step (byte - INT8_ZERO): `count` elements, a multiple of 16. Returns the step, which is 0 if
   the largest absolute value is not between 1e-15 and 1e15; that value; and in float32 the sums of squares
   of the rounded elements and of what they leave. */
struct int8_rounded {
    float step, most, squares, left;
};
struct int8_rounded int8_round(size_t count, const float *x, uint8_t *bytes);

/* sum (x - c)^2 in float32. */
float int8_distance(size_t count, const float *x, const float *c);

/* Bytes to prefetch into the L2 cache: those of the next group. */
struct int8_ahead {
    const char *from, *end;
};

/* The centres j of which point p of a group has the score scale[p] (start[j] + x.values[j]) + bias[j] not
   more than gap[p] below its best one, in ascending order; and how many. `points` [words][INT8_GROUP] words
   of four bytes, scale and gap [INT8_GROUP] are 64-byte aligned. Scratch: scores [clusters + 1][INT8_GROUP],
   64-byte aligned; `to` has room for clusters + 1. On a CPU where int8_vnni is usable. */
size_t int8_candidates(const struct int8_slice *slice, const int32_t *points, const float *scale,
                       const float *gap, struct int8_ahead ahead, float *scores, struct tuned_survivor *to);

#endif
