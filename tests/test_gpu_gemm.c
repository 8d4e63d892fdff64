/* GEMM on the GPU: every CUDA backend over the whole case list. */
#include "tests/gpu.h"

#include <math.h>
#include <stdlib.h>

#include "src/backend/verify.h"

static void verify_with(const char *name, struct compute_options options, size_t stride) {
    struct compute compute;
    size_t checked = 0, fused[2] = {0, 0};
    options.threads = 2;
    gpu_open(&compute, name, &options);
    stride *= support_stride();
    for (size_t i = 0; i < verify_case_count(); i += stride) {
        const struct verify_case test = verify_case_at(i);
        bool skipped;
        assert_status(verify_gemm(&compute, &test, &skipped), STATUS_OK);
        checked += !skipped;
        if (!skipped && (test.epilogue || test.backward)) fused[test.backward]++;
    }
    assert_true(checked > 0);
    if (stride == 1)
        assert_true((fused[0] > 0 && fused[1] > 0) ==
                    (compute.residency == RESIDENCY_DEVICE && compute.backend->fuses));
    compute_close(&compute);
}

static void naive_is_right(void **state) {
    (void)state;
    verify_with("cuda-naive", (struct compute_options){0}, 1);
}

static void coalesced_is_right(void **state) {
    (void)state;
    verify_with("cuda-coalesced", (struct compute_options){0}, 1);
}

static void shmem_is_right(void **state) {
    (void)state;
    for (int tile = 4; tile <= 32; tile *= 2)
        for (int dynamic = 0; dynamic < 2; dynamic++) {
            char text[64];
            snprintf(text, sizeof text, "tile=%d,shared=%s", tile, dynamic ? "dynamic" : "static");
            verify_with("cuda-shmem", (struct compute_options){.options = text},
                        tile == 16 && !dynamic ? 1 : 5);
        }
}

/* Each order of A and B in shared memory, tile size, kind of shared memory and multiply: 64 kernels. */
struct order_variant {
    int tile;
    bool dynamic;
    char text[64];
};

static struct order_variant order_variant(int variant) {
    static const char *const orders[] = {"RR", "RC", "CR", "CC"};
    struct order_variant one = {.tile = 4 << variant / 4 % 4, .dynamic = variant / 16 % 2};
    snprintf(one.text, sizeof one.text, "order=%s,tile=%d,shared=%s,multiply=%s", orders[variant % 4],
             one.tile, one.dynamic ? "dynamic" : "static", variant / 32 ? "fmul_rn" : "plain");
    return one;
}

static void order_is_right(void **state) {
    (void)state;
    for (int variant = 0; variant < 64; variant++)
        verify_with("cuda-order", (struct compute_options){.options = order_variant(variant).text}, 61);
}

static void tuned_is_right(void **state) {
    (void)state;
    verify_with("cuda-tuned", (struct compute_options){0}, 1);
}

static void cublas_is_right(void **state) {
    (void)state;
    verify_with("cublas", (struct compute_options){0}, 1);
}

/* A product of an output layer in each type up to `last`, alone and with its epilogue or beta. Counts the
   fused ones. */
static void check_narrow(struct compute *compute, enum gemm_dtype last, enum gemm_op op, size_t rows,
                         size_t cols, size_t classes, size_t seed, size_t *fused) {
    for (int type = GEMM_F32; type <= (int)last; type++)
        for (int extra = 0; extra < 2; extra++) {
            struct verify_case test = {
                .dtype = (enum gemm_dtype)type,
                .op = op,
                .m = op == GEMM_TN ? cols : rows,
                .n = op == GEMM_NT ? cols : classes,
                .k = op == GEMM_NN   ? cols
                     : op == GEMM_TN ? rows
                                     : classes,
                .pad = 8,
                .alpha = 1,
                .beta = extra && op == GEMM_TN ? 0.5 : 0,
                .epilogue = extra && op == GEMM_NN,
                .backward = extra && op == GEMM_NT,
                .activation = (enum activation)(seed % (ACTIVATION_COUNT)),
                .values = extra ? VERIFY_ORDINARY : (enum verify_values)(seed % VERIFY_VALUES),
                .seed = seed,
            };
            test.keeps_pre = test.epilogue && activation_needs_input(test.activation);
            bool skipped;
            assert_status(verify_gemm(compute, &test, &skipped), STATUS_OK);
            if (!skipped && (test.epilogue || test.backward)) fused[test.backward]++;
        }
}

