/* Shared by the templates of this folder. */
#ifndef TESSERA_KERNELS_HOST_OPS_TEMPLATE_H
#define TESSERA_KERNELS_HOST_OPS_TEMPLATE_H

#include "kernels/activation.h"
#include "kernels/host/ops/ops.h"

enum {
    PARALLEL_ELEMENTS = 1 << 15, /* with fewer, a fork and join (2 us) costs more than it saves */
    SLICES = 64,                 /* row slices of a reduction: a fixed number fixes the order of the sum */
    PREFETCH_IMAGES = 4,         /* distance of the prefetch in gather */
    COLUMN_CHUNK = 64,           /* columns that one pass over the rows sums */
    CLASS_CHUNK = 16,            /* logits of one vector loop */
    UPDATE_CHUNK = 2048          /* elements: up to six arrays of them fit the L1 and L2 caches */
};

/* Loss and number of correct rows of a slice. */
struct partial_loss {
    double loss;
    size_t correct;
};

static inline int threads_for(const void *context, size_t elements) {
    const struct host_ops_context *host = (const struct host_ops_context *)context;
    return elements >= PARALLEL_ELEMENTS ? host->threads : 1;
}

#endif

#ifndef NAME
#include "kernels/host/element.h"
#endif
