/* GEMM of 16 bits on the tensor cores, bfloat16 and half precision (kernels/cuda/tensor/bf16*,
   6_tuned_narrow_bf16.cu): right for every shape and epilogue, the same bits every time. GPUs other than
   those of compute capability 9.0, and matrices that are not aligned, have other kernels of the backend. */
#include "tests/gpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/backend/verify.h"
#include "tests/values.h"

/* What each test receives. */
static struct kind {
    enum gemm_dtype dtype;
    enum gemm_precision precision;
    const char *kernel;
} bf16 = {GEMM_BF16, GEMM_MIXED_BF16, "bf16_kernel"}, fp16 = {GEMM_F16, GEMM_MIXED_F16, "fp16_kernel"};

static void open_tensor(const struct kind *kind, struct compute *compute, const char *option) {
    gpu_open(compute, "cuda-tuned",
             &(struct compute_options){.threads = 2, .options = option, .precision = kind->precision});
}

static void the_list_is_right(void **state) {
    const struct kind *kind = *state;
    struct compute compute;
    open_tensor(kind, &compute, "tensor=always");
    for (size_t i = 0; i < verify_case_count(); i += support_stride()) {
        const struct verify_case test = verify_case_at(i);
        if (test.dtype == kind->dtype) assert_status(verify_gemm(&compute, &test, NULL), STATUS_OK);
    }
    compute_close(&compute);
}

/* One product with a plain C, a float32 C and each epilogue. */
static void check_shape(const struct kind *kind, struct compute *compute, struct verify_case test) {
    test.dtype = kind->dtype;
    test.twice = true;
    assert_status(verify_gemm(compute, &test, NULL), STATUS_OK);
    test.c_f32 = true;
    assert_status(verify_gemm(compute, &test, NULL), STATUS_OK);
    test.c_f32 = false;
    if (test.values == VERIFY_SPECIAL) return;
    test.integers = false;
    test.epilogue = true;
    test.keeps_pre = activation_needs_input(test.activation);
    assert_status(verify_gemm(compute, &test, NULL), STATUS_OK);
    test.epilogue = test.keeps_pre = false;
    test.backward = true;
    assert_status(verify_gemm(compute, &test, NULL), STATUS_OK);
}

/* Shapes m, n, k and padding, with these ops, all kinds of values and all activations in turn. */
static void check_list(const struct kind *kind, const size_t (*shapes)[4], size_t count,
                       const enum gemm_op *ops, size_t op_count, unsigned most_stride) {
    const size_t stride = support_stride() < most_stride ? support_stride() : most_stride;
    struct compute compute;
    open_tensor(kind, &compute, "tensor=always");
    for (size_t i = 0; i < count * op_count * VERIFY_VALUES; i += stride) {
        const size_t *const shape = shapes[i % count];
        struct verify_case test = {.op = ops[i / count % op_count],
                                   .m = shape[0],
                                   .n = shape[1],
                                   .k = shape[2],
                                   .pad = shape[3],
                                   .alpha = i % 5 ? 1 : -0.5,
                                   .integers = i % 2,
                                   .values = (enum verify_values)(i / (op_count * count)),
                                   .activation = (enum activation)(i % ACTIVATION_COUNT),
                                   .seed = i};
        if (test.values != VERIFY_ORDINARY) test.integers = false;
        check_shape(kind, &compute, test);
    }
    compute_close(&compute);
}

/* Several tiles and clusters, parts of k, and edges; rows of a multiple of 16 bytes and others. */
static void large_shapes_are_right(void **state) {
    const struct kind *kind = *state;
    static const size_t shapes[][4] = {{1029, 520, 301, 3}, {700, 2048, 72, 0},  {784, 504, 400, 8},
                                       {128, 2504, 200, 0}, {125, 1000, 805, 3}, {2500, 328, 64, 0},
                                       {200, 136, 2048, 0}, {300, 270, 130, 1}};
    static const enum gemm_op ops[] = {GEMM_NN, GEMM_TN, GEMM_NT};
    check_list(kind, shapes, sizeof shapes / sizeof *shapes, ops, 3, 23);
}

/* Thread blocks that take a second tile after an odd number of stores (192 columns are 3 parts of a row); and
   wide tiles whose k several blocks share, whose sums must not reach what the backward epilogue has read, and
   of which only the last block has a stage of k that is not full; and those of which 3 parts of a row, 8 rows
   of a warp and 16 or 24 of the last stage of k are inside. */
