#include "src/report/gnuplot.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PATH_SIZE = 4096 };

static FILE *open_file(const char *folder, const char *id, const char *ending, enum status *status) {
    char path[PATH_SIZE];
    snprintf(path, sizeof path, "%s/%s.%s", folder, id, ending);
    FILE *out = fopen(path, "w");
    if (!out) *status = status_set(STATUS_FAILED, "cannot write '%s': %s", path, strerror(errno));
    return out;
}

static enum status close_file(FILE *out, const char *id) {
    const bool written = !ferror(out);
    return fclose(out) == 0 && written
               ? STATUS_OK
               : status_set(STATUS_FAILED, "cannot write all of the files of '%s'", id);
}

/* "text" in double quotes, of harmless characters only. */
static void quoted(FILE *out, const char *text) {
    fputc('"', out);
    for (; *text; text++) {
        const unsigned char c = (unsigned char)*text;
        fputc(c < 0x80 && (isalnum(c) || strchr(" .,;:()/+-=", c)) && c ? c : ' ', out);
    }
    fputc('"', out);
}

static void script_top(FILE *out, const char *id, const char *label, const char *x, const char *y) {
    fprintf(out,
            "# gnuplot %s.gp makes %s.png\nset terminal pngcairo noenhanced size 1000,640 font \"sans,13\"\n"
            "set output \"%s.png\"\nset grid\nset key outside right top vertical\nset title ",
            id, id, id);
    quoted(out, label);
    fputs("\nset xlabel ", out);
    quoted(out, x);
    fputs("\nset ylabel ", out);
    quoted(out, y);
    fputc('\n', out);
}

static const char *const colours[CHART_COLOURS] = {"#0069a8", "#c24e00", "#00805c", "#a8508a",
                                                   "#b07a00", "#3d9bd6", "#6b6f00", "#666666"};

/* --- lines: a block of the .dat a series --- */

static void line_data(FILE *out, const struct chart *chart) {
    for (size_t s = 0; s < chart->series_count; s++) {
        fputs("# ", out);
        quoted(out, chart->series[s].name);
        fputc('\n', out);
        for (size_t i = 0; i < chart->series[s].count; i++)
            fprintf(out, "%.9g %.9g\n", chart->series[s].points[i].x, chart->series[s].points[i].y);
        fputs("\n\n", out);
    }
}

static void line_script(FILE *out, const struct chart *chart) {
    if (chart->x.kind != SCALE_LINEAR)
        fprintf(out, "set logscale x %d\n", chart->x.kind == SCALE_LOG2 ? 2 : 10);
    if (chart->y.kind != SCALE_LINEAR)
        fprintf(out, "set logscale y %d\n", chart->y.kind == SCALE_LOG2 ? 2 : 10);
    if (chart->y.kind != SCALE_LINEAR) fputs("set format y \"%g\"\n", out);
    if (chart->y.from_zero) fputs("set yrange [0:*]\n", out);
    const char *separator = "plot ";
    for (size_t s = 0; s < chart->series_count; s++) {
        const struct chart_series *series = &chart->series[s];
        if (!series->count) continue;
        fprintf(out, "%s\"%s.dat\" index %zu with %s lc rgb \"%s\" lw 2 ", separator, chart->id, s,
                !series->line   ? "points"
                : series->marks ? "linespoints"
                                : "lines",
                colours[series->style.colour % CHART_COLOURS]);
        if (series->line) fprintf(out, "dt %u ", series->style.dash + 1);
        if (series->marks) fprintf(out, "pt %u ps 1.2 ", series->style.marker + 4);
        if (series->unlisted) fputs("no", out);
        fputs("title ", out);
        if (!series->unlisted) quoted(out, series->name);
        separator = ", \\\n  ";
    }
    fputc('\n', out);
}

/* --- bars: a row of the .dat a category, a column a series --- */

static void bar_data(FILE *out, const struct chart *chart) {
    for (size_t c = 0; c < chart->categories.count; c++) {
        quoted(out, chart->categories.list[c]);
        for (size_t s = 0; s < chart->series_count; s++) {
            double value = 0;
            for (size_t i = 0; i < chart->series[s].count; i++)
                if (chart->series[s].points[i].x == (double)c) value = chart->series[s].points[i].y;
            fprintf(out, " %.9g", value);
        }
        fputc('\n', out);
    }
}

static void bar_script(FILE *out, const struct chart *chart) {
    fprintf(out,
            "set style data histograms\nset style histogram %s\nset style fill solid 0.9 border -1\n"
            "%s\nset yrange [0:*]\n",
            chart->kind == CHART_STACKED ? "rowstacked" : "clustered",
            chart->kind == CHART_STACKED ? "set boxwidth 0.7\nset xtics rotate by -30" : "set xtics");
    const char *separator = "plot ";
    for (size_t s = 0; s < chart->series_count; s++) {
        fprintf(out, "%s\"%s.dat\" using %zu:xtic(1) lc rgb \"%s\" title ", separator, chart->id, s + 2,
                colours[chart->series[s].style.colour % CHART_COLOURS]);
        quoted(out, chart->series[s].name);
        separator = ", \\\n  ";
    }
    fputc('\n', out);
}

