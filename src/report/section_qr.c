/* Triangles of sliding windows: time against the width of panels and the number of windows, its parts,
   speed-up over one by one, sizes, and where the Gram matrix fails. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "src/base/text.h"
#include "src/report/cells.h"
#include "src/report/page.h"
#include "src/report/tables.h"

static struct text_number grouped(const cJSON *line, const char *key) {
    const double value = record_number(line, key);
    return value >= 0 ? text_grouped((uint64_t)value) : (struct text_number){"-"};
}

static void selection_size(const struct record *record, char *key, size_t size) {
    const cJSON *line = record->line;
    snprintf(key, size, "Windows of %s x %s, %s row%s apart, %.16s", grouped(line, "rows").text,
             grouped(line, "columns").text, grouped(line, "stride").text,
             record_number(line, "stride") == 1 ? "" : "s", record_text(line, "dtype"));
}

void selection_qr(const struct record *record, char *key, size_t size) {
    const double condition = record_number(record->line, "condition");
    selection_size(record, key, size);
    if (condition > 1) text_append(key, size, ", condition %g", condition);
}

/* --- charts --- */

/* A name has one style in all charts of the section. */
struct drawing {
    struct page *page;
    const struct selection *rows;
    struct names *names;
    size_t number;
};

static void name_of(const cJSON *line, char *name, size_t size) {
    const char *backend = record_text(line, "backend");
    snprintf(name, size, "%.60s%s%.60s", record_text(line, "method"), backend[0] ? ", " : "", backend);
}

static bool refused(const cJSON *line) {
    return row_refused(line, NULL, 0);
}

static double most_windows(const struct selection *rows) {
    double most = 0;
    for (size_t i = 0; i < rows->count; i++)
        if (!refused(rows->rows[i]->line)) most = fmax(most, record_number(rows->rows[i]->line, "windows"));
    return most;
}

static bool same(const cJSON *a, const cJSON *b, const char *key) {
    return record_has(a, key) == record_has(b, key) &&
           (!record_has(a, key) || record_number(a, key) == record_number(b, key));
}

/* Is this the fastest nb of its name, number of windows and condition? */
static bool is_best(const struct selection *rows, const cJSON *line) {
    char name[128], other[128];
    name_of(line, name, sizeof name);
    for (size_t i = 0; i < rows->count; i++) {
        const cJSON *one = rows->rows[i]->line;
        name_of(one, other, sizeof other);
        if (!refused(one) && strcmp(name, other) == 0 && same(one, line, "windows") &&
            same(one, line, "condition") &&
            record_number(one, "median_seconds") < record_number(line, "median_seconds"))
            return false;
    }
    return !refused(line);
}

static bool is_naive(const cJSON *line) {
    return strcmp(record_text(line, "method"), "naive") == 0;
}

/* The series of a row, added if new. */
static size_t series_of(const struct drawing *drawing, struct chart *chart, const cJSON *line) {
    char name[128];
    name_of(line, name, sizeof name);
    for (size_t s = 0; s < chart->series_count; s++)
        if (strcmp(chart->series[s].name, name) == 0) return s;
    return chart_series(chart, name, chart_style_of(names_index(drawing->names, name)));
}

static void open_lines(const struct drawing *drawing, struct chart *chart, const char *id, const char *title,
                       const char *x, const char *y) {
    char full[64];
    snprintf(full, sizeof full, "qr-%s-%zu", id, drawing->number + 1);
    chart_open(chart, CHART_LINES, full, "%s", title);
    chart->x = (struct chart_axis){.title = x, .kind = SCALE_LOG2};
    chart->y = (struct chart_axis){.title = y, .from_zero = true, .log_if_wide = true};
}

/* Writes the chart if it has a curve. */
__attribute__((format(printf, 3, 4))) static void write_lines(const struct drawing *drawing,
                                                              struct chart *chart, const char *format, ...) {
    char caption[512];
    va_list args;
    bool curve = false;
    va_start(args, format);
    vsnprintf(caption, sizeof caption, format, args);
    va_end(args);
    for (size_t s = 0; s < chart->series_count; s++) curve |= chart->series[s].count > 1;
    chart_sort(chart);
    if (curve) page_chart(drawing->page, chart, "%s", caption);
    chart_close(chart);
}

