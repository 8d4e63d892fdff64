/* Takes 256 MiB for itself. */
#include "tests/plugins/reference.h"

#include <stdlib.h>
#include <time.h>

static void *create(const struct gemm_setup *setup, char *why, size_t size) {
    enum { BYTES = 1 << 28 };
    (void)setup, (void)why, (void)size;
    void *memory = malloc(BYTES);
    if (memory) memset(memory, 1, BYTES);
    nanosleep(&(struct timespec){.tv_sec = 1}, NULL); /* long enough to be seen */
    return memory;
}

static enum gemm_status right_gemm(void *context, const struct gemm_call *call) {
    (void)context;
    return reference_gemm(call);
}

static const struct gemm_backend backend = {
    .name = "takes-memory", REFERENCE_SLOTS, .gemm = right_gemm, .create = create, .destroy = free};
GEMM_PLUGIN(backend);
