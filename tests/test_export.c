/* The command export: the answers of the ONNX file and of the compiled C files against those of eval, for all
   activations, depths, input ranges and dtypes; and the state dict. */
#include "tests/support.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "src/base/text.h"
#include "src/export/quantized.h"
#include "src/nn/samples.h"
#include "tests/onnx_run.h"

static char output[1 << 16];

#define RUN(...) support_run(output, sizeof output, __VA_ARGS__)

enum { IMAGES = 100, FEATURES = 42, CLASSES = 4 };

struct network_case {
    const char *activation, *layers, *options, *sequential;
};

static const struct network_case cases[] = {
    {"relu", "42-16-4", "", "nn.Sequential(nn.Linear(42, 16), nn.ReLU(), nn.Linear(16, 4))"},
    {"none", "42-7-4", "", "nn.Sequential(nn.Linear(42, 7), nn.Identity(), nn.Linear(7, 4))"},
    {"tanh", "42-16-4", "--input-range -1,1 --lr 0.02 --ema-decay 0.9",
     "nn.Sequential(nn.Linear(42, 16), nn.Tanh(), nn.Linear(16, 4))"},
    {"scaled-tanh", "42-12-9-4", "--dropout 0.2",
     "nn.Sequential(nn.Linear(42, 12), ScaledTanh(), nn.Linear(12, 9), ScaledTanh(), nn.Linear(9, 4))"},
    {"sigmoid", "42-31-4", "--dtype f64", "nn.Sequential(nn.Linear(42, 31), nn.Sigmoid(), nn.Linear(31, 4))"},
    {"gelu", "42-10-11-12-4", "--optimizer adam --lr 0.01",
     "nn.Sequential(nn.Linear(42, 10), nn.GELU(), nn.Linear(10, 11), nn.GELU(), nn.Linear(11, 12), "
     "nn.GELU(), "
     "nn.Linear(12, 4))"},
    {"relu", "42-4", "", "nn.Sequential(nn.Linear(42, 4))"},
};

enum { CASES = sizeof cases / sizeof *cases };

static struct dataset_pair data;

/* The files of the case at hand, and what `export` printed for the first three. */
static struct exported {
    char model[256], onnx[256], source[256], torch[256], integer[256], console[2048];
} exported[CASES], *at;

static void set_path(char path[256], size_t n, const char *name) {
    char file[64];
    snprintf(file, sizeof file, "%zu", n);
    mkdir(support_path(file), 0777);
    text_append(file, sizeof file, "/%s", name);
    snprintf(path, 256, "%s", support_path(file));
}

/* Trains the network of case n and exports it in every format, once; sets `at`. */
static void use_case(size_t n) {
    at = &exported[n];
    if (at->console[0]) return;
    set_path(at->model, n, "model.safetensors");
    set_path(at->onnx, n, "m.onnx");
    set_path(at->source, n, "m.c");
    set_path(at->torch, n, "torch.safetensors");
    set_path(at->integer, n, "small.c");
    assert_int_equal(RUN("--data %s --activation %s --layers %s --batch-size 32 --epochs 3 --init uniform "
                         "--threads 1 %s --save %s",
                         support_data, cases[n].activation, cases[n].layers, cases[n].options, at->model),
                     0);
    assert_int_equal(RUN("export %s --c %s --int8", at->model, at->integer), 0);
    assert_int_equal(RUN("export %s --onnx %s --c %s --torch %s", at->model, at->onnx, at->source, at->torch),
                     0);
    snprintf(at->console, sizeof at->console, "%.2000s", output);
}

/* What eval computes: the log probabilities [IMAGES][CLASSES] and the classes. */
static void evaluate(double *log_probability, uint8_t *label) {
    struct checkpoint checkpoint;
    struct config config;
    struct compute compute;
    struct mlp mlp;
    struct samples samples;
    struct evaluation result;
    struct predictions predictions = {.label = label, .log_probability = log_probability};
    config_defaults(&config);
    memset(log_probability, 0, IMAGES * CLASSES * sizeof *log_probability);
    support_open(&compute, "serial", 1);
    assert_status(checkpoint_open(&checkpoint, at->model), STATUS_OK);
    assert_status(checkpoint_recipe(&checkpoint, &config), STATUS_OK);
    assert_status(samples_open(&samples, &compute.device, &config, &data.test), STATUS_OK);
    assert_status(mlp_open(&mlp, &compute, &config, IMAGES), STATUS_OK);
    assert_status(checkpoint_restore(&checkpoint, &mlp, NULL), STATUS_OK);
    struct tally *tally = compute.device.driver->alloc(&compute.device, sizeof *tally);
    assert_status(samples_evaluate(&samples, &mlp, tally, &result, &predictions), STATUS_OK);
    compute.device.driver->free(&compute.device, tally);
    mlp_close(&mlp);
    samples_close(&samples, &compute.device);
    checkpoint_close(&checkpoint);
    compute_close(&compute);
}