/* With partial chunks, panels and packs. 4099 rows are too many for the kernels of small products: if such a
   product is fused, a narrow kernel ran. */
static void narrow_shapes(void **state) {
    (void)state;
    static const size_t longs[] = {1024, 1025, 4099}, wides[] = {16, 40, 264, 2056},
                        narrows[] = {1, 3, 10, 16};
    struct compute compute;
    size_t fused[2] = {0, 0}, unused[2];
    gpu_open(&compute, "cuda-tuned", &(struct compute_options){.threads = 2});
    for (size_t i = 0; i < 3 * 3 * 4 * 4; i += support_stride() < 31 ? support_stride() : 31) {
        const size_t rows = longs[i / 16 % 3];
        check_narrow(&compute, GEMM_F64, (enum gemm_op)(i / 48), rows, wides[i / 4 % 4], narrows[i % 4], i,
                     rows == 4099 ? fused : unused);
    }
    /* on older GPUs the library may run both kinds, never only one of them */
    assert_true((fused[0] > 0) == (fused[1] > 0));
    compute_close(&compute);
}

/* The same of small batches. */
static void narrow_shapes_of_few_rows(void **state) {
    (void)state;
    static const size_t rows[] = {1, 2, 127, 128, 301, 1023}, cols[] = {256, 260, 500, 1024, 1042, 3004},
                        classes[] = {1, 7, 10, 16};
    struct compute compute;
    size_t fused[2] = {0, 0};
    gpu_open(&compute, "cuda-tuned", &(struct compute_options){.threads = 2});
    for (size_t i = 0; i < 3 * 6 * 6 * 4; i += support_stride() < 31 ? support_stride() : 31)
        check_narrow(&compute, i < 144 ? GEMM_F16 : GEMM_F64, (enum gemm_op)(i / 144), rows[i / 24 % 6],
                     cols[i / 4 % 6], classes[i % 4], i, fused);
    assert_true(fused[0] > 0 && fused[1] > 0);
    compute_close(&compute);
}

static void residency_host_is_right(void **state) {
    (void)state;
    for (int b = 0; b < GPU_BACKENDS; b++)
        verify_with(gpu_backends[b], (struct compute_options){.residency = RESIDENCY_HOST, .pinned = b % 2},
                    5);
}

/* Returns the description of the kernel for m x n x k; asserts that there is one if `expected`, else none. */
static struct gemm_kernel describe(struct compute *compute, enum gemm_dtype dtype, enum gemm_op op, size_t m,
                                   size_t n, size_t k, bool expected) {
    const struct gemm_call call = {.dtype = dtype,
                                   .op = op,
                                   .m = m,
                                   .n = n,
                                   .k = k,
                                   .alpha = 1,
                                   .lda = gemm_transposes_a(op) ? m : k,
                                   .ldb = gemm_transposes_b(op) ? k : n,
                                   .ldc = n};
    struct gemm_kernel list[4] = {0};
    assert_int_equal(compute_kernels(compute, &call, NULL, 0), 0);
    assert_int_equal(compute_kernels(compute, &call, list, 4) > 0, expected);
    assert_status(compute->device.driver->synchronize(&compute->device), STATUS_OK);
    if (expected) {
        assert_true(list[0].name[0] && list[0].registers > 0 && list[0].registers <= 255);
        assert_true(list[0].threads > 0 && list[0].threads <= 1024);
        assert_true(list[0].occupancy > 0 && list[0].occupancy <= 1);
    }
    return list[0];
}

