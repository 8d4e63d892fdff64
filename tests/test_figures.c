/* What the figures of a page show: peaks, order of bars, logarithmic axes, names of runs, folded tables. */
#include "tests/support.h"

#include <stdio.h>
#include <stdlib.h>

#include "src/base/text.h"
#include "tests/markup_check.h"
#include "tests/pages.h"

#define HEADER "{\"type\":\"header\",\"cpu\":\"c\",\"command\":\"bench\"}\n"

/* --- products --- */

static void add_product(char *lines, size_t size, const char *backend, int threads, int n, double rate) {
    text_append(
        lines, size,
        "{\"type\":\"gemm\",\"backend\":\"%s\",\"device\":\"host\",\"threads\":%d,\"op\":\"NN\",\"what\":"
        "\"square\",\"dtype\":\"f32\",\"m\":%d,\"n\":%d,\"k\":%d,\"bytes\":100,\"verified\":true,"
        "\"median_seconds\":1e-3,\"min_seconds\":1e-3,\"max_seconds\":1e-3,\"gflops\":%g}\n",
        backend, threads, n, n, n, rate);
}

static void products_have_rates_and_peaks(void **state) {
    (void)state;
    char lines[4096] = HEADER "{\"type\":\"peak\",\"device\":\"host\",\"threads\":1,\"f32_gflops\":100,"
                              "\"copy_gbytes_per_second\":9}\n"
                              "{\"type\":\"peak\",\"device\":\"host\",\"threads\":2,\"f32_gflops\":190,"
                              "\"copy_gbytes_per_second\":9}\n";
    add_product(lines, sizeof lines, "a", 1, 256, 60);
    add_product(lines, sizeof lines, "a", 2, 256, 110);
    add_product(lines, sizeof lines, "b", 2, 256, 12);
    char *page = page_of_text(lines);
    assert_says(page, ">NN, f32: GFLOP/s against size</h4>");
    assert_int_equal(count_of(page, "class=\"reference\""), 2);
    assert_says(page, ">peak of 1 CPU thread, 100 GFLOP/s</text>");
    assert_says(page, ">peak of 2 CPU threads, 190 GFLOP/s</text>");
    assert_says(page, "a, 1 thread: 60.0 at 256"); /* two lines, which the thread count tells apart */
    assert_says(page, "a, 2 threads: 110 at 256");
    assert_says(page, "b: 12.0 at 256");
    assert_says(page, ">GFLOP/s</text>"); /* 190 is less than 20 times 12 */
    free(page);
    add_product(lines, sizeof lines, "c", 2, 256, 9);
    page = page_of_text(lines);
    assert_says(page, ">GFLOP/s, log scale</text>");
    assert_null(strstr(page, ">GFLOP/s</text>"));
    free(page);
}

/* The height at which a text of the page is drawn. */
static double height_of(const char *page, const char *text) {
    const char *at = page + place_of(page, text);
    while (strncmp(at, " y=\"", 4) != 0) at--;
    return atof(at + 4);
}

static void names_of_close_peaks_are_apart(void **state) {
    (void)state;
    for (int one = 100; one <= 104; one += 4) { /* lower and higher than that of two threads */
        char lines[4096], name[64];
        snprintf(lines, sizeof lines,
                 HEADER "{\"type\":\"peak\",\"device\":\"host\",\"threads\":1,\"f32_gflops\":%d,"
                        "\"copy_gbytes_per_second\":9}\n"
                        "{\"type\":\"peak\",\"device\":\"host\",\"threads\":2,\"f32_gflops\":102,"
                        "\"copy_gbytes_per_second\":9}\n",
                 one);
        add_product(lines, sizeof lines, "a", 1, 256, 60);
        add_product(lines, sizeof lines, "a", 2, 256, 70);
        char *page = page_of_text(lines);
        snprintf(name, sizeof name, ">peak of 1 CPU thread, %d GFLOP/s<", one);
        const double distance =
            height_of(page, name) - height_of(page, ">peak of 2 CPU threads, 102 GFLOP/s<");
        assert_true(one < 102 ? distance >= 14 : distance <= -14);
        free(page);
    }
}

