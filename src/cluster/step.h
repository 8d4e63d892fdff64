/* --step: labels, and for some steps sums, by the kernels of kernels/kmeans_steps.h on a GPU. */
#ifndef TESSERA_CLUSTER_STEP_H
#define TESSERA_CLUSTER_STEP_H

#include "src/cluster/assign.h"

struct stepper {
    const struct kmeans_step *step; /* NULL: none */
    struct device *device, *gpu;    /* that of the points; that of the kernels */
    struct kmeans_step_call call;   /* all memory of `gpu` */
    void *x, *centres;              /* memory of its own behind the call, or NULL */
    bool stale; /* others have written labels in host memory since the last call: copy them to the GPU */
};

/* The kernel of this name on the device of the backend; NULL if there is none. */
const struct kmeans_step *step_find(const struct device_driver *driver, const char *name);

/* Copies the points to the GPU in the layout of the step. A step without `updates` needs points in host
   memory, and one with it points on the GPU: STATUS_UNAVAILABLE says so, or that the device has no such
   step. Call stepper_close also after a failure. */
enum status stepper_open(struct stepper *stepper, struct compute *compute, const struct points *points,
                         size_t clusters, const char *name, unsigned block);
void stepper_close(struct stepper *stepper);

/* "naive (a thread a point ..; blocks of 128 threads)". */
void stepper_describe(const struct stepper *stepper, char *text, size_t size);

/* Labels all points with the nearest of the centres, as computed; label is in the points' memory. If that is
   the host's, the centres are copied to the GPU and the labels back. Adds the points to `sums`, which must be
   zero, if the step updates and they are not NULL. *changed receives the number of labels that changed. Laps:
   PART_H2D, PART_STEPS, PART_D2H. */
enum status stepper_run(struct stepper *stepper, const struct nearest_centres *centres, uint32_t *label,
                        const struct cluster_sums *sums, uint64_t *changed);

#endif
