/* The state of tests/plugins/subtle/kinds.c, one for each context of the backend. */
#ifndef TESSERA_TESTS_PLUGINS_SUBTLE_CONTEXT_H
#define TESSERA_TESTS_PLUGINS_SUBTLE_CONTEXT_H

#include "tests/plugins/reference.h"

enum { PACKED = 192 * 192 };

struct context {
    int kind;
    long contexts; /* opened before this one */
    long calls;
    const void *packed_b; /* stale-b */
    size_t packed;
    float copy[PACKED];
};

#endif
