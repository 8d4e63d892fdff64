/* Does a backend train as float64 on the reference loops does? Compares the first steps of both, each from
   the same state; for a trace, every tensor of each step. */
#ifndef TESSERA_BENCH_AGREEMENT_H
#define TESSERA_BENCH_AGREEMENT_H

#include "src/bench/run.h"
#include "src/nn/lockstep.h"

/* What is compared. */
struct agreement {
    struct config config; /* of the reference: float64, full precision, batches of at most 256 images */
    size_t steps, rows;
};

/* Up to 16 steps, fewer if they exceed 1e10 flop. */
void agreement_plan(struct agreement *agreement, const struct config *config,
                    const struct dataset_pair *data);

struct drift {
    double relative;  /* the largest of |loss - reference| / max(1, |reference|) */
    size_t step;      /* of that loss, or the step that is wrong; 1 is the first; 0: none was compared */
    double tolerance; /* of the dtype and precision */
};

/* Runs the steps on `backend` with the engine, residency, dtype and precision of `config`, in lockstep with
   the reference. STATUS_VERIFY_FAILED, with `drift` filled, if a loss or an update is wrong, or if engine
   fused differs from eager on batches of the configured size. */
enum status agreement_check(const struct agreement *agreement, const struct config *config,
                            const struct gemm_backend *backend, const struct dataset_pair *data,
                            struct drift *drift);

/* The tensor that a trace found. */
struct trace {
    bool drifts; /* past its tolerance; false: no tensor is, and this one drifts most */
    size_t step, layer;
    const char *tensor; /* "output", "weight gradient", ... */
    double relative;    /* |x - reference| / |reference|, Frobenius norms */
    double tolerance;
};

/* Runs reference and backend in lockstep, op by op, and finds the first tensor, in the order of
   computation, that drifts past its tolerance. */
enum status agreement_trace(const struct agreement *agreement, const struct config *config,
                            const struct gemm_backend *backend, const struct dataset_pair *data,
                            struct trace *trace);

/* A backend in a training of its own. */
struct agreement_side {
    struct config config;
    struct compute compute;
    struct trainer trainer;
};

/* Opens it with `config`, without files, at the start of the first epoch. Close it in any case. */
enum status agreement_open_side(struct agreement_side *side, const struct config *config,
                                const struct gemm_backend *backend, const struct dataset_pair *data);
/* The same with the reference loops. */
enum status agreement_open_reference(struct agreement_side *side, const struct config *config,
                                     const struct dataset_pair *data);
void agreement_close_side(struct agreement_side *side);

#endif
