/* The formulas of an update (struct update in kernels/ops.h) for one parameter: those of update.cu, and of
   the products that update the weights themselves. */
#ifndef TESSERA_KERNELS_CUDA_OPS_UPDATE_RULE_CUH
#define TESSERA_KERNELS_CUDA_OPS_UPDATE_RULE_CUH

extern "C" {
#include "kernels/ops.h"
}
#include "kernels/real.h"

/* The constants of a rule in the type of the arithmetic. */
template <typename R> struct update_rule {
    bool nesterov, moment; /* moment: sgd has a velocity */
    R momentum, decay, beta1, beta2, rest1, rest2, epsilon;
    const double *clip;
    double decay_exact; /* adamw multiplies it by the learning rate */

    explicit update_rule(const struct update &update)
        : nesterov(update.nesterov), moment(update.moment1), momentum((R)update.momentum),
          decay((R)update.weight_decay), beta1((R)update.beta1), beta2((R)update.beta2),
          rest1((R)(1 - update.beta1)), rest2((R)(1 - update.beta2)), epsilon((R)update.epsilon),
          clip(update.clip), decay_exact(update.weight_decay) {}
};

/* The constants of one step, read from its scalars in device memory. */
template <typename R> struct update_rates {
    R rate, root, average_decay, clip, shrink;

    update_rates() = default;
    __device__ update_rates(enum update_method method, const update_rule<R> &rule,
                            const struct step_scalars *step)
        : rate(R(WITH_SECOND_MOMENT >> method & 1 ? step->adam_rate : step->learning_rate)),
          root(R(step->adam_root)), average_decay(R(step->average_decay)),
          clip(rule.clip ? R(*rule.clip) : R(1)), shrink(R(step->learning_rate * rule.decay_exact)) {}
};

/* The square root and the quotient of an update. Those of float are within 2 units in the last place: the
   correctly rounded ones branch, so that a thread has one weight after the other. The divisor is at least
   epsilon, 1e-30 or more, and at most 2^65. */
__device__ inline double update_root(double x) {
    return sqrt(x);
}

__device__ inline float update_root(float x) {
    float root;
    asm("sqrt.approx.f32 %0, %1;" : "=f"(root) : "f"(x));
    return root;
}

__device__ inline double update_quotient(double x, double y) {
    return x / y;
}

__device__ inline float update_quotient(float x, float y) {
    return __fdividef(x, y);
}

/* One weight w with the gradient g and the moments m and v. Each fma is explicit, so that all kernels have
   the same bits. */
template <enum update_method METHOD, typename R>
__device__ inline void update_parameter(const update_rule<R> &rule, const update_rates<R> &rates, R g, R &w,
                                        R &m, R &v) {
    R d = rates.clip * g;
    if (METHOD == UPDATE_ADAMW) {
        w = fma(-rates.shrink, w, w);
    } else {
        d = fma(rule.decay, w, d);
    }
    if (WITH_SECOND_MOMENT >> METHOD & 1) {
        m = fma(rule.beta1, m, rule.rest1 * d);
        v = fma(rule.beta2, v, rule.rest2 * d * d);
        w -= update_quotient(rates.rate * m, fma(rates.root, update_root(v), rule.epsilon));
    } else if (METHOD == UPDATE_SGD) {
        if (rule.moment) {
            m = fma(rule.momentum, m, d);
            d = rule.nesterov ? fma(rule.momentum, m, d) : m;
        }
        w = fma(-rates.rate, d, w);
    }
}

#endif
