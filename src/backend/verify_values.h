/* The values of the operands of a case of verify. */
#ifndef TESSERA_BACKEND_VERIFY_VALUES_H
#define TESSERA_BACKEND_VERIFY_VALUES_H

#include "src/backend/verify.h"

/* Draws rows x cols elements: integers from -8 to 8, or numbers from -1 to 1, of 53 random bits for float64
   and of 32 for others. What lies between the rows keeps its bytes. `random`: a state of secret_draw. */
void verify_fill(bool integers, enum gemm_dtype dtype, uint64_t *random, void *matrix, size_t rows,
                 size_t cols, size_t ld);

/* Makes the values of A and B, which are drawn from [-1, 1), those of the case. */
void verify_change_values(const struct verify_case *test, const struct gemm_call *call, void *a, void *b);

/* Multiplies rows x cols elements by a power of two, which is exact. */
void verify_scale(enum gemm_dtype dtype, void *matrix, size_t rows, size_t cols, size_t ld, int power);

#endif
