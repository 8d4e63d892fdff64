/* Weight gradients of operands of 16 bits (T: __nv_bfloat16 or __half), C = X^T dY. They may update the
   weights themselves: then C is never stored. Here are the kernel for short batches, and the launches of it
   and of the one for medium batches, which is in bf16_gradient_wgmma.cu.

   Idea       tiles of 64 x 64, several thread blocks on an SM, so that loads, products and stores of
              different blocks overlap. A thread requests its 16 weights (and moments) before the products.
              Sums pass through shared memory, so that a warp accesses whole rows of a tile, 16 bytes a lane.
              One launch has all layers of a step: its start and end, which few copies fill, come once.
   Bound by   bytes: for each weight 4 read and 6 written (sgd), 12 and 14 (adam); apart, the product writes 4
              more, and the update reads 4 more
   Improves   6_tuned.cu with update.cu */
#include "kernels/cuda/tensor/bf16_gradient.cuh"

#include "kernels/cuda/ops/same_rule.cuh"
#include "kernels/cuda/tensor/bf16_gradient_list.cuh"
#include "kernels/cuda/tensor/ldmatrix.cuh"
#include "kernels/cuda/tensor/mma_16bit.cuh"
#include "kernels/cuda/tensor/tensor_map.cuh"

namespace {

const unsigned SIDE = 64, MOST_K = SHORT_GRADIENT_K, THREADS = 256; /* SIDE: of a tile; eight warps, 4 x 2 */
const unsigned ROW_BYTES = SIDE * 2, OPERAND_BYTES = MOST_K * ROW_BYTES;

/* The products of a warp: 16 rows of C, and 4 tiles of 8 columns. An operand has 128 bytes for each k, as
   tensor_load swizzles them. */
template <typename T>
__device__ void multiply(float (&sums)[4][4], const char *a, const char *b, unsigned rows, unsigned warp) {
    const unsigned lane = threadIdx.x % 32, matrix = lane / 8, row = lane % 8;
    const unsigned a_unit = warp / 2 * 2 + matrix % 2, b_unit = warp % 2 * 4 + matrix / 2;
#pragma unroll
    for (unsigned k = 0; k < MOST_K; k += 16) {
        if (k >= rows) break;
        uint32_t left[4], right[4];
        ldmatrix_x4_trans(left, a + (k + matrix / 2 * 8 + row) * ROW_BYTES + ((a_unit ^ row) << 4));
#pragma unroll
        for (unsigned pair = 0; pair < 2; pair++) {
            ldmatrix_x4_trans(right,
                              b + (k + matrix % 2 * 8 + row) * ROW_BYTES + ((b_unit + 2 * pair ^ row) << 4));
            mma_16bit<T>(sums[2 * pair], left, right[0], right[1]);
            mma_16bit<T>(sums[2 * pair + 1], left, right[2], right[3]);
        }
    }
}

/* Four neighbours of a row of the tile in shared memory, 256 bytes a row, units of 16 bytes swizzled. */
__device__ char *four_of(char *tile, unsigned row, unsigned unit) {
    return tile + row * SIDE * 4 + ((unit ^ row % 8 * 2) << 4);
}

/* All threads: the sums of a block. */
__device__ void store_sums(char *tile, const float (&sums)[4][4], unsigned warp) {
    const unsigned lane = threadIdx.x % 32, row = warp / 2 * 16 + lane / 4,
                   unit = warp % 2 * 8 + lane % 4 / 2;
#pragma unroll
    for (unsigned i = 0; i < 8; i++)
        *(float2 *)(four_of(tile, row + i % 2 * 8, unit + i / 2 * 2) + lane % 2 * 8) =
            make_float2(sums[i / 2][i % 2 * 2], sums[i / 2][i % 2 * 2 + 1]);
}

/* The four packs of a thread. Pack i: row + 16 i. A warp has two whole rows of the tile at a time. */
struct packs {
    const weight_gradient &p;
    unsigned row, column;

    __device__ packs(const weight_gradient &p, unsigned row0, unsigned column0)
        : p(p), row(row0 + threadIdx.x / 16), column(column0 + threadIdx.x % 16 * 4) {}

    __device__ bool inside(unsigned i) const {
        return row + 16 * i < p.m && column < p.n;
    }

