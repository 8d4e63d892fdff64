/* The command export: the answers of the ONNX file against those of eval, the state dict, and errors. */
#include "tests/exported.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "src/nn/safetensors.h"
#include "tests/onnx_run.h"

static char output[1 << 16];

#define RUN(...) support_run(output, sizeof output, __VA_ARGS__)

/* The case at hand. */
static const struct exported *at;

/* --- ONNX --- */

static void onnx_answers_as_eval_does(void **state) {
    (void)state;
    double wanted[IMAGES * CLASSES];
    uint8_t label[IMAGES];
    for (size_t n = 0; n < CASES; n++) {
        struct onnx_model graph;
        at = exported_case(n);
        exported_evaluate(at, wanted, label);
        onnx_read(&graph, at->onnx);
        for (size_t i = 0; i < IMAGES; i++) {
            size_t best = 0;
            onnx_run(&graph, exported_image(i), FEATURES);
            const double *got = onnx_find(&graph, "probabilities")->values;
            for (size_t c = 1; c < CLASSES; c++)
                if (got[c] > got[best]) best = c;
            exported_check(wanted, label[i], i, got, best);
            const double *logits = onnx_find(&graph, "logits")->values;
            assert_near(logits[1] - logits[0], wanted[i * CLASSES + 1] - wanted[i * CLASSES], 1e-5);
        }
        onnx_free(&graph);
    }
}

static void onnx_says_what_it_is(void **state) {
    (void)state;
    struct onnx_model graph;
    at = exported_case(5);
    assert_says(at->console,
                "(opset 13)\n        input pixels, uint8 [batch, 42]\n        outputs probabilities and "
                "logits, float [batch, 4]\n");
    onnx_read(&graph, at->onnx);
    assert_true(graph.ir_version == 7 && graph.opset == 13);
    assert_string_equal(graph.producer, "Tessera");
    assert_string_equal(graph.description, "42-10-11-12-4, gelu, x = pixel / 255");
    assert_says(graph.recipe, "activation = gelu");
    assert_string_equal(graph.input.name, "pixels");
    assert_string_equal(graph.input.batch, "batch");
    assert_true(graph.input.type == 2 && graph.input.width == FEATURES);
    assert_int_equal(graph.outputs, 2);
    assert_string_equal(graph.output[0].name, "probabilities");
    assert_string_equal(graph.output[1].name, "logits");
    assert_string_equal(graph.output[1].batch, "batch");
    assert_true(graph.output[1].type == 1 && graph.output[1].width == CLASSES);
    onnx_free(&graph);
}

/* --- the state dict --- */

static void state_dict_has_the_names_of_sequential(void **state) {
    (void)state;
    for (size_t n = 0; n < CASES; n++) {
        struct safetensors dict, own;
        at = exported_case(n);
        assert_says(at->console, at->sequential);
        assert_status(safetensors_read(&own, at->model), STATUS_OK);
        assert_status(safetensors_read(&dict, at->torch), STATUS_OK);
        assert_string_equal(safetensors_metadata(&dict, "torch"), at->sequential);
        assert_string_equal(safetensors_metadata(&dict, "format"), "pt");
        size_t found = 0;
        for (size_t l = 0; l < PROFILE_MAX_LAYERS; l++)
            for (int bias = 0; bias < 2; bias++) {
                char from[TENSOR_NAME], to[TENSOR_NAME];
                snprintf(from, sizeof from, "layers.%zu.%s", l, bias ? "bias" : "weight");
                snprintf(to, sizeof to, "%zu.%s", 2 * l, bias ? "bias" : "weight");
                const struct tensor *a = safetensors_find(&own, from), *b = safetensors_find(&dict, to);
                assert_int_equal(!a, !b);
                if (!a) continue;
                assert_true(a->dtype == b->dtype && a->rank == b->rank && a->shape[0] == b->shape[0]);
                assert_int_equal(tensor_elements(a), tensor_elements(b));
                assert_memory_equal(a->data, b->data, tensor_elements(a) * dtype_size(a->dtype));
                found++;
            }
        assert_int_equal(found, dict.count);
        safetensors_free(&own);
        safetensors_free(&dict);
    }
}

