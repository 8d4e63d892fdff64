/* A ring buffer in shared memory: the copy engine fills its stages, and warps read them in the same order.
   Use u of the ring is stage u % DEPTH, for u = 0, 1, ... Needs compute capability 9.0. */
#ifndef TESSERA_KERNELS_CUDA_TENSOR_STAGE_RING_CUH
#define TESSERA_KERNELS_CUDA_TENSOR_STAGE_RING_CUH

#include "kernels/cuda/tensor/bulk_copy.cuh"

template <int BYTES, int DEPTH> struct stage_ring {
    static constexpr int STAGES_BYTES = BYTES * DEPTH, BARRIERS_BYTES = 2 * DEPTH * (int)sizeof(uint64_t);

    char *at;
    uint64_t *full, *empty; /* barriers: a stage was copied; all warps have read it */

    __device__ stage_ring(char *stages, char *barriers) : at(stages), full((uint64_t *)barriers) {
        empty = full + DEPTH;
    }

    /* One thread; a barrier of the block follows. `warps` read each stage. */
    __device__ void open(unsigned warps) const {
        for (int i = 0; i < DEPTH; i++) {
            mbarrier_init(full + i);
            mbarrier_init(empty + i, warps);
        }
    }

    /* One thread: copies the stage of a use as soon as there is room. */
    __device__ void fill(unsigned use, const void *from) const {
        const unsigned place = use % DEPTH;
        if (use >= DEPTH) mbarrier_wait_alone(empty + place, use / DEPTH - 1);
        mbarrier_expect_tx(full + place, BYTES);
        bulk_copy(at + place * BYTES, from, BYTES, full + place);
    }

    /* All lanes of a warp: waits for the stage of a use. */
    __device__ const char *wait(unsigned use) const {
        mbarrier_wait(full + use % DEPTH, use / DEPTH);
        return at + use % DEPTH * BYTES;
    }

    /* All lanes of a warp: it has read the stage of a use. */
    __device__ void release(unsigned use) const {
        if (threadIdx.x % 32 == 0) mbarrier_arrive(empty + use % DEPTH);
    }
};

#endif