    __device__ size_t at(unsigned i) const {
        return (row + 16 * i) * p.ldc + column;
    }
};

template <typename T, update_method METHOD, int ARRAYS, int BLOCKS>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    short_gradient_kernel(const __grid_constant__ weight_gradients all) {
    __shared__ __align__(1024) char a[OPERAND_BYTES], b[OPERAND_BYTES];
    __shared__ uint64_t arrived;
    const unsigned number = all.number_of(blockIdx.x);
    const weight_gradient &p = all.list[number];
    const unsigned tile = blockIdx.x - all.first[number], warp = threadIdx.x / 32;
    const unsigned row0 = tile / p.columns * SIDE, column0 = tile % p.columns * SIDE;
    const packs own(p, row0, column0);
    pack<float, 4> was[4][ARRAYS];
    update_rates<float> rates = {};
    bool bad = false;
    if (threadIdx.x == 0) mbarrier_init(&arrived);
    if (threadIdx.x == 0 && p.k) {
        mbarrier_expect_tx(&arrived, 2 * OPERAND_BYTES);
        tensor_load(a, p.a, row0, 0, &arrived);
        tensor_load(b, p.b, column0, 0, &arrived);
    }
    if constexpr (METHOD != UPDATE_NONE) {
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int array = 0; array < ARRAYS; array++)
                if (own.inside(i)) was[i][array] = load_once(p.array[array] + own.at(i));
        rates = update_rates<float>(METHOD, all.rule, all.step);
        bad = all.guard->bad_step;
    }
    float sums[4][4] = {};
    __syncthreads(); /* the mbarrier is initialised */
    if (p.k) mbarrier_wait(&arrived, 0);
    if (bad) return;
    multiply<T>(sums, a, b, p.k, warp);
    __syncthreads(); /* all have read the operands */
    store_sums(a, sums, warp);
    __syncthreads();
#pragma unroll
    for (unsigned i = 0; i < 4; i++) {
        if (!own.inside(i)) continue;
        pack<float, 4> four =
            pack_at<4>((const float *)four_of(a, threadIdx.x / 16 + 16 * i, threadIdx.x % 16));
        if constexpr (METHOD != UPDATE_NONE) {
            if (!p.k) four = pack_at<4>(p.c + own.at(i));
            update_pack<T, METHOD>(p, all.rule, rates, four, was[i], own.at(i));
        } else {
            store_pack(p, four, own.at(i));
        }
    }
}

/* --- the host --- */

bool aligned(const void *memory, size_t ld, size_t element_bytes, size_t bytes) {
    return (uintptr_t)memory % bytes == 0 && ld * element_bytes % bytes == 0;
}

template <typename T> weight_gradient_kernel *kernel_of(const struct update &rule) {
    switch (rule.method) {
    case UPDATE_NONE:
        break;
    case UPDATE_SGD:
        return rule.moment1 ? short_gradient_kernel<T, UPDATE_SGD, 2, 3>
                            : short_gradient_kernel<T, UPDATE_SGD, 1, 4>;
    case UPDATE_ADAM:
        return short_gradient_kernel<T, UPDATE_ADAM, 3, 2>;
    case UPDATE_ADAMW:
        return short_gradient_kernel<T, UPDATE_ADAMW, 3, 2>;
    }
    return short_gradient_kernel<T, UPDATE_NONE, 1, 4>;
}

/* A launch while gradients are added to it. */
struct gradient_launch {
    const struct weight_update &first; /* all have its rule */
    const enum gemm_dtype dtype;
    const bool medium;
    unsigned count = 0;
    weight_gradients all;

    gradient_launch(const struct weight_update &first, const struct gemm_call &call)
        : first(first), dtype(call.dtype),
          medium(call.k > SHORT_GRADIENT_K), all{.rule = update_rule<float>(first.rule),
                                                 .step = first.step,
                                                 .guard = first.guard} {
        for (unsigned &tile : all.first) tile = ~0u;
    }

    bool takes(const struct gemm_call &call, const struct weight_update &other) const {
        return count < MOST_GRADIENTS && call.dtype == dtype && same_rule(first, other) &&
               (!call.k || medium == (call.k > SHORT_GRADIENT_K));
    }

