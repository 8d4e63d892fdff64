/* The IDX file format of MNIST: two zero bytes, a type, the number of dimensions, the dimensions (big-endian,
   4 bytes each), the values. Raw or gzip, detected by content. */
#ifndef TESSERA_DATA_IDX_H
#define TESSERA_DATA_IDX_H

#include <stddef.h>
#include <stdint.h>

#include "src/base/status.h"

enum { IDX_MAX_RANK = 3 };

struct idx {
    size_t rank;
    size_t dim[IDX_MAX_RANK];
    uint8_t *values; /* product of the dimensions; owned by the caller after idx_read */
};

/* Reads a file of unsigned bytes with `rank` dimensions (3: images, 1: labels). Checks come before the
   allocations that depend on them. With STATUS_BAD_DATA the message names the file, the fault and the remedy.
   STATUS_FAILED: out of memory. */
enum status idx_read(struct idx *idx, const char *path, size_t rank);

/* Writes a raw file, replacing it as a whole. STATUS_FAILED with the reason. */
enum status idx_write(const struct idx *idx, const char *path);

#endif
