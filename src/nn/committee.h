/* Several networks asked at once: each gives the logarithms of its softmax probabilities, and the committee's
   are their mean over the members, normalised anew; its answer is the class with the largest. (The geometric
   mean of the probabilities, a logarithmic opinion pool: Hinton 2002, "Training products of experts by
   minimizing contrastive divergence", section 1.) */
#ifndef TESSERA_NN_COMMITTEE_H
#define TESSERA_NN_COMMITTEE_H

#include "src/base/statistics.h"
#include "src/nn/samples.h"

struct committee {
    size_t members, capacity, count, classes;
    struct evaluation *member; /* [capacity]: of each alone, in the order in which they were added */
    double *sum;               /* [count][classes]: of the members' log probabilities */
};

/* For up to `capacity` members and `count` images. */
enum status committee_open(struct committee *committee, size_t capacity, size_t count, size_t classes);
void committee_close(struct committee *committee);

/* Evaluates one more member on the images that all of them are asked about; `tally` is device memory that
   this call may use. Sums are in the order of these calls, so the same members in the same order give the
   same bits. */
enum status committee_add(struct committee *committee, const struct samples *samples, struct mlp *mlp,
                          struct tally *tally);

/* Adds one more member, who says the mean of what those of `group` say of the same images: a network that saw
   them in several ways. */
enum status committee_join(struct committee *committee, const struct committee *group, const uint8_t *labels);

/* Of one member at least: how right it is by `labels` [count], and, unless NULL, what it says of each
   image. */
struct evaluation committee_evaluate(const struct committee *committee, const uint8_t *labels,
                                     const struct predictions *predictions);

/* The members' accuracies, as fractions. Of one member at least; STATUS_FAILED without memory. */
enum status committee_spread(const struct committee *committee, struct statistics *accuracy);

#endif
