/* One hidden layer, look-ahead: a worker has the weights between one slice of the pixels and 8 hidden
   units, in registers. It updates them by the dZ of a step as soon as the chain has sent it, and sends
   their product with the batch after next. Eight warps compute, with up to TILES packs of pixels each;
   four copy pixels. See look_ahead.cu. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_LOOK_AHEAD_WORKER_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_LOOK_AHEAD_WORKER_CUH

#include <cuda_pipeline.h>

#include "kernels/cuda/persistent/int8_layer1.cuh"
#include "kernels/cuda/persistent/look_ahead.cuh"

namespace persistent::look_ahead {

static const int SLOTS = 5; /* batches: those of four steps in use, one on its way */

static const int CHUNK = 4; /* tiles of pixels: tensor cores truncate sums, so float32 adds those of 64 */

struct worker_memory {
    uint4 dz[2][DZ_PACKETS];   /* planes, as B of a product over rows, and the header; by step */
    uint32_t most[MAIN_WARPS]; /* the largest magnitude of a warp's weights */
    uint4 planes[1];           /* of the weights, as B of a product over pixels: [padded tiles][32 lanes] */

    static __host__ __device__ int padded(int tiles) {
        return (tiles + CHUNK - 1) / CHUNK * CHUNK;
    }
    static size_t bytes(int tiles) { /* of a slice; reads of the last slot's padding stay inside */
        return sizeof(worker_memory) + (size_t)padded(tiles) * 32 * sizeof(uint4) +
               ((size_t)SLOTS * tiles + CHUNK - 1) * ROWS * PIXELS;
    }
};

