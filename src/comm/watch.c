#define _GNU_SOURCE
#include "src/comm/watch.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "src/base/profile.h"
#include "src/base/socket.h"
#include "src/base/terminal.h"
#include "src/base/text.h"
#include "src/comm/watched.h"

enum kind { ALIVE, FAILED, DONE, END, STOP }; /* END: rank 0 tells the others to end */

struct message {
    int32_t kind, status; /* of FAILED and END: the exit code */
    char text[504];       /* of FAILED */
};

/* A rank at the other side of a connection. */
struct peer {
    struct message message; /* that is being received */
    size_t received;        /* bytes of it */
    double heard;           /* when it last said something */
    bool done;              /* it has ended well, or with a message that was printed */
    bool left;              /* it has ended well */
};

struct watch {
    int rank, size, local_rank, wake;
    const int *link;
    double timeout, polled; /* when this rank last looked for messages .. */
    double said;            /* .. and said that it lives */
    bool told;              /* rank 0: the others were told to end */
    bool was_stopped;       /* itself, for longer than the timeout: the others have said so */
    pthread_t thread;
    pthread_mutex_t mutex;
    bool ending;        /* watch_end was called .. */
    enum status status; /* .. with this */
    char message[1024]; /* its own, or of the rank that failed */
    struct peer *peer;  /* [size] */
    struct watched watched;
    bool told_stop; /* the others were told that this one was stopped */
    double failed;  /* when the guard said so first; 0: it has not */
};

static const double SILENCE = 0.7;  /* of the timeout: so that all is over within it */
static const double BEATS = 5;      /* in a timeout */
static const double STOPS = 0.2;    /* seconds between looks at a shared stop */
static const double PATIENCE = 0.3; /* seconds for messages of other ranks about the same thing */
static const double LAST_WORDS = 3; /* seconds for rank 0 to print the message of a failure */
static const double CAUSE = 0.8;    /* of the timeout (or 10 s): for the cause of the guard's failure */

static void send_message(const struct watch *watch, int to, enum kind kind, enum status status,
                         const char *text) {
    struct message message = {.kind = (int32_t)kind, .status = (int32_t)status};
    if (watch->link[to] < 0) return;
    snprintf(message.text, sizeof message.text, "%s", text);
    const ssize_t sent = send(watch->link[to], &message, sizeof message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0 && (size_t)sent < sizeof message) /* never half of one */
        socket_send(watch->link[to], (char *)&message + sent, sizeof message - (size_t)sent);
}

static void send_to_all(const struct watch *watch, enum kind kind, enum status status) {
    for (int r = 0; r < watch->size; r++)
        if (r != watch->rank && !watch->peer[r].done) send_message(watch, r, kind, status, "");
}

/* Tells all others to end, with this exit code. */
static void end_all(struct watch *watch, enum status status) {
    send_to_all(watch, END, status);
    watch->told = true;
}

static bool is_ending(struct watch *watch) {
    pthread_mutex_lock(&watch->mutex);
    const bool ending = watch->ending;
    pthread_mutex_unlock(&watch->mutex);
    return ending;
}

static void sleep_for(double seconds) {
    nanosleep(&(struct timespec){.tv_nsec = (long)(1e9 * seconds)}, NULL);
}

/* Ends this process, in whatever the main thread is doing: it may hold the lock of standard output, or wait
   for its reader. */
static _Noreturn void end_process(struct watch *watch, enum status status) {
    watched_end(&watch->watched);
    if (ftrylockfile(stdout) == 0) {
        fcntl(STDOUT_FILENO, F_SETFL, fcntl(STDOUT_FILENO, F_GETFL) | O_NONBLOCK);
        fflush(stdout);
    }
    _exit((int)status);
}

/* --- what rank 0 does if another rank fails --- */

/* Prints why, unless rank 0 itself fails for the same reason, and ends all ranks. Returns if the main thread
   of rank 0 is ending: it prints its own message. */
static void fail(struct watch *watch, int rank, enum status status, const char *text) {
    watch->peer[rank].done = true;
    for (double waited = 0; waited < PATIENCE && !is_ending(watch); waited += 0.01) sleep_for(0.01);
    const bool ending = is_ending(watch);
    if (!ending || strcmp(text, watch->message) != 0) {
        terminal_note("rank %d of %d: %s", rank, watch->size, text);
        end_all(watch, status);
    }
    if (!ending) end_process(watch, status);
    if (watch->status == STATUS_OK || watch->status == STATUS_INTERRUPTED) {
        watch->status = status;
        watch->message[0] = '\0';
    }
}

