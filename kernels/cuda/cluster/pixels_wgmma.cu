#include "kernels/cuda/cluster/pixels_wgmma.cuh"

#include <cuda_pipeline_primitives.h>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/tensor/stage_ring.cuh"
#include "kernels/cuda/tensor/wgmma.cuh"

namespace pixels {

static const int GROUPS = 2, GROUP = 128;              /* warpgroups that multiply, and their threads */
static const int THREADS = (GROUPS + 1) * GROUP;       /* one more group copies the centres */
static const int COPY_REGISTERS = 24, REGISTERS = 240; /* of a thread */
static const int M = 64, N = 128;                      /* rows and centres of a warpgroup */
static const int WGMMA_STAGE = 2 * N * CHUNK;          /* bytes of a stage of the ring buffer */
typedef stage_ring<WGMMA_STAGE, 6> ring;
static const int ROWS_AT = ring::STAGES_BYTES; /* in shared memory, after the ring buffer */

static __host__ __device__ size_t barriers_at(unsigned chunks) {
    return ROWS_AT + (size_t)chunks * GROUPS * M * CHUNK;
}

static size_t bytes_for(unsigned chunks) {
    return barriers_at(chunks) + ring::BARRIERS_BYTES;
}

__device__ static ring open_ring(char *shared, unsigned chunks) {
    return ring(shared, shared + barriers_at(chunks));
}

/* One thread: the centres stream tile after tile, and all of them for each tile of rows anew. */
__device__ static void fill_ring(const ring &centres, const pass &p, unsigned row_tiles) {
    const unsigned stages = p.tiles * p.chunks, last = row_tiles * stages;
    for (unsigned use = 0; use < last; use++)
        centres.fill(use, p.packed + (size_t)(use % stages) * WGMMA_STAGE);
}

/* A warpgroup: it labels 64 rows at a time. */
struct group_body {
    const pass &p;
    const ring centres;
    char *rows;   /* [chunks][64][CHUNK] */
    unsigned use; /* of the ring buffer, counted over all tiles */
    const int lane, warp, group;

    __device__ group_body(const pass &all, char *shared)
        : p(all), centres(open_ring(shared, all.chunks)), use(0), lane(threadIdx.x % 32),
          warp(threadIdx.x / 32 % 4), group(threadIdx.x / GROUP) {
        rows = shared + ROWS_AT + (size_t)group * p.chunks * M * CHUNK;
    }

    __device__ void synchronize() const {
        asm volatile("bar.sync %0, %1;" : : "r"(1 + group), "n"(GROUP) : "memory");
    }

    /* Copies rows to shared memory, in the layout of wgmma; what is beyond the last row or pixel is not used,
       or multiplied by 0. Eight lanes in turn have the rows of a column of units: no bank conflicts. */
    __device__ void load_rows(size_t first, unsigned count) const {
        const unsigned units = p.features / 16;
        const unsigned row = threadIdx.x % GROUP / 4 % 32, column = threadIdx.x % 4;
        synchronize(); /* no warp reads the rows before */
        for (unsigned r = row; r < count; r += 32) {
            const uint8_t *from = p.x + (first + r) * p.features;
            char *to = rows + r * CHUNK + ((column ^ r >> 1) & 3) * 16;
            for (unsigned unit = column; unit < units; unit += 4)
                __pipeline_memcpy_async(to + unit / 4 * M * CHUNK, from + unit * 16, 16);
        }
        __pipeline_commit();
        __pipeline_wait_prior(0);
        wgmma_written();
        synchronize();
    }

    /* Starts the products of a stage, and ends those of the stage before. */
    __device__ void multiply_stage(int (&sums)[128], unsigned chunk) {
        const char *x = rows + chunk * M * CHUNK, *c = centres.wait(use);
        wgmma_fence();
        wgmma_u8s8_n256(sums, wgmma_swizzle64(x), wgmma_swizzle64(c), chunk > 0);
        if (chunk * CHUNK + STEP < p.features)
            wgmma_u8s8_n256(sums, wgmma_swizzle64(x + STEP), wgmma_swizzle64(c + STEP), true);
        wgmma_commit();
        wgmma_wait<1>();
        if (chunk) centres.release(use - 1);
        use++;
    }

    /* The best two of this lane's rows (lane / 4 of the warp's 16, and that + 8) among the 128 centres of a
       tile. A low slice is rounded down: that is in the error of a difference of scores too. */
    __device__ void score_tile(unsigned tile, best_two (&own)[2]) {
        const uint32_t j0 = tile * N + lane % 4 * 2;
        int sums[128]; /* of the high slices, then of the low ones */
        int2 bias[N / 8];
        for (unsigned chunk = 0; chunk < p.chunks; chunk++) multiply_stage(sums, chunk);
#pragma unroll
        for (int n = 0; n < N / 8; n++) bias[n] = *(const int2 *)(p.bias + j0 + n * 8);
        wgmma_wait<0>();
        wgmma_done(sums);
        centres.release(use - 1);
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
        load_rows(first, count);
        for (unsigned tile = 0; tile < p.tiles; tile++) score_tile(tile, own);
#pragma unroll
        for (int slot = 0; slot < 2; slot++) {
            const unsigned row = warp * 16 + slot * 8 + lane / 4;
            own[slot].merge_lanes();
            const bool moved = row < count && lane % 4 == 0 && finish_row(p, first + row, own[slot]);
            changed += __popc(__ballot_sync(0xffffffffu, moved));
        }
        if (lane == 0) add_count(&p.counts->changed, changed);
    }
};

__global__ void __launch_bounds__(THREADS, 1) wgmma_kernel(const __grid_constant__ pass p) {
    extern __shared__ __align__(
        128) char shared[];             /* wgmma needs a multiple of 512: there is nothing before */
    const size_t together = GROUPS * M; /* rows of a block */
    const unsigned tiles = (unsigned)((p.rows + together - 1) / together);
    const unsigned own = (tiles - blockIdx.x + gridDim.x - 1) / gridDim.x;
    if (threadIdx.x == 0) open_ring(shared, p.chunks).open(GROUPS * GROUP / 32);
    __syncthreads();
    if (threadIdx.x >= GROUPS * GROUP) {
        warpgroup_fewer_registers<COPY_REGISTERS>();
        if (threadIdx.x == GROUPS * GROUP) fill_ring(open_ring(shared, p.chunks), p, own);
        return;
    }
    warpgroup_more_registers<REGISTERS>();
    group_body body(p, shared);
    if (body.group) __nanosleep(700); /* so that one group compares scores while the other one multiplies */
    for (unsigned i = 0; i < own; i++) {
        const size_t first = ((size_t)i * gridDim.x + blockIdx.x) * together + body.group * M;
        const size_t left = first < p.rows ? p.rows - first : 0;
        body.label_rows(first, (unsigned)(left < M ? left : M));
    }
}

bool wgmma_open(unsigned chunks, int shared_bytes) {
    const size_t bytes = bytes_for(chunks);
    return bytes <= (size_t)shared_bytes && cuda_allows_wgmma((const void *)wgmma_kernel, bytes);
}

void wgmma_launch(const pass &p, unsigned processors, cudaStream_t stream, struct cuda_fault *fault) {
    const size_t tiles = (p.rows + GROUPS * M - 1) / (GROUPS * M);
    wgmma_kernel<<<(unsigned)(tiles < processors ? tiles : processors), THREADS, bytes_for(p.chunks),
                   stream>>>(p);
    CUDA_LAUNCHED(fault, "wgmma_kernel");
}

} // namespace pixels
