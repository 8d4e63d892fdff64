/* Scales and ticks, escaping, numbers, and each kind of chart as well-formed SVG with the right marks. */
#include "tests/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "src/base/text.h"
#include "src/report/chart.h"
#include "src/report/heatmap.h"
#include "src/report/markup.h"
#include "src/report/png.h"
#include "src/report/table.h"
#include "tests/markup_check.h"

/* The output of `write`. The caller frees it. */
#define PRINTED(write)                        \
    char *text = NULL;                        \
    size_t size = 0;                          \
    FILE *out = open_memstream(&text, &size); \
    assert_non_null(out);                     \
    write;                                    \
    fclose(out)

static void the_checker_finds_faults(void **state) {
    (void)state;
    assert_null(markup_fault("<!DOCTYPE html><a b=\"c &amp; d\"><e/>x &#39; </a>"));
    static const char *const broken[] = {"<a>",
                                         "</a>",
                                         "<a><b></a></b>",
                                         "<a b=c></a>",
                                         "<a b=\"<\"></a>",
                                         "x & y",
                                         "<a b=\"c\"d=\"e\"></a>",
                                         "a < b",
                                         "<a b=\"c></a>"};
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++)
        if (!markup_fault(broken[i])) fail_msg("'%s' passed", broken[i]);
}

