/* How well clusters agree with classes. */
#ifndef TESSERA_CLUSTER_QUALITY_H
#define TESSERA_CLUSTER_QUALITY_H

#include <stddef.h>
#include <stdint.h>

#include "src/base/status.h"

struct quality {
    size_t points;
    double purity; /* fraction of points of the largest class of their own cluster */
    double nmi;    /* normalised mutual information: I / ((H(clusters) + H(classes)) / 2), in [0, 1] */
    double ari; /* adjusted Rand index (Hubert and Arabie 1985, J. Classification 2): 1: equal, 0: chance */
    double accuracy; /* fraction of points of the class that `majority` gives their cluster */
};

/* majority[cluster] = the largest class of its points, the first of equals; 0 without points. */
void quality_majority(const uint32_t *cluster, const uint8_t *class, size_t points, size_t clusters,
                      uint64_t *scratch, uint8_t *majority);

/* `majority` [clusters], of the training part. STATUS_FAILED: out of memory. */
enum status quality_measure(const uint32_t *cluster, const uint8_t *class, size_t points, size_t clusters,
                            const uint8_t *majority, struct quality *quality);

/* The elements of `scratch`. */
size_t quality_scratch(size_t clusters);

#endif
