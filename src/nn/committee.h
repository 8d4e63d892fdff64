/* A committee of networks: its log probabilities are the mean of the members' log softmax, normalised, and
   its prediction is the class with the largest. (The normalised geometric mean of the probabilities is a
   logarithmic opinion pool: Hinton 2002, "Training products of experts by minimizing contrastive divergence",
   section 1.) */
#ifndef TESSERA_NN_COMMITTEE_H
#define TESSERA_NN_COMMITTEE_H

#include "src/base/statistics.h"
#include "src/nn/samples.h"

struct committee {
    size_t members, capacity, count, classes;
    struct evaluation *member; /* [capacity]: of each member alone, in the order of addition */
    double *sum;               /* [count][classes]: sum of the members' log probabilities */
};

/* For up to `capacity` members and `count` images. */
enum status committee_open(struct committee *committee, size_t capacity, size_t count, size_t classes);
void committee_close(struct committee *committee);

/* Adds a member: evaluates it on the images of the committee. `tally` is scratch device memory. The same
   members in the same order give the same bits. */
enum status committee_add(struct committee *committee, const struct samples *samples, struct mlp *mlp,
                          struct tally *tally);

/* Adds a member whose log probabilities are the mean of those of `group`: one network on several views of the
   same images. */
enum status committee_add_group(struct committee *committee, const struct committee *group,
                                const uint8_t *labels);

/* Adds the one member of another committee. Added one by one, members give the bits of committee_add. */
void committee_add_member(struct committee *committee, const struct committee *one);

/* Evaluates a committee of at least one member against `labels` [count]. Fills `predictions` unless NULL. */
struct evaluation committee_evaluate(const struct committee *committee, const uint8_t *labels,
                                     const struct predictions *predictions);

/* Statistics of the members' accuracies, as fractions. Needs at least one member. */
enum status committee_accuracy(const struct committee *committee, struct statistics *accuracy);

#endif
