/* What is done with the result of ./train kmeans: --init kmeans:FILE of a training, kmeans --resume. */
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
    assert_int_equal(RUN("--resume %s --epochs 3 --save %s", first, model), 0); /* nor is it an input */
    assert_int_equal(RUN("--resume %s --dump-config", first), 0);
    assert_says(output, "= kmeans:");
}

/* --- kmeans --resume --- */

static void assert_same_files(const char *a, const char *b) {
    size_t first, second;
    unsigned char *x = support_read(a, &first), *y = support_read(b, &second);
    assert_int_equal(first, second);
    assert_memory_equal(x, y, first);
    free(x);
    free(y);
}

/* The lines of the iterations of a log without their times; the caller frees them. */
static char *iterations_of(const char *log) {
    char line[8192], *text = NULL;
    size_t size;
    FILE *in = fopen(log, "r"), *out = open_memstream(&text, &size);
    assert_non_null(in);
    while (fgets(line, sizeof line, in)) {
        cJSON *object = cJSON_Parse(line);
        if (strcmp(cJSON_GetStringValue(cJSON_GetObjectItem(object, "type")), "kmeans_iteration") == 0) {
            cJSON_DeleteItemFromObject(object, "run");
            cJSON_DeleteItemFromObject(object, "seconds");
            cJSON_DeleteItemFromObject(object, "time");
            char *json = cJSON_PrintUnformatted(object);
            fprintf(out, "%s\n", json);
            cJSON_free(json);
        }
        cJSON_Delete(object);
    }
    fclose(in);
    fclose(out);
    return text;
}

/* Points of which the first 12 are equal, so that most initial centres get no point. */
static const char *points_with_copies(void) {
    const char *path = support_path("copies.safetensors");
    float values[2 * 90];
    for (int i = 0; i < 90; i++) {
        values[2 * i] = i < 12 ? 0 : (float)(i * i % 97);
        values[2 * i + 1] = i < 12 ? 0 : (float)(i * 31 % 89);
    }
    const struct tensor tensor = {.name = "points", .rank = 2, .shape = {90, 2}, .data = values};
    assert_status(safetensors_write(path, &tensor, 1, NULL, 0), STATUS_OK);
    return path;
}

/* A run in two parts writes the same checkpoint as one in one part, and logs the same iterations. */
static void resumed_is_uninterrupted(void **state) {
    (void)state;
    static const struct {
        const char *data, *start, *every; /* NULL: support_data; options of the first part, and of both */
        int first;
    } runs[] = {{NULL, "--clusters 9", "", 2},
                {NULL, "--clusters 9 --dtype f64", "--backend openmp", 3},
                {NULL, "--clusters 9 --batch-size 32 --seed 5", "", 2},
                {"uniform:64KB,8", "--clusters 12", "", 3},
                {"uniform:64KB,8", "--clusters 12 --dtype f64 --batch-size 100", "", 1},
                {NULL, "--clusters 9", "", 0}};
    const char *whole = support_path("whole.safetensors"), *parts = support_path("parts.safetensors");
    const char *a = support_path("whole.jsonl"), *b = support_path("parts.jsonl");
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        char start[512];
        snprintf(start, sizeof start, "--data %s %s", runs[i].data ? runs[i].data : support_data,
                 runs[i].start);
        assert_int_equal(RUN("kmeans %s %s --tolerance 0 --iterations 5 --save %s --log %s", start,
                             runs[i].every, whole, a),
                         0);
        assert_int_equal(RUN("kmeans %s %s --tolerance 0 --iterations %d --save %s --log %s", start,
                             runs[i].every, runs[i].first, parts, b),
                         0);
        assert_int_equal(RUN("kmeans --resume %s %s --tolerance 0 --iterations 5 --save %s --log %s", parts,
                             runs[i].every, parts, b),
                         0);
        assert_says(output, "after iteration");
        assert_same_files(whole, parts);
        char *one = iterations_of(a), *two = iterations_of(b); /* the log goes on, too */
        assert_string_equal(one, two);
        free(one);
        free(two);
    }
}

