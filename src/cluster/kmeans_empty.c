/* Clusters without points. */
#include <stdlib.h>

#include "src/base/pages.h"
#include "src/cluster/kmeans.h"

struct far_point {
    double squared;
    uint32_t row;
};

static int by_distance(const void *a, const void *b) {
    const struct far_point *x = a, *y = b;
    if (x->squared != y->squared) return x->squared < y->squared ? 1 : -1;
    return (x->row > y->row) - (x->row < y->row);
}

/* Moves one point to cluster `to`, in the labels and the sums. */
static void move_point(struct kmeans *run, uint32_t row, uint32_t from, uint32_t to) {
    struct device *device = &run->compute->device;
    const struct points point = points_row(run->points, device, row, run->assigner.x);
    device->driver->upload(device, run->before + row, &from, sizeof from);
    device->driver->upload(device, run->label + row, &to, sizeof to);
    const struct cluster_rows rows = {.count = 1,
                                      .bytes = point.bytes != NULL,
                                      .x = point.bytes ? (const void *)point.bytes : point.values,
                                      .label = run->label + row,
                                      .before = run->before + row,
                                      .moved = run->moved,
                                      .slices = run->slices};
    run->assigner.ops->sum(device->ops_context, &rows, &run->sums);
    run->host_count[from]--;
    run->host_count[to]++;
    run->step.stale = true;
}

/* As in scikit-learn: the farthest point, of a cluster that has more, becomes the cluster; then the next. */
enum status kmeans_fill_far(struct kmeans *run) {
    struct device *device = &run->compute->device;
    const size_t count = run->points->count;
    struct far_point *far = pages_alloc(count * sizeof *far);
    double *squared = pages_alloc(count * sizeof *squared);
    uint32_t *label = pages_alloc(count * sizeof *label);
    enum status status = far && squared && label ? STATUS_OK : STATUS_FAILED;
    if (!status) status = kmeans_distances(run, run->points, run->label, squared);
    if (!status) {
        device->driver->download(device, label, run->label, count * sizeof *label);
        for (size_t i = 0; i < count; i++) far[i] = (struct far_point){squared[i], (uint32_t)i};
        qsort(far, count, sizeof *far, by_distance);
        size_t next = 0;
        for (size_t j = 0; j < run->sums.clusters; j++) {
            if (run->host_count[j]) continue;
            while (next < count && run->host_count[label[far[next].row]] < 2) next++;
            if (next == count || far[next].squared == 0) break; /* there are too few distinct points */
            move_point(run, far[next].row, label[far[next].row], (uint32_t)j);
            next++;
        }
    }
    free(far);
    free(squared);
    free(label);
    return status;
}

/* As in FAISS: the centre of the largest cluster and a copy of it are moved apart by 1/1024, with alternating
   signs; each counts for half of the points from then on. */
enum status kmeans_fill_split(struct kmeans *run) {
    struct device *device = &run->compute->device;
    const enum gemm_dtype dtype = run->points->dtype;
    const size_t features = run->points->features, bytes = features * dtype_size(dtype);
    char *values = run->assigner.centres.values;
    double *two = malloc(2 * bytes);
    if (!two) return status_set(STATUS_FAILED, "out of memory");
    for (size_t j = 0; j < run->sums.clusters; j++) {
        size_t largest = 0;
        if (run->host_count[j]) continue;
        for (size_t i = 1; i < run->sums.clusters; i++)
            if (run->host_count[i] > run->host_count[largest]) largest = i;
        if (run->host_count[largest] < 2) break;
        device->driver->download(device, two, values + largest * bytes, bytes);
        for (size_t f = 0; f < features; f++) {
            const double value = dtype_get(dtype, two, f), step = f % 2 ? -0x1p-10 : 0x1p-10;
            dtype_set(dtype, two, features + f, value * (1 - step));
            dtype_set(dtype, two, f, value * (1 + step));
        }
        device->driver->upload(device, values + largest * bytes, two, bytes);
        device->driver->upload(device, values + j * bytes, (char *)two + bytes, bytes);
        run->host_count[j] = run->host_count[largest] / 2;
        run->host_count[largest] -= run->host_count[j];
    }
    free(two);
    assigner_set_centres(&run->assigner, run->sums.clusters);
    return STATUS_OK;
}
