#include "src/comm/comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/base/profile.h"
#include "src/base/terminal.h"
#include "src/comm/device_sums.h"
#include "src/comm/nccl.h"
#include "src/comm/sum_tree.h"
#include "src/device/dtype.h"

static const double BROKEN_SECONDS = 10; /* for the watch to find out why, without --comm-timeout */

/* --- start and end --- */

static const struct comm_driver *driver_of(enum comm_choice choice, const struct launch *launch) {
    const struct comm_driver *mpi = NULL;
#ifdef HAVE_MPI
    mpi = &comm_mpi;
#endif
    if (choice == COMM_MPI || (choice != COMM_TCP && launch->by_mpi && mpi)) return mpi;
    return &comm_tcp;
}

static enum status check(const struct launch *launch, const struct comm_options *options,
                         const struct comm_driver *driver) {
    char why[256];
    if (!driver)
        return status_set(STATUS_UNAVAILABLE, "--comm mpi: this program was built without MPI (make probe)");
    if (options->fixed && COMM_SHARDS % launch->size)
        return status_set(
            STATUS_USAGE,
            "--reduction fixed sums %d shards of each batch: on 1, 2 or %d processes, not on %d", COMM_SHARDS,
            COMM_SHARDS, launch->size);
    if (options->choice == COMM_NCCL) {
        struct nccl *nccl = nccl_new();
        if (!nccl) return status_context(STATUS_UNAVAILABLE, "--comm nccl");
        nccl_free(nccl);
    }
    if (driver->probe(launch, why, sizeof why)) return STATUS_OK;
    return status_set(STATUS_UNAVAILABLE, "--comm %s: %s", driver->name, why);
}

/* All ranks meet at rank 0. */
static enum status connect_ranks(struct comm *comm, const struct launch *launch, double timeout) {
    const struct comm_driver *driver = comm->driver;
    struct rendezvous *meeting = &comm->meeting;
    const int wanted = comm->rank == 0 && driver == &comm_tcp ? launch->port : 0;
    char address[256];
    *meeting = (struct rendezvous){.rank = comm->rank, .size = comm->size, .job = launch->job};
    enum status status = rendezvous_open(meeting);
    if (!status && (comm->rank == 0 || driver->connect))
        status = rendezvous_listen(meeting, wanted, comm->local);
    if (status) return status;
    int port = meeting->port;
    status = driver->announce(comm, launch, address, sizeof address, &port);
    if (status) return status;
    if (comm->rank == 0) {
        status = rendezvous_wait(meeting, timeout);
    } else {
        meeting->port = port;
        status = rendezvous_join(meeting, address, driver == &comm_tcp ? RENDEZVOUS_PORTS : 1, timeout);
    }
    if (status) return status;
    comm->watch = watch_start(comm->rank, comm->size, launch->local_rank, meeting->link, timeout);
    status = !comm->watch ? STATUS_FAILED : driver->connect ? driver->connect(comm, timeout) : STATUS_OK;
    rendezvous_stop_listening(meeting);
    return status;
}

enum status comm_open(struct comm *comm, const struct launch *launch, const struct comm_options *options) {
    *comm = (struct comm){.size = 1, .fixed = options->fixed};
    if (launch->size == 1 || options->choice == COMM_NONE) return STATUS_OK;
    const struct comm_driver *driver = driver_of(options->choice, launch);
    enum status status = check(launch, options, driver);
    if (status) return status;
    comm->driver = driver;
    comm->rank = launch->rank;
    comm->size = launch->size;
    comm->choice = options->choice;
    comm->timeout = options->timeout;
    status = driver->start(comm, launch);
    return status ? status : connect_ranks(comm, launch, options->timeout);
}

enum status comm_close(struct comm *comm, enum status status) {
    if (!comm->driver) return status;
    device_sums_close(comm, !status || status == STATUS_INTERRUPTED);
    const enum status ended = comm->watch ? watch_end(comm->watch, status) : status;
    comm->driver->finish(comm, comm->watch && (!ended || ended == STATUS_INTERRUPTED));
    rendezvous_close(&comm->meeting);
    device_sums_free(comm);
    free(comm->scratch);
    *comm = (struct comm){.size = 1};
    return ended;
}

