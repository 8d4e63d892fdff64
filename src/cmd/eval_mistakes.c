/* ./train eval --misclassified, --picture: the most confident mistakes. */
#include <stdlib.h>

#include "src/base/terminal.h"
#include "src/base/text.h"
#include "src/cmd/eval.h"
#include "src/report/image_grid.h"

enum {
    MOST_COLUMNS = 100,
    MOST_NAME = 15 /* bytes */,
    LOGGED = 12,
    GRID_COLUMNS = 6,
    GRID_MOST = 600,
    GRID_PIXELS = 2000
};

struct mistake {
    size_t image; /* of the set */
    double confidence;
};

static int by_confidence(const void *a, const void *b) {
    const struct mistake *x = a, *y = b;
    if (x->confidence != y->confidence) return x->confidence < y->confidence ? 1 : -1;
    return (x->image > y->image) - (x->image < y->image);
}

/* All mistakes, the most confident first. The caller frees them; NULL: out of memory. */
static struct mistake *find_mistakes(const struct evaluator *eval, size_t *found) {
    const struct dataset *set = &eval->set;
    struct mistake *mistakes = malloc((set->count + 1) * sizeof *mistakes);
    *found = 0;
    for (size_t i = 0; mistakes && i < set->count; i++)
        if (eval->predictions.label[i] != set->labels[i])
            mistakes[(*found)++] = (struct mistake){i, eval->predictions.confidence[i]};
    if (mistakes) qsort(mistakes, *found, sizeof *mistakes, by_confidence);
    return mistakes;
}

static size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

static struct image image_of(const struct evaluator *eval, const struct mistake *mistake) {
    const struct dataset *set = &eval->set;
    return (struct image){.pixels = set->images + mistake->image * set->height * set->width};
}

static void print(const struct evaluator *eval, const struct mistake *mistakes, size_t found, size_t shown,
                  struct image *images) {
    for (size_t i = 0; i < shown; i++) {
        const size_t image = mistakes[i].image;
        images[i] = image_of(eval, &mistakes[i]);
        const struct class_names *names = &eval->data.classes;
        const struct class_label predicted = classes_label(names, eval->predictions.label[image]),
                                 label = classes_label(names, eval->set.labels[image]);
        snprintf(images[i].caption, sizeof images[i].caption, "#%zu: %.*s, not %.*s (%.1f %%)",
                 eval->first + image, text_cut(predicted.text, MOST_NAME), predicted.text,
                 text_cut(label.text, MOST_NAME), label.text, 100 * mistakes[i].confidence);
    }
    printf("\nthe %zu most confident of %s mistakes (#image: prediction, not label)\n\n", shown,
           text_grouped(found).text);
    image_print(stdout, images, shown, eval->set.height, eval->set.width,
                least((size_t)terminal_columns(), MOST_COLUMNS));
}

/* `images` has room for twice as many, since the last row is full. */
static enum status draw(const struct evaluator *eval, const struct mistake *mistakes, size_t found,
                        size_t shown, struct image *images, const char *path) {
    struct image_grid grid = {.height = eval->set.height, .width = eval->set.width, .images = images};
    if (!shown) {
        printf("\n%s was not written: there are no mistakes\n", path);
        return STATUS_OK;
    }
    for (size_t i = 0; i < shown; i++) {
        images[i] = image_of(eval, &mistakes[i]);
        snprintf(images[i].caption, sizeof images[i].caption, "%u, not %u\n#%zu",
                 eval->predictions.label[mistakes[i].image], eval->set.labels[mistakes[i].image],
                 eval->first + mistakes[i].image);
    }
    grid.columns = image_grid_columns(grid, shown, least(shown, GRID_COLUMNS), GRID_PIXELS);
    grid.rows = (shown + grid.columns - 1) / grid.columns;
    for (size_t i = shown; i < grid.rows * grid.columns; i++) images[i] = (struct image){0};
    const enum status status = image_grid_write(&grid, path);
    if (!status)
        printf("\n%s: the %zu most confident of %s mistakes (prediction, not label; #image)\n", path, shown,
               text_grouped(found).text);
    return status;
}

enum status eval_mistakes(const struct evaluator *eval, const struct mistakes_wanted *wanted) {
    size_t found;
    struct mistake *mistakes = find_mistakes(eval, &found);
    struct image *images = malloc((2 * found + 1) * sizeof *images);
    enum status status = mistakes && images ? STATUS_OK : status_set(STATUS_FAILED, "out of memory");
    if (!status && wanted->printed) print(eval, mistakes, found, least(found, wanted->printed), images);
    if (!status && wanted->picture)
        status = draw(eval, mistakes, found,
                      least(least(found, GRID_MOST), wanted->printed ? wanted->printed : GRID_MOST), images,
                      wanted->picture);
    for (size_t i = 0; mistakes && i < least(found, wanted->printed ? wanted->printed : LOGGED); i++)
        eval_log_mistake(eval, mistakes[i].image, mistakes[i].confidence);
    free(images);
    free(mistakes);
    return status;
}
