/* Runs of k-means on the GPU: the reference, and the bits of the host, for every engine and residency. */
#include "tests/gpu.h"
#include "tests/kmeans_bench.h"

#include <math.h>
#include <stdlib.h>

static const struct {
    const char *backend;
    enum engine_choice engine;
    enum residency residency;
} ways[] = {{"cublas", ENGINE_EAGER, RESIDENCY_DEVICE},     {"cuda-tuned", ENGINE_EAGER, RESIDENCY_DEVICE},
            {"cuda-tuned", ENGINE_AUTO, RESIDENCY_DEVICE},  {"cuda-naive", ENGINE_AUTO, RESIDENCY_DEVICE},
            {"cuda-shmem", ENGINE_EAGER, RESIDENCY_DEVICE}, {"cublas", ENGINE_AUTO, RESIDENCY_HOST}};
enum { WAYS = sizeof ways / sizeof *ways };

struct bench {
    struct compute host, way[WAYS];
};

static void bench_open(struct bench *bench) {
    gpu_needed();
    support_open(&bench->host, "serial", 1);
    for (size_t w = 0; w < WAYS; w++)
        gpu_open(&bench->way[w], ways[w].backend,
                 &(struct compute_options){.threads = 1, .residency = ways[w].residency});
}

static void bench_close(struct bench *bench) {
    compute_close(&bench->host);
    for (size_t w = 0; w < WAYS; w++) compute_close(&bench->way[w]);
}

static void check_run(struct bench *bench, const struct kmeans_data *data,
                      const struct kmeans_options *options, size_t first_way, size_t end_way) {
    struct kmeans_result want, got;
    kmeans_assert_runs(&bench->host, data, options, &want);
    for (size_t w = first_way; w < end_way; w++) {
        struct kmeans_options own = *options;
        own.engine = ways[w].engine;
        kmeans_assert_runs(&bench->way[w], data, &own, &got);
        kmeans_assert_same(data, &got, &want);
        kmeans_free(&got);
    }
    kmeans_free(&want);
}

static void runs_agree_with_the_reference(void **state) {
    (void)state;
    struct bench bench;
    bench_open(&bench);
    for (size_t s = 0; s < KMEANS_SHAPES; s += support_every(4))
        for (int form = 0; form < 3; form++)
            for (size_t w = 0; w < WAYS; w++) {
                struct kmeans_data data = kmeans_shape(s, form == 2 ? GEMM_F64 : GEMM_F32);
                struct kmeans_options options = kmeans_defaults(&data);
                struct kmeans_result result;
                data.bytes = form == 1 && data.values[0] < 256;
                options.engine = ways[w].engine;
                kmeans_assert_runs(&bench.way[w], &data, &options, &result);
                kmeans_assert_agrees(&data, &result);
                assert_int_equal(result.counts.uncertified, 0);
                kmeans_free(&result);
                kmeans_data_free(&data);
            }
    bench_close(&bench);
}

static void runs_have_the_bits_of_the_host(void **state) {
    (void)state;
    struct bench bench;
    bench_open(&bench);
    static const enum kmeans_init inits[] = {KMEANS_RANDOM, KMEANS_PLUS_PLUS, KMEANS_PARALLEL};
    for (size_t i = 0; i < 12; i += support_every(5)) {
        struct kmeans_data data = i % 2 ? kmeans_reals(9001, 33, 20, i % 4 == 1 ? GEMM_F32 : GEMM_F64)
                                        : kmeans_lattice(9001, 49, 20, GEMM_F32, 255, 0, i);
        struct kmeans_options options = kmeans_defaults(&data);
        data.bytes = i % 2 == 0;
        options.init = inits[i / 4];
        options.batch = i % 3 == 2 ? 1000 : 0;
        check_run(&bench, &data, &options, 0, WAYS);
        kmeans_data_free(&data);
    }
    bench_close(&bench);
}

/* Engine fused of cuda-tuned; false if it needs another GPU. */
static bool check_fused(struct bench *bench, const struct kmeans_data *data,
                        const struct kmeans_options *options) {
    struct kmeans_options own = *options;
    struct kmeans_result want, got;
    own.engine = ENGINE_FUSED;
    const enum status status = kmeans_bench_run(&bench->way[2], data, &own, NULL, &got);
    if (status == STATUS_UNAVAILABLE && strstr(status_message(), "needs a GPU")) {
        kmeans_free(&got);
        return false;
    }
    assert_status(status, STATUS_OK);
    own.engine = ENGINE_AUTO;
    kmeans_assert_runs(&bench->host, data, &own, &want);
    kmeans_assert_same(data, &got, &want);
    kmeans_free(&got);
    kmeans_free(&want);
    return true;
}

