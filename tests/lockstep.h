/* src/nn/lockstep.h on benches: whole epochs, and a failed test if a step differs. */
#ifndef TESSERA_TESTS_LOCKSTEP_H
#define TESSERA_TESTS_LOCKSTEP_H

#include "src/nn/lockstep.h"
#include "tests/training_bench.h"

/* Trains `other` from the states of `reference`, all epochs of its config. Both are open, with the same
   `recipe` but for backend, engine, threads, precision, dtype and residency. */
struct lockstep_seen lockstep_check(struct bench *reference, struct bench *other, const char *recipe,
                                    const struct lockstep_bound *bound);

/* Trains with and without audits of the steps: they find nothing, and the weights have the same bits. */
void lockstep_check_audits(const char *settings);

void lockstep_print(const struct lockstep_seen *seen);

#endif
