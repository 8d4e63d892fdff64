/* The update of parameters (kernels/ops.h): a template, parameters in kernels/host/element.h. Each chunk of
   UPDATE_CHUNK elements goes through the rule, the average and the rounding, so that memory is read once. */
#include "kernels/host/ops/template.h"

/* The constants of a rule and a step, in the type of the arithmetic. */
struct NAME(rule) {
    REAL rate, momentum, decay, clip, beta1, beta2, rest1, rest2, root, epsilon, average_decay;
};

static struct NAME(rule) NAME(rule_of)(const struct update *update, const struct step_scalars *step) {
    const bool adam = uses_second_moment(update->method);
    const double decay =
        update->method == UPDATE_ADAMW ? step->learning_rate * update->weight_decay : update->weight_decay;
    return (struct NAME(rule)){.rate = (REAL)(adam ? step->adam_rate : step->learning_rate),
                               .momentum = (REAL)update->momentum,
                               .decay = (REAL)decay,
                               .clip = update->clip ? (REAL)*update->clip : 1,
                               .beta1 = (REAL)update->beta1,
                               .beta2 = (REAL)update->beta2,
                               .rest1 = (REAL)(1 - update->beta1),
                               .rest2 = (REAL)(1 - update->beta2),
                               .root = (REAL)step->adam_root,
                               .epsilon = (REAL)update->epsilon,
                               .average_decay = (REAL)step->average_decay};
}

INLINE void NAME(sgd)(size_t count, const struct NAME(rule) rule, bool nesterov, REAL *restrict w,
                      const REAL *restrict grad, REAL *restrict v) {
#pragma omp simd
    for (size_t i = 0; i < count; i++) {
        REAL g = rule.clip * grad[i] + rule.decay * w[i];
        if (v) {
            v[i] = rule.momentum * v[i] + g;
            g = nesterov ? g + rule.momentum * v[i] : v[i];
        }
        w[i] -= rule.rate * g;
    }
}

INLINE void NAME(adam)(size_t count, const struct NAME(rule) rule, bool decoupled, REAL *restrict w,
                       const REAL *restrict grad, REAL *restrict m, REAL *restrict v) {
#pragma omp simd
    for (size_t i = 0; i < count; i++) {
        REAL g = rule.clip * grad[i], at = w[i];
        if (decoupled) {
            at -= rule.decay * at;
        } else {
            g += rule.decay * at;
        }
        m[i] = rule.beta1 * m[i] + rule.rest1 * g;
        v[i] = rule.beta2 * v[i] + rule.rest2 * g * g;
        w[i] = at - rule.rate * m[i] / (rule.root * SQRT(v[i]) + rule.epsilon);
    }
}

INLINE void NAME(update_weights)(size_t count, const struct NAME(rule) rule, const struct update *update,
                                 REAL *w, const REAL *g, REAL *m, REAL *v) {
    switch (update->method) {
    case UPDATE_NONE:
        break;
    case UPDATE_SGD:
        if (!m) {
            NAME(sgd)(count, rule, false, w, g, NULL);
        } else if (update->nesterov) {
            NAME(sgd)(count, rule, true, w, g, m);
        } else {
            NAME(sgd)(count, rule, false, w, g, m);
        }
        break;
    case UPDATE_ADAM:
        NAME(adam)(count, rule, false, w, g, m, v);
        break;
    case UPDATE_ADAMW:
        NAME(adam)(count, rule, true, w, g, m, v);
        break;
    }
}

static void NAME(update)(void *context, size_t count, const struct update *update,
                         const struct step_scalars *step, const struct tally *guard) {
    if (guard->bad_step) return;
    const struct NAME(rule) rule = NAME(rule_of)(update, step);
#pragma omp parallel for schedule(static) num_threads(threads_for(context, count))
    for (size_t from = 0; from < count; from += UPDATE_CHUNK) {
        const size_t length = count - from < UPDATE_CHUNK ? count - from : UPDATE_CHUNK;
        REAL *restrict w = (REAL *)update->weights + from;
        NAME(update_weights)
        (length, rule, update, w, update->grad ? (const REAL *)update->grad + from : NULL,
         update->moment1 ? (REAL *)update->moment1 + from : NULL,
         update->moment2 ? (REAL *)update->moment2 + from : NULL);
        if (update->average) {
            REAL *restrict average = (REAL *)update->average + from;
#pragma omp simd
            for (size_t i = 0; i < length; i++) average[i] = w[i] + rule.average_decay * (average[i] - w[i]);
        }
        if (update->rounded) {
            STORED *restrict rounded = (STORED *)update->rounded + from;
#pragma omp simd
            for (size_t i = 0; i < length; i++) rounded[i] = STORE(w[i]);
        }
    }
}
