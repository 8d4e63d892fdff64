/* ./train bench call: one product, for a profiler. */
#include <stdio.h>
#include <string.h>

#include "src/backend/registry.h"
#include "src/bench/sampler.h"
#include "src/cmd/bench_table.h"
#include "src/cmd/command.h"
#include "src/cmd/options.h"

/* Multiplies in the NVTX range COUNTERS_RANGE, on operands that are warmed up and verified. */
static enum status call(const struct config *config, const struct sampler_plan *plan) {
    const struct compute_options options = config_compute(config);
    const struct gemm_backend *backend;
    struct compute compute = {0};
    struct sampler sampler = {0};
    struct sampler_facts facts;
    enum status status = registry_find(config->backend, &backend);
    if (!status) status = compute_open(&compute, backend, &options);
    if (status) return status;
    status = sampler_open(&sampler, &compute, plan);
    if (!status) {
        device_range_begin(&compute.device, COUNTERS_RANGE);
        status = problem_call(&sampler.problem);
        const enum status finished = compute.device.driver->synchronize(&compute.device);
        device_range_end(&compute.device);
        if (!status) status = finished;
    }
    if (!status) status = sampler_finish(&sampler, &facts);
    if (!status)
        printf("%s: %s, one %s product of %s in the NVTX range '%s': right\n", compute.name,
               compute.description, gemm_op_name(plan->shape.op), dtype_name(plan->dtype), COUNTERS_RANGE);
    sampler_close(&sampler);
    compute_close(&compute);
    return status;
}

static enum status parse_plan(struct sampler_plan *plan, const char *dtype, const char *op, const char *size,
                              const char *operands) {
    size_t sides[3], count;
    int d = GEMM_F32, o = GEMM_NN;
    while (d < DTYPES && strcmp(dtype, dtype_name((enum gemm_dtype)d)) != 0) d++;
    while (o <= GEMM_NT && strcmp(op, gemm_op_name((enum gemm_op)o)) != 0) o++;
    const enum status status = bench_parse_list("size", size, 3, sides, &count);
    if (status) return status;
    if (d >= DTYPES)
        return status_set(STATUS_USAGE, "--dtype must be f32, f64, bf16 or fp16, not '%s'", dtype);
    if (o > GEMM_NT) return status_set(STATUS_USAGE, "--op must be NN, TN or NT, not '%s'", op);
    if (count != 3) return status_set(STATUS_USAGE, "--size needs m, n and k, as in 128,10,784");
    plan->dtype = (enum gemm_dtype)d;
    plan->shape = (struct gemm_shape){
        .op = (enum gemm_op)o, .m = sides[0], .n = sides[1], .k = sides[2], .what = "call"};
    return bench_parse_operands(operands, &plan->warm);
}

static enum status run_bench_call(int argc, char **argv) {
    static const char *const keys[] = {"backend", "threads", "precision", "device", NULL};
    const char *dtype = "f32", *op = "NN", *size = "1024,1024,1024", *operands = "cold";
    const struct option_extra extras[] = {
        {"dtype", "f32", "f32, f64, bf16, fp16 (operands; C is float32) [f32]", &dtype},
        {"op", "NN", "NN, TN or NT [NN]", &op},
        {"size", "M,N,K", "of the product [1024,1024,1024]", &size},
        BENCH_OPERANDS_FLAG(&operands),
    };
    const struct option_set set = {
        .usage = "bench call [--backend NAME] [--size M,N,K]",
        .details = "One product for a profiler: verified, warmed up, multiplied once in the NVTX range '" //
        COUNTERS_RANGE "', verified again.\n"
                   "  ncu --nvtx --nvtx-include " COUNTERS_RANGE
                   "/ ./train bench call --backend cuda-shmem --size 2048,2048,2048\n"
                   "  perf stat ./train bench call --backend tuned",
        .keys = keys,
        .extras = extras,
        .extra_count = sizeof extras / sizeof *extras,
    };
    struct config config;
    struct sampler_plan plan = {.calls = 1};
    bool help;
    enum status status = options_parse(&set, argc, argv, &config, &help);
    if (status || help) return status;
    config.residency = RESIDENCY_DEVICE;
    status = parse_plan(&plan, dtype, op, size, operands);
    return status ? status : call(&config, &plan);
}

const struct command bench_call = {"call", "one product, for a profiler", run_bench_call};
