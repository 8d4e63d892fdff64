/* Layer 2 of a network of two hidden layers: a tile of W2. See fused_pair.cu. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_TWO_HIDDEN_SECOND_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_TWO_HIDDEN_SECOND_CUH

#include "kernels/cuda/persistent/two_hidden_plan.cuh"
#include "kernels/cuda/persistent/cluster_dsmem.cuh"

/* One thread of the block that has rows TALL down and columns WIDE across of W2. A thread updates four
   weights, as a product of the tensor cores leaves their gradient: a warp has 16 x 8 of them. They lie in
   shared memory, as floats and in parts. */
template <bool VELOCITY> struct pair_second : pair_block {
    descent descend;
    float velocity[4];

    __device__ pair_second(const pair_plan &plan, char *shared)
        : pair_block(plan, shared), descend(plan.descend) {
        descend.has_velocity = VELOCITY;
    }

    __device__ w2_matrix w2() const {
        return {shared + place::W2};
    }

    /* --- what comes --- */

    /* Eight numbers, of this thread's row of the batch, and what belongs to them all. */
    __device__ static float receive_eight(float (&values)[8], const packet_of_3 *from, uint32_t tag) {
        float part[3][3];
        receive(part, tag, [&](int i) { return from + threadIdx.x % ROWS + i * ROWS; });
#pragma unroll
        for (int i = 0; i < 8; i++) values[i] = part[i / 3][i % 3];
        return part[2][2];
    }

    /* TALL columns of H1: a thread has a row, and those of a block of layer 1. */
    __device__ void receive_h1(uint32_t tag) const {
        static_assert(ROWS * TALL == UNITS * THREADS, "eight each");
        const int chunk = threadIdx.x / ROWS;
        float eight[8];
        if (!has_tile) return;
        receive_eight(eight, plan.h1 + (down * (TALL / UNITS) + chunk) * 3 * ROWS, tag);
        h1().split(threadIdx.x % ROWS, chunk, eight, [](char *at, uint4 words) { put(at, words); });
    }

    /* WIDE columns of dZ2: partners receive a half each, for both. True if a loss was bad. */
    __device__ bool receive_dz2(const pair_step &now) const {
        static_assert(ROWS * WIDE == 2 * UNITS * THREADS, "eight each");
        const int chunk = threadIdx.x / ROWS + rank * (CHUNKS / 2);
        float eight[8];
        const float bad = receive_eight(eight, plan.dz2 + (across * CHUNKS + chunk) * 3 * ROWS, now.tag);
        dz2().split(threadIdx.x % ROWS, chunk, eight, [&](char *at, uint4 words) {
            put(at, words);
            give(at, words, arrived(DZ2_COMES));
        });
        await_bytes(arrived(DZ2_COMES), now.phase);
        return bad != 0;
    }

    /* --- products: see fused_exact.cuh for who has what --- */

    /* Where the partner of the block of rank `of` leaves half i of this thread's eight sums: where that block
       alone writes dZ2 later, in parts 1 and 2. (The partner may give it dZ2 of some rows before its last
       thread has read its sums.) */
    __device__ float4 *partner_sums(int of, int i) const {
        return reinterpret_cast<float4 *>(
            dz2().at(threadIdx.x % ROWS, of * (CHUNKS / 2) + threadIdx.x / ROWS) +
            (1 + i) * dz2_matrix::PART);
    }

    /* Z2 over the rows of the tile, 128 x 64 over 32: a warp has 16 rows, and half of the columns. Partners
       add up, and send half of the rows each to those who own them. */
    __device__ void forward(const pair_step &now) const {
        const int m = warp() % 8, half = warp() / 8;
        float sum[4][4] = {};
#pragma unroll
        for (int k = 0; k < TALL / 16; k++) {
            uint32_t a[PARTS][4];
            h1().load(a, 16 * m + lane() % 16, 2 * k + lane() / 16);
#pragma unroll
            for (int n = 0; n < 4; n += 2) {
                uint32_t b[PARTS][4];
                w2().load_transposed(b, 16 * k + lane() % 16, 4 * half + n + lane() / 16);
                multiply_floats<0>(sum[n], a, b);
                multiply_floats<2>(sum[n + 1], a, b);
            }
        }
        float eight[8], theirs[8];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float first = sum[i / 2][i % 2], second = sum[i / 2][2 + i % 2]; /* of rows g and g + 8 */
            eight[i] = rank ? second : first;
            theirs[i] = rank ? first : second;
        }
#pragma unroll
        for (int i = 0; i < 2; i++)
            give(partner_sums(1 - rank, i),
                 make_uint4(__float_as_uint(theirs[4 * i]), __float_as_uint(theirs[4 * i + 1]),
                            __float_as_uint(theirs[4 * i + 2]), __float_as_uint(theirs[4 * i + 3])),
                 arrived(SUMS_COME));
        await_bytes(arrived(SUMS_COME), now.phase);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float4 more = *partner_sums(rank, i);
            eight[4 * i] += more.x;
            eight[4 * i + 1] += more.y;
            eight[4 * i + 2] += more.z;
            eight[4 * i + 3] += more.w;
        }
        send_eight(plan.sums +
                       ((across * (ROWS / GROUP) + 2 * m + rank) * (plan.tall / 2) + down / 2) * 3 *
                           POSITIONS +
                       half * 32 + lane(),
                   POSITIONS, eight, 0, now.tag);
    }

    /* dH1 over the columns of the tile, 128 x 32 over 64, to those who have the units: a warp has 32 rows,
       and 8 units. */
    __device__ void back(bool bad, uint32_t tag) const {
        const int n = warp() % 4, pair = warp() / 4;
        float sum[2][4] = {};
#pragma unroll
        for (int k = 0; k < WIDE / 16; k += 2) {
            uint32_t b[PARTS][4];
            w2().load(b, 8 * n + lane() % 8, 2 * k + lane() / 8);
#pragma unroll
            for (int m = 0; m < 2; m++) {
                uint32_t a[PARTS][4];
                dz2().load(a, 32 * pair + 16 * m + lane() % 16, 2 * k + lane() / 16);
                multiply_floats<0>(sum[m], a, b);
                dz2().load(a, 32 * pair + 16 * m + lane() % 16, 2 * k + 2 + lane() / 16);
                multiply_floats<2>(sum[m], a, b);
            }
        }
        float eight[8];
#pragma unroll
        for (int i = 0; i < 8; i++) eight[i] = sum[i / 4][i % 4];
        send_eight(plan.back + ((down * (TALL / UNITS) + n) * plan.wide + across) * 3 * ROWS + 32 * pair +
                       lane(),
                   SLICES * POSITIONS, eight, bad, tag);
    }

    /* dW2, 32 x 64 over 128, and its update: a warp has 16 x 16 over half of the rows, and gives half of it
       to the warp that has the other rows. `look` is called when the products are done. After a barrier:
       others read W2 till then. */
    template <typename L> __device__ void update(float rate, L look) {
        const int m = warp() % 2, n = warp() / 2 % 4, half = warp() / 8;
        float sum[2][4] = {};
#pragma unroll 1
        for (int k = half * (ROWS / 2); k < (half + 1) * (ROWS / 2); k += 32) {
            uint32_t a[PARTS][4], b[2][PARTS][4];
#pragma unroll
            for (int j = 0; j < 2; j++) dz2().load_transposed(b[j], k + lane(), 2 * n + j);
            const int row = k + lane() / 16 * 8 + lane() % 8, chunk = 2 * m + lane() / 8 % 2;
            h1().load_transposed(a, row, chunk);
#pragma unroll
            for (int j = 0; j < 2; j++) multiply_floats<0>(sum[j], a, b[j]);
            h1().load_transposed(a, row + 16, chunk);
#pragma unroll
            for (int j = 0; j < 2; j++) multiply_floats<2>(sum[j], a, b[j]);
        }
        look();
        float4 *sums = at<float4>(place::GRADIENT_SUMS);
        float gradient[4];
#pragma unroll
        for (int i = 0; i < 4; i++) gradient[i] = half ? sum[1][i] : sum[0][i];
        sums[threadIdx.x] = half ? make_float4(sum[0][0], sum[0][1], sum[0][2], sum[0][3])
                                 : make_float4(sum[1][0], sum[1][1], sum[1][2], sum[1][3]);
        __syncthreads();
        const float4 more = sums[threadIdx.x ^ (THREADS / 2)];
        gradient[0] += more.x;
        gradient[1] += more.y;
        gradient[2] += more.z;
        gradient[3] += more.w;
        float weight[4];
        read(weight);
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (is_weight(i)) descend(rate, gradient[i], weight[i], velocity[i]);
        publish(weight);
    }

    /* --- weights --- */

    /* Of the tile. */
    __device__ static int chunk_of_weights() {
        return warp() / 2 % 4 * 2 + warp() / 8;
    }
    __device__ static int row_of_weight(int i) {
        return warp() % 2 * 16 + i / 2 * 8 + lane() / 4;
    }
    __device__ static int column_of_weight(int i) {
        return chunk_of_weights() * 8 + lane() % 4 * 2 + i % 2;
    }

    __device__ int index_of_weight(int i) const {
        return (down * TALL + row_of_weight(i)) * plan.hidden[1] + across * WIDE + column_of_weight(i);
    }

    __device__ bool is_weight(int i) const {
        return down * TALL + row_of_weight(i) < plan.hidden[0] &&
               across * WIDE + column_of_weight(i) < plan.hidden[1];
    }

    __device__ float4 *weights() const {
        return at<float4>(place::WEIGHT2) + threadIdx.x;
    }

    __device__ void read(float (&weight)[4]) const {
        const float4 four = *weights();
        weight[0] = four.x, weight[1] = four.y, weight[2] = four.z, weight[3] = four.w;
    }

    /* The thread's weights, for itself and in parts for its block. */
    __device__ void publish(const float (&weight)[4]) const {
        *weights() = make_float4(weight[0], weight[1], weight[2], weight[3]);
#pragma unroll
        for (int i = 0; i < 4; i += 2)
            w2().split_pair_of(row_of_weight(i), chunk_of_weights(), lane() % 4, weight[i], weight[i + 1],
                               [](char *at, uint32_t word) { put(at, word); });
    }

    __device__ void load() {
        float weight[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const bool mine = is_weight(i);
            weight[i] = mine ? plan.weight[1][index_of_weight(i)] : 0;
            velocity[i] = mine && VELOCITY ? plan.weight_velocity[1][index_of_weight(i)] : 0;
        }
        publish(weight);
    }

    __device__ void store() const {
        float weight[4];
        read(weight);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (!is_weight(i)) continue;
            plan.weight[1][index_of_weight(i)] = weight[i];
            if (VELOCITY) plan.weight_velocity[1][index_of_weight(i)] = velocity[i];
        }
    }
};

#endif
