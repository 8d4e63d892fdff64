#include "kernels/cuda/cluster/pixels_wgmma.cuh"

#include <cuda_pipeline_primitives.h>

#include "kernels/cuda/tensor/wgmma.cuh"

namespace pixels {

static const int GROUPS = 2; /* warpgroups of a block */
static const int M = 64 * GROUPS, N = 128, THREADS = 128 * GROUPS;
static const int WGMMA_STAGE = 2 * N * CHUNK, DEPTH = 6; /* bytes, and stages of the ring buffer */
static const int ROWS_AT = DEPTH * WGMMA_STAGE;          /* in shared memory, after the ring buffer */

static __host__ __device__ size_t barriers_at(unsigned chunks) {
    return ROWS_AT + (size_t)chunks * M * CHUNK;
}

static size_t bytes_for(unsigned chunks) {
    return barriers_at(chunks) + DEPTH * sizeof(uint64_t);
}

struct wgmma_body {
    const pass &p;
    char *shared;
    uint64_t *full;
    const unsigned stages, last; /* of the centres; that this block uses in all */
    unsigned use;                /* of the ring buffer, counted over all tiles */
    const int lane, warp;

    __device__ wgmma_body(const pass &all, char *memory, unsigned row_tiles)
        : p(all), shared(memory), stages(all.tiles * all.chunks), last(row_tiles * stages), use(0),
          lane(threadIdx.x % 32), warp(threadIdx.x / 32) {
        full = (uint64_t *)(shared + barriers_at(p.chunks));
        if (threadIdx.x == 0)
            for (int i = 0; i < DEPTH; i++) mbarrier_init(full + i);
        __syncthreads();
        for (unsigned s = 0; s < DEPTH; s++) load_stage(s);
    }

    /* Copies rows to shared memory, in the layout of wgmma; what is beyond the last row or pixel is not used,
       or multiplied by 0. */
    __device__ void load_rows(size_t first, unsigned count) const {
        const unsigned units = p.features / 16;
        const uint8_t *from = p.x + first * p.features;
        for (unsigned i = threadIdx.x; i < count * units; i += THREADS) {
            const unsigned row = i / units, unit = i % units;
            char *to = shared + ROWS_AT + (unit / 4 * M + row) * CHUNK + ((unit ^ row >> 1) & 3) * 16;
            __pipeline_memcpy_async(to, from + (size_t)i * 16, 16);
        }
        __pipeline_commit();
        __pipeline_wait_prior(0);
        wgmma_written();
        __syncthreads();
    }

    /* Asks for what use `to` of the ring buffer reads: the stages of the centres follow each other, for each
       tile of rows anew. */
    __device__ void load_stage(unsigned to) const {
        if (threadIdx.x || to >= last) return;
        mbarrier_expect_tx(full + to % DEPTH, WGMMA_STAGE);
        bulk_copy(shared + to % DEPTH * WGMMA_STAGE, p.packed + (size_t)(to % stages) * WGMMA_STAGE,
                  WGMMA_STAGE, full + to % DEPTH);
    }

    /* Starts the products of a stage, and ends those of the stage before. */
    __device__ void multiply_stage(int (&sums)[128], unsigned chunk) {
        const char *rows = shared + ROWS_AT + (chunk * M + warp / 4 * 64) * CHUNK;
        const char *centres = shared + use % DEPTH * WGMMA_STAGE;
        mbarrier_wait(full + use % DEPTH, use / DEPTH);
        wgmma_fence();
        wgmma_u8s8_n256(sums, wgmma_swizzle64(rows), wgmma_swizzle64(centres));
        if (chunk * CHUNK + STEP < p.features)
            wgmma_u8s8_n256(sums, wgmma_swizzle64(rows + STEP), wgmma_swizzle64(centres + STEP));
        wgmma_commit();
        wgmma_wait<1>();
        __syncthreads(); /* no warpgroup reads the stage before */
        if (use) load_stage(use - 1 + DEPTH);
        use++;
    }

