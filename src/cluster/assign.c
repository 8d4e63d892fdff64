#include "src/cluster/assign.h"

#include <stdio.h>

/* With fewer features or clusters, the products of the images are no small part of all. */
enum { BOUNDS_FEATURES = 64, BOUNDS_CLUSTERS = 192, BOUNDS_POINTS = 8192 };

static enum status open_pruned(struct assigner *assigner, const struct points *points,
                               enum kmeans_bounds bounds) {
    const struct compute *compute = assigner->compute;
    const struct gemm_nearest *slot = compute->backend->nearest;
    const struct nearest_shape shape = {.dtype = assigner->dtype,
                                        .bytes = points->bytes != NULL,
                                        .features = assigner->features,
                                        .clusters = assigner->capacity,
                                        .bounds = true,
                                        .points =
                                            points->bytes ? (const void *)points->bytes : points->values,
                                        .count = points->count};
    const bool promising = shape.features >= BOUNDS_FEATURES && shape.clusters >= BOUNDS_CLUSTERS &&
                           shape.count >= BOUNDS_POINTS;
    char why[256] = "the backend has no kernel for them";
    assigner->bounds = BOUNDS_OFF;
    if (bounds == BOUNDS_OFF || (bounds == BOUNDS_AUTO && !promising)) return STATUS_OK;
    if (assigner->precision != NEAREST_EXACT) {
        snprintf(why, sizeof why, "they need labels that are exact");
    } else if (points->stream) {
        snprintf(why, sizeof why, "the points are streamed");
    } else if (slot && compute->residency == RESIDENCY_DEVICE) {
        assigner->pruned = slot->open(compute->context, &shape, why, sizeof why);
    }
    if (assigner->pruned) assigner->bounds = bounds;
    if (assigner->pruned || bounds == BOUNDS_AUTO) return STATUS_OK;
    return status_set(STATUS_UNAVAILABLE, "bounds cannot be used here: %s; use --bounds off", why);
}

static enum status select_engine(struct assigner *assigner, const struct points *points,
                                 enum engine_choice choice) {
    const struct compute *compute = assigner->compute;
    const struct gemm_nearest *slot = compute->backend->nearest;
    const struct nearest_shape shape = {.dtype = assigner->dtype,
                                        .bytes = points->bytes != NULL,
                                        .features = assigner->features,
                                        .clusters = assigner->capacity,
                                        .precision = assigner->precision};
    const bool rounded = shape.precision == NEAREST_TF32 || shape.precision == NEAREST_BF16;
    char why[256] = "its backend has no kernel for it";
    if (choice == ENGINE_GRAPH)
        return status_set(STATUS_UNAVAILABLE, "k-means has no engine graph: use --engine auto");
    if (choice == ENGINE_EAGER && !rounded) return STATUS_OK;
    if (rounded && compute->residency == RESIDENCY_HOST)
        snprintf(why, sizeof why, "with --residency host GEMM alone runs on the GPU");
    if (slot && compute->residency == RESIDENCY_DEVICE && choice != ENGINE_EAGER)
        assigner->fused = slot->open(compute->context, &shape, why, sizeof why);
    if (assigner->fused || (choice == ENGINE_AUTO && !rounded)) return STATUS_OK;
    if (rounded)
        return status_set(STATUS_UNAVAILABLE, "labels of %s cannot be computed here: %s; use exact or f32",
                          shape.precision == NEAREST_TF32 ? "tf32" : "bf16", why);
    return status_set(STATUS_UNAVAILABLE, "engine fused cannot be used here: %s; use --engine eager", why);
}

enum status assigner_open(struct assigner *assigner, struct compute *compute, const struct points *points,
                          size_t capacity, enum nearest_precision precision, enum engine_choice engine,
                          enum kmeans_bounds bounds) {
    const enum gemm_dtype dtype = points->dtype;
    const size_t features = points->features;
    struct device *device = &compute->device;
    const struct device_driver *driver = device->driver;
    const size_t size = dtype_size(dtype),
                 chunk = points_chunk(device, features, capacity, dtype, compute->threads);
    *assigner = (struct assigner){.compute = compute,
                                  .ops = driver->cluster_ops(device, dtype),
                                  .dtype = dtype,
                                  .bytes = points->bytes != NULL,
                                  .features = features,
                                  .capacity = capacity,
                                  .chunk = chunk,
                                  .precision = precision};
    struct nearest_centres *centres = &assigner->centres;
    centres->features = features;
    if (capacity > SIZE_MAX / size / (features > chunk ? features : chunk))
        return status_set(STATUS_FAILED, "out of memory for %zu centres", capacity);
    centres->values = driver->alloc(device, capacity * features * size);
    centres->transposed = driver->alloc(device, capacity * features * size);
    centres->bias = driver->alloc(device, capacity * size);
    centres->norm = driver->alloc(device, sizeof *centres->norm);
    assigner->x = driver->alloc(device, chunk * features * size);
    assigner->scores = driver->alloc(device, chunk * capacity * size);
    assigner->counts = driver->alloc(device, sizeof *assigner->counts);
    if (!centres->values || !centres->transposed || !centres->bias || !centres->norm || !assigner->x ||
        !assigner->scores || !assigner->counts)
        return STATUS_FAILED;
    const enum status status = select_engine(assigner, points, engine);
    return status ? status : open_pruned(assigner, points, engine == ENGINE_EAGER ? BOUNDS_OFF : bounds);
}

