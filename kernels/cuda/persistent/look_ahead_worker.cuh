/* One hidden layer, look-ahead: a worker has the weights between one slice of the pixels and the units of a
   block of the chain, in registers. It updates them by the dZ of a step as soon as the chain has sent it, and
   multiplies them by the batch after next. The workers of a group are in one cluster: each adds the products
   of all slices for some rows, and sends the sums to the chain. Eight warps compute, with up to TILES packs
   of pixels each; four copy pixels. See look_ahead.cu. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_LOOK_AHEAD_WORKER_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_LOOK_AHEAD_WORKER_CUH

#include <cuda_pipeline.h>

#include "kernels/cuda/persistent/int8_layer1.cuh"
#include "kernels/cuda/persistent/look_ahead.cuh"
#include "kernels/cuda/tensor/cluster.cuh"

namespace persistent::look_ahead {

static const int SLOTS = 5; /* batches: those of four steps in use, one on its way */

static const int CHUNK = 4; /* tiles of pixels: tensor cores truncate sums, so float32 adds those of 64 */

struct worker_memory {
    uint4 dz[2][DZ_PACKETS]; /* planes, as B of a product over rows, and the header; by step */
    /* Mailbox, by step: products for the rows that this worker adds, [tiles of rows][slices]. */
    float4 parts[2][ROW_TILES][UNIT_TILES][32];
    uint64_t parts_full[2];
    uint32_t most[MAIN_WARPS];       /* the largest magnitude of a warp's weights */
    uint4 planes[1][UNIT_TILES][32]; /* of the weights, as B of a product over pixels: [padded tiles] */

    static __host__ __device__ int padded(int tiles) {
        return (tiles + CHUNK - 1) / CHUNK * CHUNK;
    }
    static size_t bytes(int tiles) { /* of a slice; reads of the last slot's padding stay inside */
        return sizeof(worker_memory) + padded(tiles) * sizeof(planes[0]) +
               ((size_t)SLOTS * tiles + CHUNK - 1) * ROWS * PIXELS;
    }
};

