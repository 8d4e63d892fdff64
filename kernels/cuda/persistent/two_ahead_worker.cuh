/* Two hidden layers, look-ahead: a worker has the weights between a slice of the pixels and TILE units of
   layer 1, in registers. It updates them by the dZ1 of a step as soon as the chain has sent it, and
   multiplies them by the batch after next. Two warpgroups compute; the other warps convert pixels to
   float16. See two_ahead_wgmma.cu. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_TWO_AHEAD_WORKER_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_TWO_AHEAD_WORKER_CUH

#include "kernels/cuda/persistent/two_ahead.cuh"

namespace persistent::two_ahead {

static const int SLOTS = 3; /* batches in float16: those of three steps */

struct worker_memory {
    char x[SLOTS][2][ROWS * 128];        /* pixels: the first 64 of a slice, the others; swizzled */
    char w1[F16_PLANES][2 * TILE * 128]; /* late weights: a row of TILE units for each pixel; swizzled */
    char dz1[activation_matrix::BYTES];
    uint8_t bytes[2][SLICE_BYTES]; /* of the steps to come */
    float4 velocity[TILE / 8][MAIN_THREADS];
    uint4 header[CLUSTER]; /* of dZ1 */
    uint32_t most[MAIN_WARPS];
    int stops_at; /* the step whose pixels are the last ones converted */
    uint64_t pixels_full[2];
};

struct worker {
    const two_ahead::plan &plan;
    worker_memory &memory;
    const int slice, group, self, warp, lane;
    const int first, steps;
    const bool resumed;
    /* The transpose of W1: units 16 (warp % 4) + lane / 4 + 8 h and pixels 64 (warp / 4) + 8 n + 2 (lane % 4)
       + e are weight[4 n + 2 h + e]. */
    typedef float weights[TILE / 2];
    weights weight;

    __device__ worker(const two_ahead::plan &plan, void *shared, int first, int end, bool resumed)
        : plan(plan), memory(*(worker_memory *)shared), slice((blockIdx.x - CHAIN) / CLUSTER),
          group(blockIdx.x % CLUSTER), self(threadIdx.x), warp(self / 32), lane(self % 32), first(first),
          steps(end - first), resumed(resumed) {}

    __device__ static char *chunk(char *base, int row, int c) { /* 16 bytes, in rows of 128 */
        return base + row * 128 + (c ^ row % 8) * 16;
    }

    /* --- pixels --- */

    __device__ void copy_bytes(int i) const { /* one thread */
        if (i >= steps) return;
        mbarrier_expect_tx(memory.pixels_full + i % 2, SLICE_BYTES);
        bulk_copy(memory.bytes[i % 2], plan.slice_of(i, slice), SLICE_BYTES, memory.pixels_full + i % 2);
    }

    __device__ void convert_pixels(int i) const {
        for (int k = self - MAIN_THREADS; k < ROWS * SLICE_PACKS; k += BLOCK_THREADS - MAIN_THREADS) {
            const int row = k / SLICE_PACKS, pack = k % SLICE_PACKS;
            const uint4 pixels = reinterpret_cast<const uint4 *>(memory.bytes[i % 2])[k];
            const uint32_t words[4] = {pixels.x, pixels.y, pixels.z, pixels.w};
            uint32_t half[8];
#pragma unroll
            for (int e = 0; e < 8; e++) half[e] = half2_of_bytes(words[e / 2], e % 2 ? 0x4342 : 0x4140);
            char *base = memory.x[i % SLOTS][pack / 4];
            *(uint4 *)chunk(base, row, pack % 4 * 2) = make_uint4(half[0], half[1], half[2], half[3]);
            *(uint4 *)chunk(base, row, pack % 4 * 2 + 1) = make_uint4(half[4], half[5], half[6], half[7]);
        }
        wgmma_written();
    }

    /* The slot of step i is free: dW1 of step i - 3 comes before the product for step i - 1. */
    __device__ void run_pixels() const {
        const bool one = self == MAIN_THREADS;
        if (one) {
            copy_bytes(0);
            copy_bytes(1);
        }
        for (int i = 0; i < steps; i++) {
            mbarrier_wait(memory.pixels_full + i % 2, i / 2);
            convert_pixels(i);
            barrier_sync<BARRIER_PIXELS, BLOCK_THREADS>();
            if (i >= memory.stops_at) { /* no copy may be on its way at the end */
                if (i + 1 < steps) mbarrier_wait(memory.pixels_full + (i + 1) % 2, (i + 1) / 2);
                break;
            }
            if (one) copy_bytes(i + 2);
        }
    }

    /* --- late product --- */

