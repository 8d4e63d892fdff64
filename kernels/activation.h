/* The activations: value and derivative of each entry of ACTIVATIONS (kernels/gemm.h), for float and double.
   The host loops and the CUDA kernels compile the same formulas.

   To add an activation, add a line to ACTIVATIONS and a line here. The oracle (src/backend/oracle.c,
   tests/reference/mlp_numpy.py) has independent formulas, which check these. */
#ifndef TESSERA_KERNELS_ACTIVATION_H
#define TESSERA_KERNELS_ACTIVATION_H

#include "kernels/gemm.h"
#include "kernels/real.h"

#define ACTIVATION_NAME(with, ID, name, needs_input) name,

static inline const char *activation_name(enum activation activation) {
    static const char *const names[] = {ACTIVATIONS(ACTIVATION_NAME, )};
    return names[activation];
}

/* Defines value_ID(z) and derivative_ID(z, y), with y = value_ID(z). R is the type of z. */
#define ACTIVATION(ID, value, derivative)            \
    ACTIVATION_OF(ID, float, f32, value, derivative) \
    ACTIVATION_OF(ID, double, f64, value, derivative)

#define ACTIVATION_OF(ID, real, suffix, value, derivative)   \
    INLINE real value_##ID##_##suffix(real z) {              \
        typedef real R;                                      \
        return (R)(value);                                   \
    }                                                        \
    INLINE real derivative_##ID##_##suffix(real z, real y) { \
        typedef real R;                                      \
        (void)z;                                             \
        (void)y;                                             \
        return (R)(derivative);                              \
    }

/* ReLU propagates NaN: NaN < 0 is false. */
ACTIVATION(NONE, z, 1)
ACTIVATION(RELU, (z < 0 ? 0 : z), (y > 0 ? 1 : 0))
ACTIVATION(TANH, TANH(z), 1 - y * y)
ACTIVATION(SCALED_TANH, (R)1.7159 * TANH((R)(2.0 / 3.0) * z),
           (R)(1.7159 * 2.0 / 3.0) - (R)(2.0 / 3.0 / 1.7159) * y * y)
ACTIVATION(SIGMOID, 1 / (1 + EXP(-z)), (y * (1 - y)))
ACTIVATION(GELU, (R)0.5 * z * (1 + ERF((R)0.70710678118654752440 * z)),
           (R)0.5 * (1 + ERF((R)0.70710678118654752440 * z)) +
               (R)0.39894228040143267794 * z * EXP((R)-0.5 * z * z))

/* activate(activation, z) and derivative(activation, z, y), by the type of z. */
#define ACTIVATION_VALUE_(suffix, ID, name, needs_input) \
case ACTIVATION_##ID:                                    \
    return value_##ID##_##suffix(z);
#define ACTIVATION_DERIVATIVE_(suffix, ID, name, needs_input) \
case ACTIVATION_##ID:                                         \
    return derivative_##ID##_##suffix(z, y);

#define ACTIVATIONS_OF(real, suffix, activate, derivative)                  \
    INLINE real activate(enum activation activation, real z) {              \
        switch (activation) { ACTIVATIONS(ACTIVATION_VALUE_, suffix) }      \
        return z;                                                           \
    }                                                                       \
    INLINE real derivative(enum activation activation, real z, real y) {    \
        switch (activation) { ACTIVATIONS(ACTIVATION_DERIVATIVE_, suffix) } \
        return 1;                                                           \
    }

#ifdef __cplusplus
ACTIVATIONS_OF(float, f32, activate, derivative)
ACTIVATIONS_OF(double, f64, activate, derivative)
#else
ACTIVATIONS_OF(float, f32, activate_f32, derivative_f32)
ACTIVATIONS_OF(double, f64, activate_f64, derivative_f64)
#    define activate(activation, z) _Generic((z), float : activate_f32, double : activate_f64)(activation, z)
#    define derivative(activation, z, y) \
        _Generic((z), float : derivative_f32, double : derivative_f64)(activation, z, y)
#endif

/* Executes `statement` with the compile-time constant A equal to `activation`, so that each inlined copy
   vectorises. */
#define FOR_ACTIVATION(activation, statement) \
    switch (activation) { ACTIVATIONS(FOR_ACTIVATION_, statement) }
#define FOR_ACTIVATION_(statement, ID, name, needs_input) \
case ACTIVATION_##ID: {                                   \
    const enum activation A = ACTIVATION_##ID;            \
    statement;                                            \
    break;                                                \
}

#endif
