#include "tests/gpu_updates.h"

#include <math.h>
#include <stdlib.h>

#include "src/base/rng.h"

const struct update gpu_update_rules[GPU_UPDATE_RULES] = {
    {.method = UPDATE_SGD},
    {.method = UPDATE_SGD, .weight_decay = 0.01},
    {.method = UPDATE_SGD, .momentum = 0.9, .weight_decay = 0.01},
    {.method = UPDATE_SGD, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true},
    {.method = UPDATE_ADAM, .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-3, .weight_decay = 0.1},
    {.method = UPDATE_ADAMW, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, .weight_decay = 0.1},
};
static void *upload(struct compute *compute, const void *values, size_t bytes) {
    struct device *device = &compute->device;
    void *memory = device->driver->alloc(device, bytes);
    assert_non_null(memory);
    device->driver->upload(device, memory, values, bytes);
    assert_status(device->driver->synchronize(device), STATUS_OK);
    return memory;
}

static void *random_matrix(struct compute *compute, enum gemm_dtype dtype, size_t count, enum gpu_values kind,
                           double least, uint32_t substream) {
    struct rng rng = rng_open(11, RNG_TEST, substream);
    void *values = malloc(count * dtype_size(dtype));
    assert_non_null(values);
    for (size_t i = 0; i < count; i++)
        dtype_set(dtype, values, i,
                  kind == GPU_INTEGERS ? (double)rng_below(&rng, 7) - 3
                                       : least + (1 - least) * rng_uniform(&rng));
    for (size_t i = 0; i < count && kind == GPU_NOT_FINITE; i += 2000)
        dtype_set(dtype, values, i + rng_below(&rng, 2000) % (count - i), i % 3 ? INFINITY : NAN);
    void *memory = upload(compute, values, count * dtype_size(dtype));
    free(values);
    return memory;
}

struct gpu_matrices gpu_matrices_open(struct compute *compute, const struct gemm_call *call,
                                      enum gpu_values kind, uint64_t bad_step, uint32_t seed) {
    const size_t elements = call->m * call->ldc, k = call->k ? call->k : 1;
    const struct step_scalars step = {.learning_rate = 0.05, .adam_rate = 0.07, .adam_root = 1.5};
    const struct tally guard = {.bad_step = bad_step};
    struct gpu_matrices all = {
        .a = random_matrix(compute, call->dtype, k * call->lda, kind, -1, seed + 1),
        .b = random_matrix(compute, call->dtype, k * call->ldb, kind == GPU_NOT_FINITE ? GPU_REALS : kind, -1,
                           seed + 2),
        .c = random_matrix(compute, GEMM_F32, elements, GPU_REALS, -1, seed + 3),
        .rounded = random_matrix(compute, call->dtype == GEMM_F32 ? GEMM_BF16 : call->dtype, elements,
                                 GPU_REALS, -1, seed + 4),
        .step = upload(compute, &step, sizeof step),
        .guard = upload(compute, &guard, sizeof guard),
    };
    for (uint32_t i = 0; i < 3; i++)
        all.array[i] = random_matrix(compute, GEMM_F32, elements, GPU_REALS, i == 2 ? 0 : -1, seed + 5 + i);
    return all;
}

void gpu_matrices_close(struct compute *compute, struct gpu_matrices *all) {
    void *const memory[] = {all->a,        all->b,       all->c,    all->array[0], all->array[1],
                            all->array[2], all->rounded, all->step, all->guard};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        compute->device.driver->free(&compute->device, memory[i]);
}

struct update gpu_rule_on(const struct gpu_matrices *all, enum gemm_dtype dtype, const struct update *rule) {
    struct update update = *rule;
    update.weights = all->array[0];
    update.grad = all->c;
    update.moment1 = uses_second_moment(rule->method) || rule->momentum > 0 ? all->array[1] : NULL;
    update.moment2 = uses_second_moment(rule->method) ? all->array[2] : NULL;
    update.rounded = dtype != GEMM_F32 ? all->rounded : NULL;
    return update;
}

