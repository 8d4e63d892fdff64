/* ./train kmeans: files, logs, errors. */
#include "tests/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "src/cluster/quality.h"
#include "src/nn/safetensors.h"

static char output[1 << 16];
#define RUN(...) support_run(output, sizeof output, __VA_ARGS__)

/* The log, the checkpoint and the labels of one run agree. */
static void files_agree(void **state) {
    (void)state;
    const char *log = support_path("k.jsonl"), *model = support_path("k.safetensors"),
               *labels = support_path("k.csv"), *picture = support_path("k.png");
    struct safetensors file;
    cJSON *result = NULL;
    size_t count;
    assert_int_equal(RUN("kmeans --data %s --clusters 5 --validation 50 --log %s --save %s --predict %s "
                         "--picture %s",
                         support_data, log, model, labels, picture),
                     0);
    assert_says(output, "exact");
    assert_says(output, "accuracy by majority, by medoid");
    assert_true(support_log(log, "kmeans_iteration", 0, &result) > 1);
    assert_true(support_number(result, "inertia") > 0);
    cJSON_Delete(result);
    assert_int_equal(support_log(log, "kmeans", 0, &result), 1);
    assert_true(cJSON_IsTrue(cJSON_GetObjectItem(result, "exact")));
    cJSON *centre = NULL;
    assert_int_equal(support_log(log, "kmeans_centre", 0, &centre), 5);
    assert_int_equal(support_number(centre, "cluster"), 4);
    assert_int_equal(strlen(cJSON_GetStringValue(cJSON_GetObjectItem(centre, "pixels"))), 2 * 42);
    cJSON_Delete(centre);
    assert_int_equal(RUN("report %s -o %s", log, support_path("k.html")), 0);
    const cJSON *training = cJSON_GetObjectItem(result, "training");
    assert_near(support_number(training, "inertia"), support_number(result, "inertia"), 0);
    assert_int_equal(support_number(cJSON_GetObjectItem(result, "validation"), "points"), 50);
    const double majority = support_number(training, "accuracy"),
                 medoids = support_number(training, "medoid_accuracy");
    assert_true(medoids > 0 && medoids <= majority); /* no answers are better there than the majority's */

    assert_status(safetensors_read(&file, model), STATUS_OK);
    const struct tensor *weight = safetensors_find(&file, "layers.0.weight"),
                        *bias = safetensors_find(&file, "layers.0.bias"),
                        *counts = safetensors_find(&file, "kmeans.counts"),
                        *label = safetensors_find(&file, "kmeans.labels");
    assert_true(weight && bias && counts && label);
    assert_int_equal(weight->shape[0], 5);
    assert_int_equal(weight->shape[1], 42);
    assert_int_equal(label->shape[0], 250);
    /* the medoid of a cluster is a point of it */
    const struct tensor *medoid = safetensors_find(&file, "kmeans.medoids");
    for (size_t j = 0; j < 5; j++)
        assert_true(((const double *)label->data)[(size_t)((const double *)medoid->data)[j]] == (double)j);
    double members[5] = {0};
    for (size_t i = 0; i < 250; i++) members[(size_t)((const double *)label->data)[i]]++;
    for (size_t j = 0; j < 5; j++) {
        double squares = 0;
        assert_true(members[j] == ((const double *)counts->data)[j]);
        for (size_t f = 0; f < 42; f++) {
            const double value = (double)((const float *)weight->data)[j * 42 + f];
            assert_true(value >= 0 && value <= 1);
            squares += value * value;
        }
        assert_near((double)((const float *)bias->data)[j], -squares / 2, 1e-6);
    }
    safetensors_free(&file);
    free(support_read(picture, &count));
    assert_true(count > 1000);
    unsigned char *csv = support_read(labels, &count);
    assert_int_equal(memcmp(csv, "part,row,cluster,class,majority\n", 32), 0);
    free(csv);
    cJSON_Delete(result);
    assert_int_equal(RUN("eval %s --data %s", model, support_data), 0);
}

