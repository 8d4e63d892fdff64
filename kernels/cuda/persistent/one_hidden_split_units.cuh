/* One hidden layer, split over hidden units: the stages of the main warps, and those of all warps. See
   one_hidden_split_units_wgmma.cu. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_ONE_HIDDEN_SPLIT_UNITS_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_ONE_HIDDEN_SPLIT_UNITS_CUH

#include "kernels/cuda/persistent/one_hidden_split_units_output.cuh"

namespace persistent::split_units {

/* A main thread holds two rows of the batch, lane / 4 and lane / 4 + 8 of the 16 of its warp, and two of the
   units: [h][e]. */
template <bool VELOCITY> struct block : output_stages {
    by_wgmma::unit_weights w1;
    float hidden[2][2], pre[2][2], dz[2][2]; /* H, Z, dZ of a main thread */

    __device__ block(const split_units::plan &plan, void *shared) : output_stages(plan, shared, VELOCITY) {}

    __device__ static int row(int h) {
        return warp() * 16 + lane() / 4 + 8 * h;
    }

    /* --- forward: main warps --- */

    /* Z = X W1 + b1, and H. */
    __device__ void forward(int buffer, int rows) {
        by_wgmma::forward_product product;
        product.run(image(buffer, warp() * 16 + lane() % 16), plan.packs, shared + smem_layout::W1_SLICES);
        const float *scale = w1_scales().of_bytes + lane_unit(),
                    *bias = at<float>(smem_layout::BIAS) + lane_unit();
#pragma unroll
        for (int i = 0; i < 4; i++)
            pre[i / 2][i % 2] = product.total(i / 2, i % 2) * scale[i % 2] + bias[i % 2];
        if (plan.activation[0] == ACTIVATION_RELU) { /* one branch for all */
#pragma unroll
            for (int i = 0; i < 4; i++) hidden[i / 2][i % 2] = activate(ACTIVATION_RELU, pre[i / 2][i % 2]);
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++)
                hidden[i / 2][i % 2] = activate_called(plan.activation[0], pre[i / 2][i % 2]);
        }
        clear_padding(rows, hidden);
    }

    __device__ void clear_padding(int rows, float (&values)[2][2]) const { /* rows beyond the batch */
#pragma unroll
        for (int h = 0; h < 2; h++)
            if (row(h) >= rows) values[h][0] = values[h][1] = 0;
    }

    /* The block's partial sums of three logits of this thread's rows, to the owners of the rows. */
    __device__ void send_logits(int rows, uint32_t tag) const {
        const float4 *weight = at<float4>(smem_layout::OUT_WEIGHT) + quad();
        float part[2][3] = {};
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            const float4 w = weight[u * PACKETS];
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const float value = __shfl_sync(0xffffffffu, hidden[h][u % 2], u / 2, 4);
                part[h][0] += value * w.x;
                part[h][1] += value * w.y;
                part[h][2] += value * w.z;
            }
        }
