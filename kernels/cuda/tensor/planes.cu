/* Splits float32 matrices into planes.

   Idea       a thread block reads 64 x 64 elements once, keeps them in registers, agrees on their scale and
              writes them. One launch splits both operands.
   Bound by   memory: 4 bytes read and 4 written for each element, 2 of pixels. */
#include "kernels/cuda/tensor/split.cuh"

#include "kernels/cuda/dependent_launch.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

static const unsigned THREADS = 256, ROWS = 32; /* rows that the block reads at once, 8 threads each */

static __device__ float pixel_of(float x) {
    return rintf(x * 255);
}

/* What a thread has of a block: the same 8 columns of 2 rows. */
struct share {
    float x[2][8];

    __device__ void load(const split_source &from, size_t row0, size_t column0, bool aligned) {
        const size_t column = column0 + threadIdx.x % 8 * 8;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const size_t row = row0 + threadIdx.x / 8 + h * ROWS;
            const float *at = from.values + row * from.ld + column;
            if (aligned && row < from.rows && column + 8 <= from.columns) {
                const float4 left = __ldg((const float4 *)at), right = __ldg((const float4 *)at + 1);
                x[h][0] = left.x, x[h][1] = left.y, x[h][2] = left.z, x[h][3] = left.w;
                x[h][4] = right.x, x[h][5] = right.y, x[h][6] = right.z, x[h][7] = right.w;
            } else {
#pragma unroll
                for (int e = 0; e < 8; e++)
                    x[h][e] = row < from.rows && column + e < from.columns ? __ldg(at + e) : 0;
            }
        }
    }

    /* Does it hold for every element? */
    template <typename F> __device__ bool all(F holds) const {
        bool all = true;
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int e = 0; e < 8; e++) all = all && holds(x[h][e]);
        return all;
    }

    __device__ void to_pixels() {
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int e = 0; e < 8; e++) x[h][e] = pixel_of(x[h][e]);
    }

    __device__ void scale(float factor) {
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int e = 0; e < 8; e++) x[h][e] *= factor;
    }

    /* Writes x, rounded to T, to a plane of the block, and leaves what rounding removed. */
    template <typename T> __device__ void store(char *block) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const unsigned row = threadIdx.x / 8 + h * ROWS, unit = threadIdx.x % 8;
            alignas(16) T rounded[8];
#pragma unroll
            for (int e = 0; e < 8; e++) {
                rounded[e] = T(x[h][e]);
                x[h][e] -= float(rounded[e]);
            }
            *(uint4 *)(block + row * 128 + (unit ^ row % 8) * 16) = *(const uint4 *)rounded;
        }
    }
};

/* Largest magnitudes, as the bits of floats, of the rows and columns of a block. */
struct extremes {
    unsigned row[PLANE_SIDE], column[THREADS / 32][PLANE_SIDE], of_warp[2];
    unsigned nonzero_and_small; /* counts of elements: nonzero << 16 | small */
};

static __device__ void find_extremes(const share &own, extremes &all) {
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        unsigned most = 0;
#pragma unroll
        for (int e = 0; e < 8; e++) most = max(most, magnitude(own.x[h][e]));
        most = larger(larger(larger(most, 1), 2), 4);
        if (lane % 8 == 0) all.row[threadIdx.x / 8 + h * ROWS] = most;
    }
#pragma unroll
    for (int e = 0; e < 8; e++) {
        const unsigned most = larger(larger(max(magnitude(own.x[0][e]), magnitude(own.x[1][e])), 8), 16);
        if (lane < 8) all.column[warp][lane * 8 + e] = most;
    }
}

/* The largest magnitude of this thread's row or column: the first 64 threads have columns, the next
   64 rows. */
static __device__ unsigned extreme_of_thread(const extremes &all) {
    const unsigned line = threadIdx.x % PLANE_SIDE;
    if (threadIdx.x >= PLANE_SIDE) return all.row[line];
    unsigned most = 0;
    for (unsigned w = 0; w < THREADS / 32; w++) most = max(most, all.column[w][line]);
    return most;
}

/* What a block has: its largest magnitude, as bits, and what it raises. */
struct findings {
    unsigned most, raised;
};

static __device__ findings examine(const share &own) {
    __shared__ extremes all;
    if (threadIdx.x == 0) all.nonzero_and_small = 0;
    find_extremes(own, all);
    __syncthreads();
    const unsigned line = threadIdx.x < 2 * PLANE_SIDE ? extreme_of_thread(all) : 0;
    const unsigned of_warp = largest_of_warp(line);
    if (threadIdx.x < PLANE_SIDE && threadIdx.x % 32 == 0) all.of_warp[threadIdx.x / 32] = of_warp;
    __syncthreads();
    const unsigned most = max(all.of_warp[0], all.of_warp[1]);
    const unsigned counts = sum_of_warp(count_small(own.x, most));
    if (threadIdx.x % 32 == 0) atomicAdd(&all.nonzero_and_small, counts);
    const bool lopsided = __syncthreads_or(is_lopsided(line, most));
    return {most, guard_bits(most, lopsided, all.nonzero_and_small)};
}

struct split_pair {
    split_source of[2];

    __host__ __device__ size_t count(void) const {
        return of[0].to.count() + of[1].to.count();
    }
};

/* A block of a matrix. */
struct place {
    const split_source &from;
    const size_t block;

    __device__ void load(share &own) const {
        const bool aligned = ((uintptr_t)from.values | from.ld * sizeof(float)) % 16 == 0;
        own.load(from, block / from.to.column_blocks * PLANE_SIDE, block % from.to.column_blocks * PLANE_SIDE,
                 aligned);
    }

    __device__ char *plane(char *planes, unsigned p) const {
        return planes + (p * from.to.count() + block) * PLANE_BYTES;
    }
};