static void kernels_are_described(void **state) {
    (void)state;
    struct compute compute;
    for (int b = 0; b < 2 * GPU_BACKENDS; b++) {
        const char *name = gpu_backends[b / 2];
        const bool library = strcmp(name, "cublas") == 0, both = strcmp(name, "cuda-tuned") == 0;
        gpu_open(
            &compute, name,
            &(struct compute_options){.threads = 1, .residency = b % 2 ? RESIDENCY_HOST : RESIDENCY_DEVICE});
        const bool tensor = strstr(compute.description, "tensor cores") != NULL;
        for (int dtype = GEMM_F32; dtype <= GEMM_F64; dtype++)
            for (int op = GEMM_NN; op <= GEMM_NT; op++) {
                describe(&compute, (enum gemm_dtype)dtype, (enum gemm_op)op, 64, 65, 66, !library);
                describe(&compute, (enum gemm_dtype)dtype, (enum gemm_op)op, 5000, 5000, 5000,
                         !library && (!both || (dtype == GEMM_F32 && tensor)));
                describe(&compute, (enum gemm_dtype)dtype, (enum gemm_op)op, 0, 65, 66, false);
            }
        describe(&compute, GEMM_BF16, GEMM_NN, 64, 65, 66, both);
        compute_close(&compute);
    }
}

/* cuda-tuned names its kernels for narrow products. */
static void narrow_kernels_are_named(void **state) {
    (void)state;
    static const size_t shapes[][3] = {{8192, 10, 512}, {512, 10, 8192}, {8192, 512, 10}}; /* NN, TN, NT */
    static const char *const names[] = {"narrow_nn", "narrow_tn", "narrow_nt"};
    struct compute compute;
    gpu_open(&compute, "cuda-tuned", &(struct compute_options){.threads = 1});
    assert_string_equal(describe(&compute, GEMM_F32, GEMM_NN, 128, 10, 1024, true).name, "few_rows_kernel");
    assert_string_equal(describe(&compute, GEMM_F32, GEMM_TN, 1024, 10, 128, true).name,
                        "few_rows_tn_kernel");
    assert_string_equal(describe(&compute, GEMM_F32, GEMM_NT, 128, 1024, 10, true).name,
                        "few_classes_kernel");
    /* on older GPUs the library runs them; 8192 rows are too many for the kernels of small products */
    const struct gemm_epilogue relu = {.activation = ACTIVATION_RELU};
    const struct gemm_call forward = {
        .m = 8192, .n = 10, .k = 512, .alpha = 1, .lda = 512, .ldb = 10, .ldc = 10, .epilogue = &relu};
    const bool own = compute_fuses(&compute, &forward);
    for (int op = GEMM_NN; op <= GEMM_NT; op++) {
        const struct gemm_kernel kernel =
            describe(&compute, GEMM_F32, (enum gemm_op)op, shapes[op][0], shapes[op][1], shapes[op][2], own);
        if (own) assert_string_equal(kernel.name, names[op]);
    }
    compute_close(&compute);
}

static void order_kernels_follow_their_options(void **state) {
    (void)state;
    for (int variant = 0; variant < 64; variant++) {
        const struct order_variant wanted = order_variant(variant);
        const size_t elements = (size_t)(wanted.tile * wanted.tile);
        struct compute compute;
        gpu_open(&compute, "cuda-order", &(struct compute_options){.options = wanted.text});
        assert_says(compute.description, wanted.dynamic ? "dynamic" : "static");
        for (int dtype = GEMM_F32; dtype <= GEMM_F64; dtype++) {
            const struct gemm_kernel kernel =
                describe(&compute, (enum gemm_dtype)dtype, GEMM_NN, 300, 200, 100, true);
            assert_int_equal(kernel.threads, elements);
            assert_int_equal(kernel.shared_bytes, 2 * elements * dtype_size((enum gemm_dtype)dtype));
            /* blocks of one warp fill at most half of the warp slots of an SM */
            if (wanted.tile == 4) assert_true(kernel.occupancy <= 0.5);
        }
        compute_close(&compute);
    }
}

