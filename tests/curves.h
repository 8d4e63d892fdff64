/* The loss curves of an independent program (tests/reference/mlp_numpy.py): 50 steps of 16 images in file
   order, the fourth of each epoch a batch of 2. */
#ifndef TESSERA_TESTS_CURVES_H
#define TESSERA_TESTS_CURVES_H

#include "tests/lockstep.h"

size_t curves_count(void);
bool curves_have(const char *activation);

/* In float64, trained as `how` says ("backend=cublas engine=graph"): every loss within 1e-10. */
void curves_check(size_t curve, const char *how);

/* In the precision that `how` says: every step of that training against serial's float64 from the same
   state, which curves_check compares with the curve. */
struct lockstep_seen curves_check_steps(size_t curve, const char *how, const struct lockstep_bound *bound);

/* Both trainings have the same losses, bit for bit. */
void curves_check_equal(size_t curve, const char *how, const char *other);

#endif
