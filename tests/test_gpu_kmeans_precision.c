/* k-means on the tensor cores for reals with many features: exact labels have the bits of the host, those of
   tf32 and bf16 are the largest scores of rounded points and centres (kernels/cuda/cluster/many.cu). */
#include "tests/gpu.h"
#include "tests/kmeans_bench.h"

#include <math.h>
#include <stdlib.h>

struct bench {
    struct compute host, gpu;
};

static void bench_open(struct bench *bench) {
    gpu_needed();
    support_open(&bench->host, "serial", 1);
    gpu_open(&bench->gpu, "cuda-tuned", &(struct compute_options){.threads = 1});
}

static void bench_close(struct bench *bench) {
    compute_close(&bench->host);
    compute_close(&bench->gpu);
}

/* Skips the test if the kernel needs another GPU. */
static void run_fused(struct bench *bench, const struct kmeans_data *data, struct kmeans_options options,
                      struct kmeans_result *result) {
    options.engine = ENGINE_FUSED;
    const enum status status = kmeans_bench_run(&bench->gpu, data, &options, NULL, result);
    if (status == STATUS_UNAVAILABLE && strstr(status_message(), "needs a GPU")) {
        print_message("skipped: %s\n", status_message());
        skip();
    }
    assert_status(status, STATUS_OK);
}

enum change { NONE, FAR_FROM_0, TINY, HUGE_VALUES, FAR_POINT, EQUAL_ROWS, ZERO_ROWS, DIAGONAL, CHANGES };

static void change_values(struct kmeans_data *data, enum change change) {
    const bool single = data->dtype == GEMM_F32;
    for (size_t i = 0; i < data->count * data->features; i++) {
        const size_t row = i / data->features;
        double *value = &data->values[i];
        if (change == FAR_FROM_0) *value += single ? 1e4 : 1e9;
        if (change == TINY) *value *= single ? 0x1p-120 : 0x1p-400;
        if (change == HUGE_VALUES) *value *= single ? 0x1p110 : 0x1p400;
        if (change == FAR_POINT && row == 3) *value *= 1e5; /* a centre, too */
        if (change == EQUAL_ROWS && row % 7 == 0) *value = data->values[i % data->features];
        if (change == ZERO_ROWS && row % 5 == 0) *value = 0;
        /* all errors of roundings have one sign, and add up to the bound */
        if (change == DIAGONAL) *value = data->values[row * data->features];
        if (single) *value = (double)(float)*value;
    }
}

static void exact_labels(void **state) {
    (void)state;
    struct bench bench;
    bench_open(&bench);
    static const size_t features[] = {33, 65, 70, 128, 256, 257, 512, 600, 1024},
                        clusters[] = {1, 7, 128, 129, 500}, rows[] = {501, 1000, 3001};
    size_t number = 0;
    for (size_t f = 0; f < 9; f++)
        for (size_t c = 0; c < 5; c++)
            for (size_t form = 0; form < 2; form++, number++) {
                if (number % support_stride()) continue;
                const enum change change = (enum change)((f * 5 + c + form) % CHANGES);
                const bool lattice = number % 5 == 2 && change != TINY && change != HUGE_VALUES;
                const enum gemm_dtype dtype = form ? GEMM_F64 : GEMM_F32;
                const size_t count = rows[(f + c) % 3];
                struct kmeans_data data =
                    lattice ? kmeans_lattice(count, features[f], clusters[c], dtype, 3, 0, number)
                            : kmeans_reals(count, features[f], clusters[c], dtype);
                struct kmeans_options options = kmeans_defaults(&data);
                struct kmeans_result got, want;
                change_values(&data, change);
                options.iterations = 3;
                run_fused(&bench, &data, options, &got);
                kmeans_assert_runs(&bench.host, &data, &options, &want);
                kmeans_assert_same(&data, &got, &want);
                kmeans_free(&want);
                kmeans_free(&got);
                kmeans_data_free(&data);
            }
    bench_close(&bench);
}