static void same_seed_same_result(void **state) {
    (void)state;
    const char *settings[] = {"--backend serial", "--backend openmp --threads 2",
                              "--backend tuned --threads 3"};
    unsigned char *first = NULL;
    size_t size = 0, count;
    for (size_t i = 0; i < 3; i++) {
        const char *labels = support_path("same.csv");
        assert_int_equal(RUN("kmeans --data %s --clusters 7 --kmeans-init k-means-parallel --restarts 2 "
                             "--predict %s %s",
                             support_data, labels, settings[i]),
                         0);
        unsigned char *csv = support_read(labels, &count);
        if (i == 0) {
            first = csv;
            size = count;
            continue;
        }
        assert_int_equal(count, size);
        assert_memory_equal(csv, first, size);
        free(csv);
    }
    free(first);
}

static void other_data(void **state) {
    (void)state;
    const char *points = support_path("points.safetensors");
    float values[6] = {0, 0, 1, 0, 9, 9};
    const struct tensor tensor = {.name = "points", .rank = 2, .shape = {3, 2}, .data = values};
    assert_status(safetensors_write(points, &tensor, 1, NULL, 0), STATUS_OK);
    assert_int_equal(RUN("kmeans --data %s --clusters 2", points), 0);
    assert_says(output, "inertia            0.5 after");
    assert_int_equal(RUN("kmeans --data %s --clusters 2 --dtype f64", points), 2);
    assert_says(output, "use --dtype f32");
    values[3] = NAN;
    assert_status(safetensors_write(points, &tensor, 1, NULL, 0), STATUS_OK);
    assert_int_equal(RUN("kmeans --data %s --clusters 2", points), 3);
    assert_says(output, "row 1 of the points is not finite: feature 1");
    assert_int_equal(RUN("kmeans --data uniform:1MB,32 --dtype f64 --clusters 8 --iterations 2"), 0);
    assert_says(output, "4,096 training points of 32 features");
    assert_int_equal(RUN("kmeans --data uniform:1MB,32 --clusters 8 --batch-size 1000 --iterations 3"), 0);
    assert_says(output, "mini-batches of 1,000");
}

/* A file of points is not called a checkpoint. */
static void points_have_their_name(void **state) {
    (void)state;
    const char *points = support_path("broken.safetensors");
    support_write(points, "12345678{}", 10);
    assert_int_equal(RUN("kmeans --data %s --clusters 2", points), 3);
    assert_says(output, "is not a usable safetensors file of points");
    assert_null(strstr(output, "checkpoint"));
    assert_int_equal(RUN("kmeans --data %s/none.safetensors --clusters 2", support_data), 3);
    assert_says(output, "the file of points");
    assert_null(strstr(output, "checkpoint"));
    assert_int_equal(RUN("eval %s", points), 3);
    assert_says(output, "is not a usable safetensors checkpoint");
}

/* If the initial centres are the means of their points, the tolerance is not why the run ends. */
static void centres_that_stay_end_a_run(void **state) {
    (void)state;
    const char *points = support_path("three.safetensors");
    const float values[6] = {0, 0, 1, 0, 9, 9};
    const struct tensor tensor = {.name = "points", .rank = 2, .shape = {3, 2}, .data = values};
    assert_status(safetensors_write(points, &tensor, 1, NULL, 0), STATUS_OK);
    assert_int_equal(RUN("kmeans --data %s --clusters 3 --tolerance 0", points), 0);
    assert_says(output, "0 after 1 iteration: no centre moved");
}

/* Restarts with the same initial centres differ in the order of their mini-batches. */
static void restarts_have_their_own_order(void **state) {
    (void)state;
    const char *log = support_path("order.jsonl");
    assert_int_equal(RUN("kmeans --data %s --clusters 4 --kmeans-init first --batch-size 20 --iterations 1 "
                         "--restarts 3 --log %s",
                         support_data, log),
                     0);
    double inertia[3] = {0};
    char line[4096];
    size_t count = 0;
    FILE *in = fopen(log, "r");
    assert_non_null(in);
    while (fgets(line, sizeof line, in)) {
        cJSON *object = cJSON_Parse(line);
        if (strcmp(cJSON_GetStringValue(cJSON_GetObjectItem(object, "type")), "kmeans_iteration") == 0)
            inertia[count++ % 3] = support_number(object, "inertia");
        cJSON_Delete(object);
    }
    fclose(in);
    assert_int_equal(count, 3);
    assert_true(inertia[0] != inertia[1] && inertia[1] != inertia[2] && inertia[0] != inertia[2]);
}

