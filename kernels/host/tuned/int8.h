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

#endif
