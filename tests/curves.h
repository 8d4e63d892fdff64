/* The loss curves of an independent program (tests/reference/mlp_numpy.py): 50 steps in file order, batches
   of 16, 16, 16 and 2 images in each epoch. */
#ifndef TESSERA_TESTS_CURVES_H
#define TESSERA_TESTS_CURVES_H

#include "tests/lockstep.h"

size_t curves_count(void);
bool curves_have(const char *activation);

/* Trains in float64 as `how` says ("backend=cublas engine=graph"); every loss is within 1e-10. */
void curves_check(size_t curve, const char *how);

/* Trains in the precision that `how` says and compares every step with serial's in float64 from the same
   state; curves_check compares serial with the curve. */
struct lockstep_seen curves_check_steps(size_t curve, const char *how, const struct lockstep_bound *bound);

/* Asserts that both trainings have the same losses, bit for bit. */
void curves_check_equal(size_t curve, const char *how, const char *other);

#endif