static const uint8_t *image(size_t i) {
    return data.test.images + i * FEATURES;
}

/* The probabilities of image i against those of eval, and the class wherever the two largest are apart. */
static void check_answer(const double *log_probability, size_t label, size_t i, const double *got,
                         size_t class) {
    for (size_t c = 0; c < CLASSES; c++) assert_near(got[c], exp(log_probability[i * CLASSES + c]), 2e-6);
    if (class != label)
        assert_near(log_probability[i * CLASSES + class], log_probability[i * CLASSES + label], 1e-5);
}

/* --- ONNX --- */

static void onnx_answers_as_eval_does(void **state) {
    (void)state;
    double wanted[IMAGES * CLASSES];
    uint8_t label[IMAGES];
    for (size_t n = 0; n < CASES; n++) {
        struct onnx_model graph;
        use_case(n);
        evaluate(wanted, label);
        onnx_read(&graph, at->onnx);
        for (size_t i = 0; i < IMAGES; i++) {
            size_t best = 0;
            onnx_run(&graph, image(i), FEATURES);
            const double *got = onnx_find(&graph, "probabilities")->values;
            for (size_t c = 1; c < CLASSES; c++)
                if (got[c] > got[best]) best = c;
            check_answer(wanted, label[i], i, got, best);
            const double *logits = onnx_find(&graph, "logits")->values;
            assert_near(logits[1] - logits[0], wanted[i * CLASSES + 1] - wanted[i * CLASSES], 1e-5);
        }
        onnx_free(&graph);
    }
}

