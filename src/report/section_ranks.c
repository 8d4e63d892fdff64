/* Speed-up against processes, with the ideal line. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "src/base/text.h"
#include "src/report/cells.h"
#include "src/report/page.h"
#include "src/report/tables.h"

static void efficiency_cell(struct cell *cell) {
    cell_text(cell, "%s", text_percent(cell_number(cell, "speedup") / cell_number(cell, "ideal"), 0).text);
}

static void communication_cell(struct cell *cell) {
    cell_text(cell, "%s", text_percent(cell_number(cell, "communication"), 1).text);
}

static void hidden_cell(struct cell *cell) {
    cell_text(cell, "%s", text_percent(cell_number(cell, "hidden_communication"), 1).text);
}

static const struct column columns[] = {
    {"scaling", COLUMN_NAME, .key = "scaling", .width = 8},
    {"processes", COLUMN_NUMBER, .key = "ranks", .unit = unit_count},
    {"batch", COLUMN_NUMBER, .key = "batch_size", .unit = unit_count},
    {"epoch", COLUMN_NUMBER, .key = "epoch_seconds", .cell = cell_epoch_median, .width = 8},
    {"min to max", COLUMN_NUMBER, .cell = cell_epoch_spread, .width = 18, .spare = 1},
    {"speed-up", COLUMN_NUMBER, .key = "speedup", .unit = unit_ratio},
    {"efficiency", COLUMN_NUMBER, .cell = efficiency_cell},
    {"communication", COLUMN_NUMBER, .cell = communication_cell},
    {"hidden", COLUMN_NUMBER, .cell = hidden_cell, .spare = 2},
};

void tables_ranks(struct table *table, const struct selection *rows) {
    table_open(table,
               "The time of an epoch by number of processes. Strong: one batch for all; weak: one for each. "
               "Communication is its share of the time of training on rank 0, waiting for others included; "
               "hidden is what other work overlaps, as a share of the same time.");
    TABLE_COLUMNS(table, columns);
    tables_fill(table, rows);
}

static void add_lines(struct chart *chart, const struct selection *rows, const char *scaling,
                      struct chart_style style) {
    size_t series = SIZE_MAX;
    for (size_t i = 0; i < rows->count; i++) {
        const cJSON *line = rows->rows[i]->line;
        if (strcmp(record_text(line, "scaling"), scaling) != 0) continue;
        if (series == SIZE_MAX) series = chart_series(chart, scaling, style);
        chart_add_xy(chart, series, record_number(line, "ranks"), record_number(line, "speedup"));
    }
}

static void write_ranks(struct page *page) {
    struct selections configs = page_selections(page, "ranks", selection_config_dtype);
    for (size_t i = 0; i < configs.count; i++) {
        const struct selection *rows = &configs.list[i];
        struct table table;
        struct chart chart;
        char id[64];
        double most = 1;
        for (size_t r = 0; r < rows->count; r++)
            most = fmax(most, record_number(rows->rows[r]->line, "ranks"));
        page_heading(page, "%s", rows->key);
        snprintf(id, sizeof id, "ranks-%zu", i + 1);
        chart_open(&chart, CHART_LINES, id, "Speed-up against processes");
        chart.x = (struct chart_axis){.title = "processes", .whole = true};
        chart.y = (struct chart_axis){.title = "speed-up", .from_zero = true};
        const size_t ideal = chart_series(&chart, "ideal", (struct chart_style){7, 0, 3});
        chart_add_xy(&chart, ideal, 1, 1);
        chart_add_xy(&chart, ideal, fmin(most, 4096), fmin(most, 4096));
        if (ideal < chart.series_count) chart.series[ideal].marks = false;
        add_lines(&chart, rows, "strong", (struct chart_style){0, 0, 0});
        add_lines(&chart, rows, "weak", (struct chart_style){1, 1, 0});
        page_columns_open(page);
        page_chart(
            page, &chart,
            "On the ideal line n processes are n times as fast as one. A curve bends away from it because of "
            "the sums between them, and of work that each does again, such as the update of the weights.");
        page_columns_close(page);
        tables_ranks(&table, rows);
        page_table(page, &table);
    }
    selections_free(&configs);
}

const struct section section_ranks = {"ranks", "Scaling over processes",
                                      "./train bench scaling --ranks 1,2 --log FILE", .type = "ranks",
                                      .write = write_ranks};
