#include "src/report/figure.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "src/base/memstream.h"
#include "src/base/replace.h"
#include "src/report/chart_draw.h"
#include "src/report/page.h"

enum { MARGIN = 20, TITLE = 46, GAP = 14, NOT_FOUND = 127 /* as shells report it */ };

static enum status write_file(FILE *out, const char *title, const char *svg, double height,
                              const struct legend *legend) {
    const double width = CHART_WIDTH + 2 * MARGIN;
    double total = TITLE + height + GAP + MARGIN;
    struct memstream list; /* the height of the picture stands before it */
    enum status status = memstream_open(&list);
    if (!status) total += legend_svg(list.out, legend, MARGIN, TITLE + height + GAP);
    status = memstream_close(&list, status);
    if (status) return status;
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%g\" height=\"%g\" viewBox=\"0 0 %g %g\" "
            "font-family=\"sans-serif\" font-size=\"12\">\n<style>",
            width, total, width, total);
    page_chart_style(out);
    fputs("</style>\n", out);
    page_chart_patterns(out);
    fprintf(out, "\n<rect width=\"%g\" height=\"%g\" fill=\"#fff\"/>\n", width, total);
    draw_text(out, MARGIN, MARGIN + 8, "v", "start", title);
    fprintf(out, "<g transform=\"translate(%d %d)\">\n%s</g>\n%s</svg>\n", MARGIN, TITLE, svg, list.text);
    free(list.text);
    return STATUS_OK;
}

enum status figure_write(const char *folder, const char *id, const char *title, const char *svg,
                         double height, const struct legend *legend) {
    struct replacement file;
    char path[4096];
    snprintf(path, sizeof path, "%s/%s.svg", folder, id);
    const enum status status = replace_open(&file, "", path);
    if (status) return status;
    return replace_close(&file, write_file(file.out, title, svg, height, legend));
}

/* The exit status of rsvg-convert on one file, whose picture goes to the open file `to`; -1 if it did not
   exit. */
static int convert(const char *folder, const char *from, int to) {
    const pid_t child = fork();
    if (child < 0) return -1;
    if (child == 0) {
        if (chdir(folder) == 0 && dup2(to, STDOUT_FILENO) >= 0)
            execlp("rsvg-convert", "rsvg-convert", "--zoom", "2", from, (char *)NULL);
        _exit(NOT_FOUND);
    }
    int status = 0;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

enum status figure_convert(const char *folder, const struct names *ids) {
    for (size_t i = 0; i < ids->count; i++) {
        struct replacement file;
        char svg[128], png[4096];
        snprintf(svg, sizeof svg, "%.100s.svg", ids->list[i]);
        snprintf(png, sizeof png, "%s/%.100s.png", folder, ids->list[i]);
        enum status status = replace_open(&file, "", png);
        if (status) return status;
        const int code = convert(folder, svg, fileno(file.out));
        status = replace_close(&file, code ? STATUS_FAILED : STATUS_OK);
        if (code == NOT_FOUND)
            return status_set(STATUS_UNAVAILABLE,
                              "--png needs rsvg-convert, which is not installed (apt-get install "
                              "librsvg2-bin). The page and the charts as %s/*.svg are written",
                              folder);
        if (code)
            return status_set(STATUS_FAILED, "rsvg-convert could not convert %s/%s (its message is above)",
                              folder, svg);
        if (status) return status;
    }
    return STATUS_OK;
}
