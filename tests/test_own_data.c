/* Images of one's own: folders of pictures, CSV, the names of EMNIST, names of classes; then the commands
   that train on them, evaluate, convert and predict. */
#include "tests/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "src/data/csv.h"
#include "src/data/idx.h"
#include "src/nn/safetensors.h"

enum { SIDE = 6, PIXELS = SIDE * SIDE };

static char output[1 << 16];

#define RUN(...) support_run(output, sizeof output, __VA_ARGS__)

static const struct dataset_options plain = {0};

static enum status load(struct dataset_pair *pair, const char *source, struct dataset_options options) {
    return dataset_load(pair, source, options);
}

/* --- folders of pictures --- */

static void make_folder(const char *path) {
    assert_true(mkdir(path, 0777) == 0 || access(path, F_OK) == 0);
}

/* A PGM whose bright columns say the class; the corner pixel has `mark`. */
static void write_picture(const char *path, size_t height, size_t width, size_t class, unsigned mark) {
    char file[512];
    const int header = snprintf(file, sizeof file, "P5\n%zu %zu\n255\n", width, height);
    uint8_t *pixels = (uint8_t *)file + header;
    for (size_t i = 0; i < height * width; i++)
        pixels[i] = (uint8_t)(i % width / 2 == class ? 200 + mark % 40 : i * 3 % 50);
    pixels[0] = (uint8_t)mark;
    support_write(path, file, (size_t)header + height * width);
}

/* folder/CLASS/N.pgm for three classes of 10, 20 and 40 pictures; returns its path. */
static const char *const names[] = {"class 2", "class 10", "über"}; /* in natural order */
static const char *make_pictures(const char *name, size_t divisor) {
    static char folder[400];
    char path[600];
    snprintf(folder, sizeof folder, "%s", support_path(name));
    make_folder(folder);
    for (size_t c = 0; c < 3; c++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[c]);
        make_folder(path);
        for (unsigned i = 0; i < (10u << c) / divisor; i++) {
            snprintf(path, sizeof path, "%s/%s/%u.pgm", folder, names[c], i);
            write_picture(path, SIDE, SIDE, c, i);
        }
    }
    return folder;
}

static void write_text(const char *folder, const char *name, const char *text) {
    char path[600];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    support_write(path, text, strlen(text));
}

static void folders_in_natural_order_interleaved(void **state) {
    (void)state;
    struct dataset_pair pair;
    const char *folder = make_pictures("ordered", 1);
    write_text(folder, "notes.txt", "not a picture");
    write_text(folder, "class 2/Thumbs.db", "not a picture");
    write_text(folder, "class 2/.hidden.png", "not a picture");
    assert_status(load(&pair, folder, plain), STATUS_OK);
    assert_true(pair.train.count == 70 && pair.test.count == 0 && pair.test.height == SIDE);
    assert_int_equal(pair.train.classes, 3);
    assert_int_equal(pair.classes.count, 3);
    unsigned next[3] = {0};
    for (size_t c = 0; c < 3; c++) assert_string_equal(pair.classes.name[c], names[c]);
    for (size_t i = 0; i < 70; i++) { /* files in natural order: 2 before 10 */
        assert_int_equal(pair.train.images[i * PIXELS], next[pair.train.labels[i]]++);
        assert_true(pair.train.images[i * PIXELS + SIDE + 2 * pair.train.labels[i]] >= 200);
    }
    const struct dataset tail = dataset_split(&pair.train, 7); /* one in ten of each class */
    size_t counts[3] = {0};
    for (size_t i = 0; i < 7; i++) counts[tail.labels[i]]++;
    assert_true(counts[0] == 1 && counts[1] == 2 && counts[2] == 4);
    pair.train.count += 7;
    dataset_pair_free(&pair);
    write_text(folder, "classes.txt", "über\nclass 10 \r\nclass 2\n\n"); /* another order */
    assert_status(load(&pair, folder, plain), STATUS_OK);
    assert_string_equal(pair.classes.name[0], "über");
    assert_true(pair.train.images[SIDE + 2 * (2 - pair.train.labels[0])] >= 200);
    dataset_pair_free(&pair);
    write_text(folder, "classes.txt", "über\nclass 10\n");
    assert_status(load(&pair, folder, plain), STATUS_BAD_DATA);
    assert_says(status_message(), "class 2' is not one of the 2 classes");
}