static void turns_and_parts_are_right(void **state) {
    const struct kind *kind = *state;
    static const size_t shapes[][3] = {
        {4096, 1536, 64}, {384, 2176, 4120}, {4104, 2240, 80}, {392, 2176, 1048}};
    struct compute compute;
    open_tensor(kind, &compute, "tensor=always");
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        check_shape(kind, &compute,
                    (struct verify_case){.op = i ? GEMM_NT : GEMM_NN,
                                         .m = shapes[i][0],
                                         .n = shapes[i][1],
                                         .k = shapes[i][2],
                                         .alpha = 1,
                                         .activation = ACTIVATION_TANH,
                                         .seed = i});
    compute_close(&compute);
}

/* Up to 128 rows, with 2 to 8 parts of k, with pairs of tiles and without, with an odd tile at the end; rows
   of a multiple of 16 bytes and others. Their number is prime: every stride meets every shape. */
static void short_batches_are_right(void **state) {
    const struct kind *kind = *state;
    static const size_t shapes[][4] = {{128, 2504, 784, 0}, {128, 2000, 504, 8}, {127, 1504, 2000, 0},
                                       {96, 1000, 1504, 0}, {65, 8, 1000, 8},    {64, 2504, 130, 0},
                                       {33, 2000, 1000, 0}, {32, 1504, 129, 0},  {17, 504, 776, 8},
                                       {1, 4168, 328, 0},   {128, 72, 8192, 0},  {100, 1000, 504, 1},
                                       {64, 1000, 1504, 0}, {64, 2504, 784, 0},  {64, 8, 2000, 8},
                                       {48, 3000, 300, 0},  {128, 1000, 130, 8}};
    static const enum gemm_op ops[] = {GEMM_NN, GEMM_NT};
    check_list(kind, shapes, sizeof shapes / sizeof *shapes, ops, 2, 7);
}

/* A product of dense matrices. */
static struct gemm_call dense(const struct kind *kind, enum gemm_op op, size_t m, size_t n, size_t k,
                              const void *a, const void *b, void *c) {
    return (struct gemm_call){.dtype = kind->dtype,
                              .op = op,
                              .m = m,
                              .n = n,
                              .k = k,
                              .alpha = 1,
                              .a = a,
                              .lda = op == GEMM_TN ? m : k,
                              .b = b,
                              .ldb = op == GEMM_NT ? k : n,
                              .c = c,
                              .ldc = n};
}

/* C = A B, where a kernel that is issued just before writes A, with b_complete or, after waiting, without. */
static void *early_product(const struct kind *kind, struct compute *compute, void *const *memory, size_t m,
                           size_t n, size_t k, bool early) {
    struct device *device = &compute->device;
    const size_t inner = 512, bytes = m * n * 2;
    const struct gemm_call before = dense(kind, GEMM_NN, m, k, inner, memory[0], memory[1], memory[2]);
    struct gemm_call call = dense(kind, GEMM_NN, m, n, k, memory[2], memory[3], memory[4]);
    call.b_complete = early;
    void *const result = malloc(bytes);
    assert_non_null(result);
    device->driver->zero(device, memory[2], m * k * 2);
    device->driver->zero(device, memory[4], bytes);
    assert_status(compute_gemm(compute, &before), STATUS_OK);
    if (!early) assert_status(device->driver->synchronize(device), STATUS_OK);
    assert_status(compute_gemm(compute, &call), STATUS_OK);
    device->driver->download(device, result, memory[4], bytes);
    assert_status(device->driver->synchronize(device), STATUS_OK);
    return result;
}

static void b_read_early_gives_the_same_bits(void **state) {
    const struct kind *kind = *state;
    static const size_t shapes[][3] = {{128, 2504, 784}, {128, 2000, 504}, {127, 1504, 2000},
                                       {64, 1000, 1504}, {64, 2504, 784},  {33, 2000, 1000},
                                       {128, 72, 8192},  {1, 4168, 328}};
    struct compute compute;
    open_tensor(kind, &compute, "tensor=always");
    struct device *device = &compute.device;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const size_t m = shapes[i][0], n = shapes[i][1], k = shapes[i][2];
        const size_t counts[] = {m * 512, 512 * k, m * k, k * n, m * n};
        void *memory[5];
        for (uint32_t x = 0; x < 5; x++) {
            struct values values = values_random(kind->dtype, counts[x], 0.25, x);
            memory[x] = device->driver->alloc(device, counts[x] * 2);
            assert_non_null(memory[x]);
            device->driver->upload(device, memory[x], values.data, counts[x] * 2);
            assert_status(device->driver->synchronize(device), STATUS_OK);
            free(values.data);
        }
        void *const want = early_product(kind, &compute, memory, m, n, k, false);
        for (int again = 0; again < 10; again++) {
            void *const got = early_product(kind, &compute, memory, m, n, k, true);
            assert_memory_equal(got, want, m * n * 2);
            free(got);
        }
        free(want);
        for (int x = 0; x < 5; x++) device->driver->free(device, memory[x]);
    }
    compute_close(&compute);
}

