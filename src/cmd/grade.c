/* ./train grade: verifies and times the plug-ins of a course, and gives them points. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/memory.h"
#include "src/base/process.h"
#include "src/base/profile.h"
#include "src/base/replace.h"
#include "src/base/terminal.h"
#include "src/base/text.h"
#include "src/bench/grade.h"
#include "src/cmd/bench_table.h"
#include "src/cmd/command.h"
#include "src/cmd/options.h"
#include "src/report/page.h"
#include "src/report/records.h"

enum { PATH = 4096, MOST_KEYS = 64, HELP = 320 };

struct grade_run {
    struct assignment assignment;
    const char *assignment_file, *output;
    struct submissions submissions;
    struct grading grading;
    struct records earlier; /* the log of the runs before */
    struct logfile *log;
    cJSON *header, **lines; /* lines[graded], owned */
    size_t graded;
};

/* --- progress, on a terminal --- */

static struct {
    const char *file;
    size_t done, total, measured; /* files; measured: in this run */
    double start;
} progress;

static void show_stage(const char *stage) {
    char left[64] = "";
    if (progress.measured) {
        const double each = (clock_seconds() - progress.start) / (double)progress.measured;
        snprintf(left, sizeof left, ", %s left",
                 text_wait(each * (double)(progress.total - progress.done)).text);
    }
    terminal_progress("%zu of %zu%s: %.*s: %s ...", progress.done + 1, progress.total, left,
                      text_cut(progress.file, 30), progress.file, stage);
}

/* --- grading --- */

static volatile sig_atomic_t interrupted; /* process_is_interrupted tells */

static const char *path_in(const struct grade_run *run, const char *name) {
    static char path[PATH];
    snprintf(path, sizeof path, "%s/%s", run->output, name);
    return path;
}

/* The latest line of the log for this file, if it was measured as it is for this assignment. */
static cJSON *find_earlier(const struct grade_run *run, const struct submission *submission) {
    const struct record *row = NULL;
    const cJSON *found = NULL;
    while ((row = records_after(&run->earlier, row, "grade")))
        if (grade_is_current(row->line, submission, &run->assignment)) found = row->line;
    return found ? cJSON_Duplicate(found, true) : NULL;
}

static enum status grade_one(struct grade_run *run, const struct submission *submission) {
    cJSON **line = &run->lines[run->graded];
    progress.file = submission->name;
    *line = find_earlier(run, submission);
    if (!*line) {
        const enum status status =
            process_is_interrupted() ? STATUS_INTERRUPTED : grade_submission(&run->grading, submission, line);
        if (status == STATUS_INTERRUPTED) return STATUS_OK; /* the next run grades it */
        if (status) return status;
        progress.measured++;
        jsonl_print(run->log, *line);
    }
    run->graded++;
    progress.done++;
    return STATUS_OK;
}

static enum status grade_all(struct grade_run *run) {
    enum status status = STATUS_OK;
    progress.total = run->submissions.count;
    progress.start = clock_seconds();
    run->lines = memory_zero(run->submissions.count, sizeof *run->lines);
    if (!run->lines) return status_set(STATUS_FAILED, "out of memory");
    for (size_t i = 0; i < run->submissions.count && !status; i++)
        status = grade_one(run, &run->submissions.list[i]);
    terminal_clear_progress();
    return status;
}

/* After a signal, the submissions that are not graded yet stay for the next run. */
static enum status check_interrupted(const struct grade_run *run) {
    if (run->graded == run->submissions.count) return STATUS_OK;
    return status_set(
        STATUS_INTERRUPTED,
        "interrupted by %s: %zu of %zu submissions are graded; the same command grades the others",
        process_signal(), run->graded, run->submissions.count);
}

/* --- results --- */

static enum status write_page(const struct grade_run *run, const struct records *records) {
    struct replacement file;
    const enum status status = replace_open(&file, "", path_in(run, "grades.html"));
    return status ? status : replace_close(&file, page_write(file.out, records, NULL, NULL));
}

static enum status print_table(const struct records *records) {
    struct selections all;
    struct table table;
    const enum status status = selections_of(&all, records, "grade", NULL);
    if (!status && all.count) { /* none, if a signal came before the first was graded */
        tables_grades(&table, &all.list[0]);
        table_console(stdout, &table);
        table_close(&table);
    }
    selections_free(&all);
    return status;
}

/* Ranks all lines and writes every file of the output folder. */
static enum status write_results(struct grade_run *run) {
    struct records records = {0};
    grade_rank(run->lines, run->graded, &run->assignment);
    enum status status = grade_write(run->output, run->lines, run->graded, run->header, &run->assignment);
    if (!status) status = records_add(&records, cJSON_Duplicate(run->header, true));
    for (size_t i = 0; i < run->graded && !status; i++)
        status = records_add(&records, cJSON_Duplicate(run->lines[i], true));
    if (!status) status = write_page(run, &records);
    if (!status) status = print_table(&records);
    records_free(&records);
    if (!status)
        terminal_print(stdout, 2, "\n%s: grades.html, .csv, .json, .xml; %zu of %zu measured in this run\n",
                       run->output, progress.measured, run->graded);
    return status;
}

/* --- start and end --- */

