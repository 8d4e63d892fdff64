/* The command export --c: the answers of the compiled files, in float32 and int8, against those of eval. */
#include "tests/exported.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "src/export/quantized.h"
#include "src/nn/checkpoint.h"
#include "src/nn/safetensors.h"

static char output[1 << 16];

#define RUN(...) support_run(output, sizeof output, __VA_ARGS__)

/* The case at hand. */
static const struct exported *at;

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
        at = exported_case(n);
        exported_evaluate(at, wanted, label);
        literals_are_exact();
        int (*predict)(const unsigned char *, float *);
        *(void **)&predict = compile(at->source, "m_predict", &library);
        for (size_t i = 0; i < IMAGES; i++) {
            float probability[CLASSES];
            double got[CLASSES];
            const int class = predict(exported_image(i), probability);
            for (size_t c = 0; c < CLASSES; c++) got[c] = (double)probability[c];
            exported_check(wanted, label[i], i, got, (size_t) class);
            assert_int_equal(predict(exported_image(i), NULL), class);
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
    assert_status(quantized_make(quantized, &network, exported_data.train.images, exported_data.train.count),
                  STATUS_OK);
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
        at = exported_case(n);
        exported_evaluate(at, wanted, label);
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
            const size_t class = (size_t)predict(exported_image(i), scores);
            assert_int_equal(quantized_run(&quantized, exported_image(i), measured, room, 64), class);
            assert_memory_equal(scores, measured, sizeof scores);
            correct += class == exported_data.test.labels[i];
            different += class != label[i];
            assert_int_equal(predict(exported_image(i), NULL), class);
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
    at = exported_case(0); /* 42-16-4 */
    assert_says(at->console, "3,024 bytes of constants (flash), 336 of stack (RAM)");
    assert_int_equal(RUN("export %s --c %s --int8", at->model, at->integer), 0);
    assert_says(output, "880 bytes of constants (flash), 32 of stack (RAM)");
    at = exported_case(2); /* a table */
    assert_int_equal(RUN("export %s --c %s --int8", at->model, at->integer), 0);
    assert_says(output, "1,904 bytes of constants (flash), 32 of stack (RAM)");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(c_answers_as_eval_does),
        cmocka_unit_test(int8_is_what_it_says),
        cmocka_unit_test(memory_is_stated),
    };
    return cmocka_run_group_tests_name("export to C", tests, exported_open, exported_close);
}
