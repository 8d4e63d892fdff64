/* What the watch of a rank (watch.h) looks after beside its connections: a guard, and a shared stop.
   Both may be set while the thread of the watch runs. */
#ifndef TESSERA_COMM_WATCHED_H
#define TESSERA_COMM_WATCHED_H

#include <pthread.h>

#include "src/comm/watch.h"

struct watched {
    pthread_mutex_t mutex;
    struct watch_guard guard;
    volatile sig_atomic_t *stop; /* NULL: none is shared */
    bool stop_waits;             /* another rank was stopped before one was shared here */
};

void watched_open(struct watched *watched);
void watched_close(struct watched *watched);
void watched_set_guard(struct watched *watched, const struct watch_guard *guard);
void watched_set_stop(struct watched *watched, volatile sig_atomic_t *stop);

/* Has the guard failed? */
bool watched_failed(struct watched *watched, char *why, size_t size);

/* The process ends: so does the guard, in a second at most. */
void watched_end(struct watched *watched);

/* Is a stop shared, and is it set? */
bool watched_shares(struct watched *watched);
bool watched_stops(struct watched *watched);

/* Another rank was stopped. */
void watched_stop(struct watched *watched);

#endif
