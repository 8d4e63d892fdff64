#include "src/backend/compute.h"

#include <stdio.h>

#include "src/backend/registry.h"

enum status compute_open(struct compute *compute, const struct gemm_backend *backend, int threads) {
    char why[256] = "";
    *compute = (struct compute){.backend = backend};
    struct device *device = &compute->device;
    device->driver = registry_device(backend->device);
    if (!backend->set_threads) threads = 1; /* a serial run is serial throughout */
    const enum status status = device->driver->open(device, threads);
    if (status) return status;

    const struct gemm_options options = {
        .threads = threads, .stream = device->driver->stream ? device->driver->stream(device) : NULL};
    compute->context = backend->create(&options, why, sizeof why);
    if (!compute->context) {
        device->driver->close(device);
        return status_set(STATUS_UNAVAILABLE, "backend '%s' did not start: %s", backend->name, why);
    }
    compute->threads = backend->set_threads ? backend->set_threads(compute->context, threads) : 1;
    if (backend->own_threads && backend->own_threads(compute->context) && device->driver->set_threads)
        device->driver->set_threads(device, 1);
    if (backend->describe) {
        backend->describe(compute->context, compute->description, sizeof compute->description);
    } else {
        snprintf(compute->description, sizeof compute->description, "%d thread%s", compute->threads,
                 compute->threads == 1 ? "" : "s");
    }
    return STATUS_OK;
}

void compute_close(struct compute *compute) {
    if (!compute->context) return;
    compute->backend->destroy(compute->context);
    compute->context = NULL;
    compute->device.driver->close(&compute->device);
}

const char *gemm_op_name(enum gemm_op op) {
    static const char *const names[] = {"NN", "TN", "NT", "TT"};
    return names[op];
}

enum status compute_gemm(struct compute *compute, const struct gemm_call *call) {
    if (call->m == 0 || call->n == 0) return STATUS_OK;
    const enum gemm_status result = compute->backend->gemm(compute->context, call);
    if (result == GEMM_OK) return STATUS_OK;
    return status_set(STATUS_FAILED, "backend '%s' %s %s %s with m=%zu n=%zu k=%zu", compute->backend->name,
                      result == GEMM_UNSUPPORTED ? "does not support" : "failed in", dtype_name(call->dtype),
                      gemm_op_name(call->op), call->m, call->n, call->k);
}

bool compute_fuses(struct compute *compute, enum gemm_dtype dtype, const struct gemm_epilogue *epilogue) {
    return compute->backend->fuses && compute->backend->fuses(compute->context, dtype, epilogue);
}
