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
};

/* majority[cluster] = the largest class of its points, the first of equals; 0 without points. */
void quality_majority(const uint32_t *cluster, const uint8_t *class, size_t points, size_t clusters,
                      uint64_t *scratch, uint8_t *majority);

/* medoid[cluster] = the row of the point of the cluster with the least squared distance from its centre, the
   first of equals; QUALITY_NO_POINT without points. (The medoid proper has the least sum of distances from
   all points of its cluster.) */
#define QUALITY_NO_POINT UINT32_MAX
void quality_medoids(const uint32_t *cluster, const double *squared, size_t points, size_t clusters,
                     uint32_t *medoid);

/* The fraction of points of the class answer[cluster]. */
double quality_accuracy(const uint32_t *cluster, const uint8_t *class, size_t points, const uint8_t *answer);

/* STATUS_FAILED: out of memory. */
enum status quality_measure(const uint32_t *cluster, const uint8_t *class, size_t points, size_t clusters,
                            struct quality *quality);

/* The elements of `scratch`. */
size_t quality_scratch(size_t clusters);

#endif
