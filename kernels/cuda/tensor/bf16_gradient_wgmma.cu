/* Weight gradients of operands of 16 bits (T: __nv_bfloat16 or __half) in medium batches, C = X^T dY, that
   update the weights themselves: bf16_gradient.cu for products that are bound by tensor cores.

   Idea       a thread block on each SM takes one tile of 128 x 128 after the other. One warp copies operands
              to a ring buffer, eight warps multiply (wgmma), and eight others update: each has the 16 rows
              of one multiplying warp. So the weights and moments of a tile are read and written while the
              next tile is multiplied. Sums pass through shared memory, four rows at a time. The copy engine
              brings weights and moments there, row by row and several rows ahead, also across tiles.
   Bound by   bytes: for each weight 4 read and 6 written (sgd), 12 and 14 (adam); with sgd the copies of
              operands from the L2 cache
   Improves   bf16_wgmma.cu with update.cu */
#include "kernels/cuda/tensor/bf16_gradient_list.cuh"
#include "kernels/cuda/tensor/bulk_copy.cuh"
#include "kernels/cuda/tensor/tensor_map.cuh"
#include "kernels/cuda/tensor/wgmma_bf16.cuh"

namespace {

const unsigned SIDE = MEDIUM_SIDE, STAGE_K = MEDIUM_K, STAGES = 4; /* of a tile; of a stage of the ring */
const unsigned WARPS = 8, PRODUCER = 2 * WARPS; /* the first eight multiply, the next eight update */
const unsigned BOX_BYTES = STAGE_K * 128, STAGE_BYTES = 4 * BOX_BYTES; /* box: 64 columns of an operand */
const unsigned ROWS = SIDE / WARPS;                                    /* of a warp in a tile */
const unsigned SLOTS = 2, SLOT_ROWS = 4, SLOT_BYTES = SLOT_ROWS * SIDE * 4; /* sums of a warp */
const unsigned OWN_BYTES = 8 << 10, MOST_AHEAD = 16; /* weights and moments of a warp: memory; rows */
template <int ARRAYS> constexpr unsigned AHEAD = OWN_BYTES / (ARRAYS * SIDE * 4); /* rows */
const unsigned SLOTS_AT = STAGES * STAGE_BYTES, OWN_AT = SLOTS_AT + WARPS * SLOTS * SLOT_BYTES,
               BARRIERS_AT = OWN_AT + WARPS * OWN_BYTES;
static_assert(MEDIUM_THREADS == (PRODUCER + 1) * 32 && AHEAD<1> <= MOST_AHEAD);

struct barriers {
    uint64_t full[STAGES], empty[STAGES];               /* a stage was copied; all warps have read it */
    uint64_t summed[WARPS][SLOTS], taken[WARPS][SLOTS]; /* sums are in a slot; they were read */
    uint64_t arrived[WARPS][MOST_AHEAD];                /* weights and moments of a row */
};
static_assert(BARRIERS_AT + sizeof(barriers) <= MEDIUM_SHARED_BYTES);

/* Tiles of a block, in turn. */
struct tile_place {
    const weight_gradient &p;
    unsigned row, column;

    __device__ tile_place(const weight_gradients &all, unsigned tile)
        : tile_place(all, tile, all.number_of(tile)) {}

