/* What users try first: their own names of classes in what is exported, pages in a pipe, the files of other
   data sets under their real names, and usual mistakes. */
#define _GNU_SOURCE
#include "tests/support.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

static char output[1 << 16];
#define RUN(...) support_run(output, sizeof output, __VA_ARGS__)

enum { IMAGES = 40, SIDE = 28, PIXELS = SIDE * SIDE };

static void write_text(const char *path, const char *text) {
    support_write(path, text, strlen(text));
}

/* --- names of classes --- */

/* Pictures in folders with these names, of which C and JSON must escape characters; no test set. */
static const char *const names[] = {"a \"cat\"", "dog\?\?!", "\xc3\xbc\\ber"};

static const char *make_pictures(const char *folder) {
    char path[600], bytes[32 + 16];
    mkdir(support_path(folder), 0777);
    for (int c = 0; c < 3; c++) {
        snprintf(path, sizeof path, "%s/%s", support_path(folder), names[c]);
        mkdir(path, 0777);
        for (int i = 0; i < 10; i++) {
            const int head = snprintf(bytes, sizeof bytes, "P5 4 4 255\n");
            memset(bytes + head, 10 * i, 16);
            memset(bytes + head + 4 * c, 255, 4);
            snprintf(path, sizeof path, "%s/%s/%d.pgm", support_path(folder), names[c], i);
            support_write(path, bytes, (size_t)head + 16);
        }
    }
    return support_path(folder);
}

static bool holds(const unsigned char *bytes, size_t length, const char *part) {
    return memmem(bytes, length, part, strlen(part)) != NULL;
}

/* Compiles an exported file and compares its names. */
static void check_c_names(const char *source, const char *symbol) {
    char command[1200], object[300];
    snprintf(object, sizeof object, "%s", support_path("classes.so"));
    snprintf(command, sizeof command,
             "${CC:-cc} -std=c99 -Wall -Wextra -pedantic -Wconversion -Werror -fPIC -shared '%s' -o '%s' -lm",
             source, object);
    assert_int_equal(system(command), 0);
    void *handle = dlopen(object, RTLD_NOW);
    assert_non_null(handle);
    const char *const *found = dlsym(handle, symbol);
    assert_non_null(found);
    for (int c = 0; c < 3; c++) assert_string_equal(found[c], names[c]);
    dlclose(handle);
}

static void exports_have_the_names(void **state) {
    (void)state;
    char folder[300], model[300], c[300];
    size_t length;
    snprintf(folder, sizeof folder, "%s", make_pictures("names"));
    snprintf(model, sizeof model, "%s", support_path("names.safetensors"));
    assert_int_equal(RUN("--data '%s' --layers 16-8-3 --validation 6 --epochs 1 --save %s", folder, model),
                     0);
    snprintf(c, sizeof c, "%s", support_path("pets.c"));
    assert_int_equal(RUN("export %s --c %s --onnx %s --torch %s", model, c, support_path("pets.onnx"),
                         support_path("pets-torch.safetensors")),
                     0);
    assert_says(output, "extern const char *const pets_class[3];");
    check_c_names(c, "pets_class");
    /* the metadata of ONNX are plain, those of the state dict JSON */
    unsigned char *onnx = support_read(support_path("pets.onnx"), &length);
    assert_true(holds(onnx, length, "tessera.classes"));
    assert_true(holds(onnx, length, "a \"cat\"\ndog\?\?!\n\xc3\xbc\\ber"));
    free(onnx);
    unsigned char *torch = support_read(support_path("pets-torch.safetensors"), &length);
    assert_true(holds(torch, length, "\"tessera.classes\":\"a \\\"cat\\\"\\ndog\?\?!\\n"));
    free(torch);
    /* without a test set int8 is measured on the images that were held out */
    snprintf(c, sizeof c, "%s", support_path("pets8.c"));
    assert_int_equal(RUN("export %s --c %s --int8", model, c), 0);
    assert_says(output, "/6 ");
    assert_says(output, "names, validation images");
    assert_int_equal(RUN("data '%s'", folder), 0);
    assert_says(output, "--layers 16-128-3 --validation N");
}

