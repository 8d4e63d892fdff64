/* The communicator on MPI: messages between hosts by whatever network its library knows. */
#include <mpi.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "src/comm/comm.h"

enum { HOST = 256, PIECE = 1 << 30 /* MPI counts in int */ };

struct place {
    char host[HOST];
    int port;
    uint64_t job;
};

static bool probe(const struct launch *launch, char *why, size_t size) {
    if (launch->by_mpi || launch->size == 1) return true;
    snprintf(why, size, "the processes were not started by MPI, but by what set %s", launch->variable);
    return false;
}

/* "Open MPI v4.1.4" from "Open MPI v4.1.4, package ..", "MPICH 4.0.2" from "MPICH Version:\t4.0.2\n..". */
static void name_library(const char *library, char *name, size_t size) {
    char product[32], version[32];
    if (sscanf(library, "%31s Version: %31s", product, version) == 2) {
        snprintf(name, size, "%s %s", product, version);
    } else {
        snprintf(name, size, "%.*s", (int)strcspn(library, ",\n\t"), library);
    }
}

static enum status start(struct comm *comm, const struct launch *launch) {
    char mine[HOST] = "", first[HOST], library[MPI_MAX_LIBRARY_VERSION_STRING], name[80];
    int provided, length, here, everywhere;
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS)
        return status_set(STATUS_FAILED, "MPI does not start");
    MPI_Comm_rank(MPI_COMM_WORLD, &comm->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &comm->size);
    if (comm->rank != launch->rank || comm->size != launch->size)
        return status_set(STATUS_FAILED, "MPI says rank %d of %d, %s says %d of %d", comm->rank, comm->size,
                          launch->variable, launch->rank, launch->size);
    MPI_Get_library_version(library, &length);
    name_library(library, name, sizeof name);
    snprintf(comm->description, sizeof comm->description, "%s (%s)", name, launch->variable);
    gethostname(mine, sizeof mine - 1);
    memcpy(first, mine, sizeof first);
    MPI_Bcast(first, HOST, MPI_CHAR, 0, MPI_COMM_WORLD);
    here = strcmp(first, mine) == 0;
    MPI_Allreduce(&here, &everywhere, 1, MPI_INT, MPI_LAND, MPI_COMM_WORLD);
    comm->local = everywhere;
    return STATUS_OK;
}

static enum status announce(struct comm *comm, const struct launch *launch, char *address, size_t size,
                            int *port) {
    struct place place = {.port = *port};
    gethostname(place.host, sizeof place.host - 1);
    if (getrandom(&place.job, sizeof place.job, 0) < 0) place.job = launch->job;
    MPI_Bcast(&place, sizeof place, MPI_BYTE, 0, MPI_COMM_WORLD);
    snprintf(address, size, "%s", comm->local ? "127.0.0.1" : place.host);
    *port = place.port;
    comm->meeting.job = place.job;
    return STATUS_OK;
}

static int piece(size_t bytes, size_t at) {
    return at >= bytes ? 0 : (int)(bytes - at < PIECE ? bytes - at : PIECE);
}

static void exchange(struct comm *comm, int peer, const void *send, size_t send_bytes, void *receive,
                     size_t receive_bytes) {
    const size_t longer = send_bytes > receive_bytes ? send_bytes : receive_bytes;
    (void)comm;
    for (size_t at = 0; at < longer; at += PIECE)
        MPI_Sendrecv((const char *)send + at, piece(send_bytes, at), MPI_BYTE, peer, 0, (char *)receive + at,
                     piece(receive_bytes, at), MPI_BYTE, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void sum(struct comm *comm, void *data, size_t count, enum gemm_dtype dtype) {
    const MPI_Datatype type = dtype == GEMM_F64 ? MPI_DOUBLE : MPI_FLOAT;
    const size_t size = dtype == GEMM_F64 ? sizeof(double) : sizeof(float);
    (void)comm;
    for (size_t at = 0; at < count; at += PIECE)
        MPI_Allreduce(MPI_IN_PLACE, (char *)data + at * size, piece(count, at), type, MPI_SUM,
                      MPI_COMM_WORLD);
}

/* It waits for the other ranks. */
static void finish(struct comm *comm, bool well) {
    (void)comm;
    if (well) MPI_Finalize();
}

const struct comm_driver comm_mpi = {.name = "mpi",
                                     .probe = probe,
                                     .start = start,
                                     .announce = announce,
                                     .exchange = exchange,
                                     .sum = sum,
                                     .finish = finish};
