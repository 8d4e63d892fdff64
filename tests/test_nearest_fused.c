/* Engine fused of k-means: integer kernels, and slots that are wrong. */
#include "tests/support.h"
#include "tests/kmeans_bench.h"

#include <math.h>
#include <stdlib.h>

#include "kernels/host/ops/cluster.h"
#include "kernels/host/ops/ops.h"
#include "kernels/host/tuned/nearest.h"
#include "src/backend/audit.h"
#include "src/base/pages.h"
#include "src/base/rng.h"

static size_t nearest_in_double(const uint8_t *x, const float *values, size_t clusters, size_t features) {
    double best = INFINITY;
    size_t label = 0;
    for (size_t j = 0; j < clusters; j++) {
        double sum = 0;
        for (size_t f = 0; f < features; f++)
            sum += ((double)x[f] - (double)values[j * features + f]) *
                   ((double)x[f] - (double)values[j * features + f]);
        if (sum < best) label = j;
        if (sum < best) best = sum;
    }
    return label;
}

/* Pixels and centres at random; every third centre is far outside of the pixels, or negative. */
static void check_integer_kernel(const struct int8_kernel *kernel, size_t rows, size_t features,
                                 size_t clusters, int threads) {
    struct rng rng = rng_open(rows * features, RNG_TEST, (uint32_t)clusters);
    struct host_ops_context context = {.threads = 1};
    const struct cluster_ops *ops = host_cluster_ops(GEMM_F32);
    double norm[8], centre_norm;
    uint8_t *pixels = pages_alloc_guarded(rows * features, true); /* a read beyond them crashes */
    float *values = malloc(clusters * features * sizeof *values), *x = malloc(rows * features * sizeof *x);
    struct nearest_centres centres = {.count = clusters,
                                      .features = features,
                                      .values = values,
                                      .transposed = malloc(clusters * features * sizeof(float)),
                                      .bias = malloc(clusters * sizeof(float)),
                                      .norm = &centre_norm};
    uint32_t *label = malloc(rows * sizeof *label);
    for (size_t i = 0; i < rows * features; i++) pixels[i] = (uint8_t)rng_below(&rng, 256);
    for (size_t i = 0; i < clusters * features; i++)
        values[i] = (float)(rng_uniform(&rng) * 255 - (i / features % 3 == 2 ? 300 : 0));
    ops->rows(&context, rows, features, true, pixels, NULL, x);
    ops->norms(&context, rows, features, x, norm);
    ops->centres(&context, &centres);
    const struct nearest_shape shape = {
        .dtype = GEMM_F32, .bytes = true, .features = features, .clusters = clusters};
    void *state = tuned_nearest_int8(kernel, &shape, threads);
    const struct nearest_call call = {.rows = rows,
                                      .bytes = true,
                                      .x = pixels,
                                      .centres = &centres,
                                      .norm = norm,
                                      .certify = true,
                                      .label = label};
    struct nearest_counts counts = {0};
    assert_non_null(state);
    assert_true(tuned_nearest.centres(state, &centres));
    for (size_t r = 0; r < rows; r++) label[r] = NEAREST_NONE;
    tuned_nearest.run(state, &call, &counts);
    for (size_t r = 0; r < rows; r++)
        assert_int_equal(label[r], nearest_in_double(pixels + r * features, values, clusters, features));
    assert_int_equal(counts.changed, rows);
    assert_true(counts.ambiguous <= rows / 2 + 1); /* the certificate is worth something */
    tuned_nearest.close(state);
    pages_free_guarded(pixels, rows * features);
    free(values);
    free(x);
    free(centres.transposed);
    free(centres.bias);
    free(label);
}

static void integer_kernels_are_exact(void **state) {
    (void)state;
    static const struct int8_kernel *const kernels[] = {&int8_amx, &int8_vnni};
    static const size_t rows[] = {1, 31, 33, 600}, features[] = {1, 3, 63, 64, 65, 784},
                        clusters[] = {1, 15, 17, 40};
    size_t checked = 0;
    for (size_t k = 0; k < 2; k++) {
        if (!kernels[k]->usable()) {
            print_message("not here: %s\n", kernels[k]->name);
            continue;
        }
        for (size_t i = 0; i < 4 * 6 * 4; i++, checked++)
            check_integer_kernel(kernels[k], rows[i % 4], features[i / 4 % 6], clusters[i / 24],
                                 1 + (int)(i % 3));
    }
    if (!checked) skip();
}

/* A slot that gives a wrong label to some rows, from some call on. */
static int wrong_from, fused_calls;

static void *open_wrong(void *context, const struct nearest_shape *shape, char *why, size_t size) {
    (void)context;
    (void)shape;
    (void)why;
    (void)size;
    fused_calls = 0;
    return &fused_calls;
}

static void close_wrong(void *memory) {
    (void)memory;
}

static bool centres_of_wrong(void *memory, const struct nearest_centres *centres) {
    (void)memory;
    (void)centres;
    return true;
}

static void run_wrong(void *memory, const struct nearest_call *call, struct nearest_counts *counts) {
    (void)memory;
    const bool wrong_now = ++fused_calls >= wrong_from;
    for (size_t r = 0; r < call->rows; r++) {
        const size_t features = call->centres->features;
        const size_t nearest = nearest_in_double((const uint8_t *)call->x + r * features,
                                                 call->centres->values, call->centres->count, features);
        counts->changed += call->label[r] != nearest;
        call->label[r] = (uint32_t)(wrong_now ? (nearest + 1) % call->centres->count : nearest);
    }
}

static void wrong_fused_engine_is_caught(void **state) {
    (void)state;
    static const struct gemm_nearest slot = {open_wrong, close_wrong, centres_of_wrong,
                                             run_wrong,  NULL,        NULL};
    static const char *const says[] = {"engine fused gives row", "audit: row"};
    struct gemm_backend backend = *registry_at(0)->backend;
    struct kmeans_data data = kmeans_lattice(300, 5, 4, GEMM_F32, 255, 0, 4);
    const struct kmeans_options options = kmeans_defaults(&data);
    data.bytes = true;
    backend.nearest = &slot;
    for (int i = 0; i < 3; i++) { /* wrong at once, wrong later, right */
        struct compute compute;
        struct kmeans_result result;
        struct audit audit;
        support_open(&compute, registry_at(0)->name, 1);
        compute.backend = &backend;
        audit_start(&audit, AUDIT_ALL);
        compute.audit = &audit;
        wrong_from = i == 0 ? 1 : i == 1 ? 3 : 1 << 20;
        const enum status status = kmeans_bench_run(&compute, &data, &options, NULL, &result);
        assert_status(status, i < 2 ? STATUS_VERIFY_FAILED : STATUS_OK);
        if (i < 2) assert_says(status_message(), says[i]);
        if (i == 2) kmeans_assert_agrees(&data, &result);
        kmeans_free(&result);
        compute.backend = registry_at(0)->backend;
        compute_close(&compute);
    }
    kmeans_data_free(&data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(integer_kernels_are_exact),
        cmocka_unit_test(wrong_fused_engine_is_caught),
    };
    return cmocka_run_group_tests_name("nearest, fused", tests, NULL, NULL);
}
