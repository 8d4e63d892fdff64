/* Roofs: one for each machine, device, number of threads and dtype; no share above 100 % without a reason. */
#include "tests/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "src/report/roof.h"
#include "tests/markup_check.h"
#include "tests/pages.h"

#define HEADER(cpu) "{\"type\":\"header\",\"cpu\":\"" cpu "\",\"command\":\"bench gemm\"}\n"
#define PEAK(device, threads, f32, copy)                                                       \
    "{\"type\":\"peak\",\"device\":\"" device "\",\"threads\":" threads ",\"f32_gflops\":" f32 \
    ",\"f64_gflops\":50,\"copy_gbytes_per_second\":" copy "}\n"
/* 2 x 512 x 512 x 512 flop over 3 x 512 x 512 floats: 85.3 flop/byte */
#define PRODUCT_OF(dtype, backend, device, threads, more)                                           \
    "{\"type\":\"gemm\",\"backend\":\"" backend "\",\"device\":\"" device "\",\"threads\":" threads \
    ",\"op\":\"NN\",\"what\":\"square\",\"dtype\":\"" dtype                                         \
    "\",\"m\":512,\"n\":512,\"k\":512,\"bytes\":3145728,\"verified\":true,\"median_seconds\":1,"    \
    "\"min_seconds\":1,\"max_seconds\":1" more "}\n"
#define PRODUCT(backend, device, threads, more) PRODUCT_OF("f32", backend, device, threads, more)

static struct records read_lines(const char *lines) {
    struct records records = {0};
    assert_status(records_read(&records, pages_write_text("roof.jsonl", lines)), STATUS_OK);
    return records;
}

/* The roof of the n-th product, counted from 0. */
static struct roof nth_roof(const struct records *records, int n) {
    const struct record *row = records_after(records, NULL, "gemm");
    for (; n > 0; n--) row = records_after(records, row, "gemm");
    assert_non_null(row);
    return roof_of(records, row);
}

static void roofs_fit_their_products(void **state) {
    (void)state;
    struct records records = read_lines(
        HEADER("one") PEAK("host", "1", "100", "10") PEAK("host", "2", "180", "30")
            PEAK("cuda", "1", "9000", "900") PRODUCT("serial", "host", "1", "")
                PRODUCT("tuned", "host", "2", "") PRODUCT("cublas", "cuda", "4", "")
                    PRODUCT("tuned", "host", "8", "") HEADER("two") PEAK("host", "2", "70", "7") HEADER("one")
                        PEAK("host", "2", "200", "20") PRODUCT_OF("f64", "tuned", "host", "2", ""));
    static const double want[][2] = {{100, 10}, {200, 30} /* the highest of two runs */, {9000, 900}};
    for (int i = 0; i < 3; i++) {
        const struct roof roof = nth_roof(&records, i);
        assert_near(roof.peak, want[i][0], 1e-9);
        assert_near(roof.bandwidth, want[i][1], 1e-9);
    }
    const struct roof none = nth_roof(&records, 3);
    assert_true(isnan(none.peak) && isnan(none.bandwidth));
    assert_near(nth_roof(&records, 4).peak, 50, 1e-9);
    records_free(&records);
}

/* `serial` stands first; its peak is not the roof of two threads. */
static void charts_have_their_own_roof(void **state) {
    (void)state;
    char *page = page_of_text(HEADER("c") PEAK("host", "1", "100", "10") PEAK("host", "2", "200", "20")
                                  PRODUCT("serial", "host", "1", ",\"gflops\":25")
                                      PRODUCT("tuned", "host", "2", ",\"gflops\":124"));
    assert_says(page, "<h4>1 CPU thread, f32</h4>");
    assert_says(page, "<h4>2 CPU threads, f32</h4>");
    assert_says(page, "peak (100 GFLOP/s) and flop/byte times the copy bandwidth (10.0 GB/s)");
    assert_says(page, "<td class=\"n\">25 %</td>");
    assert_says(page, "<td class=\"n\">62 %</td>"); /* of 200; of the first roof it were 124 % */
    assert_null(strstr(page, "124 %"));
    free(page);
}

