/* The triangle of the last rows of a stream, which enter in blocks of one size: of a sliding window, of all
   rows, or of all with exponential forgetting.

   A window is a queue of blocks in two stacks, as in the aggregation of sliding windows (Tangwongsan,
   Hirzel and Schneider 2015, PVLDB 8): `front` has the triangles of the oldest blocks, each of a block and
   all younger ones of the stack, and `back` that of the blocks which entered since. The oldest block leaves
   as the top of `front`; when that is empty, the blocks of `back` enter it anew, the youngest first. So
   each row enters two triangles, whatever the size of the window, and nothing is ever subtracted from a
   triangle. */
#ifndef TESSERA_WINDOW_SLIDING_H
#define TESSERA_WINDOW_SLIDING_H

#include "src/window/readout.h"

/* The last blocks of the stream: block k is at row (k % blocks) rows of `values`. */
struct sliding_history {
    struct qr_matrix values; /* [blocks rows], as of readout_rows; not changed */
    size_t blocks, rows;     /* in memory; rows of a block, at most those of the readout */
};

struct sliding {
    struct readout *readout;
    const struct sliding_history *history;
    size_t blocks;     /* of the window; 0: all blocks */
    double forgetting; /* factor of the squared error of an image for each one after it; 1: none */
    double ridge;
    size_t entered;     /* blocks so far */
    size_t front_count; /* blocks in `front` */
    struct qr_matrix
        front; /* [blocks - 1]: the triangle number k has the youngest k + 1 blocks of the stack */
    struct qr_matrix back, work;
};

/* A window of at most history->blocks blocks, or 0. Call sliding_close also after a failure. */
enum status sliding_open(struct sliding *sliding, struct readout *readout,
                         const struct sliding_history *history, size_t blocks, double forgetting,
                         double ridge);
void sliding_close(struct sliding *sliding);

/* The next block of the history enters, and the oldest one leaves if the window is full. */
enum status sliding_enter(struct sliding *sliding);

/* w (device, [n][classes]) = the readout of the window, with the ridge. As readout_solve. */
enum status sliding_solve(struct sliding *sliding, void *w, bool *finite);

#endif
