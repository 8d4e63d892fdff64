/* ./train readout: what it saves, chooses, logs and refuses. */
#include "tests/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "src/nn/safetensors.h"

static char output[1 << 16];
#define RUN(...) support_run(output, sizeof output, __VA_ARGS__)

/* The lines of a type, at most `most`; the caller deletes them. */
static size_t lines_of(const char *path, const char *type, cJSON **lines, size_t most) {
    static char line[1 << 16];
    size_t count = 0;
    FILE *in = fopen(path, "r");
    assert_non_null(in);
    while (fgets(line, sizeof line, in)) {
        cJSON *object = cJSON_Parse(line);
        const bool wanted = strcmp(cJSON_GetStringValue(cJSON_GetObjectItem(object, "type")), type) == 0;
        if (wanted && count < most) {
            lines[count++] = object;
        } else {
            cJSON_Delete(object);
        }
    }
    fclose(in);
    return count;
}

/* ./train eval of the file has as many right answers as the readout printed. */
static void check_saved(const char *arguments) {
    const char *log = support_path("r.jsonl"), *model = support_path("r.safetensors"),
               *eval = support_path("e.jsonl");
    cJSON *result = NULL, *evaluation = NULL;
    assert_int_equal(RUN("readout --data %s --log %s --save %s %s", support_data, log, model, arguments), 0);
    assert_int_equal(support_log(log, "readout", 0, &result), 1);
    assert_int_equal(RUN("eval %s --log %s", model, eval), 0);
    assert_int_equal(support_log(eval, "evaluation", 0, &evaluation), 1);
    assert_int_equal(support_number(result, "total"), 100);
    assert_true(support_number(result, "correct") == support_number(evaluation, "test_correct"));
    assert_true(support_number(result, "accuracy") > 0.5); /* 4 classes */
    cJSON_Delete(result);
    cJSON_Delete(evaluation);
}

static void saved_files_are_networks(void **state) {
    (void)state;
    char arguments[512];
    const char *model = support_path("m.safetensors"), *centres = support_path("c.safetensors");
    check_saved("--features random:30");
    check_saved("--features random:30 --dtype f64 --activation tanh --ridge 0.5");
    check_saved("--features random:20 --init uniform --input-size 5 --input-range -1,1 --validation 60");
    assert_int_equal(RUN("--data %s --layers 42-9-12-4 --epochs 2 --save %s", support_data, model), 0);
    snprintf(arguments, sizeof arguments, "%s", model);
    check_saved(arguments);
    assert_int_equal(RUN("kmeans --data %s --clusters 15 --save %s", support_data, centres), 0);
    snprintf(arguments, sizeof arguments, "--features kmeans:%s", centres);
    check_saved(arguments);
    assert_int_equal(RUN("export %s --onnx %s", support_path("r.safetensors"), support_path("r.onnx")), 0);
}

/* Only the last layer of a network changes. */
static void hidden_layers_stay(void **state) {
    (void)state;
    const char *model = support_path("h.safetensors"), *fitted = support_path("f.safetensors");
    struct safetensors before, after;
    assert_int_equal(RUN("--data %s --layers 42-9-12-4 --epochs 1 --save %s", support_data, model), 0);
    assert_int_equal(RUN("readout %s --save %s", model, fitted), 0);
    assert_status(safetensors_read(&before, model), STATUS_OK);
    assert_status(safetensors_read(&after, fitted), STATUS_OK);
    for (size_t i = 0; i < before.count; i++) {
        const struct tensor *old = &before.tensors[i], *new = safetensors_find(&after, old->name);
        if (strncmp(old->name, "layers.", 7) != 0) continue;
        assert_non_null(new);
        const size_t bytes = tensor_elements(old) * sizeof(float);
        assert_int_equal(memcmp(old->data, new->data, bytes) == 0, strncmp(old->name, "layers.2.", 9) != 0);
    }
    safetensors_free(&before);
    safetensors_free(&after);
}

/* --- the fit of a whole run, against normal equations of its features in float64 --- */

enum { PIXELS = 42, UNITS = 6, N = UNITS + 1, CLASSES = 4, IMAGES = 300 };

static void features_of(const struct safetensors *file, const uint8_t *image, double features[N]) {
    const double *weight = safetensors_find(file, "layers.0.weight")->data,
                 *bias = safetensors_find(file, "layers.0.bias")->data;
    features[0] = 1;
    for (size_t j = 0; j < UNITS; j++) {
        double sum = bias[j];
        for (size_t p = 0; p < PIXELS; p++) sum += weight[j * PIXELS + p] * (image[p] / 255.0);
        features[1 + j] = sum > 0 ? sum : 0;
    }
}

