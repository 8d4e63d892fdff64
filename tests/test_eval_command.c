/* The command eval: a validation set, weight averages, and the picture of mistakes. */
#include "tests/support.h"

#include <stdio.h>
#include <stdlib.h>

#include "src/nn/safetensors.h"
#include "src/report/bitmap_font.h"

static char output[1 << 16];

#define RUN(...) support_run(output, sizeof output, __VA_ARGS__)
#define SMALL "--data %s --layers 42-16-4 --batch-size 32 --epochs 2 --threads 1 --lr 0.02 "

enum { HELD_OUT = 60, TRAINING = 300, HEIGHT = 6, WIDTH = 7 };

/* eval --validation prints what training printed for its validation set; the default is the test set. */
static void validation_part_equals_that_of_training(void **state) {
    (void)state;
    const char *model = support_path("v.safetensors"), *log = support_path("v.jsonl"),
               *evaluated = support_path("e.jsonl"), *page = support_path("e.html");
    cJSON *line;
    assert_int_equal(RUN(SMALL "--validation 60 --save %s --log %s", support_data, model, log), 0);
    assert_int_equal(support_log(log, "epoch", 0, &line), 2);
    const double accuracy = support_number(line, "validation_accuracy"),
                 loss = support_number(line, "validation_loss");
    cJSON_Delete(line);

    assert_int_equal(RUN("eval %s --threads 1 --validation 60 --log %s", model, evaluated), 0);
    assert_says(output, "the last 60 training images");
    assert_says(output, "validation accuracy ");
    assert_null(strstr(output, "test accuracy"));
    assert_null(strstr(output, "test images"));
    assert_null(strstr(output, "warning"));
    assert_int_equal(support_log(evaluated, "evaluation", 0, &line), 1);
    assert_true(support_number(line, "validation_total") == HELD_OUT);
    assert_near(support_number(line, "validation_accuracy"), accuracy, 1e-12);
    assert_near(support_number(line, "loss"), loss, 1e-9);
    assert_null(cJSON_GetObjectItem(line, "test_accuracy"));
    cJSON_Delete(line);
    assert_true(support_log(evaluated, "mistake", 0, &line) > 0);
    assert_true(support_number(line, "image") >= TRAINING - HELD_OUT &&
                support_number(line, "image") < TRAINING); /* indices within the training set */
    cJSON_Delete(line);
    assert_int_equal(RUN("report %s -o %s", evaluated, page), 0);
    size_t size;
    char *text = (char *)support_read(page, &size);
    text[size] = '\0';
    assert_says(text, "validation accuracy ");
    assert_says(text, "of 60 correct");
    free(text);

    setenv("TESSERA_VALIDATION", "60", 1);
    assert_int_equal(RUN("eval %s --threads 1", model), 0);
    unsetenv("TESSERA_VALIDATION");
    assert_says(output, "100 test images");
    assert_says(output, "test accuracy ");
    assert_null(strstr(output, "validation"));
    assert_int_equal(RUN("eval %s --threads 1 --validation 0", model), 0);
    assert_says(output, "100 test images");
}

static void images_that_were_trained_on_are_named(void **state) {
    (void)state;
    const char *model = support_path("s.safetensors"), *other = support_path("o.safetensors"),
               *foreign = support_path("f.safetensors");
    static const float weight[4 * 42], bias[4];
    const struct tensor tensors[] = {
        {.name = "layers.0.weight", .dtype = GEMM_F32, .rank = 2, .shape = {4, 42}, .data = weight},
        {.name = "layers.0.bias", .dtype = GEMM_F32, .rank = 1, .shape = {4}, .data = bias}};
    assert_int_equal(RUN(SMALL "--validation 60 --save %s", support_data, model), 0);
    assert_int_equal(RUN(SMALL "--save %s", support_data, other), 0);
    assert_int_equal(RUN("eval %s %s --validation 60 --threads 1", model, other), 0);
    assert_says(output, "warning: ");
    assert_says(output, "o.safetensors was trained on images that it is asked about: its recipe leaves the "
                        "last 0 training images out, not 60");
    assert_null(strstr(output, "s.safetensors was"));
    assert_int_equal(RUN("eval %s --validation 61 --threads 1 --tta 2", model), 0);
    assert_says(output, "s.safetensors was trained on images that it is asked about");
    assert_int_equal(RUN("eval %s --validation 300 --threads 1", model), 0);
    assert_status(safetensors_write(foreign, tensors, 2, NULL, 0), STATUS_OK);
    assert_int_equal(RUN("eval %s --data %s --validation 60 --threads 1", foreign, support_data), 0);
    assert_says(output, "f.safetensors does not name its training images");

    assert_int_equal(RUN("eval %s --validation 301", model), 2);
    assert_says(output, "has 300 training images");
    assert_int_equal(RUN("eval %s --validation some", model), 2);
    const int exited = RUN("eval %s --validation 60 --target-accuracy 1", model);
    assert_int_equal(exited, strstr(output, "60/60") ? 0 : 6);
    assert_says(output, "validation accuracy");
}