static void missing_things_are_refused(void **state) {
    (void)state;
    const struct gemm_backend *backend;
    struct compute compute;
    gpu_needed();
    assert_status(registry_find("cublas", &backend), STATUS_OK);
    assert_status(compute_open(&compute, backend, &(struct compute_options){.ordinal = 1000}),
                  STATUS_UNAVAILABLE);
    assert_says(status_message(), "--device 1000");
    assert_status(registry_find("cuda-naive", &backend), STATUS_OK);
    assert_status(compute_open(&compute, backend, &(struct compute_options){.precision = GEMM_TF32}),
                  STATUS_UNAVAILABLE);
    assert_says(status_message(), "no precision tf32");
}

/* The first call that cuBLAS has to run may be in a captured graph: cuda-tuned loads the library then. */
static void cublas_starts_in_a_capture(void **state) {
    (void)state;
    enum { N = 512, COUNT = N * N };
    struct compute compute;
    void *graph = NULL, *matrix[3];
    gpu_open(&compute, "cuda-tuned", &(struct compute_options){.threads = 1, .options = "tensor=never"});
    float *values = malloc(COUNT * sizeof *values);
    struct device *device = &compute.device;
    assert_non_null(values);
    for (int m = 0; m < 3; m++) { /* A: ones, B: twos, C: NaN */
        for (int i = 0; i < COUNT; i++) values[i] = m < 2 ? (float)(m + 1) : (float)NAN;
        matrix[m] = device->driver->alloc(device, COUNT * sizeof *values);
        device->driver->upload(device, matrix[m], values, COUNT * sizeof *values);
    }
    const struct gemm_call call = {.dtype = GEMM_F32,
                                   .m = N,
                                   .n = N,
                                   .k = N,
                                   .alpha = 1,
                                   .a = matrix[0],
                                   .lda = N,
                                   .b = matrix[1],
                                   .ldb = N,
                                   .c = matrix[2],
                                   .ldc = N};
    assert_int_equal(compute_kernels(&compute, &call, &(struct gemm_kernel){0}, 1), 0); /* cuBLAS */
    assert_status(device->driver->begin_capture(device), STATUS_OK);
    assert_status(compute_gemm(&compute, &call), STATUS_OK);
    assert_status(device->driver->end_capture(device, &graph), STATUS_OK);
    assert_status(device->driver->replay(device, graph), STATUS_OK);
    device->driver->download(device, values, matrix[2], COUNT * sizeof *values);
    for (int i = 0; i < COUNT; i++) assert_true(values[i] == 2 * N);
    device->driver->free_graph(device, graph);
    for (int m = 0; m < 3; m++) device->driver->free(device, matrix[m]);
    free(values);
    compute_close(&compute);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cublas_starts_in_a_capture), /* before a test that loads cuBLAS */
        cmocka_unit_test(naive_is_right),
        cmocka_unit_test(coalesced_is_right),
        cmocka_unit_test(shmem_is_right),
        cmocka_unit_test(tuned_is_right),
        cmocka_unit_test(narrow_shapes),
        cmocka_unit_test(narrow_shapes_of_few_rows),
        cmocka_unit_test(cublas_is_right),
        cmocka_unit_test(residency_host_is_right),
        cmocka_unit_test(order_is_right),
        cmocka_unit_test(kernels_are_described),
        cmocka_unit_test(narrow_kernels_are_named),
        cmocka_unit_test(order_kernels_follow_their_options),
        cmocka_unit_test(missing_things_are_refused),
    };
    return cmocka_run_group_tests_name("gpu gemm", tests, NULL, NULL);
}