/* The gradient of the squared error and the ridge is zero, and that of the error alone is not. */
static void fit_of_a_run_is_a_minimum(void **state) {
    (void)state;
    const char *model = support_path("n.safetensors");
    const double ridge = 3;
    struct safetensors file;
    struct dataset_pair data;
    double gradient[N][CLASSES] = {0}, most = 0, most_without = 0, scale = 0;
    assert_int_equal(
        RUN("readout --data %s --features random:%d --dtype f64 --init uniform --ridge %g --save %s",
            support_data, UNITS, ridge, model),
        0);
    assert_status(safetensors_read(&file, model), STATUS_OK);
    assert_status(dataset_load(&data, support_data, (struct dataset_options){0}), STATUS_OK);
    const double *weight = safetensors_find(&file, "layers.1.weight")->data,
                 *bias = safetensors_find(&file, "layers.1.bias")->data;
    for (size_t i = 0; i < IMAGES; i++) {
        double features[N];
        features_of(&file, data.train.images + i * PIXELS, features);
        for (size_t c = 0; c < CLASSES; c++) {
            double error = bias[c] - (data.train.labels[i] == c ? 1 : 0);
            for (size_t j = 0; j < UNITS; j++) error += weight[c * UNITS + j] * features[1 + j];
            for (size_t j = 0; j < N; j++) gradient[j][c] += features[j] * error;
            for (size_t j = 0; j < N; j++) scale += fabs(features[j] * error);
        }
    }
    for (size_t j = 0; j < N; j++)
        for (size_t c = 0; c < CLASSES; c++) {
            const double of_ridge = j ? ridge * weight[c * UNITS + j - 1] : 0;
            most = fmax(most, fabs(gradient[j][c] + of_ridge));
            most_without = fmax(most_without, fabs(gradient[j][c]));
        }
    assert_true(most <= 1e-12 * scale);
    assert_true(most_without > 1e-6 * scale);
    dataset_pair_free(&data);
    safetensors_free(&file);
}

/* --- the ridge --- */

static void best_ridge_is_chosen(void **state) {
    (void)state;
    const char *log = support_path("ridge.jsonl");
    cJSON *lines[32], *result = NULL;
    assert_int_equal(
        RUN("readout --data %s --features random:25 --validation 90 --log %s", support_data, log), 0);
    const size_t count = lines_of(log, "readout_ridge", lines, 32);
    assert_true(count > 4);
    const cJSON *chosen = NULL;
    for (size_t i = 0; i < count; i++)
        if (cJSON_IsTrue(cJSON_GetObjectItem(lines[i], "chosen"))) chosen = lines[i];
    assert_non_null(chosen);
    for (size_t i = 0; i < count; i++) {
        const double correct = support_number(lines[i], "correct"), best = support_number(chosen, "correct");
        assert_int_equal(support_number(lines[i], "total"), 90);
        assert_true(correct <= best);
        if (correct == best)
            assert_true(support_number(lines[i], "squared_error") >= support_number(chosen, "squared_error"));
    }
    assert_int_equal(support_log(log, "readout", 0, &result), 1);
    assert_true(support_number(result, "ridge") == support_number(chosen, "ridge"));
    cJSON_Delete(result);
    for (size_t i = 0; i < count; i++) cJSON_Delete(lines[i]);
}

/* --- the same bits --- */

static void threads_change_no_bit(void **state) {
    (void)state;
    const char *model = support_path("t.safetensors"), *log = support_path("t.jsonl");
    unsigned char *first = NULL;
    double correct = 0;
    size_t size = 0, count;
    for (int threads = 1; threads <= 3; threads++) {
        cJSON *line = NULL;
        assert_int_equal(RUN("readout --data synthetic --features random:90 --ridge 1 --threads %d --save %s",
                             threads, model),
                         0);
        unsigned char *bytes = support_read(model, &count);
        if (!first) {
            first = bytes;
            size = count;
        } else {
            assert_int_equal(count, size);
            assert_memory_equal(bytes, first, size);
            free(bytes);
        }
        assert_int_equal(
            RUN("readout --data %s --features random:30 --stride 20 --window 60,all --forgetting "
                "0.98 --threads %d --log %s",
                support_data, threads, log),
            0);
        assert_int_equal(support_log(log, "readout_memory", 0, &line), 3);
        if (threads == 1) correct = support_number(line, "squared_error");
        assert_true(support_number(line, "squared_error") == correct);
        cJSON_Delete(line);
    }
    free(first);
}

/* --- streams --- */

