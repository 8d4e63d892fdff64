/* Runs of k-means on the GPU: the reference, and the bits of the host, for every engine and residency. */
#include "tests/gpu.h"
#include "tests/kmeans_bench.h"

#include <math.h>
#include <stdlib.h>

static struct kmeans_data random_reals(size_t count, size_t features, size_t clusters,
                                       enum gemm_dtype dtype) {
    struct kmeans_data data = kmeans_lattice(count, features, clusters, dtype, 1u << 23, 0, 11);
    for (size_t i = 0; i < count * features; i++) data.values[i] = (double)(float)(data.values[i] / 3e6);
    return data;
}

static void assert_same_results(const struct kmeans_data *data, const struct kmeans_result *got,
                                const struct kmeans_result *want) {
    const size_t elements = data->clusters * data->features;
    assert_int_equal(got->state.iteration, want->state.iteration);
    for (size_t i = 0; i < data->count; i++)
        if (got->label[i] != want->label[i])
            fail_msg("label %zu is %u, on the host %u", i, got->label[i], want->label[i]);
    assert_memory_equal(got->count, want->count, data->clusters * sizeof *got->count);
    assert_memory_equal(got->state.values, want->state.values, elements * dtype_size(data->dtype));
    assert_true(got->inertia == want->inertia);
}

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
        assert_same_results(data, &got, &want);
        kmeans_free(&got);
    }
    kmeans_free(&want);
}