template <int TILES> struct worker {
    const look_ahead::plan &plan;
    worker_memory &memory;
    const int group, slice, warp, lane;
    int end, first_pack, tiles;
    bool resumed;
    float weight[TILES][4], velocity[TILES][4]; /* pixels 2 g and 2 g + 1 of a pack, units 2 t and 2 t + 1 */

    __device__ worker(const look_ahead::plan &plan, void *shared, int end, bool resumed)
        : plan(plan), memory(*(worker_memory *)shared), group((blockIdx.x - plan.cluster) % plan.groups),
          slice((blockIdx.x - plan.cluster) / plan.groups), warp(threadIdx.x / 32), lane(threadIdx.x % 32),
          end(end), resumed(resumed) {
        first_pack = plan.first_pack(slice);
        tiles = plan.first_pack(slice + 1) - first_pack;
    }

    __device__ int tile(int n) const { /* tile n of this warp, in the slice */
        return warp + MAIN_WARPS * n;
    }

    /* --- pixels: [SLOTS][tiles][ROWS] packs --- */

    __device__ const uint8_t *pixels(int i, int tile) const {
        return reinterpret_cast<const uint8_t *>(memory.planes + worker_memory::padded(tiles) * 32) +
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
        const int row = lane / 16 * TILE + lane / 8 % 2 * 4 + lane % 8 / 2 + lane % 2 * 8;
        const uint8_t *from = pixels(i, tile) + row * PIXELS;
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

    /* Sends the product of `ahead` with the batch of step i. */
    __device__ void send_product(int i, const float (&ahead)[TILES][4], uint32_t (&x)[EARLY_TILES][4]) const {
        uint32_t most = 0;
        float sum[4] = {};
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) most = max(most, magnitude(ahead[n][e]));
        most = __reduce_max_sync(0xffffffffu, most);
        if (lane == 0) memory.most[warp] = most;
        barrier_sync<BARRIER_MAIN, MAIN_THREADS>();
#pragma unroll
        for (int w = 0; w < MAIN_WARPS; w++) most = max(most, memory.most[w]);
        const plane_scale scale(most);
        uint32_t *words = reinterpret_cast<uint32_t *>(memory.planes);
#pragma unroll
        for (int n = 0; n < TILES; n++) {
            if (tile(n) >= tiles) break;
#pragma unroll
            for (int u = 0; u < 2; u++) {
                const plane_pair pair =
                    planes_of(ahead[n][u] * scale.inverse, ahead[n][2 + u] * scale.inverse);
                uint32_t *to =
                    words + (tile(n) * 32 + 4 * (2 * lane_t() + u) + lane_g() / 2) * 4 + lane_g() % 2;
                to[0] = pair.high;
                to[2] = pair.low;
            }
        }
        barrier_sync<BARRIER_MAIN, MAIN_THREADS>();
        const int count =
            EARLY ? EARLY_TILES : worker_memory::padded(tiles); /* the planes of padding are 0 */
#pragma unroll(EARLY ? EARLY_TILES / CHUNK : 1)
        for (int n = 0; n < count; n += CHUNK) {
            float high[4] = {}, low[4] = {};
#pragma unroll
            for (int k = 0; k < CHUNK; k++) {
                if (!EARLY) load_rows(i, n + k, x[k]);
                const uint4 b = memory.planes[(n + k) * 32 + lane];
                mma_f16(low, x[EARLY ? n + k : k], b.z, b.w);
                mma_f16(high, x[EARLY ? n + k : k], b.x, b.y);
            }
#pragma unroll
            for (int e = 0; e < 4; e++) sum[e] += low[e] + high[e];
        }
        const float factor = scale.scale * float(1.0 / 255.0);
        send_packet(plan.product_of(i, group, slice) + threadIdx.x,
                    make_uint4(__float_as_uint(sum[0] * factor), __float_as_uint(sum[1] * factor),
                               __float_as_uint(sum[2] * factor), __float_as_uint(sum[3] * factor)),
                    phase_of(i));
    }

    /* The product for step i; if the launch ends before it, the weights for it are kept. */
    __device__ void look_ahead(int first, int i, float rate, uint32_t (&x)[EARLY_TILES][4]) const {
        float ahead[TILES][4];
        if (first + i > end) return;
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                ahead[n][e] = ahead_of(plan.update, rate, weight[n][e], velocity[n][e]);
        if (first + i < end) {
            send_product(i, ahead, x);
            return;
        }
#pragma unroll
        for (int n = 0; n < TILES; n++)
            *kept(n) = make_float4(ahead[n][0], ahead[n][1], ahead[n][2], ahead[n][3]);
    }

    __device__ float4 *kept(int n) const {
        return plan.ahead + (((group * plan.slices + slice) * MAIN_WARPS + warp) * MAX_TILES + n) * 32 + lane;
    }

    /* --- gradient --- */

    /* dZ of a step and the header, for the main warps; false if the step is bad. */
    __device__ bool receive_dz(int i) const {
        const uint4 *from = plan.dz_of(i, group), *header = from + MAIN_THREADS;
        const uint32_t phase = phase_of(i);
        const bool first = threadIdx.x == 0;
        uint4 packet, head = {};
        do {
            packet = load_packet(from + threadIdx.x);
            if (first) head = load_packet(header);
        } while (!arrived(packet, phase) || (first && !arrived(head, phase)));
        packet.w &= ~1u;
        memory.dz[i % 2][threadIdx.x] = packet;
        if (first) memory.dz[i % 2][MAIN_THREADS] = head;
        barrier_sync<BARRIER_PIXELS, BLOCK_THREADS>(); /* the pixels have arrived, too */
        barrier_arrive<BARRIER_DZ, BLOCK_THREADS>();
        return is_good(i);
    }

    __device__ bool is_good(int i) const { /* after dZ of the step has arrived */
        return memory.dz[i % 2][MAIN_THREADS].y == 0;
    }

    __device__ void update(const uint32_t (&x)[ROW_TILES][4], const uint4 *dz, int n, float rate,
                           float factor) {
        float high[2][4] = {}, low[2][4] = {};
#pragma unroll
        for (int k = 0; k < ROW_TILES; k++) {
            const uint4 b = dz[k * 32 + lane];
            mma_f16(low[k * 2 / ROW_TILES], x[k], b.z, b.w);
            mma_f16(high[k * 2 / ROW_TILES], x[k], b.x, b.y);
        }
#pragma unroll
        for (int e = 0; e < 4; e++)
            plan.update(rate, (low[0][e] + low[1][e] + (high[0][e] + high[1][e])) * factor, weight[n][e],
                        velocity[n][e]);
    }

    /* --- the steps --- */

    template <typename E> __device__ void all_weights(E each) {
        if (warp >= MAIN_WARPS) return;
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int pixel = (first_pack + tile(n)) * PIXELS + 2 * lane_g() + e / 2,
                          unit = group * UNITS + 2 * lane_t() + e % 2;
                if (tile(n) < tiles && unit < plan.hidden[0])
                    each((size_t)pixel * plan.hidden[0] + unit, weight[n][e], velocity[n][e]);
            }
    }

    __device__ void run_main(int first, stage_profile &profile) {
        float rate = plan.rate_of(first);
        uint32_t transposed[TILES][ROW_TILES][4], x[EARLY_TILES][4];
        load_early(0, x);
        if (resumed) {
            float ahead[TILES][4];
#pragma unroll
            for (int n = 0; n < TILES; n++) {
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
            const float factor = __uint_as_float(memory.dz[i % 2][MAIN_THREADS].x) * float(1.0 / 255.0);
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
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) weight[n][e] = velocity[n][e] = 0;
        all_weights([&](size_t i, float &w, float &v) {
            w = plan.weight[0][i];
            if (plan.update.has_velocity) v = plan.weight_velocity[0][i];
        });
        for (int i = threadIdx.x; i < worker_memory::padded(tiles) * 32; i += BLOCK_THREADS)
            memory.planes[i] = make_uint4(0, 0, 0, 0);
        if (threadIdx.x < ROWS)
            for (int i = 0; i < 3; i++) copy_row(i, threadIdx.x, image_of(first + i, threadIdx.x));
        __pipeline_commit();
        __pipeline_wait_prior(0);
        __syncthreads();
        if (warp < MAIN_WARPS)
            run_main(first, profile);
        else
            run_copies(first);
        all_weights([&](size_t i, float w, float v) { store_weight_twice(plan, 0, false, i, w, v); });
    }
};

} // namespace persistent::look_ahead

#endif