    void add(const struct gemm_call &call, const struct update &rule, cuda_launcher &launcher) {
        const unsigned side = medium ? MEDIUM_SIDE : SIDE, box = medium ? MEDIUM_K : MOST_K;
        weight_gradient &p = all.list[count];
        p = {.ldc = call.ldc,
             .m = (unsigned)call.m,
             .n = (unsigned)call.n,
             .k = (unsigned)call.k,
             .columns = blocks_for(call.n, side),
             .alpha = (float)(call.k ? call.alpha : call.beta),
             .c = (const float *)call.c,
             .array = {(float *)rule.weights, (float *)rule.moment1, (float *)rule.moment2},
             .rounded = rule.rounded};
        all.first[count++] = all.tiles;
        all.tiles += p.columns * blocks_for(call.m, side);
        if (launcher.describe || !call.k) return;
        tensor_map_matrix(&p.a, call.a, TENSOR_16BIT, call.k, call.m, call.lda, box, launcher.fault);
        tensor_map_matrix(&p.b, call.b, TENSOR_16BIT, call.k, call.n, call.ldb, box, launcher.fault);
    }

    void start(unsigned processors, cuda_launcher &launcher) const {
        if (launcher.fault->message[0]) return;
        if (medium)
            launch(launcher, "medium_gradient_kernel", medium_gradient_of(dtype, first.rule),
                   all.tiles < processors ? all.tiles : processors, MEDIUM_THREADS, MEDIUM_SHARED_BYTES, all);
        else
            launch(launcher, "short_gradient_kernel",
                   dtype == GEMM_F16 ? kernel_of<__half>(first.rule) : kernel_of<__nv_bfloat16>(first.rule),
                   dim3(all.tiles), THREADS, 0, all);
    }
};

/* Without a product, in packs of four. */
bool takes_small_update(const struct gemm_call *call) {
    return gemm_is_16bit(call->dtype) && call->c_f32 && is_small_update(call) && call->n % 4 == 0 &&
           aligned(call->c, call->ldc, 4, 16);
}

} // namespace

/* Measured on an H200 (docs/bf16.md): the kernel for medium batches needs many tiles. */
static bool pays(const struct gemm_call *call) {
    const size_t least = (size_t)(call->k > 512 ? 7 : 4) << 16;
    return call->k <= SHORT_GRADIENT_K || (call->k <= MOST_GRADIENT_K && call->m * call->n >= least);
}

bool bf16_gradient_takes(const struct gemm_call *call) {
    const size_t least = 64, most = (size_t)1 << 21;
    return gemm_is_16bit(call->dtype) && call->c_f32 && call->op == GEMM_TN && call->beta == 0 &&
           call->k >= least && call->m >= least && call->n >= least && call->m <= most && call->n <= most &&
           pays(call) && call->m % 8 == 0 && call->n % 8 == 0 && tensor_map_fits(call->a, call->lda, 2) &&
           tensor_map_fits(call->b, call->ldb, 2) && aligned(call->c, call->ldc, 4, 16);
}

bool bf16_gradient_fits(const struct gemm_call *call, const struct weight_update *update) {
    const struct update &rule = update->rule;
    return rule.method != UPDATE_NONE && !rule.clip && !rule.average && rule.rounded &&
           aligned(rule.weights, call->ldc, 4, 16) && aligned(rule.moment1, call->ldc, 4, 16) &&
           aligned(rule.moment2, call->ldc, 4, 16) && aligned(rule.rounded, call->ldc, 2, 8);
}

bool bf16_gradient_updates(const struct gemm_call *call, const struct weight_update *update) {
    return (bf16_gradient_takes(call) || takes_small_update(call)) && bf16_gradient_fits(call, update);
}

void bf16_gradient_gemm(const struct gemm_call *call, unsigned processors, cuda_launcher &launcher) {
    const struct weight_update stored = {.rule = {.method = UPDATE_NONE, .weights = call->c}};
    gradient_launch one(stored, *call);
    one.add(*call, stored.rule, launcher);
    one.start((unsigned)gemm_multiprocessors(*call, (int)processors), launcher);
}

void bf16_gradient_update(const struct gemm_call *calls, const struct weight_update *updates, size_t count,
                          unsigned processors, cuda_launcher &launcher) {
    for (size_t i = 0; i < count;) {
        gradient_launch some(updates[i], calls[i]);
        do {
            some.add(calls[i], updates[i].rule, launcher);
        } while (++i < count && some.takes(calls[i], updates[i]));
        some.start(processors, launcher);
    }
}