/* Keys that a training has too are explained as what they are here. */
static void help_is_of_kmeans(void **state) {
    (void)state;
    static const char *const of_training[] = {"initial weights", "dropout", "how steps are issued",
                                              "model selection"};
    for (size_t list = 0; list < 2; list++) {
        assert_int_equal(RUN("kmeans --%s", list ? "list-flags" : "help"), 0);
        for (size_t i = 0; i < sizeof of_training / sizeof *of_training; i++)
            assert_null(strstr(output, of_training[i]));
    }
    assert_says(output, "of the initial centres and of the order of mini-batches");
    assert_int_equal(RUN("train --list-flags"), 0);
    for (size_t i = 0; i < sizeof of_training / sizeof *of_training; i++) assert_says(output, of_training[i]);
}

static void wrong_use_is_named(void **state) {
    (void)state;
    static const struct support_refusal wrong[] = {
        {"--clusters 301", 2, "301 clusters need as many points, and there are 300"},
        {"--clusters 0", 2, "clusters must be"},
        {"--kmeans-init best", 2, "kmeans-init must be first | random"},
        {"--batch-size 10 --engine fused", 2, "mini-batches have no engine fused"},
        {"--engine graph", 4, "k-means has no engine graph"},
        {"--backend serial --engine fused", 4, "engine fused cannot be used here"},
        {"--layers 3-4", 2, "unknown or ambiguous flag"},
        {"--batch-size 10 --empty far", 2, "empty is for Lloyd's algorithm"},
        {"--batch-size 10 --change-limit 0.1", 2, "change-limit is for Lloyd's algorithm"},
        {"--step naive", 2, "use --backend cublas"},
        {"--step partial --backend serial", 2, "step partial is a kernel for GPUs"},
        {"--step nearest --backend serial", 2, "no kernel for step nearest"},
        {"--step gemm --engine eager", 2, "step gemm has its own engine: remove --engine"},
        {"--step gemm --bounds on", 2, "has its own bounds: remove --bounds"},
        {"--step gemm --batch-size 10", 2, "steps are for Lloyd's algorithm"},
        {"--step shared --kmeans-precision exact", 2, "remove --kmeans-precision"},
        {"--step atomics --residency host", 2, "remove --residency"},
        {"--kmeans-precision fp8", 2, "kmeans-precision must be exact | f32 | tf32 | bf16"},
        {"--kmeans-precision bf16 --engine eager", 2, "remove --engine eager"},
        {"--kmeans-precision tf32 --batch-size 10", 2, "remove --batch-size"},
        {"--kmeans-precision bf16 --step gemm", 2, "need engine fused"},
        {"--kmeans-precision bf16 --backend tuned", 4, "bf16 cannot be computed here: they need backend"},
        {"--kmeans-precision tf32 --backend serial", 4, "tf32 cannot be computed here: its backend has"},
        {"--step fast", 2, "step must be auto | naive"},
        {"--block-size 64", 2, "block-size is for the steps naive to partial"},
        {"--step naive --block-size 31", 2, "from 32 to 1024"},
        {"--picture x.gif", 2, ".png or a .pgm"},
        {"--data uniform:1024,32", 2, "must be uniform:SIZE,FEATURES"},
        {"--data uniform:1MB,0", 2, "must be uniform:SIZE,FEATURES"},
        {"--data uniform:1MB,4 --picture x.png", 2, "has none"},
        {"--data uniform:1MB,4 --validation 3", 2, "has none"},
        {"--data none.safetensors", 3, "none.safetensors"}};
    char command[512];
    snprintf(command, sizeof command, "kmeans --data %s", support_data);
    support_refuses(command, wrong, sizeof wrong / sizeof *wrong);
    const char *file = support_path("both");
    assert_int_equal(RUN("kmeans --data %s --save %s --predict %s", support_data, file, file), 2);
    assert_int_equal(RUN("train --clusters 3"), 2); /* it would have no effect */
}