    /* `ahead` in planes, in shared memory; returns their scale. */
    __device__ plane_scale store_planes(const weights &ahead) const {
        const int pixels = warp / 4 * TILE;
        uint32_t most = 0;
#pragma unroll
        for (int e = 0; e < TILE / 2; e++) most = max(most, magnitude(ahead[e]));
        most = __reduce_max_sync(0xffffffffu, most);
        if (lane == 0) memory.most[warp] = most;
        barrier_sync<BARRIER_MAIN, MAIN_THREADS>();
#pragma unroll
        for (int w = 0; w < MAIN_WARPS; w++) most = max(most, memory.most[w]);
        const plane_scale scale(most);
#pragma unroll
        for (int n = 0; n < TILE / 8; n++) {
            const float *four = ahead + 4 * n;
            const plane_pair upper = planes_of(four[0] * scale.inverse, four[1] * scale.inverse),
                             lower = planes_of(four[2] * scale.inverse, four[3] * scale.inverse);
            stmatrix_x4_trans(
                chunk(memory.w1[lane / 16], pixels + 8 * n + lane % 8, warp % 4 * 2 + lane / 8 % 2),
                {upper.high, lower.high, upper.low, lower.low});
        }
        wgmma_written();
        return scale;
    }

    /* Sends the product of `ahead` with this slice of the batch of step i to the chain: 16 rows of a warp. */
    __device__ void send_product(int i, const weights &ahead) const {
        static const int STEPS = SLICE_PIXELS / 16, HALF = 4; /* float32 adds the sums of 64 pixels */
        const plane_scale scale = store_planes(ahead);
        float sum[2][TILE / 2];
        uint32_t a[STEPS][4];
        barrier_sync<BARRIER_PIXELS, BLOCK_THREADS>(); /* the pixels are there, too */
#pragma unroll
        for (int k = 0; k < STEPS; k++)
            ldmatrix_x4(a[k],
                        chunk(memory.x[i % SLOTS][k / 4], warp * 16 + lane % 16, k % 4 * 2 + lane / 16));
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < STEPS; k++) {
            wgmma_f16_registers<true>(sum[k / HALF], a[k],
                                      wgmma_swizzle128_transposed(memory.w1[1] + k * 2048, 16), k % HALF > 0);
            wgmma_f16_registers<true>(sum[k / HALF], a[k],
                                      wgmma_swizzle128_transposed(memory.w1[0] + k * 2048, 16), true);
        }
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_done(sum[0]);
        wgmma_done(sum[1]);
        const float factor = scale.scale * float(1.0 / 255.0);
#pragma unroll
        for (int n = 0; n < TILE / 8; n++) {
            const float *low = sum[0] + 4 * n, *high = sum[1] + 4 * n;
            send_packet(plan.late_of(i, group * CLUSTER + n) + slice * PACKETS_EACH + self,
                        packet_of((low[0] + high[0]) * factor, (low[1] + high[1]) * factor,
                                  (low[2] + high[2]) * factor, (low[3] + high[3]) * factor),
                        phase_of(i));
        }
    }

    __device__ float4 *kept(int n) const {
        return plan.ahead + ((slice * CLUSTER + group) * (TILE / 8) + n) * MAIN_THREADS + self;
    }

    /* --- gradient --- */

    /* dZ1 of a step, and its header; false if the step is bad. */
    __device__ bool receive_dz1(int i) const {
        const uint4 *from = plan.dz1_of(i, group) + self;
        const activation_matrix dz1 = {memory.dz1};
        uint4 packet[CLUSTER], header[1];
        receive_packets(packet, phase_of(i), [&](int s) { return from + s * PACKETS_EACH; });
#pragma unroll
        for (int s = 0; s < CLUSTER; s++) {
            uint2 *to = reinterpret_cast<uint2 *>(dz1.at(self / 2, s)) + self % 2;
            to[0] = make_uint2(packet[s].x, packet[s].y);
            to[activation_matrix::PLANE / 8] = make_uint2(packet[s].z, packet[s].w & ~1u);
        }
        if (warp == 0) {
            receive_packets(header, phase_of(i),
                            [&](int) { return plan.header_of(i, group) + lane % CLUSTER; });
            if (lane < CLUSTER) memory.header[lane] = header[0];
        }
        barrier_sync<BARRIER_MAIN, MAIN_THREADS>();
        return memory.header[0].y == 0;
    }

    /* The transpose of dW1, and the update. */
    __device__ void update(int i, float rate) {
        static const int STEPS = ROWS / 2 / 16;
        const activation_matrix dz1 = {memory.dz1};
        const char *x = memory.x[i % SLOTS][warp / 4];
        float sum[2][TILE / 2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t a[STEPS][F16_PLANES][4];
#pragma unroll
            for (int k = 0; k < STEPS; k++)
                dz1.load_transposed(a[k], half * (ROWS / 2) + 16 * k + lane / 16 * 8 + lane % 8,
                                    warp % 4 * 2 + lane / 8 % 2);
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < STEPS; k++) {
                const uint64_t b = wgmma_swizzle128_transposed(x + (half * STEPS + k) * 2048, 16);
                wgmma_f16_registers<true>(sum[half], a[k][1], b, k > 0);
                wgmma_f16_registers<true>(sum[half], a[k][0], b, true);
            }
            wgmma_commit();
            wgmma_wait<0>();
            wgmma_done(sum[half]);
        }
        const float factor[2] = {__uint_as_float(memory.header[warp % 4 * 2].x) * float(1.0 / 255.0),
                                 __uint_as_float(memory.header[warp % 4 * 2 + 1].x) * float(1.0 / 255.0)};
