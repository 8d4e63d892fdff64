/* GEMM of 16 bits (bfloat16 or half precision) or of TF32, of up to 128 rows, as batches of 32 to 128 images
   have: C = A B or A B^T, with the epilogues.

   Idea       A cluster has all rows and 64 columns of C, and its blocks share k. A launch starts before the
              kernel before it ends (programmatic dependent launch): barriers, tensor maps and the first
              weights are ready when A is. Then each block sends its sums, by st.async, to the block that
              stores these columns. That one adds them in the order of the parts. It has all rows of its
              columns: the gradients of biases are complete.
   Layout     a stage has 128 bytes of k, 64 elements or 32: 64 or 128 rows of A, then 64 columns of B with k
              along them (NT), or the rows of B, 64 columns of each (NN; of TF32 in two halves).
   TF32       the copy engine rounds float32 on the way to shared memory. NN is computed as C^T = B^T A^T,
              whose sums have rows and columns swapped (short_store.cuh).
   Bound by   latency; bytes of A and B from the L2 cache, 44 a nanosecond and SM
   Improves   bf16_wgmma.cu and bf16x6_wgmma.cu for few rows */
#ifndef TESSERA_KERNELS_CUDA_TENSOR_SHORT_KERNEL_CUH
#define TESSERA_KERNELS_CUDA_TENSOR_SHORT_KERNEL_CUH

#include "kernels/cuda/dependent_launch.cuh"
#include "kernels/cuda/tensor/short_store.cuh"
#include "kernels/cuda/tensor/wgmma_bf16.cuh"
#include "kernels/cuda/tensor/wgmma_tf32.cuh"

namespace short_rows {

/* The place of a stage of k in the ring buffer. */
struct ring_place {
    unsigned index = 0, round = 0;

    __device__ void advance(unsigned stages) {
        if (++index == stages) index = 0, round++;
    }
};

template <bool NN, int GROUPS, typename T, int PARTS>
static __device__ void copy_b(const product &p, char *shared, const barriers &bars, const share<PARTS> &own,
                              unsigned stage, unsigned index) {
    typedef layout<GROUPS> at;
    char *const to = shared + index * at::STAGE_BYTES + at::A_BYTES;
    const unsigned k = (own.first_stage + stage) * STAGE_K<T>;
    mbarrier_expect_tx(bars.full + index, at::STAGE_BYTES);
    tensor_load(to, p.b, NN ? own.column0 : k, NN ? k : own.column0, bars.full + index);
    if (SWAPS<T, NN>) tensor_load(to + B_BYTES / 2, p.b, own.column0 + COLUMNS / 2, k, bars.full + index);
}

/* Each block of a pair copies half of the rows of A to both. */
template <int GROUPS, typename T, int PARTS>
static __device__ void copy_a(const product &p, char *shared, const barriers &bars, const share<PARTS> &own,
                              unsigned stage, unsigned index) {
    typedef layout<GROUPS> at;
    char *const to = shared + index * at::STAGE_BYTES;
    const unsigned k = (own.first_stage + stage) * STAGE_K<T>, row = own.rank % own.pair * (at::ROWS / 2);
    if (own.pair == 1)
        tensor_load(to, p.a, k, 0, bars.full + index);
    else
        tensor_multicast(to + row * LINE, p.a, k, row, bars.full + index, 3u << own.part * 2);
}

/* A warp. */
template <bool NN, int GROUPS, typename T, int PARTS>
static __device__ void produce(const product &p, char *shared, const barriers &bars,
                               const share<PARTS> &own) {
    const unsigned ready = min(own.stages, p.stages);
    const bool first = threadIdx.x % 32 == 0;
    if (!p.b_early) wait_for_kernels_before();
    for (unsigned s = 0; s < ready && first; s++) copy_b<NN, GROUPS, T>(p, shared, bars, own, s, s);
    __syncwarp();
    cluster_wait(); /* the other blocks have initialised their barriers */
    if (p.b_early) wait_for_kernels_before();
    ring_place use;
    for (unsigned s = 0; s < own.stages && first; s++, use.advance(p.stages)) {
        if (use.round) {
            mbarrier_wait_alone(bars.empty + use.index, use.round - 1);
            copy_b<NN, GROUPS, T>(p, shared, bars, own, s, use.index);
        }
        copy_a<GROUPS, T>(p, shared, bars, own, s, use.index);
        if (s + 1 == ready) start_next_kernel();
    }
    __syncwarp();
    cluster_barrier_of_reads(); /* as in consume */
}

/* Says to both blocks of a pair that this warp has read a stage, if a later one needs the memory. */
template <int PARTS>
static __device__ void release(const barriers &bars, const share<PARTS> &own, unsigned index, bool needed) {
    const unsigned lane = threadIdx.x % 32;
    if (lane < own.pair && needed) cluster_arrive_at(bars.empty + index, own.part * own.pair + lane);
}

/* A warpgroup: sums = its 64 rows of C over the k of this block; of TF32, NT alone. */
template <bool NN, int GROUPS, typename T, int PARTS>
static __device__ void multiply(float (&sums)[COLUMNS / 2], const char *shared, const barriers &bars,
                                const share<PARTS> &own, unsigned stages, unsigned group) {
    typedef layout<GROUPS> at;
    ring_place use;
    unsigned before = 0;
    for (unsigned s = 0; s < own.stages; s++, use.advance(stages)) {
        const char *const a = shared + use.index * at::STAGE_BYTES + group * 64 * LINE,
                          *const b = shared + use.index * at::STAGE_BYTES + at::A_BYTES;
        mbarrier_wait(bars.full + use.index, use.round);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4; step++) {
            const uint64_t of_a = wgmma_swizzle128(a + step * 32),
                           of_b = NN ? wgmma_swizzle128_transposed(b + step * 2048, B_BYTES)
                                     : wgmma_swizzle128(b + step * 32);
            if constexpr (sizeof(T) == 4)
                wgmma_tf32(sums, of_a, of_b, s | step);
            else
                wgmma_16bit<T, COLUMNS, false, NN>(sums, of_a, of_b, s | step);
        }
        wgmma_commit();
        if (s) {
            wgmma_wait<1>();
            release(bars, own, before, s - 1 + stages < own.stages);
        }
        before = use.index;
    }
    wgmma_wait<0>();
    wgmma_done(sums);
}

