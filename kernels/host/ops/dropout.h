/* The random bits of dropout, many elements at a time. */
#ifndef TESSERA_KERNELS_HOST_OPS_DROPOUT_H
#define TESSERA_KERNELS_HOST_OPS_DROPOUT_H

#include "kernels/dropout.h"

/* Elements that are decided on together: blocks side by side in the lanes of a vector. */
enum { DROPOUT_LANES = 16, DROPOUT_RUN = DROPOUT_LANES * DROPOUT_BLOCK };

/* Those of elements DROPOUT_RUN run and after it. */
void dropout_bits(const struct dropout *dropout, size_t run, uint16_t bits[DROPOUT_RUN]);

#endif
