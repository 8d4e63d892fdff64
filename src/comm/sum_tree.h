/* Sums over the ranks as one fixed tree, in host memory or on a GPU: ranks 2i and 2i + 1 first, then pairs of
   these, and so on. */
#ifndef TESSERA_COMM_SUM_TREE_H
#define TESSERA_COMM_SUM_TREE_H

#include <stddef.h>

/* How the ranks exchange elements and add them. */
struct sum_channel {
    void *self;
    size_t element; /* bytes of one */
    char *received; /* scratch for all elements and one more */

    /* Sends bytes to `peer` and receives bytes from it; either number may be 0. */
    void (*exchange)(void *self, int peer, const void *send, size_t send_bytes, void *receive,
                     size_t receive_bytes);

    /* into[i] += from[i] */
    void (*add)(void *self, void *into, const void *from, size_t count);
};

/* data[i] = the sum of data[i] of all ranks. Each rank sends and receives up to twice the bytes of `data`. */
void sum_tree(const struct sum_channel *channel, int rank, int size, void *data, size_t count);

#endif
