/* What is done with the result of ./train kmeans: --init kmeans:FILE. */
#include "tests/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "src/device/dtype.h"
#include "src/nn/safetensors.h"

enum { CLUSTERS = 6, FEATURES = 42 };

static char output[1 << 16];
#define RUN(...) support_run(output, sizeof output, __VA_ARGS__)

/* The centres of the data set, in a file. */
static const char *centres_file(const char *options) {
    const char *path = support_path("centres.safetensors");
    unlink(path);
    assert_int_equal(
        RUN("kmeans --data %s --clusters %d --save %s %s", support_data, CLUSTERS, path, options), 0);
    return path;
}

static double value_of(const struct tensor *tensor, size_t index) {
    return dtype_get(tensor->dtype, tensor->data, index);
}

/* --- --init kmeans:FILE --- */

/* Row j is sqrt(2) (c_j - mean) / |c_j - mean|, where the mean is that of the data. */
static void check_rows(const struct safetensors *init, const struct safetensors *model, double tolerance) {
    const struct tensor *weight = safetensors_find(init, "layers.0.weight"),
                        *bias = safetensors_find(init, "layers.0.bias"),
                        *centre = safetensors_find(model, "layers.0.weight"),
                        *count = safetensors_find(model, "kmeans.counts");
    double mean[FEATURES] = {0}, points = 0;
    for (size_t j = 0; j < CLUSTERS; j++) points += value_of(count, j);
    assert_true(points == 300);
    for (size_t j = 0; j < CLUSTERS; j++)
        for (size_t f = 0; f < FEATURES; f++)
            mean[f] += value_of(count, j) / points * value_of(centre, j * FEATURES + f);
    for (size_t j = 0; j < CLUSTERS; j++) {
        double norm = 0, squares = 0;
        for (size_t f = 0; f < FEATURES; f++) norm += pow(value_of(centre, j * FEATURES + f) - mean[f], 2);
        for (size_t f = 0; f < FEATURES; f++) {
            const double got = value_of(weight, j * FEATURES + f);
            squares += got * got;
            assert_near(got, sqrt(2) * (value_of(centre, j * FEATURES + f) - mean[f]) / sqrt(norm),
                        tolerance);
        }
        assert_near(squares, 2, 10 * tolerance);
        assert_true(value_of(bias, j) == 0);
    }
}

static void first_layer_is_of_the_centres(void **state) {
    (void)state;
    static const char *const dtypes[] = {"f32", "f64"};
    const char *model = centres_file("");
    for (size_t d = 0; d < 2; d++) {
        struct safetensors init, he, centres;
        const char *a = support_path("a.safetensors"), *b = support_path("b.safetensors");
        const char *common = "--layers 42-6-5-4 --epochs 0 --seed 3";
        assert_int_equal(RUN("--data %s %s --dtype %s --init kmeans:%s --save-init %s", support_data, common,
                             dtypes[d], model, a),
                         0);
        assert_says(output, "init kmeans:");
        assert_int_equal(RUN("--data %s %s --dtype %s --save-init %s", support_data, common, dtypes[d], b),
                         0);
        assert_status(safetensors_read(&init, a), STATUS_OK);
        assert_status(safetensors_read(&he, b), STATUS_OK);
        assert_status(safetensors_read(&centres, model), STATUS_OK);
        check_rows(&init, &centres, d ? 1e-13 : 1e-6);
        static const char *const others[] = {"layers.1.weight", "layers.1.bias", "layers.2.weight"};
        for (size_t i = 0; i < 3; i++) { /* the same bits as with init he */
            const struct tensor *x = safetensors_find(&init, others[i]),
                                *y = safetensors_find(&he, others[i]);
            assert_memory_equal(x->data, y->data, tensor_elements(x) * dtype_size(x->dtype));
        }
        safetensors_free(&init);
        safetensors_free(&he);
        safetensors_free(&centres);
    }
}