static void runs_agree_with_the_reference(void **state) {
    (void)state;
    struct bench bench;
    bench_open(&bench);
    for (size_t s = 0; s<KMEANS_SHAPES; s += support_stride()> 1 ? 4 : 1)
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
    for (size_t i = 0; i<12; i += support_stride()> 1 ? 5 : 1) {
        struct kmeans_data data = i % 2 ? random_reals(9001, 33, 20, i % 4 == 1 ? GEMM_F32 : GEMM_F64)
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
    assert_same_results(data, &got, &want);
    kmeans_free(&got);
    kmeans_free(&want);
    return true;
}

/* All sizes of tiles of the kernels for pixels, and of those for few features. */
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
                if (form && features[f] > (form == 1 ? 64 : 32)) continue; /* a GEMM is faster */
                struct kmeans_data data =
                    form ? random_reals(count, features[f], clusters[c], form == 1 ? GEMM_F32 : GEMM_F64)
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

/* More rows than a pass of the kernels for pixels, and of their sums, takes. */
static void more_rows_than_a_pass(void **state) {
    (void)state;
    struct bench bench;
    bench_open(&bench);
    const size_t count = ((size_t)1 << (support_stride() > 1 ? 20 : 22)) + 77;
    struct kmeans_data data = kmeans_lattice(count, 1, 3, GEMM_F32, 255, 0, 3);
    struct kmeans_options options = kmeans_defaults(&data);
    data.bytes = true;
    options.iterations = 2;
    check_run(&bench, &data, &options, 0, 1);
    check_run(&bench, &data, &options, 2, 3);
    kmeans_data_free(&data);
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

/* --- the steps of kernels/kmeans_steps.h --- */

static const struct {
    const char *name;
    enum residency residency;
} steps[] = {{"naive", RESIDENCY_HOST},
             {"transpose", RESIDENCY_HOST},
             {"shared", RESIDENCY_HOST},
             {"atomics", RESIDENCY_DEVICE},
             {"partial", RESIDENCY_DEVICE}};
enum { STEPS = sizeof steps / sizeof *steps, ATOMICS = 3, PARTIAL = 4 };
static const unsigned blocks[] = {32, 48, 256, 1024};

static struct kmeans_options stepped(const struct kmeans_data *data, size_t step, unsigned block) {
    struct kmeans_options options = kmeans_defaults(data);
    options.step = steps[step].name;
    options.block = block;
    options.certify = false;
    return options;
}

/* Every step and block size, twice: sums that are left from the run before would show. `slack` is that of
   reals; 0 for integers. */
static void check_steps(struct compute *of, const struct kmeans_data *data, double slack) {
    for (size_t s = 0; s < STEPS; s++)
        for (size_t b = 0; b < 4; b++) {
            const struct kmeans_options options = stepped(data, s, blocks[b]);
            struct kmeans_result result[2];
            char why[256];
            for (size_t run = 0; run < 2; run++) {
                kmeans_assert_runs(&of[steps[s].residency], data, &options, &result[run]);
                if (!kmeans_is_iteration(data, &result[run], slack, why, sizeof why))
                    fail_msg("step %s, blocks of %u, %zu x %zu, K = %zu: %s", steps[s].name, blocks[b],
                             data->count, data->features, data->clusters, why);
            }
            if (s != ATOMICS || slack == 0) assert_same_results(data, &result[1], &result[0]);
            kmeans_free(&result[0]);
            kmeans_free(&result[1]);
        }
}

static void open_residencies(struct compute *of) {
    for (int residency = RESIDENCY_DEVICE; residency <= RESIDENCY_HOST; residency++)
        gpu_open(&of[residency], "cublas",
                 &(struct compute_options){.threads = 1, .residency = (enum residency)residency});
}

static void steps_are_iterations(void **state) {
    (void)state;
    struct compute of[2];
    open_residencies(of);
    for (size_t shape = 0; shape<KMEANS_SHAPES; shape += support_stride()> 1 ? 5 : 1)
        for (int form = 0; form < 3; form++) {
            struct kmeans_data data = kmeans_shape(shape, form == 2 ? GEMM_F64 : GEMM_F32);
            data.bytes = form == 1 && data.values[0] < 256;
            check_steps(of, &data, 0);
            kmeans_data_free(&data);
        }
    compute_close(&of[0]);
    compute_close(&of[1]);
}

/* One feature; centres in several tiles; features of one centre in several tiles; sums of blocks that do not
   fit into shared memory; more rows than all blocks of `partial` take at once. */
static void steps_at_their_limits(void **state) {
    (void)state;
    static const struct {
        size_t count, features, clusters;
        enum gemm_dtype dtype;
    } sizes[] = {{5003, 1, 7, GEMM_F32},    {700, 65, 130, GEMM_F64}, {130, 7001, 3, GEMM_F64},
                 {257, 13001, 2, GEMM_F32}, {70001, 3, 9, GEMM_F32},  {31, 2, 31, GEMM_F64}};
    struct compute of[2];
    open_residencies(of);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct kmeans_data data = kmeans_lattice(sizes[i].count, sizes[i].features, sizes[i].clusters,
                                                 sizes[i].dtype, 30, 0, 40 + i);
        check_steps(of, &data, 0);
        kmeans_data_free(&data);
    }
    compute_close(&of[0]);
    compute_close(&of[1]);
}

/* Sums on the host have its bits; those of atomics have an error; those of blocks have the same bits in every
   run, which check_steps compares. */
static void steps_add_reals(void **state) {
    (void)state;
    struct compute of[2], host;
    open_residencies(of);
    support_open(&host, "serial", 1);
    for (int dtype = GEMM_F32; dtype <= GEMM_F64; dtype++) {
        struct kmeans_data data = random_reals(9001, 33, 20, (enum gemm_dtype)dtype);
        check_steps(of, &data, 1e-12);
        const struct kmeans_options certified = kmeans_defaults(&data);
        struct kmeans_result want, got;
        kmeans_assert_runs(&host, &data, &certified, &want);
        for (size_t s = 0; s < ATOMICS && dtype == GEMM_F64; s++) { /* in float32 a label may differ */
            const struct kmeans_options options = stepped(&data, s, 256);
            kmeans_assert_runs(&of[RESIDENCY_HOST], &data, &options, &got);
            assert_same_results(&data, &got, &want);
            kmeans_free(&got);
        }
        kmeans_free(&want);
        kmeans_data_free(&data);
    }
    compute_close(&of[0]);
    compute_close(&of[1]);
    compute_close(&host);
}

/* Clusters that become empty are filled as for other engines. */
static void steps_fill_empty_clusters(void **state) {
    (void)state;
    struct compute of[2];
    open_residencies(of);
    for (int form = 0; form < 2; form++)
        for (int empty = EMPTY_FAR; empty <= EMPTY_SPLIT; empty++)
            for (size_t s = 0; s < STEPS; s++) {
                struct kmeans_data data = kmeans_lattice(400, 3, 20, GEMM_F64, 200, 0, 9);
                struct kmeans_options options = stepped(&data, s, 64);
                struct kmeans_result result;
                for (size_t i = 3; i < 30; i++)
                    data.values[i] = data.values[i % 3]; /* equal initial centres */
                data.bytes = form;
                options.empty = (enum kmeans_empty)empty;
                kmeans_assert_runs(&of[steps[s].residency], &data, &options, &result);
                assert_int_equal(result.empty, 0);
                kmeans_free(&result);
                kmeans_data_free(&data);
            }
    compute_close(&of[0]);
    compute_close(&of[1]);
}

/* A step whose update is on the host needs the points there, and one on the GPU there. */
static void steps_need_their_residency(void **state) {
    (void)state;
    struct compute of[2];
    open_residencies(of);
    struct kmeans_data data = kmeans_lattice(400, 3, 20, GEMM_F32, 200, 0, 9);
    for (size_t s = 0; s < STEPS; s++) {
        const struct kmeans_options options = stepped(&data, s, 64);
        struct kmeans_result result;
        struct compute *other = &of[steps[s].residency == RESIDENCY_HOST ? RESIDENCY_DEVICE : RESIDENCY_HOST];
        assert_status(kmeans_bench_run(other, &data, &options, NULL, &result), STATUS_UNAVAILABLE);
        assert_says(status_message(), "use --residency");
        kmeans_free(&result);
    }
    kmeans_data_free(&data);
    compute_close(&of[0]);
    compute_close(&of[1]);
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
        cmocka_unit_test(more_rows_than_a_pass),
        cmocka_unit_test(empty_clusters_are_filled),
        cmocka_unit_test(steps_are_iterations),
        cmocka_unit_test(steps_at_their_limits),
        cmocka_unit_test(steps_add_reals),
        cmocka_unit_test(steps_fill_empty_clusters),
        cmocka_unit_test(steps_need_their_residency),
        cmocka_unit_test(bounds_are_refused),
        cmocka_unit_test(extreme_magnitudes),
    };
    return cmocka_run_group_tests_name("gpu k-means", tests, NULL, NULL);
}