/* Few rows stay open where the scores are clear, so that the bound is no larger than it must be. */
static void few_rows_are_ambiguous(void **state) {
    (void)state;
    struct bench bench;
    bench_open(&bench);
    for (int form = 0; form < 2; form++)
        for (int far = 0; far < 2; far++) {
            struct kmeans_data data = kmeans_reals(20000, 128, 1000, form ? GEMM_F64 : GEMM_F32);
            struct kmeans_options options = kmeans_defaults(&data);
            struct kmeans_result result;
            change_values(&data, far ? FAR_POINT : NONE);
            options.iterations = 1;
            run_fused(&bench, &data, options, &result);
            /* of the iteration and the last labels; an emulation has 4 % of uniform points, and 5 to 20 %
               with a centre that is far from all */
            assert_true(result.counts.ambiguous < (far ? 20000 * 2 / 2 : 20000 * 2 / 10));
            kmeans_free(&result);
            kmeans_data_free(&data);
        }
    bench_close(&bench);
}

/* --- tf32 and bf16 --- */

/* To `bits` bits of significand: to nearest, ties to even, or away from 0 for tf32. */
static double rounded(float value, int bits) {
    int exponent;
    const double fraction = ldexp(frexp((double)value, &exponent), bits);
    return ldexp(bits == 11 ? round(fraction) : nearbyint(fraction), exponent - bits);
}

/* The mean of some centres, as facts_kernel adds it. */
static void mean_of_centres(const struct kmeans_data *data, const float *values, float *mean) {
    enum { SAMPLE = 128, PARTS = 8 };
    const size_t clusters = data->clusters, count = clusters < SAMPLE ? clusters : SAMPLE;
    for (size_t f = 0; f < data->features; f++) {
        double parts[PARTS] = {0};
        for (size_t i = 0; i < count; i++)
            parts[i % PARTS] += (double)values[clusters * i / count * data->features + f] / (double)count;
        for (size_t i = 1; i < PARTS; i++) parts[0] += parts[i];
        mean[f] = (float)parts[0];
    }
}

/* Every label has the largest score, but for the error of sums in float32: a wgmma adds 8 or 16 products.
   Returns the number of labels that are not those of the centres and points as they are. */
static size_t check_labels(const struct kmeans_data *data, const struct kmeans_result *result, int bits) {
    const size_t features = data->features, clusters = data->clusters;
    const float *values = result->state.values;
    float *mean = malloc(features * sizeof *mean);
    double *x = malloc(features * sizeof *x), *c = malloc(clusters * features * sizeof *c),
           *score = malloc(clusters * sizeof *score), *half = calloc(clusters, sizeof *half), most = 0;
    size_t other = 0;
    assert_true(mean && x && c && score && half);
    mean_of_centres(data, values, mean);
    for (size_t j = 0; j < clusters; j++) {
        for (size_t f = 0; f < features; f++) {
            const float moved = values[j * features + f] - mean[f];
            c[j * features + f] = rounded(moved, bits);
            half[j] += (double)moved * (double)moved / 2;
        }
        most = fmax(most, half[j]);
    }
    for (size_t i = 0; i < data->count; i++) {
        double squares = 0, best = -INFINITY;
        size_t nearest = 0;
        double least = INFINITY;
        for (size_t f = 0; f < features; f++) {
            x[f] = rounded((float)data->values[i * features + f] - mean[f], bits);
            squares += x[f] * x[f];
        }
        for (size_t j = 0; j < clusters; j++) {
            double sum = 0, distance = 0;
            for (size_t f = 0; f < features; f++) {
                const double difference = data->values[i * features + f] - (double)values[j * features + f];
                sum += x[f] * c[j * features + f];
                distance += difference * difference;
            }
            score[j] = sum - half[j];
            best = fmax(best, score[j]);
            if (distance < least) nearest = j;
            least = fmin(least, distance);
        }
        const double steps = (double)(features + 63) / (bits == 11 ? 8 : 16),
                     error =
                         (steps * 20 * 0x1p-22 + 0x1p-21) * 1.01 * sqrt(squares * 2 * most) + 0x1p-21 * most;
        if (!(score[result->label[i]] >= best - 2 * error))
            fail_msg("%zu x %zu, K = %zu, %d bits: row %zu has the score %.9g, and the largest is %.9g",
                     data->count, features, clusters, bits, i, score[result->label[i]], best);
        other += result->label[i] != nearest;
    }
    free(mean);
    free(x);
    free(c);
    free(score);
    free(half);
    return other;
}