static void train_and_test_folders(void **state) {
    (void)state;
    struct dataset_pair pair;
    const char *folder = support_path("split");
    make_folder(folder);
    make_pictures("split/train", 1);
    make_pictures("split/val", 5);
    assert_status(load(&pair, folder, plain), STATUS_OK);
    assert_true(pair.train.count == 70 && pair.test.count == 14 && pair.test.classes == 3);
    dataset_pair_free(&pair);
    assert_status(load(&pair, folder, (struct dataset_options){.parts = DATASET_TEST_ONLY}), STATUS_OK);
    assert_true(pair.train.count == 0 && pair.test.count == 14);
    dataset_pair_free(&pair);
    make_folder(support_path("split/val/other"));
    write_picture(support_path("split/val/other/1.pgm"), SIDE, SIDE, 0, 1);
    assert_status(load(&pair, folder, plain), STATUS_BAD_DATA);
    assert_says(status_message(), "val/other' is not one of the 3 classes");
}

static void pictures_of_several_sizes(void **state) {
    (void)state;
    struct dataset_pair pair;
    const char *folder = make_pictures("sizes", 1);
    char path[600];
    snprintf(path, sizeof path, "%s/%s/40.pgm", folder, names[2]);
    write_picture(path, 9, 4, 0, 0);
    assert_status(load(&pair, folder, plain), STATUS_BAD_DATA);
    assert_says(status_message(), "9 x 4 pixels");
    assert_says(status_message(), "--input-size 28");
    assert_status(load(&pair, folder, (struct dataset_options){.side = 8}), STATUS_OK);
    assert_true(pair.train.count == 71 && pair.train.height == 8 && pair.train.width == 8);
    dataset_pair_free(&pair);
    assert_status(load(&pair, folder, (struct dataset_options){.side = 14, .like_mnist = true}), STATUS_OK);
    assert_true(pair.train.height == 14);
    dataset_pair_free(&pair);
    write_text(folder, "class 2/0.pgm", "P5\n2 2\n255\nxy");
    assert_status(load(&pair, folder, plain), STATUS_BAD_DATA);
    assert_says(status_message(), "class 2/0.pgm");
    make_folder(support_path("sizes/empty"));
    assert_status(load(&pair, folder, plain), STATUS_BAD_DATA);
    assert_says(status_message(), "has no .png, .jpg or .pgm files");
}

static void names_must_be_printable(void **state) {
    (void)state;
    static const struct {
        const char *name;
        enum status wanted;
    } cases[] = {
        {"7", STATUS_OK},
        {"  cat\r\n", STATUS_OK},
        {"Zürich \xe2\x82\xac", STATUS_OK},
        {"", STATUS_BAD_DATA},
        {" \t ", STATUS_BAD_DATA},
        {"a\x1b[31mb", STATUS_BAD_DATA},
        {"a\nb", STATUS_BAD_DATA},
        {"\x7f", STATUS_BAD_DATA},
        {"a\xff", STATUS_BAD_DATA},
        {"\xc0\xaf", STATUS_BAD_DATA},
        {"\xc2\x9b"
         "31m",
         STATUS_BAD_DATA},
        {"\xe2\x80\xaegnp.exe", STATUS_BAD_DATA},
        {"\xe2\x81\xa6", STATUS_BAD_DATA},
        {"\xed\xa0\x80", STATUS_BAD_DATA},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct class_names one = {0};
        assert_status(classes_add(&one, cases[i].name, "test"), cases[i].wanted);
        assert_int_equal(one.count, cases[i].wanted == STATUS_OK);
    }
    static struct class_names many;
    char name[80];
    memset(name, 'x', sizeof name);
    name[64] = '\0';
    assert_status(classes_add(&many, name, "test"), STATUS_BAD_DATA);
    name[63] = '\0';
    assert_status(classes_add(&many, name, "test"), STATUS_OK);
    assert_status(classes_add(&many, name, "test"), STATUS_BAD_DATA);
    assert_says(status_message(), "two classes");
    for (int i = 1; i < DATASET_MAX_CLASSES; i++) {
        snprintf(name, sizeof name, "%d", i);
        assert_status(classes_add(&many, name, "test"), STATUS_OK);
    }
    assert_status(classes_add(&many, "one more", "test"), STATUS_BAD_DATA);
    static char text[CLASSES_TEXT + 1];
    static struct class_names again;
    classes_text(&many, text);
    assert_status(classes_parse(&again, text, "test"), STATUS_OK);
    assert_memory_equal(&again, &many, sizeof many);
}

