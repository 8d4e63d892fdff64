/* What a block does with the rows of a batch, from pixels to dZ: see fused_whole.cu. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_ONE_HIDDEN_SPLIT_UNITS_ROWS_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_ONE_HIDDEN_SPLIT_UNITS_ROWS_CUH

#include <math.h>

#include "kernels/activation.h"
#include "kernels/cuda/tensor/bulk_copy.cuh"
#include "kernels/cuda/persistent/one_hidden_split_units_plan.cuh"

/* One thread of the block that has units UNITS h and those that follow: it has row `row` of the batch, and
   units `own` and own + 1 of it. */
struct whole_rows {
    const whole_plan &plan;
    char *shared;
    float hidden[2], pre[2], back[2]; /* of its row and units: H, Z, dZ */

    __device__ whole_rows(const whole_plan &plan, char *shared) : plan(plan), shared(shared) {}

    __device__ static int lane() {
        return threadIdx.x % 32;
    }
    __device__ static int warp() {
        return threadIdx.x / 32;
    }
    __device__ static int row() {
        return threadIdx.x / 4;
    }
    __device__ static int quad() { /* this thread of those of its row */
        return threadIdx.x % 4;
    }
    __device__ static int own() {
        return own_units();
    }
    __device__ int first_unit() const {
        return UNITS * blockIdx.x;
    }
    template <typename T> __device__ T *at(int offset) const {
        return reinterpret_cast<T *>(shared + offset);
    }
    __device__ uint32_t *largest() const {
        return at<uint32_t>(whole_place::LARGEST);
    }
    __device__ uint32_t *largest_back() const {
        return at<uint32_t>(whole_place::BACK_LARGEST);
    }

    /* --- pixels --- */

    __device__ int rows_of(int step) const {
        return min(plan.count - step * plan.batch, plan.batch);
    }

    /* Of a step: `turn` counts them modulo AHEAD. */
    __device__ uint32_t *images_of(int turn) const {
        return at<uint32_t>(whole_place::IMAGES) + turn * ROWS;
    }
    __device__ float *rate_of(int turn) const {
        return at<float>(whole_place::RATES) + turn;
    }

    /* Which image is row threadIdx.x of a step, and its learning rate: to be kept in shared memory later. */
    struct order_ahead {
        uint32_t image;
        float rate;
    };

    __device__ order_ahead look_up(int step, int rows) const {
        order_ahead ahead = {0, 0};
        if ((int)threadIdx.x < rows) ahead.image = plan.order[(size_t)step * plan.batch + threadIdx.x];
        if (threadIdx.x == 0 && rows) ahead.rate = (float)plan.scalars[step].learning_rate;
        return ahead;
    }

    __device__ void keep(int turn, order_ahead ahead) const {
        if (threadIdx.x < ROWS) images_of(turn)[threadIdx.x] = ahead.image;
        if (threadIdx.x == 0) *rate_of(turn) = ahead.rate;
    }

    /* Row `row` of a step whose first is slot `base` of the ring; for rows that no batch has, the last that
       one has. */
    __device__ char *slot(int base, int row) const {
        const int s = base + min(row, plan.batch - 1);
        return shared + whole_place::ring_at(plan.packs) +
               (s < plan.slots ? s : s - plan.slots) * whole_place::pitch(plan.packs);
    }

    /* Rows first .. end - 1 of a step on their way, after its images and a barrier. The warps of the upper
       half do it: the instruction takes its time, and they seldom have a turn. */
    __device__ void copy_pixels(uint64_t *arrived, int turn, int base, int first, int end) const {
        const int r = (int)threadIdx.x / 2 - ROWS;
        if (threadIdx.x % 2 == 0 && r >= first && r < end)
            copy_in_bulk(slot(base, r), plan.images + (size_t)images_of(turn)[r] * plan.features,
                         plan.features, arrived);
    }

    /* The label of a row that this block owns. */
    __device__ int label_of(int turn, int rows, int own_row) const {
        const int r = blockIdx.x * plan.own + own_row;
        return own_row < plan.own && r < rows ? plan.labels[images_of(turn)[r]] : 0;
    }

    /* --- forward --- */

    /* Z = X W1, as sums of quarters. */
    __device__ void forward(int base) const {
        multiply_pixels([&](int row) { return slot(base, row); }, plan.packs,
                        at<uint4>(whole_place::DIGITS_AT), at<float>(whole_place::SUMS));
    }

