/* Checks of labels during a run. */
#include <stdlib.h>

#include "src/backend/audit.h"
#include "src/cluster/assign.h"

enum { VERIFIED_CHUNKS = 2 };

enum status assigner_verify(struct assigner *assigner, const struct points *points) {
    const size_t most = VERIFIED_CHUNKS * assigner->chunk;
    struct device *device = &assigner->compute->device;
    const struct device_driver *driver = device->driver;
    struct points first = *points; /* a view */
    struct nearest_counts counts;
    if (!assigner->fused) return STATUS_OK;
    if (first.count > most) first.count = most;
    const size_t bytes = first.count * sizeof(uint32_t);
    void *const state = assigner->fused;
    uint32_t *label = driver->alloc(device, bytes), *fused = malloc(bytes), *eager = malloc(bytes);
    enum status status =
        label && fused && eager ? STATUS_OK : status_set(STATUS_FAILED, "out of memory for the labels");
    if (!status) status = assigner_run(assigner, &first, label, &counts);
    if (!status) {
        driver->download(device, fused, label, bytes);
        assigner->fused = NULL;
        status = assigner_run(assigner, &first, label, &counts);
        assigner->fused = state;
        driver->download(device, eager, label, bytes);
    }
    for (size_t i = 0; !status && assigner->certify && i < first.count; i++)
        if (fused[i] != eager[i])
            status = status_set(STATUS_VERIFY_FAILED,
                                "engine fused gives row %zu the label %u, and engine eager %u: use --engine "
                                "eager",
                                i, fused[i], eager[i]);
    driver->free(device, label);
    free(fused);
    free(eager);
    return status;
}

/* The distances of one row from all centres; the roles of points and centres are exchanged. */
static enum status check_row(struct assigner *assigner, const struct points *points, size_t row,
                             uint32_t label, double *squared, double *copy) {
    struct device *device = &assigner->compute->device;
    const struct nearest_centres *centres = &assigner->centres;
    const void *x = points_rows(points, device, row, NULL, 1, assigner->x);
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
    if (!audit || audit->mode == AUDIT_OFF || !assigner->certify) return STATUS_OK;
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