/* --- sums of biases beside the next product --- */

/* BATCH: the sums of so many rows take longer than a small product. FEW: so few leave SMs to sums that start
   too early. */
enum { BATCH = 131080, FEW = 4104, UNITS = 72, BELOW = 136 };
enum { DZ, WEIGHTS, Y, DX, SUMS, NEXT, NEXT_SUMS, READ, TENSORS };

/* Runs three calls, of which the last one reads sums of the first. Downloads these sums, and the beginnings
   of the results of the other two calls. */
static void run_beside(struct compute *compute, void *const *memory, const struct gemm_call *const calls[3],
                       uint8_t result[3][BELOW * 4]) {
    static const int results[] = {SUMS, NEXT, READ};
    struct device *device = &compute->device;
    memset(result, 0xff, 3 * BELOW * 4);
    for (int i = 0; i < 3; i++) device->driver->upload(device, memory[results[i]], result[i], BELOW * 4);
    for (int i = 0; i < 3; i++) assert_status(compute_gemm(compute, calls[i]), STATUS_OK);
    for (int i = 0; i < 3; i++) device->driver->download(device, result[i], memory[results[i]], BELOW * 4);
    assert_status(device->driver->synchronize(device), STATUS_OK);
}

/* An input gradient with sums_later, a call, and one that reads the sums as its bias. The call in between:
   weight gradients by this kernel, also of few rows, and by cuBLAS, which run beside the sums; a narrow one,
   and another input gradient, which write to the scratch memory that the sums read. */
static void sums_beside_products_have_the_same_bits(void **state) {
    const struct kind *kind = *state;
    static _Alignas(float) uint8_t want[3][BELOW * 4], got[3][BELOW * 4];
    const float *const sums = (const float *)want[0];
    void *memory[TENSORS];
    struct compute compute;
    open_tensor(kind, &compute, "tensor=always");
    struct device *device = &compute.device;
    for (uint32_t i = 0; i < TENSORS; i++) {
        memory[i] = device->driver->alloc(device, BATCH * BELOW * 2);
        assert_non_null(memory[i]);
        if (i > Y) continue; /* a result */
        struct values values = values_random(kind->dtype, BATCH * BELOW, 0.25, i);
        device->driver->upload(device, memory[i], values.data, BATCH * BELOW * 2);
        assert_status(device->driver->synchronize(device), STATUS_OK);
        free(values.data);
    }
    const struct gemm_backward below = {.activation = ACTIVATION_RELU,
                                        .output = memory[Y],
                                        .bias_grad = memory[SUMS],
                                        .bias_scale = 1},
                               other = {.activation = ACTIVATION_TANH,
                                        .output = memory[Y],
                                        .bias_grad = memory[NEXT_SUMS],
                                        .bias_scale = 1};
    const struct gemm_epilogue bias = {.bias = memory[SUMS]};
    struct gemm_call first =
                         dense(kind, GEMM_NT, BATCH, BELOW, UNITS, memory[DZ], memory[WEIGHTS], memory[DX]),
                     gradient =
                         dense(kind, GEMM_TN, BELOW, UNITS, BATCH, memory[Y], memory[DZ], memory[NEXT]),
                     reader = dense(kind, GEMM_NN, 16, BELOW, 64, memory[Y], memory[WEIGHTS], memory[READ]);
    gradient.c_f32 = true;
    reader.epilogue = &bias;
    struct gemm_call next[] = {gradient, gradient, gradient, gradient, first};
    next[1].k = 64;
    next[2].n = UNITS - 1;
    next[3].n = 10;
    next[4].c = memory[NEXT];
    next[4].backward = &other;
    first.backward = &below;
    for (size_t i = 0; i < 2 * sizeof next / sizeof *next; i++) {
        const struct gemm_call *const calls[] = {&first, &next[i / 2], &reader};
        first.m = i % 2 ? FEW : BATCH;
        first.sums_later = false;
        run_beside(&compute, memory, calls, want);
        for (size_t j = 0; j < BELOW; j++) assert_true(isfinite(sums[j]) && sums[j] != 0);
        first.sums_later = true;
        for (int again = 0; again < 5; again++) {
            run_beside(&compute, memory, calls, got);
            assert_memory_equal(got, want, sizeof got);
        }
    }
    for (int i = 0; i < TENSORS; i++) device->driver->free(device, memory[i]);
    compute_close(&compute);
}

