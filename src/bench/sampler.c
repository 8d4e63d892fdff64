#include "src/bench/sampler.h"

#include "src/base/progress.h"
#include "src/base/secret.h"
#include "src/base/text.h"

enum { PROBE = 192 /* m = n = k */ };
static const double SAMPLE_SECONDS = 0.01; /* long enough that reading the clock costs nothing */
/* fresh operands: few enough to fill them anew for each sample, more than the caches of one core hold */
static const size_t LARGEST_ROTATION = (size_t)1 << 30, FRESH_ROTATION = (size_t)1 << 23;

static size_t rotation(struct compute *compute, const struct sampler_plan *plan) {
    const struct device_driver *driver = compute->device.driver;
    const size_t cache = driver->last_cache ? driver->last_cache(&compute->device) : 0;
    const size_t most = plan->warm ? 0 : plan->fresh ? FRESH_ROTATION : LARGEST_ROTATION;
    return 2 * cache < most ? 2 * cache : most;
}

/* Estimates the rate on a small product, so that the first shape does not take an hour. Its C counts as any
   other: the operands are new in one place of the same memory. */
static enum status probe(struct compute *compute, enum gemm_dtype dtype, enum gemm_op op, double *per_flop) {
    const struct gemm_shape small = {.op = op, .m = PROBE, .n = PROBE, .k = PROBE, .what = "probe"};
    struct problem problem;
    double seconds = 0, least = 0;
    enum status status = problem_open(&problem, compute, dtype, &small, 0);
    if (!status) status = problem_verify(&problem, PROBLEM_INTEGERS, secret_seed());
    /* the first call is cold, and threads of another team may still spin */
    for (int call = 0; call < 4 && !status; call++) {
        status = problem_time(&problem, 1, &seconds);
        if (call == 0 || seconds < least) least = seconds;
    }
    *per_flop = least / problem_flops(&problem);
    problem_close(&problem);
    return status;
}

static enum status check_limit(struct compute *compute, const struct sampler_plan *plan) {
    const struct gemm_shape *shape = &plan->shape;
    double per_flop = plan->seconds_per_flop;
    if (plan->limit_seconds <= 0) return STATUS_OK;
    const enum status status = per_flop > 0 ? STATUS_OK : probe(compute, plan->dtype, shape->op, &per_flop);
    const double flops = 2.0 * (double)shape->m * (double)shape->n * (double)shape->k,
                 predicted = per_flop * flops * (double)plan->calls;
    if (status || predicted <= plan->limit_seconds) return status;
    return status_set(STATUS_UNAVAILABLE, "would take about %s: --limit-seconds is %g",
                      text_seconds(predicted).text, plan->limit_seconds);
}

/* Only on the host, if the backend has no threads of its own, which would compete with the peak loop. */
static bool measures_peak(const struct compute *compute) {
    const struct gemm_backend *backend = compute->backend;
    const bool own_threads = backend->own_threads && backend->own_threads(compute->context);
    return backend->device == GEMM_ON_HOST && compute->device.driver->peak_now && !own_threads;
}

enum status sampler_open(struct sampler *sampler, struct compute *compute, const struct sampler_plan *plan) {
    const enum gemm_op op = plan->shape.op;
    *sampler = (struct sampler){0};
    progress_set("%s %s m=%zu n=%zu k=%zu", dtype_name(plan->dtype), gemm_op_name(op), plan->shape.m,
                 plan->shape.n, plan->shape.k);
    if (!compute->backend->supports(plan->dtype, op))
        return status_set(STATUS_UNAVAILABLE, "does not support %s %s", dtype_name(plan->dtype),
                          gemm_op_name(op));
    double seconds = 0;
    enum status status = check_limit(compute, plan);
    if (!status)
        status = problem_open(&sampler->problem, compute, plan->dtype, &plan->shape, rotation(compute, plan));
    if (!status) status = problem_verify_special(&sampler->problem);
    /* The timing is with reals: a kernel may take longer for them than for integers, and so does a GPU at its
       power limit. */
    if (!status) status = problem_verify(&sampler->problem, PROBLEM_REALS, secret_seed());
    if (!status) status = problem_time(&sampler->problem, 1, &seconds);
    if (status) return status;
    const double wanted = SAMPLE_SECONDS / (seconds > 1e-7 ? seconds : 1e-7);
    sampler->fresh = plan->fresh;
    sampler->calls = wanted < 1 ? 1 : (size_t)wanted + 1;
    sampler->has_peak = !gemm_is_16bit(plan->dtype) && compute->precision == GEMM_TRUE;
    sampler->peak_next = sampler->has_peak && measures_peak(compute);
    return problem_time(&sampler->problem, sampler->calls, &seconds); /* warm */
}

void sampler_close(struct sampler *sampler) {
    problem_close(&sampler->problem);
    *sampler = (struct sampler){0};
}

enum status sampler_take(struct sampler *sampler, double *seconds, double *peak) {
    struct device *device = &sampler->problem.compute->device;
    enum status status = sampler->fresh ? problem_renew(&sampler->problem, secret_seed()) : STATUS_OK;
    core_use_begin(&sampler->cores);
    if (!status) status = problem_time(&sampler->problem, sampler->calls, seconds);
    core_use_end(&sampler->cores);
    if (!status && sampler->fresh) status = problem_check_all(&sampler->problem, sampler->calls);
    if (status || !sampler->peak_next) return status;
    return device->driver->peak_now(device, sampler->problem.call.dtype, peak);
}

enum status sampler_count(struct sampler *sampler, struct counters *counters) {
    struct device *device = &sampler->problem.compute->device;
    struct cpu_counters running;
    enum status status = STATUS_OK;
    cpu_counters_start(&running, cpu_events, CPU_EVENTS);
    for (size_t c = 0; c < sampler->calls && !status; c++) status = problem_call(&sampler->problem);
    if (!status) status = device->driver->synchronize(device);
    cpu_counters_stop(&running, sampler->calls, counters);
    return status;
}

enum status sampler_finish(struct sampler *sampler, struct sampler_facts *facts) {
    struct problem *problem = &sampler->problem;
    *facts = (struct sampler_facts){.flops = problem_flops(problem), .bytes = problem_bytes(problem)};
    enum status status = core_use_check(&sampler->cores, problem->compute);
    if (!status) status = problem_verify(problem, PROBLEM_INTEGERS, secret_seed());
    facts->relative_error = problem->relative_error;
    if (!status && problem->compute->backend->device != GEMM_ON_HOST)
        status = problem_transfers(problem, &facts->h2d, &facts->d2h);
    if (!status)
        facts->kernels =
            compute_kernels(problem->compute, &problem->call, facts->kernel, SAMPLER_MOST_KERNELS);
    return status;
}
