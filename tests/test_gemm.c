/* GEMM: every backend over the whole case list, and cases beyond the list. */
#include "tests/support.h"

#include <math.h>
#include <stdlib.h>

#include "src/backend/backend_options.h"
#include "src/backend/registry.h"
#include "src/backend/verify.h"
#include "src/base/rng.h"

static void every_variant_is_in_the_list(void **state) {
    (void)state;
    bool seen[3][DTYPES][3][2][2][2] = {{{{{{false}}}}}},
         activated[2][DTYPES][ACTIVATION_COUNT] = {{{false}}}, to_f32 = false;
    size_t twice = 0;
    for (size_t i = 0; i < verify_case_count(); i++) {
        const struct verify_case test = verify_case_at(i);
        to_f32 |= test.c_f32;
        twice += test.twice;
        if (test.epilogue || test.backward) {
            activated[test.backward][test.dtype][test.activation] = true;
            continue;
        }
        seen[test.op][test.dtype][test.beta == 0   ? 0
                                  : test.beta == 1 ? 1
                                                   : 2][test.integers][test.pad > 0][test.alpha == 1] = true;
    }
    const bool *flat = (const bool *)seen;
    for (size_t i = 0; i < sizeof seen; i++) assert_true(flat[i]);
    flat = (const bool *)activated;
    for (size_t i = 0; i < sizeof activated; i++) assert_true(flat[i]);
    assert_true(to_f32 && twice > 1000);
}

/* Backends that run the same cases. */
struct together {
    struct compute opened[VERIFY_TOGETHER], *computes[VERIFY_TOGETHER];
    size_t count;
};

/* Opens a backend on two threads. False, saying why, if it was not built or the processor lacks its
   instructions. */
static bool opens(struct compute *compute, const char *name) {
    const struct gemm_backend *backend;
    const char *isa = strstr(name, "isa=");
    const struct compute_options options = {.threads = 2, .options = backend_options_in(name)};
    enum status status = registry_find(name, &backend);
    if (!status) {
        status = compute_open(compute, backend, &options);
        if (!isa) assert_status(status, STATUS_OK);
    }
    if (status) {
        if (isa) assert_says(status_message(), "it supports");
        print_message("skipped: %s\n", status_message());
        return false;
    }
    if (isa) assert_int_equal(strncmp(compute->description, isa + 4, strlen(isa + 4)), 0);
    return true;
}

/* Opens those that can be used here of a list that ends with NULL. */
static void open_together(struct together *together, const char *const *names) {
    together->count = 0;
    for (; *names; names++) {
        struct compute *compute = &together->opened[together->count];
        if (opens(compute, *names)) together->computes[together->count++] = compute;
    }
}

static void close_together(struct together *together) {
    for (size_t i = 0; i < together->count; i++) compute_close(together->computes[i]);
}

/* All cases that the backend supports ran. */
static void expect_complete(const struct compute *compute, size_t checked) {
    size_t supported = 0;
    for (size_t i = 0; i < verify_case_count(); i++) {
        const struct verify_case test = verify_case_at(i);
        const bool plain = !test.epilogue && !test.backward;
        supported += compute->backend->supports(test.dtype, test.op) && (plain || compute->backend->fuses);
    }
    assert_int_equal(checked, supported);
}

/* Batches, and the same call again and again. */
static void expect_batches(struct compute *compute) {
    size_t batches = 0, refused = 0;
    assert_status(verify_batches(compute, &batches, &refused), STATUS_OK);
    assert_true((batches > 0) == (compute->backend->gemm_batch != NULL));
    assert_status(verify_steady(compute), STATUS_OK);
}

/* The whole list. */
static void every_backend_is_right(void **state) {
    (void)state;
    static const char *const names[] = {
        "serial",           "openmp",         "openblas",           "tuned:isa=avx512bf16",
        "tuned:isa=avx512", "tuned:isa=avx2", "tuned:isa=portable", NULL};
    struct together together;
    size_t checked[VERIFY_TOGETHER] = {0};
    open_together(&together, names);
    for (size_t i = 0; i < verify_case_count(); i += support_stride()) {
        const struct verify_case test = verify_case_at(i);
        bool skipped[VERIFY_TOGETHER];
        assert_status(verify_gemm_together(together.computes, together.count, &test, skipped), STATUS_OK);
        for (size_t j = 0; j < together.count; j++) checked[j] += !skipped[j];
    }
    for (size_t j = 0; j < together.count && support_stride() == 1; j++) {
        expect_complete(together.computes[j], checked[j]);
        expect_batches(together.computes[j]);
    }
    close_together(&together);
}

