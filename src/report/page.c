#include "src/report/page.h"

#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include "src/report/gnuplot.h"
#include "src/report/markup.h"

static const struct section *const sections[] = {&section_environment, &section_compare, &section_time,
                                                 &section_training,    &section_gemm,    &section_roofline,
                                                 &section_scaling,     &section_shmem,   &section_breakeven,
                                                 &section_confusion,   &section_mistakes};
enum { SECTIONS = sizeof sections / sizeof *sections, TEXT = 2048 };

/* --- helpers of the sections --- */

struct chart_style page_style(struct page *page, const char *backend) {
    const size_t index = names_index(&page->backends, backend);
    return chart_style_of(index == SIZE_MAX ? 0 : index);
}

static void write_tag(struct page *page, const char *tag, const char *text) {
    fprintf(page->out, "<%s>", tag);
    markup_text(page->out, text);
    fprintf(page->out, "</%s>\n", tag);
}

void page_heading(struct page *page, const char *format, ...) {
    char text[TEXT];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    write_tag(page, "h3", text);
}

void page_note(struct page *page, const char *format, ...) {
    char text[TEXT];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    write_tag(page, "p", text);
}

void page_beside_open(struct page *page) {
    fputs("<div class=\"beside\">\n", page->out);
}

void page_beside_close(struct page *page) {
    fputs("</div>\n", page->out);
}

static void fail(struct page *page) {
    if (!page->status) page->status = status_set(STATUS_FAILED, "out of memory");
}

static void keep_script(struct page *page, enum status status, const char *id) {
    if (status && !page->status) page->status = status;
    if (!status && names_index(&page->scripts, id) == SIZE_MAX) fail(page);
}

void page_chart(struct page *page, struct chart *chart, const char *format, ...) {
    char text[TEXT];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (chart->failed) fail(page);
    if (chart->kind == CHART_LINES) chart_sort(chart);
    fputs("<figure>\n", page->out);
    write_tag(page, "h4", chart->label);
    chart_svg(page->out, chart);
    if (!chart->unlisted) chart_legend(page->out, chart);
    write_tag(page, "figcaption", text);
    fputs("</figure>\n", page->out);
    if (page->pictures) keep_script(page, gnuplot_chart(page->pictures, chart), chart->id);
    chart_close(chart);
}

void page_grid(struct page *page, struct grid *grid, const char *format, ...) {
    char text[TEXT];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fputs("<figure>\n", page->out);
    write_tag(page, "h4", grid->label);
    grid_svg(page->out, grid);
    write_tag(page, "figcaption", text);
    fputs("</figure>\n", page->out);
    if (page->pictures) keep_script(page, gnuplot_grid(page->pictures, grid), grid->id);
    grid_close(grid);
}

void page_table(struct page *page, struct table *table) {
    if (table->failed) fail(page);
    table_html(page->out, table);
    table_close(table);
}

struct selections page_selections(struct page *page, const char *type, selection_key *key) {
    struct selections selections;
    if (!selections_of(&selections, page->records, type, key)) return selections;
    fail(page);
    selections_free(&selections);
    return selections;
}

/* --- the page --- */

/* Hatchings: over the colours of bars, so that parts are told apart without colour too. */
static void write_patterns(FILE *out) {
    static const char *const marks[CHART_COLOURS] = {"",
                                                     "M0 6L6 0",
                                                     "M0 0L6 6",
                                                     "M3 0V6",
                                                     "M0 3H6",
                                                     "M0 0L6 6M0 6L6 0",
                                                     "M1 1h1v1h-1zM4 4h1v1h-1z",
                                                     "M0 3H6M3 0V6"};
    fputs("<svg class=\"defs\" width=\"0\" height=\"0\" aria-hidden=\"true\"><defs>\n", out);
    for (int i = 0; i < CHART_COLOURS; i++)
        fprintf(out,
                "<pattern id=\"hatch%d\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\">"
                "<path class=\"hatch\" d=\"%s\"/></pattern>\n",
                i, marks[i][0] ? marks[i] : "M0 0");
    fputs("</defs></svg>\n", out);
}

static void write_top(struct page *page) {
    fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
          "<meta name=\"color-scheme\" content=\"light dark\"/>\n<title>Tessera report</title>\n<style>\n",
          page->out);
    fputs(page_style_sheet, page->out);
    fputs("</style>\n</head>\n<body>\n", page->out);
    write_patterns(page->out);
    fputs("<header>\n<h1>Tessera report</h1>\n", page->out);
    page_note(
        page,
        "A multi-layer perceptron on interchangeable matrix multiplies: which is right, how fast is it, and "
        "where does the time go? Everything here was measured; nothing without a check of its result.");
    fputs("<nav aria-label=\"Sections\">\n", page->out);
    for (size_t i = 0; i < SECTIONS; i++)
        if (sections[i]->present(page->records))
            fprintf(page->out, "<a href=\"#%s\">%s</a>\n", sections[i]->id, sections[i]->title);
    fputs("</nav>\n</header>\n<main>\n", page->out);
}

static void write_sections(struct page *page) {
    for (size_t i = 0; i < SECTIONS; i++) {
        if (!sections[i]->present(page->records)) continue;
        fprintf(page->out, "<section id=\"%s\">\n<h2>%s</h2>\n", sections[i]->id, sections[i]->title);
        sections[i]->write(page);
        fputs("</section>\n", page->out);
    }
}

static void write_left_out(struct page *page) {
    bool any = false;
    for (size_t i = 0; i < SECTIONS; i++) {
        if (sections[i]->present(page->records)) continue;
        if (!any)
            fputs("<section id=\"left-out\">\n<h2>Not in this report</h2>\n<ul class=\"plain\">\n",
                  page->out);
        any = true;
        fprintf(page->out, "<li>%s: add the file of <code>", sections[i]->title);
        markup_text(page->out, sections[i]->command);
        fputs("</code></li>\n", page->out);
    }
    if (any) fputs("</ul>\n</section>\n", page->out);
}

enum status page_write(FILE *out, const struct records *records, const char *pictures,
                       struct names *scripts) {
    struct page page = {.out = out, .records = records, .pictures = pictures};
    write_top(&page);
    write_sections(&page);
    write_left_out(&page);
    fputs("</main>\n</body>\n</html>\n", out);
    names_free(&page.backends);
    if (scripts) {
        *scripts = page.scripts;
    } else {
        names_free(&page.scripts);
    }
    if (page.status) return page.status;
    return ferror(out) ? status_set(STATUS_FAILED, "cannot write the report") : STATUS_OK;
}
