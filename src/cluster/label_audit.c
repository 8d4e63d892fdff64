/* Checks of labels during a run. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/backend/audit.h"
#include "src/cluster/assign.h"

enum { VERIFIED_CHUNKS = 2, TIMED_PASSES = 2 };

/* One of the ways to label. */
struct way {
    const char *name, *remedy;
    void *fused;
    enum kmeans_bounds bounds;
};

/* Labels points in one way, twice if the time matters: `copy` receives the labels, and *seconds the time of
   the faster pass. */
static enum status label_by(struct assigner *assigner, const struct way *way, const struct points *points,
                            uint32_t *label, uint32_t *copy, double *seconds) {
    const struct assigner saved = *assigner;
    struct device *device = &assigner->compute->device;
    const size_t bytes = points->count * sizeof *label;
    struct nearest_counts counts;
    enum status status = STATUS_OK;
    memset(copy, 0xff, bytes); /* NEAREST_NONE */
    device->driver->upload(device, label, copy, bytes);
    assigner->fused = way->fused;
    assigner->bounds = way->bounds;
    *seconds = INFINITY;
    for (int pass = 0; pass < (saved.bounds == BOUNDS_AUTO ? TIMED_PASSES : 1) && !status; pass++) {
        const double start = clock_seconds();
        status = assigner_run(assigner, points, label, NULL, &counts);
        *seconds = fmin(*seconds, clock_seconds() - start);
    }
    assigner->fused = saved.fused;
    assigner->bounds = saved.bounds;
    if (!status) device->driver->download(device, copy, label, bytes);
    return status;
}

static enum status compare_ways(const struct way *way, const uint32_t *got, const uint32_t *eager,
                                const struct points *points, size_t offset) {
    for (size_t i = 0; i < points->count; i++)
        if (got[i] != eager[i])
            return status_set(STATUS_VERIFY_FAILED,
                              "%s gives row %zu the label %u, and engine eager %u: use --%s", way->name,
                              offset + i, got[i], eager[i], way->remedy);
    return STATUS_OK;
}

static bool is_rounded(const struct assigner *assigner) {
    return assigner->precision == NEAREST_TF32 || assigner->precision == NEAREST_BF16;
}

/* squared[i] (host) of the labels. */
static enum status distances_of(struct assigner *assigner, const struct points *points, const uint32_t *label,
                                double *memory, double *squared) {
    struct device *device = &assigner->compute->device;
    const enum status status = assigner_distances(assigner, points, label, memory);
    if (!status) device->driver->download(device, squared, memory, points->count * sizeof *squared);
    return status;
}

/* Labels of rounded points and centres: the squared distance exceeds that of another label by at most four
   times the error of a score, two roundings relative to the product of the norms; the sums need less. */
static enum status compare_rounded(struct assigner *assigner, const struct points *points,
                                   const uint32_t *got, const uint32_t *other, uint32_t *label,
                                   size_t offset) {
    struct device *device = &assigner->compute->device;
    const struct device_driver *driver = device->driver;
    const size_t count = points->count, blocks = (count + NEAREST_BLOCK - 1) / NEAREST_BLOCK;
    const double unit = assigner->precision == NEAREST_TF32 ? 0x1p-11 : 0x1p-8;
    double *memory = driver->alloc(device, count * sizeof *memory),
           *host = malloc((2 * count + blocks) * sizeof *host), centre = 0;
    enum status status = memory && host ? STATUS_OK : status_set(STATUS_FAILED, "out of memory");
    for (int i = 0; i < 2 && !status; i++) {
        driver->upload(device, label, i ? other : got, count * sizeof *label);
        status = distances_of(assigner, points, label, memory, host + (size_t)i * count);
    }
    if (!status) {
        driver->download(device, host + 2 * count, points->norm, blocks * sizeof *host);
        driver->download(device, &centre, assigner->centres.norm, sizeof centre);
        status = driver->synchronize(device);
    }
    for (size_t i = 0; i < count && !status; i++) {
        const double norm = host[2 * count + i / NEAREST_BLOCK] + centre,
                     slack = 4 * 4 * unit * norm * (2 * centre);
        if (!(host[i] <= host[count + i] + slack))
            status = status_set(STATUS_VERIFY_FAILED,
                                "row %zu has a label whose centre is at a squared distance of %.9g, and "
                                "another is at %.9g: more than the rounding explains; use --kmeans-precision "
                                "exact",
                                offset + i, host[i], host[count + i]);
    }
    driver->free(device, memory);
    free(host);
    return status;
}