template <int TILES> struct worker {
    const look_ahead::plan &plan;
    worker_memory &memory;
    const int group, slice, warp, lane;
    int end, first_pack, tiles;
    bool resumed;
    /* By tile and unit tile: pixels 2 g and 2 g + 1 of a pack, units 2 t and 2 t + 1. */
    static constexpr int WEIGHTS = TILES * UNIT_TILES * 4;
    typedef float weights[TILES * UNIT_TILES][4];
    weights weight, velocity;

    __device__ worker(const look_ahead::plan &plan, void *shared, int end, bool resumed)
        : plan(plan), memory(*(worker_memory *)shared), group((blockIdx.x - plan.cluster) / plan.slices),
          slice(blockIdx.x % plan.slices), warp(threadIdx.x / 32), lane(threadIdx.x % 32), end(end),
          resumed(resumed) {
        first_pack = plan.first_pack(slice);
        tiles = plan.first_pack(slice + 1) - first_pack;
    }

    __device__ int tile(int n) const { /* tile n of this warp, in the slice */
        return warp + MAIN_WARPS * n;
    }

    /* --- pixels: [SLOTS][tiles][ROWS] packs --- */

    __device__ const uint8_t *pixels(int i, int tile) const {
        return reinterpret_cast<const uint8_t *>(memory.planes + worker_memory::padded(tiles)) +
               (size_t)((i % SLOTS * tiles + tile) * ROWS) * PIXELS;
    }

    __device__ uint32_t image_of(int step, int row) const {
        return row < plan.rows_of(step, end) ? plan.order[(size_t)step * plan.batch + row] : 0;
    }

    /* Copies this slice of a row of step i of the launch. */
    __device__ void copy_row(int i, int row, uint32_t image) const {
        const uint8_t *from = plan.images + (size_t)image * plan.features + first_pack * PIXELS;
        for (int n = 0; n < tiles; n++)
            __pipeline_memcpy_async(const_cast<uint8_t *>(pixels(i, n)) + row * PIXELS, from + n * PIXELS,
                                    PIXELS);
    }

    /* X^T of step i, all rows of a tile: A of the gradient. */
    __device__ void load_transposed(int i, int tile, uint32_t (&x)[ROW_TILES][4]) const {
        const uint8_t *from = pixels(i, tile) + lane * PIXELS;
#pragma unroll
        for (int k = 0; k < ROW_TILES; k += 2) {
            uint32_t words[4];
            ldmatrix_x4_trans(words, from + k * TILE * PIXELS);
#pragma unroll
            for (int e = 0; e < 4; e++) {
                x[k + e / 2][e % 2 * 2] = half2_of_bytes(words[e], 0x4240);
                x[k + e / 2][e % 2 * 2 + 1] = half2_of_bytes(words[e], 0x4341);
            }
        }
    }

    /* X of step i, this warp's rows of a tile: A of the product. */
    __device__ void load_rows(int i, int tile, uint32_t (&x)[4]) const {
        const uint8_t *from = pixels(i, tile) + (warp * TILE + lane_g()) * PIXELS + 4 * lane_t();
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint32_t word = *reinterpret_cast<const uint32_t *>(from + half * 8 * PIXELS);
            x[half] = half2_of_bytes(word, 0x4140);
            x[2 + half] = half2_of_bytes(word, 0x4342);
        }
    }

    /* --- late product --- */

    /* X of a step, this warp's rows: loaded while dZ is on its way, unless it takes too many registers. */
    static constexpr bool EARLY = TILES == 1;
    static constexpr int EARLY_TILES = EARLY ? TILES * MAIN_WARPS : CHUNK;

    __device__ void load_early(int i, uint32_t (&x)[EARLY_TILES][4]) const {
#pragma unroll
        for (int n = 0; n < EARLY_TILES && EARLY; n++) load_rows(i, n, x[n]);
    }

    /* `ahead` in planes, in shared memory; returns their scale. */
    __device__ plane_scale store_planes(const weights &ahead) const {
        uint32_t most = 0;
#pragma unroll
        for (int e = 0; e < WEIGHTS; e++) most = max(most, magnitude(ahead[e / 4][e % 4]));
        most = __reduce_max_sync(0xffffffffu, most);
        if (lane == 0) memory.most[warp] = most;
        barrier_sync<BARRIER_MAIN, MAIN_THREADS>();
#pragma unroll
        for (int w = 0; w < MAIN_WARPS; w++) most = max(most, memory.most[w]);
        const plane_scale scale(most);
#pragma unroll
        for (int n = 0; n < TILES; n++) {
            if (tile(n) >= tiles) break;
#pragma unroll
            for (int u = 0; u < UNIT_TILES * 2; u++) {
                const float *pair = ahead[n * UNIT_TILES + u / 2] + u % 2;
                const plane_pair planes = planes_of(pair[0] * scale.inverse, pair[2] * scale.inverse);
                uint32_t *to =
                    reinterpret_cast<uint32_t *>(
                        &memory.planes[tile(n)][u / 2][4 * (2 * lane_t() + u % 2) + lane_g() / 2]) +
                    lane_g() % 2;
                to[0] = planes.high;
                to[2] = planes.low;
            }
        }
        barrier_sync<BARRIER_MAIN, MAIN_THREADS>();
        return scale;
    }

    /* Sends the product of `ahead` with the batch of step i: to the workers that add these rows, and sums to
       the chain. */
    __device__ void send_product(int i, const weights &ahead, uint32_t (&x)[EARLY_TILES][4]) const {
        const plane_scale scale = store_planes(ahead);
        float sum[UNIT_TILES][4] = {};
        const int count =
            EARLY ? EARLY_TILES : worker_memory::padded(tiles); /* the planes of padding are 0 */
#pragma unroll(EARLY ? EARLY_TILES / CHUNK : 1)
        for (int n = 0; n < count; n += CHUNK) {
            float high[UNIT_TILES][4] = {}, low[UNIT_TILES][4] = {};
#pragma unroll
            for (int k = 0; k < CHUNK; k++) {
                if (!EARLY) load_rows(i, n + k, x[k]);
#pragma unroll
                for (int u = 0; u < UNIT_TILES; u++) {
                    const uint4 b = memory.planes[n + k][u][lane];
                    mma_f16(low[u], x[EARLY ? n + k : k], b.z, b.w);
                    mma_f16(high[u], x[EARLY ? n + k : k], b.x, b.y);
                }
            }
#pragma unroll
            for (int e = 0; e < UNIT_TILES * 4; e++)
                sum[e / 4][e % 4] += low[e / 4][e % 4] + high[e / 4][e % 4];
        }
        const float factor = scale.scale * float(1.0 / 255.0);
        const int tiles_each = ROW_TILES / plan.slices, first_rank = blockIdx.x % plan.cluster - slice;
#pragma unroll
        for (int u = 0; u < UNIT_TILES; u++)
            cluster_send(reinterpret_cast<const uint4 *>(
                             &memory.parts[i % 2][warp % tiles_each * plan.slices + slice][u][lane]),
                         first_rank + warp / tiles_each,
                         make_uint4(__float_as_uint(sum[u][0] * factor), __float_as_uint(sum[u][1] * factor),
                                    __float_as_uint(sum[u][2] * factor), __float_as_uint(sum[u][3] * factor)),
                         memory.parts_full + i % 2);
        send_sums(i, tiles_each);
    }

    /* A warp adds one tile of 16 x 8. */
    __device__ void send_sums(int i, int tiles_each) const {
        const int u = warp % UNIT_TILES, row_tile = warp / UNIT_TILES;
        if (row_tile >= tiles_each) return;
        mbarrier_wait(memory.parts_full + i % 2, i / 2);
        if (threadIdx.x == 0) mbarrier_expect_tx(memory.parts_full + i % 2, sizeof memory.parts[0]);
        float4 sum = {};
#pragma unroll 4
        for (int s = 0; s < plan.slices; s++) {
            const float4 part = memory.parts[i % 2][row_tile * plan.slices + s][u][lane];
            sum = make_float4(sum.x + part.x, sum.y + part.y, sum.z + part.z, sum.w + part.w);
        }
        send_packet(plan.product_of(i, group) + u * MAIN_THREADS + (slice * tiles_each + row_tile) * 32 +
                        lane,
                    make_uint4(__float_as_uint(sum.x), __float_as_uint(sum.y), __float_as_uint(sum.z),
                               __float_as_uint(sum.w)),
                    phase_of(i));
    }

    /* The product for step i; if the launch ends before it, the weights for it are kept. */
    __device__ void look_ahead(int first, int i, float rate, uint32_t (&x)[EARLY_TILES][4]) const {
        weights ahead;
        if (first + i > end) return;
#pragma unroll
        for (int e = 0; e < WEIGHTS; e++)
            ahead[e / 4][e % 4] = ahead_of(plan.update, rate, weight[e / 4][e % 4], velocity[e / 4][e % 4]);
        if (first + i < end) {
            send_product(i, ahead, x);
            return;
        }
#pragma unroll
        for (int n = 0; n < TILES * UNIT_TILES; n++)
            *kept(n) = make_float4(ahead[n][0], ahead[n][1], ahead[n][2], ahead[n][3]);
    }

    __device__ float4 *kept(int n) const { /* n: tile of this warp, and of units */
        return plan.ahead +
               (((group * plan.slices + slice) * MAIN_WARPS + warp) * MAX_TILES * UNIT_TILES + n) * 32 + lane;
    }

    /* --- gradient --- */

    /* dZ of a step and the header, for the main warps; false if the step is bad. */
    __device__ bool receive_dz(int i) const {
        const uint4 *from = plan.dz_of(i, group), *header = from + PRODUCT_PACKETS;
        const uint32_t phase = phase_of(i);
        const bool first = threadIdx.x == 0;
        uint4 packet[UNIT_TILES], head = {};
        do {
#pragma unroll
            for (int u = 0; u < UNIT_TILES; u++)
                packet[u] = load_packet(from + u * MAIN_THREADS + threadIdx.x);
            if (first) head = load_packet(header);
        } while (!arrived(packet[0], phase) || !arrived(packet[1], phase) ||
                 (first && !arrived(head, phase)));
#pragma unroll
        for (int u = 0; u < UNIT_TILES; u++) {
            packet[u].w &= ~1u;
            memory.dz[i % 2][u * MAIN_THREADS + threadIdx.x] = packet[u];
        }
        if (first) memory.dz[i % 2][PRODUCT_PACKETS] = head;
        barrier_sync<BARRIER_PIXELS, BLOCK_THREADS>(); /* the pixels have arrived, too */
        barrier_arrive<BARRIER_DZ, BLOCK_THREADS>();
        return is_good(i);
    }

    __device__ bool is_good(int i) const { /* after dZ of the step has arrived */
        return memory.dz[i % 2][PRODUCT_PACKETS].y == 0;
    }

    __device__ void update(const uint32_t (&x)[ROW_TILES][4], const uint4 *dz, int n, float rate,
                           float factor) {
        float high[2][UNIT_TILES][4] = {}, low[2][UNIT_TILES][4] = {};
#pragma unroll
        for (int k = 0; k < ROW_TILES; k++)
#pragma unroll
            for (int u = 0; u < UNIT_TILES; u++) {
                const uint4 b = dz[u * MAIN_THREADS + k * 32 + lane];
                mma_f16(low[k * 2 / ROW_TILES][u], x[k], b.z, b.w);
                mma_f16(high[k * 2 / ROW_TILES][u], x[k], b.x, b.y);
            }
#pragma unroll
        for (int u = 0; u < UNIT_TILES; u++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                plan.update(rate, (low[0][u][e] + low[1][u][e] + (high[0][u][e] + high[1][u][e])) * factor,
                            weight[n * UNIT_TILES + u][e], velocity[n * UNIT_TILES + u][e]);
    }

    /* --- the steps --- */

    template <typename E> __device__ void all_weights(E each) {
        if (warp >= MAIN_WARPS) return;
#pragma unroll
        for (int e = 0; e < WEIGHTS; e++) {
            const int n = e / 4 / UNIT_TILES, u = e / 4 % UNIT_TILES;
            const int pixel = (first_pack + tile(n)) * PIXELS + 2 * lane_g() + e / 2 % 2,
                      unit = group * GROUP_UNITS + u * UNITS + 2 * lane_t() + e % 2;
            if (tile(n) < tiles && unit < plan.hidden[0])
                each((size_t)pixel * plan.hidden[0] + unit, weight[e / 4][e % 4], velocity[e / 4][e % 4]);
        }
    }

    __device__ void run_main(int first, stage_profile &profile) {
        float rate = plan.rate_of(first);
        uint32_t transposed[TILES][ROW_TILES][4], x[EARLY_TILES][4];
        load_early(0, x);
        if (resumed) {
            weights ahead;
#pragma unroll
            for (int n = 0; n < TILES * UNIT_TILES; n++) {
                const float4 four = *kept(n);
                ahead[n][0] = four.x, ahead[n][1] = four.y, ahead[n][2] = four.z, ahead[n][3] = four.w;
            }
            send_product(0, ahead, x);
        } else {
            send_product(0, weight, x);
        }
        load_early(1, x);
        look_ahead(first, 1, rate, x);
        for (int i = 0; first + i < end; i++) {
            const double next_rate = plan.scalars[min(first + i + 1, end - 1)].learning_rate;
            load_early(i + 2, x);
#pragma unroll
            for (int n = 0; n < TILES; n++) load_transposed(i, min(tile(n), tiles - 1), transposed[n]);
            profile.stage(0);
            if (!receive_dz(i)) break;
            profile.stage(1);
            const float factor = __uint_as_float(memory.dz[i % 2][PRODUCT_PACKETS].x) * float(1.0 / 255.0);
#pragma unroll
            for (int n = 0; n < TILES; n++)
                if (tile(n) < tiles) update(transposed[n], memory.dz[i % 2], n, rate, factor);
            rate = (float)next_rate;
            profile.stage(2);
            look_ahead(first, i + 2, rate, x);
            profile.stage(3);
        }
    }

    /* Copies the batch three steps ahead: the slot is free, since all warps have received the dZ after it. */
    __device__ void run_copies(int first) {
        const int row = threadIdx.x - MAIN_THREADS;
        uint32_t image = image_of(first + 3, row);
        for (int i = 0; first + i < end; i++) {
            copy_row(i + 3, row, image);
            __pipeline_commit();
            image = image_of(first + i + 4, row);
            __pipeline_wait_prior(0);
            barrier_arrive<BARRIER_PIXELS, BLOCK_THREADS>();
            barrier_sync<BARRIER_DZ, BLOCK_THREADS>();
            if (!is_good(i)) break;
        }
    }

    __device__ void run(int first, stage_profile &profile) {
#pragma unroll
        for (int e = 0; e < WEIGHTS; e++) weight[e / 4][e % 4] = velocity[e / 4][e % 4] = 0;
        all_weights([&](size_t i, float &w, float &v) {
            w = plan.weight[0][i];
            if (plan.update.has_velocity) v = plan.weight_velocity[0][i];
        });
        for (int i = threadIdx.x; i < worker_memory::padded(tiles) * UNIT_TILES * 32; i += BLOCK_THREADS)
            memory.planes[0][0][i] = make_uint4(0, 0, 0, 0);
        if (threadIdx.x == 0)
            for (int i = 0; i < 2; i++) {
                mbarrier_init(memory.parts_full + i);
                mbarrier_expect_tx(memory.parts_full + i, sizeof memory.parts[0]);
            }
        if (threadIdx.x < ROWS)
            for (int i = 0; i < 3; i++) copy_row(i, threadIdx.x, image_of(first + i, threadIdx.x));
        __pipeline_commit();
        __pipeline_wait_prior(0);
        __syncthreads();
        cluster_barrier();
        if (warp < MAIN_WARPS)
            run_main(first, profile);
        else
            run_copies(first);
        all_weights([&](size_t i, float w, float v) { store_weight_twice(plan, 0, false, i, w, v); });
        cluster_barrier(); /* the shared memory of a block must outlive its mail */
    }
};

} // namespace persistent::look_ahead

#endif
