/* Two hidden layers: layer 1, UNITS units and half of the pixels per thread block. See
   two_hidden_wgmma.cu. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_TWO_HIDDEN_LAYER1_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_TWO_HIDDEN_LAYER1_CUH

#include "kernels/cuda/persistent/two_hidden_plan.cuh"
#include "kernels/cuda/tensor/bulk_copy.cuh"

namespace persistent::two_hidden {

/* Before a launch, a thread block for each step: gathers the images, so that a block of the form copies
   its slice of a batch at once. (128 copies of a row each would take 1,400 cycles of the step to issue.) */
static const int GATHER_THREADS = 512;
__global__ void __launch_bounds__(GATHER_THREADS)
    gather_batch(const __grid_constant__ plan plan, int first, int end, uint32_t) {
    const int step = first + blockIdx.x, packs = plan.features / PIXELS, middle = plan.first_pack(1);
    for (int i = threadIdx.x; i < plan.rows_of(step, end) * packs; i += GATHER_THREADS) {
        const int row = i / packs, pack = i % packs, slice = pack >= middle;
        const uint8_t *image =
            plan.images + (size_t)plan.order[(size_t)step * plan.batch + row] * plan.features;
        uint8_t *to = plan.slice_of(blockIdx.x, slice) + row * pixel_pitch(plan.packs);
        reinterpret_cast<uint4 *>(to)[pack - slice * middle] = reinterpret_cast<const uint4 *>(image)[pack];
    }
}

/* One thread of a block with a slice of the pixels and UNITS units of layer 1. Weights are in registers,
   where wgmma leaves their gradients: lane 4 g + t of a warp holds pixels 2 g and 2 g + 1 and units 2 t
   and 2 t + 1, in that order, of every WARPS-th pack. */
