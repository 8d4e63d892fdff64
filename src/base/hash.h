/* A 64-bit hash that tells whether bytes have changed, eight bytes at a time. It does not protect against
   someone who searches for other bytes with the same hash. */
#ifndef TESSERA_BASE_HASH_H
#define TESSERA_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define HASH_START 1u

/* The hash of the bytes hashed so far, and these. */
static inline uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t count) {
    const char *next = bytes;
    hash += count; /* further null bytes change it, too */
    for (size_t size; count; next += size, count -= size) {
        uint64_t word = 0;
        size = count < sizeof word ? count : sizeof word;
        memcpy(&word, next, size);
        hash = (hash ^ word) * 0x9e3779b97f4a7c15u; /* 2^64 / golden ratio: spreads each bit upwards .. */
        hash ^= hash >> 32;                         /* .. and this downwards */
    }
    return hash;
}

#endif
