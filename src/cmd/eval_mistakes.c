/* ./train eval --misclassified, --picture: the most confident mistakes. */
#include <stdlib.h>

#include "src/base/text.h"
#include "src/cmd/eval.h"
#include "src/report/sheet.h"

enum { TERMINAL_COLUMNS = 100, LOGGED = 12, SHEET_COLUMNS = 6, SHEET_MOST = 600 };

struct mistake {
    size_t image; /* of the set */
    double confidence;
};

static int by_confidence(const void *a, const void *b) {
    const struct mistake *x = a, *y = b;
    if (x->confidence != y->confidence) return x->confidence < y->confidence ? 1 : -1;
    return (x->image > y->image) - (x->image < y->image);
}

/* All mistakes, the most confident first; to be freed, NULL without memory. */
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

static struct picture picture_of(const struct evaluator *eval, const struct mistake *mistake) {
    const struct dataset *set = &eval->set;
    return (struct picture){.pixels = set->images + mistake->image * set->height * set->width};
}

static void print(const struct evaluator *eval, const struct mistake *mistakes, size_t found, size_t shown,
                  struct picture *pictures) {
    for (size_t i = 0; i < shown; i++) {
        const size_t image = mistakes[i].image;
        pictures[i] = picture_of(eval, &mistakes[i]);
        snprintf(pictures[i].caption, sizeof pictures[i].caption, "#%zu: %u, not %u (%.1f %%)",
                 eval->first + image, eval->predictions.label[image], eval->set.labels[image],
                 100 * mistakes[i].confidence);
    }
    printf("\nthe %zu most confident of %s mistakes (#image: prediction, not label)\n\n", shown,
           text_grouped(found).text);
    picture_print(stdout, pictures, shown, eval->set.height, eval->set.width, TERMINAL_COLUMNS);
}

/* `pictures` has room for a last row that is full. */
static enum status draw(const struct evaluator *eval, const struct mistake *mistakes, size_t found,
                        size_t shown, struct picture *pictures, const char *path) {
    const struct sheet sheet = {.rows = (shown + SHEET_COLUMNS - 1) / SHEET_COLUMNS,
                                .columns = shown < SHEET_COLUMNS ? shown : SHEET_COLUMNS,
                                .height = eval->set.height,
                                .width = eval->set.width,
                                .pictures = pictures};
    if (!shown) {
        printf("\n%s is not written: there is no mistake\n", path);
        return STATUS_OK;
    }
    for (size_t i = 0; i < sheet.rows * sheet.columns; i++) {
        pictures[i] = i < shown ? picture_of(eval, &mistakes[i]) : (struct picture){0};
        if (i < shown)
            snprintf(pictures[i].caption, sizeof pictures[i].caption, "%u, not %u\n#%zu",
                     eval->predictions.label[mistakes[i].image], eval->set.labels[mistakes[i].image],
                     eval->first + mistakes[i].image);
    }
    const enum status status = sheet_write(&sheet, path);
    if (!status)
        printf("\n%s: the %zu most confident of %s mistakes (prediction, not label; #image)\n", path, shown,
               text_grouped(found).text);
    return status;
}

static size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

enum status eval_mistakes(const struct evaluator *eval, const struct mistakes_wanted *wanted) {
    size_t found;
    struct mistake *mistakes = find_mistakes(eval, &found);
    struct picture *pictures = malloc((found + SHEET_COLUMNS) * sizeof *pictures);
    enum status status = mistakes && pictures ? STATUS_OK : status_set(STATUS_FAILED, "out of memory");
    if (!status && wanted->printed) print(eval, mistakes, found, least(found, wanted->printed), pictures);
    if (!status && wanted->picture)
        status = draw(eval, mistakes, found,
                      least(least(found, SHEET_MOST), wanted->printed ? wanted->printed : SHEET_MOST),
                      pictures, wanted->picture);
    for (size_t i = 0; mistakes && i < least(found, wanted->printed ? wanted->printed : LOGGED); i++)
        eval_log_mistake(eval, mistakes[i].image, mistakes[i].confidence);
    free(pictures);
    free(mistakes);
    return status;
}
