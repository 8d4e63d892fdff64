/* Layer 2 of a network of two hidden layers: a tile of W2, in true float32 on the tensor cores. See fused_pair.cu. */
#ifndef TESSERA_KERNELS_CUDA_FUSED_PAIR_SECOND_CUH
#define TESSERA_KERNELS_CUDA_FUSED_PAIR_SECOND_CUH

#include "kernels/cuda/fused_pair_plan.cuh"

/* One thread of the block that has rows TALL down and columns WIDE across of W2. The weights that a thread updates stay in its registers, as a
   product of the tensor cores leaves their gradient: a warp has 16 x 8 of them. */
struct pair_second : pair_block {
    float weight[4], velocity[4];

    using pair_block::pair_block;

    __device__ dz2_matrix dz2() const {
        return {shared + place::DZ2};
    }
    __device__ w2_matrix w2() const {
        return {shared + place::W2};
    }

    /* --- what comes --- */

    /* Eight numbers of three packets each, of this thread's row of the batch, from `from` and, if there are two, from half of all on. */
    template <int N>
    __device__ void receive_eights(float (&values)[3 * N][3], const packet_of_3 *from, int apart,
                                   uint32_t tag) const {
        from += threadIdx.x / ROWS * 3 * ROWS + threadIdx.x % ROWS;
        receive(values, tag, [&](int i) { return from + i / 3 * apart + i % 3 * ROWS; });
    }

    __device__ static void flatten(float (&eight)[8], const float (*packets)[3]) {
#pragma unroll
        for (int i = 0; i < 8; i++) eight[i] = packets[i / 3][i % 3];
    }

    /* TALL columns of H1: a thread has a row, and those of a block of layer 1. */
    __device__ void receive_h1(uint32_t tag) const {
        static_assert(ROWS * TALL == UNITS * THREADS, "eight each");
        float part[3][3], eight[8];
        if (!has_units) return;
        receive_eights<1>(part, plan.h1 + down * (TALL / UNITS) * 3 * ROWS, 0, tag);
        flatten(eight, part);
        h1().store(threadIdx.x % ROWS, threadIdx.x / ROWS, eight);
    }

    /* WIDE columns of dZ2. True if a loss was bad. */
    __device__ bool receive_dz2(uint32_t tag) const {
        static_assert(ROWS * WIDE == 2 * UNITS * THREADS, "twice eight each");
        float part[6][3], eight[8];
        const int row = threadIdx.x % ROWS, chunk = threadIdx.x / ROWS;
        receive_eights<2>(part, plan.dz2 + across * CHUNKS * 3 * ROWS, CHUNKS / 2 * 3 * ROWS, tag);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            flatten(eight, part + 3 * i);
            dz2().store(row, chunk + i * CHUNKS / 2, eight);
        }
        return part[2][2] != 0;
    }

    /* --- products: see fused_exact.cuh for who has what --- */

    /* Z2 over the rows of the tile, 128 x 64 over 32, to those who own rows of the batch: a warp has 16 rows, and half of the columns. */
    __device__ void forward(uint32_t tag) const {
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
#pragma unroll
        for (int below = 0; below < 2; below++) {
            static const int POSITIONS = THREADS / GROUP;
            const int group = 2 * m + below;
            float eight[8];
#pragma unroll
            for (int i = 0; i < 8; i++) eight[i] = sum[i / 2][2 * below + i % 2];
            send_eight(plan.sums + ((across * (ROWS / GROUP) + group) * plan.tall + down) * 3 * POSITIONS +
                           half * 32 + lane(),
                       POSITIONS, eight, 0, tag);
        }
    }

    /* dH1 over the columns of the tile, 128 x 32 over 64, to those who have the units: a warp has 32 rows, and 8 units. */
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
                   ROWS, eight, bad, tag);
    }

    /* dW2, 32 x 64 over 128, and its update. After a barrier: others read W2 till then. */
    __device__ void update(float rate) {
        const int m = warp() % 2, n = warp() / 2;
        float sum[4] = {};
#pragma unroll 2
        for (int k = 0; k < ROWS; k += 32) {
            uint32_t a[PARTS][4], b[PARTS][4];
            dz2().load_transposed(b, k + lane(), n);
            h1().load_transposed(a, k + lane() / 16 * 8 + lane() % 8, 2 * m + lane() / 8 % 2);
            multiply_floats<0>(sum, a, b);
            h1().load_transposed(a, k + 16 + lane() / 16 * 8 + lane() % 8, 2 * m + lane() / 8 % 2);
            multiply_floats<2>(sum, a, b);
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (is_weight(i)) plan.descend(rate, sum[i], weight[i], velocity[i]);
        publish();
    }

    /* --- weights --- */

    __device__ int row_of_weight(int i) const {
        return warp() % 2 * 16 + i / 2 * 8 + lane() / 4;
    }

    __device__ int index_of_weight(int i) const {
        return (down * TALL + row_of_weight(i)) * plan.hidden[1] + across * WIDE + warp() / 2 * 8 +
               lane() % 4 * 2 + i % 2;
    }

    __device__ bool is_weight(int i) const {
        return down * TALL + row_of_weight(i) < plan.hidden[0] &&
               across * WIDE + warp() / 2 * 8 + lane() % 4 * 2 + i % 2 < plan.hidden[1];
    }

    /* The thread's weights, for its block. */
    __device__ void publish() const {
#pragma unroll
        for (int i = 0; i < 4; i += 2)
            w2().store_pair(row_of_weight(i), warp() / 2, lane() % 4, weight[i], weight[i + 1]);
    }

    __device__ void load() {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const bool mine = is_weight(i);
            weight[i] = mine ? plan.weight[1][index_of_weight(i)] : 0;
            velocity[i] = mine && plan.descend.has_velocity ? plan.weight_velocity[1][index_of_weight(i)] : 0;
        }
    }

    __device__ void store() const {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (!is_weight(i)) continue;
            plan.weight[1][index_of_weight(i)] = weight[i];
            if (plan.descend.has_velocity) plan.weight_velocity[1][index_of_weight(i)] = velocity[i];
        }
    }
};

#endif
