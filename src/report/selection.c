#include "src/report/selection.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/memory.h"
#include "src/base/text.h"
#include "src/report/row.h"

enum { IDENTITY = 1024 };

size_t names_index(struct names *names, const char *name) {
    for (size_t i = 0; i < names->count; i++)
        if (strcmp(names->list[i], name) == 0) return i;
    char **list = memory_resize(names->list, (names->count + 1) * sizeof *list);
    if (!list) return SIZE_MAX;
    names->list = list;
    list[names->count] = memory_copy(name);
    return list[names->count] ? names->count++ : SIZE_MAX;
}

void names_free(struct names *names) {
    for (size_t i = 0; i < names->count; i++) free(names->list[i]);
    free(names->list);
    *names = (struct names){0};
}

/* --- rows by key --- */

static struct selection *find_selection(struct selections *selections, const char *key) {
    for (size_t i = 0; i < selections->count; i++)
        if (strcmp(selections->list[i].key, key) == 0) return &selections->list[i];
    struct selection *list = memory_resize(selections->list, (selections->count + 1) * sizeof *list);
    if (!list) return NULL;
    selections->list = list;
    struct selection *added = &list[selections->count++];
    *added = (struct selection){0};
    snprintf(added->key, sizeof added->key, "%s", key);
    return added;
}

static bool add_row(struct selection *selection, const struct record *row) {
    if ((selection->count & (selection->count - 1)) == 0) { /* 0 or a power of two: full */
        const size_t room = selection->count ? 2 * selection->count : 1;
        const struct record **rows = memory_resize(selection->rows, room * sizeof *rows);
        if (!rows) return false;
        selection->rows = rows;
    }
    selection->rows[selection->count++] = row;
    return true;
}

/* Label and all settings of a row. */
static void identity(const cJSON *line, char *name, size_t size) {
    char setup[256];
    row_label(line, name, size);
    for (size_t part = 0; part < ROW_SETUPS; part++) {
        row_setup(line, part, setup, sizeof setup);
        text_append(name, size, "\n%s", setup);
    }
}

/* Does the selection have this row, the baseline of another comparison? */
static bool repeated(const struct selection *selection, const struct record *row) {
    char name[IDENTITY], other[IDENTITY];
    if (strcmp(row->type, "compare") != 0) return false;
    identity(row->line, name, sizeof name);
    for (size_t i = 0; i < selection->count; i++) {
        identity(selection->rows[i]->line, other, sizeof other);
        if (strcmp(name, other) == 0) return true;
    }
    return false;
}

enum status selections_of(struct selections *selections, const struct records *records, const char *type,
                          selection_key *key) {
    *selections = (struct selections){0};
    const struct record *row = NULL;
    while ((row = records_after(records, row, type))) {
        char text[SELECTION_TEXT] = "";
        if (key) key(row, text, sizeof text);
        struct selection *selection = find_selection(selections, text);
        if (key && selection && repeated(selection, row)) continue;
        if (!selection || !add_row(selection, row)) return status_set(STATUS_FAILED, "out of memory");
    }
    return STATUS_OK;
}

void selections_free(struct selections *selections) {
    for (size_t i = 0; i < selections->count; i++) free(selections->list[i].rows);
    free(selections->list);
    *selections = (struct selections){0};
}

/* --- rows of the same name --- */

/* Does another row of this label differ in this setting? */
static bool differs(const struct selection *selection, const char *label, size_t part, const char *setup) {
    for (size_t i = 0; i < selection->count; i++) {
        char other[256];
        row_label(selection->rows[i]->line, other, sizeof other);
        if (strcmp(other, label) != 0) continue;
        row_setup(selection->rows[i]->line, part, other, sizeof other);
        if (strcmp(other, setup) != 0) return true;
    }
    return false;
}

void selection_difference(const struct selection *selection, size_t row, char *text, size_t size) {
    char label[256], setup[256];
    text[0] = '\0';
    row_label(selection->rows[row]->line, label, sizeof label);
    for (size_t part = 0; part < ROW_SETUPS; part++) {
        row_setup(selection->rows[row]->line, part, setup, sizeof setup);
        if (setup[0] && differs(selection, label, part, setup)) text_append(text, size, ", %s", setup);
    }
}

void selection_label(const struct selection *selection, size_t row, char *text, size_t size) {
    char difference[SELECTION_TEXT];
    row_label(selection->rows[row]->line, text, size);
    selection_difference(selection, row, difference, sizeof difference);
    text_append(text, size, "%s", difference);
}

