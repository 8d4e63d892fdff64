/* The steady state: what many equal calls leave behind. */
#include "src/backend/surroundings.h"
#include "src/backend/verify.h"
#include "src/base/progress.h"

static enum status repeat(struct compute *compute, const struct gemm_call *call, size_t times) {
    enum status status = STATUS_OK;
    for (size_t i = 0; i < times && !status; i++) status = compute_gemm(compute, call);
    return status ? status : compute->device.driver->synchronize(&compute->device);
}

/* What is left behind in both halves is left behind by each call. */
static enum status check_steady(struct compute *compute, const struct gemm_call *call) {
    enum { HALF = 1000, TO_START = 200, BYTES = 16 /* a call: less than malloc takes for a byte */ };
    bool threads = true, memory = compute->device.driver->host_memory;
    enum status status = repeat(compute, call, TO_START);
    for (int half = 0; half < 2 && !status; half++) {
        struct surroundings before, after;
        surroundings_observe(&before);
        const size_t bytes = surroundings_memory();
        status = repeat(compute, call, HALF);
        surroundings_observe(&after);
        threads = threads && after.threads >= before.threads + HALF / 2;
        memory = memory && surroundings_memory() >= bytes + (size_t)HALF * BYTES;
    }
    if (status || (!threads && !memory)) return status;
    return status_set(STATUS_VERIFY_FAILED, "backend '%s' is wrong: %s: %s", compute->backend->name,
                      progress_text(),
                      threads ? "it starts threads in every call and leaves them"
                              : "it takes memory in every call and keeps it");
}

enum status verify_steady(struct compute *compute) {
    enum { SIZE = 24 };
    const struct device_driver *driver = compute->device.driver;
    struct gemm_call call = {
        .m = SIZE, .n = SIZE, .k = SIZE, .lda = SIZE, .ldb = SIZE, .ldc = SIZE, .alpha = 1};
    while (call.dtype + 1 < DTYPES && !compute->backend->supports(call.dtype, call.op)) call.dtype++;
    if (!compute->backend->supports(call.dtype, call.op)) return STATUS_OK;
    const size_t size = SIZE * SIZE * sizeof(double);
    char *memory = driver->alloc(&compute->device, 3 * size);
    if (!memory) return STATUS_FAILED;
    call.a = memory;
    call.b = memory + size;
    call.c = memory + 2 * size;
    progress_set("%s NN m=n=k=%d, 2,000 times", dtype_name(call.dtype), SIZE);
    const enum status status = check_steady(compute, &call);
    driver->free(&compute->device, memory);
    return status;
}
