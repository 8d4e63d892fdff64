/* ./train report: figures of logs, as one offline HTML page, as PNG, as tables of a Markdown file. */
#include <stdio.h>
#include <string.h>

#include "src/base/process.h"
#include "src/base/replace.h"
#include "src/cmd/command.h"
#include "src/cmd/options.h"
#include "src/report/figure.h"
#include "src/report/page.h"
#include "src/report/rewrite.h"

struct report_options {
    struct option_words files;
    const char *output, *png, *tables, *tag;
    char stream[32]; /* the output, if it is the standard output */
};

static enum status write_page(const struct report_options *options, const char *path,
                              const struct records *records, struct names *figures) {
    struct replacement file;
    enum status status = replace_open(&file, "", path);
    if (status) return status;
    status = replace_close(&file, page_write(file.out, records, options->png, figures));
    if (!status)
        printf("%s: %zu lines of %zu files\n", options->stream[0] ? "standard output" : path, records->count,
               records->file_count);
    return status;
}

/* The page is the default; --tables alone writes none: NULL. */
static const char *page_of(const struct report_options *options) {
    const bool wanted = options->output || options->png || !options->tables;
    return options->output ? options->output : wanted ? "report.html" : NULL;
}

static enum status report(const struct report_options *options, const struct records *records) {
    enum status status = STATUS_OK;
    struct names figures = {0};
    if (options->tables) status = rewrite_tables(options->tables, options->tag, records);
    if (!status && options->png) status = files_make_folder(options->png);
    const char *page = page_of(options);
    if (!status && page) status = write_page(options, page, records, &figures);
    fflush(stdout);
    if (!status && options->png) status = figure_convert(options->png, &figures);
    if (!status && options->png) printf("%s: %zu charts as .png\n", options->png, figures.count);
    names_free(&figures);
    return status;
}

static enum status parse(int argc, char **argv, struct report_options *options, bool *help) {
    static struct config config; /* takes no key */
    static const char *const no_keys[] = {NULL};
    const struct option_extra extras[] = {
        {"output", "FILE", "the page to write; - is standard output [report.html; with --tables: none]",
         &options->output},
        {"o", "FILE", "the same", &options->output},
        {"png", "DIR", "also write every chart into this folder, as .svg and as .png (by rsvg-convert)",
         &options->png},
        {"tables", "FILE",
         "rewrite the tables of a Markdown file between <!-- NAME --> and <!-- end -->: compare CONFIG, "
         "gemm, peak, scaling, shmem, kmeans-steps, qr, breakeven, file PATH (as it is if it ends with .md, "
         "else "
         "as text)",
         &options->tables},
        {"tag", "WORD", "with --tables: only markers <!-- NAME WORD -->, for several machines in one file",
         &options->tag},
    };
    const struct option_set set = {
        .usage = "report FILE... [-o report.html] [--png DIR] [--tables FILE [--tag WORD]]",
        .details =
            "Makes one offline HTML page of the logs (--log) of train, kmeans, compare, bench and eval.\n"
            "The page has a section for each kind of line in the logs; for every other kind it names the "
            "command that writes it.\n"
            "  ./train report run.jsonl -o report.html",
        .keys = no_keys,
        OPTION_EXTRAS(extras),
        .words = &options->files,
    };
    return options_parse(&set, argc, argv, &config, help);
}

static enum status check_files(const struct report_options *options) {
    struct files files = {0};
    for (size_t i = 0; i < options->files.count; i++)
        files_add(&files, "the log", options->files.list[i], FILE_READ);
    files_add(&files, "--output", page_of(options), FILE_WRITTEN);
    files_add(&files, "--tables", options->tables, FILE_WRITTEN);
    return files_check(&files);
}

static enum status run_report(int argc, char **argv) {
    struct report_options options = {0};
    struct records records = {0};
    bool help;
    enum status status = parse(argc, argv, &options, &help);
    if (status || help) return status;
    if (!options.files.count)
        return status_set(
            STATUS_USAGE,
            "report needs the files that train --log, kmeans, compare, bench or eval --log wrote: "
            "./train report FILE...");
    if (options.tag && (!options.tables || !options.tag[0] || strpbrk(options.tag, " \t")))
        return status_set(STATUS_USAGE, "--tag is one word and goes with --tables FILE");
    if (options.output && strcmp(options.output, "-") == 0) {
        process_take_output(options.stream, sizeof options.stream);
        options.output = options.stream;
    }
    status = check_files(&options);
    for (size_t i = 0; i < options.files.count && !status; i++)
        status = records_read(&records, options.files.list[i]);
    records_print_warnings(&records);
    if (!status) status = report(&options, &records);
    records_free(&records);
    return status;
}

const struct command command_report = {"report", "make one HTML page, PNGs or Markdown tables of logs",
                                       run_report};
