/* ./train kmeans --picture, --predict. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/replace.h"
#include "src/base/text.h"
#include "src/cmd/kmeans.h"
#include "src/report/image_grid.h"

enum { GRID_COLUMNS = 10, GRID_MOST = 600, GRID_PIXELS = 2000 };

/* --- a picture --- */

void kmeans_centre_pixels(const struct kmeans_job *job, size_t cluster, uint8_t *pixels) {
    const size_t features = job->sets.train.features;
    for (size_t f = 0; f < features; f++)
        pixels[f] = (uint8_t)lround(
            fmin(fmax(dtype_get(job->sets.train.dtype, job->result.state.values, cluster * features + f), 0),
                 255));
}

static void draw_centre(const struct kmeans_job *job, size_t cluster, uint8_t *pixels, struct image *image) {
    kmeans_centre_pixels(job, cluster, pixels);
    image->pixels = pixels;
    if (!job->majority) return;
    snprintf(image->caption, sizeof image->caption, "%.20s\n%s",
             classes_label(&job->sets.images.classes, job->majority[cluster]).text,
             text_grouped(job->result.count[cluster]).text);
}

enum status kmeans_draw(const struct kmeans_job *job) {
    const struct dataset *set = &job->sets.images.train;
    const size_t features = job->sets.train.features,
                 shown = job->options.clusters < GRID_MOST ? job->options.clusters : GRID_MOST;
    if (!job->picture) return STATUS_OK;
    struct image_grid grid = {.height = set->height, .width = set->width};
    struct image *images = calloc(2 * shown + GRID_COLUMNS, sizeof *images); /* the last row is full */
    uint8_t *pixels = malloc(shown * features);
    enum status status = images && pixels ? STATUS_OK : status_set(STATUS_FAILED, "out of memory");
    if (!status) {
        for (size_t j = 0; j < shown; j++) draw_centre(job, j, pixels + j * features, &images[j]);
        grid.images = images;
        grid.columns =
            image_grid_columns(grid, shown, shown < GRID_COLUMNS ? shown : GRID_COLUMNS, GRID_PIXELS);
        grid.rows = (shown + grid.columns - 1) / grid.columns;
        status = image_grid_write(&grid, job->picture);
    }
    free(images);
    free(pixels);
    return status;
}

/* --- labels --- */

static void write_rows(const struct kmeans_job *job, FILE *out) {
    fprintf(out, "part,row,cluster%s\n", job->majority ? ",class,majority" : "");
    for (size_t p = 0; p < KMEANS_PARTS; p++) {
        const struct kmeans_part *part = &job->part[p];
        for (size_t i = 0; part->points && i < part->points->count; i++) {
            fprintf(out, "%s,%zu,%u", part->name, i, part->label[i]);
            if (job->majority) fprintf(out, ",%u,%u", part->points->label[i], job->majority[part->label[i]]);
            fputc('\n', out);
        }
    }
}

enum status kmeans_write_labels(const struct kmeans_job *job) {
    if (!job->predict) return STATUS_OK;
    struct replacement file;
    const enum status status = replace_open(&file, "", job->predict);
    if (status) return status;
    write_rows(job, file.out);
    return replace_close(&file, STATUS_OK);
}
