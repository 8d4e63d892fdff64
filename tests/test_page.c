/* The page of the report: with all data, with some, and with those of several runs. */
#include "tests/support.h"

#include <stdio.h>
#include <stdlib.h>

#include "src/base/text.h"
#include "tests/markup_check.h"
#include "tests/pages.h"

#define FULL "tests/fixtures/full.jsonl"

static const char *const sections[] = {
    "environment", "accuracy",  "time",      "training", "gemm",   "roofline",     "scaling", "ranks",
    "shmem",       "breakeven", "confusion", "mistakes", "kmeans", "kmeans-steps", "qr",      "readout"};
enum { SECTIONS = sizeof sections / sizeof *sections };

static void full_page_has_everything(void **state) {
    (void)state;
    struct records records = {0};
    assert_status(records_read(&records, FULL), STATUS_OK);
    char *page = page_of(&records);
    for (size_t i = 0; i < SECTIONS; i++)
        if (!has_section(page, sections[i])) fail_msg("no section %s", sections[i]);
    assert_null(strstr(page, "Not in this report"));
    /* curves 2, bars 2 configs x 2, sizes 3, roofs 4, scaling 1, processes 1, shmem 4, map 1, confusion 1,
       k-means 3, its steps 5, QR 4 + 5 + 1 and 2, readouts 1 */
    assert_int_equal(count_of(page, "<svg class=\"chart\""), 42);
    assert_int_equal(count_of(page, "<svg class=\"chart\""), count_of(page, "role=\"img\""));
    assert_int_equal(count_of(page, "<table"), count_of(page, "<caption>"));
    assert_int_equal(count_of(page, "<img "), 3 + 9);
    assert_says(page, "Best choice: order CC, block 16, static shared memory, plain multiply");
    assert_says(page, "openmp: s = 3.0 % +- 0.4 %");
    assert_int_equal(count_of(page, "<th scope=\"col\" class=\"n\">J an epoch</th>"), 1);
    assert_says(page,
                "Energy not available: <code>serial</code>, because the energy counter is not readable");
    assert_says(page,
                "Fastest: cublas tf32, device, graph, 21.3 ms an epoch, 8.64 times as fast as openblas.");
    assert_says(page, "(&lt;core&gt; &amp; kernels)");
    free(page);
    records_free(&records);
}

static void page_needs_nothing_from_elsewhere(void **state) {
    (void)state;
    struct records records = {0};
    assert_status(records_read(&records, FULL), STATUS_OK);
    char *page = page_of(&records);
    static const char *const outside[] = {"<script",  "<link",      "@import",    "@font-face",
                                          "url(http", "src=\"http", "href=\"http"};
    for (size_t i = 0; i < sizeof outside / sizeof *outside; i++) assert_null(strstr(page, outside[i]));
    assert_int_equal(count_of(page, "http"), count_of(page, "xmlns=\"http://www.w3.org/2000/svg\""));
    assert_says(page, "<html lang=\"en\">");
    assert_says(page, "prefers-color-scheme:dark");
    assert_says(page, "@media print");
    free(page);
    records_free(&records);
}

static void wrong_backends_have_no_time(void **state) {
    (void)state;
    char *page =
        page_of_text("{\"type\":\"compare\",\"backend\":\"bad\",\"device\":\"host\",\"agrees\":false,"
                     "\"reason\":\"NaN in step 2\","
                     "\"median_epoch_seconds\":0.777,\"speedup\":77.7,\"test_accuracy\":0.777,\"time\":{"
                     "\"gemm_nn\":0.777}}\n"
                     "{\"type\":\"gemm\",\"backend\":\"bad\",\"op\":\"NN\",\"dtype\":\"f32\",\"m\":2,\"n\":2,"
                     "\"k\":2,\"verified\":false,"
                     "\"reason\":\"worst at (1, 1)\",\"median_seconds\":0.777,\"gflops\":777,\"bytes\":48}\n"
                     "{\"type\":\"shmem\",\"order\":\"RR\",\"tile\":4,\"verified\":false,\"median_seconds\":"
                     "0.777,\"gflops\":777}\n"
                     "{\"type\":\"peak\",\"device\":\"\",\"f32_gflops\":10,\"copy_gbytes_per_second\":5}\n");
    assert_says(page, "does not agree: NaN in step 2");
    assert_says(page, "wrong result: worst at (1, 1)");
    assert_null(strstr(page, "777"));
    assert_null(strstr(page, "77.7"));
    assert_true(!has_section(page, "time") && !has_section(page, "roofline"));
    free(page);
}

