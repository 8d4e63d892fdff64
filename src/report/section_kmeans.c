/* Runs of k-means: inertia by iteration, time, agreement with classes against K, and the centres. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/text.h"
#include "src/report/cells.h"
#include "src/report/networks.h"
#include "src/report/page.h"
#include "src/report/row.h"

enum { MOST_CENTRES = 36 /* of a run: 2,000 px on a phone */ };

static struct text_number unit_grouped(double value) {
    return value >= 0 ? text_grouped((uint64_t)value) : (struct text_number){"-"};
}

static void points_key(const struct record *record, char *key, size_t size) {
    const char *data = record_text(record->header, "data");
    snprintf(key, size, "%.160s: %s points of %s features", data[0] ? data : "unknown points",
             unit_grouped(record_number(record->header, "points")).text,
             unit_grouped(record_number(record->header, "features")).text);
}

/* The result of a run; NULL: it was killed. */
static const cJSON *result_of(const struct records *records, const struct network *run) {
    const struct record *row = NULL;
    while ((row = records_after(records, row, "kmeans")))
        if (row->run == run->rows[0]->run) return row->line;
    return NULL;
}

/* The part of the data that the measures are of: images that no centre was moved by, if there are any. */
static const char *measured_part(const cJSON *result) {
    static const char *const parts[] = {"test", "validation", "training"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (record_has(cJSON_GetObjectItemCaseSensitive(result, parts[i]), "purity")) return parts[i];
    return "training";
}

static const cJSON *measures_of(const cJSON *result) {
    return cJSON_GetObjectItemCaseSensitive(result, measured_part(result));
}

static double clusters_of(const struct network *run) {
    const cJSON *config = cJSON_GetObjectItemCaseSensitive(run->rows[0]->header, "config");
    return strtod(record_text(config, "clusters"), NULL);
}

/* --- inertia --- */

/* So that the labels of the axis are short. */
static const struct inertia_unit {
    double value;
    const char *title;
} inertia_units[] = {{1e15, "inertia / 10^15"},
                     {1e12, "inertia / 10^12"},
                     {1e9, "inertia / 10^9"},
                     {1e6, "inertia / 10^6"},
                     {1, "inertia"}};

static const struct inertia_unit *unit_of(const struct networks *runs) {
    const struct inertia_unit *unit = inertia_units;
    double most = 0;
    for (size_t i = 0; i < runs->count; i++)
        for (size_t r = 0; r < runs->list[i].count; r++)
            most = fmax(most, record_number(runs->list[i].rows[r]->line, "inertia"));
    while (unit->value > 1 && most < unit->value) unit++;
    return unit;
}

/* The iterations of the best restart; without a result, those of the last one. */
static void add_curve(struct chart *chart, const struct network *run, const cJSON *result, double unit) {
    const cJSON *last = run->rows[run->count - 1]->line;
    const double restart = record_number(result ? result : last, "restart");
    const size_t series = chart_series(chart, run->label, run->style);
    for (size_t i = 0; i < run->count; i++) {
        const cJSON *line = run->rows[i]->line;
        if (record_number(line, "restart") == restart)
            chart_add_xy(chart, series, record_number(line, "iteration"),
                         record_number(line, "inertia") / unit);
    }
}

static void inertia_chart(struct page *page, const struct networks *runs, size_t number) {
    struct chart chart;
    char id[64];
    snprintf(id, sizeof id, "kmeans-inertia-%zu", number + 1);
    chart_open(&chart, CHART_LINES, id, "Inertia by iteration");
    chart.x = (struct chart_axis){.title = "iteration", .whole = true};
    const struct inertia_unit *unit = unit_of(runs);
    chart.y = (struct chart_axis){.title = unit->title, .log_if_wide = true};
    for (size_t i = 0; i < runs->count; i++)
        add_curve(&chart, &runs->list[i], result_of(page->records, &runs->list[i]), unit->value);
    page_chart(page, &chart,
               "Lower is better: the sum of the squared distances of all points from their nearest centres, "
               "before the centres moved. Of several restarts, the best.");
}

/* --- time --- */

static const struct row_part parts[] = {
    {"start-up, files", "start-up", "startup checkpoint"},
    {"initial centres, other", "other", "other"},
    {"GEMM NN (scores)", "NN", "gemm_nn h2d d2h"},
    {"comparison of scores", "comparison", "elementwise"},
    {"whole passes, not split", "whole passes", "graph"},
    {"sums and means", "sums", "optimizer"},
    {"conversion of points", "conversion", "batch"},
    {"evaluation, audit", "evaluation", "evaluation audit"},
};
enum { PARTS = sizeof parts / sizeof *parts };

static void time_chart(struct page *page, const struct networks *runs, size_t number) {
    struct chart chart;
    char id[64];
    snprintf(id, sizeof id, "kmeans-time-%zu", number + 1);
    chart_open(&chart, CHART_STACKED, id, "Time of a run");
    chart.y = (struct chart_axis){
        .title = "time of a run", .unit = UNIT_SECONDS, .from_zero = true, .log_if_wide = true};
    for (unsigned part = 0; part < PARTS; part++)
        chart_series(&chart, parts[part].title, (struct chart_style){part, 0, 0});
    for (size_t i = 0; i < runs->count; i++) {
        const cJSON *result = result_of(page->records, &runs->list[i]);
        if (!result) continue;
        const size_t bar = names_index(&chart.categories, runs->list[i].label);
        for (size_t part = 0; part < PARTS; part++)
            if (row_seconds(result, parts[part].keys) > 0)
                chart_add_xy(&chart, part, (double)bar, row_seconds(result, parts[part].keys));
    }
    page_chart(
        page, &chart,
        "Shorter is faster; runs differ in their numbers of iterations. Engine fused runs whole passes "
        "over the points: products and comparisons are not timed apart.");
}

/* --- agreement with the classes --- */

static const struct {
    const char *key, *name;
} measures[] = {{"purity", "purity"},
                {"nmi", "NMI"},
                {"accuracy", "accuracy by majority"},
                {"medoid_accuracy", "accuracy by medoid"}};
enum { MEASURES = sizeof measures / sizeof *measures };

/* The mean of a measure over the runs with this K, and its extremes. */
static struct chart_point point_of(const struct records *records, const struct networks *runs,
                                   double clusters, const char *key) {
    struct chart_point point = {.x = clusters, .low = INFINITY, .high = -INFINITY};
    size_t count = 0;
    for (size_t i = 0; i < runs->count; i++) {
        const double value = record_number(measures_of(result_of(records, &runs->list[i])), key);
        if (clusters_of(&runs->list[i]) != clusters || !isfinite(value)) continue;
        point.y += value;
        point.low = fmin(point.low, value);
        point.high = fmax(point.high, value);
        count++;
    }
    point.y = count ? point.y / (double)count : (double)NAN;
    return point;
}

/* Is the run the first with its K? */
static bool is_first(const struct networks *runs, size_t index) {
    for (size_t i = 0; i < index; i++)
        if (clusters_of(&runs->list[i]) == clusters_of(&runs->list[index])) return false;
    return true;
}

/* Is it the first of them that was not killed? */
static bool is_first_result(const struct records *records, const struct networks *runs, size_t index) {
    for (size_t i = 0; i < index; i++)
        if (clusters_of(&runs->list[i]) == clusters_of(&runs->list[index]) &&
            result_of(records, &runs->list[i]))
            return false;
    return result_of(records, &runs->list[index]) != NULL;
}

static size_t different_clusters(const struct records *records, const struct networks *runs) {
    size_t count = 0;
    for (size_t i = 0; i < runs->count; i++)
        count += is_first(runs, i) &&
                 isfinite(point_of(records, runs, clusters_of(&runs->list[i]), measures[0].key).y);
    return count;
}

static void quality_chart(struct page *page, const struct networks *runs, size_t number) {
    struct chart chart;
    char id[64];
    const char *part = "training";
    if (different_clusters(page->records, runs) < 2) return;
    for (size_t i = 0; i < runs->count; i++) {
        const cJSON *result = result_of(page->records, &runs->list[i]);
        if (result) part = measured_part(result);
    }
    snprintf(id, sizeof id, "kmeans-quality-%zu", number + 1);
    chart_open(&chart, CHART_LINES, id, "Clusters and classes");
    chart.x = (struct chart_axis){.title = "number of clusters K", .kind = SCALE_LOG10};
    chart.y = (struct chart_axis){.title = "share", .unit = UNIT_PERCENT};
    for (size_t m = 0; m < MEASURES; m++) {
        const size_t series = chart_series(&chart, measures[m].name, chart_style_of(m));
        for (size_t i = 0; i < runs->count; i++)
            if (is_first(runs, i))
                chart_add(&chart, series,
                          point_of(page->records, runs, clusters_of(&runs->list[i]), measures[m].key));
    }
    page_chart(
        page, &chart,
        "Higher is better, on the %s images. Purity rises with K for any clustering; NMI does not. By "
        "majority, the classes of all training images are known; by medoid, only those of the K images "
        "nearest to the centres. Of several runs with one K, the mean, and a line from the least to "
        "the largest.",
        part);
}

/* --- the table --- */

/* In these cells the record is the result (NULL: none), the context the run. */
static void run_cell(struct cell *cell) {
    cell_text(cell, "%s", ((const struct network *)cell->context)->label);
}

static void iterations_cell(struct cell *cell) {
    const struct network *run = cell->context;
    const cJSON *last = run->rows[run->count - 1]->line;
    cell_text(
        cell, "%s",
        unit_count(cell->line ? cell_number(cell, "iterations") : record_number(last, "iteration")).text);
}

static void end_cell(struct cell *cell) {
    cell_text(cell, "%s", cell->line ? record_text(cell->line, "end") : "no result");
}

static void exact_cell(struct cell *cell) {
    cell_text(cell, "%s", !cell->line ? "-" : record_true(cell->line, "exact") ? "exact" : "not certified");
}

/* A measure of the part that is shown. */
static void measure_cell(struct cell *cell) {
    const double value = record_number(measures_of(cell->line), cell->column->key);
    if (strcmp(cell->column->key, "nmi") == 0 || strcmp(cell->column->key, "ari") == 0) {
        cell_text(cell, "%s", text_fixed(value, 4).text);
    } else {
        cell_text(cell, "%s", text_percent(value, 2).text);
    }
}

static const struct column columns[] = {
    {"run", COLUMN_TEXT, .cell = run_cell},
    {"iterations", COLUMN_NUMBER, .cell = iterations_cell},
    {"end", COLUMN_TEXT, .cell = end_cell},
    {"inertia", COLUMN_NUMBER, .key = "inertia", .unit = text_short},
    {"labels", COLUMN_TEXT, .cell = exact_cell},
    {"purity", COLUMN_NUMBER, .key = "purity", .cell = measure_cell},
    {"NMI", COLUMN_NUMBER, .key = "nmi", .cell = measure_cell},
    {"ARI", COLUMN_NUMBER, .key = "ari", .cell = measure_cell},
    {"by majority", COLUMN_NUMBER, .key = "accuracy", .cell = measure_cell},
    {"by medoid", COLUMN_NUMBER, .key = "medoid_accuracy", .cell = measure_cell},
    {"whole run", COLUMN_NUMBER, .key = "total_seconds", .unit = text_seconds},
};

static void run_table(struct page *page, const struct networks *runs) {
    struct table table;
    table_open(&table,
               "Each run at its end. Inertia is of the training points; purity, NMI, ARI and the "
               "accuracies by majority and by medoid are of the test images, or, without them, of the "
               "validation or training images.");
    TABLE_COLUMNS(&table, columns);
    for (size_t i = 0; i < runs->count; i++)
        table_row(&table, result_of(page->records, &runs->list[i]), &runs->list[i]);
    page_table(page, &table);
}

/* --- the centres --- */

static void write_centre(struct page *page, const cJSON *line) {
    struct image_text text;
    const char *class = record_text(line, "class");
    const struct text_number cluster = unit_count(record_number(line, "cluster"));
    snprintf(text.alternative, sizeof text.alternative, "centre %s%s%.60s", cluster.text,
             class[0] ? ", mostly " : "", class);
    snprintf(text.bold, sizeof text.bold, "%.60s", class[0] ? class : cluster.text);
    snprintf(text.rest, sizeof text.rest, ", %s points", unit_grouped(record_number(line, "points")).text);
    snprintf(text.below, sizeof text.below, "medoid #%s", unit_count(record_number(line, "medoid")).text);
    page_image(page, line, &text);
}

static void write_centres(struct page *page, const struct network *run) {
    const struct record *row = NULL;
    const size_t number = run->rows[0]->run;
    size_t count = 0, shown = 0;
    while ((row = records_after(page->records, row, "kmeans_centre")))
        count += row->run == number && page_has_image(row->line);
    if (!count) return;
    page_heading(page, "Centres of %s", run->label);
    page_note(page,
              "Below each centre: the class of most of its training images in bold, their number, and the "
              "number of the training image nearest to it.");
    if (count > MOST_CENTRES) page_note(page, "The first %d of %zu in the log.", MOST_CENTRES, count);
    page_images_open(page);
    while (shown < MOST_CENTRES && (row = records_after(page->records, row, "kmeans_centre"))) {
        if (row->run != number || !page_has_image(row->line)) continue;
        write_centre(page, row->line);
        shown++;
    }
    page_images_close(page);
}

static void write_points(struct page *page, struct selection *rows, size_t number) {
    struct networks runs = networks_of(rows);
    page_heading(page, "%s", rows->key);
    page_columns_open(page);
    inertia_chart(page, &runs, number);
    time_chart(page, &runs, number);
    quality_chart(page, &runs, number);
    page_columns_close(page);
    run_table(page, &runs);
    for (size_t i = 0; i < runs.count; i++)
        if (is_first_result(page->records, &runs, i)) write_centres(page, &runs.list[i]);
    free(runs.list);
}

static void write_kmeans(struct page *page) {
    struct selections points = page_selections(page, "kmeans_iteration", points_key);
    for (size_t i = 0; i < points.count; i++) write_points(page, &points.list[i], i);
    selections_free(&points);
}

const struct section section_kmeans = {"kmeans", "k-means", "./train kmeans --log FILE",
                                       .type = "kmeans_iteration", .write = write_kmeans};