static void rounded_labels(void **state) {
    (void)state;
    struct bench bench;
    bench_open(&bench);
    static const size_t features[] = {2, 64, 65, 128, 129, 256, 512, 1024}, clusters[] = {1, 10, 129, 400};
    size_t number = 0, other = 0;
    for (size_t f = 0; f < 8; f++)
        for (size_t c = 0; c < 4; c++)
            for (int brief = 0; brief < 2; brief++, number++) {
                if (number % support_stride() || (!brief && features[f] > 512)) continue;
                struct kmeans_data data = kmeans_reals(1001, features[f], clusters[c], GEMM_F32);
                struct kmeans_options options = kmeans_defaults(&data);
                struct kmeans_result result;
                change_values(&data, number % 5 == 1 ? HUGE_VALUES : number % 5 == 3 ? FAR_FROM_0 : NONE);
                options.iterations = 2;
                options.precision = brief ? NEAREST_BF16 : NEAREST_TF32;
                run_fused(&bench, &data, options, &result);
                const size_t wrong = check_labels(&data, &result, brief ? 8 : 11);
                if (brief) other += wrong;
                assert_int_equal(result.counts.ambiguous, 0);
                kmeans_free(&result);
                kmeans_data_free(&data);
            }
    if (support_stride() == 1) assert_true(other > 0); /* else they were not of bf16 */
    bench_close(&bench);
}

/* Streamed points give the labels of points on the GPU, also those of bf16. */
static void streamed_points(void **state) {
    (void)state;
    struct bench bench;
    bench_open(&bench);
    for (int precision = NEAREST_EXACT; precision <= NEAREST_BF16; precision++) {
        if (precision == NEAREST_F32) continue;
        struct kmeans_data data = kmeans_reals(9001, 100, 150, GEMM_F32);
        struct kmeans_options options = kmeans_defaults(&data);
        struct kmeans_result there, here;
        options.precision = (enum nearest_precision)precision;
        options.iterations = 4;
        run_fused(&bench, &data, options, &there);
        data.chunk = 1024;
        run_fused(&bench, &data, options, &here);
        kmeans_assert_same(&data, &here, &there);
        kmeans_free(&there);
        kmeans_free(&here);
        kmeans_data_free(&data);
    }
    bench_close(&bench);
}

static void refusals(void **state) {
    (void)state;
    struct bench bench;
    bench_open(&bench);
    static const struct {
        enum nearest_precision precision;
        size_t features;
        enum gemm_dtype dtype;
        bool bytes;
        const char *says;
    } cases[] = {
        {NEAREST_BF16, 100, GEMM_F64, false, "labels of bf16 cannot be computed here: they need --dtype"},
        {NEAREST_TF32, 100, GEMM_F32, true, "pixels are multiplied as integers"},
        {NEAREST_TF32, 513, GEMM_F32, false, "at most 512 features"},
        {NEAREST_BF16, 1025, GEMM_F32, false, "at most 1024 features"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct kmeans_data data = kmeans_lattice(300, cases[i].features, 5, cases[i].dtype, 200, 0, 1);
        struct kmeans_options options = kmeans_defaults(&data);
        struct kmeans_result result;
        data.bytes = cases[i].bytes;
        options.precision = cases[i].precision;
        assert_status(kmeans_bench_run(&bench.gpu, &data, &options, NULL, &result), STATUS_UNAVAILABLE);
        assert_says(status_message(), cases[i].says);
        kmeans_free(&result);
        kmeans_data_free(&data);
    }
    bench_close(&bench);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact_labels),   cmocka_unit_test(few_rows_are_ambiguous),
        cmocka_unit_test(rounded_labels), cmocka_unit_test(streamed_points),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests_name("gpu k-means, precision", tests, NULL, NULL);
}
