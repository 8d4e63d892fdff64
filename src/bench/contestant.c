#define _GNU_SOURCE
#include "src/bench/contestant.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "src/base/platform.h"
#include "src/base/process.h"
#include "src/base/socket.h"
#include "src/base/text.h"
#include "src/bench/process_use.h"
#include "src/data/dataset_share.h"

enum {
    MOST_THREADS = 4096,
    LOOK_MILLISECONDS = 100, /* how often limits are checked */
    MOST_EPOCHS = 1 << 16,
};
static const double QUIET_SECONDS = 2; /* until when threads must sleep after a task */

static int shared_data = -1;
static struct contest_limits limits = {.timeout_seconds = 600, .threads = MOST_THREADS};

/* --- start and end --- */

/* Above the descriptors that the contestant finds its own at. */
static int move_up(int fd) {
    const int moved = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, (int)CONTESTANT_DESCRIPTORS);
    if (fd >= 0) close(fd);
    return moved;
}

enum status contestants_prepare(const struct dataset_pair *data, const struct contest_limits *wanted) {
    limits = *wanted;
    if (!limits.threads) limits.threads = MOST_THREADS;
    if (shared_data >= 0) close(shared_data);
    shared_data = data ? move_up(dataset_share(data)) : -1;
    return data && shared_data < 0 ? STATUS_FAILED : STATUS_OK;
}

static enum status spawn(struct contestant *one, int socket, int progress) {
    char *const arguments[] = {CONTESTANT_NAME, NULL};
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    sigset_t all, none;
    sigfillset(&all);
    sigemptyset(&none);
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, socket, CONTESTANT_SOCKET);
    posix_spawn_file_actions_adddup2(&files, progress, CONTESTANT_PROGRESS);
    if (shared_data >= 0) posix_spawn_file_actions_adddup2(&files, shared_data, CONTESTANT_DATA);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes,
                             (short)(POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF));
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    const int error = posix_spawn(&one->pid, "/proc/self/exe", &files, &attributes, arguments, environ);
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attributes);
    if (!error) return STATUS_OK;
    one->pid = 0;
    return status_set(STATUS_FAILED, "cannot start a process for a contestant: %s", strerror(error));
}

