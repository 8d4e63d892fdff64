#include "src/report/cells.h"

#include <math.h>
#include <string.h>

#include "src/report/row.h"
#include "src/report/selection.h"

struct text_number unit_count(double value) {
    return text_fixed(value, 0);
}

struct text_number unit_ratio(double value) {
    return text_fixed(value, 2);
}

struct text_number unit_share(double value) {
    return text_fixed(value, 3);
}

struct text_number unit_percent(double value) {
    return text_percent(value, 0);
}

struct text_number unit_bytes(double value) {
    return value >= 0 ? text_bytes(value) : (struct text_number){"-"};
}

const char *cell_noise(const cJSON *line) {
    return record_true(line, "noisy") ? ", noisy" : "";
}

void cell_backend(struct cell *cell) {
    cell_text(cell, "%s", row_backend(cell->line).text);
}

void cell_label(struct cell *cell) {
    const struct selection *rows = cell->context;
    for (size_t i = 0; i < rows->count; i++)
        if (rows->rows[i]->line == cell->line) selection_label(rows, i, cell->text, sizeof cell->text);
}

void cell_shape(struct cell *cell) {
    cell_text(cell, "%s x %s x %s", unit_count(cell_number(cell, "m")).text,
              unit_count(cell_number(cell, "n")).text, unit_count(cell_number(cell, "k")).text);
}

void cell_median(struct cell *cell) {
    cell_text(cell, "%s%s", text_seconds(cell_number(cell, "median_seconds")).text, cell_noise(cell->line));
}

void cell_spread(struct cell *cell) {
    cell_text(cell, "%s to %s", text_seconds(cell_number(cell, "min_seconds")).text,
              text_seconds(cell_number(cell, "max_seconds")).text);
}

static const char *extrapolated(const cJSON *line) {
    return record_true(line, "extrapolated") ? ", extrapolated" : "";
}

void cell_epoch_median(struct cell *cell) {
    cell_text(cell, "%s%s%s", text_seconds(cell_number(cell, cell->column->key)).text,
              extrapolated(cell->line), cell_noise(cell->line));
}

void cell_epoch_spread(struct cell *cell) {
    const double low = cell_number(cell, "min_epoch_seconds"), high = cell_number(cell, "max_epoch_seconds");
    cell_text(cell, "%s to %s", text_seconds(low).text, text_seconds(high).text);
    if (!isfinite(low) || !isfinite(high)) cell_text(cell, "-");
}

void cell_epoch(struct cell *cell) {
    const double low = cell_number(cell, "min_epoch_seconds"), high = cell_number(cell, "max_epoch_seconds");
    cell_text(cell, "%s", text_seconds(cell_number(cell, cell->column->key)).text);
    if (low < high) /* one epoch has no spread */
        text_append(cell->text, sizeof cell->text, " (%s to %s)", text_seconds(low).text,
                    text_seconds(high).text);
    text_append(cell->text, sizeof cell->text, "%s%s", extrapolated(cell->line), cell_noise(cell->line));
}

void held_out_add(struct held_out_parts *parts, const cJSON *line) {
    if (!isfinite(row_held_out(line, "accuracy"))) return;
    const bool test = strcmp(row_held_out_part(line), "test") == 0;
    parts->test |= test;
    parts->validation |= !test;
}

const char *held_out_title(const struct held_out_parts *parts) {
    return parts->validation && !parts->test ? "validation accuracy" : "test accuracy";
}

void cell_held_out(struct cell *cell, const cJSON *line, double error) {
    const double accuracy = row_held_out(line, "accuracy");
    const char *part = row_held_out_part(line);
    cell_text(cell, "%s", text_percent(accuracy, 2).text);
    if (isfinite(error)) text_append(cell->text, sizeof cell->text, " +- %s", unit_ratio(100 * error).text);
    if (isfinite(accuracy) && strncmp(cell->column->title, part, strlen(part)) != 0)
        text_append(cell->text, sizeof cell->text, " (%s)", part);
}

void cell_error(struct cell *cell) {
    const double error = cell_number(cell, cell->column->key);
    cell_text(cell, isfinite(error) ? "%.1e" : "-", error);
}

void cell_time(struct cell *cell) {
    const double seconds = row_seconds(cell->line, cell->column->key);
    cell_text(cell, "%s", seconds > 0 ? text_seconds(seconds).text : "-");
}
