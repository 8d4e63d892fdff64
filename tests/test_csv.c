/* CSV files of images: with and without a header, labels and quotes; those that are refused. */
#include "tests/own_pictures.h"

#include <stdio.h>
#include <stdlib.h>
#include <zlib.h>

#include "src/data/csv.h"

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

static void truncated_gzip_is_refused(void **state) {
    (void)state;
    static const char text[] = "3,1,2,3,4\n0,5,6,7,255\n";
    struct dataset set;
    size_t size;
    const char *path = support_path("truncated.csv.gz");
    gzFile file = gzopen(path, "wb");
    assert_int_equal(gzwrite(file, text, sizeof text - 1), sizeof text - 1);
    assert_int_equal(gzclose(file), Z_OK);
    unsigned char *bytes = support_read(path, &size);
    support_write(path, bytes, size - 8); /* all rows, but not the checksum behind them */
    free(bytes);
    assert_status(csv_read(&set, path, 0), STATUS_BAD_DATA);
    assert_says(status_message(), "corrupted or truncated");
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
        {"1e1,2\n", ":1: column 1, the label, is '1e1'"},
        {"1,1e3\n", "(a header has no numbers)"},
        {"l,p\nl,p\n", ":2: column 1"},
    };
    struct dataset set;
    const char *path = support_path("bad.csv");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        support_write(path, cases[i].text, strlen(cases[i].text));
        assert_status(csv_read(&set, path, 0), STATUS_BAD_DATA);
        assert_says(status_message(), cases[i].says);
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
    assert_status(dataset_load(&pair, folder, (struct dataset_options){0}), STATUS_OK);
    assert_true(pair.train.count == 3 && pair.test.count == 0 && pair.train.classes == 2);
    dataset_pair_free(&pair);
    write_text(folder, "fashion-mnist_test.csv", "label,a,b,c,d\n1,1,2,3,4\n");
    write_text(folder, "classes.txt", "coat\nshoe\n");
    assert_status(dataset_load(&pair, folder, (struct dataset_options){0}), STATUS_OK);
    assert_true(pair.train.count == 3 && pair.test.count == 1 && pair.classes.count == 2);
    dataset_pair_free(&pair);
    write_text(folder, "classes.txt", "coat\n");
    assert_status(dataset_load(&pair, folder, (struct dataset_options){0}), STATUS_BAD_DATA);
    assert_says(status_message(), "--label-offset 1");
    write_text(folder, "fashion-mnist_test.csv", "a,b,c,d\n1,2,3,4\n"); /* Kaggle's */
    assert_status(dataset_load(&pair, folder, (struct dataset_options){0}), STATUS_BAD_DATA);
    assert_says(status_message(), "has no labels");
    assert_says(status_message(), "predict");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(csv_of_every_kind),
        cmocka_unit_test(truncated_gzip_is_refused),
        cmocka_unit_test(bad_csv_is_refused),
        cmocka_unit_test(csv_files_of_a_directory),
    };
    return cmocka_run_group_tests_name("CSV", tests, NULL, NULL);
}
