/* The float32 GEMM by six bf16 products: weight gradients that update the weights themselves, in place of
   storing the gradient. Each warp of the consumers requests the weights (and velocities) of its 16 rows of
   the next tile as soon as it has updated those of this one: they arrive while the products run. A launch has
   all layers of a step: its start and end come once, and its tiles divide evenly. */
#ifndef TESSERA_KERNELS_CUDA_TENSOR_BF16X6_UPDATE_CUH
#define TESSERA_KERNELS_CUDA_TENSOR_BF16X6_UPDATE_CUH

#include "kernels/cuda/dependent_launch.cuh"
#include "kernels/cuda/ops/update_rule.cuh"
#include "kernels/cuda/tensor/bf16x6_store.cuh"
#include "kernels/cuda/tensor/tensor_map.cuh"

namespace bf16x6 {

/* Boxes of 16 rows and 32 columns: half a tile, of each array. A warp has memory for both halves. */
static const unsigned BOX_ROWS = BF16X6_BOX_ROWS, BOX_BYTES = BOX_ROWS * LINE, WEIGHT_BOXES = 2;

/* Bytes of shared memory of a warp: slots, or boxes. */
template <int ARRAYS, unsigned W>
constexpr unsigned AREA_BYTES = ARRAYS > 1 ? WEIGHT_BOXES *ARRAYS *BOX_BYTES : SLOTS_BYTES<W>;
static_assert(WEIGHT_BOXES * BOX_BYTES <= SLOTS_BYTES<BF16X6_COLUMNS>);

typedef tile_store<bf16x6_gradient, bf16x6_gradient, true, BF16X6_COLUMNS> gradient_store;

/* All lanes of a warp of the consumers. ARRAYS: weights, and velocities. */
template <int ARRAYS> struct weight_updater {
    const bf16x6_gradients &all;
    char *area;
    uint64_t *arrived; /* [WEIGHT_BOXES] */
    update_rates<float> rates;
    bool on = false;    /* no step was bad */
    unsigned round = 0; /* of the boxes */

    __device__ weight_updater(const bf16x6_gradients &gradients, char *memory, uint64_t *barriers)
        : all(gradients), area(memory), arrived(barriers) {}

    /* Before the first tile. The kernels before may read the weights. */
    __device__ void start() {
        wait_for_kernels_before();
        rates = update_rates<float>(UPDATE_SGD, all.rule, all.step);
        on = !all.guard->bad_step;
    }

    /* Requests half a tile. */
    __device__ void request(gradient_place tile, unsigned half) const {
        __syncwarp(); /* all lanes have read what was there */
        if (threadIdx.x % 32) return;
        mbarrier_expect_tx(arrived + half, ARRAYS * BOX_BYTES);
#pragma unroll
        for (unsigned i = 0; i < ARRAYS; i++)
            tensor_load(area + (half * ARRAYS + i) * BOX_BYTES, all.list[tile.number].map[i],
                        tile.column * BF16X6_COLUMNS + half * 32,
                        tile.row * BF16X6_ROWS + threadIdx.x / 32 * BOX_ROWS, arrived + half);
    }

    /* .. a tile. With parts of k, or after a bad step, none is needed. */
    __device__ void request_all(gradient_place tile) const {
        if (!on || all.parts > 1) return;
        for (unsigned half = 0; half < WEIGHT_BOXES; half++) request(tile, half);
    }

    /* The new values of pairs of weights and velocities. */
    __device__ void update(float2 gradients, float2 (&of)[ARRAYS]) const {
        update_rule<float> rule = all.rule;
        float unused = 0;
        rule.moment = ARRAYS > 1; /* which the compiler knows */
#pragma unroll
        for (unsigned e = 0; e < 2; e++) {
            float &m = ARRAYS < 2 ? unused : e ? of[ARRAYS - 1].y : of[ARRAYS - 1].x;
            update_parameter<UPDATE_SGD>(rule, rates, e ? gradients.y : gradients.x, e ? of[0].y : of[0].x, m,
                                         unused);
        }
    }

    /* Half a tile, from the weights in a box. INSIDE: all of it is in the matrix. Without branches, the
       latencies of its pairs overlap. */
    template <bool INSIDE>
    __device__ void update_half(const gradient_store &to, const float (&sums)[BF16X6_COLUMNS / 2],
                                unsigned half, const char *box) const {
        const unsigned lane = threadIdx.x % 32, column = to.column + half * 32;
#pragma unroll
        for (unsigned h = 0; h < 2; h++) {
            const unsigned y = to.row + h, from = at_unit(lane / 4 * 2 + h, lane % 4 / 2) + lane % 2 * 8;
            const size_t at = y * to.out.ldc + column;
            float2 of[4][ARRAYS];
            if (!INSIDE && y >= to.p.m) continue;
#pragma unroll
            for (unsigned j = 0; j < 4; j++)
#pragma unroll
                for (unsigned array = 0; array < ARRAYS; array++) /* two units for each j */
                    of[j][array] = *(const float2 *)(box + array * BOX_BYTES + (from ^ j * 32));
#pragma unroll
            for (unsigned j = 0; j < 4; j++) {
                const unsigned x = column + j * 8, i = (half * 4 + j) * 4 + 2 * h;
                if (!INSIDE && x >= to.p.n) continue;
                update({to.out.alpha * sums[i], to.out.alpha * sums[i + 1]}, of[j]);
#pragma unroll
                for (unsigned array = 0; array < ARRAYS; array++)
                    store_pair(to.p.array[array] + at + j * 8, of[j][array], INSIDE || x + 1 < to.p.n);
            }
        }
    }

    /* The same from global memory, with the sums of all parts, and those that are not finite anew. */
    __device__ void update_slowly(const gradient_store &to, const float (&sums)[BF16X6_COLUMNS / 2]) const {
        to.add_parts(sums);
        to.each_pair([&](size_t at, unsigned, unsigned, float2 pair, bool both) {
            float2 of[ARRAYS];
#pragma unroll
            for (unsigned array = 0; array < ARRAYS; array++)
                of[array] = load_pair(to.p.array[array] + at, both);
            update(to.scaled(at, pair, both), of);
#pragma unroll
            for (unsigned array = 1; array < ARRAYS; array++)
                store_pair(to.p.array[array] + at, of[array], both);
            return of[0];
        });
    }

    /* Updates the weights of a tile, and requests those of the next one, unless it is the last. */
    __device__ void store(const gradient_store &to, const float (&sums)[BF16X6_COLUMNS / 2], bool last,
                          gradient_place tile, gradient_place next) {
        const bool inside =
            (tile.row + 1) * BF16X6_ROWS <= to.p.m && (tile.column + 1) * BF16X6_COLUMNS <= to.p.n;
        if (!on) return;
        if (to.own.parts > 1) return update_slowly(to, sums);
        if (!all_finite(sums)) {
            for (unsigned half = 0; half < WEIGHT_BOXES; half++) mbarrier_wait(arrived + half, round);
            update_slowly(to, sums); /* the slots are in the memory of the boxes */
            wgmma_written();
            if (!last) request_all(next);
        } else {
#pragma unroll
            for (unsigned half = 0; half < WEIGHT_BOXES; half++) {
                mbarrier_wait(arrived + half, round);
                if (inside)
                    update_half<true>(to, sums, half, area + half * ARRAYS * BOX_BYTES);
                else
                    update_half<false>(to, sums, half, area + half * ARRAYS * BOX_BYTES);
                if (!last) request(next, half);
            }
        }
        round++;
    }
};

/* Threads of all blocks, `threads` of each, of which this is number `thread`: what has its gradient. */
template <int ARRAYS>
__device__ void update_rest(const bf16x6_gradients &all, unsigned thread, unsigned threads) {
    wait_for_kernels_before();
    const update_rates<float> rates(UPDATE_SGD, all.rule, all.step);
    if (all.guard->bad_step) return;
    for (unsigned i = 0; i < all.rests; i++) {
        const bf16x6_rest &rest = all.rest[i];
        for (unsigned e = blockIdx.x * threads + thread; e < rest.count; e += gridDim.x * threads) {
            float unused = 0, &m = ARRAYS < 2 ? unused : rest.array[1][e];
            update_parameter<UPDATE_SGD>(all.rule, rates, rest.grad[e], rest.array[0][e], m, unused);
        }
    }
}

/* A product that stores C. */
template <> struct weight_updater<0> {
    __device__ weight_updater(const bf16x6_product &, char *, uint64_t *) {}
};

} // namespace bf16x6

#endif