template <bool VELOCITY> struct layer1_block : block {
    sgd_update update;
    int units;              /* the first of its units: peers have the same */
    int first_pack, length; /* of its slice of the pixels, in packs */
    int pitch;              /* of pixels */
    float weight[PACKS_PER_WARP][4], velocity[PACKS_PER_WARP][4];

    __device__ layer1_block(const two_hidden::plan &plan, char *shared)
        : block(plan, shared), update(plan.update), units(blockIdx.x / SPLIT_K * UNITS) {
        first_pack = plan.first_pack(rank);
        length = has_units ? plan.first_pack(rank + 1) - first_pack : 0;
        pitch = pixel_pitch(plan.packs);
        update.has_velocity = VELOCITY; /* a constant: velocities take registers */
    }

    __device__ static int pack_of(int n) { /* pack n of this warp, in the slice */
        return n * WARPS + warp();
    }
    __device__ char *slices() const { /* of W1 */
        return at<char>(smem_layout::W1);
    }
    __device__ uint32_t *w1_max() const {
        return at<uint32_t>(smem_layout::W1_MAX);
    }
    __device__ uint32_t *dz1_max(int half) const {
        return at<uint32_t>(smem_layout::DZ1_MAX) + half * UNITS;
    }

    /* --- pixels --- */

    __device__ char *pixels_of(int step) const {
        return at<char>(smem_layout::pixels(plan.packs)) + step % 2 * ROWS * pitch;
    }

    /* Copies the slice of the images of a step, which is step i of the launch. After a barrier that
       follows the last use of the buffer. */
    __device__ void copy_images(int step, int i) const {
        const uint32_t bytes = (uint32_t)plan.slice_bytes();
        if (threadIdx.x || !length) return;
        mbarrier_expect_tx(barrier(PIXELS_FULL), bytes);
        bulk_copy(pixels_of(step), plan.slice_of(i, rank), bytes, barrier(PIXELS_FULL));
    }

    /* --- forward --- */

    static constexpr int FORWARD_WARPS = ROWS / 16;

    /* Z1 of 16 rows, over this block's pixels, by the first two warpgroups. Rows of the other half go to the
       peer; of this half, a warp adds what the peer sent, and sends H1. A lane has four units of a row. */
    __device__ void forward(const step_info &now) const {
        if (!length || warp() >= FORWARD_WARPS) return;
        by_wgmma::forward_product product;
        mbarrier_wait(barrier(PIXELS_FULL), now.phase);
        product.run(pixels_of(now.number) + (warp() * 16 + lane() % 16) * pitch, length, slices());
        const bool odd = lane() % 2;
        float z[2][2], four[4];
#pragma unroll
        for (int u = 0; u < 2; u++) {
            const float scale = slice_scale(w1_max()[lane_unit() + u]).scale * float(1.0 / 255.0);
#pragma unroll
            for (int h = 0; h < 2; h++) z[h][u] = product.total(h, u) * scale;
        }
#pragma unroll
        for (int u = 0; u < 2; u++) {
            const float received = __shfl_xor_sync(0xffffffffu, odd ? z[0][u] : z[1][u], 1);
            four[u] = odd ? received : z[0][u];
            four[2 + u] = odd ? z[1][u] : received;
        }
        const int row = warp() % 4 * 16 + lane() / 4 + 8 * odd, quad = lane() % 4 / 2; /* in a half */
        float4 *half = at<float4>(smem_layout::HALVES) + row * 2 + quad;
        if (warp() / 4 == rank) {
            const float4 bias = at<float4>(smem_layout::BIAS1)[quad];
            mbarrier_wait(barrier(Z1_FULL), now.phase);
            const float4 theirs = *half;
            const float sum[4] = {four[0] + theirs.x + bias.x, four[1] + theirs.y + bias.y,
                                  four[2] + theirs.z + bias.z, four[3] + theirs.w + bias.w};
#pragma unroll
            for (int u = 0; u < 4; u++)
                four[u] =
                    rank * (ROWS / 2) + row < now.rows ? activate_compactly(plan.activation[0], sum[u]) : 0;
            *half = make_float4(four[0], four[1], four[2], four[3]);
            ll_send(plan.h1 + (units / UNITS * 2 + quad) * ROWS + rank * (ROWS / 2) + row, four[0], four[1],
                    four[2], four[3], now.packet_phase());
        } else {
            st_async(half,
                     make_uint4(__float_as_uint(four[0]), __float_as_uint(four[1]), __float_as_uint(four[2]),
                                __float_as_uint(four[3])),
                     barrier(Z1_FULL));
        }
    }

    /* --- backward --- */

    /* Which element of dZ1 a thread holds, and the position of its partial sums (layer2_block::backward): its
       lane bits are row % 2, unit / 2 % 2, unit % 2, row / 8 % 2 and row / 16 % 2, so that one warp holds the
       slices of four rows. */
    __device__ static int row_of_eight() {
        return warp() % 4 * 2 + lane() % 2;
    }
    __device__ static int pair_of_units() {
        return warp() / 4 % 2 * 2 + lane() / 2 % 2;
    }
    __device__ static int position() {
        return warp() / 8 * 32 + row_of_eight() * 4 + pair_of_units();
    }
    __device__ static int dz1_row() { /* in its half of the rows */
        return warp() / 8 * 32 + lane() / 8 * 8 + row_of_eight();
    }
    __device__ static int dz1_unit() {
        return 2 * pair_of_units() + lane() / 4 % 2;
    }

    __device__ const ll_packet4 *parts_of_dh1(int i) const {
        return plan.dh1 +
               ((units / UNITS * plan.tiles_out + min(lane() / 4, plan.tiles_out - 1)) * 2 * SPLIT_K +
                i * SPLIT_K + rank) *
                   POSITIONS +
               position();
    }

    /* One element of dZ1 in this block's half of the rows: the sum of the partial dH1 of the tiles of W2.
       True if a loss is not finite. */
    __device__ bool receive_gradients(ll_receiver<2, ll_packet4> &parts, const step_info &now,
                                      float &dz1) const {
        const int q = lane() / 4;
        float sum[8];
        if (!length) return false;
        parts.wait(now.packet_phase(), [&](int i) { return parts_of_dh1(i); });
        __syncwarp(); /* lanes leave the loop one by one */
#pragma unroll
        for (int i = 0; i < 8; i++) sum[i] = q < plan.tiles_out ? parts.value(i / 4, i % 4) : 0;
        halve<8>(sum, q & 4, 16);
        halve<4>(sum, q & 2, 8);
        halve<2>(sum, q & 1, 4);
        const float h = at<float>(smem_layout::HALVES)[dz1_row() * UNITS + dz1_unit()];
        dz1 = sum[0] * derivative_compactly(plan.activation[0], h, h);
        uint32_t most = magnitude(dz1);
        most = max(most, __shfl_xor_sync(0xffffffffu, most, 1));
        most = max(most, __shfl_xor_sync(0xffffffffu, most, 8));
        most = max(most, __shfl_xor_sync(0xffffffffu, most, 16));
        if ((lane() & 25) == 0) atomicMax(dz1_max(rank) + dz1_unit(), most);
        return isnan(parts.value(0, 0));
    }

    /* dZ1 in slices, all signed, for both peers: [ROWS / 16][INT8_SLICES][UNITS][16], where the k of a
       word are rows 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 of 16. After a barrier. */
    __device__ void write_dz1_slices(float dz1) const {
        const int which = lane() % 2 + lane() / 8 % 2 * 2; /* of the four rows, and slice */
        uint32_t *most = dz1_max(rank) + threadIdx.x;
        if (!length) return;
        const int value = __float2int_rn(dz1 * slice_scale(dz1_max(rank)[dz1_unit()]).inverse) + 0x808080,
                  next = __shfl_xor_sync(0xffffffffu, value, 1),
                  eighth = __shfl_xor_sync(0xffffffffu, value, 8),
                  last = __shfl_xor_sync(0xffffffffu, value, 9);
        const uint4 slices = slices_of(value, next, eighth, last); /* of row i xor `which` */
        const uint32_t mine = which < 2 ? (which ? slices.y : slices.x) : (which == 2 ? slices.z : slices.w),
                       order = which < 2 ? (which ? 0x2301 : 0x3210) : (which == 2 ? 0x1032 : 0x0123),
                       word = __byte_perm(mine, 0, order) ^ (which ? 0x80808080 : 0);
        uint32_t *at_word = at<uint32_t>(smem_layout::DZ1) +
                            ((rank * 4 + warp() / 8 * 2 + lane() / 16) * by_wgmma::K16_BYTES +
                             which * by_wgmma::SLICE_BYTES) /
                                4 +
                            dz1_unit() * 4 + row_of_eight() / 2;
        *at_word = word;
        st_async(at_word, word, barrier(DZ1_FULL));
        if (threadIdx.x < UNITS) {
            st_async(most, *most, barrier(DZ1_FULL));
            w1_max()[threadIdx.x] = 0; /* for the new weights */
        }
    }

    __device__ const char *dz1_slices(int half) const {
        return at<char>(smem_layout::DZ1) + half * (ROWS / 2 / 16) * by_wgmma::K16_BYTES;
    }

    /* db1 and its update, by one warp: db1 is the gradient of the weight of a pixel of value 1. */
    __device__ void update_bias(float rate) const {
        static const uint32_t ONES = 0x01010101, ones[4] = {ONES, ONES, ONES, ONES};
        float *bias = at<float>(smem_layout::BIAS1) + lane_unit(), gradient[2] = {};
        if (warp() != WARPS - 3) return;
#pragma unroll
        for (int half = 0; half < SPLIT_K; half++) {
            const uint32_t *words = reinterpret_cast<const uint32_t *>(dz1_slices(half)) + lane();
            int sum[16];
#pragma unroll
            for (int s = 0; s < INT8_SLICES; s++) {
                int of_slice[4] = {};
#pragma unroll
                for (int k = 0; k < ROWS / 2 / 32; k++)
                    mma_int8<true>(
                        of_slice, ones, words[(2 * k * by_wgmma::K16_BYTES + s * by_wgmma::SLICE_BYTES) / 4],
                        words[((2 * k + 1) * by_wgmma::K16_BYTES + s * by_wgmma::SLICE_BYTES) / 4]);
#pragma unroll
                for (int i = 0; i < 4; i++) sum[4 * s + i] = of_slice[i];
            }
#pragma unroll
            for (int i = 0; i < 2; i++)
                gradient[i] += by_wgmma::total(sum, i) * slice_scale(dz1_max(half)[lane_unit() + i]).scale;
        }
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (lane() < UNITS / 2) update(rate, gradient[i], bias[i], bias[UNITS + i]);
    }

    /* dW1, db1 and the updates. After DZ1_FULL and a barrier. */
    __device__ void update_weights(const step_info &now) {
        const char *pixels = pixels_of(now.number) + lane() * pitch;
        if (!length) return;
        update_bias(now.rate);
        float scale[SPLIT_K][2];
#pragma unroll
        for (int i = 0; i < 2 * SPLIT_K; i++)
            scale[i / 2][i % 2] = slice_scale(dz1_max(i / 2)[lane_unit() + i % 2]).scale * float(1.0 / 255.0);
#pragma unroll
        for (int n = 0; n < PACKS_PER_WARP; n++) {
            if (n * WARPS + warp() / 4 * 4 >= length) break; /* a whole warpgroup */
            by_wgmma::pixel_columns columns;
            int sum[SPLIT_K][16];
            columns.load(pixels + min(pack_of(n), length - 1) * PIXELS, pitch);
            wgmma_fence();
#pragma unroll
            for (int half = 0; half < SPLIT_K; half++) {
                const uint64_t operand = by_wgmma::slices_operand(dz1_slices(half));
                by_wgmma::multiply<false>(sum[half], columns.words[2 * half], operand);
                by_wgmma::multiply<true>(sum[half], columns.words[2 * half + 1], operand + by_wgmma::K32);
            }
            wgmma_commit();
            wgmma_wait<0>();
#pragma unroll
            for (int half = 0; half < SPLIT_K; half++) wgmma_done(sum[half]);
            if (pack_of(n) >= length) break;
#pragma unroll
            for (int i = 0; i < 4; i++)
                update(now.rate,
                       by_wgmma::total(sum[0], i) * scale[0][i % 2] +
                           by_wgmma::total(sum[1], i) * scale[1][i % 2],
                       weight[n][i], velocity[n][i]);
        }
        find_max();
    }

    /* The largest |W1| of each unit. */
    __device__ void find_max() const {
        uint32_t most[2] = {0, 0};
#pragma unroll
        for (int i = 0; i < 4 * PACKS_PER_WARP; i++)
            most[i % 2] = max(most[i % 2], magnitude(weight[i / 4][i % 4]));
        atomic_column_max(most[0], most[1], w1_max());
    }

    /* --- weights --- */

    /* W1 in slices, for forward. After a barrier. */
    __device__ void write_slices() const {
        const float inverse[2] = {slice_scale(w1_max()[lane_unit()]).inverse,
                                  slice_scale(w1_max()[lane_unit() + 1]).inverse};
#pragma unroll
        for (int n = 0; n < PACKS_PER_WARP; n++) {
            if (pack_of(n) >= length) break;
            int column[2][2];
#pragma unroll
            for (int i = 0; i < 4; i++) column[i % 2][i / 2] = __float2int_rn(weight[n][i] * inverse[i % 2]);
            by_wgmma::write_slices(column, slices() + pack_of(n) * by_wgmma::K16_BYTES);
        }
        wgmma_written();
        if (threadIdx.x < UNITS) dz1_max(rank)[threadIdx.x] = 0; /* for the next step */
    }

    template <typename E> __device__ void all_weights(E each) {
        float *bias = at<float>(smem_layout::BIAS1) + threadIdx.x;
#pragma unroll
        for (int i = 0; i < 4 * PACKS_PER_WARP; i++) {
            const int pixel = pack_of(i / 4) * PIXELS + lane() / 4 * 2 + i % 4 / 2,
                      unit = units + lane_unit() + i % 2;
            if (pack_of(i / 4) < length && unit < plan.hidden[0])
                each(plan.weight[0], plan.weight_velocity[0],
                     (size_t)(first_pack * PIXELS + pixel) * plan.hidden[0] + unit, weight[i / 4][i % 4],
                     velocity[i / 4][i % 4], true);
        }
        if (threadIdx.x < UNITS && units + (int)threadIdx.x < plan.hidden[0])
            each(plan.bias[0], plan.bias_velocity[0], (size_t)(units + threadIdx.x), bias[0], bias[UNITS],
                 rank == 0);
    }

    __device__ void load() {
#pragma unroll
        for (int i = 0; i < 4 * PACKS_PER_WARP; i++) weight[i / 4][i % 4] = velocity[i / 4][i % 4] = 0;
        all_weights(load_weight{VELOCITY});
        find_max();
    }

    __device__ void store() {
        all_weights(store_weight{VELOCITY});
    }
};

} // namespace persistent::two_hidden

#endif
