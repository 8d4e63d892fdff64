/* A contestant: a process of its own in which one backend runs, so that it cannot end, slow down or change
   another one, or the program itself.

   It is this program started anew (fork alone is not safe beside OpenMP's threads and CUDA), with a
   connection on which it receives one request at a time. While it does not have one it is stopped
   (SIGSTOP), so that threads which it left spinning take no time from its competitors. An exit, a crash, a
   hang, too much memory or too many threads end this contestant alone, and the reason is the status
   message.

   Not guaranteed: the backend shares its process with the code that verifies it and answers for it. The
   descriptor of the connection has a random number and each reply must repeat a random token, so no
   mistake can look like a reply; but a backend that searches the memory of its own process for both can forge
   one. A contestant runs with the rights of the user: a backend may read and delete files. It cannot signal
   other processes nor leave its process group where the kernel has seccomp filters: what it starts is stopped
   and ended with it. */
#ifndef TESSERA_BENCH_CONTESTANT_H
#define TESSERA_BENCH_CONTESTANT_H

#include <sys/types.h>

#include "src/base/progress.h"
#include "src/bench/contest.h"

/* How a contestant has ended: it still runs; it crashed or exited; it made no progress; it exceeded a limit;
   it disturbed the connection. */
enum contestant_end {
    CONTESTANT_RUNS,
    CONTESTANT_CRASHED,
    CONTESTANT_HANGS,
    CONTESTANT_EXCEEDS,
    CONTESTANT_INTERFERES
};

/* Zero: not started; the first request starts it. */
struct contestant {
    pid_t pid;
    int fd;
    struct progress *progress; /* shared with the process */
    double most_seconds;       /* for all its requests, set by the caller; 0: no limit */
    double seconds;            /* that its requests took */
    enum contestant_end end;
    char ended[640]; /* why it has ended; "" before */
};

/* For all contestants. */
struct contest_limits {
    double timeout_seconds; /* without progress; 0: none */
    double memory;          /* resident bytes; 0: 90 % of what is free */
    long threads;           /* running or asleep; 0: 4,096 */
    bool confined;          /* it may not change which cores it runs on */
};

/* For all contestants started from now on: the data set (NULL: none), and their limits. `data` may be freed
   afterwards. */
enum status contestants_prepare(const struct dataset_pair *data, const struct contest_limits *limits);

/* Sends a request and waits for the reply. `stage` is what it does, for the reason of a failure. If the
   contestant has ended or ends now: STATUS_VERIFY_FAILED with the reason. The caller closes reply->run after
   CONTEST_TRAIN. */
enum status contestant_ask(struct contestant *contestant, const char *stage, struct contest_request *request,
                           struct contest_reply *reply);
void contestant_end(struct contestant *contestant);

/* --- between both processes --- */

enum { CONTESTANT_SOCKET = 3, CONTESTANT_PROGRESS, CONTESTANT_DATA, CONTESTANT_DESCRIPTORS };
#define CONTESTANT_NAME "train: contestant" /* its argv[0] */

#endif