/* --- epochs --- */

static void add_epoch(char *lines, size_t size, const char *backend, double seconds, const char *more) {
    text_append(lines, size,
                "{\"type\":\"compare\",\"config\":\"k\",\"backend\":\"%s\",\"agrees\":true,"
                "\"median_epoch_seconds\":%g,\"time\":{\"gemm_nn\":%g,\"gemm_tn\":%g}%s}\n",
                backend, seconds, seconds / 4, 3 * seconds / 4, more);
}

/* The width of the n-th bar of a page. */
static double width_of(const char *page, int n) {
    for (; n >= 0; n--) page = strstr(page, "class=\"bar ") + 1;
    return atof(strstr(page, "width=\"") + 7);
}

static void bars_are_sorted(void **state) {
    (void)state;
    char lines[2048] = HEADER;
    add_epoch(lines, sizeof lines, "slow", 1, "");
    add_epoch(lines, sizeof lines, "fast", 0.1, ",\"noisy\":true");
    add_epoch(lines, sizeof lines, "middle", 0.4, "");
    char *page = page_of_text(lines);
    const char *chart = page + place_of(page, ">Time of an epoch<");
    assert_true(place_of(chart, ">fast, noisy<") < place_of(chart, ">middle<"));
    assert_true(place_of(chart, ">middle<") < place_of(chart, ">slow<"));
    assert_says(chart, ">time of an epoch</text>");
    assert_near(width_of(chart, 5) / width_of(chart, 1), 10, 0.1); /* the second part of slow and fast */
    free(page);
}

/* Beyond 20 times the smallest, the bars are logarithmic; their parts keep their shares. */
static void wide_bars_are_logarithmic(void **state) {
    (void)state;
    char lines[2048] = HEADER;
    add_epoch(lines, sizeof lines, "slow", 2.1, "");
    add_epoch(lines, sizeof lines, "fast", 0.1, "");
    char *page = page_of_text(lines);
    const char *chart = page + place_of(page, ">Time of an epoch<");
    assert_says(chart, ">time of an epoch, log scale</text>");
    const double fast = width_of(chart, 0) + width_of(chart, 1),
                 slow = width_of(chart, 2) + width_of(chart, 3);
    assert_true(slow > fast && slow < 8 * fast && fast > 10);
    assert_near(width_of(chart, 3) / width_of(chart, 2), 3, 0.01);
    assert_says(chart, ">share of the epoch</text>");
    free(page);
}

/* Names that are longer than a bar chart is wide stand in two lines. */
static void long_names_fit(void **state) {
    (void)state;
    char lines[2048] = HEADER;
    add_epoch(lines, sizeof lines, "a-backend-with-a-long-name, and-with-a-description-of-its-build", 1, "");
    char *page = page_of_text(lines);
    const char *chart = page + place_of(page, ">Time of an epoch<");
    assert_true(place_of(chart, ">a-backend-with-a-long-name, <") <
                place_of(chart, ">and-with-a-description-of-its-build<"));
    free(page);
}

/* --- training curves --- */

#define RUN(config)                                                                                \
    "{\"type\":\"header\",\"backend\":\"b\",\"seed\":1,\"config\":{\"layers\":\"4-2\",\"epochs\":" \
    "\"2\"" config "}}\n"
#define EPOCHS                                                                                       \
    "{\"type\":\"epoch\",\"epoch\":1,\"train_loss\":0.5,\"train_accuracy\":0.8,\"test_loss\":0.4,"   \
    "\"test_accuracy\":0.85}\n"                                                                      \
    "{\"type\":\"epoch\",\"epoch\":2,\"train_loss\":0.25,\"train_accuracy\":0.9,\"test_loss\":0.35," \
    "\"test_accuracy\":0.86}\n"

