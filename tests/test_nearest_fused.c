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

/* Pixels and centres at random; every third centre is far outside of the pixels, or negative. Without an
   integer kernel, candidates are found by one slice, and packed by `packs`. */
static void check_integer_kernel(const struct int8_kernel *kernel, const struct tuned_kernel *packs,
                                 size_t rows, size_t features, size_t clusters, int threads) {
    struct rng rng = rng_open(rows * features, RNG_TEST, (uint32_t)clusters);
    struct host_ops_context context = {.threads = 1};
    const struct cluster_ops *ops = host_cluster_ops(GEMM_F32);
    double norm[8], centre_norm;
    struct pages_guarded pages = {0};
    uint8_t *pixels = pages_guarded_take(&pages, rows * features, true); /* a read beyond them crashes */
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
    void *state =
        kernel ? tuned_nearest_int8(kernel, &shape, threads) : tuned_nearest_slice(packs, &shape, threads);
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
    assert_true(!kernel || counts.ambiguous <= rows / 2 + 1); /* the certificate is worth something */
    tuned_nearest.close(state);
    pages_guarded_free(&pages);
    free(values);
    free(x);
    free(centres.transposed);
    free(centres.bias);
    free(label);
}

static void integer_kernels_are_exact(void **state) {
    (void)state;
    static const struct int8_kernel *const kernels[] = {&int8_amx, &int8_vnni, NULL};
    static const size_t rows[] = {1, 31, 33, 600}, features[] = {1, 3, 63, 64, 65, 784},
                        clusters[] = {1, 15, 17, 40};
    size_t checked = 0;
    struct compute compute;
    support_open(&compute, "tuned", 1);
    const struct tuned_kernel *packs = tuned_kernel_for(compute.context, GEMM_F32);
    for (size_t k = 0; k < 3; k++) {
        if (kernels[k] ? !kernels[k]->usable() : !int8_vnni.usable() || packs->lanes != 16) {
            print_message("not here: %s\n", kernels[k] ? kernels[k]->name : "candidates by one slice");
            continue;
        }
        /* a slice refuses one centre: it is its own middle */
        for (size_t i = kernels[k] ? 0 : 4 * 6; i < 4 * 6 * 4; i++, checked++)
            check_integer_kernel(kernels[k], packs, rows[i % 4], features[i / 4 % 6], clusters[i / 24],
                                 1 + (int)(i % 3));
    }
    compute_close(&compute);
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
    static const struct gemm_nearest slot = {
        .open = open_wrong, .close = close_wrong, .centres = centres_of_wrong, .run = run_wrong};
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

/* --- iterations in one call --- */

/* A slot `lloyd` on the host, by the functions of the table, with faults. */
static enum { RIGHT, SUMS_FORGOTTEN, ONE_TOO_MANY, NEVER_ENDS, WRONG_LABEL_LATE } fault;
static size_t calls_of_lloyd, most_in_a_call, stops_at_empty;
static struct compute *host_compute;

static double add_all(size_t count, const double *values) {
    double lane[NEAREST_LANES] = {0};
    for (size_t j = 0; j < count; j++) lane[j % NEAREST_LANES] += values[j];
    return nearest_add_lanes(lane);
}

/* False: it stops before the centres move. */
static bool iterate_once(const struct nearest_lloyd *run, struct nearest_iteration *record, bool wrong) {
    const struct cluster_ops *ops = host_compute->device.driver->cluster_ops(&host_compute->device, GEMM_F32);
    void *context = host_compute->device.ops_context;
    const size_t clusters = run->sums->clusters, features = run->sums->features;
    memcpy((uint32_t *)run->rows->before, run->rows->label, run->rows->count * sizeof(uint32_t));
    run_wrong(NULL, run->points, &record->counts);
    if (wrong) run->points->label[0] = (run->points->label[0] + 1) % (uint32_t)clusters;
    if (fault != SUMS_FORGOTTEN) ops->sum(context, run->rows, run->sums);
    for (size_t j = 0; j < clusters; j++) record->empty += run->sums->count[j] == 0;
    if (record->empty && run->stop_at_empty) return false;
    ops->costs(context, run->sums, run->mean, run->centres->values, run->cost);
    memcpy(run->values_before, run->centres->values, clusters * features * sizeof(float));
    ops->means(context, run->sums, run->centres->values, run->shift);
    record->cost = add_all(clusters, run->cost);
    record->shift = add_all(clusters, run->shift);
    return true;
}

static size_t lloyd_on_host(void *memory, const struct nearest_lloyd *run, struct nearest_iteration *record) {
    (void)memory;
    const size_t iterations = run->iterations + (fault == ONE_TOO_MANY);
    size_t done = 0;
    bool ends = false;
    calls_of_lloyd++;
    if (run->iterations > most_in_a_call) most_in_a_call = run->iterations;
    while (!ends && done < iterations) {
        struct nearest_iteration *one = &record[done < run->iterations ? done : 0];
        *one = (struct nearest_iteration){0};
        const bool moved = iterate_once(run, one, fault == WRONG_LABEL_LATE && calls_of_lloyd > 1);
        ends = !moved || (nearest_ends(run, one->counts.changed, one->shift) && fault != NEVER_ENDS);
        stops_at_empty += !moved;
        done++;
    }
    return done < run->iterations ? done : run->iterations;
}

static const struct gemm_nearest lloyd_slot = {.open = open_wrong,
                                               .close = close_wrong,
                                               .centres = centres_of_wrong,
                                               .run = run_wrong,
                                               .lloyd = lloyd_on_host};

static enum status run_lloyd(const struct kmeans_data *data, const struct kmeans_options *options,
                             struct kmeans_result *result) {
    struct gemm_backend backend = *registry_at(0)->backend;
    struct compute compute;
    struct audit audit;
    support_open(&compute, registry_at(0)->name, 1);
    backend.nearest = &lloyd_slot;
    compute.backend = &backend;
    audit_start(&audit, AUDIT_SAMPLE);
    audit.started -= 1e6; /* it affords an audit of every call */
    compute.audit = &audit;
    host_compute = &compute;
    wrong_from = 1 << 20;
    calls_of_lloyd = most_in_a_call = stops_at_empty = 0;
    const enum status status = kmeans_bench_run(&compute, data, options, NULL, result);
    compute.backend = registry_at(0)->backend;
    compute_close(&compute);
    return status;
}

/* Two iterations verify it; then a call has as many as fit into a moment. */
static void iterations_in_one_call_have_the_same_bits(void **state) {
    (void)state;
    fault = RIGHT;
    for (int empty = EMPTY_KEEP; empty <= EMPTY_SPLIT; empty++)
        for (int equal = 0; equal < 2; equal++) {
            struct kmeans_data data = kmeans_lattice(1500, 4, 12, GEMM_F32, 255, 0, 7);
            struct kmeans_options options = kmeans_defaults(&data);
            struct kmeans_result steps, calls;
            struct compute compute;
            for (size_t i = 4; i < 40 && equal; i++) data.values[i] = data.values[i % 4]; /* empty clusters */
            data.bytes = true;
            options.iterations = 100;
            options.empty = (enum kmeans_empty)empty;
            support_open(&compute, "serial", 1);
            kmeans_assert_runs(&compute, &data, &options, &steps);
            compute_close(&compute);
            assert_status(run_lloyd(&data, &options, &calls), STATUS_OK);
            kmeans_assert_same(&data, &calls, &steps);
            assert_int_equal(calls.end, steps.end);
            assert_true(calls_of_lloyd > 1 && most_in_a_call > 2);
            assert_true((stops_at_empty > 0) == (equal && empty != EMPTY_KEEP));
            kmeans_free(&steps);
            kmeans_free(&calls);
            kmeans_data_free(&data);
        }
}

static void wrong_iterations_are_caught(void **state) {
    (void)state;
    static const char *const says[] = {[SUMS_FORGOTTEN] = "two iterations in one launch",
                                       [ONE_TOO_MANY] = "two iterations in one launch",
                                       [NEVER_ENDS] = "was to be the last",
                                       [WRONG_LABEL_LATE] = "audit: row"};
    struct kmeans_data data = kmeans_lattice(30, 2, 4, GEMM_F32, 255, 0, 3);
    struct kmeans_options options = kmeans_defaults(&data);
    data.bytes = true;
    for (fault = SUMS_FORGOTTEN; fault <= WRONG_LABEL_LATE; fault++) {
        struct kmeans_result result;
        enum status status = STATUS_OK;
        options.iterations = 60;
        for (int run = 0; run < 200 && !status; run++) { /* the audit checks two of the 30 rows */
            status = run_lloyd(&data, &options, &result);
            kmeans_free(&result);
            if (fault != WRONG_LABEL_LATE) break;
        }
        if (status != (fault == NEVER_ENDS ? STATUS_FAILED : STATUS_VERIFY_FAILED))
            fail_msg("fault %d: status %d, %s", fault, status, status_message());
        assert_says(status_message(), says[fault]);
    }
    kmeans_data_free(&data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(integer_kernels_are_exact),
        cmocka_unit_test(wrong_fused_engine_is_caught),
        cmocka_unit_test(iterations_in_one_call_have_the_same_bits),
        cmocka_unit_test(wrong_iterations_are_caught),
    };
    return cmocka_run_group_tests_name("nearest, fused", tests, NULL, NULL);
}
