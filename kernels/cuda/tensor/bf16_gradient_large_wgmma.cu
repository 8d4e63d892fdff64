/* Weight gradients of operands of 16 bits (T: __nv_bfloat16 or __half) in large batches, C = X^T dY, that
   update the weights themselves: the kernel of bf16_wgmma.cuh, whose warps update weights and moments in
   place of storing C.

   Idea       no gradient is written or read again, and no kernel updates weights after the products: the
              bytes of the update are moved between the products of two tiles, and the first ones requested
              beside the last products
   Bound by   tensor cores; between tiles, bytes of the L2 cache
   Improves   bf16_wgmma.cu with update.cu */
#include "kernels/cuda/tensor/bf16_gradient_large.cuh"

#include "kernels/cuda/tensor/bf16_gradient_list.cuh"
#include "kernels/cuda/tensor/bf16_wgmma.cuh"

namespace bf16 {

static const unsigned COLUMNS = LARGE_GRADIENT_COLUMNS; /* of a tile */

/* A product, and the update of the weights whose gradient it is. */
struct updating_product : bf16_product {
    size_t ld;       /* of weights, moments and the copy */
    float *array[3]; /* weights and moments */
    void *rounded;   /* T */
    update_rule<float> rule;
    const struct step_scalars *step;
    const struct tally *guard;
};

/* A warp that updates the 16 x COLUMNS weights of its sums, 16 x 64 at a time: a part. Of each part a lane
   has PACKS packs of four neighbours: pack i in row 2 i + lane / 16, so that a warp accesses two rows of 256
   bytes at a time. Packs are numbered over all parts. */
template <typename T, update_method METHOD, int ARRAYS> struct tile_update {
    typedef updating_product product;
    static constexpr bool PARTS = false;
    static constexpr unsigned PACKS = 8, ALL = PACKS * COLUMNS / PART;
    static constexpr unsigned AHEAD = PACKS >> (ARRAYS - 1); /* packs requested before they are used */
    const product &p;
    char *slot; /* of this warp: the sums of a part */
    unsigned group, warp;
    bool bad;               /* the loss was not finite */
    unsigned row0, column0; /* the first weight of this lane */
    update_rates<float> rates;
    pack<float, 4> was[AHEAD][ARRAYS];

    __device__ tile_update(const product &product, char *slots, uint64_t *)
        : p(product), bad(p.guard->bad_step), rates(METHOD, p.rule, p.step) {
        const unsigned index = uniform(threadIdx.x / 32);
        group = index / 4;
        warp = index % 4;
        slot = slots + index * SLOTS * SLOT_BYTES;
    }

    /* Before the products of a tile. */
    __device__ void begin(unsigned row, unsigned column) {
        row0 = row + group * 64 + warp * 16 + threadIdx.x % 32 / 16;
        column0 = column + threadIdx.x % 16 * 4;
    }

    __device__ void request() const {}

    __device__ bool inside(unsigned i) const {
        return row0 + i % PACKS * 2 < p.m && column0 + i / PACKS * PART < p.n;
    }

    __device__ size_t at(unsigned i) const {
        return (row0 + i % PACKS * 2) * p.ld + column0 + i / PACKS * PART;
    }

    __device__ void load(unsigned i) {
#pragma unroll
        for (int array = 0; array < ARRAYS; array++)
            was[i % AHEAD][array] = inside(i) ? load_once(p.array[array] + at(i)) : pack<float, 4>();
    }

    /* Beside the last products of a tile: requests the first weights and moments. */
    __device__ void prepare() {
#pragma unroll
        for (unsigned i = 0; i < AHEAD; i++) load(i);
    }

    /* Four neighbours of a row of the slot; units of 16 bytes are swizzled. */
    __device__ char *four_of(unsigned row, unsigned unit) const {
        return slot + row * PART * sizeof(float) + ((unit ^ row % 8 * 2) << 4);
    }

    /* The sums of a part, to the slot. */
    __device__ void exchange(const float *sums) const {
        const unsigned lane = threadIdx.x % 32;
        __syncwarp(); /* all have read the slot */
#pragma unroll
        for (unsigned i = 0; i < 16; i++) /* column group i / 2, row + 8 (i % 2) */
            *(float2 *)(four_of(lane / 4 + i % 2 * 8, i / 2 * 2 + lane % 4 / 2) + lane % 2 * 8) =
                make_float2(sums[2 * i], sums[2 * i + 1]);
        __syncwarp();
    }

    __device__ void store(const float (&sums)[COLUMNS / 2]) {
        const unsigned lane = threadIdx.x % 32;
        if (bad) return;
#pragma unroll
        for (unsigned first = 0; first < ALL; first += AHEAD) {
            pack<float, 4> four[AHEAD];
            if (first % PACKS == 0) exchange(sums + first / PACKS * 32);
#pragma unroll
            for (unsigned i = 0; i < AHEAD; i++)
                four[i] = pack_at<4>((const float *)four_of((first + i) % PACKS * 2 + lane / 16, lane % 16));
#pragma unroll
            for (unsigned i = first; i < first + AHEAD; i++) {
                if (inside(i))
                    update_pack<T, METHOD>(p, p.rule, rates, four[i - first], was[i % AHEAD], at(i));
                if (i + AHEAD < ALL) load(i + AHEAD);
            }
        }
    }
};

typedef void updating_kernel(updating_product);

template <typename T, update_method METHOD, int ARRAYS>
static constexpr updating_kernel *UPDATING =
    bf16_kernel<tile_update<T, METHOD, ARRAYS>, T, true, true, COLUMNS>;

template <typename T> static updating_kernel *updating_kernel_of(enum update_method method, bool moment) {
    return method == UPDATE_ADAM    ? UPDATING<T, UPDATE_ADAM, 3>
           : method == UPDATE_ADAMW ? UPDATING<T, UPDATE_ADAMW, 3>
           : moment                 ? UPDATING<T, UPDATE_SGD, 2>
                                    : UPDATING<T, UPDATE_SGD, 1>;
}

static updating_kernel *updating_kernel_of(enum gemm_dtype dtype, enum update_method method, bool moment) {
    return dtype == GEMM_F16 ? updating_kernel_of<__half>(method, moment)
                             : updating_kernel_of<__nv_bfloat16>(method, moment);
}

} // namespace bf16

bool large_gradient_open(void) {
    using namespace bf16;
    for (const enum gemm_dtype dtype : {GEMM_BF16, GEMM_F16})
        for (const enum update_method method : {UPDATE_SGD, UPDATE_ADAM, UPDATE_ADAMW})
            for (const bool moment : {false, true})
                if (!cuda_allows_wgmma((const void *)updating_kernel_of(dtype, method, moment), SHARED_BYTES))
                    return false;
    return true;
}

void large_gradient_launch(enum gemm_dtype dtype, const bf16_product &product, const weight_update &update,
                           size_t ld, unsigned blocks, cuda_launcher &launcher) {
    using namespace bf16;
    const struct update &rule = update.rule;
    const updating_product p = {product,
                                ld,
                                {(float *)rule.weights, (float *)rule.moment1, (float *)rule.moment2},
                                rule.rounded,
                                update_rule<float>(rule),
                                update.step,
                                update.guard};
    launch_dependent(launcher, "large_gradient_kernel", updating_kernel_of(dtype, rule.method, rule.moment1),
                     dim3(blocks), THREADS, SHARED_BYTES, p.pair, p);
}
