/* The steps of k-means: speed-up over one thread of the host against block size, the parts of a loop, and its
   spread. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "src/base/text.h"
#include "src/report/cells.h"
#include "src/report/page.h"
#include "src/report/roof.h"
#include "src/report/row.h"
#include "src/report/tables.h"

static struct text_number unit_grouped(double value) {
    return value >= 0 ? text_grouped((uint64_t)value) : (struct text_number){"-"};
}

void selection_kmeans_steps(const struct record *record, char *key, size_t size) {
    const cJSON *line = record->line;
    snprintf(key, size, "%s points of %s features, %.16s, K = %s",
             unit_grouped(record_number(line, "points")).text,
             unit_grouped(record_number(line, "features")).text, record_text(line, "dtype"),
             unit_grouped(record_number(line, "clusters")).text);
}

/* --- the table --- */

/* The mean of the loop of this step in the same data; NaN: there is none. */
static double mean_of(const struct selection *rows, const char *step) {
    for (size_t i = 0; i < rows->count; i++)
        if (strcmp(record_text(rows->rows[i]->line, "step"), step) == 0 &&
            !row_refused(rows->rows[i]->line, NULL, 0))
            return record_number(rows->rows[i]->line, "mean_seconds");
    return (double)NAN;
}

static void block_cell(struct cell *cell) {
    cell_text(cell, "%s",
              record_has(cell->line, "block_size") ? unit_count(cell_number(cell, "block_size")).text : "-");
}

/* A row that is printed as it is measured has no selection; rows of other programs have no speed-up. */
static void speedup_cell(struct cell *cell) {
    const struct selection *rows = cell->context;
    const double mean = cell_number(cell, "mean_seconds");
    cell_text(cell, "%s",
              text_short(rows ? mean_of(rows, "serial") / mean : cell_number(cell, "speedup")).text);
}

static const struct column columns[] = {
    {"step", COLUMN_TEXT, .key = "step", .setup = true, .width = 12},
    {"backend", COLUMN_NAME, .key = "backend", .setup = true, .width = 12},
    {"block", COLUMN_NUMBER, .cell = block_cell, .setup = true},
    {"loop, mean", COLUMN_NUMBER, .key = "mean_seconds", .unit = text_seconds, .width = 10},
    {"min to max", COLUMN_NUMBER, .cell = cell_spread, .width = 18},
    {"GPU", COLUMN_NUMBER, .key = "gpu", .cell = cell_time, .width = 8, .spare = 1},
    {"CPU", COLUMN_NUMBER, .key = "cpu", .cell = cell_time, .width = 8, .spare = 1},
    {"transfers", COLUMN_NUMBER, .key = "transfers", .cell = cell_time, .width = 9, .spare = 1},
    {"speed-up", COLUMN_NUMBER, .cell = speedup_cell, .width = 8},
    {"start", COLUMN_NUMBER, .key = "startup_seconds", .unit = text_seconds, .spare = 2},
};

void tables_kmeans_steps(struct table *table, const struct selection *rows) {
    table_open(table,
               "A loop of Lloyd's algorithm: labels and new centres. Speed-up is that of the mean over "
               "step serial, one thread of the host. Start: what comes before the first loop, copies and "
               "checks among it.");
    TABLE_COLUMNS(table, columns);
    tables_fill(table, rows);
}

/* --- charts --- */

/* "tuned nearest"; of a kernel of the course its name alone. */
static void name_of(const cJSON *line, char *name, size_t size) {
    const char *step = record_text(line, "step"), *backend = record_text(line, "backend");
    const bool alone = record_has(line, "block_size") || !backend[0] || strcmp(step, backend) == 0;
    snprintf(name, size, "%.60s%s%.60s", step, alone ? "" : ", ", alone ? "" : backend);
}

/* A curve for each step with block sizes; a line across the chart for each other row. value(row) is what is
   drawn. */
static void add_curves(struct chart *chart, const struct selection *rows,
                       struct chart_point (*point_of)(const cJSON *line, double base), double base) {
    struct names names = {0};
    for (size_t i = 0; i < rows->count; i++) {
        const cJSON *line = rows->rows[i]->line;
        const struct chart_point point = point_of(line, base);
        char name[128];
        if (row_refused(line, NULL, 0)) continue;
        name_of(line, name, sizeof name);
        if (!record_has(line, "block_size")) {
            chart_reference(chart, point.y, "%s", name);
            continue;
        }
        const size_t known = names.count, at = names_index(&names, name);
        if (at == known) chart_series(chart, name, chart_style_of(at));
        chart_add(chart, at, point);
    }
    names_free(&names);
}

