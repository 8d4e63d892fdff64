#include "src/backend/compute.h"

#include <stdio.h>

#include "src/backend/audit.h"
#include "src/backend/backend_options.h"
#include "src/backend/plugin.h"
#include "src/backend/registry.h"
#include "src/base/text.h"

static const char *const precision_names[] = {"f32", "tf32", "bf16", "fp16"};

/* bf16 and fp16 are dtypes of the operands; tf32 is a way to multiply float32. */
static bool has_precision(const struct gemm_backend *backend, enum gemm_precision precision) {
    const enum gemm_dtype dtype = dtype_of_operands(precision, GEMM_F32);
    if (!gemm_is_16bit(dtype)) return backend->takes_precision && backend->takes_precision(precision);
    return backend->supports(dtype, GEMM_NN) && backend->supports(dtype, GEMM_TN) &&
           backend->supports(dtype, GEMM_NT);
}

static enum status check_precision(const struct gemm_backend *backend, enum gemm_precision precision) {
    if (precision == GEMM_TRUE || has_precision(backend, precision)) return STATUS_OK;
    char others[256] = "", why[256];
    for (size_t i = 0; i < registry_count(); i++) {
        const struct registry_entry *entry = registry_at(i);
        if (registry_usable(entry, why, sizeof why) && has_precision(entry->backend, precision))
            text_append(others, sizeof others, "%s%s", others[0] ? ", " : ", or --backend ", entry->name);
    }
    return status_set(STATUS_UNAVAILABLE, "backend '%s' has no precision %s: use --precision f32%s",
                      backend->name, precision_names[precision], others);
}

/* Opens the backend on its own device. Without `create` the context is NULL. */
static enum status open_on(struct device *device, const struct gemm_backend *backend,
                           const struct compute_options *options, void **context) {
    char why[512] = "";
    struct backend_values values;
    const struct device_options device_options = {.threads = backend->set_threads ? options->threads : 1,
                                                  .ordinal = options->ordinal};
    enum status status = backend_options_parse(backend, options->options, &values);
    if (!status) status = device->driver->open(device, &device_options);
    if (status || !backend->create) return status;
    const struct gemm_setup setup = {.threads = device_options.threads,
                                     .stream = device->driver->stream ? device->driver->stream(device) : NULL,
                                     .precision = options->precision,
                                     .option = values.list};
    *context = backend->create(&setup, why, sizeof why);
    if (*context) return STATUS_OK;
    device->driver->close(device);
    return status_set(STATUS_UNAVAILABLE, "backend '%s' did not start: %s", backend->name, why);
}

/* Opens the host for the tensors, and the backend on its GPU. */
static enum status open_offload(struct compute *compute, const struct gemm_backend *backend,
                                const struct compute_options *options) {
    struct offload *offload = &compute->offload;
    const struct device_options host = {.threads = options->threads};
    offload->gpu.driver = registry_device(backend->device);
    enum status status = open_on(&offload->gpu, backend, options, &offload->context);
    if (status) return status;
    offload->backend = backend;
    compute->pinned_host = offload_pinned_host(offload->gpu.driver);
    compute->device.driver = options->pinned ? &compute->pinned_host : &device_host;
    status = compute->device.driver->open(&compute->device, &host);
    if (status) offload_close(offload);
    compute->threads = options->threads;
    return status;
}

static enum status open_direct(struct compute *compute, const struct gemm_backend *backend,
                               const struct compute_options *options) {
    struct device *device = &compute->device;
    device->driver = registry_device(backend->device);
    const enum status status = open_on(device, backend, options, &compute->context);
    if (status) return status;
    compute->threads = backend->set_threads ? backend->set_threads(compute->context, options->threads) : 1;
    if (backend->own_threads && backend->own_threads(compute->context) && device->driver->set_threads)
        device->driver->set_threads(device, 1);
    return STATUS_OK;
}

