/* A data set that several processes share: memory without a file, which none of them can change. */
#ifndef TESSERA_DATA_DATASET_SHARE_H
#define TESSERA_DATA_DATASET_SHARE_H

#include "src/data/dataset.h"

/* Copies the data set into a sealed memory file and returns its descriptor, which is closed on exec; -1 with
   a status message if that failed. */
int dataset_share(const struct dataset_pair *pair);

/* Maps what dataset_share wrote, read-only. It stays mapped until the process ends: do not free `pair`. */
enum status dataset_map(struct dataset_pair *pair, int fd);

#endif
