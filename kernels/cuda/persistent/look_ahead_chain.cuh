/* One hidden layer, look-ahead: the chain. Eight warps run the stages; four helpers do all else meanwhile.
   See look_ahead.cu. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_LOOK_AHEAD_CHAIN_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_LOOK_AHEAD_CHAIN_CUH

#include "kernels/cuda/persistent/look_ahead_output.cuh"

namespace persistent::look_ahead {

struct chain : chain_helpers {
    using chain_helpers::chain_helpers;

    /* Sends dZ of both unit tiles to the workers. */
    __device__ void send_dz(int i, float scale, bool bad) const {
        const uint32_t phase = phase_of(i);
#pragma unroll
        for (int n = 0; n < UNIT_TILES; n++) {
            if (group(n) >= plan.groups) break;
            uint4 *to = plan.dz_of(i, group(n));
            send_packet(to + threadIdx.x, memory.dz[i % 2][n][threadIdx.x], phase);
            if (threadIdx.x == 0)
                send_packet(to + MAIN_THREADS, make_uint4(__float_as_uint(scale), bad, 0, 0), phase);
        }
    }

    /* dZ of the last step of a launch, as the next launch has it. */
    __device__ void keep_dz(int i, float scale) const {
#pragma unroll
        for (int n = 0; n < UNIT_TILES; n++) {
            if (group(n) >= plan.groups) break;
            uint4 *to = plan.last_dz + group(n) * DZ_PACKETS;
            to[threadIdx.x] = memory.dz[i % 2][n][threadIdx.x];
            if (threadIdx.x == 0) to[MAIN_THREADS].x = __float_as_uint(scale);
        }
    }

    /* Returns the scale of the dZ that it loads. */
    __device__ float resume_dz() const {
#pragma unroll
        for (int n = 0; n < UNIT_TILES; n++)
            if (group(n) < plan.groups)
                memory.dz[1][n][threadIdx.x] = plan.last_dz[group(n) * DZ_PACKETS + threadIdx.x];
        return group(0) < plan.groups ? __uint_as_float(plan.last_dz[group(0) * DZ_PACKETS + MAIN_THREADS].x)
                                      : 0;
    }

    __device__ void run_main(int first, stage_profile &profile) {
        gram_rows gram = {};
        float factor = 0; /* of the correction */
        if (resumed) {
            factor = -plan.rate_of(first - 1) * resume_dz() * (GRAM_SCALE / GRAM_ONE);
            gram.load<0, ROW_TILES>(plan.gram + gram_offset());
        }
        barrier_sync<BARRIER_MAIN, MAIN_THREADS>();
        for (int i = 0;; i++) {
            const int step = first + i, rows = plan.rows_of(step, end);
            const bool last = step + 1 == end;
            const uint4 *next_gram = memory.gram[(i + 1) % 2] + gram_offset();
            tile_values z, h, dz;
            float4 g[2];
            product_parts<1> parts;
            parts.start(plan, i, group(1), threadIdx.x);
            profile.stage(0);
            correct(gram, memory.dz[(i + 1) % 2], factor, z);
            profile.stage(1);
            parts.wait(plan, i);
            barrier_sync<BARRIER_OUTPUT, BLOCK_THREADS>();
            profile.stage(2);
            const plane_scale scale = memory.dz_scale;
            factor = -memory.rate * scale.scale * (GRAM_SCALE / GRAM_ONE);
            const float4 late[UNIT_TILES] = {memory.late[i % 2][threadIdx.x],
                                             parts.sum(0, memory.bias_ahead[i % 2] + UNITS)};
#pragma unroll
            for (int n = 0; n < UNIT_TILES; n++)
                z[n][0] += late[n].x, z[n][1] += late[n].y, z[n][2] += late[n].z, z[n][3] += late[n].w;
            activate_tile(rows, z, h);
            send_logits(h);
            profile.stage(3);
            if (!last) { /* while packets are on their way */
                wait_for_gram(i + 1);
                gram.load<0, ROW_TILES / 2>(next_gram);
            }
            profile.stage(4);
            output_layer(step, i, rows);
            profile.stage(6);
            const w2_fragments<4> w(memory);
            if (!last) gram.load<ROW_TILES / 2, ROW_TILES>(next_gram);
            profile.stage(7);
            bool bad = receive_gradients(i, g);
            barrier_arrive<BARRIER_ROWS, BLOCK_THREADS>();
            profile.stage(8);
            input_gradient(g, w, dz);
            differentiate_tile(rows, z, h, dz);
            store_planes(memory.dz[i % 2], dz, scale.inverse);
            profile.stage(9);
            bad = barrier_or<BARRIER_MAIN, MAIN_THREADS>(bad);
            profile.stage(10);
            send_dz(i, scale.scale, bad);
            if (!bad) barrier_arrive<BARRIER_DZ, BLOCK_THREADS>();
            profile.stage(11);
            if (bad || last) {
                keep_dz(i, scale.scale);
                if (threadIdx.x == 0) memory.steps = i + 1, memory.bad = bad;
                return;
            }
        }
    }

    /* --- weights --- */

    template <typename E> __device__ void all_weights(E each) {
        for (int e = threadIdx.x; e < OUT_ROWS * PACKED_PITCH; e += BLOCK_THREADS) {
            const int u = e / PACKED_PITCH, c = column_class(e % PACKED_PITCH);
            if (!holds(e)) continue;
            const bool bias = u == CHAIN_UNITS;
            each(1, bias, bias ? (size_t)c : (size_t)(group(0) * UNITS + u) * plan.classes + c,
                 memory.weight[0][e], memory.velocity[0][e], !bias || rank == 0);
        }
        const int u = threadIdx.x, unit = group(0) * UNITS + u;
        if (u < CHAIN_UNITS && unit < plan.hidden[0])
            each(0, true, (size_t)unit, memory.bias[u], memory.bias_velocity[u], true);
    }

    __device__ void initialise(int first) {
        for (int i = threadIdx.x; i < (int)offsetof(chain_memory, gram) / 4; i += BLOCK_THREADS)
            reinterpret_cast<uint32_t *>(&memory)[i] = 0;
        __syncthreads();
        if (threadIdx.x == 0) {
            for (int i = 0; i < MAIN_WARPS; i++) {
                mbarrier_init(memory.logits_full + i);
                mbarrier_init(memory.gradient_full + i);
                mbarrier_expect_tx(memory.logits_full + i, EXCHANGE_BYTES);
                mbarrier_expect_tx(memory.gradient_full + i, EXCHANGE_BYTES);
            }
            for (int i = 0; i < 2; i++) mbarrier_init(memory.gram_full + i);
        }
        all_weights([&](int layer, bool bias, size_t i, float &weight, float &velocity, bool) {
            weight = plan.state_of(layer, bias)[i];
            if (plan.update.has_velocity) velocity = plan.state_of(layer, 2 + bias)[i];
        });
        __syncthreads();
        if (warp >= MAIN_WARPS) prepare(first);
        cluster_barrier();
    }

    __device__ void run(int first, stage_profile &profile) {
        initialise(first);
        if (warp < MAIN_WARPS)
            run_main(first, profile);
        else
            run_helpers(first, profile);
        __syncthreads();
        store(first + memory.steps, memory.bad);
        if (rank < plan.owners) plan.add_to_tally(rank, first, first + memory.steps);
        cluster_barrier(); /* the shared memory of a block must outlive its mail */
    }

    /* The weights, and what the next launch needs to go on. */
    __device__ void store(int last_end, bool bad) {
        all_weights([&](int layer, bool bias, size_t i, float weight, float velocity, bool stores) {
            if (stores) store_weight_twice(plan, layer, bias, i, weight, velocity);
        });
        if (threadIdx.x < CHAIN_UNITS && group(threadIdx.x / UNITS) < plan.groups)
            plan.bias_ahead[group(0) * UNITS + threadIdx.x] =
                memory.bias_ahead[memory.steps % 2][threadIdx.x];
        if (rank > 0) return;
        const int last = last_end - 1;
        if ((int)threadIdx.x < plan.rows_of(last, last_end))
            plan.last_order[threadIdx.x] = plan.order[(size_t)last * plan.batch + threadIdx.x];
        if (threadIdx.x == 0) *plan.resume = {bad ? -1 : last_end, 0, plan.rate_of(last)};
    }
};

} // namespace persistent::look_ahead

#endif
