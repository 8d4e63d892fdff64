/* The random bits of dropout, DROPOUT_RUN elements at a time. */
#ifndef TESSERA_KERNELS_HOST_OPS_DROPOUT_H
#define TESSERA_KERNELS_HOST_OPS_DROPOUT_H

#include "kernels/dropout.h"

/* Random blocks that are computed together, one a lane; and the elements that they cover. */
enum { DROPOUT_LANES = 16, DROPOUT_RUN = DROPOUT_LANES * DROPOUT_BLOCK };

/* The bits of elements DROPOUT_RUN run .. DROPOUT_RUN (run + 1) - 1. */
void dropout_bits(const struct dropout *dropout, size_t run, uint16_t bits[DROPOUT_RUN]);

#endif
