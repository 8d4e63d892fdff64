/* How the ranks of a job find each other: all connect to rank 0, which tells them where the others listen. A
   stranger at the port, and a rank of another job, is turned away. IPv4 and IPv6. */
#ifndef TESSERA_COMM_RENDEZVOUS_H
#define TESSERA_COMM_RENDEZVOUS_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/base/status.h"

/* If the port of rank 0 is taken, such as by the store of torchrun, it is the next of so many that is
   free. */
enum { RENDEZVOUS_PORTS = 16 };

struct rendezvous {
    int rank, size, port; /* the port of rank 0, in the end */
    uint64_t job;
    int listener; /* of this rank, where ranks above connect */
    int *link;    /* [size]: rank 0 has a connection to every other rank, these have link[0] */
    struct sockaddr_in6 *listens; /* [size]: at which each rank listens */
};

/* Allocates what belongs to it; its rank, size and job are set. */
enum status rendezvous_open(struct rendezvous *rendezvous);

/* Listens at `port`, or on rank 0 at one of the next, or with 0 at any. `local`: only for this host. */
enum status rendezvous_listen(struct rendezvous *rendezvous, int port, bool local);
void rendezvous_stop_listening(struct rendezvous *rendezvous);

/* Waits until all ranks have come; on the others, until rank 0, listening at one of `ports` ports from
   rendezvous->port on, has answered. `seconds`: how long; 0: for ever. STATUS_FAILED names the ranks that
   have not come. */
enum status rendezvous_wait(struct rendezvous *rendezvous, double seconds);
enum status rendezvous_join(struct rendezvous *rendezvous, const char *address, int ports, double seconds);

/* One more connection for each pair of ranks: [size], the caller's, -1 for the rank itself. NULL with a
   message if a rank cannot be reached. */
int *rendezvous_connect_all(struct rendezvous *rendezvous, double seconds);

void rendezvous_close(struct rendezvous *rendezvous);

#endif