/* All sizes of tiles of the kernels for pixels, and of those for few and for many features. */
static void fused_kernels_have_the_bits_of_the_host(void **state) {
    (void)state;
    struct bench bench;
    bench_open(&bench);
    static const size_t rows[] = {1, 63, 129, 600, 3000}, features[] = {1, 3, 16, 63, 64, 65, 208, 784, 1300},
                        clusters[] = {1, 10, 16, 17, 33, 64, 65, 129, 300};
    size_t number = 0, checked = 0;
    for (size_t f = 0; f < 9; f++)
        for (size_t c = 0; c < 9; c++, number++) {
            const size_t count = rows[number % 5] < clusters[c] ? 600 : rows[number % 5];
            if (number % support_stride()) continue;
            for (int form = 0; form < 3; form++) {
                if (form && features[f] > 1024) continue; /* a GEMM */
                struct kmeans_data data =
                    form ? kmeans_reals(count, features[f], clusters[c], form == 1 ? GEMM_F32 : GEMM_F64)
                         : kmeans_lattice(count, features[f], clusters[c], GEMM_F32, number % 3 ? 255 : 3, 0,
                                          number);
                struct kmeans_options options = kmeans_defaults(&data);
                data.bytes = form == 0;
                options.iterations = 4;
                checked += check_fused(&bench, &data, &options);
                kmeans_data_free(&data);
            }
        }
    if (!checked) fail_msg("no fused kernel ran");
    bench_close(&bench);
}

/* Every width of the first levels for float64: float32 up to 8 features, and tensor cores. Sums of several
   slices. */
static void few_features_of_float64(void **state) {
    (void)state;
    struct bench bench;
    bench_open(&bench);
    static const size_t features[] = {1, 2, 3, 4, 5, 8, 9, 16, 17, 31, 32}, clusters[] = {1, 7, 64, 65, 700},
                        rows[] = {701, 3000, 40003};
    size_t number = 0;
    for (size_t f = 0; f < 11; f++)
        for (size_t c = 0; c < 5; c++, number++) {
            if (number % support_stride()) continue;
            struct kmeans_data data =
                number % 4
                    ? kmeans_reals(rows[number % 3], features[f], clusters[c], GEMM_F64)
                    : kmeans_lattice(rows[number % 3], features[f], clusters[c], GEMM_F64, 3, 0, number);
            struct kmeans_options options = kmeans_defaults(&data);
            options.iterations = 3;
            if (number % 3 == 0) /* far from 0 */
                for (size_t i = 0; i < data.count * data.features; i++) data.values[i] += 1e6;
            assert_true(check_fused(&bench, &data, &options));
            kmeans_data_free(&data);
        }
    bench_close(&bench);
}

/* So many slices of the sums that iterations in one call label and add the rows in one pass: two for each of
   up to 150 SMs. */
static void labels_and_sums_in_one_pass(void **state) {
    (void)state;
    struct bench bench;
    bench_open(&bench);
    static const struct {
        size_t rows, features, clusters;
    } shapes[] = {{450003, 32, 64}, {450003, 17, 7},  {400017, 31, 20}, {900007, 9, 64},
                  {900001, 16, 10}, {5100007, 2, 64}, {5100011, 2, 11}, {9999999, 1, 64}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i += support_every(5))
        for (int ties = 0; ties < 2; ties++) {
            const size_t rows = shapes[i].rows, features = shapes[i].features, clusters = shapes[i].clusters;
            struct kmeans_data data = ties ? kmeans_lattice(rows, features, clusters, GEMM_F64, 3, 0, i)
                                           : kmeans_reals(rows, features, clusters, GEMM_F64);
            struct kmeans_options options = kmeans_defaults(&data);
            options.iterations = 3;
            if (ties) /* equal centres: no score decides */
                memcpy(data.values + features, data.values, features * sizeof *data.values);
            assert_true(cluster_slices(rows, clusters, features) >= 300);
            assert_true(check_fused(&bench, &data, &options));
            kmeans_data_free(&data);
        }
    bench_close(&bench);
}

