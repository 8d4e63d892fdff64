#include "src/report/rewrite.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/input.h"
#include "src/base/memory.h"
#include "src/base/memstream.h"
#include "src/base/replace.h"
#include "src/base/text.h"
#include "src/report/markup.h"
#include "src/report/tables.h"

/* --- the tables by name --- */

typedef void table_builder(struct table *table, const struct selection *rows);

static const struct {
    const char *name, *type;
    table_builder *build, *more; /* more: (optional) a second table, omitted if empty */
    selection_key *key;
} known[] = {
    {"compare", "compare", tables_compare, tables_energy, selection_config},
    {"gemm", "gemm", tables_gemm, tables_kernels, selection_machine},
    {"peak", "peak", tables_peak, NULL, selection_machine},
    {"scaling", "scaling", tables_scaling, NULL, selection_config_dtype},
    {"ranks", "ranks", tables_ranks, NULL, selection_config_dtype},
    {"shmem", "shmem", tables_shmem, NULL, selection_shape},
    {"kmeans-steps", "kmeans_step", tables_kmeans_steps, NULL, selection_kmeans_steps},
    {"qr", "qr", tables_qr, NULL, selection_qr},
    {"breakeven", "breakeven", tables_breakeven, NULL, selection_dtype},
};
enum { KNOWN = sizeof known / sizeof *known, NOT_KNOWN = -1, FILE_TEXT = KNOWN };

struct marker {
    int what;           /* of known, FILE_TEXT or NOT_KNOWN */
    char argument[512]; /* config or path */
};

static void write_table(FILE *out, table_builder *build, const struct selection *rows, bool optional) {
    struct table table;
    build(&table, rows);
    if (!optional || table_rows(&table)) {
        fputc('\n', out);
        markup_markdown(out, table.caption);
        fputs("\n\n", out);
        table_markdown(out, &table);
    }
    table_close(&table);
}

static bool wanted(const struct marker *marker, const struct selection *rows) {
    const char *config = record_text(rows->rows[0]->line, "config");
    return strcmp(known[marker->what].type, "compare") != 0 ||
           strcmp(marker->argument, config[0] ? config : "defaults") == 0;
}

/* Writes the fits of Amdahl's law, below the tables of thread scaling. */
static enum status write_fits(FILE *out, const struct records *records) {
    struct selections machines;
    enum status status = selections_of(&machines, records, "amdahl", selection_machine);
    for (size_t i = 0; i < machines.count && !status; i++)
        write_table(out, tables_amdahl, &machines.list[i], false);
    selections_free(&machines);
    return status;
}

/* *found: the records have data for the marker. */
static enum status write_known(FILE *out, const struct marker *marker, const struct records *records,
                               bool *found) {
    const int what = marker->what;
    struct selections all;
    enum status status = selections_of(&all, records, known[what].type, known[what].key);
    for (size_t i = 0; i < all.count && !status; i++) {
        const struct selection *rows = &all.list[i];
        char measured[4 * SELECTION_TEXT];
        if (!wanted(marker, rows)) continue;
        if (*found) fputc('\n', out);
        *found = true;
        selection_measured_on(rows, measured, sizeof measured);
        const char *on = strstr(rows->key, " on ");
        if (on && !marker->argument[0]) /* tells the tables of this marker apart */
            text_append(measured, sizeof measured, " Shown: %.*s.", (int)(on - rows->key), rows->key);
        markup_markdown(out, measured);
        fputc('\n', out);
        write_table(out, known[what].build, rows, false);
        if (known[what].more) write_table(out, known[what].more, rows, true);
    }
    selections_free(&all);
    return !status && *found && known[what].build == tables_scaling ? write_fits(out, records) : status;
}

/* --- the markers --- */

/* The text of a line that is one comment "<!-- ... -->". */
static bool comment_of(const char *line, size_t length, char *text, size_t size) {
    char copy[1024];
    if (length >= sizeof copy) return false;
    snprintf(copy, sizeof copy, "%.*s", (int)length, line);
    char *start = text_trim(copy);
    const size_t whole = strlen(start);
    if (whole < 7 || strncmp(start, "<!--", 4) != 0 || strcmp(start + whole - 3, "-->") != 0) return false;
    start[whole - 3] = '\0';
    snprintf(text, size, "%s", text_trim(start + 4));
    return true;
}

/* Removes the last word, which must be the tag. */
static bool take_tag(char *text, const char *tag) {
    char *last = strrchr(text, ' ');
    if (!last || strcmp(last + 1, tag) != 0) return false;
    *last = '\0';
    return true;
}

static int kind_of(const char *name) {
    for (int i = 0; i < KNOWN; i++)
        if (strcmp(name, known[i].name) == 0) return i;
    return strcmp(name, "file") == 0 ? FILE_TEXT : NOT_KNOWN;
}

static struct marker marker_of(const char *line, size_t length, const char *tag) {
    struct marker marker = {.what = NOT_KNOWN};
    char text[1024];
    if (!comment_of(line, length, text, sizeof text) || (tag && !take_tag(text, tag))) return marker;
    const size_t name = strcspn(text, " ");
    const char *argument = text_trim(text + name + (text[name] == ' '));
    text[name] = '\0';
    if (strpbrk(argument, " \t") || strlen(argument) >= sizeof marker.argument)
        return marker; /* has another tag */
    snprintf(marker.argument, sizeof marker.argument, "%.511s", argument);
    const bool takes_argument = strcmp(text, "file") == 0 || strcmp(text, "compare") == 0;
    if (takes_argument == (argument[0] != '\0')) marker.what = kind_of(text);
    return marker;
}

