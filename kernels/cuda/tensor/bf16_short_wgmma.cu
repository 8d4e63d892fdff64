/* GEMM of 16 bits (bfloat16 or half precision) of up to 128 rows, as batches of 32 to 128 images have:
   C = A B or A B^T, with the epilogues.

   Idea       A cluster has all rows and 64 columns of C, and its blocks share k. A launch starts before the
              kernel before it ends (programmatic dependent launch): barriers, tensor maps and the first
              weights are ready when A is. Then each block sends its sums, by st.async, to the block that
              stores these columns. That one adds them in the order of the parts. It has all rows of its
              columns: the gradients of biases are complete.
   Layout     a stage has 64 or 128 rows of A, 64 of k each, then B: 64 columns of 64 of k (NT), or 64 of k
              with 64 columns (NN).
   Bound by   latency; bytes of A and B from the L2 cache, 44 a nanosecond and SM
   Improves   bf16_wgmma.cu for few rows */
#include "kernels/cuda/tensor/bf16_short.cuh"

#include "kernels/cuda/dependent_launch.cuh"
#include "kernels/cuda/tensor/bf16_short_store.cuh"
#include "kernels/cuda/tensor/wgmma_bf16.cuh"

namespace bf16_short {

/* The place of a stage of k in the ring buffer. */
struct ring_place {
    unsigned index = 0, round = 0;