static void describe(struct compute *compute) {
    const bool offloaded = compute->residency == RESIDENCY_HOST;
    struct device *gpu = offloaded ? &compute->offload.gpu : &compute->device;
    if (gpu->driver->describe) gpu->driver->describe(gpu, compute->gpu, sizeof compute->gpu);
    if (compute->backend->describe) {
        compute->backend->describe(offloaded ? compute->offload.context : compute->context,
                                   compute->description, sizeof compute->description);
    } else if (compute->backend->device == GEMM_ON_HOST) {
        snprintf(compute->description, sizeof compute->description, "%d thread%s", compute->threads,
                 compute->threads == 1 ? "" : "s");
    } else {
        snprintf(compute->description, sizeof compute->description, "own kernel");
    }
    const char *path = plugin_path(compute->backend);
    if (path) text_append(compute->description, sizeof compute->description, ", from %s", path);
}

enum status compute_open(struct compute *compute, const struct gemm_backend *backend,
                         const struct compute_options *options) {
    const bool offloaded = options->residency == RESIDENCY_HOST && backend->device != GEMM_ON_HOST;
    *compute = (struct compute){.backend = backend,
                                .residency = offloaded ? RESIDENCY_HOST : RESIDENCY_DEVICE,
                                .pinned = offloaded && options->pinned,
                                .precision = options->precision};
    enum status status = check_precision(backend, options->precision);
    if (!status)
        status = offloaded ? open_offload(compute, backend, options) : open_direct(compute, backend, options);
    if (status) {
        *compute = (struct compute){0};
    } else {
        backend_options_name(backend, options->options, compute->name, sizeof compute->name);
        describe(compute);
    }
    return status;
}

void compute_close(struct compute *compute) {
    const struct gemm_backend *backend = compute->backend;
    if (!backend) return;
    if (compute->residency == RESIDENCY_DEVICE && backend->destroy) backend->destroy(compute->context);
    compute->device.driver->close(&compute->device);
    offload_close(&compute->offload);
    *compute = (struct compute){0};
}

static enum status check_result(struct compute *compute, const struct gemm_call *call,
                                enum gemm_status result) {
    const struct gemm_backend *backend = compute->backend;
    if (result == GEMM_OK) return STATUS_OK;
    const char *reason = result == GEMM_FAILED && backend->error ? backend->error(compute->context) : "";
    return status_set(STATUS_FAILED, "backend '%s' %s %s %s with m=%zu n=%zu k=%zu%s%s", backend->name,
                      result == GEMM_UNSUPPORTED ? "does not support" : "failed in", dtype_name(call->dtype),
                      gemm_op_name(call->op), call->m, call->n, call->k, reason && reason[0] ? ": " : "",
                      reason ? reason : "");
}

static enum status run_gemm(struct compute *compute, const struct gemm_call *call) {
    if (compute->residency == RESIDENCY_HOST)
        return offload_gemm(&compute->offload, call, compute->device.profile);
    return check_result(compute, call, compute->backend->gemm(compute->context, call));
}

enum status compute_gemm(struct compute *compute, const struct gemm_call *call) {
    if (call->m == 0 || call->n == 0) return STATUS_OK;
    if (!compute->audit || !audit_due(compute->audit, call)) return run_gemm(compute, call);
    return audit_call(compute->audit, compute, call, run_gemm);
}

/* `call`: the one that is audited, or any. */
static enum status run_batch(struct compute *compute, const struct gemm_call *call) {
    const struct gemm_backend *backend = compute->backend;
    enum status status = STATUS_OK;
    if (backend->gemm_batch && compute->residency == RESIDENCY_DEVICE)
        return check_result(compute, call,
                            backend->gemm_batch(compute->context, compute->batch, compute->batch_count,
                                                compute->batch_strides));
    for (size_t i = 0; i < compute->batch_count && !status; i++) {
        const struct gemm_call item = gemm_batch_item(compute->batch, compute->batch_strides, i);
        status = run_gemm(compute, &item);
    }
    return status;
}

