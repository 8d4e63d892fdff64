/* Loads a data set on a thread of its own, while the caller does something else. */
#ifndef TESSERA_DATA_DATASET_LOADING_H
#define TESSERA_DATA_DATASET_LOADING_H

#include "src/data/dataset.h"

struct dataset_loading;

/* dataset_load, begun; `source` must stay as it is until the end. NULL if memory ran out. */
struct dataset_loading *dataset_loading_begin(const char *source, struct dataset_options options);
/* Waits for it: the result of dataset_load, with its message. */
enum status dataset_loading_end(struct dataset_loading *loading, struct dataset_pair *pair);
/* Does not wait, for a program that ends now: the thread and its memory remain. */
void dataset_loading_abandon(struct dataset_loading *loading);

#endif