static bool has_points(const struct chart *chart) {
    for (size_t s = 0; s < chart->series_count; s++)
        if (chart->series[s].count) return true;
    return false;
}

enum status gnuplot_chart(const char *folder, const struct chart *chart) {
    const bool bars = chart->kind != CHART_LINES;
    enum status status = STATUS_OK;
    FILE *data = open_file(folder, chart->id, "dat", &status);
    if (!data) return status;
    (bars ? bar_data : line_data)(data, chart);
    status = close_file(data, chart->id);
    FILE *script = status ? NULL : open_file(folder, chart->id, "gp", &status);
    if (!script) return status;
    const bool turned = chart->kind == CHART_STACKED;
    script_top(script, chart->id, chart->label, turned ? "" : chart->x.title, chart->y.title);
    if (has_points(chart)) (bars ? bar_script : line_script)(script, chart);
    return close_file(script, chart->id);
}

/* --- grids --- */

static void grid_labels(FILE *out, const char *axis, const struct names *names) {
    fprintf(out, "set %stics (", axis);
    for (size_t i = 0; i < names->count; i++) {
        if (i) fputs(", ", out);
        quoted(out, names->list[i]);
        fprintf(out, " %zu", i);
    }
    fputs(")\n", out);
}

/* 0xRRGGBB on white paper. */
static unsigned cell_colour(const struct grid_cell *cell) {
    const unsigned long full = strtoul(colours[cell->colour % CHART_COLOURS] + 1, NULL, 16);
    const double strength = cell->strength > 1 ? 1 : cell->strength > 0 ? cell->strength : 0;
    unsigned mixed = 0;
    for (int shift = 0; shift < 24; shift += 8)
        mixed |= (unsigned)(255 - strength * (255 - (double)(full >> shift & 255))) << shift;
    return mixed;
}

enum status gnuplot_grid(const char *folder, const struct grid *grid) {
    enum status status = STATUS_OK;
    FILE *data = open_file(folder, grid->id, "dat", &status);
    if (!data) return status;
    for (size_t r = 0; r < grid->rows.count; r++)
        for (size_t c = 0; c < grid->columns.count; c++) {
            const struct grid_cell *cell = &grid->cells[r * grid->columns.count + c];
            fprintf(data, "%zu %zu %u ", c, r, cell_colour(cell));
            quoted(data, cell->text[0] ? cell->text : " ");
            fputc('\n', data);
        }
    status = close_file(data, grid->id);
    FILE *script = status ? NULL : open_file(folder, grid->id, "gp", &status);
    if (!script) return status;
    script_top(script, grid->id, grid->label, grid->column_title, grid->row_title);
    grid_labels(script, "x", &grid->columns);
    grid_labels(script, "y", &grid->rows);
    if (grid->legend[0]) {
        fputs("set title ", script);
        quoted(script, grid->label);
        fputs(" . \"\\n\" . ", script);
        quoted(script, grid->legend);
        fputc('\n', script);
    }
    fprintf(
        script,
        "unset grid\nunset key\nset style fill solid border rgb \"#ffffff\"\nset xrange [-0.5:%zu.5]\n"
        "set yrange [%zu.5:-0.5]\nplot \"%s.dat\" using 1:2:(0.5):(0.5):3 with boxxyerror lc rgb variable, "
        "\"%s.dat\" using 1:2:4 with labels\n",
        grid->columns.count ? grid->columns.count - 1 : 0, grid->rows.count ? grid->rows.count - 1 : 0,
        grid->id, grid->id);
    return close_file(script, grid->id);
}

/* --- running it --- */

bool gnuplot_there(void) {
    const char *path = getenv("PATH");
    while (path && *path) {
        const size_t length = strcspn(path, ":");
        char file[PATH_SIZE];
        snprintf(file, sizeof file, "%.*s/gnuplot", (int)(length < 4000 ? length : 4000), path);
        if (length && access(file, X_OK) == 0) return true;
        path += length + (path[length] == ':');
    }
    return false;
}

static bool run_one(const char *folder, const char *script) {
    const pid_t child = fork();
    if (child < 0) return false;
    if (child == 0) {
        if (chdir(folder) == 0) execlp("gnuplot", "gnuplot", script, (char *)NULL);
        _exit(127);
    }
    int status = 0;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) return false;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

enum status gnuplot_run(const char *folder, const struct names *scripts) {
    for (size_t i = 0; i < scripts->count; i++) {
        char script[128];
        snprintf(script, sizeof script, "%.100s.gp", scripts->list[i]);
        if (!run_one(folder, script))
            return status_set(STATUS_FAILED, "gnuplot could not draw %s/%s (its message is above)", folder,
                              script);
    }
    return STATUS_OK;
}