/* `rows` points from a multiple of NEAREST_BLOCK on. */
static struct points view_of(const struct points *points, size_t first, size_t rows) {
    struct points view = *points;
    const size_t at = first * points->features;
    if (points->bytes) view.bytes = points->bytes + at;
    if (points->values) view.values = (char *)points->values + at * dtype_size(points->dtype);
    view.norm = points->norm + first / NEAREST_BLOCK;
    view.count = rows;
    return view;
}

enum status assigner_verify(struct assigner *assigner, const struct points *points) {
    const size_t most = VERIFIED_CHUNKS * assigner->chunk;
    struct device *device = &assigner->compute->device;
    /* a view of the last points: the first ones may be the centres, which bounds find at once */
    const size_t rows = points->count < most ? points->count : most,
                 offset = (points->count - rows) / NEAREST_BLOCK * NEAREST_BLOCK;
    struct points view = view_of(points, offset, rows);
    const struct way ways[] = {{"engine eager", "", NULL, BOUNDS_OFF},
                               {"engine fused", "engine eager", assigner->fused, BOUNDS_OFF},
                               {"pruning by bounds", "bounds off", assigner->fused, BOUNDS_ON}};
    double seconds[3] = {INFINITY, INFINITY, INFINITY};
    if (!assigner->fused && !assigner->pruned) return STATUS_OK;
    const size_t bytes = view.count * sizeof(uint32_t);
    uint32_t *label = device->driver->alloc(device, bytes), *got = malloc(bytes), *eager = malloc(bytes);
    enum status status =
        label && got && eager ? STATUS_OK : status_set(STATUS_FAILED, "out of memory for the labels");
    for (size_t w = 0; w < 3 && !status; w++) {
        if ((w == 1 && (!assigner->fused || assigner->bounds == BOUNDS_ON)) || (w == 2 && !assigner->pruned))
            continue;
        status = label_by(assigner, &ways[w], &view, label, w ? got : eager, &seconds[w]);
        if (!status && w && assigner->precision == NEAREST_EXACT)
            status = compare_ways(&ways[w], got, eager, &view, offset);
        if (!status && w && is_rounded(assigner))
            status = compare_rounded(assigner, &view, got, eager, label, offset);
    }
    if (assigner->bounds == BOUNDS_AUTO) {
        const double plain = assigner->fused ? seconds[1] : seconds[0];
        assigner->bounds = seconds[2] < 0.8 * plain ? BOUNDS_ON : BOUNDS_OFF;
        assigner->plain_seconds = plain / (double)view.count;
    }
    /* a slot may refuse centres that it took, after what it has seen */
    if (assigner->fused && !status) assigner_set_centres(assigner, assigner->centres.count);
    device->driver->free(device, label);
    free(got);
    free(eager);
    return status;
}

/* A sum of squares in the dtype has a relative error of at most (features + 4) epsilon, and of (features + 4)
   least numbers if products underflow. */
static enum status compare_distances(const struct points *points, const double *got, const double *want,
                                     size_t offset) {
    const bool single = points->dtype == GEMM_F32;
    const double terms = (double)points->features + 4, error = terms * (single ? FLT_EPSILON : DBL_EPSILON),
                 least = terms * (single ? (double)FLT_MIN : DBL_MIN);
    for (size_t i = 0; i < points->count; i++)
        if (!(got[i] <= want[i] * (1 + 4 * error) + 2 * least))
            return status_set(STATUS_VERIFY_FAILED,
                              "row %zu has a label whose centre is at a squared distance of %.9g, and the "
                              "nearest is at %.9g: more than rounding explains",
                              offset + i, got[i], want[i]);
    return STATUS_OK;
}

