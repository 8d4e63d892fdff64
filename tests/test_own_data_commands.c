/* The commands on images of one's own: train, eval, report, predict, data. */
#include "tests/own_pictures.h"

#include <stdio.h>
#include <stdlib.h>

#include "src/base/text.h"
#include "src/nn/safetensors.h"

static char output[1 << 16];

#define RUN(...) support_run(output, sizeof output, __VA_ARGS__)
#define SMALL "--layers 36-16-3 --batch-size 8 --epochs 20 --threads 1 --lr 0.1 "

static void train_evaluate_predict(void **state) {
    (void)state;
    char folder[400], file[600];
    const char *model = support_path("own.safetensors"), *log = support_path("own.jsonl"),
               *page = support_path("own.html");
    snprintf(folder, sizeof folder, "%s", make_pictures("photos", 1));
    cJSON *line;
    assert_int_equal(RUN("--data %s " SMALL, folder), 2);
    assert_says(output, "has no test set");
    assert_says(output, "--validation 7");
    assert_int_equal(RUN("compare --data %s " SMALL "--backends serial --repeat 1", folder), 2);
    assert_says(output, "has no test set");
    assert_int_equal(
        RUN("--data %s " SMALL "--validation 14 --save %s --log %s --target-accuracy 99", folder, model, log),
        0);
    assert_says(output, "14 validation images of 6x6");
    assert_says(output, "validation accuracy 14/14 100.00 %");
    assert_null(strstr(output, "test accuracy"));
    assert_int_equal(support_log(log, "summary", 0, &line), 1);
    assert_true(support_number(line, "validation_accuracy") == 1 &&
                support_number(line, "validation_total") == 14 && !cJSON_GetObjectItem(line, "test_total"));
    cJSON_Delete(line);
    assert_int_equal(RUN("--data %s " SMALL "--epochs 1 --validation 14 --ensemble 2", folder), 0);
    assert_says(output, "validation accuracy");
    assert_null(strstr(output, "test accuracy"));

    /* the validation images of the recipe; of other data all */
    assert_int_equal(RUN("eval %s --threads 1 --log %s", model, log), 0);
    assert_says(output, "the last 14 training images");
    assert_says(output, "class 10   1     .     4     .\n");
    assert_int_equal(RUN("report %s -o %s", log, page), 0);
    size_t size;
    char *html = (char *)support_read(page, &size);
    html[size] = '\0';
    assert_says(html, "label über, predicted über: 8 images");
    free(html);
    snprintf(file, sizeof file, "%s", make_pictures("photos-2", 10));
    assert_int_equal(RUN("eval %s --threads 1 --data %s", model, file), 0);
    assert_says(output, "validation accuracy 7/7");
    assert_null(strstr(output, "warning"));

    assert_int_equal(RUN("predict %s '%s/%s/3.pgm' '%s/%s/4.pgm'", model, folder, picture_classes[2], folder,
                         picture_classes[0]),
                     0);
    assert_says(output, "3.pgm     2 über            9");
    assert_says(output, "4.pgm  0 class 2");
    assert_int_equal(RUN("predict %s --csv - < '%s/%s/3.pgm'", model, folder, picture_classes[1]), 0);
    assert_says(output, "file,image,class,name,probability,class_2,");
    assert_says(output, "\n-,0,1,class 10,0.9");

    assert_int_equal(RUN("export %s --c %s --int8", model, support_path("own.c")), 0);
    assert_says(output, "int8: 14/14");
    assert_says(output, ", validation images");
    assert_int_equal(
        RUN("compare --data %s " SMALL "--validation 14 --backends serial --repeat 1 --log %s", folder, log),
        0);
    assert_says(output, "validation accuracy");
    assert_null(strstr(output, "test accuracy"));
    assert_int_equal(support_log(log, "compare", 0, &line), 1);
    assert_true(support_number(line, "validation_accuracy") == 1 &&
                support_number(line, "validation_total") == 14 &&
                !cJSON_GetObjectItem(line, "test_accuracy"));
    cJSON_Delete(line);
    assert_int_equal(RUN("report %s -o %s", log, page), 0);
    html = (char *)support_read(page, &size);
    html[size] = '\0';
    assert_says(html, "validation accuracy");
    assert_null(strstr(html, "test accuracy"));
    free(html);

    /* the same after a resume; another class is refused */
    assert_int_equal(
        RUN("--data %s --resume %s --save %s --epochs 21 --validation 14 --threads 1", folder, model, model),
        0);
    make_folder(support_path("photos/zebra"));
    write_picture(support_path("photos/zebra/1.pgm"), SIDE, SIDE, 0, 1);
    assert_int_equal(RUN("--resume %s --epochs 22 --validation 14 --threads 1", model), 3);
    assert_says(output, "the class 'zebra', which the checkpoint does not know");
}