static void without_names_there_are_none(void **state) {
    (void)state;
    char model[300];
    size_t length;
    snprintf(model, sizeof model, "%s", support_path("plain.safetensors"));
    assert_int_equal(RUN("--data %s --layers 42-8-4 --epochs 1 --save %s", support_data, model), 0);
    assert_int_equal(
        RUN("export %s --c %s --onnx %s", model, support_path("plain.c"), support_path("plain.onnx")), 0);
    assert_null(strstr(output, "_class["));
    unsigned char *onnx = support_read(support_path("plain.onnx"), &length);
    assert_false(holds(onnx, length, "tessera.classes"));
    free(onnx);
}

/* --- pages in a pipe --- */

static void a_page_goes_to_standard_output(void **state) {
    (void)state;
    char log[300];
    snprintf(log, sizeof log, "%s", support_path("pipe.jsonl"));
    assert_int_equal(RUN("--data %s --layers 42-8-4 --epochs 1 --log %s", support_data, log), 0);
    assert_int_equal(RUN("report %s -o - 2>/dev/null | cat", log), 0);
    assert_int_equal(strncasecmp(output, "<!doctype html>", 15), 0);
    assert_says(output + strlen(output) - 10, "</html>\n");
    assert_int_equal(RUN("report %s -o - >/dev/null", log), 0);
    assert_says(output, "standard output: ");
    assert_int_equal(RUN("report %s -o - >/dev/full", log), 1);
}

/* --- data sets under their real names --- */

static uint8_t images[IMAGES * PIXELS], labels[IMAGES];

/* The titles of a file: none, pixel1 .. or 1x1 .. */
enum titles { UNTITLED, NUMBERED, ROW_AND_COLUMN };

/* `base`: the number of the first title; `first`: the smallest label. */
static void write_csv(const char *path, enum titles titles, int base, int first, bool labelled) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    if (titles && labelled) fputs("label", file);
    for (int i = 0; titles && i < PIXELS; i++) {
        if (i || labelled) fputc(',', file);
        if (titles == ROW_AND_COLUMN)
            fprintf(file, "%dx%d", base + i / SIDE, base + i % SIDE);
        else
            fprintf(file, "pixel%d", base + i);
    }
    fputs(titles ? "\r\n" : "", file);
    for (int n = 0; n < IMAGES; n++) {
        if (labelled) fprintf(file, "%d", labels[n] + first);
        for (int i = 0; i < PIXELS; i++) fprintf(file, i || labelled ? ",%d" : "%d", images[n * PIXELS + i]);
        fputs("\r\n", file);
    }
    fclose(file);
}

static const char *file_in(const char *folder, const char *name) {
    static char path[700];
    mkdir(support_path(folder), 0777);
    snprintf(path, sizeof path, "%s/%s", support_path(folder), name);
    return path;
}

#define TRY "--layers 784-8-10 --epochs 1 --threads 1 --batch-size 8 "

static void kaggle_files(void **state) {
    (void)state;
    char train[700], model[300];
    write_csv(file_in("digit-recognizer", "train.csv"), NUMBERED, 0, 0, true);
    write_csv(file_in("digit-recognizer", "test.csv"), NUMBERED, 0, 0, false);
    write_csv(file_in("fashionmnist", "fashion-mnist_train.csv"), NUMBERED, 1, 0, true);
    write_csv(file_in("fashionmnist", "fashion-mnist_test.csv"), NUMBERED, 1, 0, true);
    write_csv(file_in("mnist-in-csv", "mnist_train.csv"), ROW_AND_COLUMN, 1, 0, true);
    write_csv(file_in("mnist-in-csv", "mnist_test.csv"), ROW_AND_COLUMN, 1, 0, true);
    write_csv(file_in("emnist-csv", "emnist-letters-train.csv"), UNTITLED, 0, 1, true);
    write_csv(file_in("emnist-csv", "emnist-letters-test.csv"), UNTITLED, 0, 1, true);
    snprintf(train, sizeof train, "%s", file_in("digit-recognizer", "train.csv"));
    snprintf(model, sizeof model, "%s", support_path("kaggle.safetensors"));
    assert_int_equal(RUN("--data %s " TRY "--validation 10 --save %s", train, model), 0);
    assert_int_equal(RUN("predict %s %s --csv", model, file_in("digit-recognizer", "test.csv")), 0);
    assert_says(output, "test.csv,39,");
    assert_int_equal(RUN("--data %s " TRY, support_path("digit-recognizer")), 3);
    assert_says(output, "has no labels");
    assert_int_equal(RUN("--data %s " TRY, support_path("fashionmnist")), 0);
    assert_int_equal(RUN("--data %s " TRY, support_path("mnist-in-csv")), 0);
    assert_says(output, "40 training, 40 test images of 28x28");
    assert_int_equal(RUN("--data %s " TRY, support_path("emnist-csv")), 3);
    assert_says(output, "--label-offset 1");
    assert_int_equal(RUN("--data %s " TRY "--label-offset 1", support_path("emnist-csv")), 0);
}

