/* The machines, compilers and commits that the figures come from, and what they warned of. */
#include <stdio.h>
#include <string.h>

#include "src/base/text.h"
#include "src/report/markup.h"
#include "src/report/page.h"

static bool always(const struct records *records) {
    (void)records;
    return true;
}

/* One row a distinct machine and build; the commands and files that share it are counted together. */
static void machine_key(const struct record *record, char *key, size_t size) {
    const cJSON *header = record->header;
    snprintf(key, size, "%.90s|%.90s|%.60s|%.40s|%.120s|%.30s", record_text(header, "cpu"),
             record_text(header, "gpu"), record_text(header, "machine"), record_text(header, "commit"),
             record_text(header, "flags"), record_text(header, "compiler"));
}

static void list_commands(const struct selection *rows, char *text, size_t size) {
    struct names names = {0};
    text[0] = '\0';
    for (size_t i = 0; i < rows->count; i++) {
        const char *command = record_text(rows->rows[i]->line, "command");
        if (!command[0]) command = "train";
        const size_t before = names.count;
        if (names_index(&names, command) == before)
            text_append(text, size, "%s%.40s", before ? ", " : "", command);
    }
    names_free(&names);
}

static void write_machines(struct page *page) {
    static const char *const titles[] = {"machine", "CPU", "GPU", "Tessera", "compiler", "commands", "runs"};
    struct selections machines = page_selections(page, "header", machine_key);
    struct table table;
    table_open(&table, "What measured, and what it was built with.");
    table.wrap = true;
    for (size_t i = 0; i < 7; i++) table_column(&table, i == 6 ? COLUMN_NUMBER : COLUMN_TEXT, titles[i]);
    for (size_t i = 0; i < machines.count; i++) {
        const struct selection *rows = &machines.list[i];
        const cJSON *header = rows->rows[0]->line;
        const char *gpu = record_text(header, "gpu");
        char commands[256];
        list_commands(rows, commands, sizeof commands);
        table_cell(&table, "%s", record_text(header, "machine"));
        table_cell(&table, "%s", record_text(header, "cpu"));
        table_cell(&table, "%s", gpu[0] ? gpu : "-");
        table_cell(&table, "%s, commit %s", record_text(header, "version"), record_text(header, "commit"));
        table_cell(&table, "%s %s", record_text(header, "compiler"), record_text(header, "flags"));
        table_cell(&table, "%s", commands);
        table_cell(&table, "%zu", rows->count);
    }
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
    if (seen.count) page_heading(page, "Warnings of the programs");
    for (size_t i = 0; i < seen.count; i++) page_note(page, "%s", seen.list[i]);
    names_free(&seen);
}

static void write_environment(struct page *page) {
    page_note(page, "%s lines from %zu file%s.", text_grouped(page->records->count).text,
              page->records->file_count, page->records->file_count == 1 ? "" : "s");
    if (records_any(page->records, "header")) {
        write_machines(page);
    } else {
        page_note(page, "The files name no machine: they have no header line.");
    }
    write_warnings(page);
}

const struct section section_environment = {"environment", "Environment", "./train --log FILE", always,
                                            write_environment};