struct gemm_call gpu_call_on(const struct gemm_call *call, const struct gpu_matrices *all) {
    struct gemm_call on = *call;
    on.a = all->a;
    on.b = all->b;
    on.c = all->c;
    return on;
}

void gpu_assert_same(struct compute *compute, const void *x, const void *y, size_t bytes, const char *what) {
    struct device *device = &compute->device;
    unsigned char *copies[2] = {malloc(bytes), malloc(bytes)};
    assert_true(copies[0] && copies[1]);
    device->driver->download(device, copies[0], x, bytes);
    device->driver->download(device, copies[1], y, bytes);
    assert_status(device->driver->synchronize(device), STATUS_OK);
    for (size_t i = 0; i < bytes; i++)
        if (copies[0][i] != copies[1][i]) fail_msg("%s differ from byte %zu on", what, i);
    free(copies[0]);
    free(copies[1]);
}

struct gpu_copies gpu_copies_open(struct compute *compute, const struct gemm_call *shape,
                                  enum gpu_values kind, uint64_t bad_step, uint32_t seed) {
    return (struct gpu_copies){.fused = gpu_matrices_open(compute, shape, kind, bad_step, seed),
                               .apart = gpu_matrices_open(compute, shape, kind, bad_step, seed),
                               .before = gpu_matrices_open(compute, shape, kind, bad_step, seed)};
}

void gpu_copies_check(struct compute *compute, const struct gemm_call *shape, const struct update *rule,
                      uint64_t bad_step, struct gpu_copies *copies) {
    static const char *const names[] = {"weights", "first moments", "second moments"};
    const size_t elements = shape->m * shape->ldc;
    struct gpu_matrices *const fused = &copies->fused, *const apart = &copies->apart;
    const struct update after = gpu_rule_on(apart, shape->dtype, rule);
    struct gemm_call call = gpu_call_on(shape, apart);
    call.as_update = true;
    if (shape->k) assert_status(compute_gemm(compute, &call), STATUS_OK);
    compute->device.driver->ops(&compute->device, shape->dtype)
        ->update(compute->device.ops_context, elements, &after, apart->step, apart->guard);
    const struct gpu_matrices *const want = bad_step ? &copies->before : apart;
    for (int i = 0; i < 3; i++)
        gpu_assert_same(compute, fused->array[i], want->array[i], elements * sizeof(float), names[i]);
    gpu_assert_same(compute, fused->rounded, want->rounded, elements * 2, "rounded weights");
    gpu_assert_same(compute, fused->c, copies->before.c, elements * sizeof(float),
                    "gradients, which it does not write,");
    gpu_matrices_close(compute, fused);
    gpu_matrices_close(compute, apart);
    gpu_matrices_close(compute, &copies->before);
}

struct gemm_call gpu_shape_of(enum gemm_dtype dtype, size_t m, size_t n, size_t k) {
    return (struct gemm_call){.dtype = dtype,
                              .c_f32 = dtype != GEMM_F32,
                              .op = GEMM_TN,
                              .m = m,
                              .n = n,
                              .k = k,
                              .alpha = 1,
                              .lda = m,
                              .ldb = n,
                              .beta = k ? 0 : 1,
                              .ldc = n};
}

static bool updates(struct compute *compute, enum gemm_dtype dtype) {
    const struct gemm_call call = gpu_shape_of(dtype, 128, 128, 128);
    const struct weight_update update = {
        .rule = {.weights = (void *)256, .rounded = dtype == GEMM_BF16 ? (void *)256 : NULL}};
    return compute_fuses_update(compute, &call, &update);
}

void gpu_open_updates(struct compute *compute, enum gemm_dtype dtype) {
    const bool bf16 = dtype == GEMM_BF16;
    gpu_tensor_needed();
    gpu_open(compute, "cuda-tuned",
             &(struct compute_options){.threads = 2,
                                       .precision = bf16 ? GEMM_MIXED_BF16 : GEMM_TRUE,
                                       .options = bf16 ? NULL : "tensor=bf16x6"});
    assert_true(updates(compute, dtype));
}
