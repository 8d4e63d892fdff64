/* Layer 1 in int8, for forms that keep the pixels of a batch as bytes in shared memory: the pitch of the
   pixels, what lanes hold, and largest magnitudes. The products are in int8_wgmma.cuh. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_INT8_LAYER1_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_INT8_LAYER1_CUH

#include "kernels/cuda/persistent/int8_slices.cuh"
#include "kernels/cuda/persistent/byte_pixels.cuh"

namespace persistent {

/* Bytes between rows of pixels in shared memory: an odd number of packs, against bank conflicts. */
__host__ __device__ inline int pixel_pitch(int packs) {
    return PIXELS * (packs | 1);
}

/* --- lanes --- */

/* The first of the two units that this lane holds of a product. */
__device__ inline int lane_unit() {
    return threadIdx.x % 4 * 2;
}

__device__ inline uint32_t magnitude(float value) { /* as bits: NaN is the largest */
    return __float_as_uint(value) & 0x7fffffffu;
}

/* Maximum over the warp of the magnitudes of each lane's two units, combined into those of the block. */
__device__ inline void atomic_column_max(uint32_t first, uint32_t second, uint32_t *column_max) {
    uint32_t most[2] = {first, second};
#pragma unroll
    for (int u = 0; u < 2; u++) {
#pragma unroll
        for (int offset = 4; offset < 32; offset *= 2)
            most[u] = max(most[u], __shfl_xor_sync(0xffffffffu, most[u], offset));
        if (threadIdx.x % 32 < 4) atomicMax(column_max + lane_unit() + u, most[u]);
    }
}

} // namespace persistent

#endif
