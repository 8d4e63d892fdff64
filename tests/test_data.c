/* Data sets: the IDX reader on valid, damaged and hostile files, and the synthetic digits. */
#include "tests/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "src/data/dataset_loading.h"
#include "src/data/idx.h"

static void write_gzip(const char *path, const void *bytes, size_t count) {
    gzFile file = gzopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(gzwrite(file, bytes, (unsigned)count), count);
    assert_int_equal(gzclose(file), Z_OK);
}

static const uint8_t good_labels[] = {0, 0, 8, 1, 0, 0, 0, 3, 5, 0, 9};

static void raw_and_gzip_by_content(void **state) {
    (void)state;
    struct idx idx;
    const char *raw = support_path("misnamed.gz"), *packed = support_path("misnamed");
    support_write(raw, good_labels, sizeof good_labels);
    write_gzip(packed, good_labels, sizeof good_labels);
    for (int i = 0; i < 2; i++) {
        assert_status(idx_read(&idx, i ? packed : raw, 1), STATUS_OK);
        assert_true(idx.dim[0] == 3 && idx.values[0] == 5 && idx.values[2] == 9);
        free(idx.values);
    }
}

struct bad_file {
    const char *bytes;
    size_t count, rank;
    const char *says;
};

#define BYTES(text) text, sizeof(text) - 1
static const struct bad_file bad_files[] = {
    {BYTES(""), 1, "empty"},
    {BYTES("\0\0\10"), 1, "truncated"},
    {BYTES("\0\0\10\1\0\0"), 1, "truncated"},
    {BYTES("\0\0\10\1\0\0\0\3\5\0"), 1, "more than a file of"},
    {BYTES("\0\0\10\1\0\0\0\3\5\0\1\1"), 1, "continues after"},
    {BYTES("\0\0\10\3\0\0\0\1\0\0\0\1\0\0\0\1\5"), 1, "swapped"},
    {BYTES("\0\0\10\1\0\0\0\3\5\0\1"), 3, "swapped"},
    {BYTES("\0\0\10\2\0\0\0\1\0\0\0\1\5"), 1, "2 dimensions"},
    {BYTES("\0\0\15\1\0\0\0\1\0\0\0\0"), 1, "type 0x0d"},
    {BYTES("\0\0\10\1\0\0\0\0"), 1, "there are no labels"},
    {BYTES("\0\0\10\3\377\377\377\377\377\377\377\377\377\377\377\377"), 3, "overflow"},
    {BYTES("\0\0\10\3\0\377\377\377\0\377\377\377\0\0\377\377"), 3, "more than a file of"},
    {BYTES("<!DOCTYPE html><html>"), 1, "HTML page"},
    {BYTES("PNG or whatever"), 1, "not an IDX file"},
};

static void bad_files_are_refused(void **state) {
    (void)state;
    const char *path = support_path("bad");
    for (size_t i = 0; i < sizeof bad_files / sizeof *bad_files; i++) {
        struct idx idx;
        support_write(path, bad_files[i].bytes, bad_files[i].count);
        assert_status(idx_read(&idx, path, bad_files[i].rank), STATUS_BAD_DATA);
        assert_says(status_message(), bad_files[i].says);
        assert_says(status_message(), path);
        if (bad_files[i].count == 0) continue;
        write_gzip(path, bad_files[i].bytes, bad_files[i].count); /* the same inside gzip */
        assert_status(idx_read(&idx, path, bad_files[i].rank), STATUS_BAD_DATA);
    }
}

/* Every possible truncation of a gzip file, and every flipped byte: never a success with wrong values. */
static void damaged_gzip(void **state) {
    (void)state;
    const char *path = support_path("damaged.gz");
    size_t count;
    struct idx idx;
    uint8_t labels[8 + 500] = {0, 0, 8, 1, 0, 0, 1, 0xf4};
    for (size_t i = 8; i < sizeof labels; i++) labels[i] = (uint8_t)(i * i % 10);
    write_gzip(path, labels, sizeof labels);
    unsigned char *bytes = support_read(path, &count);
    for (size_t cut = 0; cut < count; cut++) {
        support_write(path, bytes, cut);
        assert_status(idx_read(&idx, path, 1), STATUS_BAD_DATA);
    }
    for (size_t at = 0; at < count; at++) {
        bytes[at] ^= 0x55;
        support_write(path, bytes, count);
        if (idx_read(&idx, path, 1) == STATUS_OK) { /* an unused field of the gzip header */
            assert_memory_equal(idx.values, labels + 8, 500);
            free(idx.values);
        }
        bytes[at] ^= 0x55;
    }
    free(bytes);
}

