/* The communicator seam: how several processes act as one. Each has a rank; a sum over the ranks is the same
   value on all of them, bit for bit. The trainer asks for sums and does not know who answers: MPI or sockets;
   for tensors of GPUs, NCCL.

   If a process ends, or does not answer for --comm-timeout seconds, all others end within that time, with
   one message that names it (watch.h). So sums return no status: one that cannot be done
   ends the process. */
#ifndef TESSERA_COMM_COMM_H
#define TESSERA_COMM_COMM_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

#include "kernels/gemm.h"
#include "src/base/status.h"
#include "src/comm/launch.h"
#include "src/comm/rendezvous.h"
#include "src/comm/watch.h"
#include "src/device/device.h"

/* With `fixed`, the gradients of so many shards of a batch are summed as a tree: the same bits for 1, 2 and 4
   processes. */
enum { COMM_SHARDS = 4 };

enum comm_choice { COMM_AUTO, COMM_NONE, COMM_MPI, COMM_TCP, COMM_NCCL };

/* NULL instead of one, or size 1: alone. */
struct comm {
    const struct comm_driver *driver; /* NULL: alone */
    int rank, size;
    bool fixed;
    bool local; /* all ranks are on one host */
    enum comm_choice choice;
    double timeout;        /* seconds; 0: none */
    char description[128]; /* "Open MPI v4.1.4", "sockets, rank 0 at 127.0.0.1" */
    char device_sums[192]; /* after comm_attach to a GPU: "NCCL 2.28.9", or another way and why; else "" */
    /* private */
    void *state; /* the driver's */
    struct rendezvous meeting;
    struct watch *watch;
    struct device_sums *on_device; /* after comm_attach to a GPU */
    void *scratch;                 /* [scratch_bytes], of sums */
    size_t scratch_bytes;
};

struct comm_driver {
    const char *name; /* "mpi", "tcp" */

    /* Usable here? If not, writes the reason (a phrase) to `why`. */
    bool (*probe)(const struct launch *launch, char *why, size_t size);

    /* Sets comm->local. Then rank 0 listens at *port, of which `announce` tells all ranks, with its address
       and, if there is a way, a number that no other job has (meeting.job). */
    enum status (*start)(struct comm *comm, const struct launch *launch);
    enum status (*announce)(struct comm *comm, const struct launch *launch, char *address, size_t size,
                            int *port);

    /* (optional) After the ranks have met (rendezvous.h), under the watch. */
    enum status (*connect)(struct comm *comm, double timeout);

    /* Sends bytes to `peer` and receives bytes from it. */
    void (*exchange)(struct comm *comm, int peer, const void *send, size_t send_bytes, void *receive,
                     size_t receive_bytes);

    /* (optional) data[i] = the sum of data[i] of all ranks, in any order. */
    void (*sum)(struct comm *comm, void *data, size_t count, enum gemm_dtype dtype);

    /* Frees the state. `well`: all ranks do so, and none has failed. */
    void (*finish)(struct comm *comm, bool well);
};

extern const struct comm_driver comm_tcp;
#ifdef HAVE_MPI
extern const struct comm_driver comm_mpi;
#endif

struct comm_options {
    enum comm_choice choice;
    bool fixed;
    double timeout; /* seconds; 0: waits for ever */
};

/* STATUS_UNAVAILABLE with the reason if the choice cannot be used here; STATUS_USAGE if `fixed` does not go
   with the number of processes; STATUS_FAILED if a rank does not come. */
enum status comm_open(struct comm *comm, const struct launch *launch, const struct comm_options *options);

/* This rank ends. If it failed (any status but STATUS_OK and STATUS_INTERRUPTED), rank 0 prints the status
   message and all other ranks end. Returns `status`, or that of another rank which failed. */
enum status comm_close(struct comm *comm, enum status status);

static inline int comm_size(const struct comm *comm) {
    return comm ? comm->size : 1;
}

static inline bool comm_is_fixed(const struct comm *comm) {
    return comm && comm->fixed;
}

/* data[i] = the sum of data[i] of all ranks: f32 or f64, in host memory. With comm->fixed, as a tree:
   ranks 2i and 2i + 1 first. */
void comm_sum(struct comm *comm, void *data, size_t count, enum gemm_dtype dtype);

/* The tensors of comm_sum_begin are those of `device` from now on. If it is a GPU, NCCL sums them; where it
   cannot (two ranks share a GPU, a rank does not have it) or with the choices mpi and tcp, they are copied
   to the host and back. All ranks call it. STATUS_UNAVAILABLE with the choice nccl if NCCL cannot. */
enum status comm_attach(struct comm *comm, struct device *device);
void comm_detach(struct comm *comm); /* before the device is closed */

struct comm_tensor {
    void *data; /* of the device */
    size_t count;
    enum gemm_dtype dtype; /* f32 or f64 */
};

/* As comm_sum, for several tensors of the device, as they are after the work issued so far. With NCCL the
   sums are issued on a stream aside, and overlap with what is issued until comm_sum_join, after which later
   work waits for them; else they are done. The first sum of a size may allocate. */
enum status comm_sum_begin(struct comm *comm, const struct comm_tensor *tensors, size_t count);
void comm_sum_join(struct comm *comm);
/* Sums have begun on a stream aside, and are not joined. */
bool comm_sums_aside(const struct comm *comm);

/* May a captured graph have these sums? If not, the reason is in `why`. */
bool comm_captures(const struct comm *comm, char *why, size_t size);

/* all[r] = the `bytes` at `mine` of rank r. No rank returns before all have come. */
void comm_gather(struct comm *comm, const void *mine, void *all, size_t bytes);

/* Bytes from one rank to another, which calls comm_receive. */
void comm_send(struct comm *comm, int to, const void *data, size_t bytes);
void comm_receive(struct comm *comm, int from, void *data, size_t bytes);

/* From now on, if *stop is set on one rank, it is soon set on all. */
void comm_share_stop(struct comm *comm, volatile sig_atomic_t *stop);

/* into[i] += from[i] */
void comm_add(void *into, const void *from, size_t count, enum gemm_dtype dtype);

/* The items [*first, *end) of `count` that are part `part` of `parts`: cut at multiples of 8, of about equal
   size. */
void comm_share(size_t count, int part, int parts, size_t *first, size_t *end);

/* For drivers: the connection to this rank is broken. Ends the process: the watch does it if it knows why,
   within the timeout; else, or at once if the watch knows that the rank has ended well, with a message. */
_Noreturn void comm_end_broken(struct comm *comm, int peer);

#endif