#pragma unroll
        for (int n = 0; n < TILE / 8; n++) {
            const float4 v = memory.velocity[n][self];
            float velocity[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int e = 0; e < 4; e++)
                plan.update(rate, (sum[0][4 * n + e] + sum[1][4 * n + e]) * factor[e / 2], weight[4 * n + e],
                            velocity[e]);
            if (plan.update.has_velocity)
                memory.velocity[n][self] = make_float4(velocity[0], velocity[1], velocity[2], velocity[3]);
        }
    }

    /* The weights of the product for step i. */
    __device__ void get_ahead(int i, float rate, weights &ahead) const {
#pragma unroll
        for (int n = 0; n < TILE / 8; n++) {
            const float4 v = memory.velocity[n][self];
            const float velocity[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int e = 0; e < 4; e++)
                ahead[4 * n + e] =
                    i > 0 ? ahead_of(plan.update, rate, weight[4 * n + e], velocity[e]) : weight[4 * n + e];
        }
        if (i > 0 || !resumed) return;
#pragma unroll
        for (int n = 0; n < TILE / 8; n++) {
            const float4 four = *kept(n);
            ahead[4 * n] = four.x, ahead[4 * n + 1] = four.y, ahead[4 * n + 2] = four.z,
                      ahead[4 * n + 3] = four.w;
        }
    }

    /* Those of the step after the launch. */
    __device__ void keep(const weights &ahead) const {
#pragma unroll
        for (int n = 0; n < TILE / 8; n++)
            *kept(n) = make_float4(ahead[4 * n], ahead[4 * n + 1], ahead[4 * n + 2], ahead[4 * n + 3]);
    }

    /* --- the steps --- */

    template <typename E> __device__ void all_weights(E each) {
        const int first_pack = plan.first_pack(slice), packs = plan.first_pack(slice + 1) - first_pack,
                  thread = opaque(lane);
#pragma unroll
        for (int e = 0; e < TILE / 2; e++) {
            const int pixel = warp / 4 * TILE + e / 4 * 8 + thread % 4 * 2 + e % 2,
                      unit = group * TILE + warp % 4 * 16 + thread / 4 + e / 2 % 2 * 8;
            float *velocity = &memory.velocity[e / 4][self].x + e % 4;
            if (pixel < packs * PIXELS && unit < plan.hidden[0])
                each((size_t)(first_pack * PIXELS + pixel) * plan.hidden[0] + unit, weight[e], *velocity);
        }
    }

    __device__ void run_main(stage_profile &profile) {
        float rate = 0;
#pragma unroll
        for (int n = 0; n < TILE / 8; n++) memory.velocity[n][self] = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int e = 0; e < TILE / 2; e++) weight[e] = 0;
        all_weights([&](size_t i, float &w, float &v) {
            w = plan.weight[0][i];
            if (plan.update.has_velocity) v = plan.weight_velocity[0][i];
        });
        for (int i = -2; i < steps; i++) { /* dZ1 of step i, the product for step i + 2 */
            const double next_rate = plan.scalars[first + min(max(i + 1, 0), steps - 1)].learning_rate;
            profile.stage(0);
            if (i >= 0) {
                if (!receive_dz1(i)) {
                    memory.stops_at = i + 2;
                    if (i + 2 < steps) barrier_sync<BARRIER_PIXELS, BLOCK_THREADS>();
                    break;
                }
                profile.stage(1);
                update(i, rate);
            }
            rate = (float)next_rate;
            profile.stage(2);
            if (i + 2 > steps) break;
            weights ahead;
            get_ahead(i + 2, rate, ahead);
            if (i + 2 < steps) {
                send_product(i + 2, ahead);
            } else {
                keep(ahead);
                barrier_sync<BARRIER_MAIN, MAIN_THREADS>(); /* all warps have read dZ1 */
            }
            profile.stage(3);
        }
        all_weights([&](size_t i, float w, float v) { store_weight_twice(plan, 0, false, i, w, v); });
    }

    __device__ void run(stage_profile &profile) {
        for (int i = self; i < (int)(sizeof memory.x / 16); i += BLOCK_THREADS)
            reinterpret_cast<uint4 *>(memory.x)[i] = make_uint4(0, 0, 0, 0); /* the places of no pixel */
        wgmma_written();
        if (self == 0) {
            for (int i = 0; i < 2; i++) mbarrier_init(memory.pixels_full + i);
            memory.stops_at = steps;
        }
        __syncthreads();
        if (warp < MAIN_WARPS) {
            warpgroup_more_registers<168>();
            run_main(profile);
            warpgroup_fewer_registers<128>();
        } else {
            warpgroup_fewer_registers<80>();
            run_pixels();
            warpgroup_more_registers<128>();
        }
        __syncthreads();
    }
};

} // namespace persistent::two_ahead

#endif
