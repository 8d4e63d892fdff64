/* The contract of the steps of k-means: a course of kernels, from a thread for each point to sums on the GPU
   (kernels/cuda/kmeans_steps). A step labels points with the centre of the smallest computed distance
   sum (x - c)^2, the first of equals: with the error of that sum, and without a certificate
   (kernels/nearest.h has one). */
#ifndef TESSERA_KERNELS_KMEANS_STEPS_H
#define TESSERA_KERNELS_KMEANS_STEPS_H

#include <stdint.h>

#include "kernels/gemm.h"

enum { KMEANS_LEAST_BLOCK = 32, KMEANS_MOST_BLOCK = 1024 };

/* All memory is the device's. x and centres have elements of the dtype, f32 or f64. */
struct kmeans_step_call {
    enum gemm_dtype dtype;
    size_t rows, features, clusters;
    unsigned block;      /* threads of a block, KMEANS_LEAST_BLOCK to KMEANS_MOST_BLOCK */
    const void *x;       /* [rows][features]; of a step by columns [features][rows] */
    const void *centres; /* [clusters][features]; of a step by columns [features][clusters] */
    uint32_t *label;     /* [rows]: in, the labels before, or any; out, the new ones */
    uint64_t *changed;   /* the number of labels that changed is added to it */
    /* Of steps that update: the rows are added to the sums of their clusters. NULL: labels alone. */
    double *sums;    /* [clusters][features] */
    uint64_t *count; /* [clusters] */
    double *scratch; /* [step->scratch()] */
};

struct kmeans_step {
    const char *name;    /* the value of --step */
    const char *summary; /* in a phrase */
    bool by_columns;     /* the layout of x and of the centres */
    bool updates;        /* sums on the GPU; else on the host */

    /* (optional) Elements of the scratch of such calls. */
    size_t (*scratch)(const struct kmeans_step_call *call);

    /* `context` is that of the device's ops. */
    void (*run)(void *context, const struct kmeans_step_call *call);
};

struct kmeans_steps {
    const struct kmeans_step *const *list; /* ends with NULL; in the order of the course */
    /* to[features][rows] = from[rows][features] transposed. */
    void (*transpose)(void *context, enum gemm_dtype dtype, size_t rows, size_t features, const void *from,
                      void *to);
};

#endif
