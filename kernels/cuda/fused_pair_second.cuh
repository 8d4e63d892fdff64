/* Layers 2 and 3 of a network of two hidden layers: tiles of OWN rows and COLS columns. See fused_pair.cu. */
#ifndef TESSERA_KERNELS_CUDA_FUSED_PAIR_SECOND_CUH
#define TESSERA_KERNELS_CUDA_FUSED_PAIR_SECOND_CUH

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/fused_pair_tile.cuh"

/* One thread. W2 and W3 that it updates stay in its registers. */
struct pair_second : pair_tile {
    float weight[4], velocity[4]; /* row threadIdx.x / 8 of the tile of W2, 4 columns */
    float out_weight, out_velocity;
    int label; /* of row threadIdx.x / CLASSES of the tile's rows */

    using pair_tile::pair_tile;

    /* --- forward --- */

    __device__ void forward(size_t step) const {
        const int row = down * OWN + threadIdx.x / COLS, col = threadIdx.x % COLS,
                  column = across * COLS + col;
        if (!has_h2) return;
        read_tile(plan.h1_rows + step % 2 * ROWS * PITCH);
        wait_for_copies(0);
        const float z = product<false>(plan.padded[0]) + shared[place::BIAS2 + col],
                    h = activate_compactly(plan.activation[1], z);
        plan.h2_rows[row * PITCH + column] = h;
        plan.h2_columns[(column / OUTPUT * ROWS + row) * OUTPUT + column % OUTPUT] = h;
    }

    /* --- the turn --- */

    /* The thread's columns on the way back: 2. */
    __device__ static int pair() {
        return threadIdx.x % (THREADS / 2) * 2;
    }

