/* Sums over blocks in one launch and in a fixed order: each block writes its partial result to scratch
   memory, and the last block of a group to finish adds them in block order. No float atomics: the same input
   gives the same bits. Also sums over lanes. */
#ifndef TESSERA_KERNELS_CUDA_OPS_REDUCE_CUH
#define TESSERA_KERNELS_CUDA_OPS_REDUCE_CUH

#include "kernels/cuda/fault.cuh"

struct cuda_reduction {
    void *scratch;     /* REDUCTION_BYTES of partial results */
    unsigned *tickets; /* REDUCTION_GROUPS counters, zero between launches */
};

static const size_t REDUCTION_BYTES = (size_t)8 << 20;
static const unsigned REDUCTION_GROUPS = 4096;

static inline bool reduction_open(struct cuda_reduction *reduction, struct cuda_fault *fault) {
    const size_t bytes = REDUCTION_GROUPS * sizeof *reduction->tickets;
    return CUDA_TRY(fault, cudaMalloc(&reduction->scratch, REDUCTION_BYTES)) &&
           CUDA_TRY(fault, cudaMalloc((void **)&reduction->tickets, bytes)) &&
           CUDA_TRY(fault, cudaMemset(reduction->tickets, 0, bytes)) &&
           CUDA_TRY(fault, cudaDeviceSynchronize()); /* before a kernel on any stream */
}

static inline void reduction_close(struct cuda_reduction *reduction) {
    cudaFree(reduction->scratch);
    cudaFree(reduction->tickets);
}

#ifdef __CUDACC__
/* Adds the N values of two lanes `offset` apart. The `upper` lane keeps the second half of the sums, the
   other one the first half, both in values[0 .. N / 2 - 1]. */
template <int N, typename T, int M> __device__ inline void halve(T (&values)[M], bool upper, int offset) {
#    pragma unroll
    for (int i = 0; i < N / 2; i++) {
        const T own = upper ? values[i + N / 2] : values[i], sent = upper ? values[i] : values[i + N / 2];
        values[i] = own + __shfl_xor_sync(0xffffffffu, sent, offset);
    }
}

/* Is this the last of `blocks` blocks to call? If so, all their earlier writes are visible (read them with
   __ldcg). All threads call it. */
__device__ static inline bool last_block(unsigned *ticket, unsigned blocks) {
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0 && threadIdx.y == 0) {
        last = atomicAdd(ticket, 1u) == blocks - 1;
        if (last) *ticket = 0; /* ready for the next launch */
    }
    __syncthreads();
    if (last) __threadfence();
    return last;
}

/* partial[0] + partial[step] + ... , `count` of them, in order; the reads overlap. */
template <typename R> __device__ R sum_of_chunks(const R *partial, unsigned count, size_t step) {
    R total = 0;
    unsigned chunk = 0;
    for (; chunk + 16 <= count; chunk += 16) {
        R some[16];
#    pragma unroll
        for (int i = 0; i < 16; i++) some[i] = __ldcg(&partial[(chunk + i) * step]);
#    pragma unroll
        for (int i = 0; i < 16; i++) total += some[i];
    }
    for (; chunk < count; chunk++) total += __ldcg(&partial[chunk * step]);
    return total;
}
#endif

#endif
