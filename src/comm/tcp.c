/* The communicator without MPI: a connection for each pair of processes. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "src/comm/comm.h"

static bool probe(const struct launch *launch, char *why, size_t size) {
    if (launch->address[0] && launch->port) return true;
    snprintf(why, size,
             "the address of rank 0 is not known: set MASTER_ADDR to its host and MASTER_PORT to a free port "
             "there, in all processes");
    return false;
}

static enum status start(struct comm *comm, const struct launch *launch) {
    comm->local = strcmp(launch->address, "127.0.0.1") == 0 || strcmp(launch->address, "localhost") == 0;
    return STATUS_OK;
}

static enum status announce(struct comm *comm, const struct launch *launch, char *address, size_t size,
                            int *port) {
    if (comm->rank) *port = launch->port;
    snprintf(address, size, "%s", launch->address);
    snprintf(comm->description, sizeof comm->description, "sockets, rank 0 at %.64s (%s)", address,
             launch->variable);
    return STATUS_OK;
}

static enum status connect_all(struct comm *comm, double timeout) {
    int *pair = comm->state = rendezvous_connect_all(&comm->meeting, timeout);
    for (int r = 0; pair && r < comm->size; r++)
        if (pair[r] >= 0) fcntl(pair[r], F_SETFL, fcntl(pair[r], F_GETFL) | O_NONBLOCK);
    return pair ? STATUS_OK : STATUS_FAILED;
}

/* Both directions at once: neither side may wait for the other to read. A connection that breaks is the
   watch's affair: it knows which process is gone, and ends this one. */
static void exchange(struct comm *comm, int peer, const void *send_from, size_t to_send, void *receive_to,
                     size_t to_receive) {
    const int fd = ((int *)comm->state)[peer];
    const char *out = send_from;
    char *in = receive_to;
    while (to_send || to_receive) {
        struct pollfd ready = {.fd = fd,
                               .events = (short)((to_send ? POLLOUT : 0) | (to_receive ? POLLIN : 0))};
        if (poll(&ready, 1, -1) < 0) continue;
        if (to_send && ready.revents & POLLOUT) {
            const ssize_t sent = send(fd, out, to_send, MSG_NOSIGNAL);
            if (sent > 0) out += sent, to_send -= (size_t)sent;
            if (sent < 0 && errno != EAGAIN && errno != EINTR) comm_end_broken(comm, peer);
        }
        if (to_receive && ready.revents & (POLLIN | POLLHUP | POLLERR)) {
            const ssize_t got = recv(fd, in, to_receive, 0);
            if (got > 0) in += got, to_receive -= (size_t)got;
            if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) comm_end_broken(comm, peer);
        }
    }
}

static void finish(struct comm *comm, bool well) {
    int *pair = comm->state;
    (void)well;
    for (int r = 0; pair && r < comm->size; r++)
        if (pair[r] >= 0) close(pair[r]);
    free(pair);
}

const struct comm_driver comm_tcp = {.name = "tcp",
                                     .probe = probe,
                                     .start = start,
                                     .announce = announce,
                                     .connect = connect_all,
                                     .exchange = exchange,
                                     .finish = finish};