/* f32 and its old name are one precision, and the log says which it is. */
static void scores_is_the_old_name_of_f32(void **state) {
    (void)state;
    static const char *const names[] = {"f32", "scores", "exact"};
    for (size_t i = 0; i < 3; i++) {
        const char *log = support_path("precision.jsonl");
        cJSON *header = NULL;
        assert_int_equal(
            RUN("kmeans --data uniform:1MB,100 --clusters 9 --iterations 3 --kmeans-precision %s "
                "--log %s",
                names[i], log),
            0);
        assert_says(output, i < 2 ? "of the largest computed score, not certified" : "exact: ");
        assert_int_equal(support_log(log, "header", 0, &header), 1);
        const cJSON *recipe = cJSON_GetObjectItem(header, "config");
        assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(recipe, "kmeans-precision")),
                            i < 2 ? "f32" : "exact");
        cJSON_Delete(header);
    }
}

/* A wrong plug-in gets no result. */
static void wrong_plugin_is_refused(void **state) {
    (void)state;
    assert_int_equal(
        RUN("kmeans --data %s --backend %s", support_data, support_plugin("plugins/missing-last-column.so")),
        5);
    assert_int_equal(
        RUN("kmeans --data %s --backend %s", support_data, support_plugin("plugins/good/c11.so")), 0);
    assert_says(output, "exact");
}

/* Steps that the host has too are names of engines. */
static void steps_are_engines(void **state) {
    (void)state;
    assert_int_equal(
        RUN("kmeans --data uniform:1MB,8 --clusters 9 --iterations 3 --backend tuned --step gemm"), 0);
    assert_says(output, "eager, residency");
    assert_int_equal(
        RUN("kmeans --data uniform:1MB,8 --clusters 9 --iterations 3 --backend tuned --step nearest"), 0);
    assert_says(output, "engine fused");
    assert_says(output, "exact: ");
}

/* The measures on a table whose values were computed with scikit-learn 1.9. */
static void measures(void **state) {
    (void)state;
    static const uint32_t cluster[] = {0, 0, 0, 1, 1, 1, 2, 2, 2, 2};
    static const uint8_t class[] = {0, 0, 1, 1, 1, 2, 2, 2, 0, 2};
    uint64_t scratch[3 * 256];
    uint8_t majority[3];
    struct quality quality;
    quality_majority(cluster, class, 10, 3, scratch, majority);
    assert_int_equal(majority[2], 2);
    assert_status(quality_measure(cluster, class, 10, 3, &quality), STATUS_OK);
    assert_near(quality.purity, 0.7, 1e-15);
    assert_near(quality_accuracy(cluster, class, 10, majority), 0.7, 1e-15);
    assert_near(quality.nmi, 0.44270128334605, 1e-12);
    static const double squared[] = {3, 1, 1, 9, 8, 8, 4, 5, 0, 0};
    uint32_t medoid[4];
    quality_medoids(cluster, squared, 10, 4, medoid);
    assert_int_equal(medoid[0], 1);
    assert_int_equal(medoid[1], 4);
    assert_int_equal(medoid[2], 8);
    assert_true(medoid[3] == QUALITY_NO_POINT);
    assert_near(quality_accuracy(cluster, class, 10, (const uint8_t[]){0, 1, 0}), 0.5, 1e-15);
    assert_near(quality.ari, 0.20454545454545456, 1e-12);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_agree),
        cmocka_unit_test(same_seed_same_result),
        cmocka_unit_test(other_data),
        cmocka_unit_test(points_have_their_name),
        cmocka_unit_test(centres_that_stay_end_a_run),
        cmocka_unit_test(restarts_have_their_own_order),
        cmocka_unit_test(help_is_of_kmeans),
        cmocka_unit_test(wrong_use_is_named),
        cmocka_unit_test(scores_is_the_old_name_of_f32),
        cmocka_unit_test(wrong_plugin_is_refused),
        cmocka_unit_test(steps_are_engines),
        cmocka_unit_test(measures),
    };
    return cmocka_run_group_tests_name("kmeans command", tests, support_make_data, NULL);
}