/* --- what the others do if rank 0 fails --- */

static void rank_0_is_gone(struct watch *watch, const char *why) {
    watch->peer[0].done = true;
    if (is_ending(watch)) return;
    if (!watch->was_stopped && (watch->local_rank == 0 || watch->rank == 1))
        fprintf(stderr, "%s: rank 0 of %d: %s\n", terminal_program(), watch->size, why);
    end_process(watch, STATUS_FAILED);
}

static void is_gone(struct watch *watch, int rank, const char *why) {
    if (watch->rank == 0) {
        fail(watch, rank, STATUS_FAILED, why);
    } else {
        rank_0_is_gone(watch, why);
    }
}

/* Rank 0 tells all others, these tell rank 0. */
static void tell_stop(struct watch *watch) {
    if (watch->told_stop || !watched_stops(&watch->watched)) return;
    send_to_all(watch, STOP, STATUS_OK);
    watch->told_stop = true;
}

/* --- messages --- */

static void take_message(struct watch *watch, int from, const struct message *message) {
    struct peer *peer = &watch->peer[from];
    char text[sizeof message->text];
    switch (message->kind) {
    case FAILED:
        snprintf(text, sizeof text, "%s", message->text);
        text_clean(text);
        fail(watch, from, (enum status)message->status, text);
        break;
    case DONE:
        peer->done = true;
        __atomic_store_n(&peer->left, true, __ATOMIC_RELAXED);
        break;
    case END:
        peer->done = true;
        if (!is_ending(watch)) end_process(watch, (enum status)message->status);
        break;
    case STOP:
        watched_stop(&watch->watched);
        break;
    default:
        break;
    }
}

static void receive(struct watch *watch, int from) {
    struct peer *peer = &watch->peer[from];
    const ssize_t got = recv(watch->link[from], (char *)&peer->message + peer->received,
                             sizeof peer->message - peer->received, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) {
        if (watch->told) peer->done = true; /* it has obeyed */
        if (!peer->done) is_gone(watch, from, "its process has ended: it was killed, or it crashed");
        return;
    }
    peer->heard = clock_seconds();
    peer->received += (size_t)got;
    if (peer->received < sizeof peer->message) return;
    peer->received = 0;
    peer->message.text[sizeof peer->message.text - 1] = '\0';
    take_message(watch, from, &peer->message);
}

static void check_silence(struct watch *watch, double now) {
    char why[128];
    for (int r = 0; r < watch->size && watch->timeout > 0; r++) {
        if (r == watch->rank || watch->link[r] < 0 || watch->peer[r].done) continue;
        if (now - watch->peer[r].heard <= SILENCE * watch->timeout) continue;
        snprintf(why, sizeof why,
                 "no sign of life within --comm-timeout (%g s): it is stopped, or its host is gone",
                 watch->timeout);
        is_gone(watch, r, why);
    }
}

/* The cause is often another process, which is named within the timeout. */
static void check_guard(struct watch *watch, double now) {
    char why[256];
    if (!watched_failed(&watch->watched, why, sizeof why)) return;
    if (watch->failed <= 0) watch->failed = now;
    if (now - watch->failed < CAUSE * (watch->timeout > 0 ? watch->timeout : 10)) return;
    watch->failed = 1e300;
    if (watch->rank == 0) {
        fail(watch, 0, STATUS_FAILED, why);
    } else {
        send_message(watch, 0, FAILED, STATUS_FAILED, why);
    }
}

/* --- the thread --- */

static double beat_of(const struct watch *watch) {
    return watch->timeout > 0 ? watch->timeout / BEATS : 1;
}

static double pause_of(struct watch *watch) {
    const double beat = beat_of(watch);
    return watched_shares(&watch->watched) && beat > STOPS ? STOPS : beat;
}

/* After this process was stopped (Ctrl-Z, a debugger), or its host was, the silence was its own. */
static void notice_stop(struct watch *watch, double now) {
    const double away = now - watch->polled;
    watch->polled = now;
    if (watch->timeout <= 0 || away <= 2 * beat_of(watch)) return;
    watch->was_stopped |= away > watch->timeout;
    for (int r = 0; r < watch->size; r++) watch->peer[r].heard = now;
}