/* A window that is longer than the stream is that of all images; each block counts once. */
static void stream_is_logged(void **state) {
    (void)state;
    const char *log = support_path("s.jsonl");
    cJSON *steps[64], *memories[8];
    assert_int_equal(
        RUN("readout --data %s --features random:20 --stride 50 --window 50,100,all,1000 --forgetting "
            "0.99 --ridge 0.5 --log %s",
            support_data, log),
        0);
    assert_says(output, "readout of");
    assert_says(output, "all images");
    assert_int_equal(lines_of(log, "readout_step", steps, 64), 5 * 5);
    assert_int_equal(lines_of(log, "readout_memory", memories, 8), 5);
    for (size_t k = 0; k < 5; k++) {
        double correct = 0;
        for (size_t i = 0; i < 5; i++) {
            const cJSON *step = steps[i * 5 + k];
            assert_int_equal(support_number(step, "images"), 100 + 50 * i);
            assert_int_equal(support_number(step, "total"), 50);
            assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(step, "name")),
                                cJSON_GetStringValue(cJSON_GetObjectItem(memories[k], "name")));
            correct += support_number(step, "correct");
        }
        assert_true(correct == support_number(memories[k], "correct"));
        assert_int_equal(support_number(memories[k], "total"), 250);
    }
    assert_true(support_number(memories[2], "squared_error") == support_number(memories[3], "squared_error"));
    assert_true(support_number(memories[0], "squared_error") > support_number(memories[2], "squared_error"));
    for (size_t i = 0; i < 25; i++) cJSON_Delete(steps[i]);
    for (size_t k = 0; k < 5; k++) cJSON_Delete(memories[k]);
    assert_int_equal(RUN("report %s -o %s", log, support_path("s.html")), 0);
    size_t count;
    unsigned char *page = support_read(support_path("s.html"), &count);
    page[count - 1] = '\0';
    assert_says((const char *)page, "Accuracy along the stream");
    assert_says((const char *)page, "forgetting 0.99");
    free(page);
}

static void drift_turns_the_stream(void **state) {
    (void)state;
    static const char *const drifts[] = {"--stride 60", "--drift rotate:0..0 --stride 60",
                                         "--drift rotate:0..90 --stride 60"};
    const char *log = support_path("d.jsonl");
    double error[3];
    for (size_t i = 0; i < 3; i++) {
        cJSON *line = NULL;
        assert_int_equal(RUN("readout --data %s --features random:20 --window all --ridge 1 --log %s %s",
                             support_data, log, drifts[i]),
                         0);
        assert_int_equal(support_log(log, "readout_memory", 0, &line), 1);
        error[i] = support_number(line, "squared_error");
        cJSON_Delete(line);
    }
    assert_true(error[0] == error[1]);
    assert_true(error[2] > error[0]);
}

/* --- what is refused --- */

static void wrong_use_is_named(void **state) {
    (void)state;
    static const struct support_refusal wrong[] = {
        {"", 2, "--features hidden needs a network"},
        {"--features random:0", 2, "N must be a whole number from 1"},
        {"--features random:-1", 2, "N must be a whole number from 1"},
        {"--features random:1e3", 2, "N must be a whole number from 1"},
        {"--features random:9999999999999999999", 2, "N must be a whole number from 1"},
        {"--features random", 2, "hidden | random:N | kmeans:FILE"},
        {"--features random:9 some.safetensors", 2, "makes its own hidden layer"},
        {"--features random:9 a.safetensors b.safetensors", 2, "unexpected argument"},
        {"--features random:9 --init kmeans:x", 2, "use --features kmeans:FILE"},
        {"--features kmeans:none --init he", 2, "remove --init"},
        {"--features kmeans:none", 3, "none"},
        {"none.safetensors", 3, "none.safetensors"},
        {"--features random:9 --ridge -1", 2, "ridge must be auto or a number"},
        {"--features random:9 --ridge nan", 2, "ridge must be auto or a number"},
        {"--features random:9 --ridge x", 2, "ridge must be auto or a number"},
        {"--features random:9 --window 0", 2, "window must be numbers of images from 1"},
        {"--features random:9 --window 10,,all", 2, "window must be numbers of images from 1"},
        {"--features random:9 --window -5", 2, "window must be numbers of images from 1"},
        {"--features random:9 --window 150 --stride 100", 2, "is no multiple of the stride"},
        {"--features random:9 --window all", 2, "has no two blocks of 1000"},
        {"--features random:9 --stride 0", 2, "stride must be"},
        {"--features random:9 --forgetting 1", 2, "forgetting must be numbers between 0 and 1"},
        {"--features random:9 --forgetting 0", 2, "forgetting must be numbers between 0 and 1"},
        {"--features random:9 --drift rotate:0", 2, "drift must be rotate:FROM..TO"},
        {"--features random:9 --stride 50 --save x.safetensors", 2, "a stream has no --save"},
        {"--features random:9 --validation 300", 2, "leave some to fit"},
        {"--features random:400 --ridge 0", 1, "use --ridge"},
        {"--features random:100 --ridge 0 --stride 50", 1, "images 0 to 49: feature"},
        {"--features random:9 --dtype f16", 2, "dtype must be"},
        {"--features random:9 --epochs 3", 2, "unknown or ambiguous flag"},
    };
    char command[512];
    snprintf(command, sizeof command, "readout --data %s", support_data);
    support_refuses(command, wrong, sizeof wrong / sizeof *wrong);
}