static void width_chart(const struct drawing *drawing) {
    const struct selection *rows = drawing->rows;
    struct chart chart;
    const double most = most_windows(rows);
    open_lines(drawing, &chart, "nb", "Time against the width of panels", "nb, columns of a panel",
               "time of all windows");
    chart.y.unit = UNIT_SECONDS;
    for (size_t i = 0; i < rows->count; i++) {
        const cJSON *line = rows->rows[i]->line;
        if (!refused(line) && record_number(line, "windows") == most && record_has(line, "nb"))
            chart_add(&chart, series_of(drawing, &chart, line),
                      (struct chart_point){record_number(line, "nb"), record_number(line, "median_seconds"),
                                           record_number(line, "min_seconds"),
                                           record_number(line, "max_seconds")});
    }
    write_lines(drawing, &chart,
                "Lower is faster: the median, from the shortest to the longest run, for %s windows.",
                text_grouped((uint64_t)most).text);
}

/* Beside rows of other programs, which have no nb: the fastest of each. */
static void programs_chart(const struct drawing *drawing) {
    const struct selection *rows = drawing->rows;
    struct chart chart;
    char id[64];
    bool others = false;
    const double most = most_windows(rows);
    snprintf(id, sizeof id, "qr-programs-%zu", drawing->number + 1);
    chart_open(&chart, CHART_STACKED, id, "Programs");
    chart.y = (struct chart_axis){
        .title = "time of all windows", .unit = UNIT_SECONDS, .from_zero = true, .log_if_wide = true};
    chart_series(&chart, "time of all windows", (struct chart_style){0, 0, 0});
    for (size_t i = 0; i < rows->count; i++) {
        const cJSON *line = rows->rows[i]->line;
        char name[128];
        if (!is_best(rows, line) || record_number(line, "windows") != most) continue;
        others |= !record_has(line, "nb");
        name_of(line, name, sizeof name);
        chart_add_xy(&chart, 0, (double)names_index(&chart.categories, name),
                     record_number(line, "median_seconds"));
    }
    if (others)
        page_chart(drawing->page, &chart, "Shorter is faster: the median for %s windows, at the fastest nb.",
                   text_grouped((uint64_t)most).text);
    chart_close(&chart);
}

/* `key` against the number of windows, each method at its fastest nb. */
static void count_chart(const struct drawing *drawing, const char *id, const char *title, const char *y,
                        const char *key, enum scale_unit unit, const char *caption) {
    const struct selection *rows = drawing->rows;
    struct chart chart;
    open_lines(drawing, &chart, id, title, "number of windows", y);
    chart.y.unit = unit;
    for (size_t i = 0; i < rows->count; i++) {
        const cJSON *line = rows->rows[i]->line;
        if (record_has(line, "nb") && is_best(rows, line))
            chart_add_xy(&chart, series_of(drawing, &chart, line), record_number(line, "windows"),
                         record_number(line, key));
    }
    write_lines(drawing, &chart, "%s", caption);
}

static const struct row_part stages[] = {{"panels", "panels", "panel"},
                                         {"products NN (V^T A)", "NN", "gemm_nn"},
                                         {"products TN (A - V W)", "TN", "gemm_tn"},
                                         {"products NT", "NT", "gemm_nt"},
                                         {"rows, triangles, other", "other", "elementwise batch other"},
                                         {"transfers", "transfers", "h2d d2h"}};
enum { STAGES = sizeof stages / sizeof *stages };

/* Beside method naive the others are too short to see. */
static void stages_chart(const struct drawing *drawing) {
    const struct selection *rows = drawing->rows;
    struct chart chart;
    char id[64];
    const double most = most_windows(rows);
    snprintf(id, sizeof id, "qr-stages-%zu", drawing->number + 1);
    chart_open(&chart, CHART_STACKED, id, "Stages");
    chart.y = (struct chart_axis){.title = "time of all windows", .unit = UNIT_SECONDS, .from_zero = true};
    for (unsigned stage = 0; stage < STAGES; stage++)
        chart_series(&chart, stages[stage].title, (struct chart_style){stage, 0, 0});
    for (size_t i = 0; i < rows->count; i++) {
        const cJSON *line = rows->rows[i]->line;
        char name[160];
        if (refused(line) || !record_has(line, "nb") || record_number(line, "windows") != most ||
            is_naive(line))
            continue;
        name_of(line, name, sizeof name);
        text_append(name, sizeof name, ", nb %s", unit_count(record_number(line, "nb")).text);
        const size_t bar = names_index(&chart.categories, name);
        for (size_t stage = 0; stage < STAGES; stage++)
            chart_add_xy(&chart, stage, (double)bar, row_seconds(line, stages[stage].keys));
    }
    page_chart(drawing->page, &chart,
               "Shorter is faster: the parts of the median run for %s windows. Panels are the work of one "
               "column after the other; products are those of the backend.",
               text_grouped((uint64_t)most).text);
}

