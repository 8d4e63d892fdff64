/* Checks a secret random sample of the real calls of a training, right after each of them.

   Verification runs on the verifier's own operands, so a backend that is right for these and wrong for others
   passes it. An audited call is a call of the training itself, on its operands and shapes: which calls these
   are is drawn from the operating system's random numbers. If one call in f is wrong, n audited calls find
   that with probability 1 - (1 - 1/f)^n. */
#ifndef TESSERA_BACKEND_AUDIT_H
#define TESSERA_BACKEND_AUDIT_H

#include "src/backend/compute.h"

enum audit_mode { AUDIT_SAMPLE, AUDIT_ALL, AUDIT_OFF };

struct audit {
    enum audit_mode mode;
    uint64_t calls, checked;
    /* private */
    uint64_t next;         /* the call that is audited next; 1 is the first */
    double started, spent; /* seconds: of the clock, and in audits */
    uint64_t random;       /* state of the generator */
    unsigned grown;        /* consecutive audited calls that left a thread behind */
};

/* Starts with no calls. */
void audit_start(struct audit *audit, enum audit_mode mode);

/* 64 secret random bits. */
uint64_t audit_draw(struct audit *audit);

/* Seconds since audit_start. */
double audit_elapsed(const struct audit *audit);

/* May another audit take so many seconds, so that all take at most 0.5 % of the time since audit_start? */
bool audit_affords(const struct audit *audit, double seconds);

/* From audit_pause to audit_resume all time counts as PART_AUDIT, also inside an evaluation. Both wait for
   the device. */
struct audit_pause {
    bool diverted;
    enum profile_part divert;
};
struct audit_pause audit_pause(struct compute *compute);
void audit_resume(struct compute *compute, struct audit_pause pause);

/* Counts a call; is it to be audited? */
bool audit_due(struct audit *audit, const struct gemm_call *call);

/* Runs the call through `run` and checks:
   - A and B, what the epilogue reads, and the bytes between the rows of C are as before;
   - four random rows and four random columns of C are within the oracle's bound;
   - without an epilogue, C x = op(A) (op(B) x) for a random x of -1 and 1, within the bound of a sum
     (Freivalds);
   - with a backward epilogue, the gradient of the bias is the sum of the columns;
   - rounding mode, locale, working directory and CPU affinity of this thread are as before, and the calls do
     not leave more and more threads.
   On the host, half of the calls with beta = 0 are checked without a copy from before, so that no pause tells
   the backend that this call will be; their operands and surroundings are not compared.
   The time counts as PART_AUDIT; on a GPU, that of the call as well. STATUS_VERIFY_FAILED says what is
   wrong. */
enum status audit_call(struct audit *audit, struct compute *compute, const struct gemm_call *call,
                       enum status (*run)(struct compute *compute, const struct gemm_call *call));

#endif