/* The oracle's bounds are those of one precision. */
static void together_have_one_precision(void **state) {
    (void)state;
    struct compute one, other;
    struct compute *const both[] = {&one, &other};
    const struct verify_case test = verify_case_at(0);
    bool skipped[2];
    support_open(&one, "serial", 1);
    support_open(&other, "serial", 1);
    other.precision = GEMM_TF32;
    assert_status(verify_gemm_together(both, 2, &test, skipped), STATUS_USAGE);
    assert_says(status_message(), "backends 'serial' and 'serial' differ in precision");
    compute_close(&one);
    compute_close(&other);
}

static bool only_f32(enum gemm_dtype dtype, enum gemm_op op) {
    return dtype == GEMM_F32 && op != GEMM_TT;
}

/* verify_backend runs the list, batches and all. */
static void all_cases_are_counted(void **state) {
    (void)state;
    if (support_stride() > 1) skip();
    struct compute compute;
    size_t checked, skipped, batches = 0, refused = 0;
    support_open(&compute, "tuned", 2);
    struct gemm_backend less = *compute.backend;
    less.supports = only_f32;
    compute.backend = &less;
    assert_status(verify_backend(&compute, &checked, &skipped), STATUS_OK);
    assert_status(verify_batches(&compute, &batches, &refused), STATUS_OK);
    assert_true(batches > 0 && refused > 0);
    assert_int_equal(checked + skipped, verify_case_count() + batches + refused);
    expect_complete(&compute, checked - batches);
    compute_close(&compute);
}

static const char *const tuned_kernels[] = {"tuned:isa=avx512", "tuned:isa=avx2", "tuned:isa=portable", NULL};

/* Verifies m x n x k for each op and dtype, with and without padding, with and without reading C. */
static void verify_narrow(struct together *together, size_t m, size_t n, size_t k) {
    for (size_t variant = 0; variant < 48; variant++) {
        const struct verify_case test = {.op = (enum gemm_op)(variant % 3),
                                         .dtype = variant / 3 % 2 ? GEMM_F64 : GEMM_F32,
                                         .pad = variant / 6 % 2 ? 5 : 0,
                                         .beta = variant / 12 % 2 ? 0.5 : 0,
                                         .alpha = 1.5,
                                         .integers = variant / 24,
                                         .m = m,
                                         .n = n,
                                         .k = k,
                                         .seed = variant + 48 * (m + n + k)};
        bool skipped[VERIFY_TOGETHER];
        assert_status(verify_gemm_together(together->computes, together->count, &test, skipped), STATUS_OK);
    }
}

/* tuned has separate loops for small n and small k: each small size; then several blocks of k, several strips
   of rows, and a large C. */
static void tuned_is_right_where_it_is_narrow(void **state) {
    (void)state;
    struct together together;
    open_together(&together, tuned_kernels);
    for (size_t few = 1; few <= 17; few += support_stride() > 1 ? 4 : 1) {
        verify_narrow(&together, 83, few, 75);
        verify_narrow(&together, 19, 70, few);
    }
    verify_narrow(&together, 21, 10, 3001);
    if (support_stride() == 1) {
        verify_narrow(&together, 9001, 7, 70);
        verify_narrow(&together, 1100, 2048, 9);
    }
    close_together(&together);
}

/* tuned also packs A if n is large: partial tiles and micro-panels, several blocks of k and of n. */
static void tuned_is_right_where_it_packs(void **state) {
    (void)state;
    struct together together;
    open_together(&together, tuned_kernels);
    verify_narrow(&together, 37, 1101, 70);
    if (support_stride() == 1) verify_narrow(&together, 269, 291, 500);
    close_together(&together);
}

static void fill(enum gemm_dtype dtype, void *values, size_t count, uint32_t substream) {
    struct rng rng = rng_open(11, RNG_TEST, substream);
    for (size_t i = 0; i < count; i++) dtype_set(dtype, values, i, 2 * rng_uniform(&rng) - 1);
}