void assigner_close(struct assigner *assigner) {
    if (!assigner->compute) return;
    if (assigner->fused) assigner->compute->backend->nearest->close(assigner->fused);
    if (assigner->pruned) assigner->compute->backend->nearest->close(assigner->pruned);
    struct device *device = &assigner->compute->device;
    const struct nearest_centres *centres = &assigner->centres;
    void *const memory[] = {centres->values, centres->transposed, centres->bias,   centres->norm,
                            assigner->x,     assigner->scores,    assigner->counts};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) device->driver->free(device, memory[i]);
    *assigner = (struct assigner){0};
}

void assigner_describe(const struct assigner *assigner, char *text, size_t size) {
    char kernel[128] = "";
    if (assigner->fused)
        assigner->compute->backend->nearest->describe(assigner->fused, kernel, sizeof kernel);
    snprintf(text, size, assigner->fused ? "fused (%s)" : "eager", kernel);
}

void assigner_describe_bounds(const struct assigner *assigner, char *text, size_t size) {
    char kernel[128] = "";
    if (assigner->pruned && assigner->bounds == BOUNDS_ON)
        assigner->compute->backend->nearest->describe(assigner->pruned, kernel, sizeof kernel);
    snprintf(text, size, kernel[0] ? "on (%s)" : "off", kernel);
}

void assigner_set_centres(struct assigner *assigner, size_t count) {
    assigner->centres.count = count;
    assigner->ops->centres(assigner->compute->device.ops_context, &assigner->centres);
    const struct gemm_nearest *slot = assigner->compute->backend->nearest;
    if (assigner->pruned && assigner->bounds != BOUNDS_OFF)
        slot->centres(assigner->pruned, &assigner->centres);
    if (assigner->fused && (assigner->bounds != BOUNDS_ON || !assigner->pruned))
        assigner->in_range = slot->centres(assigner->fused, &assigner->centres);
    device_lap(&assigner->compute->device, PART_OPTIMIZER);
}

struct gemm_call assigner_call(const struct assigner *assigner, size_t rows, const void *x) {
    const struct nearest_centres *centres = &assigner->centres;
    return (struct gemm_call){.dtype = assigner->dtype,
                              .op = GEMM_NN,
                              .m = rows,
                              .n = centres->count,
                              .k = centres->features,
                              .alpha = 1,
                              .a = x,
                              .lda = centres->features,
                              .b = centres->transposed,
                              .ldb = centres->count,
                              .c = assigner->scores,
                              .ldc = centres->count};
}

/* scores = x C^T - |c|^2 / 2 */
static enum status score(struct assigner *assigner, size_t rows, const void *x) {
    struct device *device = &assigner->compute->device;
    struct gemm_call call = assigner_call(assigner, rows, x);
    const struct gemm_epilogue epilogue = {.bias = assigner->centres.bias, .activation = ACTIVATION_NONE};
    call.epilogue = &epilogue;
    const bool fused = compute_fuses(assigner->compute, &call);
    if (!fused) call.epilogue = NULL;
    const enum status status = compute_gemm(assigner->compute, &call);
    device->driver->lap(device, profile_gemm_slot(PART_GEMM_NN, 0, call.m, call.n, call.k));
    if (status || fused) return status;
    device->driver->ops(device, assigner->dtype)
        ->bias_activation(device->ops_context, rows, call.n, ACTIVATION_NONE, assigner->centres.bias,
                          assigner->scores, assigner->scores);
    return STATUS_OK;
}

static enum status run_chunks(struct assigner *assigner, const struct points *points, uint32_t *label) {
    struct device *device = &assigner->compute->device;
    for (size_t first = 0; first < points->count; first += assigner->chunk) {
        const size_t left = points->count - first, rows = left < assigner->chunk ? left : assigner->chunk;
        const void *x = points_rows(points, device, first, rows, assigner->x);
        if (x == assigner->x) device_lap(device, PART_BATCH);
        const enum status status = score(assigner, rows, x);
        if (status) return status;
        const struct nearest_call call = {.rows = rows,
                                          .x = x,
                                          .scores = assigner->scores,
                                          .score_ld = assigner->centres.count,
                                          .centres = &assigner->centres,
                                          .norm = points->norm + first / NEAREST_BLOCK,
                                          .certify = assigner->precision == NEAREST_EXACT,
                                          .label = label + first};
        assigner->ops->nearest(device->ops_context, &call, assigner->counts);
        device_lap(device, PART_ELEMENTWISE);
    }
    return STATUS_OK;
}