/* --- what else it says --- */

static void averages_and_double_are_named(void **state) {
    (void)state;
    const char *other = support_path("average.onnx");
    struct onnx_model weights, average;
    at = exported_case(2); /* with a moving average */
    onnx_read(&weights, at->onnx);
    assert_int_equal(RUN("export %s --ema --onnx %s", at->model, other), 0);
    assert_says(output, "moving average of the weights");
    onnx_read(&average, other);
    const double *a = onnx_find(&weights, "layers.0.weight")->values,
                 *b = onnx_find(&average, "layers.0.weight")->values;
    assert_true(a[0] != b[0]);
    onnx_free(&weights);
    onnx_free(&average);
    at = exported_case(4);
    assert_says(at->console, "ONNX and C have its float64 weights rounded to float32");
    assert_int_equal(RUN("export %s --ema --onnx %s", at->model, at->onnx), 2);
    assert_says(output, "has no moving average of the weights");
}

static void names_become_identifiers(void **state) {
    (void)state;
    at = exported_case(0);
    assert_int_equal(RUN("export %s --c '%s'", at->model, support_path("7 digits-v2.x.c")), 0);
    assert_says(output, "int m7_digits_v2_predict(const unsigned char *pixels, float *probabilities)");
    assert_int_equal(RUN("export %s -c %s", at->model, support_path("short.c")), 0);
}

/* A foreign checkpoint without a recipe, resized images, weights that are not finite. */
static void write_model(const char *path, float value) {
    static float weight[4 * 64], bias[4];
    weight[5] = value;
    const struct tensor tensors[] = {
        {.name = "layers.0.weight", .dtype = GEMM_F32, .rank = 2, .shape = {4, 64}, .data = weight},
        {.name = "layers.0.bias", .dtype = GEMM_F32, .rank = 1, .shape = {4}, .data = bias}};
    assert_status(safetensors_write(path, tensors, 2, NULL, 0), STATUS_OK);
}

static void errors_say_what_to_do(void **state) {
    (void)state;
    const char *foreign = support_path("f.safetensors"), *source = support_path("f.c");
    at = exported_case(0);
    assert_int_equal(RUN("export"), 2);
    assert_says(output, "export needs a checkpoint and an output");
    assert_int_equal(RUN("export %s", at->model), 2);
    assert_int_equal(RUN("export %s --int8 --onnx %s", at->model, at->onnx), 2);
    assert_says(output, "--int8 goes with --c FILE");
    assert_int_equal(RUN("export %s --onnx %s", support_path("missing"), at->onnx), 3);
    assert_int_equal(RUN("export %s --onnx %s", at->source, at->onnx), 3);
    assert_int_equal(RUN("export %s --torch %s", at->model, at->model), 2);
    assert_int_equal(RUN("export %s --torch %s --onnx %s", at->model, at->onnx, at->onnx), 2);
    assert_int_equal(RUN("export %s --onnx /proc/nowhere/m.onnx", at->model), 1);

    write_model(foreign, 1);
    assert_int_equal(RUN("export %s --c %s", foreign, source), 0);
    assert_int_equal(RUN("export %s --c %s --int8 --data %s", foreign, source, support_data), 2);
    assert_says(output, "--int8 measures the network on images");
    assert_int_equal(RUN("export %s --c %s --int8 --data %s --input-size 8", foreign, source, support_data),
                     0);
    assert_says(output, "images resized to 8x8");
    write_model(foreign, INFINITY);
    assert_int_equal(RUN("export %s --c %s", foreign, source), 3);
    assert_says(output, "layers.0.weight is not finite in float32 (element 5 is inf)");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(onnx_answers_as_eval_does),
        cmocka_unit_test(onnx_says_what_it_is),
        cmocka_unit_test(state_dict_has_the_names_of_sequential),
        cmocka_unit_test(averages_and_double_are_named),
        cmocka_unit_test(names_become_identifiers),
        cmocka_unit_test(errors_say_what_to_do),
    };
    return cmocka_run_group_tests_name("export", tests, exported_open, exported_close);
}