/* A warpgroup: sums = the 64 columns of the tile, as rows of C^T, by its 64 rows of C, as columns. Fragments
   are loaded while the tensor cores have those of the stage before. */
template <int GROUPS, int PARTS>
static __device__ void multiply_swapped(float (&sums)[COLUMNS / 2], const char *shared, const barriers &bars,
                                        const share<PARTS> &own, unsigned stages, unsigned group) {
    typedef layout<GROUPS> at;
    ring_place use, loaded;
    float even[4][4], odd[4][4];
    const auto load = [&](float(&of)[4][4]) {
        mbarrier_wait(bars.full + loaded.index, loaded.round);
        load_transposed(of, shared + loaded.index * at::STAGE_BYTES + at::A_BYTES);
        loaded.advance(stages);
    };
    const auto stage = [&](unsigned s, float(&now)[4][4], float(&later)[4][4]) {
        const char *const a = shared + use.index * at::STAGE_BYTES + group * 64 * LINE;
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4; step++)
            wgmma_tf32(sums, now[step], wgmma_swizzle128(a + step * 32), s | step);
        wgmma_commit();
        if (s + 1 < own.stages) load(later);
        wgmma_wait<0>();
        release(bars, own, use.index, s + stages < own.stages);
        use.advance(stages);
    };
    load(even);
    for (unsigned s = 0; s < own.stages; s += 2) {
        stage(s, even, odd);
        if (s + 1 < own.stages) stage(s + 1, odd, even);
    }
    wgmma_done(sums);
}

template <bool NN, int GROUPS, typename T, int PARTS>
static __device__ void consume(const product &p, char *shared, const barriers &bars,
                               const share<PARTS> &own) {
    float sums[COLUMNS / 2];
    epilogue<NN, GROUPS, PARTS, T> to(p, own);
    wait_for_kernels_before();
    to.load();
    cluster_wait(); /* as in produce */
    const unsigned group = uniform(threadIdx.x / GROUP);
    if constexpr (SWAPS<T, NN>)
        multiply_swapped<GROUPS>(sums, shared, bars, own, p.stages, group);
    else
        multiply<NN, GROUPS, T>(sums, shared, bars, own, p.stages, group);
    cluster_barrier_of_reads(); /* all have read their stages, where they will receive sums */
    send<GROUPS, PARTS>(sums, shared, bars, own);
    mbarrier_wait(bars.received, 0);
    with_activation(
        p.activation, [&]<enum activation A>() { to.template store<A>(shared); });
    if (NN || !p.sums) return;
    asm volatile("bar.sync 1, %0;" : : "n"(layout<GROUPS>::THREADS) : "memory");
    to.store_sums(shared);
}

template <bool NN, int GROUPS, int PARTS, typename T>
__global__ void __launch_bounds__(layout<GROUPS>::THREADS + 32, 2)
    short_kernel(const __grid_constant__ product p) {
#ifdef HAVE_WGMMA
    typedef layout<GROUPS> at;
    extern __shared__ __align__(1024) char shared[];
    const barriers bars(shared + p.stages * at::STAGE_BYTES);
    const share<PARTS> own(p, STAGE_K<T>);
    if (threadIdx.x == at::THREADS) {
        tensor_map_prefetch(p.a);
        tensor_map_prefetch(p.b);
        for (unsigned i = 0; i < p.stages; i++) {
            mbarrier_init(bars.full + i);
            mbarrier_init(bars.empty + i, 4 * GROUPS * own.pair);
        }
        mbarrier_init(bars.received);
        mbarrier_expect_tx(bars.received, (PARTS - 1) * own.units * at::UNIT_BYTES);
    }
    __syncthreads();
    cluster_arrive_relaxed(); /* mbarrier_init has a fence */
    if (uniform(threadIdx.x / 32) == at::THREADS / 32) {
        produce<NN, GROUPS, T>(p, shared, bars, own);
    } else {
        consume<NN, GROUPS, T>(p, shared, bars, own);
    }
#endif
}

/* --- the host --- */

template <typename T, int PARTS> static kernel *instance_of(enum gemm_op op, unsigned groups) {
    return op == GEMM_NN ? groups == 1 ? short_kernel<true, 1, PARTS, T> : short_kernel<true, 2, PARTS, T>
           : groups == 1 ? short_kernel<false, 1, PARTS, T>
                         : short_kernel<false, 2, PARTS, T>;
}

template <typename T> static kernel *instance_of(enum gemm_op op, unsigned groups, unsigned parts) {
    return parts == 8   ? instance_of<T, 8>(op, groups)
           : parts == 4 ? instance_of<T, 4>(op, groups)
           : parts == 3 ? instance_of<T, 3>(op, groups)
                        : instance_of<T, 2>(op, groups);
}

} // namespace short_rows

#endif
