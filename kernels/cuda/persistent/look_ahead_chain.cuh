/* One hidden layer, look-ahead: the chain. Eight warps run the stages; four helpers update layer 2 and the
   bias of layer 1 meanwhile. See look_ahead.cu. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_LOOK_AHEAD_CHAIN_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_LOOK_AHEAD_CHAIN_CUH

#include "kernels/cuda/persistent/look_ahead_stages.cuh"

namespace persistent::look_ahead {

struct chain : chain_stages {
    using chain_stages::chain_stages;

    struct steps_done {
        int steps;
        bool bad; /* the last of them */
    };

    /* --- the main warps --- */

    /* Labels of the rows that this warp owns: lane j has that of round j. */
    __device__ uint32_t owned_image(int step) const {
        const int r = group * plan.own + warp + MAIN_WARPS * lane;
        return warp + MAIN_WARPS * lane < plan.own && r < plan.rows_of(step, end)
                   ? plan.order[(size_t)step * plan.batch + r]
                   : 0;
    }

    __device__ steps_done run_main(int first, uint32_t tag, stage_profile &profile) {
        gram_rows gram = {};
        product_parts products;
        float rate_before = 0, scale_before = 0, rate = plan.rate_of(first);
        int label = plan.labels[owned_image(first)];
        const auto part_of = [&](int i) {
            const uint4 *parts = plan.product_of(i, group, 0) + threadIdx.x;
            return [parts](int s) { return parts + s * MAIN_THREADS; };
        };
        if (resumed) {
            const uint4 *last = plan.last_dz + group * DZ_PACKETS;
            memory.dz[threadIdx.x] = last[threadIdx.x];
            scale_before = __uint_as_float(last[MAIN_THREADS].x);
            rate_before = plan.rate_of(first - 1);
            gram.load<0, ROW_TILES>(gram_of(0));
        }
        barrier_sync<BARRIER_MAIN, MAIN_THREADS>();
        products.try_poll(plan.slices, part_of(0));
        for (int i = 0;; i++, tag++) {
            const int step = first + i, rows = plan.rows_of(step, end), next = min(step + 1, end - 1);
            const uint4 *next_gram = gram_of(next - first);
            const uint32_t phase = phase_of(i), next_image = owned_image(step + 1);
            const double next_rate = plan.scalars[next].learning_rate; /* converted when it has arrived */
            float z[4], h[4], dz[4], g[2][3], correction[4] = {};
            out_fragments w;
            profile.stage(0);
            correct(gram, correction, -rate_before * scale_before * (GRAM_SCALE / GRAM_ONE));
            profile.stage(1);
            products.wait(plan.slices, phase, part_of(i), z);
            profile.stage(2);
            barrier_sync<BARRIER_OUTPUT, BLOCK_THREADS>();
            profile.stage(3);
            w.load(memory);
            const plane_scale scale = memory.dz_scale[0];
            const float2 bias = reinterpret_cast<const float2 *>(memory.bias_ahead)[lane_t()];
#pragma unroll
            for (int e = 0; e < 4; e++) z[e] += correction[e] + (e % 2 ? bias.y : bias.x);
            activate_tile(rows, z, h);
            send_logits(h, w, rows, tag);
            memory.hidden[row(0)][lane_t()] = make_float2(h[0], h[1]);
            memory.hidden[row(1)][lane_t()] = make_float2(h[2], h[3]);
            gram.load<0, ROW_TILES / 2>(next_gram); /* while packets are on their way */
            profile.stage(4);
            for (int o = warp; o < plan.own; o += MAIN_WARPS) {
                const int r = group * plan.own + o;
                if (r >= rows) break;
                output_layer(step, r, __shfl_sync(0xffffffffu, label, o / MAIN_WARPS), 1.0f / (float)rows,
                             tag);
            }
            label = plan.labels[next_image];
            gram.load<ROW_TILES / 2, ROW_TILES>(next_gram);
            profile.stage(6);
            bool bad = receive_gradients(rows, tag, g);
            barrier_arrive<BARRIER_ROWS, BLOCK_THREADS>();
            profile.stage(7);
            input_gradient(g, w, dz);
            differentiate_tile(rows, z, h, dz);
            store_planes(dz, scale.inverse);
            profile.stage(8);
            bad = barrier_or<BARRIER_MAIN, MAIN_THREADS>(bad);
            profile.stage(9);
            send_packet(plan.dz_of(i, group) + threadIdx.x, memory.dz[threadIdx.x], phase);
            if (threadIdx.x == 0)
                send_packet(plan.dz_of(i, group) + MAIN_THREADS,
                            make_uint4(__float_as_uint(scale.scale), bad, 0, 0), phase);
            products.try_poll(plan.slices, part_of(i + 1));
            sum_bias_gradient(i, dz);
            rate_before = rate, scale_before = scale.scale, rate = (float)next_rate;
            profile.stage(10);
            if (bad || step + 1 == end) {
                if (threadIdx.x == 0)
                    plan.last_dz[group * DZ_PACKETS + MAIN_THREADS].x = __float_as_uint(scale.scale);
                plan.last_dz[group * DZ_PACKETS + threadIdx.x] = memory.dz[threadIdx.x];
                return {i + 1, bad};
            }
        }
    }

    /* --- the helpers --- */

    __device__ int helper_thread() const {
        return threadIdx.x - MAIN_THREADS;
    }

    /* Sums of dW2 and db2 over this warp's rows: a lane has a class and half of the units. True if a loss is
       not finite. */
    __device__ bool sum_output_gradient() const {
        static const int SHARE = ROWS / HELPER_WARPS;
        const int helper = warp - MAIN_WARPS, e = lane % PACKED_PITCH, half = lane / PACKED_PITCH;
        const float *gradient = reinterpret_cast<const float *>(memory.gradient[helper * SHARE]) + e;
        const float4 *hidden = reinterpret_cast<const float4 *>(memory.hidden[helper * SHARE]) + half;
        float sum[4] = {}, bias = 0;
#pragma unroll 8
        for (int r = 0; r < SHARE; r++) {
            const float g = gradient[r * PACKED_PITCH];
            const float4 h = hidden[r * UNITS / 4];
            sum[0] += h.x * g;
            sum[1] += h.y * g;
            sum[2] += h.z * g;
            sum[3] += h.w * g;
            bias += g;
        }
#pragma unroll
        for (int u = 0; u < 4; u++) memory.sums[helper][4 * half + u][e] = sum[u];
        if (half == 0) memory.sums[helper][UNITS][e] = bias;
        return bias != bias;
    }

    /* W2 and b2, and b1 with the gradient of the step before: a thread per weight. */
    __device__ void update_weights(int i, float rate, float rate_before) const {
        static const int REAL = OUT_ROWS * MAX_CLASSES, BIAS = HELPER_THREADS - UNITS;
        const int thread = helper_thread(), u = thread - BIAS,
                  e = thread / MAX_CLASSES * PACKED_PITCH + thread % MAX_CLASSES / 3 * 4 +
                      thread % MAX_CLASSES % 3;
        static_assert(REAL <= BIAS, "a thread each");
        if (thread < REAL) {
            float sum = 0;
#pragma unroll
            for (int s = 0; s < HELPER_WARPS; s++) sum += memory.sums[s][0][e];
            if (holds(e)) plan.update(rate, sum, memory.weight[0][e], memory.velocity[0][e]);
        } else if (u >= 0) {
            if (i > 0) update_bias(u, (i - 1) % 2, rate_before);
            memory.bias_ahead[u] = ahead_of(plan.update, rate, memory.bias[u], memory.bias_velocity[u]);
        }
    }

    /* Whether an element of W2 and b2, in packed columns, exists. */
    __device__ bool holds(int e) const {
        const int u = e / PACKED_PITCH;
        return column_class(e % PACKED_PITCH) < plan.classes &&
               (u == UNITS || group * UNITS + u < plan.hidden[0]);
    }

    __device__ void update_bias(int u, int parity, float rate) const {
        float sum = 0;
#pragma unroll
        for (int s = 0; s < MAIN_WARPS; s++) sum += memory.bias_sums[parity][s][u];
        plan.update(rate, sum, memory.bias[u], memory.bias_velocity[u]);
    }

    /* W2 in planes: a warp has a fourth of them. The scale of dZ: |dL/dH| is below 2 / rows of the largest
       |W2| of the block, and no derivative of an activation is above 1.15. */
    __device__ void store_fragments(int next_rows) const {
        const int part = warp - MAIN_WARPS, g = lane_g(), t = lane_t();
        uint32_t planes[PLANES];
        if (part < 2) {
            const int c = part == 0 ? g : g % 2 == 0 ? 8 + g / 2 : MAX_CLASSES;
            const bool real = c < MAX_CLASSES;
            const int e = real ? class_column(c) : 3;
            split_into_planes(memory.weight[2 * t][e], memory.weight[2 * t + 1][e], planes);
        } else {
            const float *w = memory.weight[g] + 4 * t;
            split_into_planes(part == 2 ? w[0] : w[2], part == 2 ? w[1] : 0, planes);
        }
        uint32_t *words = reinterpret_cast<uint32_t *>(memory.fragments);
#pragma unroll
        for (int p = 0; p < PLANES; p++) {
            const int q = part * PLANES + p;
            words[(q / 4 * 32 + lane) * 4 + q % 4] = planes[p];
        }
        if (part > 0) return;
        uint32_t most = 0;
#pragma unroll
        for (int i = 0; i < UNITS * PACKED_PITCH / 32; i++)
            most = max(most, magnitude(memory.weight[0][lane + 32 * i]));
        most = __reduce_max_sync(0xffffffffu, most);
        if (lane == 0)
            memory.dz_scale[0] =
                plane_scale(magnitude(__uint_as_float(most) * 2.3f / (float)max(next_rows, 1)));
    }

    __device__ steps_done run_helpers(int first, stage_profile &profile) {
        float rate_before = 0, rate = plan.rate_of(first);
        const int u = helper_thread();
        bool bad = false;
        if (u < UNITS) memory.bias_ahead[u] = resumed ? plan.bias_ahead[group * UNITS + u] : memory.bias[u];
        store_fragments(plan.rows_of(first, end));
        int i = 0;
        for (; first + i < end && !bad; i++) {
            const int step = first + i;
            const float next_rate = plan.rate_of(min(step + 1, end - 1));
            barrier_arrive<BARRIER_OUTPUT, BLOCK_THREADS>();
            barrier_sync<BARRIER_ROWS, BLOCK_THREADS>();
            profile.stage(0);
            bad = barrier_or<BARRIER_HELPERS, HELPER_THREADS>(sum_output_gradient());
            profile.stage(1);
            if (!bad) {
                update_weights(i, rate, rate_before);
                barrier_sync<BARRIER_HELPERS, HELPER_THREADS>();
                profile.stage(2);
                store_fragments(plan.rows_of(step + 1, end));
                profile.stage(3);
            }
            rate_before = rate, rate = next_rate;
        }
        return {i, bad};
    }

    /* --- weights --- */

    template <typename E> __device__ void all_weights(E each) {
        for (int e = threadIdx.x; e < OUT_ROWS * PACKED_PITCH; e += BLOCK_THREADS) {
            const int u = e / PACKED_PITCH, c = column_class(e % PACKED_PITCH);
            if (!holds(e)) continue;
            each(1, u == UNITS, u == UNITS ? (size_t)c : (size_t)(group * UNITS + u) * plan.classes + c,
                 memory.weight[0][e], memory.velocity[0][e], u < UNITS || group == 0);
        }
        const int u = threadIdx.x;
        if (u < UNITS && group * UNITS + u < plan.hidden[0])
            each(0, true, (size_t)(group * UNITS + u), memory.bias[u], memory.bias_velocity[u], true);
    }

    __device__ void run(int first, uint32_t tag, stage_profile &profile) {
        for (int i = threadIdx.x; i < (int)sizeof(chain_memory) / 4; i += BLOCK_THREADS)
            reinterpret_cast<uint32_t *>(&memory)[i] = 0;
        __syncthreads();
        all_weights([&](int layer, bool bias, size_t i, float &weight, float &velocity, bool) {
            weight = plan.state_of(layer, bias)[i];
            if (plan.update.has_velocity) velocity = plan.state_of(layer, 2 + bias)[i];
        });
        __syncthreads();
        const steps_done done =
            warp < MAIN_WARPS ? run_main(first, tag, profile) : run_helpers(first, profile);
        __syncthreads();
        /* b1 lags a step behind; a bad step counts for nothing */
        const int last = done.steps - 1 - done.bad;
        if (threadIdx.x < UNITS && last >= 0) update_bias(threadIdx.x, last % 2, plan.rate_of(first + last));
        __syncthreads();
        store(first + done.steps, done.bad);
        if ((int)blockIdx.x < plan.owners) plan.add_to_tally(blockIdx.x, first, first + done.steps);
    }

    /* The weights, and what the next launch needs to go on. */
    __device__ void store(int last_end, bool bad) {
        all_weights([&](int layer, bool bias, size_t i, float weight, float velocity, bool stores) {
            if (stores) store_weight_twice(plan, layer, bias, i, weight, velocity);
        });
        if (threadIdx.x < UNITS)
            plan.bias_ahead[group * UNITS + threadIdx.x] = memory.bias_ahead[threadIdx.x];
        if (group > 0) return;
        const int last = last_end - 1;
        if ((int)threadIdx.x < plan.rows_of(last, last_end))
            plan.last_order[threadIdx.x] = plan.order[(size_t)last * plan.batch + threadIdx.x];
        if (threadIdx.x == 0) *plan.resume = {bad ? -1 : last_end, 0, plan.rate_of(last)};
    }
};

} // namespace persistent::look_ahead

#endif
