/* One GEMM of one shape on one backend: verified, timed, verified again. Operands are dense, alpha is 1 and
   beta 0, as in training. */
#ifndef TESSERA_BENCH_PROBLEM_H
#define TESSERA_BENCH_PROBLEM_H

#include "src/backend/compute.h"

struct gemm_shape {
    enum gemm_op op;
    size_t m, n, k;
    bool pixels;     /* reals of A are n / 255, as the inputs of a network; else in [-1, 1) */
    char what[48];   /* "square", "layer 1" ... */
    char config[64]; /* of a training shape: the config's name; else "" */
};

enum { PROBLEM_A, PROBLEM_B, PROBLEM_C, PROBLEM_GUARD = 256 /* bytes on both sides of C */ };

/* Inputs of a verification. One kind is used before timing and the other after it, so that each
   backend is tested with both, and with new inputs. */
enum problem_inputs { PROBLEM_REALS, PROBLEM_INTEGERS };

/* Several copies of the operands, used cyclically, so that no cache holds them from one call to the next. */
struct problem {
    struct compute *compute;
    struct gemm_call call; /* without the pointers */
    struct gemm_shape shape;
    enum problem_inputs inputs;        /* of the last fill */
    size_t copies, bytes[3], pitch[3]; /* of A, B, C; pitch: from one copy to the next */
    void *host[3];                     /* one copy, C with its guards */
    void *device[3];                   /* all copies */
    size_t next;                       /* the copy of the next call */
    uint64_t random;                   /* of secret.h: which operands change during a timing */
    double relative_error;             /* of the last check of signed reals, oracle_relative_error */
};

/* The copies fill at least `rotate` bytes; there are at least two, unless it is 0, and at most 4,096. The
   backend must support dtype and op. STATUS_FAILED if memory ran out. */
enum status problem_open(struct problem *problem, struct compute *compute, enum gemm_dtype dtype,
                         const struct gemm_shape *shape, size_t rotate);
void problem_close(struct problem *problem);

/* PROBLEM_A, _B or _C of a copy, in device memory. */
void *problem_at(const struct problem *problem, int matrix, size_t copy);
/* Multiplies the next copy; asynchronous on a GPU. */
enum status problem_call(struct problem *problem);

/* Fills the operands from `seed` and C with NaN, multiplies each copy once (none starts after 0.5 s)
   and checks:
   - small integers, exact in every dtype and order: C x = A (B x) for a random integer vector x without
     zeros, so that a single wrong element always shows (Freivalds, "Probabilistic machines can use less
     running time", 1977);
   - signed reals: the elements of up to 16 rows, the last among them, against the float64 oracle;
   - operands of 16 bits, whose C is float32, again with such a C where training has that (NN and NT):
     integers yield the exact C rounded once, reals are within one more rounding of the oracle;
   - all copies have the same bits, and nothing outside C was written.
   STATUS_VERIFY_FAILED names what is wrong. Afterwards C is undefined. */
enum status problem_verify(struct problem *problem, enum problem_inputs inputs, uint64_t seed);

/* Multiplies one copy of ones, but for a zero column of op(A), where a random element of that row of op(B) is
   Inf or NaN, and the reverse: a row and a column of C must be NaN, and no other element. Afterwards all
   operands are undefined. */
enum status problem_verify_special(struct problem *problem);

/* STATUS_VERIFY_FAILED: the backend and the product, then `what`. */
enum status problem_wrong(const struct problem *problem, const char *what);

/* Mean seconds of `calls` consecutive calls, by the clock of the device. A random element of A and of B
   changes before each call (on a GPU: before the first), and after the clock has stopped the changed row and
   a random one of the last C are checked: STATUS_VERIFY_FAILED if the call was skipped, or computed from
   older operands. */
enum status problem_time(struct problem *problem, size_t calls, double *seconds);

/* Compares two rows of the C of a copy with the oracle, for the operands as they are in device memory. */
enum status problem_check(struct problem *problem, size_t copy, size_t row, size_t other);

/* One of the 256 values that pixels have in float32. */
double problem_pixel(uint64_t random);

/* Changes an element of A and one of B of a copy to integers, that of A to a pixel if it was filled with
   pixels; returns the row of op(A). */
size_t problem_change(struct problem *problem, size_t copy);

/* New integers as operands of all copies, and NaN in each C. Then multiplies the copy of the last call again,
   and once more with one changed element: wrong if the backend keeps operands or results by their address. */
enum status problem_renew(struct problem *problem, uint64_t seed);

/* After problem_renew, and `calls` calls since: C x = A (B x) for each copy that they computed, the last one
   first; none is checked after 0.03 s. */
enum status problem_check_all(struct problem *problem, size_t calls);

/* Seconds to copy A and B to the device and C back, in pageable memory: medians of seven after a warm-up. */
enum status problem_transfers(struct problem *problem, double *h2d, double *d2h);

double problem_flops(const struct problem *problem);
/* A, B and C once each: the compulsory traffic. */
double problem_bytes(const struct problem *problem);

#endif
