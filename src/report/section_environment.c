/* The machines, compilers and commits of the figures, and the warnings of the programs. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "src/base/text.h"
#include "src/report/cells.h"
#include "src/report/page.h"

/* One row for each machine and build. */
static void machine_key(const struct record *record, char *key, size_t size) {
    const cJSON *header = record->header;
    snprintf(key, size, "%.90s|%.90s|%.60s|%.40s|%.120s|%.30s", record_text(header, "cpu"),
             record_text(header, "gpu"), record_text(header, "machine"), record_text(header, "commit"),
             record_text(header, "flags"), record_text(header, "compiler"));
}

static void version_cell(struct cell *cell) {
    cell_text(cell, "%s, commit %s", record_text(cell->line, "version"), record_text(cell->line, "commit"));
}

static void compiler_cell(struct cell *cell) {
    cell_text(cell, "%s %s", record_text(cell->line, "compiler"), record_text(cell->line, "flags"));
}

static void commands_cell(struct cell *cell) {
    const struct selection *rows = cell->context;
    struct names names = {0};
    for (size_t i = 0; i < rows->count; i++) {
        const char *command = record_text(rows->rows[i]->line, "command");
        if (!command[0]) command = "train";
        const size_t before = names.count;
        if (names_index(&names, command) == before)
            text_append(cell->text, sizeof cell->text, "%s%.40s", before ? ", " : "", command);
    }
    names_free(&names);
}

static void runs_cell(struct cell *cell) {
    cell_text(cell, "%zu", ((const struct selection *)cell->context)->count);
}

/* "0.1 to 3.6 on 2 cores": the load averages at the start of the runs. */
static void load_cell(struct cell *cell) {
    const struct selection *rows = cell->context;
    double low = INFINITY, high = -INFINITY;
    for (size_t i = 0; i < rows->count; i++) {
        low = fmin(low, record_number(rows->rows[i]->line, "load"));
        high = fmax(high, record_number(rows->rows[i]->line, "load"));
    }
    cell_text(cell, "-");
    if (!(low <= high)) return;
    cell_text(cell, "%.1f", low);
    if (low < high) text_append(cell->text, sizeof cell->text, " to %.1f", high);
    text_append(cell->text, sizeof cell->text, " on %s cores", unit_count(cell_number(cell, "cores")).text);
}

static const struct column columns[] = {
    {"machine", COLUMN_TEXT, .key = "machine"},
    {"CPU", COLUMN_TEXT, .key = "cpu"},
    {"GPU", COLUMN_TEXT, .key = "gpu"},
    {"load at the start", COLUMN_TEXT, .cell = load_cell},
    {"Tessera", COLUMN_TEXT, .cell = version_cell},
    {"compiler", COLUMN_TEXT, .cell = compiler_cell},
    {"commands", COLUMN_TEXT, .cell = commands_cell},
    {"runs", COLUMN_NUMBER, .cell = runs_cell},
};

static void write_machines(struct page *page) {
    struct selections machines = page_selections(page, "header", machine_key);
    struct table table;
    table_open(&table, "Each machine and build that wrote these logs.");
    table.wrap = true;
    TABLE_COLUMNS(&table, columns);
    for (size_t i = 0; i < machines.count; i++)
        table_row(&table, machines.list[i].rows[0]->line, &machines.list[i]);
    page_table(page, &table);
    selections_free(&machines);
}

static void write_warnings(struct page *page) {
    struct names seen = {0};
    const struct record *row = NULL;
    while ((row = records_after(page->records, row, "header"))) {
        const cJSON *warning;
        cJSON_ArrayForEach(warning, cJSON_GetObjectItemCaseSensitive(row->line, "warnings")) {
            const char *text = cJSON_GetStringValue(warning);
            if (text) names_index(&seen, text);
        }
    }
    const struct records *records = page->records;
    for (size_t i = 0; i < records->warning_count; i++) names_index(&seen, records->warnings[i]);
    if (seen.count) {
        page_heading(page, "Warnings of these runs");
        page_list(page, &seen);
    }
    names_free(&seen);
}

/* --- noise --- */

/* The header of the run that started beside the most tasks of other programs; NULL if there is none. */
static const cJSON *busiest_start(const struct records *records) {
    const struct record *row = NULL;
    const cJSON *busiest = NULL;
    while ((row = records_after(records, row, "header"))) {
        const double tasks = record_number(row->line, "other_tasks");
        if (tasks > 0 && !(busiest && tasks <= record_number(busiest, "other_tasks"))) busiest = row->line;
    }
    return busiest;
}

/* Says how far the times of this page can be trusted. */
static void note_noise(struct page *page) {
    const struct records *records = page->records;
    size_t marked = 0, timed = 0;
    for (size_t i = 0; i < records->count; i++) {
        timed += record_has(records->list[i].line, "noisy");
        marked += record_true(records->list[i].line, "noisy");
    }
    if (marked)
        page_note(page, "%s of %s timings are marked noisy: their median is uncertain by more than 5 %%.",
                  text_grouped(marked).text, text_grouped(timed).text);
    const cJSON *busiest = busiest_start(records);
    if (busiest)
        page_note(
            page,
            "Up to %s task%s of other programs ran on the %s cores when a run started. The times may be "
            "too long.",
            unit_count(record_number(busiest, "other_tasks")).text,
            record_number(busiest, "other_tasks") == 1 ? "" : "s",
            unit_count(record_number(busiest, "cores")).text);
}

static void write_environment(struct page *page) {
    if (page->records->file_count)
        page_note(page, "This page shows %s lines of %zu log file%s.",
                  text_grouped(page->records->count).text, page->records->file_count,
                  page->records->file_count == 1 ? "" : "s");
    if (records_any(page->records, "header")) {
        write_machines(page);
    } else {
        page_note(page, "The logs have no header line, so the machine is not known.");
    }
    note_noise(page);
    write_warnings(page);
}

const struct section section_environment = {"environment", "Environment", "./train --log FILE",
                                            .write = write_environment};