struct row_name selection_backend(const struct selection *selection, const cJSON *line) {
    struct row_name name = row_backend(line);
    const size_t threads = record_count(line, "threads", 1u << 20, 0);
    bool others = false;
    for (size_t i = 0; selection && i < selection->count && !others; i++)
        others = record_count(selection->rows[i]->line, "threads", 1u << 20, 0) != threads &&
                 strcmp(row_backend(selection->rows[i]->line).text, name.text) == 0;
    if (others) text_append(name.text, sizeof name.text, ", %zu thread%s", threads, threads == 1 ? "" : "s");
    return name;
}

static int by_number(const void *a, const void *b) {
    const double x = strtod(*(char *const *)a, NULL), y = strtod(*(char *const *)b, NULL);
    return (x > y) - (x < y);
}

struct names selection_values(const struct selection *selection, const char *key) {
    enum { MOST = 64 };
    struct names names = {0};
    for (size_t i = 0; i < selection->count; i++) {
        const double value = record_number(selection->rows[i]->line, key);
        if (isfinite(value) && names.count < MOST) names_index(&names, text_fixed(value, 0).text);
    }
    if (names.count) qsort(names.list, names.count, sizeof *names.list, by_number);
    return names;
}

/* --- keys --- */

static const char *gpu_of(const struct record *record) {
    const char *gpu = record_text(record->line, "gpu");
    return gpu[0] ? gpu : record_text(record->header, "gpu");
}

void selection_machine(const struct record *record, char *key, size_t size) {
    const char *gpu = record_text(record->header, "gpu"), *cpu = record_text(record->header, "cpu");
    snprintf(key, size, "%.120s%s%.120s", gpu, gpu[0] ? "; host " : "", cpu[0] ? cpu : "unknown machine");
    const size_t threads = record_count(record->header, "threads", 1u << 20, 0);
    /* of compare and bench; the threads of a training are those of its run */
    if (record_has(record->header, "command") && threads)
        text_append(key, size, ", %zu thread%s", threads, threads == 1 ? "" : "s");
}

static void add_machine(const struct record *record, char *key, size_t size) {
    const size_t used = strlen(key);
    selection_machine(record, key + used, size - used);
}

static const char *config_of(const struct record *record) {
    const char *config = record_text(record->line, "config");
    return config[0] ? config : "defaults";
}

void selection_config(const struct record *record, char *key, size_t size) {
    snprintf(key, size, "config %.80s on ", config_of(record));
    add_machine(record, key, size);
}

void selection_config_dtype(const struct record *record, char *key, size_t size) {
    snprintf(key, size, "config %.80s, %.8s on ", config_of(record), record_text(record->line, "dtype"));
    add_machine(record, key, size);
}

void selection_dtype(const struct record *record, char *key, size_t size) {
    snprintf(key, size, "%.8s on ", record_text(record->line, "dtype"));
    add_machine(record, key, size);
}

void selection_shape(const struct record *record, char *key, size_t size) {
    const cJSON *line = record->line;
    snprintf(key, size, "%.0f x %.0f x %.0f on ", record_number(line, "m"), record_number(line, "n"),
             record_number(line, "k"));
    add_machine(record, key, size);
}

/* --- where it was measured --- */

static void describe(const struct record *row, char *text, size_t size) {
    const cJSON *header = row->header;
    const char *gpu = gpu_of(row), *cpu = record_text(header, "cpu"), *data = record_text(row->line, "data");
    const size_t threads = record_count(header, "threads", 1u << 20, 0);
    text[0] = '\0';
    if (gpu[0]) text_append(text, size, "%.120s; host ", gpu);
    text_append(text, size, "%.120s", cpu[0] ? cpu : "unknown machine");
    if (threads) text_append(text, size, ", %zu thread%s", threads, threads == 1 ? "" : "s");
    text_append(text, size, "; %.60s; Tessera %.20s commit %.40s", record_text(header, "compiler"),
                record_text(header, "version"), record_text(header, "commit"));
    if (!data[0]) data = record_text(header, "data");
    if (data[0]) text_append(text, size, "; data %.80s", data);
}

void selection_measured_on(const struct selection *selection, char *text, size_t size) {
    struct names seen = {0};
    bool gpu = false; /* a host row of a machine with a GPU is not another machine */
    for (size_t i = 0; i < selection->count; i++) gpu |= gpu_of(selection->rows[i])[0] != '\0';
    snprintf(text, size, "Measured on: ");
    for (size_t i = 0; i < selection->count; i++) {
        char one[SELECTION_TEXT];
        const size_t before = seen.count;
        if (gpu && !gpu_of(selection->rows[i])[0]) continue;
        describe(selection->rows[i], one, sizeof one);
        if (names_index(&seen, one) == before)
            text_append(text, size, "%s%s", before ? ". And on: " : "", one);
    }
    text_append(text, size, ".");
    names_free(&seen);
}
