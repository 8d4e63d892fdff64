/* A reader of data sets. A new one is one file, with a struct dataset_reader, and a line in the table of
   dataset.c. */
#ifndef TESSERA_DATA_READER_H
#define TESSERA_DATA_READER_H

#include <stdbool.h>

#include "src/data/dataset.h"

struct dataset_reader {
    /* Can this reader load `source`, the value of --data? Looks at names only. */
    bool (*recognises)(const char *source);

    /* Loads both parts of an empty pair, or the test part alone; dataset_load has set the name, checks that
       the parts have one image size, and frees the pair on failure. STATUS_BAD_DATA says what is wrong and
       what to do. */
    enum status (*load)(struct dataset_pair *pair, const char *source, enum dataset_parts parts);
};

extern const struct dataset_reader dataset_idx, dataset_synthetic;

#endif