static void convert_and_draw(void **state) {
    (void)state;
    struct dataset_pair own, converted;
    char folder[400];
    const char *made = support_path("made"), *sheet = support_path("sheet.pgm");
    snprintf(folder, sizeof folder, "%s", make_pictures("source", 1));
    assert_int_equal(RUN("data %s -o %s --sheet %s --hold-out 14", folder, made, sheet), 0);
    assert_says(output, "56 training images, 14 test images of 6x6");
    assert_says(output, "class 10");
    assert_says(output, "--layers 36-128-3");
    assert_status(dataset_load(&own, folder, (struct dataset_options){0}), STATUS_OK);
    assert_status(dataset_load(&converted, made, (struct dataset_options){0}), STATUS_OK);
    assert_true(converted.train.count == 56 && converted.test.count == 14);
    assert_memory_equal(own.train.images, converted.train.images, 56 * PIXELS);
    assert_memory_equal(own.train.images + 56 * PIXELS, converted.test.images, 14 * PIXELS);
    assert_memory_equal(own.train.labels + 56, converted.test.labels, 14);
    assert_memory_equal(&own.classes, &converted.classes, sizeof own.classes);
    dataset_pair_free(&own);
    dataset_pair_free(&converted);
    size_t size;
    free(support_read(sheet, &size));
    assert_true(size > 10 * 3 * 56 * 56);                  /* three rows of ten enlarged images */
    assert_int_equal(RUN("data %s -o %s", made, made), 2); /* onto itself */
    assert_says(output, "name the same file");
    assert_int_equal(RUN("data %s --hold-out 70", folder), 2);
    assert_int_equal(RUN("data %s --like-mnist", made), 2);
    assert_int_equal(RUN("data %s --input-size 9", made), 2);
    assert_int_equal(RUN("data"), 2);
}

/* Writes a network of 4 inputs and 2 classes that answers class 1 if the second pixel is brighter than half,
   with metadata. */
static const char *write_network(const char *name, const char *size, const char *classes) {
    static const float weight[] = {0, 0, 0, 0, 0, 80, 0, 0}, bias[] = {40, 0};
    const struct tensor tensors[] = {
        {.name = "layers.0.weight", .dtype = GEMM_F32, .rank = 2, .shape = {2, 4}, .data = weight},
        {.name = "layers.0.bias", .dtype = GEMM_F32, .rank = 1, .shape = {2}, .data = bias}};
    const struct metadata metadata[] = {{"tessera.image_size", size}, {"tessera.classes", classes}};
    const char *path = support_path(name);
    assert_status(safetensors_write(path, tensors, 2, metadata, classes ? 2 : size ? 1 : 0), STATUS_OK);
    return path;
}

/* Many classes are in blocks side by side. */
static void sheets_have_2000_pixels_at_most(void **state) {
    (void)state;
    enum { CLASSES = 40 };
    const char *folder = support_path("many"), *sheet = support_path("many.pgm");
    char rows[1024] = "label,a,b,c,d\n";
    int width = 0, height = 0;
    for (int c = 0; c < CLASSES; c++) text_append(rows, sizeof rows, "%d,255,2,3,4\n", c);
    make_folder(folder);
    write_text(folder, "many_train.csv", rows);
    write_text(folder, "many_test.csv", rows);
    assert_int_equal(RUN("data %s --sheet %s", folder, sheet), 0);
    assert_says(output, "40 classes");
    FILE *file = fopen(sheet, "rb");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "P5 %d %d", &width, &height), 2);
    fclose(file);
    assert_true(height > 1000 && height <= 2000 && width > height / 2);
}

