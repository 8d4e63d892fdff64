#include "src/nn/evaluate.h"

#include "src/nn/epoch_audit.h"

/* The network with the average as its weights, until end_average. */
static struct mlp begin_average(const struct trainer *trainer) {
    struct mlp average = mlp_with_parameters(&trainer->mlp, trainer->optimizer.average);
    mlp_parameters_changed(&average);
    return average;
}

static void end_average(struct trainer *trainer) {
    mlp_parameters_changed(&trainer->mlp);
}

static enum status evaluate_both(struct trainer *trainer, const struct samples *samples,
                                 struct evaluation *result, struct evaluation *of_average) {
    enum status status = epoch_audit_evaluate(trainer, samples, &trainer->mlp, result);
    *of_average = (struct evaluation){0};
    if (status || !trainer->optimizer.average) return status;
    struct mlp average = begin_average(trainer);
    status = epoch_audit_evaluate(trainer, samples, &average, of_average);
    end_average(trainer);
    return status;
}

enum status evaluate_members(struct trainer *trainer, const struct samples *samples,
                             struct committee *of_weights, struct committee *of_average) {
    enum status status = committee_add(of_weights, samples, &trainer->mlp, trainer->tally);
    if (status || !trainer->optimizer.average) return status;
    struct mlp average = begin_average(trainer);
    status = committee_add(of_average, samples, &average, trainer->tally);
    end_average(trainer);
    return status;
}

enum status evaluate_test(struct trainer *trainer) {
    if (trainer->tested) return STATUS_OK;
    const struct samples *reported = trainer->test.count ? &trainer->test : &trainer->validation;
    const enum status status = evaluate_both(trainer, reported, &trainer->last_test, &trainer->last_average);
    trainer->tested = !status;
    return status;
}

enum status evaluate_epoch(struct trainer *trainer, struct epoch_record *record) {
    record->on_validation = trainer->validation.count > 0;
    if (record->on_validation)
        return evaluate_both(trainer, &trainer->validation, &record->evaluation, &record->average);
    const enum status status = evaluate_test(trainer);
    record->evaluation = trainer->last_test;
    record->average = trainer->last_average;
    return status;
}