enum status compute_gemm_batch(struct compute *compute, const struct gemm_call *call, size_t count,
                               const struct gemm_strides *strides) {
    if (call->m == 0 || call->n == 0 || count == 0) return STATUS_OK;
    if (count == 1) return compute_gemm(compute, call);
    compute->batch = call;
    compute->batch_count = count;
    compute->batch_strides = strides;
    if (!compute->audit || !audit_due(compute->audit, call)) return run_batch(compute, call);
    const struct gemm_call item = gemm_batch_item(call, strides, audit_draw(compute->audit) % count);
    return audit_call(compute->audit, compute, &item, run_batch);
}

bool compute_fuses(struct compute *compute, const struct gemm_call *call) {
    const struct gemm_backend *backend = compute->backend;
    return compute->residency == RESIDENCY_DEVICE && backend->fuses && backend->fuses(compute->context, call);
}

bool compute_fuses_update(struct compute *compute, const struct gemm_call *call,
                          const struct weight_update *update) {
    const struct gemm_backend *backend = compute->backend;
    return compute->residency == RESIDENCY_DEVICE && backend->fuses_update &&
           backend->fuses_update(compute->context, call, update);
}

enum status compute_gemm_update(struct compute *compute, const struct gemm_call *call,
                                const struct weight_update *update, bool *updated) {
    *updated = !compute->audit || !audit_due(compute->audit, call);
    if (!*updated) {
        struct gemm_call stored = *call;
        stored.as_update = true;
        return audit_call(compute->audit, compute, &stored, run_gemm);
    }
    return check_result(compute, call, compute->backend->gemm_update(compute->context, call, update, 1));
}

enum status compute_gemm_updates(struct compute *compute, const struct gemm_call *calls,
                                 const struct weight_update *updates, size_t count, bool *done) {
    const enum gemm_status result =
        compute->audit ? GEMM_UNSUPPORTED
                       : compute->backend->gemm_update(compute->context, calls, updates, count);
    *done = result == GEMM_OK;
    return result == GEMM_UNSUPPORTED ? STATUS_OK : check_result(compute, calls, result);
}

static enum status keep_result(struct compute *compute, const struct gemm_call *call) {
    (void)compute;
    (void)call;
    return STATUS_OK;
}

enum status compute_output_layer(struct compute *compute, const struct output_layer *layer, bool *done) {
    const struct gemm_backend *backend = compute->backend;
    const struct gemm_call *const calls[] = {layer->logits, layer->gradient, layer->input_gradient};
    const enum gemm_status result = compute->residency == RESIDENCY_DEVICE && backend->output_layer
                                        ? backend->output_layer(compute->context, layer)
                                        : GEMM_UNSUPPORTED;
    *done = result == GEMM_OK;
    if (result == GEMM_UNSUPPORTED) return STATUS_OK;
    enum status status = check_result(compute, layer->logits, result);
    for (size_t i = 0; i < 3 && !status; i++)
        if (compute->audit && audit_due(compute->audit, calls[i]))
            status = audit_call(compute->audit, compute, calls[i], keep_result);
    return status;
}

size_t compute_kernels(struct compute *compute, const struct gemm_call *call, struct gemm_kernel *list,
                       size_t size) {
    if (!compute->backend->kernels) return 0;
    if (compute->residency == RESIDENCY_HOST) return offload_kernels(&compute->offload, call, list, size);
    return compute->backend->kernels(compute->context, call, list, size);
}

const char *gemm_op_name(enum gemm_op op) {
    static const char *const names[] = {"NN", "TN", "NT", "TT"};
    return names[op];
}

const char *compute_precision(const struct compute *compute, enum gemm_dtype dtype) {
    return dtype == GEMM_F64 ? "f64" : precision_names[compute->precision];
}

const char *compute_residency(const struct compute *compute) {
    return compute->residency == RESIDENCY_DEVICE ? "device"
           : compute->pinned                      ? "host (pinned)"
                                                  : "host (pageable)";
}