enum status assigner_check_labels(struct assigner *assigner, const struct points *points,
                                  const uint32_t *label, size_t rows) {
    struct assigner exact = *assigner;
    struct device *device = &assigner->compute->device;
    struct nearest_counts counts;
    const size_t offset = rows < points->count ? (points->count - rows) / NEAREST_BLOCK * NEAREST_BLOCK : 0;
    const struct points view = view_of(points, offset, points->count - offset);
    const size_t bytes = view.count * sizeof(double);
    exact.precision = NEAREST_EXACT;
    uint32_t *certified = device->driver->alloc(device, view.count * sizeof *certified);
    double *memory = device->driver->alloc(device, bytes), *got = malloc(bytes), *want = malloc(bytes);
    enum status status =
        certified && memory && got && want ? STATUS_OK : status_set(STATUS_FAILED, "out of memory");
    if (!status) status = assigner_run(&exact, &view, certified, NULL, &counts);
    if (!status) status = distances_of(assigner, &view, label + offset, memory, got);
    if (!status) status = distances_of(assigner, &view, certified, memory, want);
    if (!status) status = compare_distances(&view, got, want, offset);
    device->driver->free(device, certified);
    device->driver->free(device, memory);
    free(got);
    free(want);
    return status;
}

/* The distances of one row from all centres; the roles of points and centres are exchanged. */
static enum status check_row(struct assigner *assigner, const struct points *points, size_t row,
                             uint32_t label, double *squared, double *copy) {
    struct device *device = &assigner->compute->device;
    const struct nearest_centres *centres = &assigner->centres;
    const void *x = points_rows(points, device, row, 1, assigner->x);
    assigner->ops->distances(device->ops_context, centres->count, points->features, centres->values, x, NULL,
                             squared);
    device->driver->download(device, copy, squared, centres->count * sizeof *copy);
    const double slack = 1 + 4 * ((double)points->features + 8) * 0x1p-53;
    for (size_t j = 0; j < centres->count; j++)
        if (label >= centres->count || !(copy[label] <= copy[j] * slack))
            return status_set(
                STATUS_VERIFY_FAILED,
                "audit: row %zu has the label %u, but centre %zu is nearer: the backend '%s' or "
                "its kernel for k-means is wrong",
                row, label, j, assigner->compute->name);
    return STATUS_OK;
}

enum status assigner_audit(struct assigner *assigner, const struct points *points, const uint32_t *label) {
    enum { ROWS = 2 };
    struct device *device = &assigner->compute->device;
    struct audit *audit = assigner->compute->audit;
    if (!audit || audit->mode == AUDIT_OFF || assigner->precision != NEAREST_EXACT) return STATUS_OK;
    if (audit->mode == AUDIT_SAMPLE && !audit_affords(audit, assigner->audit_seconds)) return STATUS_OK;
    const size_t bytes = assigner->centres.count * sizeof(double);
    const double start = clock_seconds();
    const struct audit_pause pause = audit_pause(assigner->compute);
    double *squared = device->driver->alloc(device, bytes), *copy = malloc(bytes);
    enum status status = squared && copy ? STATUS_OK : status_set(STATUS_FAILED, "out of memory");
    for (int i = 0; i < ROWS && !status; i++) {
        uint32_t own;
        const size_t row = (size_t)(audit_draw(audit) % points->count);
        device->driver->download(device, &own, label + row, sizeof own);
        status = check_row(assigner, points, row, own, squared, copy);
        assigner->audited++;
    }
    device->driver->free(device, squared);
    free(copy);
    audit_resume(assigner->compute, pause);
    assigner->audit_seconds = clock_seconds() - start;
    audit->spent += assigner->audit_seconds;
    return status;
}