    /* H of this thread's row and units, and its part of three of the logits that all units of the block have,
       to the owner of the row. After a barrier. */
    __device__ void activate_row(int rows, uint32_t tag) {
        const float *sums = at<float>(whole_place::SUMS) + 2 * threadIdx.x,
                    *bias = at<float>(whole_place::BIAS) + own();
        const fixed_scale scale(largest()[own()]), scale2(largest()[own() + 1]);
        float2 sum = {0, 0};
#pragma unroll
        for (int q = 0; q < QUARTERS; q++) {
            const float2 part = *reinterpret_cast<const float2 *>(sums + q * ROWS * UNITS);
            sum.x += part.x;
            sum.y += part.y;
        }
        pre[0] = sum.x * (scale.quantum * float(1.0 / 255.0)) + bias[0];
        pre[1] = sum.y * (scale2.quantum * float(1.0 / 255.0)) + bias[1];
#pragma unroll
        for (int i = 0; i < 2; i++)
            hidden[i] = row() < rows ? activate_compactly(plan.activation, pre[i]) : 0.0f;
        at<float2>(whole_place::HIDDEN)[threadIdx.x] = make_float2(hidden[0], hidden[1]);

        const float4 *weight = at<float4>(whole_place::OUT_WEIGHT) + quad();
        float part[3] = {};
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            const float h = __shfl_sync(0xffffffffu, hidden[u % 2], u / 2, 4);
            const float4 w = weight[u * PACKETS];
            part[0] += h * w.x;
            part[1] += h * w.y;
            part[2] += h * w.z;
        }
        if (row() < rows && 3 * quad() < plan.classes)
            send(plan.logits + (row() * plan.groups + blockIdx.x) * PACKETS + quad(), part[0], part[1],
                 part[2], tag);
    }

    /* --- the turn --- */

    /* This lane's logit of a row, from the parts of all blocks: a lane takes a packet of each eighth
       block. */
    __device__ float logit(int r, uint32_t tag) const {
        static const int AT_ONCE = 2, SOURCES = 32 / PACKETS;
        const int k = lane() % PACKETS, c = lane() % CLASSES;
        const packet_of_3 *parts = plan.logits + r * plan.groups * PACKETS + k;
        float sum[3] = {};
        if (3 * k < plan.classes)
            for (int g = lane() / PACKETS; g < plan.groups; g += AT_ONCE * SOURCES) {
                float part[AT_ONCE][3];
                receive(part, tag,
                        [&](int i) { return parts + min(g + i * SOURCES, plan.groups - 1) * PACKETS; });
#pragma unroll
                for (int i = 0; i < AT_ONCE; i++)
                    if (g + i * SOURCES < plan.groups)
#pragma unroll
                        for (int j = 0; j < 3; j++) sum[j] += part[i][j];
            }
        __syncwarp();
        float mine = 0;
#pragma unroll
        for (int j = 0; j < 3; j++) {
#pragma unroll
            for (int offset = PACKETS; offset < 32; offset *= 2)
                sum[j] += __shfl_xor_sync(0xffffffffu, sum[j], offset);
            const float of_class = __shfl_sync(0xffffffffu, sum[j], c / 3, PACKETS);
            if (c % 3 == j) mine = of_class;
        }
        return mine + at<float>(whole_place::OUT_WEIGHT)[UNITS * OUT + min(c / 3, PACKETS - 1) * 4 + c % 3];
    }

    /* dL/dlogits of the rows that this block owns, to all; NaN if the loss of a row is not finite. `label` is
       that of row warp(). */
    __device__ void turn(int step, int now, int rows, int label, uint32_t tag) const {
        const float scale = 1.0f / (float)rows;
#pragma unroll 1
        for (int i = warp(); i < plan.own; i += WARPS) {
            const int r = blockIdx.x * plan.own + i;
            if (r >= rows) break;
            const row_loss loss =
                lose(logit(r, tag), true, plan.classes, i < WARPS ? label : label_of(now, rows, i), scale);
            const bool finite = __shfl_sync(0xffffffffu, loss.finite, 0);
            float gradient[3];
#pragma unroll
            for (int j = 0; j < 3; j++)
                gradient[j] = __shfl_sync(0xffffffffu, finite ? loss.gradient : NAN, (3 * lane() + j) % 32);
            if (3 * lane() < plan.classes)
                send(plan.gradients + r * PACKETS + lane(), gradient[0], gradient[1], gradient[2], tag);
            if (lane() == 0) plan.tally.rows[(size_t)step * plan.batch + r] = loss.record;
        }
    }

    /* --- backward --- */

    /* dZ of this thread's row and units; true if the losses of the row are finite. */
    __device__ bool receive_back(int rows, uint32_t tag) {
        float g[1][3] = {};
        if (row() < rows && 3 * quad() < plan.classes)
            receive(g, tag, [&](int) { return plan.gradients + row() * PACKETS + quad(); });
        __syncwarp(); /* lanes leave one by one */
        at<float4>(whole_place::GRADIENT)[threadIdx.x] = make_float4(g[0][0], g[0][1], g[0][2], 0);

        const float4 *weight = at<float4>(whole_place::OUT_WEIGHT) + quad();
        float part[UNITS];
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            const float4 w = weight[u * PACKETS];
            part[u] = g[0][0] * w.x + g[0][1] * w.y + g[0][2] * w.z;
        }
        const bool upper = quad() >= 2, odd = quad() % 2;
        float half[4];