/* A cluster without points that the next iteration is to split survives the checkpoint. */
static void pending_splits_are_resumed(void **state) {
    (void)state;
    static const char *const empties[] = {"split", "far", "keep"};
    const char *points = points_with_copies(), *whole = support_path("whole.safetensors"),
               *parts = support_path("parts.safetensors");
    for (size_t i = 0; i < 3; i++) {
        const char *options = "--clusters 10 --kmeans-init first --tolerance 0";
        assert_int_equal(RUN("kmeans --data %s %s --empty %s --iterations 4 --save %s", points, options,
                             empties[i], whole),
                         0);
        assert_int_equal(RUN("kmeans --data %s %s --empty %s --iterations 1 --save %s", points, options,
                             empties[i], parts),
                         0);
        if (i == 0) assert_says(output, "empty clusters");
        assert_int_equal(RUN("kmeans --resume %s --tolerance 0 --empty %s --iterations 4 --save %s", parts,
                             empties[i], parts),
                         0);
        assert_same_files(whole, parts);
    }
}

static void other_points_go_on_too(void **state) {
    (void)state;
    const char *model = support_path("grow.safetensors");
    assert_int_equal(RUN("kmeans --data uniform:8KB,4 --clusters 5 --iterations 3 --save %s", model), 0);
    assert_int_equal(RUN("kmeans --resume %s --data uniform:32KB,4 --iterations 4", model), 0);
    assert_says(output, "2,048 training points");
    assert_says(output, "after 4 iterations");
    const char *grown = support_path("grown.safetensors"); /* its labels are of no iteration */
    assert_int_equal(RUN("kmeans --resume %s --data uniform:32KB,4 --iterations 2 --save %s", model, grown),
                     0);
    assert_says(output, "after 2 iterations");
    assert_int_equal(RUN("kmeans --resume %s --iterations 3", grown), 0);
    assert_says(output, "after 3 iterations");
    assert_int_equal(RUN("kmeans --resume %s --iterations 3", model), 0);
    assert_says(output, "is at iteration 3 of 3: nothing to do");
}

/* Writes as many points of 4 features as uniform:8KB,4 has; in a second version, two rows changed places. */
static const char *points_in_order(bool exchanged) {
    const char *path = support_path(exchanged ? "exchanged.safetensors" : "order.safetensors");
    float values[512 * 4];
    for (int i = 0; i < 512 * 4; i++) values[i] = (float)((i * 7919 + i / 4 * i) % 1009) / 9;
    for (int f = 0; f < 4 && exchanged; f++) {
        const float value = values[f];
        values[f] = values[511 * 4 + f];
        values[511 * 4 + f] = value;
    }
    const struct tensor tensor = {.name = "points", .rank = 2, .shape = {512, 4}, .data = values};
    assert_status(safetensors_write(path, &tensor, 1, NULL, 0), STATUS_OK);
    return path;
}

/* The result is that of a run that begins with these centres. */
static void as_many_other_points_are_noticed(void **state) {
    (void)state;
    static const char note[] = "its centres are the initial ones, and iterations count from 1";
    const char *model = support_path("some.safetensors"), *other = points_in_order(true);
    assert_int_equal(RUN("kmeans --data uniform:8KB,4 --clusters 5 --iterations 3 --save %s", model), 0);
    assert_int_equal(RUN("kmeans --resume %s --iterations 4", model), 0);
    assert_null(strstr(output, note));
    assert_says(output, "after 4 iterations");
    assert_int_equal(RUN("kmeans --resume %s --data %s --iterations 2", model, other), 0);
    assert_says(output, note);
    assert_says(output, "after 2 iterations");
    assert_null(strstr(output, "nothing to do"));

    assert_int_equal(
        RUN("kmeans --data %s --clusters 5 --iterations 3 --save %s", points_in_order(false), model), 0);
    assert_int_equal(RUN("kmeans --resume %s --iterations 4", model), 0);
    assert_null(strstr(output, note));
    assert_int_equal(RUN("kmeans --resume %s --data %s --iterations 2", model, other), 0);
    assert_says(output, note);
}