static struct chart_point speedup_point(const cJSON *line, double base) {
    return (struct chart_point){record_number(line, "block_size"), base / record_number(line, "mean_seconds"),
                                (double)NAN, (double)NAN};
}

static struct chart_point seconds_point(const cJSON *line, double base) {
    (void)base;
    return (struct chart_point){record_number(line, "block_size"), record_number(line, "mean_seconds"),
                                record_number(line, "min_seconds"), record_number(line, "max_seconds")};
}

static void speedup_chart(struct page *page, const struct selection *rows, size_t number, const char *step,
                          const char *base) {
    struct chart chart;
    char id[64];
    const double mean = mean_of(rows, step);
    if (!isfinite(mean)) return;
    snprintf(id, sizeof id, "kmeans-steps-%s-%zu", step, number + 1);
    chart_open(&chart, CHART_LINES, id, "Speed-up over %s", base);
    chart.x = (struct chart_axis){.title = "threads of a block", .kind = SCALE_LOG2};
    chart.y = (struct chart_axis){.title = "speed-up", .from_zero = true, .log_if_wide = true};
    add_curves(&chart, rows, speedup_point, mean);
    page_chart(
        page, &chart,
        "Higher is faster: the mean loop of %s, divided by that of each step. Lines across the chart have "
        "no block size of their own.",
        base);
}

static void spread_chart(struct page *page, const struct selection *rows, size_t number) {
    struct chart chart;
    char id[64];
    snprintf(id, sizeof id, "kmeans-steps-loop-%zu", number + 1);
    chart_open(&chart, CHART_LINES, id, "Time of a loop");
    chart.x = (struct chart_axis){.title = "threads of a block", .kind = SCALE_LOG2};
    chart.y = (struct chart_axis){
        .title = "time of a loop", .unit = UNIT_SECONDS, .from_zero = true, .log_if_wide = true};
    add_curves(&chart, rows, seconds_point, 0);
    page_chart(page, &chart,
               "Lower is faster: the mean of the loops of a run, from the shortest to the longest.");
}

/* Is this the fastest block size of its step? */
static bool is_best(const struct selection *rows, const cJSON *line) {
    char name[128], other[128];
    name_of(line, name, sizeof name);
    for (size_t i = 0; i < rows->count; i++) {
        const cJSON *one = rows->rows[i]->line;
        name_of(one, other, sizeof other);
        if (!row_refused(one, NULL, 0) && strcmp(name, other) == 0 &&
            record_number(one, "mean_seconds") < record_number(line, "mean_seconds"))
            return false;
    }
    return true;
}

static const struct row_part parts[] = {
    {"GPU", "GPU", "gpu"}, {"CPU", "CPU", "cpu"}, {"transfers", "transfers", "transfers"}};
enum { PARTS = sizeof parts / sizeof *parts };

static bool any_on_gpu(const struct selection *rows) {
    for (size_t i = 0; i < rows->count; i++)
        if (row_on_gpu(rows->rows[i]->line) && !row_refused(rows->rows[i]->line, NULL, 0)) return true;
    return false;
}

static bool any_has_blocks(const struct selection *rows) {
    for (size_t i = 0; i < rows->count; i++)
        if (record_has(rows->rows[i]->line, "block_size")) return true;
    return false;
}