static void write_size(const struct drawing *drawing) {
    struct table table;
    page_heading(drawing->page, "%s", drawing->rows->key);
    page_columns_open(drawing->page);
    programs_chart(drawing);
    width_chart(drawing);
    count_chart(drawing, "windows", "Time against the number of windows", "time of a window",
                "window_seconds", UNIT_SECONDS,
                "Lower is faster: the more windows, the more of them share the common part. Each at its "
                "fastest nb.");
    count_chart(drawing, "speedup", "Speed-up over one by one", "speed-up", "speedup", UNIT_PLAIN,
                "Higher is faster: each against method naive of the same backend.");
    stages_chart(drawing);
    page_columns_close(drawing->page);
    tables_qr(&table, drawing->rows);
    page_table(drawing->page, &table);
}

/* --- charts of several sizes or condition numbers --- */

/* The sizes for which the most windows were measured. */
static void sizes_chart(const struct drawing *drawing, const struct selections *all) {
    struct chart chart;
    chart_open(&chart, CHART_GROUPED, "qr-sizes", "Speed-up over one by one, by size");
    chart.x = (struct chart_axis){.title = "rows x columns of a window, number of windows"};
    chart.y = (struct chart_axis){.title = "speed-up", .from_zero = true, .log_if_wide = true};
    for (size_t i = 0; i < all->count; i++) {
        const struct selection *rows = &all->list[i];
        const double most = most_windows(rows);
        for (size_t r = 0; r < rows->count; r++) {
            const cJSON *line = rows->rows[r]->line;
            char size[128];
            if (!is_best(rows, line) || record_number(line, "windows") != most ||
                record_number(line, "condition") > 1 || !(record_number(line, "speedup") > 0))
                continue;
            snprintf(size, sizeof size, "%s x %s, %s", unit_count(record_number(line, "rows")).text,
                     unit_count(record_number(line, "columns")).text, unit_count(most).text);
            chart_add_xy(&chart, series_of(drawing, &chart, line),
                         (double)names_index(&chart.categories, size), record_number(line, "speedup"));
        }
    }
    if (chart.categories.count > 1)
        page_chart(drawing->page, &chart,
                   "Higher is faster: each method at its fastest nb, against method naive of the same "
                   "backend.");
    chart_close(&chart);
}

/* The rows of one size. */
static void condition_chart(const struct drawing *drawing) {
    const struct selection *rows = drawing->rows;
    struct chart chart;
    char id[64];
    const double most = most_windows(rows);
    snprintf(id, sizeof id, "qr-condition-%zu", drawing->number + 1);
    chart_open(&chart, CHART_LINES, id, "Loss of orthogonality");
    chart.x = (struct chart_axis){.title = "condition number", .kind = SCALE_LOG10};
    chart.y = (struct chart_axis){.title = "|Q^T Q - I| of Q = A R^-1", .kind = SCALE_LOG10};
    for (size_t i = 0; i < rows->count; i++) {
        const cJSON *line = rows->rows[i]->line;
        if (is_best(rows, line) && record_number(line, "windows") == most)
            chart_add_xy(&chart, series_of(drawing, &chart, line), record_number(line, "condition"),
                         record_number(line, "orthogonality"));
    }
    write_lines(drawing, &chart,
                "%s. Lower is more accurate: the loss grows with the condition number for orthogonal "
                "transformations, and with its square for the Gram matrix until its Cholesky factorisation "
                "fails and its curve ends.",
                rows->key);
}

static bool any_condition(const struct selection *rows) {
    for (size_t i = 0; i < rows->count; i++)
        if (record_number(rows->rows[i]->line, "condition") > 1) return true;
    return false;
}

static void write_conditions(struct drawing *drawing) {
    struct selections sizes = page_selections(drawing->page, "qr", selection_size);
    for (size_t i = 0; i < sizes.count; i++) {
        drawing->rows = &sizes.list[i];
        drawing->number = i;
        if (any_condition(drawing->rows)) condition_chart(drawing);
    }
    selections_free(&sizes);
}

static void write_qr(struct page *page) {
    struct selections sizes = page_selections(page, "qr", selection_qr);
    struct names names = {0};
    struct drawing drawing = {.page = page, .names = &names};
    for (size_t i = 0; i < sizes.count; i++) {
        drawing.rows = &sizes.list[i];
        drawing.number = i;
        write_size(&drawing);
    }
    if (sizes.count > 1) page_heading(page, "All sizes");
    page_columns_open(page);
    sizes_chart(&drawing, &sizes);
    write_conditions(&drawing);
    page_columns_close(page);
    names_free(&names);
    selections_free(&sizes);
}

const struct section section_qr = {"qr", "QR of sliding windows", "./train bench qr --log FILE", .type = "qr",
                                   .write = write_qr};
