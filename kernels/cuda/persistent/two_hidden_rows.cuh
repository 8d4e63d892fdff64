/* Rows of the batch in a network of two hidden layers: H2, the output layer, the loss, and dZ2. See
   fused_pair.cu. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_TWO_HIDDEN_ROWS_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_TWO_HIDDEN_ROWS_CUH

#include "kernels/activation.h"
#include "kernels/cuda/persistent/two_hidden_plan.cuh"

/* One thread of a block that has OWN rows of the batch and WIDE columns of layer 2. It has an element of H2
   of every GROUP rows. Of the output layer the block updates as many rows as there are of its columns for
   each of the blocks that share them: a warp has one, three weights a lane (the first PACKETS of them). W3
   and the biases of layer 2 travel together. */
template <int OWN, bool VELOCITY> struct pair_rows : pair_block {
    static constexpr int GROUPS = OWN / GROUP, DOWNS = ROWS / OWN, OUTPUT = WIDE / DOWNS;
    descent descend;
    float hidden[GROUPS];
    float weight[3], velocity[3]; /* of the output layer */

    __device__ pair_rows(const pair_plan &plan, char *shared)
        : pair_block(plan, shared), descend(plan.descend) {
        descend.has_velocity = VELOCITY;
    }

    static_assert(OWN <= MOST_OWN && OUTPUT < WARPS, "a warp each, and one for the bias");

    /* This thread's row of each group, and its column: as the products leave them. */
    __device__ static int row() {
        return warp() % GROUP;
    }
    __device__ static int column() {
        return (warp() / 8 * 4 + lane() / 8) * 8 + lane() % 4 * 2 + lane() / 4 % 2;
    }

    /* Where a packet of W3 lies: spread over the banks. */
    __device__ static int place_of(int unit, int packet) {
        return unit * PACKETS + (packet ^ unit / 2 % PACKETS);
    }
    __device__ float4 out_weight(int unit, int packet) const {
        return at<float4>(place::OUT_WEIGHT)[place_of(unit, packet)];
    }
    __device__ float *dlogits(int own_row) const {
        return at<float>(place::DLOGITS) + own_row * OUT;
    }

    /* The label of row warp() of those that this block owns. */
    __device__ int label_of(const uint32_t *images, int rows) const {
        const int r = down * OWN + warp();
        return warp() < OWN && r < rows ? plan.labels[images[r]] : 0;
    }

    /* --- forward --- */

    /* W3 and b2 of this step, a packet for each of the first threads. They come long before they are
       needed. */
    __device__ const packet_of_3 *new_weights() const {
        return plan.out_weight + across * WIDE * PACKETS + threadIdx.x;
    }

    __device__ void look_for_weights(packets_to_come<1> &packet) const {
        if (threadIdx.x < WIDE * PACKETS) packet.look([&](int) { return new_weights(); });
    }

    __device__ void receive_weights(packets_to_come<1> &packet, uint32_t tag) const {
        if (threadIdx.x >= WIDE * PACKETS) return;
        packet.wait(tag, [&](int) { return new_weights(); });
        at<float4>(place::OUT_WEIGHT)[place_of(threadIdx.x / PACKETS, threadIdx.x % PACKETS)] =
            make_float4(packet.value(0, 0), packet.value(0, 1), packet.value(0, 2), 0);
    }

    /* H2, from the parts of Z2 that come from the tiles of W2. */
    __device__ void receive_sums(const pair_step &now) {
        const int q = lane() / 4, parts = plan.tall / 2;
        const float bias = out_weight(column(), PACKETS - 1).z;
#pragma unroll
        for (int u = 0; u < GROUPS; u++) {
            const packet_of_3 *from =
                plan.sums +
                ((across * (ROWS / GROUP) + down * GROUPS + u) * parts + min(q, parts - 1)) * 3 * POSITIONS +
                warp() * 4 + lane() % 4;
            float part[3][3], sum[8];
            receive(part, now.tag, [&](int i) { return from + i * POSITIONS; });
            __syncwarp(); /* lanes leave one by one */
#pragma unroll
            for (int i = 0; i < 8; i++) sum[i] = q < parts ? part[i / 3][i % 3] : 0;
            halve<8>(sum, q & 4, 16);
            halve<4>(sum, q & 2, 8);
            halve<2>(sum, q & 1, 4);
            hidden[u] = down * OWN + u * GROUP + row() < now.rows
                            ? activate_compactly(plan.activation[1], sum[0] + bias)
                            : 0.0f;
            at<float>(place::H2)[(u * GROUP + row()) * WIDE + column()] = hidden[u];
        }
    }

    /* --- the turn --- */

    /* What all lanes of a packet have in sum. */
    __device__ static void add_over_lanes(float (&sum)[3]) {
#pragma unroll
        for (int j = 0; j < 3; j++)
#pragma unroll
            for (int offset = PACKETS; offset < 32; offset *= 2)
                sum[j] += __shfl_xor_sync(0xffffffffu, sum[j], offset);
    }

    /* dL/dlogits of a row for each warp. All blocks with the same rows know their losses; the first of them
       writes them down. After a barrier. */
    __device__ void turn(const pair_step &now, int label) const {
        const int own_row = warp(), r = down * OWN + own_row, packet = lane() % PACKETS, c = lane() % CLASSES;
        if (own_row >= OWN) return;
        float sum[3] = {}, part[1][3];
#pragma unroll
        for (int i = 0; i < WIDE; i += 32 / PACKETS) {
            const int k = i + lane() / PACKETS;
            const float h = at<float>(place::H2)[own_row * WIDE + k];
            const float4 w = out_weight(k, packet);
            sum[0] += h * w.x;
            sum[1] += h * w.y;
            sum[2] += h * w.z;
        }
        add_over_lanes(sum);
        packet_of_3 *logits = plan.logits + r * ACROSS * PACKETS;
        if (lane() < PACKETS) send(logits + across * PACKETS + lane(), sum[0], sum[1], sum[2], now.tag);
        const int source = lane() / PACKETS;
        receive(part, now.tag, [&](int) { return logits + min(source, plan.wide - 1) * PACKETS + packet; });
        __syncwarp();
#pragma unroll
        for (int j = 0; j < 3; j++) sum[j] = source < plan.wide ? part[0][j] : 0;
        add_over_lanes(sum);
        float z = at<float>(place::BIAS3)[c];
#pragma unroll
        for (int j = 0; j < 3; j++) {
            const float of_class = __shfl_sync(0xffffffffu, sum[j], c / 3, PACKETS);
            if (c % 3 == j) z += of_class;
        }
        const row_loss loss = lose(z, r < now.rows, plan.classes, label, now.scale);
        const bool finite = __shfl_sync(0xffffffffu, loss.finite, 0);
        if (lane() < OUT) dlogits(own_row)[c] = c == FLAG ? (finite ? 0.0f : 1.0f) : loss.gradient;
        if (across == 0 && lane() == 0 && r < now.rows)
            plan.tally.rows[(size_t)now.number * plan.batch + r] = loss.record;
    }

    /* --- backward --- */

    /* dZ2 of this thread's elements, to the tiles of W2. After a barrier. */
    __device__ void send_back(uint32_t tag) const {
        float4 w[PACKETS];
#pragma unroll
        for (int p = 0; p < PACKETS; p++) w[p] = out_weight(column(), p);
        w[PACKETS - 1].z = 0; /* the bias */
#pragma unroll
        for (int u = 0; u < GROUPS; u++) {
            const int own_row = u * GROUP + row();
            float d[OUT], sum = 0;
#pragma unroll
            for (int i = 0; i < OUT; i += 4) {
                const float4 four = *reinterpret_cast<const float4 *>(dlogits(own_row) + i);
                d[i] = four.x, d[i + 1] = four.y, d[i + 2] = four.z, d[i + 3] = four.w;
            }
#pragma unroll
            for (int p = 0; p < PACKETS; p++)
                sum += d[3 * p] * w[p].x + d[3 * p + 1] * w[p].y + d[3 * p + 2] * w[p].z;
            sum *= derivative_compactly(plan.activation[1], hidden[u], hidden[u]);
            at<float>(place::BACK)[own_row * WIDE + column()] = sum;
            send_of_eight(plan.dz2 + (across * CHUNKS + column() / 8) * 3 * ROWS + down * OWN + own_row, ROWS,
                          sum, d[FLAG], tag, [](int i) { return i % 2 * 4 + i / 2; });
        }
    }

    /* This block's rows' part of dW3, db2 and db3, to those who update them. After a barrier. */
    __device__ void send_gradients(uint32_t tag) const {
        const int unit = threadIdx.x / PACKETS, packet = threadIdx.x % PACKETS;
        float sum[3] = {};
        if (unit > WIDE) return;
#pragma unroll
        for (int r = 0; r < OWN; r++) {
            const float h = unit < WIDE ? at<float>(place::H2)[r * WIDE + unit] : 1;
#pragma unroll
            for (int j = 0; j < 3; j++) sum[j] += h * dlogits(r)[3 * packet + j];
        }
        if (unit < WIDE && packet == PACKETS - 1) {
            sum[2] = 0;
#pragma unroll
            for (int r = 0; r < OWN; r++) sum[2] += at<float>(place::BACK)[r * WIDE + unit];
        }
        send(unit < WIDE ? plan.out_sums + ((across * WIDE + unit) * DOWNS + down) * PACKETS + packet
                         : plan.out_bias + (across * DOWNS + down) * PACKETS + packet,
             sum[0], sum[1], sum[2], tag);
    }

    /* --- update --- */

    static constexpr int SOURCES = 32 / PACKETS, EACH = DOWNS / SOURCES; /* of gradients, for a lane */
    typedef packets_to_come<EACH> gradient_packets;
    static_assert(DOWNS % SOURCES == 0, "lanes for all");

    /* Where this thread's parts of a gradient come, from all blocks that have rows. */
    __device__ const packet_of_3 *parts_of_gradient(int i) const {
        return (which() < OUTPUT ? plan.out_sums + unit_of_weight() * DOWNS * PACKETS
                                 : plan.out_bias + across * DOWNS * PACKETS) +
               i * 32 + lane();
    }

    __device__ void look_for_gradient(gradient_packets &parts) const {
        if (which() <= OUTPUT) parts.look([&](int i) { return parts_of_gradient(i); });
    }

    /* By the warps from the last on, for which there are the fewest pixels. */
    __device__ void update(gradient_packets &parts, const pair_step &now) {
        float sum[3] = {};
        if (which() > OUTPUT) return;
        parts.wait(now.tag, [&](int i) { return parts_of_gradient(i); });
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 3 * EACH; i++) sum[i % 3] += parts.value(i / 3, i % 3);
        add_over_lanes(sum);
        if (which() < OUTPUT) {
            each_weight([&](int, size_t, int j) { descend(now.rate, sum[j], weight[j], velocity[j]); });
        } else {
            float *bias = at<float>(place::BIAS3) + 3 * lane();
#pragma unroll
            for (int j = 0; j < 3; j++)
                if (lane() < PACKETS && 3 * lane() + j < plan.classes)
                    descend(now.rate, sum[j], bias[j], bias[OUT + j]);
        }
    }

    /* --- weights --- */

    __device__ static int which() {
        return WARPS - 1 - warp();
    }
    __device__ int unit_of_weight() const {
        return across * WIDE + down * OUTPUT + which();
    }

    /* Calls each(layer, index in its weights, or in the biases of layer 1, index in this thread's
       registers). */
    template <typename E> __device__ void each_weight(E each) const {
        if (which() >= OUTPUT || lane() >= PACKETS || unit_of_weight() >= plan.hidden[1]) return;
#pragma unroll
        for (int j = 0; j < 3; j++) {
            const int c = 3 * lane() + j;
            if (c < plan.classes) each(2, (size_t)unit_of_weight() * plan.classes + c, j);
            if (c == MOST_CLASSES) each(1, (size_t)unit_of_weight(), j);
        }
    }

    /* The weights for the step of that tag. After a barrier: then all of this block have read the gradients
       of the step before. */
    __device__ void publish(uint32_t tag) const {
        if (which() < OUTPUT && lane() < PACKETS)
            send(plan.out_weight + unit_of_weight() * PACKETS + lane(), weight[0], weight[1], weight[2], tag);
    }

    __device__ void load() {
        float *bias = at<float>(place::BIAS3) + threadIdx.x;
#pragma unroll
        for (int j = 0; j < 3; j++) weight[j] = velocity[j] = 0;
        each_weight([&](int layer, size_t i, int j) {
            weight[j] = layer == 2 ? plan.weight[2][i] : plan.bias[1][i];
            if (VELOCITY) velocity[j] = layer == 2 ? plan.weight_velocity[2][i] : plan.bias_velocity[1][i];
        });
        if ((int)threadIdx.x >= plan.classes) return;
        bias[0] = plan.bias[2][threadIdx.x];
        if (VELOCITY) bias[OUT] = plan.bias_velocity[2][threadIdx.x];
    }

    __device__ void store() {
        const float *bias = at<float>(place::BIAS3) + threadIdx.x;
        each_weight([&](int layer, size_t i, int j) {
            (layer == 2 ? plan.weight[2] : plan.bias[1])[i] = weight[j];
            if (VELOCITY) (layer == 2 ? plan.weight_velocity[2] : plan.bias_velocity[1])[i] = velocity[j];
        });
        if (down || across || (int)threadIdx.x >= plan.classes) return; /* all blocks have the same biases */
        plan.bias[2][threadIdx.x] = bias[0];
        if (VELOCITY) plan.bias_velocity[2][threadIdx.x] = bias[OUT];
    }
};

#endif