static void onnx_says_what_it_is(void **state) {
    (void)state;
    struct onnx_model graph;
    use_case(5);
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

/* --- C --- */

/* Compiles a file strictly and loads it; the caller closes *library. Skips the test without a compiler. */
static void *compile(const char *path, const char *function, void **library) {
    const char *compiler = getenv("CC");
    char command[1024], shared[300];
    snprintf(shared, sizeof shared, "%s.so", path);
    snprintf(
        command, sizeof command,
        "%s -std=c99 -O1 -Wall -Wextra -pedantic -Wshadow -Wconversion -Wmissing-prototypes -Werror -fPIC "
        "-shared %s -o %s -lm",
        compiler && *compiler ? compiler : "cc", path, shared);
    const int status = system(command);
    if (status != 0 && WEXITSTATUS(status) == 127) {
        print_message("skipped: no C compiler (cc)\n");
        skip();
    }
    assert_int_equal(status, 0);
    *library = dlopen(shared, RTLD_NOW | RTLD_LOCAL);
    assert_non_null(*library);
    void *found = dlsym(*library, function);
    assert_non_null(found);
    return found;
}

/* The biases of the first layer as they are written. */
static void literals_are_exact(void) {
    struct safetensors own;
    size_t size;
    char *text = (char *)support_read(at->source, &size);
    text[size] = '\0';
    assert_status(safetensors_read(&own, at->model), STATUS_OK);
    const struct tensor *bias = safetensors_find(&own, "layers.0.bias");
    char *next = strstr(strstr(text, "m_bias_0["), "{") + 1;
    for (size_t i = 0; i < bias->shape[0]; i++) {
        assert_true(strtof(next, &next) == (float)dtype_get(bias->dtype, bias->data, i));
        assert_true(*next++ == 'f' && *next++ == ',');
    }
    safetensors_free(&own);
    free(text);
}

static void c_answers_as_eval_does(void **state) {
    (void)state;
    double wanted[IMAGES * CLASSES];
    uint8_t label[IMAGES];
    for (size_t n = 0; n < CASES; n++) {
        void *library;
        use_case(n);
        evaluate(wanted, label);
        literals_are_exact();
        int (*predict)(const unsigned char *, float *);
        *(void **)&predict = compile(at->source, "m_predict", &library);
        for (size_t i = 0; i < IMAGES; i++) {
            float probability[CLASSES];
            double got[CLASSES];
            const int class = predict(image(i), probability);
            for (size_t c = 0; c < CLASSES; c++) got[c] = (double)probability[c];
            check_answer(wanted, label[i], i, got, (size_t) class);
            assert_int_equal(predict(image(i), NULL), class);
        }
        dlclose(library);
    }
}

/* The network of `at`, quantised as `export` does. */
static void quantize(struct quantized *quantized) {
    struct checkpoint checkpoint;
    struct config config;
    struct network network;
    config_defaults(&config);
    assert_status(checkpoint_open(&checkpoint, at->model), STATUS_OK);
    assert_status(checkpoint_recipe(&checkpoint, &config), STATUS_OK);
    assert_status(network_read(&network, &checkpoint, &config, false), STATUS_OK);
    assert_status(quantized_make(quantized, &network, data.train.images, data.train.count), STATUS_OK);
    network_free(&network);
    checkpoint_close(&checkpoint);
}

/* The scores of the compiled file are those of the arithmetic that was measured, and close to the logits. */
static void int8_is_what_it_says(void **state) {
    (void)state;
    double wanted[IMAGES * CLASSES];
    uint8_t label[IMAGES];
    for (size_t n = 0; n < CASES; n++) {
        void *library;
        char stated[512];
        size_t size, correct = 0, different = 0;
        use_case(n);
        evaluate(wanted, label);
        char *text = (char *)support_read(at->integer, &size);
        text[size] = '\0';
        const double scale = strtod(strstr(text, "A score times ") + strlen("A score times "), NULL);
        int (*predict)(const unsigned char *, int32_t *);
        *(void **)&predict = compile(at->integer, "small_predict", &library);
        struct quantized quantized;
        uint8_t room[2 * 64];
        quantize(&quantized);
        double worst = 0, spread = 0;
        for (size_t i = 0; i < IMAGES; i++) {
            int32_t scores[CLASSES], measured[CLASSES];
            const size_t class = (size_t)predict(image(i), scores);
            assert_int_equal(quantized_run(&quantized, image(i), measured, room, 64), class);
            assert_memory_equal(scores, measured, sizeof scores);
            correct += class == data.test.labels[i];
            different += class != label[i];
            assert_int_equal(predict(image(i), NULL), class);
            for (size_t c = 1; c < CLASSES; c++) {
                const double real = wanted[i * CLASSES + c] - wanted[i * CLASSES],
                             got = ((double)scores[c] - (double)scores[0]) * scale;
                worst = fmax(worst, fabs(got - real));
                spread = fmax(spread, fabs(real));
            }
        }
        dlclose(library);
        quantized_free(&quantized);
        if (!(worst <= 0.04 * spread)) fail_msg("case %zu: logits differ by %g of %g", n, worst, spread);
        snprintf(stated, sizeof stated, "int8: %zu/100 %zu.00 %%, float32: ", correct, correct);
        assert_says(text, stated);
        snprintf(stated, sizeof stated, ", %zu answers differ; %s */", different, support_data);
        assert_says(text, stated);
        assert_says(text, "Integer arithmetic alone");
        assert_null(strstr(text, "math.h"));
        assert_null(strstr(text, "float *"));
        free(text);
    }
}

/* The memory that is stated is that of the arrays. */
static void memory_is_stated(void **state) {
    (void)state;
    use_case(0); /* 42-16-4 */
    assert_says(at->console, "3,024 bytes of constants (flash), 336 of stack (RAM)");
    assert_int_equal(RUN("export %s --c %s --int8", at->model, at->integer), 0);
    assert_says(output, "880 bytes of constants (flash), 32 of stack (RAM)");
    use_case(2); /* a table */
    assert_int_equal(RUN("export %s --c %s --int8", at->model, at->integer), 0);
    assert_says(output, "1,904 bytes of constants (flash), 32 of stack (RAM)");
}

/* --- the state dict --- */

static void state_dict_has_the_names_of_sequential(void **state) {
    (void)state;
    for (size_t n = 0; n < CASES; n++) {
        struct safetensors dict, own;
        use_case(n);
        assert_says(at->console, cases[n].sequential);
        assert_status(safetensors_read(&own, at->model), STATUS_OK);
        assert_status(safetensors_read(&dict, at->torch), STATUS_OK);
        assert_string_equal(safetensors_metadata(&dict, "torch"), cases[n].sequential);
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
    use_case(2); /* with a moving average */
    onnx_read(&weights, at->onnx);
    assert_int_equal(RUN("export %s --ema --onnx %s", at->model, other), 0);
    assert_says(output, "moving average of the weights");
    onnx_read(&average, other);
    const double *a = onnx_find(&weights, "layers.0.weight")->values,
                 *b = onnx_find(&average, "layers.0.weight")->values;
    assert_true(a[0] != b[0]);
    onnx_free(&weights);
    onnx_free(&average);
    use_case(4);
    assert_says(at->console, "ONNX and C have its float64 weights rounded to float32");
    assert_int_equal(RUN("export %s --ema --onnx %s", at->model, at->onnx), 2);
    assert_says(output, "has no moving average of the weights");
}

static void names_become_identifiers(void **state) {
    (void)state;
    use_case(0);
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
    use_case(0);
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

static int load(void **state) {
    support_make_data(state);
    return dataset_load(&data, support_data, (struct dataset_options){0}) != STATUS_OK;
}

static int unload(void **state) {
    (void)state;
    dataset_pair_free(&data);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(onnx_answers_as_eval_does),
        cmocka_unit_test(onnx_says_what_it_is),
        cmocka_unit_test(c_answers_as_eval_does),
        cmocka_unit_test(int8_is_what_it_says),
        cmocka_unit_test(memory_is_stated),
        cmocka_unit_test(state_dict_has_the_names_of_sequential),
        cmocka_unit_test(averages_and_double_are_named),
        cmocka_unit_test(names_become_identifiers),
        cmocka_unit_test(errors_say_what_to_do),
    };
    return cmocka_run_group_tests_name("export", tests, load, unload);
}