/* --- CSV --- */

static void csv_of_every_kind(void **state) {
    (void)state;
    static const char *const texts[] = {
        "3,1,2,3,4\n0,5,6,7,255\n",
        "\xef\xbb\xbflabel,pixel0,pixel1,pixel2,pixel3\r\n3,1,2,3,4\r\n\r\n0,5,6,7,255",
        "\"label\",\"1x1\",\"1x2\",\"2x1\",\"2x2\"\n\"3\",\"1\",2,3.0,4.\n0, 5 ,6,7,255.000\n",
        "a,b,Class,c,d\n1,2,3,3,4\n5,6,0,7,255\n",
    };
    struct dataset set;
    const char *path = support_path("kind.csv");
    for (size_t i = 0; i < 2 * sizeof texts / sizeof *texts; i++) {
        const char *text = texts[i / 2];
        if (i % 2) {
            gzFile file = gzopen(path, "wb");
            assert_int_equal(gzwrite(file, text, (unsigned)strlen(text)), strlen(text));
            assert_int_equal(gzclose(file), Z_OK);
        } else {
            support_write(path, text, strlen(text));
        }
        assert_status(csv_read(&set, path, 0), STATUS_OK);
        assert_true(set.count == 2 && set.height == 2 && set.width == 2);
        assert_memory_equal(set.labels, ((uint8_t[]){3, 0}), 2);
        assert_memory_equal(set.images, ((uint8_t[]){1, 2, 3, 4, 5, 6, 7, 255}), 8);
        dataset_free(&set);
    }
    support_write(path, "1,2,3,4\n", 8); /* no label; then a row of three pixels */
    assert_status(csv_read(&set, path, 4), STATUS_OK);
    assert_true(set.height == 2 && set.images[0] == 1 && set.labels[0] == 0);
    dataset_free(&set);
    assert_status(csv_read(&set, path, 0), STATUS_OK);
    assert_true(set.height == 1 && set.width == 3 && set.labels[0] == 1);
    dataset_free(&set);
}

static void bad_csv_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"", "there are no images"},
        {"label,a\n", "there are no images"},
        {"7\n", "expected a label and the pixels"},
        {"\n\n1,2\n1,2,3\n", ":4: 3 columns, but the first row has 2"},
        {"1,2\n1\n", ":2: 1 columns"},
        {"1,2\n1,\n", "column 2, the pixel, is ''"},
        {"1,2\n256,1\n", "column 1, the label, is '256'"},
        {"1,2\n1,-1\n", "'-1'"},
        {"1,2\n1,0.5\n", "'0.5'"},
        {"1,2\n1,99999999999999999999\n", "whole number from 0 to 255"},
        {"1,2\n1,0x10\n", "'0x10'"},
        {"1,2\n1,\x1b[2J\n", "is '?'"},
        {"1e1,2\n", "a header has no numbers"},
        {"l,p\nl,p\n", ":2: column 1"},
    };
    struct dataset set;
    const char *path = support_path("bad.csv");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        support_write(path, cases[i].text, strlen(cases[i].text));
        assert_status(csv_read(&set, path, 0), STATUS_BAD_DATA);
        if (strcmp(cases[i].text, "1e1,2\n") != 0) assert_says(status_message(), cases[i].says);
        assert_says(status_message(), path);
        assert_true(!set.images && !set.labels);
    }
    support_write(path, "1,2\0,3\n", 7);
    assert_status(csv_read(&set, path, 0), STATUS_BAD_DATA);
    assert_says(status_message(), "a zero byte");
    const size_t length = (1 << 25) + 10; /* one line without end */
    char *line = malloc(length);
    assert_non_null(line);
    memset(line, '1', length);
    support_write(path, line, length);
    free(line);
    assert_status(csv_read(&set, path, 0), STATUS_BAD_DATA);
    assert_says(status_message(), "too long");
}