/* Runs each op on 1 to 8 threads, with and without beta; the bits are those of `reference` on one thread. */
static void expect_same_bits(const char *name, const char *reference, enum gemm_dtype dtype, size_t m,
                             size_t n, size_t k) {
    const size_t largest = (m > k ? m : k) * (n > k ? n : k), size = dtype_size(dtype);
    void *a = malloc(largest * size), *b = malloc(largest * size), *c = malloc(m * n * size),
         *want = malloc(m * n * size);
    assert_true(a && b && c && want);
    fill(dtype, a, largest, 0);
    fill(dtype, b, largest, 1);
    for (int i = 0; i < (gemm_is_16bit((enum gemm_dtype)dtype) ? 3 : 6);
         i++) { /* a C of 16 bits has no beta */
        const enum gemm_op op = (enum gemm_op)(i % 3);
        struct gemm_call call = {.dtype = dtype,
                                 .op = op,
                                 .m = m,
                                 .n = n,
                                 .k = k,
                                 .alpha = 0.7,
                                 .a = a,
                                 .lda = op == GEMM_TN ? m : k,
                                 .b = b,
                                 .ldb = op == GEMM_NT ? k : n,
                                 .beta = i < 3 ? 0 : 0.3,
                                 .c = want,
                                 .ldc = n};
        struct compute compute;
        support_open(&compute, reference, 1);
        fill(dtype, want, m * n, 2);
        assert_status(compute_gemm(&compute, &call), STATUS_OK);
        compute_close(&compute);
        for (int threads = 1; threads <= 8; threads++) {
            support_open(&compute, name, threads);
            assert_int_equal(compute.threads, threads);
            fill(dtype, c, m * n, 2);
            call.c = c;
            assert_status(compute_gemm(&compute, &call), STATUS_OK);
            assert_memory_equal(c, want, m * n * size);
            compute_close(&compute);
        }
    }
    free(a);
    free(b);
    free(c);
    free(want);
}

/* serial and openmp give the same bits for any number of threads. */
static void openmp_equals_serial_bit_for_bit(void **state) {
    (void)state;
    for (int dtype = GEMM_F32; dtype < DTYPES; dtype++)
        expect_same_bits("openmp", "serial", (enum gemm_dtype)dtype, 133, 301, 97);
}

/* tuned sums in its own order, the same for any number of threads: blocks of k, in place and packed, and
   narrow products. */
static void tuned_has_the_same_bits_on_any_threads(void **state) {
    (void)state;
    static const size_t shapes[][3] = {{128, 512, 784}, {700, 96, 600}, {301, 10, 1100},
                                       {96, 200, 11},   {129, 7, 300},  {45, 333, 16}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        for (int dtype = GEMM_F32; dtype <= GEMM_BF16; dtype++)
            expect_same_bits("tuned", "tuned", (enum gemm_dtype)dtype, shapes[i][0], shapes[i][1],
                             shapes[i][2]);
    }
}

/* NaN and Inf in the input propagate as IEEE 754 defines. */
static void nan_propagates(void **state) {
    (void)state;
    for (size_t entry = 0; entry < registry_count(); entry++) {
        if (!support_on_host(registry_at(entry))) continue;
        char why[256];
        if (!registry_usable(registry_at(entry), why, sizeof why)) continue;
        struct compute compute;
        support_open(&compute, registry_at(entry)->name, 2);
        for (int op = GEMM_NN; op <= GEMM_NT; op++) {
            double a[40 * 40], b[40 * 40], c[40 * 40];
            for (size_t i = 0; i < 40 * 40; i++) a[i] = b[i] = 1;
            a[0] = NAN;                /* row 0 of op(A) */
            b[40 * 40 - 1] = INFINITY; /* column 39 of op(B) */
            const struct gemm_call call = {.dtype = GEMM_F64,
                                           .op = (enum gemm_op)op,
                                           .m = 40,
                                           .n = 40,
                                           .k = 40,
                                           .alpha = 1,
                                           .a = a,
                                           .lda = 40,
                                           .b = b,
                                           .ldb = 40,
                                           .beta = 0,
                                           .c = c,
                                           .ldc = 40};
            assert_status(compute_gemm(&compute, &call), STATUS_OK);
            for (size_t i = 0; i < 40; i++)
                for (size_t j = 0; j < 40; j++) {
                    const double got = c[i * 40 + j];
                    if (i == 0) {
                        assert_true(isnan(got));
                    } else if (j == 39) {
                        assert_true(isinf(got) && got > 0);
                    } else {
                        assert_true(got == 40);
                    }
                }
        }
        compute_close(&compute);
    }
}

