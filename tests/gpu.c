#include "tests/gpu.h"

#include <stdio.h>
#include <stdlib.h>

#include "tests/training_bench.h"

const char *const gpu_backends[GPU_BACKENDS] = {"cuda-naive", "cuda-coalesced", "cuda-shmem",
                                                "cuda-order", "cuda-tuned",     "cublas"};

void gpu_needed(void) {
    const struct gemm_backend *backend;
    if (registry_find("cuda-tuned", &backend) == STATUS_OK) return;
    print_message("skipped: no GPU: %s\n", status_message());
    skip();
}

/* The tools of compute-sanitizer take what kernels in the body of a WHILE node read for errors: with
   TESSERA_TEST_NO_WHILE set, iterations that need one (kernels/cuda/cluster/loop.cu) go step by step. */
static const struct gemm_nearest *nearest;

static size_t lloyd_without_while(void *state, const struct nearest_lloyd *run,
                                  struct nearest_iteration *record) {
    const struct cluster_sums *sums = run->sums;
    const bool one_launch = run->rows->bytes && sums->clusters <= 64 && sums->features % 16 == 0;
    return one_launch ? nearest->lloyd(state, run, record) : 0;
}

static void avoid_while(struct compute *compute) {
    static struct gemm_backend backend;
    static struct gemm_nearest slot;
    if (!getenv("TESSERA_TEST_NO_WHILE") || !compute->backend->nearest || !compute->backend->nearest->lloyd)
        return;
    assert_true(!nearest || nearest == compute->backend->nearest); /* one backend has it */
    nearest = compute->backend->nearest;
    slot = *nearest;
    slot.lloyd = lloyd_without_while;
    backend = *compute->backend;
    backend.nearest = &slot;
    compute->backend = &backend;
}

void gpu_open(struct compute *compute, const char *name, const struct compute_options *options) {
    const struct gemm_backend *backend;
    gpu_needed();
    assert_status(registry_find(name, &backend), STATUS_OK);
    assert_status(compute_open(compute, backend, options), STATUS_OK);
    avoid_while(compute);
}

void gpu_tensor_needed(void) {
    enum { SIDE = 2048 };
    struct compute compute;
    const struct gemm_call call = {.dtype = GEMM_F32,
                                   .m = SIDE,
                                   .n = SIDE,
                                   .k = SIDE,
                                   .alpha = 1,
                                   .lda = SIDE,
                                   .ldb = SIDE,
                                   .ldc = SIDE};
    gpu_open(&compute, "cuda-tuned", &(struct compute_options){.threads = 2, .options = "tensor=always"});
    const size_t kernels = compute_kernels(&compute, &call, &(struct gemm_kernel){0}, 1);
    compute_close(&compute);
    if (kernels > 0) return;
    print_message("skipped: this GPU is not of compute capability 9.0\n");
    skip();
}

void gpu_open_engine(struct bench *bench, const char *engine, const char *settings) {
    char all[512];
    gpu_needed();
    snprintf(all, sizeof all, "backend=cuda-tuned engine=%s log-steps=400 %s", engine, settings);
    bench_open(bench, all, NULL);
    assert_string_equal(bench->trainer.notice, "");
    assert_string_equal(bench->trainer.engine->name, engine);
}
