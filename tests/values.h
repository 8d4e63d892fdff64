/* Arrays of any dtype, read and written as doubles, for tests of element-wise ops. */
#ifndef TESSERA_TESTS_VALUES_H
#define TESSERA_TESTS_VALUES_H

#include "src/device/dtype.h"

struct values {
    enum gemm_dtype dtype;
    void *data; /* to be freed */
};

struct values values_make(enum gemm_dtype dtype, size_t count); /* zeros */
/* Uniform random numbers in +-scale, different for each substream. */
struct values values_random(enum gemm_dtype dtype, size_t count, double scale, uint32_t substream);

double values_get(struct values values, size_t i);
/* `count` of them, from the first on; the caller frees them. */
double *values_doubles(struct values values, size_t count);
void values_set(struct values values, size_t i, double value);

/* The dtype of parameters, given that of activations. */
enum gemm_dtype values_parameter_dtype(int dtype);

/* `count` epsilons of the dtype; at most one for bfloat16, which rounds a float32 result once, and two for
   half precision: Z of up to 4 is rounded by up to one epsilon, and the activation of it by half of one. */
double values_tolerance(double count, enum gemm_dtype dtype);

#endif