static void legends_name_what_differs(void **state) {
    (void)state;
    char *page = page_of_text(RUN(",\"optimizer\":\"sgd\",\"dropout\":\"0.2\"")
                                  EPOCHS RUN(",\"optimizer\":\"adamw\",\"dropout\":\"0\"") EPOCHS);
    assert_says(page, "</svg> b, seed 1, optimizer sgd, dropout 0.2</li>");
    assert_says(page, "</svg> b, seed 1, optimizer adamw, dropout 0</li>");
    assert_null(strstr(page, "epochs 2")); /* they have it in common */
    assert_null(strstr(page, "Recipe: "));
    free(page);
    page = page_of_text(RUN(",\"optimizer\":\"sgd\",\"dropout\":\"0\",\"learning-rate\":\"0.1\"") EPOCHS RUN(
        ",\"optimizer\":\"adamw\",\"dropout\":\"0.2\",\"learning-rate\":\"1\"") EPOCHS);
    assert_says(page, "<p>Recipe: optimizer sgd.</p>"); /* a chart each */
    assert_says(page, "<p>Recipe: optimizer adamw, dropout 0.2.</p>");
    free(page);
    page = page_of_text(RUN("") EPOCHS RUN("") EPOCHS RUN("") EPOCHS);
    assert_says(page, "</svg> b, seed 1</li>");
    assert_says(page, "</svg> b, seed 1, run 2</li>");
    assert_says(page, "</svg> b, seed 1, run 3</li>");
    free(page);
}

/* Also the run that has no epoch, and so no curve. */
static void runs_that_an_error_ended_are_listed(void **state) {
    (void)state;
    char *page =
        page_of_text(RUN(",\"batch-size\":\"16\",\"learning-rate\":\"9\"") "{\"type\":\"stopped\",\"reason\":"
                                                                           "\"the loss is not finite\"}\n");
    assert_says(page, "<section id=\"training\">");
    assert_says(page, "<li>b, seed 1; 4-2, batch 16, learning rate 9: the loss is not finite</li>");
    free(page);
}

static void curves_of_training_and_test(void **state) {
    (void)state;
    char *page = page_of_text(RUN("") EPOCHS);
    assert_int_equal(count_of(page, "class=\"line s0 d1\""), 2); /* training: loss and accuracy */
    assert_int_equal(count_of(page, "class=\"line s0 d0\""), 3); /* test, and the legend */
    assert_says(page, "b, seed 1: 0.350 at 2");
    assert_says(page, "b, seed 1: 86.00 % at 2");
    assert_says(page, "<td class=\"n\">90.00 %</td><td class=\"n\">86.00 %</td>");
    free(page);
}

/* --- the machine --- */

static void noise_is_counted(void **state) {
    (void)state;
    char lines[2048] = "{\"type\":\"header\",\"cpu\":\"c\",\"cores\":2,\"load\":3.6,\"other_tasks\":3}\n"
                       "{\"type\":\"header\",\"cpu\":\"c\",\"cores\":2,\"load\":0.1,\"other_tasks\":0}\n";
    add_epoch(lines, sizeof lines, "x", 1, ",\"noisy\":true");
    add_epoch(lines, sizeof lines, "y", 1, ",\"noisy\":false");
    char *page = page_of_text(lines);
    assert_says(page, "1 of 2 timings are marked noisy");
    assert_says(page, "Up to 3 tasks of other programs ran on the 2 cores");
    free(page);
    page = page_of_text("{\"type\":\"header\",\"cpu\":\"c\",\"cores\":2,\"load\":3.6,\"other_tasks\":0}\n");
    assert_null(strstr(page, "noisy"));
    assert_null(strstr(page, "other programs"));
    free(page);
}

/* --- tables and images --- */