static void steps_are_one_two_five(void **state) {
    (void)state;
    static const double cases[][3] = {{10, 5, 2},  {1, 5, .2},    {100, 8, 20},    {7, 7, 1},   {0.3, 3, .1},
                                      {45, 5, 10}, {1e9, 4, 5e8}, {1e-6, 5, 2e-7}, {21, 4, 10}, {6, 5, 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_near(scale_step(cases[i][0], (size_t)cases[i][1]) / cases[i][2], 1, 1e-9);
    assert_true(scale_step(0, 5) == 1 && scale_step(NAN, 5) == 1 && scale_step(-1, 5) == 1 &&
                scale_step(1, 0) == 1);
}

static void scales_hold_what_they_show(void **state) {
    (void)state;
    static const double ranges[][2] = {{0, 1}, {0.91, 0.976}, {-3, 17},    {1e-7, 3e5},
                                       {5, 5}, {0, 0},        {256, 8192}, {1e17, 1e18}};
    for (int kind = SCALE_LINEAR; kind <= SCALE_LOG2; kind++)
        for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
            struct scale scale = scale_around((enum scale_kind)kind, ranges[i][0], ranges[i][1]);
            scale.from = 10;
            scale.to = 110;
            assert_true(scale.low < scale.high && (kind == SCALE_LINEAR || scale.low > 0));
            if (kind == SCALE_LINEAR || ranges[i][0] > 0)
                assert_true(scale.low <= ranges[i][0] * (1 + 1e-9) + 1e-12 &&
                            scale.high >= ranges[i][1] * (1 - 1e-9));
            const struct scale_ticks ticks = scale_ticks(&scale, 6);
            assert_true(ticks.count >= 1 && ticks.count <= SCALE_MAX_TICKS);
            for (size_t t = 0; t < ticks.count; t++) {
                const double place = scale_place(&scale, ticks.at[t]);
                assert_true(place >= 10 - 1e-6 && place <= 110 + 1e-6);
                if (t) assert_true(ticks.at[t] > ticks.at[t - 1]);
            }
            assert_near(scale_place(&scale, scale.low), 10, 1e-9);
            assert_near(scale_place(&scale, scale.high), 110, 1e-9);
        }
}

static void ticks_are_round(void **state) {
    (void)state;
    const struct scale linear = scale_around(SCALE_LINEAR, 0, 0.47),
                       two = scale_around(SCALE_LOG2, 256, 8192);
    struct scale_ticks ticks = scale_ticks(&linear, 6);
    assert_int_equal(ticks.count, 6); /* 0.0 to 0.5 */
    assert_near(ticks.at[5], 0.5, 1e-12);
    ticks = scale_ticks(&two, 8);
    assert_int_equal(ticks.count, 6);
    assert_near(ticks.at[0], 256, 1e-9);
    assert_near(ticks.at[5], 8192, 1e-9);
    const struct scale wrong = scale_around(SCALE_LOG10, -5, NAN);
    assert_true(wrong.low > 0 && wrong.high > wrong.low);
    struct scale threads = scale_around(SCALE_LINEAR, 1, 3);
    threads.whole = true;
    ticks = scale_ticks(&threads, 8);
    for (size_t t = 0; t < ticks.count; t++) assert_true(ticks.at[t] == floor(ticks.at[t]));
    assert_int_equal(ticks.count, 3);
}

static void numbers_read_well(void **state) {
    (void)state;
    assert_string_equal(text_seconds(0.0148).text, "14.8 ms");
    assert_string_equal(text_seconds(1.23e-5).text, "12.3 us");
    assert_string_equal(text_seconds(81.26).text, "81.3 s");
    assert_string_equal(text_seconds(0.99999).text, "1.00 s");
    assert_string_equal(text_seconds(NAN).text, "-");
    assert_string_equal(text_short(1539.6).text, "1,540");
    assert_string_equal(text_short(9.996).text, "10.0");
    assert_string_equal(text_short(0.00042).text, "0.000420");
    assert_string_equal(text_percent(0.9759, 2).text, "97.59 %");
    assert_string_equal(scale_label(UNIT_SECONDS, 0.02, 0.01).text, "20 ms");
    assert_string_equal(scale_label(UNIT_SECONDS, 0.0025, 0).text, "2.5 ms");
    assert_string_equal(scale_label(UNIT_PLAIN, 10000, 5000).text, "10,000");
    assert_string_equal(scale_label(UNIT_PLAIN, 0.25, 0.05).text, "0.25");
    assert_string_equal(scale_label(UNIT_PERCENT, 0.95, 0.01).text, "95 %");
}

static void text_becomes_no_markup(void **state) {
    (void)state;
    PRINTED(markup_text(
        out, "<b a=\"x\" c='y'>& \x01\n \xC3\xA9 \xFF \xED\xA0\x80 \xC0\xAF \xF0\x9F\x98\x80 \xE2\x82"));
    assert_string_equal(
        text, "&lt;b a=&quot;x&quot; c=&#39;y&#39;&gt;&amp;    \xC3\xA9 ? ??? ?? \xF0\x9F\x98\x80 ??");
    free(text);
}

static void tables_become_no_markup(void **state) {
    (void)state;
    static const struct column columns[] = {{"a|b", COLUMN_NAME, .key = "name"},
                                            {"<i>", COLUMN_NUMBER, .key = "text"}};
    struct table table;
    cJSON *line = cJSON_Parse("{\"name\":\"x|`y`\\n<!-- end -->\xFF\",\"text\":\"*1* | <b>\"}");
    table_open(&table, "<caption>");
    TABLE_COLUMNS(&table, columns);
    table_row(&table, line, NULL);
    cJSON_Delete(line);
    {
        PRINTED(table_markdown(out, &table));
        assert_int_equal(count_of(text, "\n"), 3);
        assert_says(
            text, "| a\\|b | &lt;i&gt; |\n|---|---:|\n| `x\\| y  <!-- end -->?` | \\*1\\* \\| &lt;b&gt; |\n");
        free(text);
    }
    PRINTED(table_html(out, &table));
    assert_null(markup_fault(text));
    assert_int_equal(count_of(text, "<tr>"), 2);
    assert_int_equal(count_of(text, "<td"), 1);
    assert_int_equal(count_of(text, "<th scope"), 3);
    free(text);
    table_close(&table);
}

/* Two series of three points, one of which a logarithmic axis cannot show. */
static void lines_have_their_marks(void **state) {
    (void)state;
    struct chart chart;
    chart_open(&chart, CHART_LINES, "A b/../c", "Time & size <1>");
    chart.x = (struct chart_axis){.title = "size", .kind = SCALE_LOG2};
    chart.y = (struct chart_axis){.title = "seconds", .kind = SCALE_LOG10, .unit = UNIT_SECONDS};
    const size_t a = chart_series(&chart, "a", chart_style_of(0)),
                 b = chart_series(&chart, "<b>", chart_style_of(1));
    for (int i = 0; i < 3; i++) {
        chart_add(&chart, a,
                  (struct chart_point){256 << i, 1e-3 * (i + 1), 0.9e-3 * (i + 1), 1.1e-3 * (i + 1)});
        chart_add_xy(&chart, b, 256 << i, i ? 1e-3 : 0);
    }
    chart_add_xy(&chart, b, NAN, 1);
    chart_add_xy(&chart, b, 1e307, 1);
    chart_add_xy(&chart, b, 1e-307, 1);
    chart_add_xy(&chart, 7, 1, 1); /* no such series */
    assert_string_equal(chart.id, "a-b----c");
    struct legend legend = {0};
    chart_legend(&legend, &chart);
    PRINTED(assert_true(chart_svg(out, &chart) > 200); legend_html(out, &legend));
    legend_free(&legend);
    assert_null(markup_fault(text));
    assert_int_equal(count_of(text, "</title></path>"), 5);
    assert_int_equal(count_of(text, "class=\"spread"), 3);
    assert_int_equal(count_of(text, "<li>"), 2);
    assert_says(text, "role=\"img\" aria-label=\"Time &amp; size &lt;1&gt;\"");
    assert_says(text, "&lt;b&gt;: 1.00 ms at 512");
    free(text);
    chart_close(&chart);
}

static void bars_add_up(void **state) {
    (void)state;
    for (int kind = CHART_STACKED; kind <= CHART_GROUPED; kind++) {
        struct chart chart;
        chart_open(&chart, (enum chart_kind)kind, "bars", "bars");
        chart.x.title = chart.y.title = "seconds";
        chart.y.unit = UNIT_SECONDS;
        chart.y.from_zero = true;
        for (size_t s = 0; s < 3; s++) chart_series(&chart, "part", chart_style_of(s));
        for (size_t c = 0; c < 2; c++) {
            names_index(&chart.categories, c ? "second" : "first");
            for (size_t s = 0; s < 3; s++)
                chart_add_xy(&chart, s, (double)c, c && s == 2 ? 0 : 0.25 * (double)(s + 1));
        }
        PRINTED(chart_svg(out, &chart));
        assert_null(markup_fault(text));
        assert_int_equal(count_of(text, "class=\"bar "), 5); /* a part without time has no bar */
        if (kind == CHART_STACKED) assert_says(text, ">1.50 s</text>");
        assert_says(text, ">second</text>");
        free(text);
        chart_close(&chart);
    }
}

static void empty_charts_can_be_drawn(void **state) {
    (void)state;
    for (int kind = CHART_LINES; kind <= CHART_GROUPED; kind++) {
        struct chart chart;
        chart_open(&chart, (enum chart_kind)kind, "", "%s", "");
        chart.x.title = chart.y.title = "";
        PRINTED(chart_svg(out, &chart));
        assert_null(markup_fault(text));
        assert_null(strstr(text, "nan"));
        assert_null(strstr(text, "inf"));
        free(text);
        chart_close(&chart);
    }
}

static void heatmaps_show_their_cells(void **state) {
    (void)state;
    struct names rows = {0}, columns = {0};
    struct heatmap map;
    for (int i = 0; i < 3; i++) names_index(&rows, (const char *[]){"1", "2", "<3>"}[i]);
    for (int i = 0; i < 2; i++) names_index(&columns, (const char *[]){"x", "y"}[i]);
    assert_true(heatmap_open(&map, "map", "A \"map\"", rows, columns));
    map.cells[0] = (struct heatmap_cell){.text = "S", .title = "<s>", .colour = 3, .strength = 0.5};
    map.cells[5] = (struct heatmap_cell){.text = "C", .title = "c", .colour = 4, .strength = 7};
    PRINTED(heatmap_svg(out, &map));
    assert_null(markup_fault(text));
    assert_int_equal(count_of(text, "class=\"cell"), 2);
    assert_says(text, "fill-opacity=\"0.50\"");
    assert_says(text, "fill-opacity=\"1.00\"");
    assert_says(text, "&lt;3&gt;");
    free(text);
    heatmap_close(&map);
}

static void images_are_png(void **state) {
    (void)state;
    const uint8_t pixels[6] = {0, 50, 100, 150, 200, 255};
    PRINTED(assert_status(png_data_uri(out, pixels, 2, 3), STATUS_OK));
    /* signature and IHDR of a 3 x 2 grey image, by the specification */
    assert_int_equal(strncmp(text, "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAMAAAACCAAAAA", 60), 0);
    assert_int_equal((strlen(text) - 22) % 4, 0);
    free(text);
    assert_status(png_data_uri(stderr, pixels, 0, 3), STATUS_BAD_DATA);
    assert_status(png_data_uri(stderr, pixels, (size_t)1 << 40, (size_t)1 << 40), STATUS_BAD_DATA);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_checker_finds_faults),
        cmocka_unit_test(steps_are_one_two_five),
        cmocka_unit_test(scales_hold_what_they_show),
        cmocka_unit_test(ticks_are_round),
        cmocka_unit_test(numbers_read_well),
        cmocka_unit_test(text_becomes_no_markup),
        cmocka_unit_test(tables_become_no_markup),
        cmocka_unit_test(lines_have_their_marks),
        cmocka_unit_test(bars_add_up),
        cmocka_unit_test(empty_charts_can_be_drawn),
        cmocka_unit_test(heatmaps_show_their_cells),
        cmocka_unit_test(images_are_png),
    };
    return cmocka_run_group_tests_name("chart", tests, NULL, NULL);
}
