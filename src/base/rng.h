/* Counter-based random numbers: Philox4x32-10 (philox.h). The n-th number of a stream is a pure function of
   (seed, stream, substream, n), so it is the same on every device and for any number of threads, and a
   checkpoint saves only the seed. */
#ifndef TESSERA_BASE_RNG_H
#define TESSERA_BASE_RNG_H

#include <stddef.h>
#include <stdint.h>

#include "src/base/philox.h"

struct rng {
    uint32_t key[2];     /* seed */
    uint32_t counter[4]; /* position (2 words), substream, stream */
    uint32_t block[4];   /* the output of the current counter */
    unsigned used;       /* words of `block` already returned */
};

/* A generator at the start of (seed, stream, substream); the substream is an epoch, a layer or an image. */
struct rng rng_open(uint64_t seed, enum rng_stream stream, uint32_t substream);
/* The same after `words` numbers of 32 bits: a uniform number takes two, a normal one four. */
struct rng rng_open_at(uint64_t seed, enum rng_stream stream, uint32_t substream, uint64_t words);

uint32_t rng_u32(struct rng *rng);
/* Uniform in [0, 1), 53 bits. */
double rng_uniform(struct rng *rng);
/* Standard normal (Box-Muller). */
double rng_normal(struct rng *rng);
/* Uniform integer in [0, bound) without bias (Lemire 2019, "Fast random integer generation in an
   interval"). */
uint32_t rng_below(struct rng *rng, uint32_t bound);
/* A uniform permutation of 0 .. count-1 (Fisher-Yates). */
void rng_permutation(struct rng *rng, uint32_t *out, size_t count);

#endif
