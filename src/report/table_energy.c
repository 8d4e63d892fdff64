/* The table of `compare --energy on`: what an epoch costs in joules. */
#include "src/report/cells.h"
#include "src/report/row.h"
#include "src/report/tables.h"

static const cJSON *energy_of(const cJSON *line) {
    return cJSON_GetObjectItemCaseSensitive(line, "energy");
}

static void value_cell(struct cell *cell) {
    const double value = record_number(energy_of(cell->line), cell->column->key);
    cell_text(cell, "%s", cell->column->unit(value).text);
}

static void images_cell(struct cell *cell) {
    const double seconds = cell_number(cell, "median_epoch_seconds");
    const double images = cell_number(cell, "images_per_second") * seconds;
    cell_text(cell, "%s", text_short(images / record_number(energy_of(cell->line), cell->column->key)).text);
}

static void counter_cell(struct cell *cell) {
    cell_text(cell, "%.8s", record_text(energy_of(cell->line), "counter"));
}

static const struct column columns[] = {
    {"implementation", COLUMN_TEXT, .cell = cell_label, .only = PAGE_ONLY},
    {"implementation", COLUMN_TEXT, .key = "label", .only = CONSOLE_ONLY},
    {"counter", COLUMN_TEXT, .cell = counter_cell, .spare = 2},
    {"J an epoch", COLUMN_NUMBER, .key = "joules_per_epoch", .unit = text_short, .cell = value_cell},
    {"with idle", COLUMN_NUMBER, .key = "gross_joules_per_epoch", .unit = text_short, .cell = value_cell},
    {"images/J", COLUMN_NUMBER, .key = "joules_per_epoch", .cell = images_cell},
    {"power, W", COLUMN_NUMBER, .key = "watts", .unit = text_short, .cell = value_cell},
    {"idle, W", COLUMN_NUMBER, .key = "idle_watts", .unit = text_short, .cell = value_cell},
    {"epochs", COLUMN_NUMBER, .key = "epochs", .unit = unit_count, .cell = value_cell, .spare = 1},
    {"measured", COLUMN_NUMBER, .key = "seconds", .unit = text_seconds, .cell = value_cell, .spare = 1},
};

void tables_energy(struct table *table, const struct selection *rows) {
    table_open(
        table,
        "The energy of an epoch of training, from a counter that was read around repeated epochs. NVML: "
        "of the GPU with its memory, without the CPU that feeds it. RAPL: of all packages of the CPU, "
        "without DRAM. Idle: the power in a pause before them, which is subtracted but for the column "
        "with idle.");
    TABLE_COLUMNS(table, columns);
    table->missing = "Energy not available";
    for (size_t i = 0; i < rows->count; i++) {
        const cJSON *line = rows->rows[i]->line, *energy = energy_of(line);
        if (energy && record_has(energy, "reason")) {
            const char *label = record_text(line, "label");
            table_left_out(table, label[0] ? label : record_text(line, "backend"),
                           record_text(energy, "reason"));
        } else if (energy) {
            table_row(table, line, rows);
        }
    }
}
