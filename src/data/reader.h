/* A reader of data sets. To add one, write a file with a struct dataset_reader and add a line to the table in
   dataset.c. */
#ifndef TESSERA_DATA_READER_H
#define TESSERA_DATA_READER_H

#include <stdbool.h>

#include "src/data/dataset.h"

struct dataset_reader {
    /* Can this reader load `source`, the value of --data? Checks file names, not contents. */
    bool (*recognises)(const char *source);

    /* Loads both parts, or the test part alone, into a pair that has only its name: images, labels as they
       are in the files, the names of the classes if there are any, `transposed`. Without a test set, `test`
       stays empty. On failure the caller frees the pair. With STATUS_BAD_DATA the message says what is wrong
       and what to do. */
    enum status (*load)(struct dataset_pair *pair, const char *source, const struct dataset_options *options);

    /* (optional) The existing files that `load` would read. */
    void (*files)(const char *source, struct dataset_files *files);
};

extern const struct dataset_reader dataset_synthetic, dataset_idx, dataset_csv, dataset_folder;

#endif
