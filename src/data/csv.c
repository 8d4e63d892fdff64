#include "src/data/csv.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>
#include <zlib.h>

#include "src/base/input.h"
#include "src/base/pages.h"
#include "src/base/text.h"

enum { LONGEST_LINE = 1 << 24, MOST_COLUMNS = 1 << 20, FIRST_CAPACITY = 1 << 16 };

struct csv {
    gzFile file;
    const char *path;
    char *text; /* what was read and not yet used is at start .. end - 1 */
    size_t start, end, capacity;
    size_t line;           /* 1 is the first */
    size_t columns, label; /* of a row; the one of the label; `columns` if there is none */
    uint8_t *pixels;       /* of a row */
};

/* --- lines --- */

static enum status out_of_memory(const struct csv *csv) {
    return status_set(STATUS_FAILED, "%s: out of memory", csv->path);
}

static enum status bad_line(const struct csv *csv, const char *what) {
    return status_set(STATUS_BAD_DATA, "%s:%zu: %s", csv->path, csv->line, what);
}

/* Moves what is left to the front, makes room and reads more. *more: false at the end of the file. */
static enum status read_more(struct csv *csv, bool *more) {
    memmove(csv->text, csv->text + csv->start, csv->end - csv->start);
    csv->end -= csv->start;
    csv->start = 0;
    if (csv->end + 1 >= csv->capacity) {
        if (csv->capacity > LONGEST_LINE) return bad_line(csv, "the line is too long");
        char *larger = realloc(csv->text, 2 * csv->capacity);
        if (!larger) return out_of_memory(csv);
        csv->text = larger;
        csv->capacity *= 2;
    }
    const int got = gzread(csv->file, csv->text + csv->end, (unsigned)(csv->capacity - csv->end - 1));
    int code = Z_OK;
    if (got == 0) gzerror(csv->file, &code); /* Z_BUF_ERROR: the compressed data end too early */
    if (got < 0 || code != Z_OK) return bad_line(csv, "the gzip data are corrupted or truncated");
    csv->end += (size_t)got;
    *more = got > 0;
    return STATUS_OK;
}

/* *line receives the next line without its end, or NULL after the last one. It may be changed. */
static enum status next_line(struct csv *csv, char **line) {
    bool more = true;
    char *newline;
    csv->line++;
    *line = NULL;
    while (!(newline = memchr(csv->text + csv->start, '\n', csv->end - csv->start)) && more) {
        const enum status status = read_more(csv, &more);
        if (status) return status;
    }
    if (!newline && csv->start == csv->end) return STATUS_OK;
    char *first = csv->text + csv->start, *end = newline ? newline : csv->text + csv->end;
    csv->start = (size_t)(end - csv->text) + (newline != NULL);
    *end = '\0';
    if (strlen(first) != (size_t)(end - first)) return bad_line(csv, "a zero byte: this is not a text file");
    if (csv->line == 1 && strncmp(first, "\xef\xbb\xbf", 3) == 0) first += 3; /* byte order mark */
    *line = first;
    return STATUS_OK;
}

/* --- fields --- */

/* Cuts the next field off, without white space and quotes; NULL after the last one. */
static char *next_field(char **rest) {
    char *field = *rest;
    if (!field) return NULL;
    char *comma = strchr(field, ',');
    if (comma) *comma = '\0';
    *rest = comma ? comma + 1 : NULL;
    field = text_trim(field);
    const size_t length = strlen(field);
    if (length >= 2 && field[0] == '"' && field[length - 1] == '"') {
        field[length - 1] = '\0';
        field++;
    }
    return field;
}

/* A whole number from 0 to 255; zeros may follow its decimal point. */
static bool parse_byte(const char *text, uint8_t *value) {
    unsigned number = 0;
    const char *at = text;
    for (; *at >= '0' && *at <= '9' && number <= UINT8_MAX; at++)
        number = 10 * number + (unsigned)(*at - '0');
    const bool digits = at > text;
    if (*at == '.') at += 1 + strspn(at + 1, "0");
    *value = (uint8_t)number;
    return digits && !*at && number <= UINT8_MAX;
}

