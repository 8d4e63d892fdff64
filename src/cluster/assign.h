/* Finds the nearest centre of every point: a GEMM for a chunk of points, then the certified comparison. */
#ifndef TESSERA_CLUSTER_ASSIGN_H
#define TESSERA_CLUSTER_ASSIGN_H

#include "src/cluster/points.h"

struct assigner {
    struct compute *compute;
    const struct cluster_ops *ops;
    enum gemm_dtype dtype;
    size_t features, capacity; /* the most centres */
    size_t chunk;              /* rows */
    enum nearest_precision precision;
    struct nearest_centres centres; /* device; count <= capacity */
    void *x, *scores;               /* device: a chunk of each */
    struct nearest_counts *counts;  /* device */
    void *fused;                    /* state of the backend's slot `nearest`; NULL: a GEMM and ops */
    void *pruned;                   /* another one, with bounds; NULL: none */
    enum kmeans_bounds bounds;      /* auto until assigner_verify decides */
    double plain_seconds;           /* if it decided: of a row without bounds; else 0 */
    size_t pruned_passes, slow_passes;
    bool bytes;           /* the points it was opened for are pixels */
    uint64_t audited;     /* labels checked by assigner_audit */
    double audit_seconds; /* of the last audit */
    bool in_range;        /* the slot takes the centres */
};

/* Allocates for up to `capacity` centres of points of this form. `engine` fused takes the slot `nearest` of
   the backend; auto, if it has one for them; eager never. STATUS_UNAVAILABLE says why an engine or a
   precision cannot be used. `bounds` on or auto: the slot also prunes, if it can and `points`, which do not
   change, are many; assigner_verify decides. Call assigner_close also after a failure. */
enum status assigner_open(struct assigner *assigner, struct compute *compute, const struct points *points,
                          size_t capacity, enum nearest_precision precision, enum engine_choice engine,
                          enum kmeans_bounds bounds);
void assigner_close(struct assigner *assigner);

/* "eager", "fused (..)". */
void assigner_describe(const struct assigner *assigner, char *text, size_t size);

/* "off", "on (..)". */
void assigner_describe_bounds(const struct assigner *assigner, char *text, size_t size);

/* After assigner->centres.values [count][features] was written. */
void assigner_set_centres(struct assigner *assigner, size_t count);

/* label[i] (device, [points->count]) = the nearest centre of point i; *counts receives the counts of the
   pass. `then` (NULL: none) visits each part of the points after its labels were issued. Laps: PART_BATCH,
   PART_GEMM_NN, PART_ELEMENTWISE. */
enum status assigner_run(struct assigner *assigner, const struct points *points, uint32_t *label,
                         const struct points_visitor *then, struct nearest_counts *counts);

/* All points, as a slot of the backend takes them. */
struct nearest_call assigner_points(const struct assigner *assigner, const struct points *points,
                                    uint32_t *label);

/* The slot's iterations in one call; *done is 0 if it is not for these points. */
enum status assigner_lloyd(const struct assigner *assigner, const struct nearest_lloyd *run,
                           struct nearest_iteration *record, size_t *done);

/* Labels the last chunks by each kernel of the slot and by engine eager, which must agree:
   STATUS_VERIFY_FAILED names a row that differs. Bounds that are auto are on from now on if they were faster
   than what is used without them by a fifth at least, and off again after two passes that are slower. */
enum status assigner_verify(struct assigner *assigner, const struct points *points);

/* Compares the labels of at least the last `rows` points (device memory) with certified ones. They may differ
   where the distances differ by less than the error of a sum of squares in the dtype. STATUS_VERIFY_FAILED
   names a row that differs by more. */
enum status assigner_check_labels(struct assigner *assigner, const struct points *points,
                                  const uint32_t *label, size_t rows);

/* Checks two secret random labels of a pass against all centres in float64, if the audit affords it.
   STATUS_VERIFY_FAILED names the row. */
enum status assigner_audit(struct assigner *assigner, const struct points *points, const uint32_t *label);

/* The product of a full chunk of these sizes, for verification. */
struct gemm_call assigner_call(const struct assigner *assigner, size_t rows, const void *x);

/* squared[i] = the squared distance of point i from the centre label[i], or from centre 0 if label is NULL
   (device memory). */
enum status assigner_distances(struct assigner *assigner, const struct points *points, const uint32_t *label,
                               double *squared);

#endif