static enum status start(struct contestant *one) {
    int ends[2] = {-1, -1}, progress = move_up(memfd_create("progress", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    const struct timeval patience = {.tv_sec = 10}; /* within one reply */
    enum status status = STATUS_OK;
    if (progress < 0 || ftruncate(progress, sizeof *one->progress) != 0 ||
        fcntl(progress, F_ADD_SEALS, F_SEAL_SHRINK) != 0 ||
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        status = status_set(STATUS_FAILED, "cannot start a contestant: %s", strerror(errno));
    ends[0] = move_up(ends[0]);
    ends[1] = move_up(ends[1]);
    if (!status) {
        one->fd = ends[0];
        one->progress = mmap(NULL, sizeof *one->progress, PROT_READ | PROT_WRITE, MAP_SHARED, progress, 0);
        setsockopt(one->fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
        if (one->progress == MAP_FAILED)
            status = status_set(STATUS_FAILED, "cannot start a contestant: %s", strerror(errno));
        if (!status) status = spawn(one, ends[1], progress);
    }
    if (progress >= 0) close(progress);
    if (ends[1] >= 0) close(ends[1]);
    return status;
}

/* Ends the process and all of its group. */
static void reap(struct contestant *one) {
    kill(-one->pid, SIGKILL);
    while (waitpid(one->pid, NULL, 0) < 0 && errno == EINTR) continue;
    one->pid = 0;
    close(one->fd);
}

void contestant_end(struct contestant *one) {
    if (one->pid) reap(one);
    if (one->progress) munmap(one->progress, sizeof *one->progress);
    *one = (struct contestant){0};
}

/* --- why it ended --- */

/* `seen`: its progress, or what that was. */
static enum status end_at(struct contestant *one, const char *stage, const struct progress *seen,
                          enum contestant_end end, const char *why) {
    char doing[sizeof seen->doing];
    snprintf(doing, sizeof doing, "%.*s", (int)sizeof doing - 1, seen->doing);
    text_clean(doing);
    snprintf(one->ended, sizeof one->ended, "%s (%s%s%s)", why, stage, doing[0] ? ": " : "", doing);
    one->end = end;
    if (one->pid) reap(one);
    return status_set(STATUS_VERIFY_FAILED, "%s", one->ended);
}

static enum status end_because(struct contestant *one, const char *stage, enum contestant_end end,
                               const char *why) {
    return end_at(one, stage, one->progress, end, why);
}

/* Its side of the connection is closed: because it ended, or although it runs. */
static enum status end_of_connection(struct contestant *one, const char *stage) {
    const struct progress seen = *one->progress; /* if it runs, it goes on meanwhile */
    int how;
    pid_t ended = 0;
    char why[160];
    for (int wait = 0; wait < 100 && ended == 0; wait++) { /* it may be about to end */
        ended = waitpid(one->pid, &how, WNOHANG);
        if (ended == 0) nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
    if (ended != one->pid || one->progress->unconnected)
        return end_at(one, stage, &seen, CONTESTANT_INTERFERES, "it closed the connection to the program");
    kill(-one->pid, SIGKILL);
    one->pid = 0;
    close(one->fd);
    if (one->progress->stack_overflow) {
        snprintf(why, sizeof why, "it crashed: stack overflow");
    } else if (WIFEXITED(how)) {
        snprintf(why, sizeof why, "it ended its process with exit code %d", WEXITSTATUS(how));
    } else {
        snprintf(why, sizeof why, "it crashed: signal %d, %s%s", WTERMSIG(how), strsignal(WTERMSIG(how)),
                 WTERMSIG(how) == SIGKILL  ? " (by itself, or by the kernel because memory ran out)"
                 : WTERMSIG(how) == SIGSYS ? " (it may not signal other processes, or change its cores)"
                                           : "");
    }
    return end_because(one, stage, CONTESTANT_CRASHED, why);
}

/* --- while it works --- */

/* `more`: seconds of the request in progress. */
static enum status check_total(struct contestant *one, const char *stage, double more) {
    char why[160];
    if (one->most_seconds <= 0 || one->seconds + more <= one->most_seconds) return STATUS_OK;
    snprintf(why, sizeof why, "it took more than %g s in all (--total-seconds)", one->most_seconds);
    return end_because(one, stage, CONTESTANT_EXCEEDS, why);
}

static enum status end_for_threads(struct contestant *one, const char *stage, long threads) {
    char why[160];
    snprintf(why, sizeof why, "it started %ld threads; %ld are allowed", threads, limits.threads);
    return end_because(one, stage, CONTESTANT_EXCEEDS, why);
}

/* Waits until the reply begins; ends the contestant if it exceeds a limit. */
static enum status await_reply(struct contestant *one, const char *stage) {
    struct progress seen = *one->progress;
    struct pollfd ready = {.fd = one->fd, .events = POLLIN};
    const char *limit;
    const double start = clock_seconds();
    double since = start, most = 0.9 * (double)platform_memory_available(&limit);
    char why[160], path[64];
    struct process_use use;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)one->pid);
    if (process_use_read(path, &use)) most += use.memory;
    const bool limited = limits.memory > 0 && limits.memory < most;
    if (limited) most = limits.memory;
    while (poll(&ready, 1, LOOK_MILLISECONDS) <= 0) {
        if (memcmp(&seen, one->progress, sizeof seen) != 0) since = clock_seconds();
        seen = *one->progress;
        if (limits.timeout_seconds > 0 && clock_seconds() - since > limits.timeout_seconds) {
            snprintf(why, sizeof why, "no progress for %g s (--timeout-seconds)", limits.timeout_seconds);
            return end_because(one, stage, CONTESTANT_HANGS, why);
        }
        const enum status status = check_total(one, stage, clock_seconds() - start);
        if (status) return status;
        if (process_is_interrupted())
            return end_because(one, stage, CONTESTANT_CRASHED, "the program was interrupted");
        if (!process_use_read(path, &use)) continue;
        if (use.state == 'Z')
            return end_of_connection(one, stage); /* a process of its own holds the other end */
        if (use.memory > most) {
            snprintf(why, sizeof why, "it took %s of memory; it may take %s%s%s", text_bytes(use.memory).text,
                     limited ? "" : "90 % of what is free, ", text_bytes(most).text,
                     limited ? " (--memory-mib)" : "");
            return end_because(one, stage, CONTESTANT_EXCEEDS, why);
        }
        if (use.threads > limits.threads) return end_for_threads(one, stage, use.threads);
    }
    if (process_use_read(path, &use) && use.threads > limits.threads)
        return end_for_threads(one, stage, use.threads);
    one->seconds += clock_seconds() - start;
    return check_total(one, stage, 0);
}

/* What a hostile contestant could have written must not harm this process, nor the terminal. */
static bool is_sane(struct contest_reply *reply) {
#define END(text) ((text)[sizeof(text) - 1] = '\0', text_clean(text))
    END(reply->message);
    END(reply->backend.name), END(reply->backend.bare), END(reply->backend.path);
    END(reply->backend.summary), END(reply->backend.options);
    END(reply->description), END(reply->gpu), END(reply->device), END(reply->tensor);
    END(reply->counters.why);
    END(reply->run.description), END(reply->run.gpu), END(reply->run.device);
    END(reply->run.engine), END(reply->run.residency), END(reply->run.precision);
    for (int i = 0; i < SAMPLER_MOST_KERNELS; i++) END(reply->facts.kernel[i].name);
#undef END
    reply->trace.tensor = reply->tensor;
    reply->run.epoch_seconds = NULL;
    return (unsigned)reply->status <= STATUS_TARGET_MISSED && reply->run.epochs <= MOST_EPOCHS &&
           reply->facts.kernels <= SAMPLER_MOST_KERNELS;
}

static enum status receive_reply(struct contestant *one, const char *stage,
                                 const struct contest_request *request, struct contest_reply *reply) {
    static const char forged[] = "it wrote to the connection to the program";
    const size_t first = sizeof reply->token; /* which is wrong if it wrote before it was done */
    if (!socket_receive(one->fd, reply, first, 0)) return end_of_connection(one, stage);
    if (reply->token != request->token) return end_because(one, stage, CONTESTANT_INTERFERES, forged);
    if (!socket_receive(one->fd, (char *)reply + first, sizeof *reply - first, 0))
        return end_of_connection(one, stage);
    if (!is_sane(reply)) return end_because(one, stage, CONTESTANT_INTERFERES, forged);
    if (!reply->run.epochs) return STATUS_OK;
    const size_t bytes = reply->run.epochs * sizeof *reply->run.epoch_seconds;
    reply->run.epoch_seconds = malloc(bytes);
    if (!reply->run.epoch_seconds) return status_set(STATUS_FAILED, "out of memory");
    if (socket_receive(one->fd, reply->run.epoch_seconds, bytes, 0)) return STATUS_OK;
    run_close(&reply->run);
    return end_of_connection(one, stage);
}

/* --- its clock --- */

/* The clock of a contestant is that of this process, unless the backend has changed what its process reads:
   one that is slow lags behind in the next request. `sent`, `received`: when this process sent the request
   and had the reply. */
static enum status check_clock(struct contestant *one, const char *stage, const struct contest_reply *reply,
                               double sent, double received) {
    char why[160];
    if (reply->began >= sent && reply->ended >= reply->began && reply->ended <= received) return STATUS_OK;
    snprintf(why, sizeof why, "its clock is wrong: a request from %.6f to %.6f s took from %.6f to %.6f s",
             sent, received, reply->began, reply->ended);
    return end_because(one, stage, CONTESTANT_INTERFERES, why);
}

/* --- when it has done its task --- */

/* All threads must sleep soon. They may spin for a moment, as OpenMP's do. Processes must have ended: one
   that sleeps may wait for the moment when the contestant does nothing. */
static enum status check_asleep(pid_t pid) {
    const double start = clock_seconds();
    for (;;) {
        const bool itself = !process_spins_by_choice() && process_runs(pid);
        if (!itself && !process_has_others(pid)) return STATUS_OK;
        if (clock_seconds() - start > QUIET_SECONDS)
            return itself ? status_set(STATUS_VERIFY_FAILED,
                                       "its threads still run %g s after its last call; threads without work "
                                       "must sleep",
                                       QUIET_SECONDS)
                          : status_set(STATUS_VERIFY_FAILED,
                                       "a process that it started is still there %g s after its last call",
                                       QUIET_SECONDS);
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
}

static enum status stop(struct contestant *one, const char *stage) {
    siginfo_t how;
    kill(-one->pid, SIGSTOP);
    while (waitid(P_PID, (id_t)one->pid, &how, WSTOPPED | WEXITED | WNOWAIT) != 0 && errno == EINTR) continue;
    return how.si_code == CLD_STOPPED ? STATUS_OK : end_of_connection(one, stage);
}

/* Tasks after which a backend is done with a shape or a case list. */
static bool is_last(const struct contest_request *request) {
    return request->task == CONTEST_VERIFY_ALL || request->task == CONTEST_SAMPLER_FINISH ||
           (request->task == CONTEST_VERIFY && request->inputs == PROBLEM_REALS);
}

enum status contestant_ask(struct contestant *one, const char *stage, struct contest_request *request,
                           struct contest_reply *reply) {
    *reply = (struct contest_reply){0};
    if (one->ended[0]) return status_set(STATUS_VERIFY_FAILED, "%s", one->ended);
    if (getrandom(&request->token, sizeof request->token, 0) < 0)
        return status_set(STATUS_FAILED, "no random numbers: %s", strerror(errno));
    enum status status = one->pid ? STATUS_OK : start(one);
    if (status) return status;
    one->progress->doing[0] = '\0';
    request->confined = limits.confined;
    kill(-one->pid, SIGCONT);
    const double sent = clock_seconds();
    if (!socket_send(one->fd, request, sizeof *request)) return end_of_connection(one, stage);
    status = await_reply(one, stage);
    if (!status) status = receive_reply(one, stage, request, reply);
    if (status) return status;
    status = check_clock(one, stage, reply, sent, clock_seconds());
    if (status) {
        run_close(&reply->run);
        return status;
    }
    status = status_set(reply->status, "%s", reply->message);
    if (!status && is_last(request)) status = check_asleep(one->pid);
    const enum status stopped = stop(one, stage);
    if (stopped) run_close(&reply->run);
    return stopped ? stopped : status;
}