/* Every share above 100 % in the cells of a page is followed by a reason; returns how many there are. */
static size_t excesses_with_reason(const char *page) {
    size_t found = 0;
    for (const char *at = strstr(page, " %"); at; at = strstr(at + 1, " %")) {
        const char *digits = at;
        while (digits > page && (strchr("0123456789.,", digits[-1]) && digits[-1])) digits--;
        if (digits == at || atof(digits) <= 100 || digits[-1] == '+') continue;
        if (strncmp(at, " %, ", 4) != 0) fail_msg("no reason: %.60s", digits);
        found++;
    }
    return found;
}

/* The same product under roofs that it exceeds by more and more, for several reasons. */
static void no_share_above_100_without_reason(void **state) {
    (void)state;
    static const struct {
        const char *peak, *copy, *more, *text;
    } cases[] = {
        {"100", "10", "\"gflops\":99", ">99 %<"},
        {"100", "10", "\"gflops\":103", ">103 %, higher clock<"},
        {"100", "10", "\"gflops\":124", ">above the measured peak<"},
        {"100", "10", "\"gflops\":124,\"noisy\":true", ">124 %, noisy<"},
        {"100", "10", "\"gflops\":300,\"precision\":\"tf32\"", ">300 %, tensor cores<"},
        {"100", "1", "\"gflops\":99", ">116 %, data in a cache<"}, /* of 85.3 GFLOP/s */
        {"100", "1", "\"gflops\":110", ">above the measured peak<"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char lines[2048];
        snprintf(lines, sizeof lines,
                 HEADER("c") PEAK("host", "2", "%s", "%s") PRODUCT("b", "host", "2", ",%s"), cases[i].peak,
                 cases[i].copy, cases[i].more);
        char *page = page_of_text(lines);
        assert_says(page, cases[i].text);
        assert_int_equal(excesses_with_reason(page), strchr(cases[i].text, ',') != NULL);
        assert_int_equal(strstr(page, "is faster than the measured peak. Either") != NULL,
                         strstr(cases[i].text, "above") != NULL);
        free(page);
    }
}

/* The share of the peak that the log itself has, in the tables of products. */
static void logged_shares_have_reasons(void **state) {
    (void)state;
    char *page = page_of_text(HEADER("c") PRODUCT("a", "host", "2", ",\"gflops\":10,\"share_of_peak\":1.03")
                                  PRODUCT("b", "host", "2", ",\"gflops\":11,\"share_of_peak\":1.4"));
    assert_int_equal(excesses_with_reason(page), 2);
    assert_says(page, ">10.0 (103 %, higher clock)<");
    assert_says(page, ">11.0 (above the measured peak)<");
    assert_null(strstr(page, "140 %"));
    free(page);
}

/* The committed page had products at 124 % of the roof. */
static void committed_logs_keep_below_their_roofs(void **state) {
    (void)state;
    static const char *const logs[] = {"cpu/gemm", "cpu/gemm-high", "h100/gemm", "h100/gemm-high"};
    struct records records = {0};
    for (size_t i = 0; i < 4; i++) {
        char path[128];
        snprintf(path, sizeof path, "docs/figures/%s.jsonl", logs[i]);
        assert_status(records_read(&records, path), STATUS_OK);
    }
    size_t products = 0;
    for (const struct record *row = NULL; (row = records_after(&records, row, "gemm"));) {
        const struct roof roof = roof_of(&records, row);
        const double rate = record_number(row->line, "gflops"), limit = roof_limit(&roof, row->line);
        if (!(limit > 0)) continue;
        assert_false(roof_exceeded(row->line, rate / limit, rate / roof.peak));
        products++;
    }
    assert_in_range(products, 200, 1000);
    records_free(&records);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(roofs_fit_their_products),
        cmocka_unit_test(charts_have_their_own_roof),
        cmocka_unit_test(no_share_above_100_without_reason),
        cmocka_unit_test(logged_shares_have_reasons),
        cmocka_unit_test(committed_logs_keep_below_their_roofs),
    };
    return cmocka_run_group_tests_name("roof", tests, NULL, NULL);
}