/* The committee of weight averages equals that of training, on both parts. */
static void averages_are_a_committee(void **state) {
    (void)state;
    static const char *const parts[] = {"", "--validation 60"}, *const names[] = {"test", "validation"};
    const char *model = support_path("a.safetensors"), *plain = support_path("p.safetensors"),
               *log = support_path("a.jsonl");
    const char *first = support_path("a-seed1.safetensors"), *second = support_path("a-seed2.safetensors");
    cJSON *all, *line;
    assert_int_equal(RUN(SMALL "--ensemble 2 --ema-decay 0.8 --validation 60 --save %s --log %s",
                         support_data, model, log),
                     0);
    assert_says(output, "of average weights");
    assert_int_equal(support_log(log, "ensemble", 0, &all), 1);
    for (int part = 0; part < 2; part++) {
        const char *evaluated = support_path(part ? "av.jsonl" : "at.jsonl");
        for (int ema = 1; ema >= 0; ema--) {
            char key[64];
            assert_int_equal(RUN("eval %s %s --threads 1 %s %s --log %s", first, second, ema ? "--ema" : "",
                                 parts[part], evaluated),
                             0);
            assert_int_equal(support_log(evaluated, "evaluation", 0, &line), 3);
            const char *prefix = ema ? "ema_" : "";
            snprintf(key, sizeof key, "%s%s_loss", prefix, names[part]);
            assert_near(support_number(line, "loss"), support_number(all, key), 1e-12);
            snprintf(key, sizeof key, "%s%s_accuracy_mean", prefix, names[part]);
            assert_near(support_number(line, key + strlen(prefix)), support_number(all, key), 1e-12);
            assert_true(cJSON_IsTrue(cJSON_GetObjectItem(line, "ema")) == ema);
            cJSON_Delete(line);
        }
    }
    assert_true(support_number(all, "ema_test_loss") != support_number(all, "test_loss"));
    cJSON_Delete(all);
    assert_int_equal(RUN(SMALL "--save %s", support_data, plain), 0);
    assert_int_equal(RUN("eval %s %s --ema --threads 1", first, plain), 2);
    assert_says(output, "p.safetensors' has no moving average of the weights");
}

/* --- the picture --- */

/* 6 columns of images, enlarged 16 times, 12 pixels apart, with two lines of text below each. */
enum {
    ZOOM = 16,
    PAPER = 96,
    INK = 255,
    COLUMN = WIDTH * ZOOM + 12,
    ROW = HEIGHT * ZOOM + 12 + 40,
    STRIDE = 12 + 6 * COLUMN
};

static unsigned char *read_sheet(const char *path, size_t rows) {
    size_t size;
    char head[64];
    const size_t lines = 12 + rows * ROW,
                 start = (size_t)snprintf(head, sizeof head, "P5\n%d %zu\n255\n", STRIDE, lines);
    unsigned char *bytes = support_read(path, &size);
    assert_int_equal(size, start + lines * STRIDE);
    assert_memory_equal(bytes, head, start);
    memmove(bytes, bytes + start, lines * STRIDE);
    return bytes;
}

static void check_place(const unsigned char *sheet, size_t index, const uint8_t *image) {
    const unsigned char *at = sheet + (12 + index / 6 * ROW) * STRIDE + 12 + index % 6 * COLUMN;
    for (size_t y = 0; y < HEIGHT * ZOOM; y++)
        for (size_t x = 0; x < WIDTH * ZOOM; x++)
            assert_int_equal(at[y * STRIDE + x], image ? image[y / ZOOM * WIDTH + x / ZOOM] : PAPER);
    size_t ink = 0;
    for (size_t y = HEIGHT * ZOOM + 4; y < HEIGHT * ZOOM + 46; y++)
        for (size_t x = 0; x < WIDTH * ZOOM; x++) {
            assert_true(at[y * STRIDE + x] == INK || at[y * STRIDE + x] == PAPER);
            ink += at[y * STRIDE + x] == INK;
        }
    assert_true(image ? ink > 200 : ink == 0);
}