/* The checksum is behind the last value. */
static void wrong_checksum(void **state) {
    (void)state;
    static uint8_t labels[8 + 0x50000] = {0, 0, 8, 1, 0, 5, 0, 0}; /* more than zlib's buffer */
    const char *path = support_path("checksum.gz");
    size_t count;
    struct idx idx;
    write_gzip(path, labels, sizeof labels);
    unsigned char *bytes = support_read(path, &count);
    bytes[count - 6] ^= 0x55;
    support_write(path, bytes, count);
    free(bytes);
    assert_status(idx_read(&idx, path, 1), STATUS_BAD_DATA);
    assert_says(status_message(), "the gzip data are corrupted (incorrect data check)");
}

/* On a thread of its own: the same data, the same error. */
static void loading_goes_on_aside(void **state) {
    (void)state;
    struct dataset_pair pair, aside;
    const struct dataset_options options = {.label_offset = 0};
    const char *directory = support_data_directory("aside", 30, 20, 3, 5, 4);
    assert_status(dataset_load(&pair, directory, options), STATUS_OK);
    struct dataset_loading *loading = dataset_loading_begin(directory, options);
    assert_non_null(loading);
    assert_status(dataset_loading_end(loading, &aside), STATUS_OK);
    assert_string_equal(aside.name, pair.name);
    assert_int_equal(aside.train.count, 30);
    assert_memory_equal(aside.train.images, pair.train.images, 30 * 3 * 5);
    assert_memory_equal(aside.test.labels, pair.test.labels, 20);
    dataset_pair_free(&pair);
    dataset_pair_free(&aside);
    status_write("another message");
    loading = dataset_loading_begin(support_path("nowhere"), options);
    assert_status(dataset_loading_end(loading, &aside), STATUS_BAD_DATA);
    assert_says(status_message(), "nowhere': No such file");
    assert_null(aside.train.images);
}

static void directories_and_spellings(void **state) {
    (void)state;
    static const char *const endings[] = {"-idx3-ubyte", ".idx3-ubyte", "-idx3-ubyte.gz", ".idx3-ubyte.gz"};
    struct dataset_pair pair;
    const char *directory = support_data_directory("spelled", 30, 20, 3, 5, 4);
    char from[400], to[400];
    snprintf(from, sizeof from, "%s/train-images-idx3-ubyte", directory);
    for (size_t i = 0; i < 4; i++) {
        snprintf(to, sizeof to, "%s/train-images%s", directory, endings[i]);
        assert_int_equal(rename(from, to), 0);
        memcpy(from, to, sizeof from);
        assert_status(dataset_load(&pair, directory, (struct dataset_options){0}), STATUS_OK);
        assert_true(pair.train.count == 30 && pair.test.count == 20 && pair.train.height == 3 &&
                    pair.train.width == 5);
        assert_int_equal(pair.train.classes, 4);
        assert_string_equal(pair.name, directory);
        dataset_pair_free(&pair);
    }
    unlink(from);
    assert_status(dataset_load(&pair, directory, (struct dataset_options){0}), STATUS_BAD_DATA);
    assert_says(status_message(), "has no train-images-idx3-ubyte");
    assert_status(dataset_load(&pair, support_path("nowhere"), (struct dataset_options){0}), STATUS_BAD_DATA);
    assert_says(status_message(), "No such file");
    assert_null(strstr(status_message(), "fetch.sh"));
    support_write(support_path("a-file"), "x", 1);
    assert_status(dataset_load(&pair, support_path("a-file"), (struct dataset_options){0}), STATUS_BAD_DATA);
    assert_says(status_message(), "not a directory");
}

static void counts_must_agree(void **state) {
    (void)state;
    struct dataset_pair pair;
    char path[400];
    const char *directory = support_data_directory("counts", 30, 20, 3, 5, 4);
    snprintf(path, sizeof path, "%s/train-labels-idx1-ubyte", directory);
    support_write_idx(path, 1, (uint32_t[]){3}, (uint8_t[]){1, 2, 3}, 3);
    assert_status(dataset_load(&pair, directory, (struct dataset_options){0}), STATUS_BAD_DATA);
    assert_says(status_message(), "30 images");
    assert_says(status_message(), "3 labels");
}

