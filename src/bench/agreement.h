/* Does a backend train as float64 on the reference loops does? Compares the losses of the first steps and,
   for a trace, every tensor of each step. */
#ifndef TESSERA_BENCH_AGREEMENT_H
#define TESSERA_BENCH_AGREEMENT_H

#include "src/bench/run.h"

/* The reference curve. */
struct agreement {
    struct config config; /* of the reference: float64, full precision, batches of at most 256 images */
    size_t steps, rows;
    double *losses; /* [steps] */
    double *single; /* [steps], in float32; in the same allocation */
    double growth;  /* how much more than usual this training amplifies rounding: scales the tolerances */
};

/* Runs the reference: up to 50 steps, fewer if they exceed 5e10 flop. Runs it in float32 as well: its drift
   shows how much this training (with a large learning rate, say) amplifies rounding. Steps past a drift of
   1e-5 are cut: agreement would prove nothing there. */
enum status agreement_open(struct agreement *agreement, const struct config *config,
                           const struct dataset_pair *data);
void agreement_close(struct agreement *agreement);

struct drift {
    double relative;  /* the largest of |loss - reference| / |reference| */
    size_t step;      /* of that loss; 1 is the first */
    double tolerance; /* of the dtype and precision */
};

/* Runs the same steps on `backend` with the engine, residency, dtype and precision of `config`.
   STATUS_VERIFY_FAILED, with `drift` filled, if the curve leaves the tolerance, or if the losses of engine
   fused differ from those of eager on batches of the configured size. */
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

/* The relative difference that rounding may cause in a loss of these steps. */
double agreement_tolerance(const struct agreement *agreement, enum gemm_dtype dtype,
                           enum gemm_precision precision);

#endif