/* Appends a row of `compare` with extra fields; with a label, a row that was left out. */
static void add_row(char *lines, size_t size, const char *backend, const char *label, const char *more) {
    text_append(lines, size, "{\"type\":\"compare\",\"config\":\"c\",\"dtype\":\"f32\",\"backend\":\"%s\",",
                backend);
    if (label) {
        text_append(lines, size, "\"label\":\"%s\",\"left_out\":\"not here\"%s}\n", label, more);
    } else {
        text_append(
            lines, size,
            "\"engine\":\"eager\",\"agrees\":true,\"drift\":1e-7,\"median_epoch_seconds\":2,\"threads\":2,"
            "\"time\":{\"gemm_nn\":1}%s}\n",
            more);
    }
}

/* Two comparisons: their common baseline appears once. */
static void rows_of_one_name_are_distinguished(void **state) {
    (void)state;
    static const char *const rows[][3] = {
        {"base", NULL, ",\"batch_size\":64"},  {"order", NULL, ",\"description\":\"tile 16\""},
        {"wide", NULL, ",\"batch_size\":64"},  {"gone", "gone, 1 thread", ""},
        {"base", NULL, ",\"batch_size\":64"},  {"order", NULL, ",\"description\":\"tile 32\""},
        {"wide", NULL, ",\"batch_size\":128"}, {"gone", "gone, 2 threads", ""},
        {"gone", "gone, 2 threads", ""}};
    char lines[4096] = "";
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        add_row(lines, sizeof lines, rows[i][0], rows[i][1], rows[i][2]);
    /* once in the table of the comparison; elsewhere in those of drifts and of times and in two charts */
    static const char *const in_table[] = {">base<",           ">order, tile 16<",  ">order, tile 32<",
                                           ">wide, batch 64<", ">wide, batch 128<", ">gone, 1 thread<",
                                           ">gone, 2 threads<"};
    static const char *const elsewhere[] = {">base, 2 threads<", ">order, 2 threads, tile 16<",
                                            ">order, 2 threads, tile 32<", ">wide, 2 threads, batch 64<",
                                            ">wide, 2 threads, batch 128<"};
    char *page = page_of_text(lines);
    for (size_t i = 0; i < sizeof in_table / sizeof *in_table; i++)
        if (count_of(page, in_table[i]) != 1) fail_msg("%s: not once", in_table[i]);
    for (size_t i = 0; i < sizeof elsewhere / sizeof *elsewhere; i++)
        if (count_of(page, elsewhere[i]) != 4) fail_msg("%s: not four times", elsewhere[i]);
    free(page);
}