/* A cluster that is the mean of all points has no direction: its unit keeps its random weights. */
static void a_centre_without_direction(void **state) {
    (void)state;
    const char *model = support_path("one.safetensors"), *a = support_path("a.safetensors"),
               *b = support_path("b.safetensors");
    struct safetensors init, he;
    float weight[FEATURES], bias = 0;
    double count = 300;
    for (size_t f = 0; f < FEATURES; f++) weight[f] = (float)f / 64;
    const struct tensor tensors[] = {{"kmeans.counts", GEMM_F64, 1, {1}, &count},
                                     {"layers.0.weight", GEMM_F32, 2, {1, FEATURES}, weight},
                                     {"layers.0.bias", GEMM_F32, 1, {1}, &bias}};
    assert_status(safetensors_write(model, tensors, 3, NULL, 0), STATUS_OK);
    assert_int_equal(
        RUN("--data %s --layers 42-1-4 --epochs 0 --init kmeans:%s --save-init %s", support_data, model, a),
        0);
    assert_int_equal(RUN("--data %s --layers 42-1-4 --epochs 0 --save-init %s", support_data, b), 0);
    assert_status(safetensors_read(&init, a), STATUS_OK);
    assert_status(safetensors_read(&he, b), STATUS_OK);
    assert_memory_equal(safetensors_find(&init, "layers.0.weight")->data,
                        safetensors_find(&he, "layers.0.weight")->data, sizeof weight);
    safetensors_free(&init);
    safetensors_free(&he);
}

static void wrong_centres_are_named(void **state) {
    (void)state;
    const char *model = centres_file(""), *network = support_path("network.safetensors");
    assert_int_equal(RUN("--data %s --layers 42-6-4 --epochs 0 --save %s", support_data, network), 0);
    const struct {
        const char *layers, *file;
        int code;
        const char *says;
    } wrong[] = {
        {"42-7-4", model, 2, "has 6 clusters, and the first hidden layer 7 units: set --layers 42-6-"},
        {"42-7-4", model, 2, "--clusters 7"},
        {"42-4", model, 2, "init kmeans needs a hidden layer: set --layers 42-6-4"},
        {"42-6-4 --input-size 7 --layers 49-6-4", model, 2, "have 42 features, and the network 49"},
        {"42-6-4", network, 3, "has no centres of k-means"},
        {"42-6-4", "none.safetensors", 3, "none.safetensors"},
        {"42-6-4", "", 2, "init must be he | xavier | uniform | kmeans:FILE"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(RUN("--data %s --layers %s --epochs 1 --init kmeans:%s", support_data,
                             wrong[i].layers, wrong[i].file),
                         wrong[i].code);
        assert_says(output, wrong[i].says);
    }
    assert_int_equal(RUN("--data %s --layers 42-6-4 --init kmeans:%s --save %s", support_data, model, model),
                     2);
    assert_says(output, "--init");
}

/* A checkpoint remembers the file, but no run reads it because a checkpoint says so. */
static void checkpoints_do_not_name_the_centres(void **state) {
    (void)state;
    const char *model = centres_file(""), *network = support_path("net.safetensors"),
               *first = support_path("net-seed1.safetensors");
    const char *common = "--layers 42-6-4 --batch-size 50 --epochs 2";
    assert_int_equal(RUN("--data %s %s --init kmeans:%s --save %s", support_data, common, model, network), 0);
    assert_int_equal(rename(network, first), 0);
    assert_int_equal(RUN("--resume %s --ensemble 2", network), 2); /* seed 2 has no checkpoint */
    assert_says(output, "the initial weights are those of");
    assert_int_equal(RUN("--resume %s --ensemble 2 --init kmeans:%s", network, model), 0);
    unlink(model);
    assert_int_equal(RUN("--resume %s --epochs 3", first), 0);
    assert_int_equal(RUN("--resume %s --dump-config", first), 0);
    assert_says(output, "= kmeans:");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_layer_is_of_the_centres),
        cmocka_unit_test(a_centre_without_direction),
        cmocka_unit_test(wrong_centres_are_named),
        cmocka_unit_test(checkpoints_do_not_name_the_centres),
    };
    return cmocka_run_group_tests_name("use of k-means", tests, support_make_data, NULL);
}
