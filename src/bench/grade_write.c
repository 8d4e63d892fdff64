/* Graded submissions as CSV, JSON and JUnit XML. */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/memory.h"
#include "src/base/replace.h"
#include "src/base/text.h"
#include "src/bench/grade.h"
#include "src/report/markup.h"
#include "src/report/records.h"

/* --- CSV --- */

static const char *const columns[] = {"rank",         "file",      "outcome",   "points",    "points_correct",
                                      "points_speed", "nn_gflops", "tn_gflops", "nt_gflops", "share_of_peak",
                                      "relative",     "seconds",   "hash",      "reason"};
enum { COLUMNS = sizeof columns / sizeof *columns };

/* In quotes. A spreadsheet would run a text that begins like a formula. */
static void csv_text(FILE *out, const char *text) {
    fputc('"', out);
    if (text[0] && strchr("=+-@", text[0])) fputc('\'', out);
    for (const char *at = text; *at; at++) {
        if (*at == '"') fputc('"', out);
        fputc((unsigned char)*at < ' ' ? ' ' : *at, out);
    }
    fputc('"', out);
}

static void write_csv(FILE *out, cJSON *const *lines, size_t count, const struct assignment *assignment) {
    (void)assignment;
    for (int c = 0; c < COLUMNS; c++) fprintf(out, "%s%s", c ? "," : "", columns[c]);
    fputc('\n', out);
    for (size_t i = 0; i < count; i++) {
        for (int c = 0; c < COLUMNS; c++) {
            const double number = record_number(lines[i], columns[c]);
            if (c) fputc(',', out);
            if (isfinite(number)) {
                fprintf(out, "%.6g", number);
            } else if (record_text(lines[i], columns[c])[0]) {
                csv_text(out, record_text(lines[i], columns[c]));
            }
        }
        fputc('\n', out);
    }
}

/* --- JUnit XML --- */

static void attribute(FILE *out, const char *name, const char *value) {
    fprintf(out, " %s=\"", name);
    markup_text(out, value);
    fputc('"', out);
}

static void write_case(FILE *out, const cJSON *line) {
    const char *outcome = record_text(line, "outcome");
    fputs("  <testcase", out);
    attribute(out, "classname", "grade");
    attribute(out, "name", record_text(line, "file"));
    fprintf(out, " time=\"%.3f\">\n", record_number(line, "seconds"));
    if (strcmp(outcome, "right") != 0) {
        fputs("    <failure", out);
        attribute(out, "type", outcome);
        attribute(out, "message", record_text(line, "reason")[0] ? record_text(line, "reason") : outcome);
        fputs("/>\n", out);
    }
    fprintf(out, "    <system-out>%.2f points</system-out>\n  </testcase>\n", record_number(line, "points"));
}

static void write_junit(FILE *out, cJSON *const *lines, size_t count, const struct assignment *assignment) {
    size_t failures = 0;
    double seconds = 0;
    for (size_t i = 0; i < count; i++) {
        failures += strcmp(record_text(lines[i], "outcome"), "right") != 0;
        seconds += record_number(lines[i], "seconds");
    }
    fputs("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite", out);
    attribute(out, "name", assignment->name);
    fprintf(out, " tests=\"%zu\" failures=\"%zu\" errors=\"0\" time=\"%.3f\">\n", count, failures, seconds);
    for (size_t i = 0; i < count; i++) write_case(out, lines[i]);
    fputs("</testsuite>\n", out);
}

/* --- files --- */

typedef void writer(FILE *out, cJSON *const *lines, size_t count, const struct assignment *assignment);

static enum status write_file(const char *folder, const char *name, writer *write, cJSON *const *lines,
                              size_t count, const struct assignment *assignment) {
    struct replacement file;
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    const enum status status = replace_open(&file, "", path);
    if (status) return status;
    write(file.out, lines, count, assignment);
    return replace_close(&file, STATUS_OK);
}

/* {"header": {..}, "grades": [..]}, in which the lines stay the caller's. */
static enum status write_json(const char *folder, cJSON *const *lines, size_t count, const cJSON *header) {
    struct replacement file;
    char path[PATH_MAX];
    cJSON *object = cJSON_CreateObject(), *grades = cJSON_AddArrayToObject(object, "grades");
    cJSON_AddItemReferenceToObject(object, "header", (cJSON *)header);
    for (size_t i = 0; i < count; i++) cJSON_AddItemReferenceToArray(grades, lines[i]);
    char *text = cJSON_Print(object), *utf8 = text ? text_utf8(text) : NULL;
    snprintf(path, sizeof path, "%s/grades.json", folder);
    enum status status = STATUS_OK;
    if (!utf8 || memory_ran_out()) status = status_set(STATUS_FAILED, "out of memory");
    if (!status) status = replace_open(&file, "", path);
    if (!status) {
        fprintf(file.out, "%s\n", utf8);
        status = replace_close(&file, STATUS_OK);
    }
    free(utf8);
    cJSON_free(text);
    cJSON_Delete(object);
    return status;
}

enum status grade_write(const char *folder, cJSON *const *lines, size_t count, const cJSON *header,
                        const struct assignment *assignment) {
    enum status status = write_file(folder, "grades.csv", write_csv, lines, count, assignment);
    if (!status) status = write_file(folder, "grades.xml", write_junit, lines, count, assignment);
    return status ? status : write_json(folder, lines, count, header);
}