#pragma unroll
        for (int u = 0; u < 4; u++)
            half[u] = (upper ? part[u + 4] : part[u]) +
                      __shfl_xor_sync(0xffffffffu, upper ? part[u] : part[u + 4], 2);
#pragma unroll
        for (int u = 0; u < 2; u++) {
            const float sum =
                (odd ? half[u + 2] : half[u]) + __shfl_xor_sync(0xffffffffu, odd ? half[u] : half[u + 2], 1);
            back[u] = row() < rows ? sum * derivative_compactly(plan.activation, pre[u], hidden[u]) : 0.0f;
        }
        return g[0][0] == g[0][0];
    }

    /* The largest |dZ| of each unit, and this warp's part of db1, dW2 and db2, over the 8 rows that its
       threads have. */
    __device__ void sum_back() const {
        collect_largest(magnitude(back[0]), magnitude(back[1]), largest_back());
#pragma unroll
        for (int u = 0; u < 2; u++) {
            float sum = back[u];
#pragma unroll
            for (int offset = 4; offset < 32; offset *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
            if (lane() < 4) at<float>(whole_place::BIAS_SUMS)[warp() * UNITS + own() + u] = sum;
        }

        const int c = lane() % OUT, half = lane() / OUT;
        const float *gradient = at<float>(whole_place::GRADIENT) + warp() * 8 * OUT + c;
        const float4 *h = at<float4>(whole_place::HIDDEN) + warp() * 8 * UNITS / 4 + half;
        float sum[4] = {}, bias = 0;
        __syncwarp();
#pragma unroll
        for (int r = 0; r < 8; r++) {
            const float g = gradient[r * OUT];
            const float4 of = h[r * UNITS / 4];
            sum[0] += of.x * g;
            sum[1] += of.y * g;
            sum[2] += of.z * g;
            sum[3] += of.w * g;
            bias += g;
        }
        float *part = at<float>(whole_place::OUT_SUMS) + warp() * WEIGHTS + c;
#pragma unroll
        for (int u = 0; u < 4; u++) part[(4 * half + u) * OUT] = sum[u];
        if (half == 0) part[UNITS * OUT] = bias;
    }

    /* dZ in digits. k of a product: rows 2 t, 2 t + 1, 2 t + 8, 2 t + 9 of 16. After a barrier. */
    __device__ void split_back() const {
        const fixed_scale scale(largest_back()[own()]), scale2(largest_back()[own() + 1]);
        const int value = __float2int_rn(back[0] * scale.of), value2 = __float2int_rn(back[1] * scale2.of);
        const int odd = row() % 2, theirs = __shfl_xor_sync(0xffffffffu, odd ? value : value2, 4);
        const uint4 digits = odd ? digits_of(theirs, value2, 0, 0) : digits_of(value, theirs, 0, 0);
        const int to = (own() + odd) * 4 + row() % 8 / 2;
        uint16_t *at_digits = at<uint16_t>(whole_place::BACK) + (row() / 32 * 64 + to) * 8 +
                              row() / 16 % 2 * 2 + row() % 16 / 8;
        at_digits[0] = (uint16_t)digits.x;
        at_digits[4] = (uint16_t)digits.y;
        at_digits[32 * 8] = (uint16_t)digits.z;
        at_digits[32 * 8 + 4] = (uint16_t)digits.w;
        if (threadIdx.x < UNITS) largest()[threadIdx.x] = 0; /* for the next */
    }
};

#endif