#pragma unroll
        for (int h = 0; h < 2; h++)
            if (row(h) < rows && 3 * quad() < plan.classes)
                ll_send(plan.logits + (row(h) * plan.groups + blockIdx.x) * PACKETS + quad(), part[h][0],
                        part[h][1], part[h][2], tag);
    }

    /* H, for dW2. After a barrier of the main warps: the slices of W1 were there. */
    __device__ void store_hidden() const {
#pragma unroll
        for (int h = 0; h < 2; h++)
            at<float2>(smem_layout::HIDDEN)[row(h) * UNITS / 2 + quad()] =
                make_float2(hidden[h][0], hidden[h][1]);
    }

    /* --- backward: main warps --- */

    /* dZ of this thread's rows and units, and its largest magnitudes; true if the losses of the rows are
       finite. */
    __device__ bool input_gradient(const float (&g)[2][3], int rows) {
        float part[2][UNITS];
        const float4 *weight = at<float4>(smem_layout::OUT_WEIGHT) + quad();
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            const float4 w = weight[u * PACKETS];
#pragma unroll
            for (int h = 0; h < 2; h++) part[h][u] = g[h][0] * w.x + g[h][1] * w.y + g[h][2] * w.z;
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            halve<8>(part[h], quad() & 2, 2);
            halve<4>(part[h], quad() & 1, 1);
        }
        if (plan.activation[0] == ACTIVATION_RELU) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                dz[i / 2][i % 2] =
                    part[i / 2][i % 2] * derivative(ACTIVATION_RELU, pre[i / 2][i % 2], hidden[i / 2][i % 2]);
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++)
                dz[i / 2][i % 2] =
                    part[i / 2][i % 2] *
                    derivative_called(plan.activation[0], pre[i / 2][i % 2], hidden[i / 2][i % 2]);
        }
        clear_padding(rows, dz);
        atomic_column_max(max(magnitude(dz[0][0]), magnitude(dz[1][0])),
                          max(magnitude(dz[0][1]), magnitude(dz[1][1])), dz_max());
        return g[0][0] == g[0][0] && g[1][0] == g[1][0];
    }

    /* dZ in slices. The k of a product are rows 2 t, 2 t + 8, 2 t + 1, 2 t + 9 of 16. After a barrier. */
    __device__ void write_dz_slices() const {
        float inverse[2];
        int column[2][2];
        dz_scales().start(inverse);
#pragma unroll
        for (int i = 0; i < 4; i++) column[i % 2][i / 2] = __float2int_rn(dz[i / 2][i % 2] * inverse[i % 2]);
        by_wgmma::write_slices(column, shared + smem_layout::DZ_SLICES + warp() * by_wgmma::K16_BYTES);
        if (threadIdx.x < UNITS) w1_max()[threadIdx.x] = 0; /* for the new weights */
        wgmma_written();
    }

    /* --- weights: all warps --- */

    typedef by_wgmma::unit_weights::columns columns;

    __device__ void load_columns(columns (&first)[2], int buffer) const {
        const char *const row[ROWS / 32] = {image(buffer, lane()), image(buffer, 32 + lane()),
                                            image(buffer, 64 + lane()), image(buffer, 96 + lane())};
#pragma unroll
        for (int n = 0; n < 2; n++) first[n].load(row, at<char>(smem_layout::ONE), plan.packs, w1.pack_of(n));
    }

    /* dW1, db1 and the updates of all weights. */
    __device__ void descend(columns (&first)[2], int buffer, float rate) {
        const char *const row[ROWS / 32] = {image(buffer, lane()), image(buffer, 32 + lane()),
                                            image(buffer, 64 + lane()), image(buffer, 96 + lane())};
        const float2 factor = *reinterpret_cast<const float2 *>(dz_scales().of_bytes + lane_unit());
        w1.descend(first, row, at<char>(smem_layout::ONE), plan.packs, shared + smem_layout::DZ_SLICES,
                   {factor.x, factor.y}, update, rate, [&] { update_output(rate); });
    }

    __device__ void find_w1_max() const {
        w1.find_max(plan.packs, w1_max());
    }

    /* W1 in slices, for forward. After a barrier. */
    __device__ void write_w1_slices() const {
        w1.write_slices(plan.packs, w1_scales(), shared + smem_layout::W1_SLICES,
                        at<float>(smem_layout::BIAS));
        if (threadIdx.x < UNITS) dz_max()[threadIdx.x] = 0; /* for the next step */
    }

    template <typename E> __device__ void all_weights(E each) {
        const int unit = first_unit();
        float *out = at<float>(smem_layout::OUT_WEIGHT);
        w1.all(
            plan.packs, plan.hidden[0] - unit,
            [&](int pixel, int u, float &weight, float &velocity) {
                each(plan.weight[0], plan.weight_velocity[0], (size_t)pixel * plan.hidden[0] + unit + u,
                     weight, velocity, true);
            },
            [&](int u, float &bias, float &velocity) {
                each(plan.bias[0], plan.bias_velocity[0], (size_t)(unit + u), bias, velocity, true);
            });
        const int e = threadIdx.x, u = e / PACKED_PITCH, c = packed_class(e % PACKED_PITCH);
        if (e < WEIGHTS && c < plan.classes) {
            float &velocity = at<float>(smem_layout::OUT_VELOCITY)[e];
            if (u == UNITS)
                each(plan.bias[1], plan.bias_velocity[1], (size_t)c, out[e], velocity, blockIdx.x == 0);
            else if (unit + u < plan.hidden[0])
                each(plan.weight[1], plan.weight_velocity[1], (size_t)(unit + u) * plan.classes + c, out[e],
                     velocity, true);
        }
    }
};

} // namespace persistent::split_units

#endif