static bool is_label_title(const char *field) {
    return strcasecmp(field, "label") == 0 || strcasecmp(field, "class") == 0 ||
           strcasecmp(field, "target") == 0;
}

/* Counts the columns of the first row, and finds the label. *header: is it one? */
static enum status read_titles(struct csv *csv, const char *line, size_t unlabelled, bool *header) {
    char *copy = strdup(line), *rest = copy;
    double number;
    if (!copy) return out_of_memory(csv);
    *header = false;
    for (char *field; (field = next_field(&rest)); csv->columns++) {
        if (is_label_title(field)) csv->label = csv->columns;
        if (!text_parse_real(field, &number)) *header = true;
    }
    free(copy);
    if (csv->columns == unlabelled) csv->label = csv->columns;
    if (csv->columns < 2 || csv->columns > MOST_COLUMNS)
        return bad_line(csv, "expected a label and the pixels of an image, with commas between them");
    csv->pixels = malloc(csv->columns);
    return csv->pixels ? STATUS_OK : out_of_memory(csv);
}

static enum status bad_field(const struct csv *csv, size_t column, const char *field) {
    return status_set(
        STATUS_BAD_DATA, "%s:%zu: column %zu, the %s, is '%.32s': it must be a whole number from 0 to 255%s",
        csv->path, csv->line, column + 1, column == csv->label ? "label" : "pixel",
        text_is_printable(field) ? field : "?", csv->line == 1 && column ? " (a header has no numbers)" : "");
}

static enum status read_row(struct csv *csv, struct dataset *set, char *line) {
    size_t column = 0, pixel = 0;
    uint8_t label = 0, value;
    for (char *field; (field = next_field(&line)); column++) {
        if (column < csv->columns && !parse_byte(field, &value)) return bad_field(csv, column, field);
        if (column == csv->label && column < csv->columns) label = value;
        if (column != csv->label && column < csv->columns) csv->pixels[pixel++] = value;
    }
    if (column == csv->columns) return dataset_append(set, csv->pixels, label);
    return status_set(STATUS_BAD_DATA, "%s:%zu: %zu columns, but the first row has %zu", csv->path, csv->line,
                      column, csv->columns);
}

/* --- the file --- */

static void set_shape(const struct csv *csv, struct dataset *set) {
    const size_t pixels = csv->columns - (csv->label < csv->columns),
                 side = (size_t)lround(sqrt((double)pixels));
    set->height = side * side == pixels ? side : 1;
    set->width = pixels / set->height;
}

static enum status read_rows(struct csv *csv, struct dataset *set, size_t unlabelled) {
    char *line;
    enum status status;
    while (!(status = next_line(csv, &line)) && line) {
        bool header = false;
        if (!line[strspn(line, " \t\r")]) continue;
        if (!csv->columns) {
            status = read_titles(csv, line, unlabelled, &header);
            if (!status) set_shape(csv, set);
        }
        if (!status && !header) status = read_row(csv, set, line);
        if (status) return status;
    }
    if (status || set->count) return status;
    return status_set(STATUS_BAD_DATA, "%s: there are no images", csv->path);
}

enum status csv_read(struct dataset *set, const char *path, size_t unlabelled) {
    int fd;
    *set = (struct dataset){0};
    enum status status = input_open(&fd, "", path);
    if (status) return status;
    struct csv csv = {.path = path, .capacity = FIRST_CAPACITY};
    csv.file = gzdopen(fd, "rb");
    if (!csv.file) close(fd);
    csv.text = malloc(csv.capacity);
    status = csv.file && csv.text ? read_rows(&csv, set, unlabelled) : out_of_memory(&csv);
    if (csv.file) gzclose(csv.file);
    free(csv.text);
    free(csv.pixels);
    if (status) dataset_free(set);
    return status;
}
