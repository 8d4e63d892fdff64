#include "src/nn/committee.h"

#include <math.h>
#include <stdlib.h>

enum status committee_open(struct committee *committee, size_t capacity, size_t count, size_t classes) {
    *committee = (struct committee){.capacity = capacity, .count = count, .classes = classes};
    committee->member = calloc(capacity, sizeof *committee->member);
    committee->sum = calloc(count * classes, sizeof *committee->sum);
    if (committee->member && committee->sum) return STATUS_OK;
    committee_close(committee);
    return status_set(STATUS_FAILED, "out of memory");
}

void committee_close(struct committee *committee) {
    free(committee->member);
    free(committee->sum);
    *committee = (struct committee){0};
}

static enum status wrong_classes(const struct committee *committee, size_t classes) {
    return status_set(STATUS_BAD_DATA,
                      "a committee needs networks with the same number of classes: %zu, not %zu",
                      committee->classes, classes);
}

enum status committee_add(struct committee *committee, const struct samples *samples, struct mlp *mlp,
                          struct tally *tally) {
    struct predictions predictions = {.log_probability = committee->sum};
    const size_t classes = mlp_last(mlp)->out;
    if (classes != committee->classes) return wrong_classes(committee, classes);
    const enum status status =
        samples_evaluate(samples, mlp, tally, &committee->member[committee->members], &predictions);
    committee->members += !status;
    return status;
}

/* The mean log probability of a class, not normalised. */
static double mean_of(const struct committee *committee, size_t image, size_t class) {
    return committee->sum[image * committee->classes + class] / (double)committee->members;
}

struct evaluation committee_evaluate(const struct committee *committee, const uint8_t *labels,
                                     const struct predictions *predictions) {
    struct evaluation all = {.total = committee->count};
    for (size_t i = 0; i < committee->count; i++) {
        size_t best = 0;
        double sum = 0;
        for (size_t j = 1; j < committee->classes; j++)
            if (mean_of(committee, i, j) > mean_of(committee, i, best)) best = j;
        const double largest = mean_of(committee, i, best);
        for (size_t j = 0; j < committee->classes; j++) sum += exp(mean_of(committee, i, j) - largest);
        all.correct += best == labels[i] && sum > 0; /* NaN is never correct */
        all.loss += (log(sum) + largest - mean_of(committee, i, labels[i])) / (double)committee->count;
        if (!predictions) continue;
        predictions->label[i] = (uint8_t)best;
        predictions->confidence[i] = 1 / sum;
    }
    return all;
}

enum status committee_add_group(struct committee *committee, const struct committee *group,
                                const uint8_t *labels) {
    if (group->classes != committee->classes) return wrong_classes(committee, group->classes);
    for (size_t i = 0; i < committee->count; i++)
        for (size_t j = 0; j < committee->classes; j++)
            committee->sum[i * committee->classes + j] += mean_of(group, i, j);
    committee->member[committee->members++] = committee_evaluate(group, labels, NULL);
    return STATUS_OK;
}

void committee_add_member(struct committee *committee, const struct committee *one) {
    for (size_t i = 0; i < committee->count * committee->classes; i++) committee->sum[i] += one->sum[i];
    committee->member[committee->members++] = one->member[0];
}

enum status committee_accuracy(const struct committee *committee, struct statistics *accuracy) {
    double *values = malloc(committee->members * sizeof *values);
    if (!values) return status_set(STATUS_FAILED, "out of memory");
    for (size_t m = 0; m < committee->members; m++)
        values[m] = (double)committee->member[m].correct / (double)committee->member[m].total;
    *accuracy = statistics_of(values, committee->members);
    free(values);
    return STATUS_OK;
}
