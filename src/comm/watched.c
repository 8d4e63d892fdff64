#define _GNU_SOURCE
#include "src/comm/watched.h"

#include <time.h>

static const time_t ABORT = 1; /* seconds for the guard to end */

void watched_open(struct watched *watched) {
    *watched = (struct watched){.stop = NULL};
    pthread_mutex_init(&watched->mutex, NULL);
}

void watched_close(struct watched *watched) {
    pthread_mutex_destroy(&watched->mutex);
}

void watched_set_guard(struct watched *watched, const struct watch_guard *guard) {
    pthread_mutex_lock(&watched->mutex);
    watched->guard = *guard;
    pthread_mutex_unlock(&watched->mutex);
}

void watched_set_stop(struct watched *watched, volatile sig_atomic_t *stop) {
    pthread_mutex_lock(&watched->mutex);
    watched->stop = stop;
    if (stop && watched->stop_waits) __atomic_store_n(stop, 1, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&watched->mutex);
}

/* Under the mutex: the guard may not be freed meanwhile. */
bool watched_failed(struct watched *watched, char *why, size_t size) {
    pthread_mutex_lock(&watched->mutex);
    const struct watch_guard *guard = &watched->guard;
    const bool failed = guard->is_failed && guard->is_failed(guard->self, why, size);
    pthread_mutex_unlock(&watched->mutex);
    return failed;
}

static void *end_guard(void *self) {
    const struct watch_guard *guard = self;
    guard->end(guard->self);
    return NULL;
}

void watched_end(struct watched *watched) {
    struct timespec until;
    pthread_t thread;
    pthread_mutex_lock(&watched->mutex);
    struct watch_guard guard = watched->guard;
    pthread_mutex_unlock(&watched->mutex);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += ABORT;
    if (guard.end && pthread_create(&thread, NULL, end_guard, &guard) == 0)
        pthread_timedjoin_np(thread, NULL, &until);
}

static volatile sig_atomic_t *stop_of(struct watched *watched) {
    pthread_mutex_lock(&watched->mutex);
    volatile sig_atomic_t *stop = watched->stop;
    pthread_mutex_unlock(&watched->mutex);
    return stop;
}

bool watched_shares(struct watched *watched) {
    return stop_of(watched) != NULL;
}

bool watched_stops(struct watched *watched) {
    const volatile sig_atomic_t *stop = stop_of(watched);
    return stop && __atomic_load_n(stop, __ATOMIC_RELAXED);
}

void watched_stop(struct watched *watched) {
    pthread_mutex_lock(&watched->mutex);
    if (watched->stop)
        __atomic_store_n(watched->stop, 1, __ATOMIC_RELAXED);
    else
        watched->stop_waits = true;
    pthread_mutex_unlock(&watched->mutex);
}