static void long_tables_are_folded_not_cropped(void **state) {
    (void)state;
    char lines[1 << 15] = HEADER;
    for (int i = 0; i < 40; i++) add_product(lines, sizeof lines, "a", 2, 16 * (i + 1), 100);
    char *page = page_of_text(lines);
    assert_null(strstr(page, "<details>"));
    assert_null(strstr(page, "max-height:3")); /* the windows that hid rows */
    free(page);
    add_product(lines, sizeof lines, "a", 2, 1000, 100);
    page = page_of_text(lines);
    assert_says(page, "<details><summary>Table of 41 rows: GFLOP/s of each product.</summary>");
    assert_int_equal(count_of(page, "<details>"), count_of(page, "</table></div>\n</details>"));
    assert_int_equal(count_of(page, "<div class=\"scroll\""), count_of(page, "<table"));
    assert_says(page, "overflow-x:auto");
    free(page);
}

static void add_mistakes(char *lines, size_t size, const char *checkpoint, int count) {
    text_append(lines, size, "%s{\"type\":\"evaluation\",\"checkpoint\":\"%s\",\"layers\":\"4-2\"}\n", HEADER,
                checkpoint);
    text_append(lines, size, "{\"type\":\"confusion\",\"counts\":[[1]]}\n");
    for (int i = 0; i < count; i++)
        text_append(lines, size,
                    "{\"type\":\"mistake\",\"image\":%d,\"height\":1,\"width\":1,\"pixels\":\"ff\"}\n", i);
}

static void sheets_are_short_and_named(void **state) {
    (void)state;
    char lines[1 << 14] = "";
    add_mistakes(lines, sizeof lines, "/tmp/tmp.Xy12.safetensors", 37);
    add_mistakes(lines, sizeof lines, "/tmp/tmp.Zz/digits.safetensors", 36);
    char *page = page_of_text(lines);
    assert_int_equal(count_of(page, "class=\"digit\""), 72); /* 12 rows of three on a phone */
    assert_int_equal(count_of(page, "class=\"digits\""), 2);
    assert_says(page, "The first 36 of 37 in the log.");
    assert_says(page, "<h3>digits.safetensors</h3>");
    assert_says(page, "<h3>Network 4-2</h3>");
    assert_says(page, "<p>Network 4-2");
    assert_says(page, "<p>digits.safetensors, network 4-2");
    assert_null(strstr(page, "tmp"));
    free(page);
}

static void mistakes_have_names_of_classes(void **state) {
    (void)state;
    char *page = page_of_text(
        "{\"type\":\"header\"}\n{\"type\":\"confusion\",\"counts\":[[1,1],[0,1]],\"names\":[\"cat\",\"dog\"]}"
        "\n"
        "{\"type\":\"mistake\",\"label\":0,\"predicted\":1,\"height\":1,\"width\":1,\"pixels\":\"ff\"}\n"
        "{\"type\":\"mistake\",\"label\":7,\"predicted\":1,\"height\":1,\"width\":1,\"pixels\":\"ff\"}\n");
    assert_says(page, "alt=\"a cat taken for a dog\"");
    assert_says(page, "<b>dog</b>, not cat<br/>");
    assert_says(page, "<b>dog</b>, not 7<br/>"); /* which has none */
    free(page);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_have_rates_and_peaks),
        cmocka_unit_test(names_of_close_peaks_are_apart),
        cmocka_unit_test(bars_are_sorted),
        cmocka_unit_test(wide_bars_are_logarithmic),
        cmocka_unit_test(long_names_fit),
        cmocka_unit_test(legends_name_what_differs),
        cmocka_unit_test(runs_that_an_error_ended_are_listed),
        cmocka_unit_test(curves_of_training_and_test),
        cmocka_unit_test(noise_is_counted),
        cmocka_unit_test(long_tables_are_folded_not_cropped),
        cmocka_unit_test(sheets_are_short_and_named),
        cmocka_unit_test(mistakes_have_names_of_classes),
    };
    return cmocka_run_group_tests_name("figures", tests, NULL, NULL);
}
