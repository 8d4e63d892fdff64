/* What a block does with its weights: their gradients, updates, and digits: see fused_whole.cu. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_ONE_HIDDEN_SPLIT_UNITS_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_ONE_HIDDEN_SPLIT_UNITS_CUH

#include "kernels/cuda/persistent/one_hidden_split_units_rows.cuh"

template <bool VELOCITY> struct whole : whole_rows {
    descent descend;
    pixel_weights<KEPT> first; /* layer 1 */

    __device__ whole(const whole_plan &plan, char *shared)
        : whole_rows(plan, shared), descend{plan.descend.momentum, plan.descend.weight_decay, VELOCITY} {}

    /* W2 and b2 (b2 is the same in all blocks), and b1. After a barrier. */
    __device__ void update_output(float rate) const {
        const int e = threadIdx.x, u = e / OUT;
        if (e < WEIGHTS) {
            if (packed_class(e % OUT) >= plan.classes || (u < UNITS && first_unit() + u >= plan.hidden))
                return;
            const float *sums = at<float>(whole_place::OUT_SUMS) + e;
            float sum = 0;
#pragma unroll
            for (int w = 0; w < WARPS; w++) sum += sums[w * WEIGHTS];
            descend(rate, sum, at<float>(whole_place::OUT_WEIGHT)[e],
                    at<float>(whole_place::OUT_VELOCITY)[e]);
        } else if (e - THREADS / 2 >= 0 && e - THREADS / 2 < UNITS) {
            float *bias = at<float>(whole_place::BIAS) + e - THREADS / 2, sum = 0;
            const float *sums = at<float>(whole_place::BIAS_SUMS) + e - THREADS / 2;
#pragma unroll
            for (int w = 0; w < WARPS; w++) sum += sums[w * UNITS];
            descend(rate, sum, bias[0], bias[UNITS]);
        }
    }

    /* dW1 over the rows of the first half of a batch, or with that what the whole batch gives, and the
       update. */
    template <bool LAST> __device__ void multiply_back(int base, float rate, float (&gradient)[KEPT][4]) {
        const float one[2] = {1, 1}, /* both halves have the same quantum */
            factor[2] = {fixed_scale(largest_back()[own()]).quantum * float(1.0 / 255.0),
                         fixed_scale(largest_back()[own() + 1]).quantum * float(1.0 / 255.0)};
        first.template multiply_back<LAST>([&](int row) { return slot(base, row); }, plan.packs,
                                           at<uint4>(whole_place::BACK), one, factor, descend, rate,
                                           gradient);
    }

    __device__ void measure_weights() const {
        first.measure(largest());
    }

    /* W1 in digits, where forward reads them. After a barrier. */
    __device__ void publish() const {
        first.publish(plan.packs, largest(), at<uint4>(whole_place::DIGITS_AT));
        if (threadIdx.x < UNITS) largest_back()[threadIdx.x] = 0; /* for the next step */
    }

    /* --- before and after --- */

    /* Calls each(its values in global memory, its velocities there, index, value and velocity here, is it
       this block's to write back?) for all that is trained. */
    template <typename E> __device__ void all_weights(E each) {
        const int unit = first_unit();
        float *out = at<float>(whole_place::OUT_WEIGHT), *bias = at<float>(whole_place::BIAS);
        first.all(plan.packs, plan.hidden - unit, [&](int pixel, int u, int i) {
            each(plan.weight[0], plan.weight_velocity[0], (size_t)pixel * plan.hidden + unit + u,
                 first.weight[i / 4][i % 4], first.velocity[i / 4][i % 4], true);
        });
        const int e = threadIdx.x, u = e / OUT, c = packed_class(e % OUT);
        if (e < UNITS && unit + e < plan.hidden)
            each(plan.bias[0], plan.bias_velocity[0], (size_t)(unit + e), bias[e], bias[UNITS + e], true);
        if (e < WEIGHTS && c < plan.classes) {
            float &velocity_here = at<float>(whole_place::OUT_VELOCITY)[e];
            if (u == UNITS)
                each(plan.bias[1], plan.bias_velocity[1], (size_t)c, out[e], velocity_here, blockIdx.x == 0);
            else if (unit + u < plan.hidden)
                each(plan.weight[1], plan.weight_velocity[1], (size_t)(unit + u) * plan.classes + c, out[e],
                     velocity_here, true);
        }
    }

    __device__ void load_weights() {
#pragma unroll
        for (int i = 0; i < 4 * KEPT; i++) first.weight[i / 4][i % 4] = first.velocity[i / 4][i % 4] = 0;
        all_weights(
            [&](const float *values, const float *velocities, size_t i, float &value, float &speed, bool) {
                value = values[i];
                if (VELOCITY) speed = velocities[i];
            });
    }

    __device__ void store_weights() {
        all_weights([&](float *values, float *velocities, size_t i, float value, float speed, bool mine) {
            if (!mine) return;
            values[i] = value;
            if (VELOCITY) velocities[i] = speed;
        });
    }
};

#endif
