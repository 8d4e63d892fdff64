/* Text of reports: tables, images, accuracies. */
#include "tests/support.h"

#include <stdio.h>
#include <stdlib.h>

#include "src/cmd/console.h"
#include "src/report/confusion.h"
#include "src/report/image_grid.h"

static char *text;
static size_t length;

static FILE *open_text(void) {
    FILE *out = open_memstream(&text, &length);
    assert_non_null(out);
    return out;
}

static void confusion(void **state) {
    (void)state;
    static const uint8_t labels[] = {0, 0, 0, 1, 1, 2}, predicted[] = {0, 0, 1, 1, 0, 0};
    double counts[9] = {0};
    confusion_count(counts, 3, labels, predicted, 6);
    static const double want[9] = {2, 1, 0, 1, 1, 0, 1, 0, 0};
    assert_memory_equal(counts, want, sizeof want);
    FILE *out = open_text();
    confusion_print(out, counts, 3, &(struct class_names){0});
    fclose(out);
    assert_says(text, "     0     2     1     .\n     1     1     1     .\n     2     1     .     .\n");
    assert_says(text, "0           3    50.00 %  66.67 %\n"); /* precision 2 of 4, recall 2 of 3 */
    assert_says(text, "2           1          -   0.00 %\n");
    free(text);
}

static void images_side_by_side(void **state) {
    (void)state;
    static const uint8_t dark[6] = {0}, bright[6] = {255, 255, 255, 255, 255, 255};
    const struct image images[] = {{dark, "a"}, {bright, "b"}, {bright, "c"}};
    FILE *out = open_text();
    image_print(out, images, 3, 3, 2, 8); /* 3 x 2 pixels, cells of 4 columns, two in a row */
    fclose(out);
    assert_string_equal(text, "a   b\n    @@\n    @@\nc\n@@\n@@\n");
    free(text);
}

/* A grid becomes wider, not higher. */
static void grids_have_a_limit(void **state) {
    (void)state;
    static const uint8_t digit[28 * 28] = {0};
    static const size_t counts[] = {1, 6, 72, 73, 600};
    const char *path = support_path("grid.pgm");
    struct image images[1200] = {{0}};
    for (size_t i = 0; i < 1200; i++) images[i] = (struct image){digit, "4, not 8\n#1234"};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        struct image_grid grid = {.height = 28, .width = 28, .images = images};
        size_t size, width, height;
        grid.columns = image_grid_columns(grid, counts[i], 6, 2000);
        grid.rows = (counts[i] + grid.columns - 1) / grid.columns;
        assert_status(image_grid_write(&grid, path), STATUS_OK);
        unsigned char *bytes = support_read(path, &size);
        assert_int_equal(sscanf((char *)bytes, "P5\n%zu %zu", &width, &height), 2);
        assert_in_range(height, 100, 2000);
        assert_int_equal(grid.columns == 6, counts[i] <= 72); /* twelve rows fit */
        free(bytes);
    }
}

static void accuracies(void **state) {
    (void)state;
    const struct evaluation evaluation = {.total = 10000, .correct = 9800};
    assert_string_equal(console_accuracy(9800, 10000).text, "9,800/10,000 98.00 %");
    assert_near(console_binomial_error(&evaluation), 0.14, 1e-12); /* 100 sqrt(0.98 0.02 / 10000) */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(confusion),
        cmocka_unit_test(images_side_by_side),
        cmocka_unit_test(grids_have_a_limit),
        cmocka_unit_test(accuracies),
    };
    return cmocka_run_group_tests_name("report", tests, NULL, NULL);
}