static enum status open_folders(struct grade_run *run) {
    struct stat log;
    enum status status = files_make_folder(run->output);
    if (!status) status = files_make_folder(path_in(run, "build"));
    /* an empty one is of a run that did not begin */
    if (!status && stat(path_in(run, "log.jsonl"), &log) == 0 && log.st_size > 0)
        status = records_read(&run->earlier, path_in(run, "log.jsonl"));
    records_print_warnings(&run->earlier);
    if (!status) status = logfile_open(&run->log, path_in(run, "log.jsonl"), true);
    return status;
}

static enum status run_grading(struct grade_run *run, const struct option_words *words) {
    char builds[PATH];
    enum status status = STATUS_OK;
    for (size_t i = 0; i < words->count && !status; i++)
        status = submissions_add(&run->submissions, words->list[i], run->output);
    if (!status) status = open_folders(run);
    if (status) return status;
    snprintf(builds, sizeof builds, "%s", path_in(run, "build"));
    status = grading_open(&run->grading, &run->assignment, builds);
    if (status) return status;
    run->grading.stage = show_stage;
    run->header = jsonl_header();
    jsonl_text(run->header, "command", "grade");
    jsonl_text(run->header, "assignment", run->assignment.name);
    jsonl_count(run->header, "submissions", run->submissions.count);
    process_catch_signals(&interrupted);
    jsonl_print(run->log, run->header);
    bench_print_machine();
    terminal_print(stdout, 2, "%s: %zu submission%s, %lld thread%s, %zu products each\n\n",
                   run->assignment.name, run->submissions.count, run->submissions.count == 1 ? "" : "s",
                   (long long)run->assignment.threads, run->assignment.threads == 1 ? "" : "s",
                   assignment_products(&run->assignment));
    fflush(stdout);
    status = grade_all(run);
    if (!status) status = write_results(run);
    return status ? status : check_interrupted(run);
}

static enum status close_run(struct grade_run *run, enum status status) {
    grading_close(&run->grading);
    for (size_t i = 0; i < run->graded; i++) cJSON_Delete(run->lines[i]);
    free(run->lines);
    cJSON_Delete(run->header);
    submissions_free(&run->submissions);
    records_free(&run->earlier);
    return logfile_close(run->log, status);
}

/* --- flags --- */

/* The file, then the flags: a value for each key, or NULL. */
static enum status read_assignment(struct grade_run *run, const char *const *values) {
    struct assignment *assignment = &run->assignment;
    assignment_defaults(assignment);
    enum status status = run->assignment_file ? assignment_read(assignment, run->assignment_file) : STATUS_OK;
    for (size_t i = 0; i < assignment_key_count() && !status; i++) {
        char where[64];
        const char *name = assignment_key_at(i)->name;
        snprintf(where, sizeof where, "--%s", name);
        if (values[i]) status = assignment_set(assignment, name, values[i], where);
    }
    return status ? status : assignment_check(assignment);
}

static size_t add_key_flags(struct option_extra *extras, const char **values) {
    static char help[MOST_KEYS][HELP];
    for (size_t i = 0; i < assignment_key_count(); i++) {
        const struct config_key *key = assignment_key_at(i);
        snprintf(help[i], HELP, "%s [%s]", key->help, key->fallback[0] ? key->fallback : "none");
        extras[i] = (struct option_extra){key->name, key->unit, help[i], &values[i]};
    }
    return assignment_key_count();
}

static enum status check_words(const struct grade_run *run, const struct option_words *words) {
    struct files files = {0};
    if (!words->count || !run->output || !run->output[0])
        return status_set(STATUS_USAGE, "grade needs files or folders, and a folder for the results: "
                                        "./train grade submissions --assignment FILE -o grades");
    for (size_t i = 0; i < words->count; i++) files_add(&files, "the submission", words->list[i], FILE_READ);
    files_add(&files, "--assignment", run->assignment_file, FILE_READ);
    files_add(&files, "the log", path_in(run, "log.jsonl"), FILE_WRITTEN);
    return files_check(&files);
}

static enum status run_grade(int argc, char **argv) {
    static struct grade_run run; /* zero */
    static struct config config; /* takes no key */
    static const char *const no_keys[] = {NULL};
    static const char *values[MOST_KEYS];
    struct option_words words;
    struct option_extra extras[MOST_KEYS] = {
        {"assignment", "FILE", "'key = value' lines; each flag below is also a key [the defaults]",
         &run.assignment_file},
        {"output", "DIR", "folder for the results; a rerun grades only what has changed", &run.output},
        {"o", "DIR", "the same", &run.output},
    };
    const struct option_set set = {
        .usage = "grade DIR|FILES... --assignment FILE -o DIR",
        .details =
            "Verifies and times every plug-in (.so) and source (.c, .cc, .cpp, .cu) of a course, each in a "
            "process of its own, and writes grades.html, .csv, .json and .xml (JUnit): rank, GFLOP/s, "
            "points. A submission that is wrong, crashes, hangs, exceeds a limit or does not compile is a "
            "row with the reason. docs/grading.md explains it.\n"
            "  ./train grade docs/assignment --assignment docs/assignment/matmul.cfg -o grades",
        .keys = no_keys,
        .extras = extras,
        .extra_count = 3 + add_key_flags(extras + 3, values),
        .words = &words,
    };
    bool help;
    enum status status = options_parse(&set, argc, argv, &config, &help);
    if (status || help) return status;
    status = read_assignment(&run, values);
    if (!status) status = check_words(&run, &words);
    return status ? status : close_run(&run, run_grading(&run, &words));
}

const struct command command_grade = {"grade", "verify and time the plug-ins of a course, and give points",
                                      run_grade};
