/* One hidden layer, look-ahead: the chain. Eight warps run the stages; four helpers do all else meanwhile.
   See look_ahead.cu. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_LOOK_AHEAD_CHAIN_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_LOOK_AHEAD_CHAIN_CUH

#include "kernels/cuda/persistent/look_ahead_helpers.cuh"

namespace persistent::look_ahead {

struct chain : chain_helpers {
    using chain_helpers::chain_helpers;

    /* dZ of the last step of a launch, as the next launch has it. */
    __device__ void keep_dz(int i, float scale) const {
        if (rank >= plan.groups) return;
        uint4 *to = plan.last_dz + rank * DZ_PACKETS;
#pragma unroll
        for (int n = 0; n < UNIT_TILES; n++) to[n * MAIN_THREADS + self] = packet_of(i, n, warp);
        if (self == 0) to[PRODUCT_PACKETS].x = __float_as_uint(scale);
    }

    /* Returns the scale of the dZ that it loads. */
    __device__ float resume_dz() const {
        if (rank >= plan.groups) return 0;
        const uint4 *from = plan.last_dz + rank * DZ_PACKETS;
#pragma unroll
        for (int n = 0; n < UNIT_TILES; n++) {
            const uint4 packet = from[n * MAIN_THREADS + self];
            const uint32_t words[4] = {packet.x, packet.y, packet.z, packet.w};
            stmatrix_x4(&memory.dz[1][n][self], words);
        }
        return __uint_as_float(from[PRODUCT_PACKETS].x);
    }

    __device__ void run_main(int first, stage_profile &profile) {
        gram_rows gram = {};
        float factor = 0; /* of the correction */
        if (resumed) {
            factor = -plan.rate_of(first - 1) * resume_dz() * (GRAM_SCALE / GRAM_ONE);
            wait_for_maker(plan, 0);
            gram.load<0, ROW_TILES>(*this, plan.gram);
        }
        announce_dz();
        for (int i = 0;; i++) {
            const int step = first + i, rows = plan.rows_of(step, end);
            const bool last = step + 1 == end;
            tile_values z, h, dz;
            float4 g[2];
            late_product late;
            profile.stage(0);
            correct(gram, i, factor, z, late);
            profile.stage(1);
            if (memory.bad) { /* the step before */
                if (self == 0) memory.steps = i;
                return;
            }
            barrier_sync<BARRIER_OUTPUT, BLOCK_THREADS>();
            const logit_weights w2(*this);
            const plane_scale scale = memory.dz_scale;
            factor = -memory.rate * scale.scale * (GRAM_SCALE / GRAM_ONE);
            late.wait(i);
            profile.stage(2);
            add_product(late, i, z);
            activate_tile(rows, z, h);
            send_logits(h, w2);
            store_hidden(h);
            const gradient_weights w(*this);
            barrier_arrive<BARRIER_ROWS, BLOCK_THREADS>(); /* H is stored, and W2 may be overwritten */
            profile.stage(3);
            expect_now(memory.logits_full + warp);
            expect_now(memory.gradient_full + warp);
            if (!last) { /* while packets are on their way */
                wait_for_gram(i + 1);
                gram.load<0, ROW_TILES / 2>(*this, memory.gram[(i + 1) % 2]);
            }
            profile.stage(4);
            output_layer(i, rows);
            profile.stage(6);
            if (!last) gram.load<ROW_TILES / 2, ROW_TILES>(*this, memory.gram[(i + 1) % 2]);
            profile.stage(7);
            const bool bad = receive_gradients(i, g);
            profile.stage(8);
            input_gradient(g, w, dz);
            differentiate_tile(rows, z, h, dz);
            store_planes(i, dz, scale.inverse);
            if (bad) memory.bad = true;
            announce_dz();
            profile.stage(9);
            if (last) {
                send_dz(i);
                keep_dz(i, scale.scale);
                if (self == 0) memory.steps = i + 1;
                return;
            }
        }
    }

    /* --- weights --- */

    template <typename E> __device__ void all_weights(E each) {
        for (int e = self; e < OUT_ROWS * PACKED_PITCH; e += BLOCK_THREADS) {
            const int u = e / PACKED_PITCH, c = column_class(e % PACKED_PITCH);
            if (column_class(e % PACKED_PITCH) >= plan.classes ||
                (u < GROUP_UNITS && unit(u) >= plan.hidden[0]))
                continue;
            const bool bias = u == GROUP_UNITS;
            each(1, bias, bias ? (size_t)c : (size_t)unit(u) * plan.classes + c, memory.weight[0][e],
                 memory.velocity[0][e], !bias || rank == 0);
        }
        const int u = self;
        if (u < GROUP_UNITS && unit(u) < plan.hidden[0])
            each(0, true, (size_t)unit(u), memory.bias[u], memory.bias_velocity[u], true);
    }

    __device__ void initialise(int first) {
        for (int i = self; i < (int)offsetof(chain_memory, gram) / 4; i += BLOCK_THREADS)
            reinterpret_cast<uint32_t *>(&memory)[i] = 0;
        __syncthreads();
        if (self == 0) {
            for (int i = 0; i < MAIN_WARPS; i++) {
                mbarrier_init(memory.logits_full + i);
                mbarrier_init(memory.gradient_full + i);
            }
            for (int i = 0; i < 2; i++) mbarrier_init(memory.gram_full + i);
            for (int i = 0; i < MAIN_WARPS / 2; i++) mbarrier_init(memory.dz_full + i, 2);
        }
        all_weights([&](int layer, bool bias, size_t i, float &weight, float &velocity, bool) {
            weight = plan.state_of(layer, bias)[i];
            if (plan.update.has_velocity) velocity = plan.state_of(layer, 2 + bias)[i];
        });
        __syncthreads();
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
        if (warp == 0) sum_records(first + memory.steps - 1, memory.steps - 1);
        if (rank < plan.owners) plan.add_sums_to_tally(first, first + memory.steps);
        cluster_barrier(); /* the shared memory of a block must outlive its mail */
    }

    /* The weights, and what the next launch needs to go on. */
    __device__ void store(int last_end, bool bad) {
        all_weights([&](int layer, bool bias, size_t i, float weight, float velocity, bool stores) {
            if (stores) store_weight_twice(plan, layer, bias, i, weight, velocity);
        });
        if (self < GROUP_UNITS && rank < plan.groups)
            plan.bias_ahead[unit(self)] = memory.bias_ahead[memory.steps % 2][self];
        if (rank == 0) plan.keep_order(last_end, bad);
    }
};

} // namespace persistent::look_ahead

#endif