    __device__ tile_place(const weight_gradients &all, unsigned tile, unsigned number)
        : p(all.list[number]), row((tile - all.first[number]) / p.columns * SIDE),
          column((tile - all.first[number]) % p.columns * SIDE) {}
};

/* Use `use` of the ring: one thread copies 64 of k. */
__device__ void copy_stage(const tile_place &tile, char *stages, barriers &on, unsigned use, unsigned k) {
    const unsigned stage = use % STAGES;
    char *const to = stages + stage * STAGE_BYTES;
    uint64_t *const full = on.full + stage;
    if (use >= STAGES) mbarrier_wait_alone(on.empty + stage, use / STAGES - 1);
    mbarrier_expect_tx(full, STAGE_BYTES);
    tensor_load(to, tile.p.a, tile.row, k, full);
    tensor_load(to + BOX_BYTES, tile.p.a, tile.row + 64, k, full);
    tensor_load(to + 2 * BOX_BYTES, tile.p.b, tile.column, k, full);
    tensor_load(to + 3 * BOX_BYTES, tile.p.b, tile.column + 64, k, full);
}

__device__ void produce(const weight_gradients &all, char *stages, barriers &on) {
    unsigned use = 0;
    for (unsigned t = blockIdx.x; t < all.tiles; t += gridDim.x) {
        const tile_place tile(all, t);
        for (unsigned k = 0; k < tile.p.k; k += STAGE_K) copy_stage(tile, stages, on, use++, k);
    }
}

/* Four neighbours of a row in a slot; units of 16 bytes are swizzled. */
__device__ char *four_of(char *slot, unsigned row, unsigned unit) {
    return slot + row * SIDE * 4 + ((unit ^ row * 2) << 4);
}

/* The sums of a warp: four rows for each use of a slot. */
__device__ void store_sums(const float (&sums)[SIDE / 2], char *slots, barriers &on, unsigned warp,
                           unsigned turn) {
    const unsigned lane = threadIdx.x % 32;
#pragma unroll
    for (unsigned part = 0; part < ROWS / SLOT_ROWS; part++) {
        const unsigned slot = part % SLOTS, uses = turn * (ROWS / SLOT_ROWS / SLOTS) + part / SLOTS;
        if (uses) mbarrier_wait(&on.taken[warp][slot], uses - 1);
        if (lane / 16 == part % 2)
#pragma unroll
            for (unsigned i = 0; i < SIDE / 8; i++)
                *(float2 *)(four_of(slots + slot * SLOT_BYTES, lane / 4 % 4, 2 * i + lane % 4 / 2) +
                            lane % 2 * 8) =
                    make_float2(sums[4 * i + part / 2 * 2], sums[4 * i + part / 2 * 2 + 1]);
        __syncwarp();
        if (lane == 0) mbarrier_arrive(&on.summed[warp][slot]);
    }
}

template <typename T>
__device__ void multiply(const weight_gradients &all, char *stages, char *slots, barriers &on,
                         unsigned warp) {
    const unsigned lane = threadIdx.x % 32;
    unsigned use = 0, turn = 0;
    for (unsigned t = blockIdx.x; t < all.tiles; t += gridDim.x) {
        const unsigned k_stages = (all.list[all.number_of(t)].k + STAGE_K - 1) / STAGE_K;
        if (!k_stages) continue;
        float sums[SIDE / 2];
        unsigned before = 0;
#pragma unroll
        for (unsigned i = 0; i < SIDE / 2; i++) sums[i] = 0;
        for (unsigned k = 0; k < k_stages; k++, use++) {
            const unsigned stage = use % STAGES;
            const char *const a = stages + stage * STAGE_BYTES + warp / 4 * BOX_BYTES;
            const char *const b = stages + stage * STAGE_BYTES + 2 * BOX_BYTES;
            mbarrier_wait(on.full + stage, use / STAGES);
            wgmma_fence();
#pragma unroll
            for (unsigned step = 0; step < STAGE_K / 16; step++)
                wgmma_16bit<T, SIDE, true, true>(
                    sums, wgmma_swizzle128_transposed(a + step * 2048, BOX_BYTES),
                    wgmma_swizzle128_transposed(b + step * 2048, BOX_BYTES), true);
            wgmma_commit();
            if (k) {
                wgmma_wait<1>();
                if (lane == 0) mbarrier_arrive(on.empty + before);
            }
            before = stage;
        }
        wgmma_wait<0>();
        wgmma_done(sums);
        if (lane == 0) mbarrier_arrive(on.empty + before);
        store_sums(sums, slots + warp * SLOTS * SLOT_BYTES, on, warp, turn++);
    }
}

/* The rows of an updating warp in a tile, four columns a lane. */
struct own_rows {
    const weight_gradient *p;
    unsigned count, columns; /* inside C */
    size_t at;               /* the first of them */