static void sizes_must_agree(void **state) {
    (void)state;
    struct dataset_pair pair;
    char path[400];
    const char *directory = support_data_directory("sizes", 30, 20, 3, 5, 4);
    snprintf(path, sizeof path, "%s/t10k-images-idx3-ubyte", directory);
    uint8_t *pixels = calloc(20 * 16, 1);
    support_write_idx(path, 3, (uint32_t[]){20, 4, 4}, pixels, 20 * 16);
    free(pixels);
    assert_status(dataset_load(&pair, directory, (struct dataset_options){0}), STATUS_BAD_DATA);
    assert_says(status_message(), "3x5");
}

static void split_takes_the_end(void **state) {
    (void)state;
    struct dataset_pair pair;
    support_builtin_data(&pair);
    struct dataset train = pair.train;
    const struct dataset tail = dataset_split(&train, 8);
    assert_true(train.count == 42 && tail.count == 8);
    assert_ptr_equal(tail.images, pair.train.images + 42 * 42);
    assert_ptr_equal(tail.labels, pair.train.labels + 42);
    dataset_pair_free(&pair);
}

static void synthetic_is_a_function_of_the_index(void **state) {
    (void)state;
    struct dataset whole, part, other;
    assert_status(dataset_synthesize(&whole, 300, 1, 100), STATUS_OK);
    assert_status(dataset_synthesize(&part, 50, 1, 200), STATUS_OK);
    assert_status(dataset_synthesize(&other, 300, 2, 100), STATUS_OK);
    const size_t pixels = SYNTHETIC_SIDE * SYNTHETIC_SIDE;
    assert_memory_equal(whole.images + 100 * pixels, part.images, 50 * pixels);
    assert_memory_equal(whole.labels + 100, part.labels, 50);
    assert_true(memcmp(whole.images, other.images, pixels) != 0);
    unsigned counts[10] = {0};
    for (size_t i = 0; i < whole.count; i++) {
        size_t ink = 0;
        for (size_t p = 0; p < pixels; p++) ink += whole.images[i * pixels + p];
        assert_true(ink > 20 * 255 && ink < 300 * 255); /* neither empty nor a blot */
        counts[whole.labels[i]]++;
    }
    for (int c = 0; c < 10; c++) assert_int_equal(counts[c], 30);
    dataset_free(&whole);
    dataset_free(&part);
    dataset_free(&other);
}

/* The nearest class mean is right far more often than chance (10 %), so the labels fit the images. */
static void synthetic_digits_are_learnable(void **state) {
    (void)state;
    enum { COUNT = 2000, PIXELS = SYNTHETIC_SIDE * SYNTHETIC_SIDE };
    static double mean[10][PIXELS];
    struct dataset train, test;
    assert_status(dataset_synthesize(&train, COUNT, 1, 0), STATUS_OK);
    assert_status(dataset_synthesize(&test, COUNT, 1, COUNT), STATUS_OK);
    for (size_t i = 0; i < COUNT; i++)
        for (size_t p = 0; p < PIXELS; p++)
            mean[train.labels[i]][p] += train.images[i * PIXELS + p] / (COUNT / 10.0);
    size_t correct = 0;
    for (size_t i = 0; i < COUNT; i++) {
        unsigned best = 0;
        double least = 1e300;
        for (unsigned c = 0; c < 10; c++) {
            double distance = 0;
            for (size_t p = 0; p < PIXELS; p++) {
                const double d = mean[c][p] - test.images[i * PIXELS + p];
                distance += d * d;
            }
            if (distance < least) {
                least = distance;
                best = c;
            }
        }
        correct += best == test.labels[i];
    }
    assert_true(correct > COUNT / 2);
    dataset_free(&train);
    dataset_free(&test);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(raw_and_gzip_by_content),
        cmocka_unit_test(bad_files_are_refused),
        cmocka_unit_test(damaged_gzip),
        cmocka_unit_test(wrong_checksum),
        cmocka_unit_test(directories_and_spellings),
        cmocka_unit_test(loading_goes_on_aside),
        cmocka_unit_test(counts_must_agree),
        cmocka_unit_test(sizes_must_agree),
        cmocka_unit_test(split_takes_the_end),
        cmocka_unit_test(synthetic_is_a_function_of_the_index),
        cmocka_unit_test(synthetic_digits_are_learnable),
    };
    return cmocka_run_group_tests_name("data", tests, NULL, NULL);
}
