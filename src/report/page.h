/* The report: one offline HTML file. Each kind of figure is a section, written by these helpers, which
   escape all text. */
#ifndef TESSERA_REPORT_PAGE_H
#define TESSERA_REPORT_PAGE_H

#include "src/report/chart.h"
#include "src/report/heatmap.h"
#include "src/report/records.h"
#include "src/report/table.h"

struct page {
    FILE *out;
    const struct records *records;
    struct names backends; /* each has one style in all charts */
    const char *folder;    /* (optional) for each figure as ID.svg */
    struct names figures;  /* the ids of those files */
    enum status status;    /* the first error */
};

struct section {
    const char *id, *title;
    const char *command; /* that writes such records */
    const char *type;    /* the section appears if there are records of this type; NULL: always */
    bool (*present)(const struct records *records); /* (optional) in place of the type */
    void (*write)(struct page *page);
};

extern const struct section section_environment, section_training, section_compare, section_time,
    section_gemm, section_roofline, section_scaling, section_ranks, section_shmem, section_breakeven,
    section_confusion, section_mistakes, section_kmeans, section_kmeans_steps, section_qr, section_readout,
    section_grades;

/* Writes the page; with `folder`, which must exist, also each figure as ID.svg; ids go to `figures`.
   STATUS_FAILED if memory ran out or a file could not be written. */
enum status page_write(FILE *out, const struct records *records, const char *folder, struct names *figures);

/* --- for sections --- */

struct chart_style page_style(struct page *page, const char *backend);
void page_heading(struct page *page, const char *format, ...) __attribute__((format(printf, 2, 3)));
void page_note(struct page *page, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A bullet for each item. */
void page_list(struct page *page, const struct names *items);

/* Elements between these calls are side by side on a wide screen. */
void page_columns_open(struct page *page);
void page_columns_close(struct page *page);

/* Writes the figure with legend and caption ("": none), and closes it. */
void page_chart(struct page *page, struct chart *chart, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void page_heatmap(struct page *page, struct heatmap *map, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* A record's image with its caption: a line of bold and other text, and one below. Nothing if the record has
   no valid image. */
struct image_text {
    char alternative[192], bold[96], rest[96], below[96];
};
bool page_has_image(const cJSON *line);
void page_images_open(struct page *page);
void page_image(struct page *page, const cJSON *line, const struct image_text *text);
void page_images_close(struct page *page);
/* Writes the table and closes it. More than 40 rows are folded: a click opens them, print shows them. */
void page_table(struct page *page, struct table *table);
/* The same unless the table is empty and no row was left out; closes it in any case. */
void page_optional_table(struct page *page, struct table *table);

/* As selections_of; if memory ran out, sets page->status and returns none. */
struct selections page_selections(struct page *page, const char *type, selection_key *key);

/* The whole style sheet. */
extern const char page_style_sheet[];
/* Writes the rules for charts, with the colours of the light theme in place of variables. */
void page_chart_style(FILE *out);
/* Writes <defs> with the hatchings of bars. */
void page_chart_patterns(FILE *out);

#endif
