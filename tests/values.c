#include "tests/values.h"

#include <stdlib.h>

#include "src/base/rng.h"
#include "tests/support.h"

struct values values_make(enum gemm_dtype dtype, size_t count) {
    struct values values = {dtype, calloc(count + 1, dtype_size(dtype))};
    assert_non_null(values.data);
    return values;
}

struct values values_random(enum gemm_dtype dtype, size_t count, double scale, uint32_t substream) {
    struct values values = values_make(dtype, count);
    struct rng rng = rng_open(21, RNG_TEST, substream);
    for (size_t i = 0; i < count; i++) values_set(values, i, scale * (2 * rng_uniform(&rng) - 1));
    return values;
}

double values_get(struct values values, size_t i) {
    return dtype_get(values.dtype, values.data, i);
}

double *values_doubles(struct values values, size_t count) {
    double *doubles = calloc(count, sizeof *doubles);
    assert_non_null(doubles);
    for (size_t i = 0; i < count; i++) doubles[i] = values_get(values, i);
    return doubles;
}

void values_set(struct values values, size_t i, double value) {
    dtype_set(values.dtype, values.data, i, value);
}

enum gemm_dtype values_parameter_dtype(int dtype) {
    return dtype == GEMM_F64 ? GEMM_F64 : GEMM_F32;
}

double values_tolerance(double count, enum gemm_dtype dtype) {
    const double most = dtype == GEMM_BF16 ? 1 : dtype == GEMM_F16 ? 2 : count;
    return (count < most ? count : most) * dtype_epsilon(dtype);
}
