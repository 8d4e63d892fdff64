/* Does a backend train as float64 on one thread does? The loss curve of its first steps against that of the
   serial backend in float64, and, step by step, every tensor. */
#ifndef TESSERA_BENCH_AGREEMENT_H
#define TESSERA_BENCH_AGREEMENT_H

#include "src/bench/run.h"

/* The curve to agree with. */
struct agreement {
    struct config config; /* of the reference: float64, full precision, batches of at most 256 images */
    size_t steps, rows;
    double *losses; /* [steps] */
    double *single; /* [steps], in float32; part of the same memory */
    double growth;  /* how much further than usual this training carries rounding: tolerances grow with it */
};

/* Runs the reference: up to 50 steps, fewer where they would take more than 5e10 flop. Runs the same in
   float32, too: some trainings (a large learning rate) amplify any rounding, and how far float32 drifts on
   the reference loops says how much. Steps past a drift of 1e-5 are left out: agreement would prove nothing
   there. */
enum status agreement_open(struct agreement *agreement, const struct config *config,
                           const struct dataset_pair *data);
void agreement_close(struct agreement *agreement);

struct drift {
    double relative;  /* the largest of |loss - reference| / |reference| */
    size_t step;      /* where it is; 1 is the first */
    double tolerance; /* of the dtype and precision */
};

/* The same steps on `backend` as `config` says (engine, residency, dtype, precision). STATUS_VERIFY_FAILED,
   and `drift` filled, if the curve leaves the tolerance. Engine fused has to give the losses of eager with
   the true batches, too. */
enum status agreement_check(const struct agreement *agreement, const struct config *config,
                            const struct gemm_backend *backend, const struct dataset_pair *data,
                            struct drift *drift);

/* A tensor of a step. */
struct trace {
    bool drifts; /* past its tolerance; else it is the one that drifts most */
    size_t step, layer;
    const char *tensor; /* "output", "weight gradient", ... */
    double relative;    /* |x - reference| / |reference|, Frobenius norms */
    double tolerance;
};

/* Runs both in lockstep, op by op, and finds the first tensor, in the order of computing, that drifts past
   its tolerance. */
enum status agreement_trace(const struct agreement *agreement, const struct config *config,
                            const struct gemm_backend *backend, const struct dataset_pair *data,
                            struct trace *trace);

/* The relative difference that rounding may cause in a loss of these steps. */
double agreement_tolerance(const struct agreement *agreement, enum gemm_dtype dtype,
                           enum gemm_precision precision);

#endif
