/* NCCL, which sums tensors of GPUs: loaded when it is needed, so that the program runs and is built without
   it. */
#ifndef TESSERA_COMM_NCCL_H
#define TESSERA_COMM_NCCL_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/gemm.h"
#include "src/base/status.h"

/* By which the ranks of a job find each other: made by rank 0. */
struct nccl_id {
    char bytes[128];
};

struct nccl;

/* Loads the library (libnccl.so.2) into *nccl; before its first call nccl_free. NULL with a message if it
   cannot be loaded. */
struct nccl *nccl_new(void);
void nccl_free(struct nccl *nccl);

/* "NCCL 2.28.9" */
void nccl_describe(const struct nccl *nccl, char *text, size_t size);

enum status nccl_make_id(struct nccl *nccl, struct nccl_id *id);

/* Connects the current GPU of this process with those of the others; all ranks call it. It may take `limit`
   seconds (0: for ever): then nccl_failed says so. */
enum status nccl_connect(struct nccl *nccl, const struct nccl_id *id, int rank, int size, double limit);

/* Sums between begin and end are issued as one. */
void nccl_begin(struct nccl *nccl);
void nccl_end(struct nccl *nccl);

/* The first error of begin, end, nccl_sum and nccl_exchange since the last check. */
enum status nccl_check(struct nccl *nccl);

/* Issues on the stream, which a graph may capture: data[i] = the sum of data[i] of all ranks, in an order
   that NCCL chooses, but the same on all. */
void nccl_sum(struct nccl *nccl, void *data, size_t count, enum gemm_dtype dtype, void *stream);

/* Issues on the stream: sends bytes to `peer` and receives bytes from it. */
void nccl_exchange(struct nccl *nccl, int peer, const void *send, size_t send_bytes, void *receive,
                   size_t receive_bytes, void *stream);

/* For another thread: has the connection failed? If so, the reason goes to `why`. */
bool nccl_failed(struct nccl *nccl, char *why, size_t size);

/* For another thread: ends what waits for other ranks. */
void nccl_abort(struct nccl *nccl);

/* Ends the connection; all ranks call it, and none has failed. */
void nccl_close(struct nccl *nccl);

#endif