/* More rows than a pass of the kernels, and of the sums of pixels, takes. */
static void more_rows_than_a_pass(void **state) {
    (void)state;
    struct bench bench;
    bench_open(&bench);
    for (int bytes = 0; bytes < 2; bytes++) {
        const size_t count = ((size_t)1 << (support_stride() > 1 ? 20 : bytes ? 22 : 24)) + 77;
        struct kmeans_data data = kmeans_lattice(count, 1, 3, bytes ? GEMM_F32 : GEMM_F64, 255, 0, 3);
        struct kmeans_options options = kmeans_defaults(&data);
        data.bytes = bytes;
        options.iterations = 2;
        check_run(&bench, &data, &options, 0, 1);
        check_run(&bench, &data, &options, 2, 3);
        kmeans_data_free(&data);
    }
    bench_close(&bench);
}

static void empty_clusters_are_filled(void **state) {
    (void)state;
    struct bench bench;
    bench_open(&bench);
    for (int form = 0; form < 2; form++)
        for (int empty = EMPTY_FAR; empty <= EMPTY_SPLIT; empty++) {
            struct kmeans_data data = kmeans_lattice(400, 3, 20, GEMM_F32, 200, 0, 9);
            struct kmeans_options options = kmeans_defaults(&data);
            for (size_t i = 3; i < 30; i++) data.values[i] = data.values[i % 3]; /* equal initial centres */
            data.bytes = form;
            options.empty = (enum kmeans_empty)empty;
            options.iterations = 100;
            check_run(&bench, &data, &options, 0, 3);
            kmeans_data_free(&data);
        }
    bench_close(&bench);
}

static void bounds_are_refused(void **state) {
    (void)state;
    struct bench bench;
    bench_open(&bench);
    struct kmeans_data data = kmeans_lattice(400, 3, 20, GEMM_F32, 200, 0, 9);
    struct kmeans_options options = kmeans_defaults(&data);
    options.bounds = BOUNDS_ON;
    for (size_t w = 0; w < WAYS; w++) {
        struct kmeans_result result;
        assert_status(kmeans_bench_run(&bench.way[w], &data, &options, NULL, &result), STATUS_UNAVAILABLE);
        assert_says(status_message(), "bounds cannot be used here");
        kmeans_free(&result);
    }
    kmeans_data_free(&data);
    bench_close(&bench);
}

/* Magnitudes whose squares over- or underflow the dtype; in float64 the run says that it is not exact. */
static void extreme_magnitudes(void **state) {
    (void)state;
    struct bench bench;
    bench_open(&bench);
    static const double factors[] = {0x1p-149, 0x1p-75, 0x1p60, 0x1p115, 0x1p700};
    for (size_t i = 0; i < 5; i++)
        for (size_t w = 0; w < 3; w++) {
            struct kmeans_data data = kmeans_lattice(300, 4, 6, i < 4 ? GEMM_F32 : GEMM_F64, 9, 0, 8);
            struct kmeans_options options = kmeans_defaults(&data);
            struct kmeans_result result;
            char why[256];
            for (size_t v = 0; v < 1200; v++) data.values[v] *= factors[i];
            options.engine = ways[w].engine;
            kmeans_assert_runs(&bench.way[w], &data, &options, &result);
            if (i < 4 && !kmeans_agrees(&data, &result, KMEANS_ITERATIONS, why, sizeof why))
                fail_msg("%g: %s", factors[i], why);
            assert_true((result.counts.uncertified > 0) == (i == 4));
            kmeans_free(&result);
            kmeans_data_free(&data);
        }
    bench_close(&bench);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runs_agree_with_the_reference),
        cmocka_unit_test(runs_have_the_bits_of_the_host),
        cmocka_unit_test(fused_kernels_have_the_bits_of_the_host),
        cmocka_unit_test(few_features_of_float64),
        cmocka_unit_test(labels_and_sums_in_one_pass),
        cmocka_unit_test(more_rows_than_a_pass),
        cmocka_unit_test(empty_clusters_are_filled),
        cmocka_unit_test(bounds_are_refused),
        cmocka_unit_test(extreme_magnitudes),
    };
    return cmocka_run_group_tests_name("gpu k-means", tests, NULL, NULL);
}