/* --- mistakes --- */

static void sources_are_no_plugins(void **state) {
    (void)state;
    static const char *const endings[] = {"c", "cc", "cpp", "cu"};
    for (int i = 0; i < 4; i++) {
        char name[32];
        snprintf(name, sizeof name, "mine.%s", endings[i]);
        write_text(support_path(name), "int x;\n");
        assert_int_equal(RUN("devices --backend %s", support_path(name)), STATUS_UNAVAILABLE);
        assert_says(output, "it is a source file; compile it");
    }
    assert_int_equal(RUN("--backend mine.c"), STATUS_UNAVAILABLE);
    assert_says(output, "or a plug-in by its path: ./my.so");
}

static void what_cannot_be_verified_is_an_error(void **state) {
    (void)state;
    char one[600];
    snprintf(one, sizeof one, "%s:tune=?", support_plugin("plugins/good/options.so"));
    assert_int_equal(RUN("devices --verify --backend '%s'", one), STATUS_UNAVAILABLE);
    assert_says(output, "not usable: ");
    assert_int_equal(RUN("devices --backend '%s'", one), 0); /* a list */
}

static void a_grading_that_did_not_begin(void **state) {
    (void)state;
    char source[300], grades[300];
    snprintf(source, sizeof source, "%s", support_path("never.c"));
    snprintf(grades, sizeof grades, "%s", support_path("never-grades"));
    write_text(source, "error\n");
    assert_int_equal(RUN("grade %s -o %s --relative absent", source, grades), STATUS_UNAVAILABLE);
    assert_int_equal(RUN("grade %s -o %s", source, grades), 0);
    assert_says(output, "1 submission, 1 thread");
    assert_says(output, "does not compile");
}

/* From a folder without the header. */
static void submissions_find_the_header(void **state) {
    (void)state;
    char program[600], source[300], *path = realpath(getenv("TESSERA"), NULL);
    assert_non_null(path);
    snprintf(program, sizeof program, "%s", support_path("tree"));
    mkdir(program, 0777);
    mkdir(support_path("tree/kernels"), 0777);
    snprintf(source, sizeof source, "%s", support_path("mine_forward.c"));
    write_text(source, "#include \"kernels/gemm.h\"\nstatic int mistake = nowhere;\n");
    assert_int_equal(RUN("--version >/dev/null; cp '%s' '%s/train'; cp kernels/gemm.h '%s/kernels'; cd /; "
                         "'%s/train' grade "
                         "'%s' -o '%s'",
                         path, program, program, program, source, support_path("header-grades")),
                     0);
    assert_says(output, "nowhere");
    assert_null(strstr(output, "gemm.h: No such file"));
    free(path);
}

static int set_up(void **state) {
    for (int n = 0; n < IMAGES; n++) {
        labels[n] = (uint8_t)(n % 10);
        for (int i = 0; i < PIXELS; i++)
            images[n * PIXELS + i] = (uint8_t)(i / 80 == n % 10 ? 255 : (i + n) % 7);
    }
    return support_make_data(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exports_have_the_names),
        cmocka_unit_test(without_names_there_are_none),
        cmocka_unit_test(a_page_goes_to_standard_output),
        cmocka_unit_test(kaggle_files),
        cmocka_unit_test(sources_are_no_plugins),
        cmocka_unit_test(what_cannot_be_verified_is_an_error),
        cmocka_unit_test(a_grading_that_did_not_begin),
        cmocka_unit_test(submissions_find_the_header),
    };
    return cmocka_run_group_tests_name("user paths", tests, set_up, NULL);
}
