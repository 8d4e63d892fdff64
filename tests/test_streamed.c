/* k-means of points that are streamed from host memory: the bits of points on the device. The device is the
   host, with copies as late as they may be (tests/staged_host.h). */
#include "tests/support.h"
#include "tests/kmeans_bench.h"
#include "tests/staged_host.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "src/backend/audit.h"
#include "src/cluster/point_stream.h"

static void open_staged(struct compute *compute, const char *backend, int threads) {
    support_open(compute, backend, threads);
    staged_host_open();
    compute->device.driver = &staged_host;
    staged_uploads = 0;
}

static void close_staged(struct compute *compute) {
    compute_close(compute);
    assert_int_equal(staged_pinned, 0);
}

/* Reals whose sums depend on the order of the additions, or pixels. */
static struct kmeans_data make_data(int form, size_t count, size_t features, size_t clusters) {
    const enum gemm_dtype dtype = form == 2 ? GEMM_F64 : GEMM_F32;
    struct kmeans_data data = kmeans_lattice(count, features, clusters, dtype, form ? 1u << 23 : 255, 0, 11);
    for (size_t i = 0; form && i < count * features; i++)
        data.values[i] = form == 1 ? (double)(float)(data.values[i] / 3e6) : data.values[i] / 3e6;
    data.bytes = form == 0;
    return data;
}

/* Same bits of all that a result has, but for `ambiguous`, which depends on the kernel. */
static void assert_same(const struct kmeans_data *data, const struct kmeans_options *options,
                        const struct kmeans_result *got, const struct kmeans_result *want) {
    const size_t elements = data->clusters * data->features;
    assert_int_equal(got->state.iteration, want->state.iteration);
    assert_int_equal(got->state.restart, want->state.restart);
    assert_int_equal(got->end, want->end);
    assert_memory_equal(got->label, want->label, data->count * sizeof *got->label);
    assert_memory_equal(got->count, want->count, data->clusters * sizeof *got->count);
    assert_memory_equal(got->state.values, want->state.values, elements * dtype_size(data->dtype));
    assert_memory_equal(&got->inertia, &want->inertia, sizeof got->inertia);
    assert_int_equal(got->counts.changed, want->counts.changed);
    if (options->batch)
        assert_memory_equal(got->state.sums, want->state.sums, elements * sizeof *got->state.sums);
}

/* The inertia and shift of each iteration. */
struct history {
    size_t count;
    double value[2 * 64];
};

static void remember(void *self, const struct kmeans_record *record) {
    struct history *history = self;
    assert_true(history->count + 2 <= sizeof history->value / sizeof *history->value);
    history->value[history->count++] = record->inertia;
    history->value[history->count++] = record->shift;
}

static void check(struct compute *compute, struct kmeans_data *data, const struct kmeans_options *options,
                  size_t chunk) {
    struct history of_device = {0}, of_host = {0};
    struct kmeans_observer observer = {.self = &of_device, .iteration = remember};
    struct kmeans_result want, got;
    data->chunk = 0;
    assert_status(kmeans_bench_run(compute, data, options, &observer, &want), STATUS_OK);
    observer.self = &of_host;
    for (int pinned = 0; pinned < 2; pinned++) {
        data->chunk = chunk;
        data->pinned = pinned;
        of_host.count = 0;
        assert_status(kmeans_bench_run(compute, data, options, &observer, &got), STATUS_OK);
        assert_same(data, options, &got, &want);
        assert_int_equal(of_host.count, of_device.count);
        assert_memory_equal(of_host.value, of_device.value, of_host.count * sizeof(double));
        kmeans_free(&got);
    }
    kmeans_free(&want);
}

/* Chunks that cut slices of the sums, the last one short; one chunk; a chunk of one row. */
static void same_bits_for_chunks(void **state) {
    (void)state;
    static const size_t counts[] = {20000, 12289, 9001, 513, 257, 20};
    static const size_t chunks[] = {256, 1024, 4352, 8192, 1 << 20};
    struct compute compute;
    open_staged(&compute, "tuned", 2);
    for (size_t i = 0; i < 3 * 6 * 5; i += support_every(11)) {
        const size_t form = i % 3, c = i / 3 % 6, k = i / 18;
        struct kmeans_data data = make_data((int)form, counts[c], c % 2 ? 33 : 6, 17);
        struct kmeans_options options = kmeans_defaults(&data);
        options.iterations = 5;
        options.engine = k % 2 ? ENGINE_EAGER : ENGINE_AUTO;
        check(&compute, &data, &options, chunks[k]);
        kmeans_data_free(&data);
    }
    assert_true(staged_uploads > (support_stride() > 1 ? 100 : 1000));
    close_staged(&compute);
}