    __device__ own_rows(const weight_gradients &all, unsigned t, unsigned warp)
        : p(all.list), count(0), columns(0), at(0) {
        if (t >= all.tiles) return;
        const tile_place tile(all, t);
        const unsigned row = tile.row + warp * ROWS;
        p = &tile.p;
        if (row >= p->m || tile.column >= p->n) return;
        count = min(ROWS, p->m - row);
        columns = min(SIDE, p->n - tile.column);
        at = row * p->ldc + tile.column;
    }
};

/* The next row for which weights and moments are requested. */
template <int ARRAYS> struct requests {
    const weight_gradients &all;
    char *own;
    uint64_t *arrived;
    own_rows rows;
    unsigned warp, tile, row = 0, slot = 0;

    __device__ requests(const weight_gradients &all, char *own, uint64_t *arrived, unsigned warp)
        : all(all), own(own), arrived(arrived), rows(all, blockIdx.x, warp), warp(warp), tile(blockIdx.x) {}

    __device__ void next() {
        const unsigned lane = threadIdx.x % 32;
        while (row >= rows.count) {
            tile += gridDim.x;
            if (tile >= all.tiles) return;
            rows = own_rows(all, tile, warp);
            row = 0;
        }
        const unsigned bytes = rows.columns * 4;
        if (lane == 0) mbarrier_expect_tx(arrived + slot, ARRAYS * bytes);
        if (lane < ARRAYS)
            bulk_copy(own + (slot * ARRAYS + lane) * SIDE * 4,
                      rows.p->array[lane] + rows.at + row * rows.p->ldc, bytes, arrived + slot);
        row++;
        if (++slot == AHEAD<ARRAYS>) slot = 0;
    }
};

template <typename T, update_method METHOD, int ARRAYS>
__device__ void update(const weight_gradients &all, char *slots, char *own, barriers &on, unsigned warp) {
    const unsigned lane = threadIdx.x % 32;
    update_rates<float> rates = {};
    bool bad = false;
    requests<ARRAYS> requested(all, own, on.arrived[warp], warp);
    unsigned place = 0, round = 0;
    if constexpr (METHOD != UPDATE_NONE) {
        for (unsigned i = 0; i < AHEAD<ARRAYS>; i++) requested.next();
        rates = update_rates<float>(METHOD, all.rule, all.step);
        bad = all.guard->bad_step;
    }
    for (unsigned t = blockIdx.x, uses = 0; t < all.tiles; t += gridDim.x) {
        const own_rows rows(all, t, warp);
        const weight_gradient &p = *rows.p;
        const bool inside = lane * 4 < rows.columns, product = p.k;
        const size_t at = rows.at + lane * 4;
#pragma unroll 1
        for (unsigned first = 0; first < ROWS; first += SLOT_ROWS) {
            const unsigned slot = uses % SLOTS;
            pack<float, 4> sums[SLOT_ROWS];
            if (product) mbarrier_wait(&on.summed[warp][slot], uses++ / SLOTS);
#pragma unroll
            for (unsigned i = 0; i < SLOT_ROWS; i++) {
                if (product)
                    sums[i] = pack_at<4>(
                        (const float *)four_of(slots + (warp * SLOTS + slot) * SLOT_BYTES, i, lane));
                else if (inside && first + i < rows.count)
                    sums[i] = pack_at<4>(p.c + at + (first + i) * p.ldc);
            }
            __syncwarp();
            if (product && lane == 0) mbarrier_arrive(&on.taken[warp][slot]);
#pragma unroll
            for (unsigned i = 0; i < SLOT_ROWS; i++) {
                if (first + i >= rows.count) break;
                const size_t to = at + (first + i) * p.ldc;
                if constexpr (METHOD == UPDATE_NONE) {
                    if (inside) store_pack(p, sums[i], to);
                } else {
                    mbarrier_wait(&on.arrived[warp][place], round);
                    pack<float, 4> was[ARRAYS];
#pragma unroll
                    for (int array = 0; array < ARRAYS; array++)
                        was[array] =
                            pack_at<4>((const float *)own + (place * ARRAYS + array) * SIDE + lane * 4);
                    __syncwarp();
                    requested.next();
                    if (++place == AHEAD<ARRAYS>) place = 0, round++;
                    if (inside && !bad) update_pack<T, METHOD>(p, all.rule, rates, sums[i], was, to);
                }
            }
        }
    }
}

template <typename T, update_method METHOD, int ARRAYS>
__global__ void __launch_bounds__(MEDIUM_THREADS, 1)
    medium_gradient_kernel(const __grid_constant__ weight_gradients all) {
#ifdef HAVE_WGMMA
    extern __shared__ __align__(1024) char shared[]; /* ring buffer, slots, weights and moments, barriers */
    barriers &on = *(barriers *)(shared + BARRIERS_AT);
    char *const slots = shared + SLOTS_AT;
    const unsigned warp = (unsigned)uniform((int)threadIdx.x / 32);
    if (threadIdx.x == 0) {
        for (unsigned i = 0; i < STAGES; i++) {
            mbarrier_init(on.full + i);
            mbarrier_init(on.empty + i, WARPS);
        }
        for (unsigned i = 0; i < WARPS * SLOTS; i++) {
            mbarrier_init(on.summed[0] + i);
            mbarrier_init(on.taken[0] + i);
        }
        for (unsigned i = 0; i < WARPS * MOST_AHEAD; i++) mbarrier_init(on.arrived[0] + i);
    }
    __syncthreads();
    if (warp < WARPS)
        multiply<T>(all, shared, slots, on, warp);
    else if (warp < PRODUCER)
        update<T, METHOD, ARRAYS>(all, slots, shared + OWN_AT + (warp - WARPS) * OWN_BYTES, on, warp - WARPS);
    else if (threadIdx.x % 32 == 0)
        produce(all, shared, on);
#endif
}

/* --- the host --- */

template <typename T> weight_gradient_kernel *kernel_of(enum update_method method, bool moment) {
    switch (method) {
    case UPDATE_NONE:
        break;
    case UPDATE_SGD:
        return moment ? medium_gradient_kernel<T, UPDATE_SGD, 2> : medium_gradient_kernel<T, UPDATE_SGD, 1>;
    case UPDATE_ADAM:
        return medium_gradient_kernel<T, UPDATE_ADAM, 3>;
    case UPDATE_ADAMW:
        return medium_gradient_kernel<T, UPDATE_ADAMW, 3>;
    }
    return medium_gradient_kernel<T, UPDATE_NONE, 1>;
}

weight_gradient_kernel *kernel_of(enum gemm_dtype dtype, enum update_method method, bool moment) {
    return dtype == GEMM_F16 ? kernel_of<__half>(method, moment) : kernel_of<__nv_bfloat16>(method, moment);
}

} // namespace

bool medium_gradient_open(void) {
    for (const enum gemm_dtype dtype : {GEMM_BF16, GEMM_F16})
        for (const enum update_method method : {UPDATE_NONE, UPDATE_SGD, UPDATE_ADAM, UPDATE_ADAMW})
            for (const bool moment : {false, true})
                if (!cuda_allows_wgmma((const void *)kernel_of(dtype, method, moment), MEDIUM_SHARED_BYTES))
                    return false;
    return true;
}

weight_gradient_kernel *medium_gradient_of(enum gemm_dtype dtype, const struct update &rule) {
    return kernel_of(dtype, rule.method, rule.moment1);
}
