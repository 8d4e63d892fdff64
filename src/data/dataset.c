#include "src/data/dataset.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/share.h"
#include "src/data/reader.h"

static const char DEFAULT_DIRECTORY[] = "data/mnist";

void dataset_free(struct dataset *set) {
    free(set->images);
    free(set->labels);
    *set = (struct dataset){0};
}

struct dataset dataset_split(struct dataset *set, size_t count) {
    struct dataset tail = *set;
    set->count -= count;
    tail.count = count;
    tail.images += set->count * set->height * set->width;
    tail.labels += set->count;
    return tail;
}

/* The readers. A source that none of them recognises goes to the last one, whose errors name the files that a
   directory should have. */
static const struct dataset_reader *const readers[] = {&dataset_synthetic, &dataset_idx};
enum { READERS = sizeof readers / sizeof *readers };

static const struct dataset_reader *reader_of(const char *source) {
    for (size_t i = 0; i < READERS; i++)
        if (readers[i]->recognises(source)) return readers[i];
    return NULL;
}

/* A relative directory may also be one that comes with the program (share.h). */
static const char *resolve(const char *source) {
    static char path[512];
    const bool automatic = strcmp(source, "auto") == 0;
    for (enum share_folder i = SHARE_HERE;
         share_path(i, automatic ? DEFAULT_DIRECTORY : source, path, sizeof path); i++)
        if (reader_of(path)) return path;
    return automatic ? "synthetic" : source;
}

struct dataset_files dataset_files(const char *source) {
    struct dataset_files files = {0};
    source = resolve(source);
    const struct dataset_reader *reader = reader_of(source);
    if (reader && reader->files) reader->files(source, &files);
    return files;
}

enum status dataset_load(struct dataset_pair *pair, const char *source, enum dataset_parts parts) {
    *pair = (struct dataset_pair){0};
    source = resolve(source);
    snprintf(pair->name, sizeof pair->name, "%s", source);
    const struct dataset_reader *reader = reader_of(source);
    enum status status = (reader ? reader : readers[READERS - 1])->load(pair, source, parts);
    if (!status && pair->train.count &&
        (pair->train.height != pair->test.height || pair->train.width != pair->test.width))
        status = status_set(STATUS_BAD_DATA, "'%s': training images are %zux%zu, test images %zux%zu", source,
                            pair->train.height, pair->train.width, pair->test.height, pair->test.width);
    if (status) dataset_pair_free(pair);
    return status;
}

void dataset_pair_free(struct dataset_pair *pair) {
    dataset_free(&pair->train);
    dataset_free(&pair->test);
}