/* The mark of an uncertain median is in the tables of every kind of row, and the load with the machine. */
static void noise_and_load_are_shown(void **state) {
    (void)state;
    static const struct {
        const char *row, *marked;
    } cases[] = {
        {"{\"type\":\"compare\",\"backend\":\"b\",\"agrees\":true,\"median_epoch_seconds\":2",
         ">2.00 s, noisy<"},
        {"{\"type\":\"compare\",\"backend\":\"b\",\"agrees\":true,\"median_epoch_seconds\":2",
         "Fastest: b, 2.00 s an epoch, noisy."},
        {"{\"type\":\"epoch\",\"epoch\":1}\n{\"type\":\"summary\",\"median_epoch_seconds\":2",
         ">2.00 s, noisy<"},
        {"{\"type\":\"gemm\",\"backend\":\"b\",\"op\":\"NN\",\"dtype\":\"f32\",\"m\":2,\"n\":2,\"k\":2,"
         "\"verified\":true,\"median_seconds\":2,\"gflops\":3",
         ">3.00, noisy<"},
        {"{\"type\":\"scaling\",\"backend\":\"b\",\"threads\":1,\"epoch_seconds\":2", ">2.00 s, noisy<"},
        {"{\"type\":\"shmem\",\"order\":\"RR\",\"tile\":4,\"verified\":true,\"median_seconds\":2",
         ">2.00 s, noisy<"},
        {"{\"type\":\"breakeven\",\"backend\":\"b\",\"batch\":8,\"hidden\":4,\"wins\":true,\"step_seconds\":"
         "2",
         ">2.00 s *, noisy<"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int noisy = 0; noisy < 2; noisy++) {
            char lines[512];
            snprintf(lines, sizeof lines, "%s,\"noisy\":%s}\n", cases[i].row, noisy ? "true" : "false");
            char *page = page_of_text(lines);
            if ((strstr(page, cases[i].marked) != NULL) != noisy)
                fail_msg("%s: %s", lines, noisy ? "no mark" : "a mark");
            assert_says(page, "noisy: the median is uncertain by more than 5 %.");
            free(page);
        }
    char *page = page_of_text("{\"type\":\"header\",\"cpu\":\"c\",\"load\":0.44,\"cores\":2}\n"
                              "{\"type\":\"header\",\"cpu\":\"c\",\"load\":3.6,\"cores\":2}\n"
                              "{\"type\":\"header\",\"cpu\":\"d\"}\n"
                              "{\"type\":\"header\",\"cpu\":\"e\",\"load\":3.6,\"cores\":64}\n");
    assert_says(page, ">0.4 to 3.6 on 2 cores<");
    assert_says(page, ">3.6 on 64 cores<");
    free(page);
}

static void missing_sections_name_their_command(void **state) {
    (void)state;
    char *page = page_of_text("{\"type\":\"header\",\"cpu\":\"x\"}\n");
    for (size_t i = 1; i < SECTIONS; i++) assert_true(!has_section(page, sections[i]));
    assert_says(page, "Not in this report");
    assert_says(page, "./train bench shmem");
    assert_says(page, "./train compare");
    assert_says(page, "./train eval");
    free(page);
}

/* Concurrent networks log their epochs interleaved; the page is the same. */
static void members_differ(void **state) {
    (void)state;
#define HEADER "{\"type\":\"header\",\"backend\":\"b\",\"seed\":1,\"ensemble\":2}\n"
#define EPOCH(seed, epoch, loss)                                                     \
    "{\"type\":\"epoch\",\"seed\":" seed ",\"epoch\":" epoch ",\"train_loss\":" loss \
    ",\"test_accuracy\":0.5}\n"
#define SUMMARY(seed, seconds) \
    "{\"type\":\"summary\",\"seed\":" seed ",\"median_epoch_seconds\":" seconds "}\n"
#define ALL                                                                                   \
    "{\"type\":\"ensemble\",\"members\":2,\"test_accuracy\":0.75,\"test_accuracy_mean\":0.5," \
    "\"test_accuracy_deviation\":0.125,\"seconds\":3,\"epoch_seconds\":0.5}\n"
    char *apart = page_of_text(HEADER EPOCH("1", "1", "0.9") EPOCH("1", "2", "0.7") EPOCH("2", "1", "0.8")
                                   EPOCH("2", "2", "0.6") SUMMARY("1", "0.25") SUMMARY("2", "0.5") ALL);
    char *in_turn = page_of_text(HEADER EPOCH("2", "1", "0.8") EPOCH("1", "1", "0.9") EPOCH("1", "2", "0.7")
                                     EPOCH("2", "2", "0.6") SUMMARY("2", "0.5") SUMMARY("1", "0.25") ALL);
    assert_string_equal(apart, in_turn);
    assert_int_equal(count_of(apart, "seed 1"), count_of(apart, "seed 2"));
    assert_says(apart, "seed 2");
    assert_says(apart, "250 ms"); /* each with its own summary */
    assert_says(apart, "500 ms");
    assert_says(
        apart,
        "Ensemble of 2 networks. Their test accuracy: mean 50.00 %, standard deviation 12.50 %; that of "
        "their committee: 75.00 %. Training all of them took 3.00 s, one epoch of all "
        "500 ms.");
    free(apart);
    free(in_turn);
}

#define KMEANS(clusters)                                                                                \
    "{\"type\":\"header\",\"backend\":\"b\",\"seed\":1,\"data\":\"d\",\"points\":60000,\"features\":9," \
    "\"config\":{\"clusters\":\"" clusters "\"}}\n"
#define ITERATION(restart, iteration, inertia)                                        \
    "{\"type\":\"kmeans_iteration\",\"restart\":" restart ",\"iteration\":" iteration \
    ",\"inertia\":" inertia "}\n"
#define RESULT(part, purity)                                                                            \
    "{\"type\":\"kmeans\",\"restart\":2,\"iterations\":2,\"end\":\"no point changed\",\"inertia\":5.5," \
    "\"exact\":true,\"time\":{\"graph\":1.5,\"startup\":0.5},\"" part "\":{\"purity\":" purity "}}\n"
#define CENTRE(pixels)                                                                           \
    "{\"type\":\"kmeans_centre\",\"cluster\":3,\"points\":1234,\"class\":\"<i>\",\"medoid\":77," \
    "\"height\":1,\"width\":2,\"pixels\":\"" pixels "\"}\n"

/* The curve is that of the best restart; a run that was killed has a curve and no result. */
static void kmeans_shows_the_best_restart(void **state) {
    (void)state;
    char *page = page_of_text(KMEANS("4") ITERATION("1", "1", "911") ITERATION("2", "1", "922")
                                  ITERATION("2", "2", "822") RESULT("training", "0.625") CENTRE("00ff")
                                      CENTRE("00f") KMEANS("8") ITERATION("1", "1", "933"));
    assert_says(page, "<h3>d: 60,000 points of 9 features</h3>");
    assert_says(page, "b, seed 1, clusters 4: 922 at 1");
    assert_says(page, "b, seed 1, clusters 4: 822 at 2");
    assert_null(strstr(page, "911 at 1"));
    assert_says(page, "b, seed 1, clusters 8: 933 at 1");
    assert_says(page, ">no point changed<");
    assert_says(page, ">62.50 %<");
    assert_says(page, ">no result<");
    assert_says(page, "whole passes, not split: 1.50 s");
    assert_null(strstr(page, "Clusters and classes")); /* one K alone has a result */
    assert_int_equal(count_of(page, "<img "), 1);
    assert_says(page, "<b>&lt;i&gt;</b>, 1,234 points<br/>medoid #77");
    free(page);
}

/* A run that was killed has no centres: those of the next one with its K are drawn. */
static void kmeans_draws_centres_of_a_result(void **state) {
    (void)state;
    char *page = page_of_text(KMEANS("4") ITERATION("1", "1", "911") KMEANS("4") ITERATION("1", "1", "922")
                                  RESULT("training", "0.625") CENTRE("00ff") KMEANS("4")
                                      ITERATION("1", "1", "933") RESULT("training", "0.5") CENTRE("ff00"));
    assert_int_equal(count_of(page, "<img "), 1);
    assert_says(page, "Centres of b, seed 1, run 2");
    assert_says(page, "What each run of k-means found");
    assert_null(strstr(page, "perceptron"));
    free(page);
    page = page_of_text(KMEANS("4") ITERATION(
        "1", "1", "911") "{\"type\":\"header\",\"backend\":\"b\"}\n" EPOCH("1", "1", "0.9"));
    assert_says(page, "multi-layer perceptron");
    free(page);
}

/* Runs with one K are one point: their mean, with a whisker. */
static void kmeans_quality_against_clusters(void **state) {
    (void)state;
    char *page = page_of_text(KMEANS("4") ITERATION("2", "1", "9e9") RESULT("test", "0.5") KMEANS("4")
                                  ITERATION("2", "1", "8") RESULT("test", "0.75") KMEANS("16")
                                      ITERATION("2", "1", "3") RESULT("test", "0.875"));
    assert_says(page, "Clusters and classes");
    assert_says(page, "on the test images");
    assert_says(page, "purity: 62.50 % at 4");
    assert_says(page, "purity: 87.50 % at 16");
    assert_says(page, ">inertia / 10^9, log scale<");
    assert_says(page, ": 9.00 at 1<"); /* the number of an axis label stays short */
    assert_int_equal(count_of(page, "class=\"spread "), 1);
    assert_says(page, "b, seed 1, clusters 4, run 2"); /* nothing else tells it from the first */
    free(page);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(full_page_has_everything),
        cmocka_unit_test(page_needs_nothing_from_elsewhere),
        cmocka_unit_test(wrong_backends_have_no_time),
        cmocka_unit_test(members_differ),
        cmocka_unit_test(rows_of_one_name_are_distinguished),
        cmocka_unit_test(noise_and_load_are_shown),
        cmocka_unit_test(kmeans_shows_the_best_restart),
        cmocka_unit_test(kmeans_draws_centres_of_a_result),
        cmocka_unit_test(kmeans_quality_against_clusters),
        cmocka_unit_test(missing_sections_name_their_command),
    };
    return cmocka_run_group_tests_name("page", tests, NULL, NULL);
}