struct nearest_call assigner_points(const struct assigner *assigner, const struct points *points,
                                    uint32_t *label) {
    return (struct nearest_call){.rows = points->count,
                                 .bytes = points->bytes != NULL,
                                 .x = points->bytes ? (const void *)points->bytes : points->values,
                                 .centres = &assigner->centres,
                                 .norm = points->norm,
                                 .certify = assigner->precision == NEAREST_EXACT,
                                 .label = label};
}

static void run_slot(struct assigner *assigner, void *state, const struct points *points, uint32_t *label) {
    const struct nearest_call call = assigner_points(assigner, points, label);
    assigner->compute->backend->nearest->run(state, &call, assigner->counts);
    device_lap(&assigner->compute->device, PART_STEPS);
}

/* After a synchronisation. */
static enum status check_fused(const struct assigner *assigner) {
    const struct gemm_nearest *slot = assigner->compute->backend->nearest;
    void *const states[] = {assigner->fused, assigner->pruned};
    const char *error = "";
    for (size_t i = 0; i < 2 && slot && slot->error; i++)
        if (states[i] && !error[0]) error = slot->error(states[i]);
    return error[0] ? status_set(STATUS_FAILED, "engine fused of backend '%s' failed: %s",
                                 assigner->compute->name, error)
                    : STATUS_OK;
}

enum status assigner_lloyd(const struct assigner *assigner, const struct nearest_lloyd *run,
                           struct nearest_iteration *record, size_t *done) {
    *done = assigner->compute->backend->nearest->lloyd(assigner->fused, run, record);
    return check_fused(assigner);
}

/* Bounds that are on because they were faster stay on while they are: one slow pass may be a busy moment. The
   first passes compute the images. */
static void run_pruned(struct assigner *assigner, const struct points *points, uint32_t *label) {
    enum { FIRST_PASSES = 3, SLOW_PASSES = 2 };
    const double start = clock_seconds(), plain = assigner->plain_seconds * (double)points->count;
    run_slot(assigner, assigner->pruned, points, label);
    const bool slow =
        plain > 0 && ++assigner->pruned_passes > FIRST_PASSES && clock_seconds() - start > plain;
    assigner->slow_passes = slow ? assigner->slow_passes + 1 : 0;
    if (assigner->slow_passes == SLOW_PASSES) assigner->bounds = BOUNDS_OFF;
}

struct labelling {
    struct assigner *assigner;
    uint32_t *label;
    const struct points_visitor *then;
};

static enum status label_part(void *self, const struct points *part, size_t first) {
    const struct labelling *labelling = self;
    struct assigner *assigner = labelling->assigner;
    uint32_t *label = labelling->label + first;
    enum status status = STATUS_OK;
    const bool same_form = (part->bytes != NULL) == assigner->bytes;
    if (assigner->pruned && assigner->bounds == BOUNDS_ON && same_form) {
        run_pruned(assigner, part, label);
    } else if (assigner->fused && assigner->in_range && same_form) {
        run_slot(assigner, assigner->fused, part, label);
    } else {
        status = run_chunks(assigner, part, label);
    }
    return status || !labelling->then ? status : labelling->then->visit(labelling->then->self, part, first);
}

enum status assigner_run(struct assigner *assigner, const struct points *points, uint32_t *label,
                         const struct points_visitor *then, struct nearest_counts *counts) {
    struct device *device = &assigner->compute->device;
    struct labelling labelling = {assigner, label, then};
    const struct points_visitor visitor = {.self = &labelling, .visit = label_part};
    device->driver->zero(device, assigner->counts, sizeof *assigner->counts);
    enum status status = points_pass(points, device, &visitor);
    device->driver->download(device, counts, assigner->counts, sizeof *counts);
    const enum status waited = device->driver->synchronize(device);
    if (!status) status = check_fused(assigner);
    return status ? status : waited;
}

struct measurement {
    const struct assigner *assigner;
    const uint32_t *label;
    double *squared;
};

static enum status measure_part(void *self, const struct points *part, size_t start) {
    const struct measurement *measurement = self;
    const struct assigner *assigner = measurement->assigner;
    struct device *device = &assigner->compute->device;
    for (size_t first = 0; first < part->count; first += assigner->chunk) {
        const size_t left = part->count - first, rows = left < assigner->chunk ? left : assigner->chunk;
        const void *x = points_rows(part, device, first, rows, assigner->x);
        const uint32_t *label = measurement->label ? measurement->label + start + first : NULL;
        assigner->ops->distances(device->ops_context, rows, part->features, x, assigner->centres.values,
                                 label, measurement->squared + start + first);
    }
    return STATUS_OK;
}

enum status assigner_distances(struct assigner *assigner, const struct points *points, const uint32_t *label,
                               double *squared) {
    struct device *device = &assigner->compute->device;
    struct measurement measurement = {assigner, label, squared};
    const struct points_visitor visitor = {.self = &measurement, .visit = measure_part};
    const enum status status = points_pass(points, device, &visitor);
    return status ? status : device->driver->synchronize(device);
}