/* Writes a copy of a checkpoint in which one value of a tensor is another. */
static const char *with_value(const char *path, const char *name, size_t index, double value) {
    const char *copy = support_path("changed.safetensors");
    struct safetensors file;
    assert_status(safetensors_read(&file, path), STATUS_OK);
    const struct tensor *tensor = safetensors_find(&file, name);
    assert_non_null(tensor);
    dtype_set(tensor->dtype, (void *)tensor->data, index, value);
    const struct metadata recipe = {"tessera.config", safetensors_metadata(&file, "tessera.config")};
    struct tensor sorted[16]; /* those of float64 first */
    size_t count = 0;
    for (int wide = 1; wide >= 0; wide--)
        for (size_t i = 0; i < file.count; i++)
            if ((file.tensors[i].dtype == GEMM_F64) == wide) sorted[count++] = file.tensors[i];
    assert_status(safetensors_write(copy, sorted, count, &recipe, 1), STATUS_OK);
    safetensors_free(&file);
    return copy;
}

static void wrong_checkpoints_are_named(void **state) {
    (void)state;
    const char *lloyd = centres_file("--iterations 3"), *batches = support_path("batches.safetensors"),
               *network = support_path("network.safetensors");
    assert_int_equal(RUN("kmeans --data %s --clusters 6 --batch-size 50 --save %s", support_data, batches),
                     0);
    assert_int_equal(RUN("--data %s --layers 42-6-4 --epochs 0 --save %s", support_data, network), 0);
    const char *points = support_path("reals.safetensors");
    static const float zero[6 * FEATURES];
    const struct tensor tensor = {.name = "points", .rank = 2, .shape = {6, FEATURES}, .data = zero};
    char reals[600];
    assert_status(safetensors_write(points, &tensor, 1, NULL, 0), STATUS_OK);
    snprintf(reals, sizeof reals, "--data %s", points);
    const struct {
        const char *file, *options;
        int code;
        const char *says;
    } wrong[] = {{lloyd, "--clusters 7", 2, "has 6 clusters, not 7: remove --clusters"},
                 {lloyd, "--kmeans-init random", 2, "kmeans-init is for new centres"},
                 {lloyd, "--restarts 2", 2, "restarts is for new centres"},
                 {lloyd, "--batch-size 10", 2, "is of Lloyd's algorithm: remove --batch-size"},
                 {batches, "--empty far", 2, "empty is for Lloyd's algorithm"},
                 {lloyd, "--dtype f64", 2, "use --dtype f32"},
                 {lloyd, "--data uniform:1MB,4", 2, "have 42 features, and the points of uniform:1MB,4 4"},
                 {lloyd, reals, 2, "has centres of images: its centres are in other units"},
                 {network, "", 3, "has no usable tensor kmeans.centres"},
                 {"none.safetensors", "", 3, "none.safetensors"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(RUN("kmeans --resume %s %s", wrong[i].file, wrong[i].options), wrong[i].code);
        assert_says(output, wrong[i].says);
    }
    const struct {
        const char *file, *tensor;
        size_t index;
        double value;
    } hostile[] = {{lloyd, "kmeans.last_labels", 7, 6},  {lloyd, "kmeans.last_labels", 0, -1},
                   {lloyd, "kmeans.last_labels", 9, .5}, {lloyd, "kmeans.progress", 0, 1e300},
                   {lloyd, "kmeans.fingerprint", 0, .5}, {lloyd, "kmeans.fingerprint", 1, 0x1p32},
                   {lloyd, "kmeans.progress", 1, 0},     {lloyd, "kmeans.centres", 5, (double)NAN},
                   {batches, "kmeans.members", 2, -3},   {batches, "kmeans.sums", 1, (double)INFINITY}};
    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++) {
        const char *file = with_value(hostile[i].file, hostile[i].tensor, hostile[i].index, hostile[i].value);
        assert_int_equal(RUN("kmeans --resume %s", file), 3);
        assert_says(output, "has no usable tensor kmeans.");
        assert_says(output, hostile[i].tensor);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_layer_is_of_the_centres),
        cmocka_unit_test(a_centre_without_direction),
        cmocka_unit_test(wrong_centres_are_named),
        cmocka_unit_test(checkpoints_do_not_name_the_centres),
        cmocka_unit_test(resumed_is_uninterrupted),
        cmocka_unit_test(pending_splits_are_resumed),
        cmocka_unit_test(as_many_other_points_are_noticed),
        cmocka_unit_test(other_points_go_on_too),
        cmocka_unit_test(wrong_checkpoints_are_named),
    };
    return cmocka_run_group_tests_name("use of k-means", tests, support_make_data, NULL);
}
