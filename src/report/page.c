#include "src/report/page.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/memory.h"
#include "src/base/memstream.h"
#include "src/report/figure.h"
#include "src/report/markup.h"

static const struct section *const sections[] = {
    &section_grades,    &section_environment, &section_compare,  &section_time,   &section_training,
    &section_gemm,      &section_roofline,    &section_scaling,  &section_ranks,  &section_shmem,
    &section_breakeven, &section_confusion,   &section_mistakes, &section_kmeans, &section_kmeans_steps,
    &section_qr,        &section_readout};
enum { SECTIONS = sizeof sections / sizeof *sections, TEXT = 2048, MOST_ROWS = 40 };

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

#define FORMAT(text)                            \
    char text[TEXT];                            \
    va_list args;                               \
    va_start(args, format);                     \
    vsnprintf(text, sizeof text, format, args); \
    va_end(args)

void page_heading(struct page *page, const char *format, ...) {
    FORMAT(text);
    write_tag(page, "h3", text);
}

void page_note(struct page *page, const char *format, ...) {
    FORMAT(text);
    write_tag(page, "p", text);
}

void page_list(struct page *page, const struct names *items) {
    fputs("<ul class=\"plain\">\n", page->out);
    for (size_t i = 0; i < items->count; i++) write_tag(page, "li", items->list[i]);
    fputs("</ul>\n", page->out);
}

void page_columns_open(struct page *page) {
    fputs("<div class=\"columns\">\n", page->out);
}

void page_columns_close(struct page *page) {
    fputs("</div>\n", page->out);
}

static void fail(struct page *page) {
    if (!page->status) page->status = status_set(STATUS_FAILED, "out of memory");
}

/* Frees `svg`, the text of the figure. */
static void write_figure(struct page *page, const char *id, const char *label, char *svg, double height,
                         const struct legend *legend, bool listed, const char *caption) {
    fputs("<figure>\n", page->out);
    write_tag(page, "h4", label);
    fputs(svg ? svg : "", page->out);
    if (listed) legend_html(page->out, legend);
    if (caption[0]) write_tag(page, "figcaption", caption);
    fputs("</figure>\n", page->out);
    if (svg && page->folder) {
        const enum status status = figure_write(page->folder, id, label, svg, height, legend);
        if (status && !page->status) page->status = status;
        if (!status) names_index(&page->figures, id);
    }
    free(svg);
}

void page_chart(struct page *page, struct chart *chart, const char *format, ...) {
    FORMAT(caption);
    struct memstream svg;
    struct legend legend = {0};
    const enum status status = memstream_open(&svg);
    if (chart->kind == CHART_LINES) chart_sort(chart);
    const double height = status ? 0 : chart_svg(svg.out, chart);
    if (memstream_close(&svg, status)) fail(page);
    chart_legend(&legend, chart);
    write_figure(page, chart->id, chart->label, svg.text, height, &legend, !chart->unlisted, caption);
    legend_free(&legend);
    chart_close(chart);
}

void page_heatmap(struct page *page, struct heatmap *map, const char *format, ...) {
    FORMAT(caption);
    struct memstream svg;
    const enum status status = memstream_open(&svg);
    const double height = status ? 0 : heatmap_svg(svg.out, map);
    if (memstream_close(&svg, status)) fail(page);
    write_figure(page, map->id, map->label, svg.text, height, &map->legend, map->legend.count > 0, caption);
    heatmap_close(map);
}

/* The first sentence of a text. */
static void write_sentence(FILE *out, const char *text) {
    char sentence[256];
    const char *end = strstr(text, ". ");
    snprintf(sentence, sizeof sentence, "%.*s", end ? (int)(end + 1 - text) : (int)strlen(text), text);
    markup_text(out, sentence);
}

void page_optional_table(struct page *page, struct table *table) {
    if (table_rows(table) || table->reasons.count) {
        page_table(page, table);
    } else {
        table_close(table);
    }
}

