/* Random numbers that nobody can predict from the seed of a run, for checks that a backend must not
   foresee. */
#ifndef TESSERA_BASE_SECRET_H
#define TESSERA_BASE_SECRET_H

#include <stdint.h>

/* A state from the operating system's random numbers. */
uint64_t secret_seed(void);

/* The next 64 bits: splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
   2014). */
static inline uint64_t secret_draw(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

#endif
