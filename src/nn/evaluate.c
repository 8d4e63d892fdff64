#include "src/nn/evaluate.h"

static enum status evaluate_both(struct trainer *trainer, const struct samples *samples,
                                 struct evaluation *result, struct evaluation *of_average) {
    struct mlp *mlp = &trainer->mlp;
    enum status status = samples_evaluate(samples, mlp, trainer->tally, result, NULL);
    *of_average = (struct evaluation){0};
    if (status || !trainer->optimizer.average) return status;
    struct mlp average = mlp_with_parameters(mlp, trainer->optimizer.average);
    mlp_parameters_changed(&average);
    status = samples_evaluate(samples, &average, trainer->tally, of_average, NULL);
    mlp_parameters_changed(mlp);
    return status;
}

enum status evaluate_test(struct trainer *trainer) {
    if (trainer->tested) return STATUS_OK;
    const enum status status =
        evaluate_both(trainer, &trainer->test, &trainer->last_test, &trainer->last_average);
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
