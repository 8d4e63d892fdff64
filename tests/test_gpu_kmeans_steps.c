/* The steps of k-means on the GPU (kernels/kmeans_steps.h). */
#include "tests/gpu.h"
#include "tests/kmeans_bench.h"

#include <math.h>
#include <stdlib.h>

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
    options.precision = NEAREST_F32;
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
            if (s != ATOMICS || slack == 0) kmeans_assert_same(data, &result[1], &result[0]);
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
    for (size_t shape = 0; shape < KMEANS_SHAPES; shape += support_every(5))
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
        struct kmeans_data data = kmeans_reals(9001, 33, 20, (enum gemm_dtype)dtype);
        check_steps(of, &data, 1e-12);
        const struct kmeans_options certified = kmeans_defaults(&data);
        struct kmeans_result want, got;
        kmeans_assert_runs(&host, &data, &certified, &want);
        for (size_t s = 0; s < ATOMICS && dtype == GEMM_F64; s++) { /* in float32 a label may differ */
            const struct kmeans_options options = stepped(&data, s, 256);
            kmeans_assert_runs(&of[RESIDENCY_HOST], &data, &options, &got);
            kmeans_assert_same(&data, &got, &want);
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_are_iterations),
        cmocka_unit_test(steps_at_their_limits),
        cmocka_unit_test(steps_add_reals),
        cmocka_unit_test(steps_fill_empty_clusters),
        cmocka_unit_test(steps_need_their_residency),
    };
    return cmocka_run_group_tests_name("gpu k-means steps", tests, NULL, NULL);
}