/* A long sum in one accumulator, which tensor cores truncate, is within the bound. */
static void long_sums_are_right(void **state) {
    const struct kind *kind = *state;
    struct compute compute;
    open_tensor(kind, &compute, "tensor=always");
    for (int op = GEMM_NN; op <= GEMM_NT; op++)
        for (int values = 0; values < 2; values++) {
            const struct verify_case test = {.op = (enum gemm_op)op,
                                             .m = 72,
                                             .n = 72,
                                             .k = 8192,
                                             .alpha = 1,
                                             .values = values ? VERIFY_POSITIVE : VERIFY_ORDINARY,
                                             .seed = 17};
            check_shape(kind, &compute, test);
        }
    compute_close(&compute);
}

/* An output layer: logits, weight gradient, input gradient. */
static void narrow_products_are_right(void **state) {
    const struct kind *kind = *state;
    static const size_t sizes[][3] = {
        {1024, 504, 10}, {4094, 1000, 10}, {600, 1000, 16}, {520, 4104, 3}, {513, 72, 7}};
    struct compute compute;
    open_tensor(kind, &compute, "tensor=auto");
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes * ACTIVATION_COUNT;
         i += support_stride() < 7 ? support_stride() : 7) {
        const size_t *const size = sizes[i / ACTIVATION_COUNT], rows = size[0], in = size[1], out = size[2];
        struct verify_case test = {.dtype = kind->dtype,
                                   .alpha = i % 2 ? 1 : 0.25,
                                   .twice = true,
                                   .activation = (enum activation)(i % ACTIVATION_COUNT),
                                   .seed = i};
        test.op = GEMM_NN, test.m = rows, test.n = out, test.k = in;
        assert_status(verify_gemm(&compute, &test, NULL), STATUS_OK);
        test.epilogue = true;
        test.keeps_pre = activation_needs_input(test.activation);
        assert_status(verify_gemm(&compute, &test, NULL), STATUS_OK);
        test.epilogue = test.keeps_pre = false;
        test.op = GEMM_NT, test.m = rows, test.n = in, test.k = out;
        assert_status(verify_gemm(&compute, &test, NULL), STATUS_OK);
        test.backward = true;
        assert_status(verify_gemm(&compute, &test, NULL), STATUS_OK);
        test.backward = false;
        test.op = GEMM_TN, test.m = in, test.n = out, test.k = rows;
        test.c_f32 = true;
        assert_status(verify_gemm(&compute, &test, NULL), STATUS_OK);
        test.beta = 0.5;
        assert_status(verify_gemm(&compute, &test, NULL), STATUS_OK);
    }
    compute_close(&compute);
}

/* --- the choice --- */

/* The kernel for a product of squares with bias and relu, "" for cuBLAS. */
static void kernel_of(const struct kind *kind, const char *option, size_t side, size_t ld, char name[48]) {
    struct compute compute;
    struct gemm_kernel list[4] = {0};
    open_tensor(kind, &compute, option);
    const struct gemm_epilogue epilogue = {.activation = ACTIVATION_RELU};
    const struct gemm_call call = {.dtype = kind->dtype,
                                   .m = side,
                                   .n = side,
                                   .k = side,
                                   .alpha = 1,
                                   .lda = ld,
                                   .ldb = ld,
                                   .ldc = ld,
                                   .epilogue = &epilogue};
    compute_kernels(&compute, &call, list, 4);
    memcpy(name, list[0].name, sizeof list[0].name);
    compute_close(&compute);
}

static void the_option_chooses(void **state) {
    const struct kind *kind = *state;
    char name[48];
    kernel_of(kind, "tensor=always", 2048, 2048, name);
    if (!name[0]) {
        print_message("skipped: this GPU is not of compute capability 9.0\n");
        skip();
    }
    assert_true(strstr(name, kind->kernel));
    kernel_of(kind, "tensor=auto", 2048, 2048, name);
    assert_true(strstr(name, kind->kernel));
    kernel_of(kind, "tensor=auto", 2048, 2054, name); /* rows do not begin at multiples of 16 bytes */
    assert_string_equal(name, "");
    kernel_of(kind, "tensor=never", 2048, 2048, name);
    assert_string_equal(name, "");
    kernel_of(kind, "tensor=auto", 32, 32, name);
    assert_true(strstr(name, "small_kernel"));
}

#define BOTH(test)                             \
    {#test, test, NULL, NULL, &bf16}, {        \
#        test " fp16", test, NULL, NULL, &fp16 \
    }

int main(void) {
    const struct CMUnitTest tests[] = {
        BOTH(the_list_is_right),
        BOTH(large_shapes_are_right),
        BOTH(long_sums_are_right),
        BOTH(narrow_products_are_right),
        BOTH(the_option_chooses),
        BOTH(turns_and_parts_are_right),
        BOTH(short_batches_are_right),
        BOTH(b_read_early_gives_the_same_bits),
        BOTH(sums_beside_products_have_the_same_bits),
    };
    return cmocka_run_group_tests_name("gpu 16 bits", tests, NULL, NULL);
}