    __device__ void next(unsigned stages) {
        if (++index == stages) index = 0, round++;
    }
};

template <bool B_T, int GROUPS, int PARTS>
static __device__ void copy_b(const product &p, char *shared, const barriers &bars, const share<PARTS> &own,
                              unsigned stage, unsigned index) {
    typedef layout<GROUPS> at;
    char *const to = shared + index * at::STAGE_BYTES + at::A_BYTES;
    const unsigned k = (own.first_stage + stage) * STAGE_K;
    mbarrier_expect_tx(bars.full + index, at::STAGE_BYTES);
    tensor_load(to, p.b, B_T ? own.column0 : k, B_T ? k : own.column0, bars.full + index);
}

/* Each block of a pair copies half of the rows of A to both. */
template <int GROUPS, int PARTS>
static __device__ void copy_a(const product &p, char *shared, const barriers &bars, const share<PARTS> &own,
                              unsigned stage, unsigned index) {
    typedef layout<GROUPS> at;
    char *const to = shared + index * at::STAGE_BYTES;
    const unsigned k = (own.first_stage + stage) * STAGE_K, row = own.rank % own.pair * (at::ROWS / 2);
    if (own.pair == 1)
        tensor_load(to, p.a, k, 0, bars.full + index);
    else
        tensor_multicast(to + row * 128, p.a, k, row, bars.full + index, 3u << own.part * 2);
}

/* A warp. */
template <bool B_T, int GROUPS, int PARTS>
static __device__ void produce(const product &p, char *shared, const barriers &bars,
                               const share<PARTS> &own) {
    const unsigned ready = min(own.stages, p.stages);
    const bool first = threadIdx.x % 32 == 0;
    if (!p.b_early) wait_for_kernels_before();
    for (unsigned s = 0; s < ready && first; s++) copy_b<B_T, GROUPS>(p, shared, bars, own, s, s);
    __syncwarp();
    cluster_wait(); /* the other blocks have initialised their barriers */
    if (p.b_early) wait_for_kernels_before();
    ring_place use;
    for (unsigned s = 0; s < own.stages && first; s++, use.next(p.stages)) {
        if (use.round) {
            mbarrier_wait_alone(bars.empty + use.index, use.round - 1);
            copy_b<B_T, GROUPS>(p, shared, bars, own, s, use.index);
        }
        copy_a<GROUPS>(p, shared, bars, own, s, use.index);
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

/* A warpgroup: sums = its 64 rows over the k of this block. */
template <bool B_T, int GROUPS, typename T, int PARTS>
static __device__ void multiply(float (&sums)[COLUMNS / 2], const char *shared, const barriers &bars,
                                const share<PARTS> &own, unsigned stages, unsigned group) {
    typedef layout<GROUPS> at;
    ring_place use;
    unsigned before = 0;
    for (unsigned s = 0; s < own.stages; s++, use.next(stages)) {
        const char *const a = shared + use.index * at::STAGE_BYTES + group * 64 * 128,
                          *const b = shared + use.index * at::STAGE_BYTES + at::A_BYTES;
        mbarrier_wait(bars.full + use.index, use.round);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4; step++)
            wgmma_16bit<T, COLUMNS, false, B_T>(sums, wgmma_swizzle128(a + step * 32),
                                                B_T ? wgmma_swizzle128_transposed(b + step * 2048, B_BYTES)
                                                    : wgmma_swizzle128(b + step * 32),
                                                s | step);
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

template <bool B_T, int GROUPS, typename T, int PARTS>
static __device__ void consume(const product &p, char *shared, const barriers &bars,
                               const share<PARTS> &own) {
    float sums[COLUMNS / 2];
    epilogue<!B_T, GROUPS, PARTS, T> to(p, own);
    wait_for_kernels_before();
    to.load();
    cluster_wait(); /* as in produce */
    multiply<B_T, GROUPS, T>(sums, shared, bars, own, p.stages, uniform(threadIdx.x / GROUP));
    cluster_barrier_of_reads(); /* all have read their stages, where they will receive sums */
    send<GROUPS, PARTS>(sums, shared, bars, own);
    mbarrier_wait(bars.received, 0);
    with_activation(
        p.activation, [&]<enum activation A>() { to.template store<A>(shared); });
    if (B_T || !p.sums) return;
    asm volatile("bar.sync 1, %0;" : : "n"(layout<GROUPS>::THREADS) : "memory");
    to.store_sums(shared);
}

template <bool B_T, int GROUPS, int PARTS, typename T>
__global__ void __launch_bounds__(layout<GROUPS>::THREADS + 32, 2)
    bf16_short_kernel(const __grid_constant__ product p) {
#ifdef HAVE_WGMMA
    typedef layout<GROUPS> at;
    extern __shared__ __align__(1024) char shared[];
    const barriers bars(shared + p.stages * at::STAGE_BYTES);
    const share<PARTS> own(p);
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
        produce<B_T, GROUPS>(p, shared, bars, own);
    } else {
        consume<B_T, GROUPS, T>(p, shared, bars, own);
    }
#endif
}

/* --- the host --- */

typedef void kernel(product);

template <typename T, int PARTS> static kernel *kernel_of(enum gemm_op op, unsigned groups) {
    return op == GEMM_NN
               ? groups == 1 ? bf16_short_kernel<true, 1, PARTS, T> : bf16_short_kernel<true, 2, PARTS, T>
           : groups == 1 ? bf16_short_kernel<false, 1, PARTS, T>
                         : bf16_short_kernel<false, 2, PARTS, T>;
}

template <typename T> static kernel *kernel_of(enum gemm_op op, unsigned groups, unsigned parts) {
    return parts == 8   ? kernel_of<T, 8>(op, groups)
           : parts == 4 ? kernel_of<T, 4>(op, groups)
           : parts == 3 ? kernel_of<T, 3>(op, groups)
                        : kernel_of<T, 2>(op, groups);
}

static kernel *kernel_of(enum gemm_dtype dtype, enum gemm_op op, unsigned groups, unsigned parts) {
    return dtype == GEMM_BF16 ? kernel_of<__nv_bfloat16>(op, groups, parts)
                              : kernel_of<__half>(op, groups, parts);
}

static unsigned groups_of(const struct gemm_call *call) {
    return call->m > 64 ? 2 : 1;
}

static unsigned bytes_of(unsigned groups, unsigned stages) {
    return stages * (groups == 1 ? layout<1>::STAGE_BYTES : layout<2>::STAGE_BYTES) + BARRIER_BYTES;
}

struct split {
    unsigned parts, pair, stages;
};

/* Measured on H100 and H200: with fewer blocks than SMs clusters are spread evenly. With 4 stages (6 of 64
   rows) two blocks fit on an SM, so that the next kernel starts early; long k is faster with more, if all
   clusters fit nevertheless. parts 0: too few stages of k. */
static split split_of(const struct short_workspace *workspace, const struct gemm_call *call) {
    static const struct {
        unsigned parts, pair, tiles; /* up to so many tiles */
    } choices[2][5] = {{{8, 1, 12}, {4, 1, 25}, {3, 1, 38}, {4, 1, 40}, {2, 1, ~0u}},
                       {{8, 1, 12}, {4, 2, 25}, {3, 2, 34}, {2, 2, ~0u}}};
    const unsigned tiles = blocks_for(call->n, COLUMNS), stages = blocks_for(call->k, STAGE_K),
                   groups = groups_of(call);
    for (const auto &some : choices[groups - 1]) {
        const unsigned fit = workspace->clusters[some.parts * some.pair];
        if (!some.parts || some.parts > stages || tiles > some.tiles || !fit) continue;
        const bool deep = stages >= 8 * some.parts && blocks_for(tiles, some.pair) <= fit;
        return {some.parts, some.pair, deep ? MOST_STAGES : groups == 1 ? 6 : 4};
    }
    return {};
}

static product product_of(const struct gemm_call &call, split some) {
    product p = {.c = call.c,
                 .ldc = call.ldc,
                 .m = (unsigned)call.m,
                 .n = (unsigned)call.n,
                 .k = (unsigned)call.k,
                 .pair = some.pair,
                 .stages = some.stages,
                 .activation = ACTIVATION_NONE,
                 .alpha = (float)call.alpha,
                 .b_early = call.b_complete};
    if (call.epilogue) {
        p.pre = call.epilogue->pre;
        p.bias = (const float *)call.epilogue->bias;
        p.activation = call.epilogue->activation;
    } else if (call.backward) {
        p.read =
            (activation_needs_input(call.backward->activation) ? call.backward->pre : call.backward->output);
        p.sums = (float *)call.backward->bias_grad;
        p.sum_scale = (float)gemm_bias_scale(&call);
        p.activation = call.backward->activation;
    }
    return p;
}

static bool aligned(const void *memory) {
    return (uintptr_t)memory % 4 == 0;
}

static bool reads_pairs(const struct gemm_call *call) {
    if (call->epilogue)
        return call->op == GEMM_NN && (uintptr_t)call->epilogue->bias % 8 == 0 &&
               aligned(call->epilogue->pre);
    return !call->backward ||
           (call->op == GEMM_NT && aligned(call->backward->pre) && aligned(call->backward->output));
}

} // namespace bf16_short

using namespace bf16_short;

void bf16_short_workspace_open(struct short_workspace *workspace) {
    *workspace = {.open = tensor_map_open()};
    for (const enum gemm_dtype dtype : {GEMM_BF16, GEMM_F16})
        for (const enum gemm_op op : {GEMM_NN, GEMM_NT})
            for (const unsigned parts : {2, 3, 4, 8})
                for (unsigned groups = 1; groups <= 2 && workspace->open; groups++)
                    workspace->open = cuda_allows_wgmma((const void *)kernel_of(dtype, op, groups, parts),
                                                        bytes_of(groups, MOST_STAGES));
    for (unsigned blocks = 2; blocks <= SHORT_MOST_PARTS && workspace->open; blocks++)
        workspace->clusters[blocks] =
            clusters_that_fit((const void *)kernel_of(GEMM_BF16, GEMM_NN, 2, 2), blocks,
                              layout<2>::THREADS + 32, bytes_of(2, MOST_STAGES));
}

bool bf16_short_supports(const struct short_workspace *workspace, const struct gemm_call *call) {
    return workspace->open && gemm_is_16bit(call->dtype) && (call->op == GEMM_NN || call->op == GEMM_NT) &&
           call->m <= 128 && call->n <= 1 << 24 && call->k <= 1 << 24 && call->n % 8 == 0 && !call->c_f32 &&
           call->beta == 0 && split_of(workspace, call).parts && tensor_map_fits(call->a, call->lda, 2) &&
           tensor_map_fits(call->b, call->ldb, 2) && aligned(call->c) && call->ldc % 2 == 0 &&
           reads_pairs(call);
}

void bf16_short_gemm(const struct short_workspace *workspace, const struct gemm_call *call,
                     cuda_launcher &launcher) {
    const unsigned groups = groups_of(call);
    const split some = split_of(workspace, call);
    const bool rows_of_k = call->op == GEMM_NN; /* of B in memory */
    product p = product_of(*call, some);
    if (!launcher.describe) {
        tensor_map_matrix(&p.a, call->a, false, call->m, call->k, call->lda, groups * 64 / some.pair,
                          launcher.fault);
        tensor_map_matrix(&p.b, call->b, false, rows_of_k ? call->k : call->n, rows_of_k ? call->n : call->k,
                          call->ldb, rows_of_k ? STAGE_K : COLUMNS, launcher.fault);
    }
    if (launcher.fault->message[0]) return;
    const unsigned clusters = blocks_for(call->n, COLUMNS * some.pair), blocks = some.parts * some.pair;
    launch_dependent(launcher, "bf16_short_kernel", kernel_of(call->dtype, call->op, groups, some.parts),
                     dim3(clusters * blocks), groups * GROUP + 32, bytes_of(groups, p.stages), blocks, p);
}
