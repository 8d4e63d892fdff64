/* What a block does with its weights: their gradients, updates, and digits: see fused_whole.cu. */
#ifndef TESSERA_KERNELS_CUDA_FUSED_WHOLE_CUH
#define TESSERA_KERNELS_CUDA_FUSED_WHOLE_CUH

#include "kernels/cuda/fused_whole_rows.cuh"

/* As lane 4 g + t of a warp a thread keeps the weights, and velocities, of pixels 2 g and 2 g + 1 of a pack and units 2 t and 2 t + 1, in that
   order, of the packs of each WARPS-th pair: where the tensor cores leave their gradients. */
template <bool VELOCITY> struct whole : whole_rows {
    descent descend;
    float weight[KEPT][4], velocity[KEPT][4];

    __device__ whole(const whole_plan &plan, char *shared)
        : whole_rows(plan, shared), descend{plan.descend.momentum, plan.descend.weight_decay, VELOCITY} {}

    __device__ static int pack_of(int n) { /* that this warp keeps */
        return 2 * (n / 2 * WARPS + warp()) + n % 2;
    }

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

    /* dW1 over the rows of the first half of a batch, or with that what the whole batch gives, and the update. */
    template <bool LAST> __device__ void multiply_back(int base, float rate, float (&gradient)[KEPT][4]) {
        static const int STEPS = ROWS / 32 / 2;
        const uint4 *digits = at<uint4>(whole_place::BACK) + LAST * STEPS * 64 + lane();
        const fixed_scale scale(largest_back()[own()]), scale2(largest_back()[own() + 1]);
        const float quantum[2] = {scale.quantum * float(1.0 / 255.0), scale2.quantum * float(1.0 / 255.0)};
        const char *x[STEPS];
#pragma unroll
        for (int k = 0; k < STEPS; k++) x[k] = slot(base, (LAST * STEPS + k) * 32 + lane());
#pragma unroll
        for (int n = 0; n < KEPT; n++) {
            if (pack_of(n) >= plan.packs) break;
            short_digit_sums sums;
#pragma unroll
            for (int k = 0; k < STEPS; k++) {
                uint32_t words[4], a[4];
                load_transposed_blocks(words, x[k] + pack_of(n) * PIXELS);
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    a[2 * i] = __byte_perm(words[2 * i], words[2 * i + 1], 0x6420);
                    a[2 * i + 1] = __byte_perm(words[2 * i], words[2 * i + 1], 0x7531);
                }
                sums.add(a, digits[2 * k * 32], digits[(2 * k + 1) * 32]);
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                if (LAST)
                    descend(rate, (gradient[n][i] + sums.total(i)) * quantum[i % 2], weight[n][i],
                            velocity[n][i]);
                else
                    gradient[n][i] = sums.total(i);
            }
        }
    }

    /* The largest |W1| of each unit. */
    __device__ void measure_weights() const {
        uint32_t most[2] = {0, 0};
#pragma unroll
        for (int i = 0; i < 4 * KEPT; i++) most[i % 2] = max(most[i % 2], magnitude(weight[i / 4][i % 4]));
        collect(most[0], most[1], largest());
    }

    /* W1 in digits, where forward reads them. After a barrier. */
    __device__ void publish() const {
        const float scale[2] = {fixed_scale(largest()[own()]).of, fixed_scale(largest()[own() + 1]).of};
        const int g = lane() / 4, odd = g % 2;
        uint4 *to = at<uint4>(whole_place::DIGITS_AT) + place_of(own() + odd, g / 2);
#pragma unroll
        for (int round = 0; round < KEPT / 2; round++) {
            const int pair = round * WARPS + warp();
            if (2 * pair >= plan.packs) break;
            uint4 digits[2];
#pragma unroll
            for (int n = 0; n < 2; n++) {
                int value[4];
#pragma unroll
                for (int i = 0; i < 4; i++)
                    value[i] = __float2int_rn(weight[2 * round + n][i] * scale[i % 2]);
                const int theirs = __shfl_xor_sync(0xffffffffu, odd ? value[0] : value[1], 4),
                          theirs2 = __shfl_xor_sync(0xffffffffu, odd ? value[2] : value[3], 4);
                digits[n] = odd ? digits_of(theirs, theirs2, value[1], value[3])
                                : digits_of(value[0], value[2], theirs, theirs2);
            }
            to[2 * pair * 32] = make_uint4(digits[0].x, digits[1].x, digits[0].y, digits[1].y);
            to[(2 * pair + 1) * 32] = make_uint4(digits[0].z, digits[1].z, digits[0].w, digits[1].w);
        }
        if (threadIdx.x < UNITS) largest_back()[threadIdx.x] = 0; /* for the next step */
    }

    /* --- before and after --- */

    /* Calls each(its values in global memory, its velocities there, index, value and velocity here, is it this block's to write back?) for all that
       is trained. */
    template <typename E> __device__ void all_weights(E each) {
        const int unit = first_unit();
        float *out = at<float>(whole_place::OUT_WEIGHT), *bias = at<float>(whole_place::BIAS);
#pragma unroll
        for (int i = 0; i < 4 * KEPT; i++) {
            const int pack = pack_of(i / 4), u = unit + own() + i % 2;
            if (pack < plan.packs && u < plan.hidden)
                each(plan.weight[0], plan.weight_velocity[0],
                     (size_t)(pack * PIXELS + lane() / 4 * 2 + i % 4 / 2) * plan.hidden + u,
                     weight[i / 4][i % 4], velocity[i / 4][i % 4], true);
        }
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
        for (int i = 0; i < 4 * KEPT; i++) weight[i / 4][i % 4] = velocity[i / 4][i % 4] = 0;
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
