/* k-means of points in host memory, streamed to the GPU in chunks: the bits of the host, and the program. */
#include "tests/gpu.h"
#include "tests/kmeans_bench.h"

#include <stdlib.h>

static const struct {
    const char *backend;
    enum engine_choice engine;
} ways[] = {{"cublas", ENGINE_EAGER},
            {"cuda-tuned", ENGINE_EAGER},
            {"cuda-tuned", ENGINE_AUTO},
            {"cuda-naive", ENGINE_AUTO}};
enum { WAYS = sizeof ways / sizeof *ways };

struct bench {
    struct compute host, way[WAYS];
};

static void bench_open(struct bench *bench) {
    gpu_needed();
    support_open(&bench->host, "serial", 1);
    for (size_t w = 0; w < WAYS; w++)
        gpu_open(&bench->way[w], ways[w].backend, &(struct compute_options){.threads = 1});
}

static void bench_close(struct bench *bench) {
    compute_close(&bench->host);
    for (size_t w = 0; w < WAYS; w++) compute_close(&bench->way[w]);
}

/* Parts that cut slices of the sums; through staging buffers, or read from page-locked points. */
static void check_streamed(struct bench *bench, struct kmeans_data *data,
                           const struct kmeans_options *options) {
    static const size_t chunks[] = {512, 4352};
    struct kmeans_result want, got;
    data->chunk = 0;
    kmeans_assert_runs(&bench->host, data, options, &want);
    for (size_t w = 0; w < WAYS; w++) {
        struct kmeans_options own = *options;
        own.engine = ways[w].engine;
        data->chunk = chunks[w % 2];
        data->pinned = w / 2;
        kmeans_assert_runs(&bench->way[w], data, &own, &got);
        kmeans_assert_same(data, &got, &want);
        kmeans_free(&got);
    }
    data->chunk = 0;
    kmeans_free(&want);
}

static struct kmeans_data streamed_data(int form, size_t count, size_t features, size_t clusters) {
    struct kmeans_data data = form ? kmeans_reals(count, features, clusters, form == 1 ? GEMM_F32 : GEMM_F64)
                                   : kmeans_lattice(count, features, clusters, GEMM_F32, 255, 0, 4);
    data.bytes = form == 0;
    return data;
}

static void streamed_points_have_the_bits_of_the_host(void **state) {
    (void)state;
    struct bench bench;
    bench_open(&bench);
    static const enum kmeans_init inits[] = {KMEANS_FIRST, KMEANS_RANDOM, KMEANS_PLUS_PLUS, KMEANS_PARALLEL};
    for (size_t i = 0; i < 24; i += support_every(7)) {
        struct kmeans_data data = streamed_data((int)(i % 3), i % 2 ? 20000 : 9001, i % 4 < 2 ? 6 : 33, 20);
        struct kmeans_options options = kmeans_defaults(&data);
        options.init = inits[i / 6];
        options.batch = i / 3 % 2 ? 1000 : 0;
        options.restarts = 2;
        options.iterations = 6;
        check_streamed(&bench, &data, &options);
        kmeans_data_free(&data);
    }
    bench_close(&bench);
}

static void streamed_points_fill_empty_clusters(void **state) {
    (void)state;
    struct bench bench;
    bench_open(&bench);
    for (int form = 0; form < 3; form++)
        for (int empty = EMPTY_FAR; empty <= EMPTY_SPLIT; empty++) {
            struct kmeans_data data = streamed_data(form, 4000, 3, 20);
            struct kmeans_options options = kmeans_defaults(&data);
            for (size_t i = 3; i < 30; i++) data.values[i] = data.values[i % 3]; /* equal initial centres */
            options.empty = (enum kmeans_empty)empty;
            options.iterations = 30;
            check_streamed(&bench, &data, &options);
            kmeans_data_free(&data);
        }
    bench_close(&bench);
}

/* A run goes on with streamed points where one of points on the host ended. */
static void streamed_points_resume(void **state) {
    (void)state;
    struct bench bench;
    bench_open(&bench);
    for (int form = 0; form < 3; form++)
        for (size_t batch = 0; batch <= 700; batch += 700) {
            struct kmeans_data data = streamed_data(form, 9001, 10, 12);
            struct kmeans_options options = kmeans_defaults(&data);
            struct kmeans_result whole, half, rest;
            options.batch = batch;
            options.iterations = 8;
            kmeans_assert_runs(&bench.host, &data, &options, &whole);
            options.iterations = 3;
            kmeans_assert_runs(&bench.host, &data, &options, &half);
            options.iterations = 8;
            options.start = &half.state;
            data.chunk = 1024;
            kmeans_assert_runs(&bench.way[0], &data, &options, &rest);
            kmeans_assert_same(&data, &rest, &whole);
            kmeans_free(&whole);
            kmeans_free(&half);
            kmeans_free(&rest);
            kmeans_data_free(&data);
        }
    bench_close(&bench);
}

/* ./train kmeans: the log says how the points were copied, and the labels are those of points on the GPU. */
static void the_program_streams_points(void **state) {
    (void)state;
    static const char *const pins[] = {"off", "on"};
    static char output[1 << 16];
    gpu_needed();
    for (size_t i = 0; i < 2; i++) {
        const char *log = support_path("k.jsonl"), *there = support_path("there.csv"),
                   *here = support_path("here.csv");
        static const char run[] =
            "kmeans --data uniform:80MB,8 --dtype f64 --clusters 5 --iterations 4 --backend "
            "cublas";
        size_t sizes[2];
        cJSON *line = NULL;
        assert_int_equal(support_run(output, sizeof output, "%s --predict %s", run, here), 0);
        assert_int_equal(support_run(output, sizeof output,
                                     "%s --residency host --pin %s --predict %s --log %s", run, pins[i],
                                     there, log),
                         0);
        assert_says(output, i ? "residency host (pinned)" : "residency host (pageable)");
        assert_says(output, "transfer/total");
        unsigned char *first = support_read(here, &sizes[0]), *second = support_read(there, &sizes[1]);
        assert_int_equal(sizes[0], sizes[1]);
        assert_memory_equal(first, second, sizes[0]);
        assert_int_equal(support_log(log, "kmeans", 0, &line), 1);
        assert_true(support_number(line, "transfer_ratio") > 0 && support_number(line, "transfer_ratio") < 1);
        assert_true(support_number(line, "streamed_bytes") > 5 * 80e6);
        cJSON_Delete(line);
        free(first);
        free(second);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streamed_points_have_the_bits_of_the_host),
        cmocka_unit_test(streamed_points_fill_empty_clusters),
        cmocka_unit_test(streamed_points_resume),
        cmocka_unit_test(the_program_streams_points),
    };
    return cmocka_run_group_tests_name("gpu k-means, streamed", tests, NULL, NULL);
}
