/* The GEMM of 16 bits on the tensor cores: from sums in registers to C, with the epilogues. Each warp stores
   its 16 rows, 128 bytes of each at a time, through slots of shared memory. The copy engine moves them while
   the warp goes on. */
#ifndef TESSERA_KERNELS_CUDA_TENSOR_BF16_STORE_CUH
#define TESSERA_KERNELS_CUDA_TENSOR_BF16_STORE_CUH

#include "kernels/cuda/tensor/bf16.cuh"
#include "kernels/cuda/tensor/ldmatrix.cuh"
#include "kernels/cuda/tensor/mma_16bit.cuh"
#include "kernels/cuda/tensor/tensor_map.cuh"
#include "kernels/cuda/tensor/wgmma.cuh"

namespace bf16 {

static const unsigned GROUP = 128;                                      /* threads of a warpgroup */
static const unsigned SLOTS = BF16_SLOTS, SLOT_BYTES = BF16_SLOT_BYTES; /* of a warp: 16 rows of 128 bytes */
static const unsigned PART = 64;                                        /* columns of 16 bits in a slot */

/* tanh, relatively within 2^-11 for bfloat16, which keeps 8 bits. Half precision, which keeps 11, has tanhf:
   25 instructions. */
template <typename T> static __device__ float tanh_of(float x) {
    if constexpr (IS_HALF<T>) return tanhf(x);
#if __CUDA_ARCH__ >= 900
    asm("tanh.approx.f32 %0, %0;" : "+f"(x));
#endif
    return x;
}

/* 1 / (1 + e^-x) by the exponential and the quotient of the hardware: the error is at most 2^-17. */
static __device__ float sigmoid_of(float x) {
    return __fdividef(1, 1 + __expf(-x));
}

/* Two activated values; `rounded` are both, before the activation, as T. */
template <enum activation A, typename T = __nv_bfloat16>
static __device__ uint32_t activated(float x, float y, uint32_t rounded) {
    if constexpr (A == ACTIVATION_NONE) return rounded;
    if constexpr (A == ACTIVATION_RELU) {
        typedef std::conditional_t<IS_HALF<T>, __half2, __nv_bfloat162> two;
        const two both = __hmax2_nan(*(const two *)&rounded, two());
        return *(const uint32_t *)&both;
    }
    if constexpr (A == ACTIVATION_TANH) return round_pair_to<T>(tanh_of<T>(x), tanh_of<T>(y));
    if constexpr (A == ACTIVATION_SCALED_TANH) {
        const float inner = 2.0f / 3.0f, outer = 1.7159f;
        return round_pair_to<T>(outer * tanh_of<T>(inner * x), outer * tanh_of<T>(inner * y));
    }
    if constexpr (A == ACTIVATION_SIGMOID) return round_pair_to<T>(sigmoid_of(x), sigmoid_of(y));
    return round_pair_to<T>(activate(A, x), activate(A, y));
}

/* A part of the sums, COUNT of ALL, so that the epilogue is not unrolled for each part. */
template <int COUNT, int ALL>
static __device__ void select(float (&some)[COUNT], const float (&sums)[ALL], unsigned part) {
#pragma unroll
    for (unsigned c = 0; c < ALL / COUNT; c++)
        if (c == part) {
            asm volatile(""); /* a branch, not COUNT choices */
#pragma unroll
            for (int i = 0; i < COUNT; i++) some[i] = sums[c * COUNT + i];
        }
}

/* A warp that stores 16 x N sums of each tile. Forward products (NN) alone have the forward epilogue, input
   gradients (NT) alone the backward one: each kernel is compiled with what it can need. */
template <typename T, bool A_T, bool B_T, int N> struct tile_store {
    typedef bf16_product product;
    static constexpr bool PARTS = true; /* k may be in parts */
    static constexpr bool FORWARD = !A_T && B_T, BACKWARD = !A_T && !B_T;
    const bf16_product &p;
    char *slots;          /* of this warp */
    uint64_t *arrived;    /* the mbarrier of this warp: what the backward epilogue reads was copied */
    unsigned group, warp; /* of the block; of the group */
    bool stores;          /* not if another part of k has the sums */
    unsigned phase = 0;   /* of `arrived` */
    unsigned row0, column0;
    /* Of part i: columns 2 lane and the one after it. It is loaded beside the products, because the fence
       between stores waits for loads. */
    float2 bias[N / PART];

    __device__ tile_store(const bf16_product &product, char *slots_of_block, uint64_t *arrived_of_block)
        : p(product) {
        const unsigned index = uniform(threadIdx.x / 32);
        group = index / 4;
        warp = index % 4;
        slots = slots_of_block + index * SLOTS * SLOT_BYTES;
        arrived = arrived_of_block + index;
    }

    static __device__ unsigned lane() {
        return threadIdx.x % 32;
    }

    /* What this lane passes to stmatrix and ldmatrix for 16 columns of a slot, from 16 pair on. */
    __device__ char *fragment(char *slot, unsigned pair) const {
        const unsigned row = lane() % 16, unit = 2 * pair + lane() / 16;
        return slot + row * 128 + ((unit ^ row % 8) << 4);
    }

    __device__ char *slot(unsigned number) const {
        return slots + number % SLOTS * SLOT_BYTES;
    }

    __device__ void store_plain(const float (&sums)[N / 2]) const {
#pragma unroll
        for (unsigned part = 0; part < N / PART; part++) {
            char *const to = slot(part);
            tensor_stores_wait(SLOTS - 1);
#pragma unroll
            for (int pair = 0; pair < 4; pair++) {
                uint32_t words[4];
#pragma unroll
                for (int q = 0; q < 4; q++) {
                    const int i = part * 32 + pair * 8 + q * 2;
                    words[q] = round_pair_to<T>(p.alpha * sums[i], p.alpha * sums[i + 1]);
                }
                stmatrix_x4(fragment(to, pair), words);
            }
            tensor_stores_begin();
            tensor_store(p.c, column0 + part * PART, row0, to);
        }
    }

    __device__ void store_floats(const float (&sums)[N / 2]) const {
        const unsigned row = lane() / 4, half = lane() % 4 / 2, odd = lane() % 2;
#pragma unroll
        for (unsigned part = 0; part < N / (PART / 2); part++) {
            char *const to = slot(part);
            tensor_stores_wait(SLOTS - 1);
#pragma unroll
            for (int q = 0; q < 8; q++) { /* column group q / 2, row + 8 (q % 2) */
                const int i = part * 16 + q * 2;
                *(float2 *)(to + (row + q % 2 * 8) * 128 + ((q / 2 * 2 + half ^ row) << 4) + odd * 8) =
                    make_float2(p.alpha * sums[i], p.alpha * sums[i + 1]);
            }
            tensor_stores_begin();
            tensor_store(p.c, column0 + part * (PART / 2), row0, to);
        }
    }

    __device__ void load_bias() {
#pragma unroll
        for (unsigned part = 0; part < N / PART; part++) {
            const unsigned column = column0 + part * PART + 2 * lane();
            if (column < p.n) bias[part] = __ldg((const float2 *)(p.bias + column));
        }
    }

    /* Of the next part: columns 8 i + 2 (lane % 4) and the one after it. */
    __device__ void take_bias(float2 (&own)[8]) {
        const float2 mine = bias[0];
#pragma unroll
        for (unsigned part = 0; part + 1 < N / PART; part++) bias[part] = bias[part + 1];
#pragma unroll
        for (unsigned i = 0; i < 8; i++) {
            const unsigned from = 4 * i + lane() % 4;
            own[i] = make_float2(__shfl_sync(~0u, mine.x, from), __shfl_sync(~0u, mine.y, from));
        }
    }

    template <enum activation A> __device__ void store_forward(const float (&sums)[N / 2]) {
        const unsigned stores = p.stores_pre ? 2 : 1; /* for each part */
#pragma unroll 1
        for (unsigned part = 0, parts = parts_inside(); part < parts; part++) {
            const unsigned column = column0 + part * PART;
            char *const to = slot(part * stores), *const to_pre = slot(part * stores + 1);
            float some[32];
            float2 own[8];
            select(some, sums, part);
            take_bias(own);
            tensor_stores_wait(SLOTS - stores);
#pragma unroll
            for (int pair = 0; pair < 4; pair++) {
                uint32_t pre[4], words[4];
#pragma unroll
                for (int q = 0; q < 4; q++) {
                    const int i = pair * 8 + q * 2;
                    const float x = fmaf(p.alpha, some[i], own[i / 4].x),
                                y = fmaf(p.alpha, some[i + 1], own[i / 4].y);
                    pre[q] = round_pair_to<T>(x, y);
                    words[q] = activated<A, T>(x, y, pre[q]);
                }
                if (p.stores_pre) stmatrix_x4(fragment(to_pre, pair), pre);
                stmatrix_x4(fragment(to, pair), words);
            }
            tensor_stores_begin();
            if (p.stores_pre) tensor_store(p.pre, column, row0, to_pre);
            tensor_store(p.c, column, row0, to);
        }
    }

    /* Parts with columns of C. */
    __device__ unsigned parts_inside() const {
        return min(N / PART, (p.n - column0 + PART - 1) / PART);
    }

    /* Copies what the backward epilogue reads of two parts to the slots. */
    __device__ void load(unsigned first) const {
        const unsigned end = min(first + SLOTS, parts_inside());
        tensor_stores_wait(0);
        if (lane()) return;
        mbarrier_expect_tx(arrived, (end - first) * SLOT_BYTES);
        for (unsigned part = first; part < end; part++)
            tensor_load(slot(part), p.read, column0 + part * PART, row0, arrived);
    }

    /* The rest of it to the L2 cache. */
    __device__ void prefetch() const {
        if (lane()) return;
        for (unsigned part = SLOTS, parts = parts_inside(); part < parts; part++)
            tensor_prefetch(p.read, column0 + part * PART, row0);
    }

    /* The sums of two columns of a part, from 2 lane on, as it is in the slot: tensor cores multiply it by
       ones. */
    __device__ float2 column_sums(char *from) const {
        const uint32_t ones = ONES<T>;
        float2 total = {};
#pragma unroll
        for (unsigned pair = 0; pair < 4; pair++) {
            uint32_t words[4];
            ldmatrix_x4_trans(words, fragment(from, pair));
#pragma unroll
            for (unsigned h = 0; h < 2; h++) {
                float sums[4] = {};
                mma_16bit<T>(sums, ones, ones, ones, ones, words[2 * h], words[2 * h + 1]);
                if (lane() / 4 == 2 * pair + h) total = make_float2(sums[0], sums[1]);
            }
        }
        return total;
    }

    /* Of all parts. */
    __device__ void store_column_sums(const float2 (&totals)[N / PART]) const {
        float *const to = p.partials + (size_t)(row0 / BF16_SUMMED_ROWS) * p.n;
#pragma unroll
        for (unsigned part = 0; part < N / PART; part++) {
            const unsigned column = column0 + part * PART + 2 * lane();
            if (column < p.n) *(float2 *)(to + column) = totals[part];
        }
    }

    /* A part, in place of what the slot has. Returns the sums of its columns. */
    template <enum activation A>
    __device__ float2 store_part(const float (&sums)[N / 2], unsigned part) const {
        const bool upper = row0 + lane() / 4 < p.m, lower = row0 + lane() / 4 + 8 < p.m;
        char *const to = slot(part);
#pragma unroll
        for (unsigned pair = 0; pair < 4; pair++) {
            uint32_t words[4];
            ldmatrix_x4(words, fragment(to, pair));
#pragma unroll
            for (unsigned q = 0; q < 4; q++) {
                const unsigned i = part * 32 + pair * 8 + q * 2;
                const float2 y = floats_of<T>(words[q]);
                words[q] = round_gradients_to<T>(p.alpha * sums[i] * derivative(A, y.x, y.x),
                                                 p.alpha * sums[i + 1] * derivative(A, y.y, y.y));
                if (!(q % 2 ? lower : upper)) words[q] = 0;
            }
            stmatrix_x4(fragment(to, pair), words);
        }
        tensor_stores_begin();
        tensor_store(p.c, column0 + part * PART, row0, to);
        return column_sums(to);
    }

    template <enum activation A> __device__ void store_backward(const float (&sums)[N / 2]) {
        const unsigned parts = parts_inside();
        float2 totals[N / PART] = {};
#pragma unroll
        for (unsigned part = 0; part < N / PART; part++) {
            if (part >= parts) break;
            if (part % SLOTS == 0) {
                if (part) load(part);
                mbarrier_wait(arrived, phase++);
            }
            totals[part] = store_part<A>(sums, part);
        }
        store_column_sums(totals);
    }

    /* Before the products of a tile: the upper left element of this warp. */
    __device__ void begin(unsigned row, unsigned column) {
        row0 = row + group * 64 + warp * 16;
        column0 = column;
    }

    /* Beside the products: requests what the epilogue reads. */
    __device__ void request() {
        if (!stores || row0 >= p.m) return;
        if (FORWARD && p.epilogue == BF16_FORWARD) load_bias();
        if (BACKWARD && p.epilogue == BF16_BACKWARD) {
            load(0);
            prefetch();
        }
    }

    __device__ void prepare() const {}

    __device__ void store(const float (&sums)[N / 2]) {
        if (!stores || row0 >= p.m) return;
        if (p.epilogue != BF16_BACKWARD)
            tensor_stores_wait(0); /* of the last tile, which had any of the slots */
        if (p.epilogue == BF16_FLOAT32) {
            store_floats(sums);
        } else if (p.epilogue == BF16_PLAIN) {
            store_plain(sums);
        } else if constexpr (FORWARD) {
            with_activation(
                p.activation, [&]<enum activation A>() { store_forward<A>(sums); });
        } else if constexpr (BACKWARD) {
            with_activation(
                p.activation, [&]<enum activation A>() { store_backward<A>(sums); });
        }
    }
};

} // namespace bf16

#endif