/* Waits up to `seconds` for messages, and answers them. */
static void poll_links(struct watch *watch, struct pollfd *ready, double seconds) {
    for (int r = 0; r < watch->size; r++)
        ready[r] = (struct pollfd){.fd = watch->peer[r].done ? -1 : watch->link[r], .events = POLLIN};
    ready[watch->size] = (struct pollfd){.fd = watch->wake, .events = POLLIN};
    const int count = poll(ready, (nfds_t)watch->size + 1, (int)(1000 * seconds) + 1);
    notice_stop(watch, clock_seconds());
    if (count > 0)
        for (int r = 0; r < watch->size; r++)
            if (ready[r].revents && !watch->peer[r].done) receive(watch, r);
    tell_stop(watch);
    const double now = clock_seconds();
    if (now - watch->said >= beat_of(watch)) {
        send_to_all(watch, ALIVE, STATUS_OK);
        watch->said = now;
    }
    check_silence(watch, now);
}

static bool all_done(const struct watch *watch) {
    for (int r = 0; r < watch->size; r++)
        if (r != watch->rank && watch->link[r] >= 0 && !watch->peer[r].done) return false;
    return true;
}

/* The main thread has ended. */
static void end(struct watch *watch, struct pollfd *ready) {
    uint64_t woken;
    const bool failed = watch->status != STATUS_OK && watch->status != STATUS_INTERRUPTED;
    const ssize_t got = read(watch->wake, &woken, sizeof woken);
    (void)got;
    if (watch->rank != 0) {
        send_message(watch, 0, failed ? FAILED : DONE, watch->status, watch->message);
    } else if (failed) {
        end_all(watch, watch->status);
    }
    if (watch->rank != 0 && !failed) return;
    const double patience = !failed ? 1e300 : watch->rank ? LAST_WORDS : PATIENCE;
    for (const double start = clock_seconds(); !all_done(watch) && clock_seconds() - start < patience;)
        poll_links(watch, ready, 0.05);
}

static void *run(void *self) {
    struct watch *watch = self;
    struct pollfd *ready = calloc((size_t)watch->size + 1, sizeof *ready);
    if (!ready) return NULL;
    while (!is_ending(watch)) {
        poll_links(watch, ready, pause_of(watch));
        check_guard(watch, clock_seconds());
    }
    end(watch, ready);
    free(ready);
    return NULL;
}

struct watch *watch_start(int rank, int size, int local_rank, const int *link, double timeout) {
    struct watch *watch = calloc(1, sizeof *watch);
    struct peer *peers = calloc((size_t)size, sizeof *peers);
    sigset_t all, before;
    if (!watch || !peers) {
        status_write("out of memory");
        free(watch);
        free(peers);
        return NULL;
    }
    *watch = (struct watch){.rank = rank,
                            .size = size,
                            .local_rank = local_rank,
                            .wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
                            .link = link,
                            .timeout = timeout,
                            .peer = peers};
    watch->said = watch->polled = clock_seconds();
    for (int r = 0; r < size; r++) peers[r].heard = watch->said;
    pthread_mutex_init(&watch->mutex, NULL);
    watched_open(&watch->watched);
    sigfillset(&all); /* signals are for the main thread */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&watch->thread, NULL, run, watch);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!error) return watch;
    status_write("cannot start a thread: %s", strerror(error));
    free(peers);
    free(watch);
    return NULL;
}

void watch_share_stop(struct watch *watch, volatile sig_atomic_t *stop) {
    watched_set_stop(&watch->watched, stop);
}

void watch_guard(struct watch *watch, const struct watch_guard *guard) {
    watched_set_guard(&watch->watched, guard);
}

bool watch_has_left(const struct watch *watch, int rank) {
    return __atomic_load_n(&watch->peer[rank].left, __ATOMIC_RELAXED);
}

enum status watch_end(struct watch *watch, enum status status) {
    const uint64_t one = 1;
    pthread_mutex_lock(&watch->mutex);
    watch->status = status;
    if (status) snprintf(watch->message, sizeof watch->message, "%.507s", status_message());
    watch->ending = true;
    pthread_mutex_unlock(&watch->mutex);
    const ssize_t woke = write(watch->wake, &one, sizeof one);
    (void)woke;
    pthread_join(watch->thread, NULL);
    const enum status ended = watch->status;
    if (ended != status) status_write("%s", watch->message);
    pthread_mutex_destroy(&watch->mutex);
    watched_close(&watch->watched);
    close(watch->wake);
    free(watch->peer);
    free(watch);
    return ended;
}