/* An untrained network makes many mistakes. No two images of the data set have the same pixels. */
static void mistakes_are_drawn(void **state) {
    (void)state;
    const char *model = support_path("init.safetensors"), *pgm = support_path("m.pgm"),
               *png = support_path("m.png"), *log = support_path("m.jsonl");
    struct dataset_pair data;
    cJSON *line;
    size_t size;
    assert_int_equal(RUN(SMALL "--dry-run --save-init %s", support_data, model), 0);
    for (size_t count = 7; count <= 8; count++) { /* the last mistake of the log is the last of the sheet */
        assert_int_equal(RUN("eval %s --validation 90 --threads 1 --misclassified %zu --picture %s --log %s",
                             model, count, pgm, log),
                         0);
        assert_says(output, "m.pgm: the ");
        assert_int_equal(support_log(log, "mistake", 0, &line), count);
        assert_status(dataset_load(&data, support_data, (struct dataset_options){0}), STATUS_OK);
        const size_t image = (size_t)support_number(line, "image");
        assert_true(image >= 210 && image < TRAINING);
        unsigned char *sheet = read_sheet(pgm, 2);
        check_place(sheet, count - 1, data.train.images + image * HEIGHT * WIDTH);
        check_place(sheet, count, NULL);
        free(sheet);
        dataset_pair_free(&data);
        cJSON_Delete(line);
    }
    assert_int_equal(RUN("eval %s --threads 1 --picture %s", model, png), 0); /* all mistakes */
    assert_null(strstr(output, "prediction, not label)"));
    unsigned char *bytes = support_read(png, &size);
    assert_memory_equal(bytes, "\x89PNG\r\n\x1a\n\0\0\0\rIHDR", 16);
    const size_t lines = (size_t)bytes[22] << 8 | bytes[23];
    size_t shown, found;
    assert_int_equal(
        sscanf(strstr(output, "m.png: the"), "m.png: the %zu most confident of %zu", &shown, &found), 2);
    assert_true(shown == found && found > 12);
    assert_int_equal(lines, 12 + (found + 5) / 6 * ROW);
    free(bytes);
    assert_int_equal(RUN("eval %s --picture m.jpg", model), 2);
    assert_says(output, ".png or a .pgm");
    assert_int_equal(RUN("eval %s --threads 1 --picture /nowhere/m.png", model), 1);
    assert_says(output, "/nowhere/m.png");
}

/* All characters differ, and none exceeds its cell. */
static void letters_are_distinct(void **state) {
    (void)state;
    static const char characters[] = "0123456789#,not ?";
    enum { COUNT = sizeof characters - 1, SIDE = 10, TALL = 14 };
    static uint8_t drawn[COUNT][TALL + 2][SIDE + 4];
    assert_int_equal(font_width(""), 0);
    assert_int_equal(font_height(""), 0);
    assert_int_equal(font_width("7"), SIDE);
    assert_int_equal(font_width("7\n10"), SIDE + 12);
    assert_int_equal(font_height("7\n10"), 2 * font_height("7"));
    for (size_t c = 0; c < COUNT; c++) {
        font_draw(&drawn[c][1][2], SIDE + 4, SIDE, (char[]){characters[c], '\0'});
        for (size_t y = 0; y < TALL + 2; y++)
            for (size_t x = 0; x < SIDE + 4; x++)
                assert_true(drawn[c][y][x] == 0 || (y >= 1 && y <= TALL && x >= 2 && x < SIDE + 2));
        for (size_t other = 0; other < c; other++)
            assert_int_not_equal(memcmp(drawn[c], drawn[other], sizeof drawn[c]), 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(validation_part_equals_that_of_training),
        cmocka_unit_test(images_that_were_trained_on_are_named),
        cmocka_unit_test(averages_are_a_committee),
        cmocka_unit_test(mistakes_are_drawn),
        cmocka_unit_test(letters_are_distinct),
    };
    return cmocka_run_group_tests_name("eval command", tests, support_make_data, NULL);
}
