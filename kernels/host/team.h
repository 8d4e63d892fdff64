/* A barrier for a team of threads that stays fast beside busy processes. */
#ifndef TESSERA_KERNELS_HOST_TEAM_H
#define TESSERA_KERNELS_HOST_TEAM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

enum { TEAM_ALIGNMENT = 128 }; /* two cache lines: hardware prefetching loads pairs */

struct team {
    size_t size;
    bool oversubscribed; /* more threads than cores */
    _Alignas(TEAM_ALIGNMENT) atomic_uint arrived;
    _Alignas(TEAM_ALIGNMENT) atomic_uint generation; /* counts barriers; the futex */
    atomic_uint contended;                           /* the number of barriers that do not spin */
    _Alignas(TEAM_ALIGNMENT) atomic_uint sleepers;
    atomic_uint lost; /* microseconds of all waits that ended asleep */
};

void team_init(struct team *team, size_t size);

/* Returns after all threads of the team have called it. */
void team_barrier(struct team *team);

/* Seconds that a thread waited asleep, on average: mostly for one that had no core. */
double team_lost(const struct team *team);

#endif