static void empty_shapes(void **state) {
    (void)state;
    for (size_t entry = 0; entry < registry_count(); entry++) {
        if (!support_on_host(registry_at(entry))) continue;
        char why[256];
        if (!registry_usable(registry_at(entry), why, sizeof why)) continue;
        struct compute compute;
        support_open(&compute, registry_at(entry)->name, 2);
        float c[4] = {1, 2, 3, 4};
        struct gemm_call call = {.dtype = GEMM_F32,
                                 .op = GEMM_NN,
                                 .m = 0,
                                 .n = 2,
                                 .k = 2,
                                 .alpha = 1,
                                 .lda = 2,
                                 .ldb = 2,
                                 .ldc = 2,
                                 .a = c,
                                 .b = c,
                                 .c = c};
        assert_status(compute_gemm(&compute, &call), STATUS_OK);
        call.m = 2;
        call.n = 0;
        assert_status(compute_gemm(&compute, &call), STATUS_OK);
        assert_true(c[0] == 1 && c[3] == 4);
        compute_close(&compute);
    }
}

static void no_gpu_kernels_on_the_host(void **state) {
    (void)state;
    const struct gemm_call call = {.m = 2, .n = 2, .k = 2, .lda = 2, .ldb = 2, .ldc = 2};
    struct compute compute;
    struct gemm_kernel kernel;
    support_open(&compute, "serial", 1);
    assert_int_equal(compute_kernels(&compute, &call, &kernel, 1), 0);
    compute_close(&compute);
}

static void unknown_backends(void **state) {
    (void)state;
    const struct gemm_backend *backend;
    assert_status(registry_find("opnblas", &backend), STATUS_UNAVAILABLE);
    assert_says(status_message(), "did you mean 'openblas'");
    assert_says(status_message(), "usable here: serial");
    assert_status(registry_find("auto", &backend), STATUS_OK);
}

/* A backend without the requested precision names the backends that have it. */
static void precisions_elsewhere(void **state) {
    (void)state;
    const struct gemm_backend *tuned;
    struct compute compute;
    const struct compute_options options = {.threads = 1, .precision = GEMM_MIXED_BF16};
    assert_status(registry_find("tuned", &tuned), STATUS_OK);
    struct gemm_backend without = *tuned;
    without.supports = only_f32;
    assert_status(compute_open(&compute, &without, &options), STATUS_UNAVAILABLE);
    assert_says(status_message(), "has no precision bf16: use --precision f32, or --backend serial");
    assert_says(status_message(), ", tuned");
    const struct compute_options half = {.threads = 1, .precision = GEMM_MIXED_F16};
    assert_status(compute_open(&compute, tuned, &half), STATUS_UNAVAILABLE);
    assert_says(status_message(), "has no precision fp16: use --precision f32, or --backend serial, openmp");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_variant_is_in_the_list),
        cmocka_unit_test(every_backend_is_right),
        cmocka_unit_test(together_have_one_precision),
        cmocka_unit_test(all_cases_are_counted),
        cmocka_unit_test(tuned_is_right_where_it_is_narrow),
        cmocka_unit_test(tuned_is_right_where_it_packs),
        cmocka_unit_test(openmp_equals_serial_bit_for_bit),
        cmocka_unit_test(tuned_has_the_same_bits_on_any_threads),
        cmocka_unit_test(nan_propagates),
        cmocka_unit_test(empty_shapes),
        cmocka_unit_test(no_gpu_kernels_on_the_host),
        cmocka_unit_test(unknown_backends),
        cmocka_unit_test(precisions_elsewhere),
    };
    return cmocka_run_group_tests_name("gemm", tests, NULL, NULL);
}