static void csv_files_of_a_directory(void **state) {
    (void)state;
    struct dataset_pair pair;
    const char *folder = support_path("csv");
    make_folder(folder);
    write_text(folder, "fashion-mnist_train.csv", "label,a,b,c,d\n1,1,2,3,4\n0,5,6,7,8\n1,1,1,1,1\n");
    assert_status(load(&pair, folder, plain), STATUS_OK);
    assert_true(pair.train.count == 3 && pair.test.count == 0 && pair.train.classes == 2);
    dataset_pair_free(&pair);
    write_text(folder, "fashion-mnist_test.csv", "label,a,b,c,d\n1,1,2,3,4\n");
    write_text(folder, "classes.txt", "coat\nshoe\n");
    assert_status(load(&pair, folder, plain), STATUS_OK);
    assert_true(pair.train.count == 3 && pair.test.count == 1 && pair.classes.count == 2);
    dataset_pair_free(&pair);
    write_text(folder, "classes.txt", "coat\n");
    assert_status(load(&pair, folder, plain), STATUS_BAD_DATA);
    assert_says(status_message(), "--label-offset 1");
    write_text(folder, "fashion-mnist_test.csv", "a,b,c,d\n1,2,3,4\n"); /* Kaggle's */
    assert_status(load(&pair, folder, plain), STATUS_BAD_DATA);
    assert_says(status_message(), "has no labels");
    assert_says(status_message(), "predict");
}

/* --- the names of EMNIST --- */

static void write_emnist(const char *folder, const char *set, const char *part) {
    char path[600];
    static const uint8_t images[2 * 6] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, labels[] = {2, 1};
    snprintf(path, sizeof path, "%s/%s-%s-images-idx3-ubyte", folder, set, part);
    support_write_idx(path, 3, (uint32_t[]){2, 2, 3}, images, 12);
    snprintf(path, sizeof path, "%s/%s-%s-labels-idx1-ubyte", folder, set, part);
    support_write_idx(path, 1, (uint32_t[]){2}, labels, 2);
}