    /* The best two of this lane's rows (lane / 4 of the warp's 16, and that + 8) among the 128 centres of a
       tile. */
    __device__ void score_tile(unsigned tile, best_two (&own)[2]) {
        const uint32_t j0 = tile * N + lane % 4 * 2;
        int sums[128]; /* of the high slices, then of the low ones */
        int2 bias[N / 8];
#pragma unroll
        for (int i = 0; i < 128; i++) sums[i] = i < 64 ? 0 : 128;
        for (unsigned chunk = 0; chunk < p.chunks; chunk++) multiply_stage(sums, chunk);
#pragma unroll
        for (int n = 0; n < N / 8; n++) bias[n] = *(const int2 *)(p.bias + j0 + n * 8);
        wgmma_wait<0>();
        wgmma_done(sums);
#pragma unroll
        for (int n = 0; n < N / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                own[e / 2].add(sums[4 * n + e] + (sums[64 + 4 * n + e] >> 8) +
                                   (e % 2 ? bias[n].y : bias[n].x),
                               j0 + n * 8 + e % 2);
    }

    __device__ void label_rows(size_t first, unsigned count) {
        best_two own[2] = {{LOWEST - 1, LOWEST - 1, UINT32_MAX}, {LOWEST - 1, LOWEST - 1, UINT32_MAX}};
        unsigned changed = 0;
        __syncthreads(); /* no warpgroup reads the rows before */
        load_rows(first, count);
        for (unsigned tile = 0; tile < p.tiles; tile++) score_tile(tile, own);
#pragma unroll
        for (int slot = 0; slot < 2; slot++) {
            const unsigned row = warp * 16 + slot * 8 + lane / 4;
#pragma unroll
            for (int offset = 1; offset < 4; offset *= 2)
                own[slot].merge({__shfl_xor_sync(0xffffffffu, own[slot].best, offset),
                                 __shfl_xor_sync(0xffffffffu, own[slot].second, offset),
                                 __shfl_xor_sync(0xffffffffu, own[slot].index, offset)});
            const bool moved = row < count && lane % 4 == 0 && finish_row(p, first + row, own[slot]);
            changed += __popc(__ballot_sync(0xffffffffu, moved));
        }
        if (lane == 0) add_count(&p.counts->changed, changed);
    }
};

__global__ void __launch_bounds__(THREADS, 1) wgmma_kernel(const __grid_constant__ pass p) {
    extern __shared__ __align__(
        128) char shared[]; /* wgmma needs a multiple of 512: there is nothing before */
    const unsigned tiles = (unsigned)((p.rows + M - 1) / M);
    const unsigned own = (tiles - blockIdx.x + gridDim.x - 1) / gridDim.x; /* tiles of rows of this block */
    wgmma_body body(p, shared, own);
    for (unsigned i = 0; i < own; i++) {
        const size_t first = ((size_t)i * gridDim.x + blockIdx.x) * M, left = p.rows - first;
        body.label_rows(first, (unsigned)(left < M ? left : M));
    }
}

bool wgmma_open(unsigned chunks, int shared_bytes) {
    const size_t bytes = bytes_for(chunks);
    int device = 0, major = 0;
    cudaFuncAttributes attributes;
    return bytes <= (size_t)shared_bytes && cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
           major == 9 && cudaFuncGetAttributes(&attributes, wgmma_kernel) == cudaSuccess &&
           attributes.binaryVersion == 90 &&
           cudaFuncSetAttribute(wgmma_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes) ==
               cudaSuccess;
}

void wgmma_launch(const pass &p, unsigned processors, cudaStream_t stream, struct cuda_fault *fault) {
    const size_t tiles = (p.rows + M - 1) / M;
    wgmma_kernel<<<(unsigned)(tiles < processors ? tiles : processors), THREADS, bytes_for(p.chunks),
                   stream>>>(p);
    CUDA_LAUNCHED(fault, "wgmma_kernel");
}

} // namespace pixels
