/* The networks of logged trainings: each has its epochs, a label and a style. */
#ifndef TESSERA_REPORT_NETWORKS_H
#define TESSERA_REPORT_NETWORKS_H

#include "src/report/chart.h"
#include "src/report/selection.h"

struct network {
    const struct record *const *rows; /* [count], its epochs */
    size_t count;
    char label[256];
    struct chart_style style;
};

struct networks {
    struct network *list;
    size_t count;
};

/* A recipe: the layers, the batch size and the learning rate. */
selection_key networks_recipe;

/* The seed of the network (in an ensemble) or of the run; -1: none. */
double networks_seed(const struct record *record);
bool networks_same(const struct record *a, const struct record *b);

/* The networks of the epochs of a recipe, which are sorted here. Labels say how they differ. None if memory
   ran out. The caller frees the list. */
struct networks networks_of(struct selection *epochs);

/* Writes "optimizer adamw, dropout 0.2": what all these networks have in use, and others of the logs have
   not; "" if nothing. */
void networks_common(const struct networks *all, const struct records *records, char *text, size_t size);

#endif
