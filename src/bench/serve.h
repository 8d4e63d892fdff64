/* A contestant, from inside: answers the requests of the process that started it. */
#ifndef TESSERA_BENCH_SERVE_H
#define TESSERA_BENCH_SERVE_H

#include "src/bench/contest.h"

struct serve_slot {
    struct compute compute;
    struct sampler sampler;
};

struct server {
    struct dataset_pair data; /* shared; empty if there is none */
    struct serve_slot *slots;
    size_t count;
};

/* Does one task in this process. The status is also that of the reply, without its message. */
enum status serve_task(struct server *server, const struct contest_request *request,
                       struct contest_reply *reply);
void serve_close(struct server *server);

/* Was this process started as a contestant? If so, main must call serve_contest and nothing else. */
bool serve_requested(int argc, char **argv);
/* Serves until the other process ends or closes the connection; then ends this process. */
void serve_contest(void);

#endif