__global__ void __launch_bounds__(THREADS) split_kernel(const __grid_constant__ split_pair both) {
    const size_t first = both.of[0].to.count();
    const bool second = blockIdx.x >= first;
    const place at = {both.of[second], blockIdx.x - (second ? first : 0)};
    const planes &to = at.from.to;
    share own;
    at.load(own);
    start_next_kernel();
    const findings found = examine(own);
    const bool pixels = own.all([](float x) {
        const float n = pixel_of(x);
        return fabsf(n) < 2048 && __fmul_rn(n, PIXEL_SCALE) == x;
    });
    const int e = scale_exponent(found.most);
    own.scale(power_of_two(e));
    const bool high_only = __syncthreads_and(own.all([](float x) { return float(__half(x)) == x; })),
               pixels_only = __syncthreads_and(pixels) && !high_only;
    if (pixels_only) {
        own.scale(power_of_two(-e));
        own.to_pixels();
    }
    const bool low = !high_only && !pixels_only;
    own.store<__half>(at.plane(to.blocks, 0));
    if (low) own.store<__half>(at.plane(to.blocks, 1));
    if (threadIdx.x) return;
    to.codes[at.block] = code_of(e, found.raised) | (pixels_only ? CODE_PIXELS : 0) | (low ? 0 : CODE_HIGH);
    planes_done(to.flags, found.raised | (low ? PLANES_LOW : PLANES_HIGH), to.count());
}

/* The operands of a product. */
struct wide_job {
    split_pair both;
    plane_operand as[2];
    plane_flags *c; /* of C, if its planes are written; else NULL */
};

static const unsigned WIDE_SHARE = 4; /* blocks of planes of a thread block */

/* Fills the low planes that split_kernel has left out, if the product reads them: of the blocks of a thread
   block. */
static __device__ void fill_low(const wide_job &job, bool second, unsigned k) {
    const plane_operand &of = job.as[second];
    const unsigned state = of.flags->state;
    if (!(state & PLANES_HIGH) || !(second || state & PLANES_LOW)) return;
    for (unsigned i = blockIdx.y; i < of.blocks_across; i += gridDim.y) {
        const place at = {job.both.of[second], of.index(i, k)};
        share zero = {};
        if (of.codes[at.block] & CODE_HIGH) zero.store<__half>(at.plane(at.from.to.blocks, 1));
    }
}

/* After split_kernel: bf16 planes of the blocks that are read so. A tile of C reads two blocks across of
   each operand at each step of k; if one of the four is wide, all are read as bf16. A thread block has
   some blocks of a step of k, and looks at the codes of all. Resets the state of C. */
__global__ void __launch_bounds__(THREADS, 6) split_wide_kernel(const __grid_constant__ wide_job job) {
    const plane_operand &a = job.as[0], &b = job.as[1];
    const unsigned k = blockIdx.x, all = a.blocks_across + b.blocks_across;
    wait_for_kernels_before();
    start_next_kernel();
    if (job.c && k == 0 && blockIdx.y == 0 && threadIdx.x == 0) job.c->state = PLANES_LOW;
    fill_low(job, false, k);
    fill_low(job, true, k);
    if (((a.flags->state | b.flags->state) & (PLANES_WIDE | PLANES_SPECIAL)) != PLANES_WIDE) return;
    unsigned of_a = 0, of_b = 0;
    for (unsigned i = threadIdx.x; i < a.blocks_across; i += THREADS) of_a |= a.codes[a.index(i, k)];
    for (unsigned i = threadIdx.x; i < b.blocks_across; i += THREADS) of_b |= b.codes[b.index(i, k)];
    const bool a_is_wide = __syncthreads_or(of_a & CODE_WIDE), b_is_wide = __syncthreads_or(of_b & CODE_WIDE);
    if (!a_is_wide && !b_is_wide) return;
    for (unsigned item = blockIdx.y; item < all; item += gridDim.y) {
        const bool second = item >= a.blocks_across;
        const plane_operand &of = job.as[second];
        const unsigned i = item - (second ? a.blocks_across : 0);
        const place at = {job.both.of[second], of.index(i, k)};
        const unsigned code = of.codes[at.block];
        if (!(second ? a_is_wide : b_is_wide) && !((code | of.codes[of.index(i ^ 1, k)]) & CODE_WIDE))
            continue;
        share own;
        at.load(own);
        own.scale(power_of_two(wide_exponent(code)));
        for (unsigned p = 0; p < 3; p++) own.store<__nv_bfloat16>(at.plane(at.from.to.wide, p));
    }
}

/* The pair with only those matrices that are to be split. */
static split_pair without(split_pair both, bool a, bool b) {
    if (a) both.of[0].to.row_blocks = 0;
    if (b) both.of[1].to.row_blocks = 0;
    return both;
}

void split_launch(const split_source &a, bool a_is_split, const split_source &b, bool b_is_split,
                  enum gemm_op op, plane_flags *c, cuda_launcher &launcher) {
    const split_pair both = {{a, b}}, some = without(both, a_is_split, b_is_split);
    const wide_job job = {
        both, {plane_operand(a.to, gemm_transposes_a(op)), plane_operand(b.to, !gemm_transposes_b(op))}, c};
    if (some.count())
        launch(launcher, "split_kernel", split_kernel, dim3((unsigned)some.count()), THREADS, 0, some);
    const unsigned across = job.as[0].blocks_across + job.as[1].blocks_across,
                   steps = (unsigned)(both.count() / across);
    const unsigned most = 65535; /* of gridDim.y */
    launch_dependent(launcher, "split_wide_kernel", split_wide_kernel,
                     dim3(steps, std::min(blocks_for(across, WIDE_SHARE), most)), THREADS, 0, 1, job);
}