void page_table(struct page *page, struct table *table) {
    const size_t rows = table_rows(table);
    const bool folded = rows > MOST_ROWS;
    if (folded) {
        fprintf(page->out, "<details><summary>Table of %zu rows: ", rows);
        write_sentence(page->out, table->caption);
        fputs("</summary>\n", page->out);
    }
    table_html(page->out, table);
    if (folded) fputs("</details>\n", page->out);
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

static bool is_present(const struct page *page, const struct section *section) {
    if (section->present) return section->present(page->records);
    return !section->type || records_any(page->records, section->type);
}

static const char *introduction(const struct page *page) {
    bool others = false;
    for (size_t i = 0; i < SECTIONS; i++)
        others = others || (sections[i] != &section_kmeans && sections[i] != &section_environment &&
                            is_present(page, sections[i]));
    if (is_present(page, &section_grades))
        return "Each submission was compared with a float64 reference, and timed on new operands for each "
               "repeat, in a process of its own.";
    if (is_present(page, &section_kmeans) && !others)
        return "What each run of k-means found, how well its clusters agree with classes, and where the time "
               "goes. Every number was measured.";
    return "How fast and how correctly each matrix multiply (GEMM) trains the same multi-layer perceptron, "
           "and "
           "where the time goes. Every number was measured. A backend whose results were wrong gets no time.";
}

static void write_top(struct page *page) {
    fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
          "<meta name=\"color-scheme\" content=\"light dark\"/>\n<title>Tessera report</title>\n<style>\n",
          page->out);
    fputs(page_style_sheet, page->out);
    fputs("</style>\n</head>\n<body>\n", page->out);
    fputs("<svg class=\"defs\" width=\"0\" height=\"0\" aria-hidden=\"true\">", page->out);
    page_chart_patterns(page->out);
    fputs("</svg>\n", page->out);
    const bool grades = is_present(page, &section_grades); /* the page of a lecture */
    fprintf(page->out, "<header>\n<h1>%s</h1>\n", grades ? "Matrix multiplies, graded" : "Tessera report");
    page_note(page, "%s", introduction(page));
    fputs("<nav aria-label=\"Sections\">\n", page->out);
    for (size_t i = 0; i < SECTIONS; i++)
        if (is_present(page, sections[i]))
            fprintf(page->out, "<a href=\"#%s\">%s</a>\n", sections[i]->id, sections[i]->title);
    fputs("</nav>\n</header>\n<main>\n", page->out);
}

static void write_sections(struct page *page) {
    for (size_t i = 0; i < SECTIONS; i++) {
        if (!is_present(page, sections[i])) continue;
        fprintf(page->out, "<section id=\"%s\">\n<h2>%s</h2>\n", sections[i]->id, sections[i]->title);
        sections[i]->write(page);
        fputs("</section>\n", page->out);
    }
}

static void write_left_out(struct page *page) {
    bool any = false;
    if (is_present(page, &section_grades)) return;
    for (size_t i = 0; i < SECTIONS; i++) {
        if (is_present(page, sections[i]) || sections[i] == &section_grades) continue;
        if (!any)
            fputs("<section id=\"left-out\">\n<h2>Not in this report</h2>\n<ul class=\"plain\">\n",
                  page->out);
        any = true;
        fprintf(page->out, "<li>%s: add the log of <code>", sections[i]->title);
        markup_text(page->out, sections[i]->command);
        fputs("</code></li>\n", page->out);
    }
    if (any) fputs("</ul>\n</section>\n", page->out);
}

enum status page_write(FILE *out, const struct records *records, const char *folder, struct names *figures) {
    struct page page = {.out = out, .records = records, .folder = folder};
    write_top(&page);
    write_sections(&page);
    write_left_out(&page);
    fputs("</main>\n</body>\n</html>\n", out);
    if (memory_ran_out()) fail(&page);
    names_free(&page.backends);
    if (figures) {
        *figures = page.figures;
    } else {
        names_free(&page.figures);
    }
    if (page.status) return page.status;
    return ferror(out) ? status_set(STATUS_FAILED, "cannot write the report") : STATUS_OK;
}
