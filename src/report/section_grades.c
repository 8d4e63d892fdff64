/* The submissions of an assignment: rank, rates and points. */
#include <string.h>

#include "src/base/text.h"
#include "src/report/cells.h"
#include "src/report/page.h"
#include "src/report/tables.h"

static struct text_number unit_points(double value) {
    return text_fixed(value, 1);
}

static void result_cell(struct cell *cell) {
    const char *reason = record_text(cell->line, "reason");
    cell_text(cell, "%s%s%s", record_text(cell->line, "outcome"), reason[0] ? ": " : "", reason);
}

static const struct column grades[] = {
    {"rank", COLUMN_NUMBER, .key = "rank", .unit = unit_count},
    {"file", COLUMN_NAME, .key = "file"},
    {"points", COLUMN_NUMBER, .key = "points", .unit = unit_points},
    {"NN", COLUMN_NUMBER, .key = "nn_gflops", .unit = text_short, .width = 5},
    {"TN", COLUMN_NUMBER, .key = "tn_gflops", .unit = text_short, .width = 5},
    {"NT", COLUMN_NUMBER, .key = "nt_gflops", .unit = text_short, .width = 5},
    {"of peak", COLUMN_NUMBER, .key = "share_of_peak", .unit = unit_percent},
};
static const struct column relative_column = {"relative", COLUMN_NUMBER, .key = "relative",
                                              .unit = unit_ratio};
static const struct column result_column = {"result", COLUMN_TEXT, .cell = result_cell};

void tables_grades(struct table *table, const struct selection *rows) {
    bool relative = false;
    for (size_t i = 0; i < rows->count; i++) relative |= record_has(rows->rows[i]->line, "relative");
    table_open(table, "NN, TN, NT: GFLOP/s over all products of the op. A submission that is wrong in any "
                      "check has no time.");
    table->wrap = true;
    TABLE_COLUMNS(table, grades);
    if (relative) table_columns(table, &relative_column, 1);
    table_columns(table, &result_column, 1);
    tables_fill(table, rows);
}

static void assignment_key(const struct record *record, char *key, size_t size) {
    snprintf(key, size, "%.*s", SELECTION_TEXT - 1, record_text(record->line, "assignment"));
}

static void note_counts(struct page *page, const struct selection *rows) {
    size_t right = 0, timed = 0;
    for (size_t i = 0; i < rows->count; i++) {
        right += strcmp(record_text(rows->rows[i]->line, "outcome"), "right") == 0;
        timed += record_has(rows->rows[i]->line, "products");
    }
    page_note(page,
              "%zu submissions: %zu right in all that was asked, %zu in a part of it, %zu without a time.",
              rows->count, right, timed - right, rows->count - timed);
    const double all = record_number(rows->rows[0]->header, "submissions");
    if (all > (double)rows->count)
        page_note(page, "Not complete: %.0f further submissions are not graded yet.",
                  all - (double)rows->count);
}

static void points_chart(struct page *page, const struct selection *rows, size_t number) {
    static const struct {
        const char *key, *name;
    } parts[] = {{"points_correct", "right results"}, {"points_speed", "speed"}};
    struct chart chart;
    char id[64];
    snprintf(id, sizeof id, "grades-%zu", number + 1);
    chart_open(&chart, CHART_STACKED, id, "Points");
    chart.y = (struct chart_axis){.title = "points", .from_zero = true};
    for (unsigned p = 0; p < 2; p++) {
        const size_t series = chart_series(&chart, parts[p].name, (struct chart_style){p, 0, 0});
        for (size_t i = 0; i < rows->count; i++) {
            const cJSON *line = rows->rows[i]->line;
            const double points = record_number(line, parts[p].key);
            if (points > 0)
                chart_add_xy(&chart, series,
                             (double)names_index(&chart.categories, record_text(line, "file")), points);
        }
    }
    page_chart(page, &chart, "Submissions without points are left out.");
}

static void write_grades(struct page *page) {
    struct selections all = page_selections(page, "grade", assignment_key);
    for (size_t i = 0; i < all.count; i++) {
        struct table table;
        page_heading(page, "%s", all.list[i].key);
        note_counts(page, &all.list[i]);
        tables_grades(&table, &all.list[i]);
        page_table(page, &table);
        points_chart(page, &all.list[i], i);
    }
    selections_free(&all);
}

const struct section section_grades = {"grades", "Grades", "./train grade DIR --assignment FILE -o DIR",
                                       .type = "grade", .write = write_grades};
