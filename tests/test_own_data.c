/* Images of one's own: folders of pictures, names of classes, the files of EMNIST. */
#include "tests/own_pictures.h"

#include <stdio.h>

static const struct dataset_options plain = {0};

/* --- folders of pictures --- */

static void folders_in_natural_order_interleaved(void **state) {
    (void)state;
    struct dataset_pair pair;
    const char *folder = make_pictures("ordered", 1);
    write_text(folder, "notes.txt", "not a picture");
    write_text(folder, "class 2/Thumbs.db", "not a picture");
    write_text(folder, "class 2/.hidden.png", "not a picture");
    assert_status(dataset_load(&pair, folder, plain), STATUS_OK);
    assert_true(pair.train.count == 70 && pair.test.count == 0 && pair.test.height == SIDE);
    assert_int_equal(pair.train.classes, 3);
    assert_int_equal(pair.classes.count, 3);
    unsigned next[3] = {0};
    for (size_t c = 0; c < 3; c++) assert_string_equal(pair.classes.name[c], picture_classes[c]);
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
    assert_status(dataset_load(&pair, folder, plain), STATUS_OK);
    assert_string_equal(pair.classes.name[0], "über");
    assert_true(pair.train.images[SIDE + 2 * (2 - pair.train.labels[0])] >= 200);
    dataset_pair_free(&pair);
    write_text(folder, "classes.txt", "über\nclass 10\n");
    assert_status(dataset_load(&pair, folder, plain), STATUS_BAD_DATA);
    assert_says(status_message(), "class 2' is not one of the 2 classes");
}

static void train_and_test_folders(void **state) {
    (void)state;
    struct dataset_pair pair;
    const char *folder = support_path("split");
    make_folder(folder);
    make_pictures("split/train", 1);
    make_pictures("split/val", 5);
    assert_status(dataset_load(&pair, folder, plain), STATUS_OK);
    assert_true(pair.train.count == 70 && pair.test.count == 14 && pair.test.classes == 3);
    dataset_pair_free(&pair);
    assert_status(dataset_load(&pair, folder, (struct dataset_options){.parts = DATASET_TEST_ONLY}),
                  STATUS_OK);
    assert_true(pair.train.count == 0 && pair.test.count == 14);
    dataset_pair_free(&pair);
    make_folder(support_path("split/val/other"));
    write_picture(support_path("split/val/other/1.pgm"), SIDE, SIDE, 0, 1);
    assert_status(dataset_load(&pair, folder, plain), STATUS_BAD_DATA);
    assert_says(status_message(), "val/other' is not one of the 3 classes");
}

static void pictures_of_several_sizes(void **state) {
    (void)state;
    struct dataset_pair pair;
    const char *folder = make_pictures("sizes", 1);
    char path[600];
    snprintf(path, sizeof path, "%s/%s/40.pgm", folder, picture_classes[2]);
    write_picture(path, 9, 4, 0, 0);
    assert_status(dataset_load(&pair, folder, plain), STATUS_BAD_DATA);
    assert_says(status_message(), "9 x 4 pixels");
    assert_says(status_message(), "--input-size 28");
    assert_status(dataset_load(&pair, folder, (struct dataset_options){.side = 8}), STATUS_OK);
    assert_true(pair.train.count == 71 && pair.train.height == 8 && pair.train.width == 8);
    dataset_pair_free(&pair);
    assert_status(dataset_load(&pair, folder, (struct dataset_options){.side = 14, .like_mnist = true}),
                  STATUS_OK);
    assert_true(pair.train.height == 14);
    dataset_pair_free(&pair);
    write_text(folder, "class 2/0.pgm", "P5\n2 2\n255\nxy");
    assert_status(dataset_load(&pair, folder, plain), STATUS_BAD_DATA);
    assert_says(status_message(), "class 2/0.pgm");
    make_folder(support_path("sizes/empty"));
    assert_status(dataset_load(&pair, folder, plain), STATUS_BAD_DATA);
    assert_says(status_message(), "has no .png, .jpg or .pgm files");
}

static void classes_are_found_by_name(void **state) {
    (void)state;
    struct dataset_pair pair;
    static struct class_names own;
    const char *folder = make_pictures("adopt", 1);
    assert_status(classes_parse(&own, "other\nüber\nclass 2\nclass 10\n", "test"), STATUS_OK);
    assert_status(dataset_load(&pair, folder, plain), STATUS_OK);
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
    assert_status(dataset_load(&pair, folder, first), STATUS_OK);
    assert_true(pair.train.height == 3 && pair.train.width == 2 && pair.train.classes == 2);
    assert_memory_equal(pair.test.images, ((uint8_t[]){1, 4, 2, 5, 3, 6, 7, 10, 8, 11, 9, 12}), 12);
    assert_memory_equal(pair.test.labels, ((uint8_t[]){1, 0}), 2);
    assert_string_equal(pair.classes.name[1], "2"); /* its label in the file */
    dataset_pair_free(&pair);
    write_text(folder, "emnist-letters-mapping.txt", "1 65 97\n2 66 98\n");
    assert_status(dataset_load(&pair, folder, first), STATUS_OK);
    assert_string_equal(pair.classes.name[1], "Bb");
    dataset_pair_free(&pair);
    assert_status(dataset_load(&pair, folder, (struct dataset_options){.transpose = TRANSPOSE_OFF}),
                  STATUS_BAD_DATA);
    assert_says(status_message(), "--label-offset 1");
    assert_status(
        dataset_load(&pair, folder, (struct dataset_options){.transpose = TRANSPOSE_OFF, .label_offset = 1}),
        STATUS_OK);
    assert_int_equal(pair.train.height, 2);
    dataset_pair_free(&pair);
    assert_status(dataset_load(&pair, folder, (struct dataset_options){.label_offset = 2}), STATUS_BAD_DATA);
    assert_says(status_message(), "less than label-offset 2");
    write_emnist(folder, "emnist-digits", "train");
    assert_status(dataset_load(&pair, folder, first), STATUS_BAD_DATA);
    assert_says(status_message(), "gzip/emnist-digits");
    snprintf(source, sizeof source, "%s/emnist-letters", folder);
    assert_status(dataset_load(&pair, source, first), STATUS_OK);
    assert_int_equal(dataset_files(source).count, 4);
    dataset_pair_free(&pair);
    write_text(folder, "emnist-letters-mapping.txt", "1 27\n2 66\n");
    assert_status(dataset_load(&pair, source, first), STATUS_BAD_DATA);
    assert_says(status_message(), "'27'");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(folders_in_natural_order_interleaved),
        cmocka_unit_test(train_and_test_folders),
        cmocka_unit_test(pictures_of_several_sizes),
        cmocka_unit_test(names_must_be_printable),
        cmocka_unit_test(emnist_is_transposed_and_named),
        cmocka_unit_test(classes_are_found_by_name),
    };
    return cmocka_run_group_tests_name("own data", tests, NULL, NULL);
}