static void predict_reads_and_fits(void **state) {
    (void)state;
    const char *model = write_network("p.safetensors", NULL, NULL), *big = support_path("big.pgm"),
               *csv = support_path("p.csv"), *idx = support_path("p-idx3-ubyte");
    support_write(csv, "0,255,0,0\n0,0,9,9\n", 18); /* as many columns as inputs: no label */
    support_write_idx(idx, 3, (uint32_t[]){2, 2, 2}, (uint8_t[]){0, 255, 0, 0, 9, 9, 9, 9}, 8);
    assert_int_equal(RUN("predict %s %s %s --csv", model, csv, idx), 0);
    assert_says(output, "p.csv,0,1,1,1.000000,0,0,0.000000\n");
    assert_says(output, "p.csv,1,0,0,");
    assert_says(output, "p-idx3-ubyte,0,1,1,");
    assert_says(output, "p-idx3-ubyte,1,0,0,");
    assert_int_equal(RUN("predict %s %s --transpose on --csv", model, idx), 0);
    assert_says(output, "p-idx3-ubyte,0,0,0,");
    assert_int_equal(RUN("predict %s %s --invert --csv", model, csv), 0);
    assert_says(output, "p.csv,1,1,1,");
    support_write(big, "P2 4 4 1 1 1 0 0 1 1 0 0 1 1 1 1 1 1 1 1", 41); /* 0 1 1 1 after --invert --scale */
    assert_int_equal(RUN("predict %s %s", model, big), 3);
    assert_says(output, "4 x 4 pixels, but the network takes 2 x 2");
    assert_int_equal(RUN("predict %s %s --scale --csv", model, big), 0);
    assert_says(output, "big.pgm,0,0,0,");
    assert_int_equal(RUN("predict %s %s --scale --invert --csv", model, big), 0);
    assert_says(output, "big.pgm,0,1,1,");
    assert_int_equal(RUN("predict %s %s --scale --like-mnist", model, big), 2);
    assert_int_equal(RUN("predict %s", model), 2);
    assert_int_equal(RUN("predict %s %s %s", model, csv, support_path("missing.png")), 3);
    assert_says(output, "missing.png");
}

static void names_of_a_checkpoint_are_data(void **state) {
    (void)state;
    static const struct {
        const char *size, *classes, *says;
    } hostile[] = {
        {"2x2", "a\x1b[31m\nb", "control characters"},
        {"2x2", "a\na", "two classes"},
        {"2x", NULL, "tessera.image_size"},
        {"99999999999x99999999999", NULL, "tessera.image_size"},
        {"-2x-2", NULL, "tessera.image_size"},
    };
    const char *csv = support_path("h.csv");
    support_write(csv, "0,255,0,0\n", 10);
    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++) {
        const char *model = write_network("h.safetensors", hostile[i].size, hostile[i].classes);
        assert_int_equal(RUN("predict %s %s", model, csv), 3);
        assert_says(output, hostile[i].says);
        assert_null(strchr(output, '\x1b'));
    }
    const char *model = write_network("h.safetensors", "4x1", "no,\"comma\""); /* fewer names than classes */
    assert_int_equal(RUN("predict %s %s", model, csv), 3);
    assert_says(output, "takes 4 x 1");
    model = write_network("h.safetensors", "2x2", "no,\"comma\"");
    assert_int_equal(RUN("predict %s %s --csv", model, csv), 0);
    assert_says(output, "h.csv,0,1,1,1.000000,0,\"no,\"\"comma\"\"\",0.0");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(train_evaluate_predict),          cmocka_unit_test(convert_and_draw),
        cmocka_unit_test(sheets_have_2000_pixels_at_most), cmocka_unit_test(predict_reads_and_fits),
        cmocka_unit_test(names_of_a_checkpoint_are_data),
    };
    return cmocka_run_group_tests_name("commands on own data", tests, support_make_data, NULL);
}
