/* A 64-bit hash that tells whether bytes have changed: FNV-1a (Fowler, Noll and Vo, 1991). It does not
   protect against someone who searches for another text with the same hash. */
#ifndef TESSERA_BASE_HASH_H
#define TESSERA_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

#define HASH_START 0xcbf29ce484222325u

/* The hash of the bytes hashed so far, and these. */
static inline uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t count) {
    const unsigned char *at = bytes;
    for (size_t i = 0; i < count; i++) hash = (hash ^ at[i]) * 0x100000001b3u;
    return hash;
}

#endif