static void other_files_are_refused(void **state) {
    (void)state;
    const char *other = support_path("o.safetensors"), *centres = support_path("oc.safetensors"),
               *flat = support_path("flat.safetensors");
    assert_int_equal(RUN("--data synthetic --layers 784-5-10 --epochs 0 --save %s", other), 0);
    assert_int_equal(RUN("readout %s --data %s", other, support_data), 2);
    assert_says(output, "layers starts with 784, but the images have 42 pixels");
    assert_int_equal(RUN("readout --features kmeans:%s --data %s", other, support_data), 3);
    assert_says(output, "has no centres of k-means");
    assert_int_equal(RUN("kmeans --data uniform:100KB,9 --clusters 5 --save %s", centres), 0);
    assert_int_equal(RUN("readout --features kmeans:%s --data %s", centres, support_data), 2);
    assert_says(output, "9 features");
    assert_int_equal(RUN("--data %s --layers 42-4 --epochs 0 --save %s", support_data, flat), 0);
    assert_int_equal(RUN("readout %s --data %s", flat, support_data), 2);
    assert_says(output, "has no hidden layer");
}

/* Weights so large that a feature overflows. */
static void features_must_be_finite(void **state) {
    (void)state;
    const char *model = support_path("inf.safetensors");
    static float weight[3 * PIXELS], bias[3], last[CLASSES * 3], last_bias[CLASSES];
    for (size_t p = 0; p < PIXELS; p++) weight[PIXELS + p] = 3e38f;
    const struct tensor tensors[] = {
        {.name = "layers.0.weight", .rank = 2, .shape = {3, PIXELS}, .data = weight},
        {.name = "layers.0.bias", .rank = 1, .shape = {3}, .data = bias},
        {.name = "layers.1.weight", .rank = 2, .shape = {CLASSES, 3}, .data = last},
        {.name = "layers.1.bias", .rank = 1, .shape = {CLASSES}, .data = last_bias}};
    assert_status(safetensors_write(model, tensors, 4, NULL, 0), STATUS_OK);
    static const char *const runs[] = {"", "--ridge 1", "--stride 50", "--stride 50 --ridge 1"};
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(RUN("readout %s --data %s %s", model, support_data, runs[i]), 1);
        assert_says(output, "feature 1 of image");
        assert_says(output, "is not finite");
    }
}

/* --- real images --- */

/* 1,024 features give 94.5 %, and 128, for slow tools, 83.9 %. */
static void random_features_learn_mnist(void **state) {
    (void)state;
    const bool sampled = support_stride() > 1;
    struct dataset_pair pair;
    const char *log = support_path("mnist.jsonl");
    cJSON *result = NULL;
    if (dataset_load(&pair, "data/mnist", (struct dataset_options){0})) {
        print_message("skipped: no MNIST (data/fetch.sh downloads it): %s\n", status_message());
        skip();
    }
    dataset_pair_free(&pair);
    assert_int_equal(
        RUN("readout --data data/mnist --features random:%d --ridge 2 --log %s", sampled ? 128 : 1024, log),
        0);
    assert_int_equal(support_log(log, "readout", 0, &result), 1);
    assert_true(support_number(result, "accuracy") > (sampled ? 0.82 : 0.93));
    cJSON_Delete(result);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(saved_files_are_networks),    cmocka_unit_test(hidden_layers_stay),
        cmocka_unit_test(fit_of_a_run_is_a_minimum),   cmocka_unit_test(best_ridge_is_chosen),
        cmocka_unit_test(threads_change_no_bit),       cmocka_unit_test(stream_is_logged),
        cmocka_unit_test(drift_turns_the_stream),      cmocka_unit_test(wrong_use_is_named),
        cmocka_unit_test(other_files_are_refused),     cmocka_unit_test(features_must_be_finite),
        cmocka_unit_test(random_features_learn_mnist),
    };
    return cmocka_run_group_tests_name("readout command", tests, support_make_data, NULL);
}