/* The next line <!-- end -->; NULL if another marker or the end of the file precedes it. */
static const char *find_end(const char *text, const char *tag) {
    while (*text) {
        char comment[1024];
        const size_t length = text_line_length(text);
        if (comment_of(text, length, comment, sizeof comment) && strcmp(comment, "end") == 0) return text;
        if (marker_of(text, length, tag).what != NOT_KNOWN) return NULL;
        text += length;
    }
    return NULL;
}

/* --- the text of a file, fenced --- */

/* The caller frees the text. NULL: *status says why. */
static char *read_text(const char *path, enum status *status) {
    char *text = NULL;
    size_t room = 0;
    FILE *in = fopen(path, "rb");
    const ssize_t got = in ? getdelim(&text, &room, '\0', in) : -1;
    const bool failed = !in || !text || ferror(in), binary = got > 0 && !text[got - 1];
    if (failed) {
        *status = input_error(errno, "", path);
    } else if (binary) {
        *status = status_set(STATUS_BAD_DATA, "'%s' is no text: it holds a NUL byte", path);
    } else if (got < 0) {
        text[0] = '\0'; /* the file is empty */
    }
    if (in) fclose(in);
    if (!failed && !binary) return text;
    free(text);
    return NULL;
}

/* The number of the first line that would be taken for a marker, 0 if there is none. */
static size_t find_marker(const char *text) {
    for (size_t number = 1; *text; number++) {
        char comment[1024];
        const size_t length = text_line_length(text);
        if (comment_of(text, length, comment, sizeof comment)) {
            comment[strcspn(comment, " ")] = '\0';
            if (strcmp(comment, "end") == 0 || kind_of(comment) != NOT_KNOWN) return number;
        }
        text += length;
    }
    return 0;
}

static enum status write_file(FILE *out, const char *path) {
    enum status status = STATUS_OK;
    char *text = read_text(path, &status);
    if (!text) return status;
    const char *fence = strstr(text, "```") ? "~~~~~~" : "```";
    const size_t marker = find_marker(text);
    if (marker) {
        status =
            status_set(STATUS_BAD_DATA, "'%s', line %zu is a marker: this file cannot stand between markers",
                       path, marker);
    } else {
        const size_t length = strlen(text), name = strlen(path);
        const char *last = length && text[length - 1] == '\n' ? "" : "\n";
        if (name > 3 && strcmp(path + name - 3, ".md") == 0) {
            fprintf(out, "\n%s%s\n", text, last);
        } else {
            fprintf(out, "%stext\n%s%s%s\n", fence, text, last, fence);
        }
    }
    free(text);
    return status;
}

/* --- the whole text --- */

/* The text between the markers; the caller frees it. */
static enum status between(const struct marker *marker, const struct records *records, char **text,
                           bool *found) {
    struct memstream memory;
    enum status status = memstream_open(&memory);
    if (!status && marker->what == FILE_TEXT) {
        *found = true;
        status = write_file(memory.out, marker->argument);
    } else if (!status) {
        status = write_known(memory.out, marker, records, found);
    }
    status = memstream_close(&memory, status);
    *text = memory.text;
    return status;
}

static enum status rewrite_text(FILE *out, const char *path, const char *text, const char *tag,
                                const struct records *records) {
    for (size_t number = 1; *text; number++) {
        const size_t length = text_line_length(text);
        const struct marker marker = marker_of(text, length, tag);
        fwrite(text, 1, length, out);
        text += length;
        if (marker.what == NOT_KNOWN) continue;
        const char *end = find_end(text, tag);
        if (!end)
            return status_set(STATUS_BAD_DATA, "%s, line %zu: the marker has no <!-- end -->", path, number);
        char *fresh = NULL;
        bool found = false;
        const enum status status = between(&marker, records, &fresh, &found);
        if (!status && !found) {
            fprintf(stderr, "%s, line %zu: the files have no data for '%s%s%s'; left as it is\n", path,
                    number, known[marker.what].name, marker.argument[0] ? " " : "", marker.argument);
            fwrite(text, 1, (size_t)(end - text), out);
        } else if (!status) {
            fputs(fresh, out);
        }
        free(fresh);
        if (status) return status;
        for (; text < end; number++) text += text_line_length(text);
    }
    return STATUS_OK;
}

/* --- the file --- */

static enum status replace_file(const char *path, const char *text, size_t size) {
    struct replacement file;
    const enum status status = replace_open(&file, "", path);
    if (status) return status;
    fwrite(text, 1, size, file.out);
    return replace_close(&file, STATUS_OK);
}

enum status rewrite_tables(const char *path, const char *tag, const struct records *records) {
    enum status status = STATUS_OK;
    char *text = read_text(path, &status);
    if (!text) return status;
    struct memstream fresh;
    status = memstream_open(&fresh);
    if (!status) status = rewrite_text(fresh.out, path, text, tag, records);
    status = memstream_close(&fresh, status);
    if (memory_ran_out() && !status) status = status_set(STATUS_FAILED, "out of memory");
    if (!status && strcmp(text, fresh.text) != 0) status = replace_file(path, fresh.text, fresh.length);
    free(text);
    free(fresh.text);
    return status;
}
