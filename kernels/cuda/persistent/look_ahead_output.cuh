/* One hidden layer, look-ahead: the helper warps of the chain. Beside the main warps they receive late
   products, update W2 and both biases, and load the Gram matrices. See look_ahead.cu. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_LOOK_AHEAD_OUTPUT_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_LOOK_AHEAD_OUTPUT_CUH

#include "kernels/cuda/persistent/look_ahead_stages.cuh"
#include "kernels/cuda/tensor/bulk_copy.cuh"

namespace persistent::look_ahead {

struct chain_helpers : chain_stages {
    using chain_stages::chain_stages;

    __device__ int helper() const { /* this warp */
        return warp - MAIN_WARPS;
    }
    __device__ int thread() const {
        return threadIdx.x - MAIN_THREADS;
    }
    __device__ static void helpers_barrier() {
        barrier_sync<BARRIER_HELPERS, HELPER_THREADS>();
    }

    /* --- Gram matrices: that of step i of the launch is in buffer i % 2 --- */

    /* Copies the matrix in pieces, with pauses: 64 KB at once would delay packets by 2,000 cycles. */
    __device__ void load_gram(int first, int i) const {
        static const int PIECES = 8, PIECE = GRAM_STEP / PIECES;
        uint64_t *full = memory.gram_full + i % 2;
        const uint4 *from = plan.gram + (size_t)i * GRAM_STEP;
        if (helper() != HELPER_WARPS - 1 || first + i >= end) return;
        if (lane == 0) mbarrier_expect_tx(full, GRAM_BYTES);
        for (int p = 0; p < PIECES; p++) {
            if (lane == 0)
                bulk_copy(memory.gram[i % 2] + p * PIECE, from + p * PIECE, GRAM_BYTES / PIECES, full);
            __nanosleep(60);
        }
    }

    __device__ void wait_for_gram(int i) const { /* i >= 1 */
        mbarrier_wait(memory.gram_full + i % 2, (i - 1) / 2);
    }

    /* --- the first layer's inputs --- */

    /* The late products of step i of the first unit tile. */
    static const int SHARES_OF_LATE = MAIN_THREADS / HELPER_THREADS;
    typedef product_parts<SHARES_OF_LATE> late_parts;
    __device__ void finish_products(int i, late_parts &parts) const {
        parts.wait(plan, i);
#pragma unroll
        for (int q = 0; q < SHARES_OF_LATE; q++)
            memory.late[i % 2][thread() + q * HELPER_THREADS] = parts.sum(q, memory.bias_ahead[i % 2]);
    }

    /* Adds the gradient of step i to b1: the sum of dZ over the rows, by tensor cores. A warp per unit
       tile. */
    __device__ void update_bias(int i, float rate, float scale) const {
        if (helper() >= UNIT_TILES) return;
        const uint32_t ones[4] = {0x3c003c00u, 0x3c003c00u, 0x3c003c00u, 0x3c003c00u};
        float high[2][4] = {}, low[4] = {};
#pragma unroll
        for (int k = 0; k < ROW_TILES; k++) {
            const uint4 b = memory.dz[i % 2][helper()][k * 32 + lane];
            mma_f16(low, ones, b.z, b.w);
            mma_f16(high[k * 2 / ROW_TILES], ones, b.x, b.y);
        }
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int u = helper() * UNITS + 2 * lane + e;
            if (lane < UNITS / 2 && group(helper()) * UNITS + 2 * lane + e < plan.hidden[0])
                plan.update(rate, (low[e] + (high[0][e] + high[1][e])) * scale, memory.bias[u],
                            memory.bias_velocity[u]);
        }
    }

    __device__ void look_ahead_bias(int i, float rate) const {
        const int u = helper() * UNITS + lane;
        __syncwarp();
        if (helper() < UNIT_TILES && lane < UNITS)
            memory.bias_ahead[i % 2][u] =
                ahead_of(plan.update, rate, memory.bias[u], memory.bias_velocity[u]);
    }

    /* --- W2 --- */

    /* Sums of dW2 and db2 over this warp's rows, by tensor cores: units are the rows of a product, and pairs
       of k are rows j and j + 4 of the batch. True if a loss is not finite. */
    __device__ bool sum_output_gradient() const {
        static const int TILES = ROW_TILES / HELPER_WARPS;
        const uint32_t ones[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
        const int g = lane_g(), t = lane_t();
        float sum[2][4] = {}, bias[2][4] = {};
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            const int first = (helper() * TILES + tile) * TILE, j = lane % 8,
                      r = first + lane / 16 * 8 + j / 2 + j % 2 * 4;
            uint32_t a[PLANES][4];
#pragma unroll
            for (int p = 0; p < PLANES; p++)
                ldmatrix_x4_trans(a[p], memory.hidden[p][r] + hidden_chunk(r, lane / 8 % 2));
#pragma unroll
            for (int c = 0; c < 2; c++) {
                const float *column = reinterpret_cast<const float *>(memory.gradient[first + t]) +
                                      (c == 0 ? class_column(g) : g / 2 * 4 + 2 + g % 2);
                uint32_t b[PLANES], b2[PLANES];
                float part[4];
                split_into_planes(column[0], column[4 * PACKED_PITCH], b);
                split_into_planes(column[8 * PACKED_PITCH], column[12 * PACKED_PITCH], b2);
                multiply_planes(part, a, b, b2);
#pragma unroll
                for (int e = 0; e < 4; e++) sum[c][e] += part[e];
#pragma unroll
                for (int p = PLANES - 1; p >= 0; p--) mma_bf16(bias[c], ones, b[p], b2[p]);
            }
        }
#pragma unroll
        for (int u = 0; u < UNIT_TILES; u++)
            put_sums(u * UNITS + g, sum[0][2 * u], sum[0][2 * u + 1], sum[1][2 * u]);
        if (g == 0) put_sums(CHAIN_UNITS, bias[0][0], bias[0][1], bias[1][0]);
        return bias[0][0] != bias[0][0];
    }

    __device__ void put_sums(int u, float first, float second, float third) const {
        float *to = memory.sums[helper()][u] + 4 * lane_t();
        *reinterpret_cast<float2 *>(to) = make_float2(first, second);
        to[2] = third;
    }

    /* Whether an element of W2 and b2, in packed columns, exists. */
    __device__ bool holds(int e) const {
        const int u = e / PACKED_PITCH;
        return column_class(e % PACKED_PITCH) < plan.classes &&
               (u == CHAIN_UNITS || group(0) * UNITS + u < plan.hidden[0]);
    }

    /* Element `n` of this thread, in packed columns, of W2 and b2; -1: none. */
    static const int SHARES = (OUT_ROWS * MAX_CLASSES + HELPER_THREADS - 1) / HELPER_THREADS;
    __device__ int element(int n) const {
        const int i = thread() + n * HELPER_THREADS,
                  e = i / MAX_CLASSES * PACKED_PITCH + class_column(i % MAX_CLASSES);
        return i < OUT_ROWS * MAX_CLASSES && holds(e) ? e : -1;
    }

    __device__ void update_output(const int (&element)[SHARES], float rate) const {
        uint32_t most = 0;
#pragma unroll
        for (int n = 0; n < SHARES; n++) {
            const int e = element[n];
            if (e < 0) continue;
            float sum = 0;
#pragma unroll
            for (int s = 0; s < HELPER_WARPS; s++) sum += memory.sums[s][0][e];
            plan.update(rate, sum, memory.weight[0][e], memory.velocity[0][e]);
            if (e < CHAIN_UNITS * PACKED_PITCH) most = max(most, magnitude(memory.weight[0][e]));
        }
        store_largest(most);
    }

    __device__ void store_largest(uint32_t most) const {
        most = __reduce_max_sync(0xffffffffu, most);
        if (lane == 0) reinterpret_cast<uint32_t *>(memory.largest)[helper()] = most;
    }

    /* W2 in planes: a warp has a fourth of the parts. */
    __device__ void store_fragments() const {
        uint32_t *words = reinterpret_cast<uint32_t *>(memory.fragments);
#pragma unroll
        for (int part = helper(), round = 0; round < W2_PARTS / HELPER_WARPS; round++, part += HELPER_WARPS) {
            const int g = lane_g(), t = lane_t(), second = part % 4 / 2, tile = part % 2;
            uint32_t planes[PLANES];
            if (round == 0) { /* pairs of units, of a class */
                const int c = second == 0 ? g : g % 2 == 0 ? 8 + g / 2 : MAX_CLASSES;
                const int e = c < MAX_CLASSES ? class_column(c) : 3, u = tile * UNITS + 2 * t;
                split_into_planes(memory.weight[u][e], memory.weight[u + 1][e], planes);
            } else { /* pairs of classes, of a unit */
                const float *w = memory.weight[second * UNITS + g] + 4 * t;
                split_into_planes(w[2 * tile], tile ? 0 : w[1], planes);
            }
#pragma unroll
            for (int p = 0; p < PLANES; p++) {
                const int q = part * PLANES + p;
                words[(q / 4 * 32 + lane) * 4 + q % 4] = planes[p];
            }
        }
    }

    /* The scale of dZ of the next step: |dL/dH| is below 2 / rows of the largest |W2| of the block, and no
       derivative of an activation is above 1.15. */
    __device__ void store_scale(int next_rows) const {
        const uint4 of = memory.largest[0];
        const float most = __uint_as_float(max(max(of.x, of.y), max(of.z, of.w)));
        if (thread() == 0) memory.dz_scale = plane_scale(magnitude(most * 2.3f / (float)max(next_rows, 1)));
    }

    /* --- the steps --- */

    __device__ uint32_t owned_image(int step) const {
        const int r = rank * own + thread();
        return thread() < own && r < plan.rows_of(step, end) ? plan.order[(size_t)step * plan.batch + r] : 0;
    }

    /* What the main warps need to begin: after the barrier of the block that follows. */
    __device__ void prepare(int first) const {
        if (thread() < CHAIN_UNITS) {
            const int u = thread();
            memory.bias_ahead[0][u] = resumed ? plan.bias_ahead[group(0) * UNITS + u] : memory.bias[u];
        }
        if (thread() < own) memory.label[0][thread()] = plan.labels[owned_image(first)];
        if (thread() == 0) memory.rate = plan.rate_of(first);
        load_gram(first, 1);
        uint32_t most = 0;
        for (int e = thread(); e < CHAIN_UNITS * PACKED_PITCH; e += HELPER_THREADS)
            most = max(most, magnitude(memory.weight[0][e]));
        store_largest(most);
        store_fragments();
        helpers_barrier();
        store_scale(plan.rows_of(first, end));
        late_parts parts;
        parts.start(plan, 0, group(0), thread());
        finish_products(0, parts);
    }

    __device__ void run_helpers(int first, stage_profile &profile) {
        float rate_before = 0, scale_before = 0, rate = plan.rate_of(first);
        uint32_t image = owned_image(first + 1);
        int elements[SHARES];
#pragma unroll
        for (int n = 0; n < SHARES; n++) elements[n] = element(n);
        for (int i = 0; first + i < end; i++) {
            const int step = first + i;
            const double next_rate = plan.scalars[min(step + 1, end - 1)].learning_rate; /* converted later */
            const int label = plan.labels[image];
            image = owned_image(step + 2);
            barrier_arrive<BARRIER_OUTPUT, BLOCK_THREADS>();
            load_gram(first, i + 2); /* all have read that of step i */
            if (i > 0) {
                barrier_sync<BARRIER_DZ, BLOCK_THREADS>();
                update_bias(i - 1, rate_before, scale_before);
            }
            look_ahead_bias(i + 1, rate);
            helpers_barrier();
            const float scale = memory.dz_scale.scale;
            profile.stage(0);
            if (thread() < own) memory.label[(i + 1) % 2][thread()] = label;
            barrier_sync<BARRIER_ROWS, BLOCK_THREADS>();
            profile.stage(1);
            late_parts parts;
            parts.start(plan, i + 1, group(0), thread());
            if (barrier_or<BARRIER_HELPERS, HELPER_THREADS>(sum_output_gradient())) {
                if (step + 2 < end) wait_for_gram(i + 2); /* no copy may be on its way at the end */
                return;
            }
            profile.stage(2);
            update_output(elements, rate);
            helpers_barrier();
            profile.stage(3);
            store_fragments();
            store_scale(plan.rows_of(step + 1, end));
            if (thread() == 0) memory.rate = (float)next_rate;
            rate_before = rate, scale_before = scale, rate = (float)next_rate;
            profile.stage(4);
            if (step + 1 < end) finish_products(i + 1, parts);
            profile.stage(5);
        }
        barrier_sync<BARRIER_DZ, BLOCK_THREADS>();
        update_bias(end - 1 - first, rate_before, scale_before);
        helpers_barrier(); /* not needed, but racecheck misses the block's barrier that follows */
    }
};

} // namespace persistent::look_ahead

#endif