static void same_bits_for_inits_batches_and_restarts(void **state) {
    (void)state;
    static const enum kmeans_init inits[] = {KMEANS_FIRST, KMEANS_RANDOM, KMEANS_PLUS_PLUS, KMEANS_PARALLEL};
    struct compute compute;
    open_staged(&compute, "openmp", 2);
    for (size_t i = 0; i < 3 * 4 * 2; i += support_every(5)) {
        struct kmeans_data data = make_data((int)(i % 3), 4097, 21, 20);
        struct kmeans_options options = kmeans_defaults(&data);
        options.init = inits[i / 3 % 4];
        options.batch = i / 12 * 1000;
        options.restarts = 2;
        options.iterations = 6;
        check(&compute, &data, &options, 512);
        kmeans_data_free(&data);
    }
    close_staged(&compute);
}

static void same_bits_if_clusters_are_empty(void **state) {
    (void)state;
    struct compute compute;
    open_staged(&compute, "serial", 1);
    for (int form = 0; form < 3; form++)
        for (int empty = EMPTY_FAR; empty <= EMPTY_SPLIT; empty++) {
            struct kmeans_data data = make_data(form, 4000, 3, 20);
            struct kmeans_options options = kmeans_defaults(&data);
            for (size_t i = 3; i < 30; i++) data.values[i] = data.values[i % 3]; /* equal initial centres */
            options.empty = (enum kmeans_empty)empty;
            options.iterations = 30;
            check(&compute, &data, &options, 768);
            kmeans_data_free(&data);
        }
    close_staged(&compute);
}

/* A run of streamed points goes on where one of points on the device ended. */
static void resumes(void **state) {
    (void)state;
    struct compute compute;
    open_staged(&compute, "tuned", 2);
    for (int form = 0; form < 3; form++)
        for (size_t batch = 0; batch <= 700; batch += 700) {
            struct kmeans_data data = make_data(form, 9001, 10, 12);
            struct kmeans_options options = kmeans_defaults(&data);
            struct kmeans_result whole, half, rest;
            options.batch = batch;
            options.iterations = 8;
            kmeans_assert_runs(&compute, &data, &options, &whole);
            options.iterations = 3;
            kmeans_assert_runs(&compute, &data, &options, &half);
            options.iterations = 8;
            options.start = &half.state;
            data.chunk = 1024;
            kmeans_assert_runs(&compute, &data, &options, &rest);
            rest.counts = whole.counts;
            assert_same(&data, &options, &rest, &whole);
            kmeans_free(&whole);
            kmeans_free(&half);
            kmeans_free(&rest);
            kmeans_data_free(&data);
        }
    close_staged(&compute);
}

/* The audit of labels reads its rows from host memory one by one. */
static void labels_are_audited(void **state) {
    (void)state;
    struct compute compute;
    open_staged(&compute, "tuned", 2);
    for (int form = 0; form < 3; form++) {
        struct kmeans_data data = make_data(form, 5000, 6, 9);
        struct kmeans_options options = kmeans_defaults(&data);
        struct kmeans_result result;
        struct audit audit = {0};
        audit_start(&audit, AUDIT_ALL);
        compute.audit = &audit;
        options.iterations = 4;
        data.chunk = 768;
        kmeans_assert_runs(&compute, &data, &options, &result);
        compute.audit = NULL;
        assert_int_equal(result.audited, 2 * 4);
        kmeans_free(&result);
        kmeans_data_free(&data);
    }
    close_staged(&compute);
}

/* A pass over the points uploads each row once; labels and sums share it. */
static void each_iteration_uploads_the_points_once(void **state) {
    (void)state;
    struct compute compute;
    open_staged(&compute, "openmp", 1);
    for (int form = 0; form < 3; form++) {
        size_t uploads[2];
        for (size_t more = 0; more < 2; more++) {
            struct kmeans_data data = make_data(form, 5000, 6, 9);
            struct kmeans_options options = kmeans_defaults(&data);
            struct kmeans_result result;
            data.chunk = 512;
            options.iterations = 2 + more;
            staged_uploads = 0;
            kmeans_assert_runs(&compute, &data, &options, &result);
            assert_int_equal(result.state.iteration, 2 + more);
            uploads[more] = staged_uploads;
            kmeans_free(&result);
            kmeans_data_free(&data);
        }
        assert_int_equal(uploads[1] - uploads[0], 10);
    }
    close_staged(&compute);
}