static void parts_chart(struct page *page, const struct selection *rows, size_t number) {
    struct chart chart;
    char id[64];
    snprintf(id, sizeof id, "kmeans-steps-parts-%zu", number + 1);
    chart_open(&chart, CHART_STACKED, id, "Parts of a loop");
    chart.y = (struct chart_axis){.title = "time of a loop", .unit = UNIT_SECONDS, .from_zero = true};
    const bool gpu_alone = any_on_gpu(rows); /* beside a GPU the host fills the chart */
    for (unsigned part = 0; part < PARTS; part++)
        chart_series(&chart, parts[part].title, (struct chart_style){part, 0, 0});
    for (size_t i = 0; i < rows->count; i++) {
        const cJSON *line = rows->rows[i]->line;
        char name[160];
        if (row_refused(line, NULL, 0) || (gpu_alone && !row_on_gpu(line)) || !is_best(rows, line)) continue;
        name_of(line, name, sizeof name);
        if (record_has(line, "block_size"))
            text_append(name, sizeof name, ", %s", unit_count(record_number(line, "block_size")).text);
        const size_t bar = names_index(&chart.categories, name);
        for (size_t part = 0; part < PARTS; part++)
            chart_add_xy(&chart, part, (double)bar, row_seconds(line, parts[part].keys));
    }
    page_chart(
        page, &chart,
        "Shorter is faster: the mean loop of each step%s, at its fastest block size. CPU is the update of "
        "the centres on the host, and what the host does or waits for between kernels.",
        gpu_alone ? " on a GPU" : "");
}

/* The rows of one device: those on a GPU, else those with as many threads as the peak was measured with. */
static void roofline_chart(struct page *page, const struct selection *rows, size_t number) {
    struct chart chart;
    char id[64];
    struct roof roof = {(double)NAN, (double)NAN};
    const bool gpu = any_on_gpu(rows);
    double intensity = (double)NAN;
    for (size_t i = 0; i < rows->count && !(roof.peak > 0); i++)
        if (row_on_gpu(rows->rows[i]->line) == gpu) roof = roof_of(page->records, rows->rows[i]);
    if (!(roof.peak > 0)) return;
    snprintf(id, sizeof id, "kmeans-steps-roofline-%zu", number + 1);
    chart_open(&chart, CHART_LINES, id, "Roofline of the loop");
    chart.x = (struct chart_axis){.title = "flop per compulsory byte", .kind = SCALE_LOG10};
    chart.y = (struct chart_axis){.title = "GFLOP/s of x.c alone", .kind = SCALE_LOG10};
    for (size_t i = 0; i < rows->count; i++) {
        const cJSON *line = rows->rows[i]->line;
        const struct roof own = roof_of(page->records, rows->rows[i]);
        char name[128];
        if (row_refused(line, NULL, 0) || row_on_gpu(line) != gpu || !(own.peak > 0) || !is_best(rows, line))
            continue;
        intensity = roof_intensity(line);
        name_of(line, name, sizeof name);
        const size_t series = chart_series(&chart, name, chart_style_of(chart.series_count));
        if (series >= chart.series_count) break;
        chart.series[series].line = false;
        chart_add_xy(&chart, series, intensity, record_number(line, "gflops"));
    }
    roof_draw(&chart, &roof, intensity, intensity);
    page_chart(page, &chart,
               "Each step at its fastest block size: the %s flop of the products of all points with all "
               "centres, by the time of a whole loop. The steps have the same floor: points are read once. "
               "One above the roof scores in a lower precision and proves its labels, or keeps points in a "
               "cache. Roof: %s GFLOP/s, %s GB/s.",
               text_short(record_number(rows->rows[0]->line, "points") *
                          record_number(rows->rows[0]->line, "clusters") *
                          record_number(rows->rows[0]->line, "features") * 2)
                   .text,
               text_short(roof.peak).text, text_short(roof.bandwidth).text);
}

static void write_points(struct page *page, const struct selection *rows, size_t number) {
    struct table table;
    page_heading(page, "%s", rows->key);
    page_columns_open(page);
    if (any_has_blocks(rows)) {
        speedup_chart(page, rows, number, "serial", "one thread of the host");
        speedup_chart(page, rows, number, "scikit-learn", "scikit-learn");
        spread_chart(page, rows, number);
    }
    parts_chart(page, rows, number);
    roofline_chart(page, rows, number);
    page_columns_close(page);
    tables_kmeans_steps(&table, rows);
    page_table(page, &table);
}

static void write_steps(struct page *page) {
    struct selections points = page_selections(page, "kmeans_step", selection_kmeans_steps);
    for (size_t i = 0; i < points.count; i++) write_points(page, &points.list[i], i);
    selections_free(&points);
}

const struct section section_kmeans_steps = {"kmeans-steps", "Steps of k-means",
                                             "./train bench kmeans --log FILE", .type = "kmeans_step",
                                             .write = write_steps};
