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

    /* W2 for the logits: a lane has two units, and of the columns of both products of 8 the packed class. */
    struct logit_weights {
        tf32_pair<2> columns[2];

        __device__ explicit logit_weights(const float *unit)
            : columns{tf32_pair<2>(unit[0], unit[PACKED_PITCH]),
                      tf32_pair<2>(unit[2], unit[PACKED_PITCH + 2])} {}
    };

    __device__ logit_weights load_logit_weights() const {
        const int column = lane() / 4;
        return logit_weights(at<float>(smem_layout::OUT_WEIGHT) + lane_unit() * PACKED_PITCH +
                             column / 2 * 4 + column % 2);
    }

    /* The block's partial sums of three logits of this thread's rows, to the owners of the rows. */
    __device__ void send_logits(const logit_weights &weights, int rows, uint32_t tag) const {
        const tf32_pair<4> units(hidden[0][0], hidden[1][0], hidden[0][1], hidden[1][1]);
        float sum[2][4] = {};
#pragma unroll
        for (int n = 0; n < 2; n++) multiply_tf32x3(sum[n], units, weights.columns[n]);
#pragma unroll
        for (int h = 0; h < 2; h++)
            if (row(h) < rows && 3 * quad() < plan.classes)
                ll_send(plan.logits + (row(h) * plan.groups + blockIdx.x) * PACKETS + quad(), sum[0][2 * h],
                        sum[0][2 * h + 1], sum[1][2 * h], tag);
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
        const float4 weight = at<float4>(smem_layout::OUT_WEIGHT)[lane()];
        float part[4] = {}, last[4] = {}; /* two chains of products, of two classes and of one */
        multiply_tf32x3(part, tf32_pair<4>(g[0][0], g[1][0], g[0][1], g[1][1]),
                        tf32_pair<2>(weight.x, weight.y));
        multiply_tf32x3(last, tf32_pair<2>(g[0][2], g[1][2]), tf32_pair<1>(weight.z));
#pragma unroll
        for (int i = 0; i < 4; i++) part[i] += last[i];
        if (plan.activation[0] == ACTIVATION_RELU) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                dz[i / 2][i % 2] =
                    part[i] * derivative(ACTIVATION_RELU, pre[i / 2][i % 2], hidden[i / 2][i % 2]);
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++)
                dz[i / 2][i % 2] =
                    part[i] * derivative_called(plan.activation[0], pre[i / 2][i % 2], hidden[i / 2][i % 2]);
        }
        clear_padding(rows, dz);
        atomic_column_max(max(magnitude(dz[0][0]), magnitude(dz[1][0])),
                          max(magnitude(dz[0][1]), magnitude(dz[1][1])), dz_max());
        return g[0][0] == g[0][0] && g[1][0] == g[1][0];
    }

    /* The gradients, for dW2. */
    __device__ void store_gradients(const float (&g)[2][3]) const {
#pragma unroll
        for (int h = 0; h < 2; h++)
            at<float4>(smem_layout::GRADIENTS)[row(h) * PACKETS + quad()] =
                make_float4(g[h][0], g[h][1], g[h][2], 0);
    }

    /* dZ in slices. The k of a product are rows 2 t, 2 t + 8, 2 t + 1, 2 t + 9 of 16. After a barrier. */
    __device__ void write_dz_slices() const {
        float inverse[2];
        int column[2][2];
        dz_scales().start(inverse, {dz_max()[lane_unit()], dz_max()[lane_unit() + 1]});
#pragma unroll
        for (int i = 0; i < 4; i++) column[i % 2][i / 2] = __float2int_rn(dz[i / 2][i % 2] * inverse[i % 2]);
        by_wgmma::write_slices(column, shared + smem_layout::DZ_SLICES + warp() * by_wgmma::K16_BYTES);
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

    /* The largest weights and velocities, before they change. */
    __device__ void find_largest() const {
        w1.find_max(w1.weight, plan.packs, w1_max());
        if (VELOCITY) w1.find_max(w1.velocity, plan.packs, v1_max());
    }

    /* The scales of W1, made of bounds. */
    __device__ void scale_weights(float (&inverse)[2], const uint32_t (&most)[2]) const {
        if (threadIdx.x < UNITS / 2)
            at<uint2>(smem_layout::W1_BOUND)[threadIdx.x] = make_uint2(most[0], most[1]);
        w1_scales().start(inverse, most);
    }

    /* Upper bounds of |W1| after the update, so that slices need not wait for all weights: a gradient is at
       most the sum of |dZ| over the batch. */
    __device__ void bound_weights(uint32_t (&most)[2], float rate) const {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int unit = lane_unit() + e;
            const float weight = __uint_as_float(w1_max()[unit]);
            float change = update.weight_decay * weight + ROWS * __uint_as_float(dz_max()[unit]);
            if (VELOCITY) change += update.momentum * __uint_as_float(v1_max()[unit]);
            most[e] = __float_as_uint(1.0001f * (weight + rate * change)); /* and rounding */
        }
    }

    /* dW1, db1, the updates of all weights, and W1 in slices but for the last tiles. */
    __device__ void descend(columns (&first)[2], int buffer, float rate, float (&inverse)[2]) {
        uint32_t most[2];
        bound_weights(most, rate);
        scale_weights(inverse, most);
        const char *const row[ROWS / 32] = {image(buffer, lane()), image(buffer, 32 + lane()),
                                            image(buffer, 64 + lane()), image(buffer, 96 + lane())};
        w1.descend(
            first, row, at<char>(smem_layout::ONE), plan.packs, shared + smem_layout::DZ_SLICES,
            dz_scales().of_bytes + lane_unit(), update, rate, [&] { update_output(rate); },
            [&](int n) { write_w1_pack(n, inverse); });
    }

    __device__ void write_w1_pack(int n, const float (&inverse)[2]) const {
        w1.write_pack(n, plan.packs, inverse, shared + smem_layout::W1_SLICES, at<float>(smem_layout::BIAS));
    }

    /* Tiles of W1 in slices, from `first` on. After a barrier. */
    __device__ void write_w1_slices(int first, const float (&inverse)[2]) const {
#pragma unroll
        for (int n = 0; n < by_wgmma::TILES; n++)
            if (n >= first) write_w1_pack(n, inverse);
        wgmma_written();
        if (threadIdx.x < UNITS) /* for the next step */
            w1_max()[threadIdx.x] = v1_max()[threadIdx.x] = dz_max()[threadIdx.x] = 0;
    }

    /* --- the start and the end of a launch: all warps --- */

    __device__ void write_all_slices(int first_step) const {
        const kept_bounds &kept = plan.kept[blockIdx.x];
        float inverse[2];
        find_largest();
        __syncthreads();
        if (first_step == kept.end && first_step % LONGEST != 0 && threadIdx.x < UNITS)
            w1_max()[threadIdx.x] = max(w1_max()[threadIdx.x], kept.w1[threadIdx.x]);
        __syncthreads();
        scale_weights(inverse, {w1_max()[lane_unit()], w1_max()[lane_unit() + 1]});
        __syncthreads();
        write_w1_slices(0, inverse);
    }

    __device__ void keep_bounds(int end) const {
        kept_bounds &kept = plan.kept[blockIdx.x];
        if (threadIdx.x < UNITS) kept.w1[threadIdx.x] = at<uint32_t>(smem_layout::W1_BOUND)[threadIdx.x];
        if (threadIdx.x == 0) kept.end = end;
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