static void wrong_points_are_refused(void **state) {
    (void)state;
    struct compute compute;
    open_staged(&compute, "tuned", 2);
    for (int pinned = 0; pinned < 2; pinned++) {
        struct kmeans_data data = make_data(2, 1000, 5, 4);
        struct kmeans_options options = kmeans_defaults(&data);
        struct kmeans_result result;
        data.chunk = 256;
        data.pinned = pinned;
        data.values[777 * 5 + 3] = NAN;
        data.values[900 * 5] = INFINITY;
        assert_status(kmeans_bench_run(&compute, &data, &options, NULL, &result), STATUS_BAD_DATA);
        assert_says(status_message(), "row 777");
        assert_says(status_message(), "feature 3 is nan");
        kmeans_free(&result);
        data.values[777 * 5 + 3] = data.values[900 * 5] = 1;
        options.bounds = BOUNDS_ON;
        assert_status(kmeans_bench_run(&compute, &data, &options, NULL, &result), STATUS_UNAVAILABLE);
        assert_says(status_message(), "bounds cannot be used here: the points are streamed");
        kmeans_free(&result);
        kmeans_data_free(&data);
    }
    close_staged(&compute);
}

/* The loader: points of every source stay in host memory, with the norms of points on the device. */
static void assert_loaded(const struct points *host, const struct points *device, const char *residency) {
    const size_t size = device->bytes ? 1 : dtype_size(device->dtype);
    assert_string_equal(points_residency(host), residency);
    assert_string_equal(points_residency(device), "device");
    assert_int_equal(host->count, device->count);
    assert_memory_equal(host->bytes ? (void *)host->bytes : host->values,
                        device->bytes ? (void *)device->bytes : device->values,
                        host->count * host->features * size);
    assert_memory_equal(host->norm, device->norm,
                        (host->count + NEAREST_BLOCK - 1) / NEAREST_BLOCK * sizeof(double));
}

static void every_source_is_streamed(void **state) {
    (void)state;
    struct compute compute;
    char file[600], settings[800];
    open_staged(&compute, "serial", 1);
    double values[300 * 4];
    for (size_t i = 0; i < 1200; i++) values[i] = (double)i / 7;
    const struct tensor tensor = {
        .name = "points", .dtype = GEMM_F64, .rank = 2, .shape = {300, 4}, .data = values};
    snprintf(file, sizeof file, "%s", support_path("points.safetensors"));
    assert_status(safetensors_write(file, &tensor, 1, NULL, 0), STATUS_OK);
    const char *const sources[] = {"synthetic", "uniform:1MB,7", file};
    for (size_t s = 0; s < 3; s++)
        for (int pinned = support_stride() > 1 && s == 0; pinned < 2;
             pinned++) { /* (the first one is large) */
            struct point_sets on_device, on_host;
            struct config config;
            snprintf(settings, sizeof settings, "data=%s dtype=%s", sources[s], s == 2 ? "f64" : "f32");
            support_config(&config, settings);
            assert_status(points_load(&on_device, &compute.device, &config), STATUS_OK);
            config.residency = RESIDENCY_HOST;
            config.pin = pinned;
            assert_status(points_load(&on_host, &compute.device, &config), STATUS_OK);
            const char *residency = pinned ? "host (pinned)" : "host (pageable)";
            assert_loaded(&on_host.train, &on_device.train, residency);
            if (s == 0) assert_loaded(&on_host.test, &on_device.test, residency);
            points_close(&on_device, &compute.device);
            points_close(&on_host, &compute.device);
        }
    close_staged(&compute);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits_for_chunks),
        cmocka_unit_test(same_bits_for_inits_batches_and_restarts),
        cmocka_unit_test(same_bits_if_clusters_are_empty),
        cmocka_unit_test(resumes),
        cmocka_unit_test(labels_are_audited),
        cmocka_unit_test(each_iteration_uploads_the_points_once),
        cmocka_unit_test(wrong_points_are_refused),
        cmocka_unit_test(every_source_is_streamed),
    };
    return cmocka_run_group_tests_name("streamed points", tests, NULL, NULL);
}