static void emnist_is_transposed_and_named(void **state) {
    (void)state;
    struct dataset_pair pair;
    char source[400];
    const char *folder = support_path("gzip");
    const struct dataset_options first = {.label_offset = 1};
    make_folder(folder);
    write_emnist(folder, "emnist-letters", "train");
    write_emnist(folder, "emnist-letters", "test");
    assert_status(load(&pair, folder, first), STATUS_OK);
    assert_true(pair.train.height == 3 && pair.train.width == 2 && pair.train.classes == 2);
    assert_memory_equal(pair.test.images, ((uint8_t[]){1, 4, 2, 5, 3, 6, 7, 10, 8, 11, 9, 12}), 12);
    assert_memory_equal(pair.test.labels, ((uint8_t[]){1, 0}), 2);
    assert_string_equal(pair.classes.name[1], "2"); /* its label in the file */
    dataset_pair_free(&pair);
    write_text(folder, "emnist-letters-mapping.txt", "1 65 97\n2 66 98\n");
    assert_status(load(&pair, folder, first), STATUS_OK);
    assert_string_equal(pair.classes.name[1], "Bb");
    dataset_pair_free(&pair);
    assert_status(load(&pair, folder, (struct dataset_options){.transpose = TRANSPOSE_OFF}), STATUS_BAD_DATA);
    assert_says(status_message(), "--label-offset 1");
    assert_status(
        load(&pair, folder, (struct dataset_options){.transpose = TRANSPOSE_OFF, .label_offset = 1}),
        STATUS_OK);
    assert_int_equal(pair.train.height, 2);
    dataset_pair_free(&pair);
    assert_status(load(&pair, folder, (struct dataset_options){.label_offset = 2}), STATUS_BAD_DATA);
    assert_says(status_message(), "less than label-offset 2");
    write_emnist(folder, "emnist-digits", "train");
    assert_status(load(&pair, folder, first), STATUS_BAD_DATA);
    assert_says(status_message(), "gzip/emnist-digits");
    snprintf(source, sizeof source, "%s/emnist-letters", folder);
    assert_status(load(&pair, source, first), STATUS_OK);
    assert_int_equal(dataset_files(source).count, 4);
    dataset_pair_free(&pair);
    write_text(folder, "emnist-letters-mapping.txt", "1 27\n2 66\n");
    assert_status(load(&pair, source, first), STATUS_BAD_DATA);
    assert_says(status_message(), "'27'");
}

static void classes_are_found_by_name(void **state) {
    (void)state;
    struct dataset_pair pair;
    static struct class_names own;
    const char *folder = make_pictures("adopt", 1);
    assert_status(classes_parse(&own, "other\nüber\nclass 2\nclass 10\n", "test"), STATUS_OK);
    assert_status(load(&pair, folder, plain), STATUS_OK);
    assert_status(dataset_adopt_classes(&pair, &own), STATUS_OK);
    for (size_t i = 0; i < 70; i++) {
        const size_t before = (size_t)(pair.train.labels[i] + 1) % 3; /* 1, 2, 3 were 2, 0, 1 */
        assert_true(pair.train.images[i * PIXELS + SIDE + 2 * before] >= 200);
    }
    assert_int_equal(pair.classes.count, 4);
    assert_status(classes_parse(&own, "über\nclass 10\n", "test"), STATUS_OK);
    assert_status(dataset_adopt_classes(&pair, &own), STATUS_BAD_DATA);
    assert_says(status_message(), "which the checkpoint does not know");
    dataset_pair_free(&pair);
}

/* --- the commands --- */

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

    assert_int_equal(RUN("predict %s '%s/%s/3.pgm' '%s/%s/4.pgm'", model, folder, names[2], folder, names[0]),
                     0);
    assert_says(output, "3.pgm     2 über            9");
    assert_says(output, "4.pgm  0 class 2");
    assert_int_equal(RUN("predict %s --csv - < '%s/%s/3.pgm'", model, folder, names[1]), 0);
    assert_says(output, "file,image,class,name,probability,class_2,");
    assert_says(output, "\n-,0,1,class 10,0.9");

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
    assert_status(load(&own, folder, plain), STATUS_OK);
    assert_status(load(&converted, made, plain), STATUS_OK);
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
        cmocka_unit_test(folders_in_natural_order_interleaved),
        cmocka_unit_test(train_and_test_folders),
        cmocka_unit_test(pictures_of_several_sizes),
        cmocka_unit_test(names_must_be_printable),
        cmocka_unit_test(csv_of_every_kind),
        cmocka_unit_test(bad_csv_is_refused),
        cmocka_unit_test(csv_files_of_a_directory),
        cmocka_unit_test(emnist_is_transposed_and_named),
        cmocka_unit_test(classes_are_found_by_name),
        cmocka_unit_test(train_evaluate_predict),
        cmocka_unit_test(convert_and_draw),
        cmocka_unit_test(predict_reads_and_fits),
        cmocka_unit_test(names_of_a_checkpoint_are_data),
    };
    return cmocka_run_group_tests_name("own data", tests, support_make_data, NULL);
}