_Noreturn void comm_end_broken(struct comm *comm, int peer) {
    const double seconds = comm->timeout > 0 ? comm->timeout : BROKEN_SECONDS;
    const double start = clock_seconds();
    while (clock_seconds() - start < seconds && !watch_has_left(comm->watch, peer)) usleep(50000);
    fprintf(stderr, "%s: rank %d of %d: the connection to rank %d is broken, or that rank has ended before\n",
            terminal_program(), comm->rank, comm->size, peer);
    _exit(STATUS_FAILED);
}

/* --- sums --- */

void comm_add(void *into, const void *from, size_t count, enum gemm_dtype dtype) {
    if (dtype == GEMM_F64) {
        double *restrict to = into;
        const double *restrict add = from;
#pragma omp simd
        for (size_t i = 0; i < count; i++) to[i] += add[i];
    } else {
        float *restrict to = into;
        const float *restrict add = from;
#pragma omp simd
        for (size_t i = 0; i < count; i++) to[i] += add[i];
    }
}

static char *scratch_of(struct comm *comm, size_t bytes) {
    if (bytes > comm->scratch_bytes) {
        free(comm->scratch);
        comm->scratch = malloc(bytes);
        comm->scratch_bytes = comm->scratch ? bytes : 0;
    }
    if (comm->scratch) return comm->scratch;
    fprintf(stderr, "%s: rank %d: out of memory for a sum of %zu bytes\n", terminal_program(), comm->rank,
            bytes);
    _exit(STATUS_FAILED);
}

static void exchange(void *self, int peer, const void *send, size_t send_bytes, void *receive,
                     size_t receive_bytes) {
    struct comm *comm = self;
    comm->driver->exchange(comm, peer, send, send_bytes, receive, receive_bytes);
}

static void add_f32(void *self, void *into, const void *from, size_t count) {
    (void)self;
    comm_add(into, from, count, GEMM_F32);
}

static void add_f64(void *self, void *into, const void *from, size_t count) {
    (void)self;
    comm_add(into, from, count, GEMM_F64);
}

void comm_sum(struct comm *comm, void *data, size_t count, enum gemm_dtype dtype) {
    if (comm_size(comm) == 1 || !count) return;
    if (comm->driver->sum && !comm->fixed) {
        comm->driver->sum(comm, data, count, dtype);
    } else {
        const size_t size = dtype_size(dtype);
        const struct sum_channel channel = {.self = comm,
                                            .element = size,
                                            .received = scratch_of(comm, (count + 1) * size),
                                            .exchange = exchange,
                                            .add = dtype == GEMM_F64 ? add_f64 : add_f32};
        sum_tree(&channel, comm->rank, comm->size, data, count);
    }
}

/* --- bytes --- */

/* Pairs in one order for all, so that no ranks wait for each other in a circle. */
void comm_gather(struct comm *comm, const void *mine, void *all, size_t bytes) {
    const int rank = comm ? comm->rank : 0;
    memcpy((char *)all + (size_t)rank * bytes, mine, bytes);
    for (int r = 0; r < comm_size(comm); r++)
        if (r != rank) comm->driver->exchange(comm, r, mine, bytes, (char *)all + (size_t)r * bytes, bytes);
}

void comm_send(struct comm *comm, int to, const void *data, size_t bytes) {
    if (bytes) comm->driver->exchange(comm, to, data, bytes, NULL, 0);
}

void comm_receive(struct comm *comm, int from, void *data, size_t bytes) {
    if (bytes) comm->driver->exchange(comm, from, NULL, 0, data, bytes);
}

void comm_share_stop(struct comm *comm, volatile sig_atomic_t *stop) {
    if (comm && comm->watch) watch_share_stop(comm->watch, stop);
}

/* --- shares --- */

void comm_share(size_t count, int part, int parts, size_t *first, size_t *end) {
    const size_t eights = (count + 7) / 8, p = (size_t)part, n = (size_t)parts;
    const size_t from = eights * p / n * 8, to = eights * (p + 1) / n * 8;
    *first = from < count ? from : count;
    *end = to < count ? to : count;
}
