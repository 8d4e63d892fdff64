/* Watches over the ranks of a job, in a thread of its own: each rank tells rank 0 several times a second
   that it lives, and rank 0 tells them. A connection that closes, or a silence of `timeout` seconds, means
   that the process has died or is stopped. Then rank 0 says which, once, and all end with exit code 1, or
   with that of a rank that failed; if it is rank 0 that is gone, rank 1 and the first rank of each host
   say so. Checkpoints are replaced whole (replace.h), so the last one stays. */
#ifndef TESSERA_COMM_WATCH_H
#define TESSERA_COMM_WATCH_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

#include "src/base/status.h"

struct watch;

/* `link` as of struct rendezvous, used until watch_end. NULL with a message if there is no memory or
   thread. */
struct watch *watch_start(int rank, int size, int local_rank, const int *link, double timeout);

/* What this rank has beside the connections of the watch. Another thread calls its functions. */
struct watch_guard {
    void *self;
    bool (*is_failed)(void *self, char *why, size_t size); /* NULL: there is nothing */
    void (*end)(void *self);                               /* before the process ends because of another */
};

/* From now on, it is asked several times in a timeout: if it has failed, and no process has ended that
   explains it, this rank fails. */
void watch_guard(struct watch *watch, const struct watch_guard *guard);

/* From now on, if *stop is set on one rank, it is set on all within a fifth of a second. */
void watch_share_stop(struct watch *watch, volatile sig_atomic_t *stop);

/* Has that rank ended well? Only rank 0 knows. */
bool watch_has_left(const struct watch *watch, int rank);

/* This rank ends. If it failed, rank 0 prints the status message, with the number of the rank, and the
   others end; else rank 0 waits until all have ended. Returns `status`, or that of another rank which
   failed. */
enum status watch_end(struct watch *watch, enum status status);

#endif