    /* Warps' parts of the logits of the rows in TILE, into SUMS: [WARPS][OWN][CLASSES]. A lane has 2 classes, and every fourth quad of k. */
    __device__ void logits() const {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, c = lane % 8 * 2;
        const bool lower = lane & 8, last = lane & 16;
        const float *weight = shared + place::OUT_WEIGHT + min(c, MOST_CLASSES - 2) * PITCH;
        float sum[OWN][2] = {};
#pragma unroll 1
        for (int k = 16 * warp + lane / 8 * 4; k < plan.padded[1]; k += 16 * WARPS) {
            const float4 w = four(weight + k), v = four(weight + PITCH + k);
#pragma unroll
            for (int row = 0; row < OWN; row++) {
                const float4 h = four(shared + place::TILE + row * PITCH + k);
                sum[row][0] += dot(h, w);
                sum[row][1] += dot(h, v);
            }
        }
#pragma unroll
        for (int i = 0; i < OWN / 2; i++) /* each lane keeps half of the rows, then half of those */
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const float other = __shfl_xor_sync(0xffffffffu, lower ? sum[i][j] : sum[i + OWN / 2][j], 8);
                sum[i][j] = (lower ? sum[i + OWN / 2][j] : sum[i][j]) + other;
            }
        const int row = lower * (OWN / 2) + last * (OWN / 4);
#pragma unroll
        for (int i = 0; i < OWN / 4; i++) {
            float pair[2];
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const float other = __shfl_xor_sync(0xffffffffu, last ? sum[i][j] : sum[i + OWN / 4][j], 16);
                pair[j] = (last ? sum[i + OWN / 4][j] : sum[i][j]) + other;
            }
            *reinterpret_cast<float2 *>(shared + place::SUMS + (warp * OWN + row + i) * CLASSES + c) =
                make_float2(pair[0], pair[1]);
        }
    }

    /* From H2 of its rows to its tile of dZ1. All blocks with the same rows know their losses; the first of
       them writes them down. */
    __device__ void turn(size_t step, int rows, float h1) const {
        const int t = threadIdx.x;
        float *dlogits = shared + place::DLOGITS;
        if (!has_dz1) return;
        read_tile(plan.h2_rows);
        wait_for_copies(1); /* W3 */
        logits();
        __syncthreads();
        if (t < OWN * CLASSES) { /* whole warps */
            const int row = t / CLASSES, c = t % CLASSES, r = down * OWN + row;
            float z = shared[place::BIAS3 + c];
#pragma unroll
            for (int w = 0; w < WARPS; w++) z += shared[place::SUMS + w * OWN * CLASSES + t];
            const row_loss loss = lose(z, r < rows, plan.classes, label, __frcp_rn((float)rows));
            dlogits[row * DL_PITCH + c] = loss.gradient;
            if (across == 0) {
                plan.dlogits[r * CLASSES + c] = loss.gradient;
                if (!loss.finite) plan.control->bad = 1;
                if (c == 0 && r < rows) plan.tally.rows[step * plan.batch + r] = loss.record;
            }
        }
        __syncthreads();
        if (pair() < plan.padded[1]) back(t / (THREADS / 2) * (OWN / 2));
        wait_for_copies(0);
        const float dh1 = product<true>(plan.padded[1]);
        plan.dz1[(across * (COLS / UNITS) + t % COLS / UNITS) * ROWS * UNITS +
                 (down * OWN + t / COLS) * UNITS + t % UNITS] =
            dh1 * derivative_compactly(plan.activation[0], h1, h1);
    }

    /* dZ2 of half of the rows and 2 columns, in the place of H2; one of the blocks with these rows writes it down. */
    __device__ void back(int first_row) const {
        const bool mine = pair() / COLS % (plan.padded[0] / COLS) == across;
        const float *d = shared + place::DLOGITS + first_row * DL_PITCH;
        float *tile = shared + place::TILE + first_row * PITCH + pair(),
              *to = plan.dz2 + (pair() / COLS * ROWS + down * OWN + first_row) * COLS + pair() % COLS;
        float2 weight[MOST_CLASSES];
#pragma unroll
        for (int c = 0; c < MOST_CLASSES; c++)
            weight[c] = two(shared + place::OUT_WEIGHT + c * PITCH + pair());
#pragma unroll 4
        for (int row = 0; row < OWN / 2; row++) {
            float2 sum = make_float2(0, 0);
            const float2 h = two(tile + row * PITCH);
#pragma unroll
            for (int c = 0; c < MOST_CLASSES; c += 4) {
                const float4 of = four(d + row * DL_PITCH + c);
                const float each[4] = {of.x, of.y, of.z, of.w};
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    sum.x += each[e] * weight[c + e].x;
                    sum.y += each[e] * weight[c + e].y;
                }
            }
            sum.x *= derivative_compactly(plan.activation[1], h.x, h.x);
            sum.y *= derivative_compactly(plan.activation[1], h.y, h.y);
            *reinterpret_cast<float2 *>(tile + row * PITCH) = sum;
            if (mine) *reinterpret_cast<float2 *>(to + row * COLS) = sum;
        }
    }

    /* This thread's element of H1, of its tile of dZ1. */
    __device__ float own_h1(size_t step) const {
        const int row = down * OWN + threadIdx.x / COLS, column = across * COLS + threadIdx.x % COLS;
        return has_dz1 ? __ldcg(plan.h1_rows + (step % 2 * ROWS + row) * PITCH + column) : 0;
    }

    /* --- update --- */

    /* Warps' parts of dW2, into SUMS: [4][TALL][COLS], each over a quarter of the rows. */
    __device__ void gradient_parts() const {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n = lane % 8 * 4,
                  m = warp % 4 * 16 + lane / 8 * 4, part = warp / 4;
        const float *a = shared + place::H1 + part * (ROWS / 4) * TALL + m,
                    *b = shared + place::DZ2 + part * (ROWS / 4) * COLS + n;
        float sum[4][4] = {};
#pragma unroll 8
        for (int k = 0; k < ROWS / 4; k++) {
            const float4 x = four(a + k * TALL), y = four(b + k * COLS);
            add_product(sum[0], x.x, y);
            add_product(sum[1], x.y, y);
            add_product(sum[2], x.z, y);
            add_product(sum[3], x.w, y);
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
            *reinterpret_cast<float4 *>(shared + place::SUMS + (part * TALL + m + i) * COLS + n) =
                make_float4(sum[i][0], sum[i][1], sum[i][2], sum[i][3]);
    }

    /* Parts of db2, into SUMS2, and of dW3 and db3, into SUMS3. */
    __device__ void small_parts() const {
        const int t = threadIdx.x, c = t % CLASSES, u = t / CLASSES % OUTPUT, part = t / (CLASSES * OUTPUT);
        float sum = 0;
#pragma unroll
        for (int i = 0; i < ROWS / WARPS; i++)
            sum += shared[place::DZ2 + (t / 32 * (ROWS / WARPS) + i) * COLS + t % 32];
        shared[place::SUMS2 + t] = sum;
        static_assert(COLS == 32 && THREADS == 8 * CLASSES * OUTPUT,
                      "a column each, a weight and a share each");
        float *to = shared + place::SUMS3 + part * (OUTPUT + 1) * CLASSES;
        float product = 0;
        sum = 0;
#pragma unroll
        for (int i = 0; i < ROWS / 8; i++) {
            const float d = shared[place::DLOG + (part * (ROWS / 8) + i) * CLASSES + c];
            product += shared[place::H2 + (part * (ROWS / 8) + i) * OUTPUT + u] * d;
            sum += d;
        }
        to[u * CLASSES + c] = product;
        if (u == 0) to[OUTPUT * CLASSES + c] = sum;
    }

    /* After the copies have come. */
    __device__ void update(float rate) {
        if (has_w2) gradient_parts();
        small_parts();
        __syncthreads();
        if (has_w2) {
            float4 total = four(shared + place::SUMS + 4 * threadIdx.x);
#pragma unroll
            for (int p = 1; p < 4; p++) {
                const float4 more = four(shared + place::SUMS + p * TALL * COLS + 4 * threadIdx.x);
                total.x += more.x;
                total.y += more.y;
                total.z += more.z;
                total.w += more.w;
            }
            const float gradient[4] = {total.x, total.y, total.z, total.w};
#pragma unroll
            for (int j = 0; j < 4; j++)
                if (is_weight(j)) plan.descend(rate, gradient[j], weight[j], velocity[j]);
        }
        const int t = threadIdx.x, u = t - 2 * COLS;
        if (t < COLS && has_h2) {
            float gradient = 0;
#pragma unroll
            for (int w = 0; w < WARPS; w++) gradient += shared[place::SUMS2 + w * COLS + t];
            plan.descend(rate, gradient, shared[place::BIAS2 + t], shared[place::BIAS2 + COLS + t]);
        } else if (u >= 0 && u < (OUTPUT + 1) * CLASSES) {
            float gradient = 0;
#pragma unroll
            for (int p = 0; p < 8; p++) gradient += shared[place::SUMS3 + p * (OUTPUT + 1) * CLASSES + u];
            if (u >= OUTPUT * CLASSES) {
                const int c = u - OUTPUT * CLASSES;
                plan.descend(rate, gradient, shared[place::BIAS3 + c], shared[place::BIAS3 + CLASSES + c]);
            } else if (is_output()) {
                plan.descend(rate, gradient, out_weight, out_velocity);
            }
        }
        publish();
    }

    /* --- weights --- */

    __device__ int row_of_weight() const {
        return down * TALL + threadIdx.x / 8;
    }

    __device__ int column_of_weight() const {
        return across * COLS + threadIdx.x % 8 * 4;
    }

    __device__ bool is_weight(int j) const {
        return has_w2 && row_of_weight() < plan.hidden[0] && column_of_weight() + j < plan.hidden[1];
    }

    /* The thread's weight of the output layer: there is one for CLASSES * OUTPUT threads, behind those that have biases. */
    __device__ int output_row() const {
        return blockIdx.x * OUTPUT + (threadIdx.x - 2 * COLS) / CLASSES;
    }

    __device__ bool is_output() const {
        return threadIdx.x >= 2 * COLS && threadIdx.x < 2 * COLS + CLASSES * OUTPUT &&
               output_row() < plan.hidden[1] && (int)threadIdx.x % CLASSES < plan.classes;
    }

    /* The thread's weights, for all blocks. */
    __device__ void publish() const {
        if (has_w2) {
            const int row = row_of_weight(), column = column_of_weight();
            const float4 some = make_float4(weight[0], weight[1], weight[2], weight[3]);
            float *by_columns = plan.w2_columns + (across * plan.padded[0] + row) * COLS + column % COLS,
                  *by_rows = plan.w2_rows + (row / COLS * COLS + place_of_row(row % COLS)) * PITCH + column;
            __stcg(reinterpret_cast<float4 *>(by_columns), some);
            __stcg(reinterpret_cast<float4 *>(by_rows), some);
        }
        if (is_output()) __stcg(plan.w3 + threadIdx.x % CLASSES * PITCH + output_row(), out_weight);
    }

    /* Calls each(layer, index in its weights, this thread's weight, its velocity). */
    template <typename E> __device__ void all_weights(E each) {
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (is_weight(j))
                each(1, (size_t)row_of_weight() * plan.hidden[1] + column_of_weight() + j, weight[j],
                     velocity[j]);
        if (is_output())
            each(2, (size_t)output_row() * plan.classes + threadIdx.x % CLASSES, out_weight, out_velocity);
    }

    /* Calls each(layer, index in its biases, this block's copy, its velocity). */
    template <typename E> __device__ void all_biases(E each) const {
        const int t = threadIdx.x;
        if (t < COLS && across * COLS + t < plan.hidden[1])
            each(1, across * COLS + t, shared[place::BIAS2 + t], shared[place::BIAS2 + COLS + t]);
        if (t < plan.classes) each(2, t, shared[place::BIAS3 + t], shared[place::BIAS3 + CLASSES + t]);
    }

    __device__ void load() {
#pragma unroll
        for (int j = 0; j < 4; j++) weight[j] = velocity[j] = 0;
        out_weight = out_velocity = 0;
        all_weights([&](int layer, size_t i, float &value, float &its_velocity) {
            value = plan.weight[layer][i];
            if (plan.descend.has_velocity) its_velocity = plan.weight_velocity[layer][i];
        });
        all_biases([&](int layer, int i, float &value, float &its_velocity) {
            value = plan.bias[layer][i];
            if (plan.descend.has_velocity) its_velocity = plan.bias_velocity[layer][i];
        });
    }

    __device__ void store() {
        all_weights([&](int layer, size_t i, float value, float its_velocity) {
            plan.weight[layer][i] = value;
            if (plan.descend.has_velocity) plan.weight_velocity[layer][i] = its_velocity;
        });
        if (down) return; /* all blocks of these columns have the same biases */
        all_biases([&](int layer, int i, float value, float its_velocity) {
            if (layer == 2 && across) return;
            plan.bias[layer][i] = value;
            if (plan.descend.has_velocity) plan.bias_velocity[layer][i] = its_velocity;
        });
    }
};

#endif
