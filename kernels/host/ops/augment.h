/* Augmentation on the host: the op of kernels/ops.h, for every dtype. */
#ifndef TESSERA_KERNELS_HOST_OPS_AUGMENT_H
#define TESSERA_KERNELS_HOST_OPS_AUGMENT_H

#include <stddef.h>

#include "kernels/augment.h"

void host_augment(void *context, const struct augment_plan *plan, uint32_t epoch, size_t count,
                  const uint8_t *images, const uint8_t *labels, uint8_t *deformed);

#endif
