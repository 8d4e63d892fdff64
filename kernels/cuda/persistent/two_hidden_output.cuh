/* Two hidden layers: H2, the output layer, the loss and dZ2 for the rows of the batch that a thread block
   owns. See two_hidden_wgmma.cu. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_TWO_HIDDEN_OUTPUT_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_TWO_HIDDEN_OUTPUT_CUH

#include "kernels/cuda/persistent/two_hidden_plan.cuh"

namespace persistent::two_hidden {

/* One thread of a block with OWN rows of the batch and TILE_OUT columns of layer 2. It has one element of H2
   in every GROUP rows. The blocks with the same columns share the update of their rows of W3: a warp has one
   row, three weights in each of its first PACKETS lanes. W3 and the biases of layer 2 travel together. */
template <int OWN, bool VELOCITY> struct output_block : block {
    static constexpr int GROUPS = OWN / GROUP, OWNERS = ROWS / OWN, OUTPUT = TILE_OUT / OWNERS;
    sgd_update update;
    float hidden[GROUPS];
    float weight[3], velocity[3]; /* of the output layer */

    __device__ output_block(const two_hidden::plan &plan, char *shared)
        : block(plan, shared), update(plan.update) {
        update.has_velocity = VELOCITY;
    }

    static_assert(OWN <= MAX_OWN && OUTPUT < WARPS, "a warp each, and one for the bias");

    /* This thread's row in each group, and its column: where the products leave them. */
    __device__ static int row() {
        return warp() % GROUP;
    }
    __device__ static int column() {
        return (warp() / 8 * 4 + lane() / 8) * 8 + lane() % 4 * 2 + lane() / 4 % 2;
    }

    /* Position of a packet of W3 in shared memory: conflict-free. */
    __device__ static int swizzle(int unit, int packet) {
        return unit * PACKETS + (packet ^ unit / 2 % PACKETS);
    }
    __device__ float4 out_weight(int unit, int packet) const {
        return at<float4>(smem_layout::OUT_WEIGHT)[swizzle(unit, packet)];
    }
    __device__ float *dlogits(int own_row) const {
        return at<float>(smem_layout::DLOGITS) + own_row * PACKED_PITCH;
    }

    /* The label of owned row warp(). */
    __device__ int label_of(const uint32_t *images, int rows) const {
        const int r = down * OWN + warp();
        return warp() < OWN && r < rows ? plan.labels[images[r]] : 0;
    }

    /* --- forward --- */

    /* W3 and b2 of this step, one packet for each of the first threads: sent long before they are needed. */
    __device__ const ll_packet3 *new_weights() const {
        return plan.out_weight + across * TILE_OUT * PACKETS + threadIdx.x;
    }

    __device__ void try_poll_weights(ll_receiver<1> &packet) const {
        if (threadIdx.x < TILE_OUT * PACKETS) packet.try_poll([&](int) { return new_weights(); });
    }

    __device__ void receive_weights(ll_receiver<1> &packet, uint32_t tag) const {
        if (threadIdx.x >= TILE_OUT * PACKETS) return;
        packet.wait(tag, [&](int) { return new_weights(); });
        __syncwarp();
        const float third = threadIdx.x % PACKETS == PACKETS - 1 ? 0 : packet.value(0, 2); /* not the bias */
        find_largest(LARGEST_W3, max(magnitude(packet.value(0, 0)),
                                     max(magnitude(packet.value(0, 1)), magnitude(third))));
        at<float4>(smem_layout::OUT_WEIGHT)[swizzle(threadIdx.x / PACKETS, threadIdx.x % PACKETS)] =
            make_float4(packet.value(0, 0), packet.value(0, 1), packet.value(0, 2), 0);
    }

    /* H2, from the partial Z2 of the tiles of W2. */
    __device__ void receive_z2(const step_info &now) {
        const int q = lane() / 4, parts = plan.tiles_in / 2;
        const float bias = out_weight(column(), PACKETS - 1).z;
#pragma unroll
        for (int u = 0; u < GROUPS; u++) {
            const ll_packet4 *from =
                plan.z2 +
                ((across * (ROWS / GROUP) + down * GROUPS + u) * parts + min(q, parts - 1)) * 2 * POSITIONS +
                warp() * 4 + lane() % 4;
            const auto packet = [&](int i) { return from + i * POSITIONS; };
            ll_receiver<2, ll_packet4> part;
            float sum[8];
            part.try_poll(packet);
            part.wait(now.packet_phase(), packet);
            __syncwarp(); /* lanes leave the loop one by one */
#pragma unroll
            for (int i = 0; i < 8; i++) sum[i] = q < parts ? part.value(i / 4, i % 4) : 0;
            halve<8>(sum, q & 4, 16);
            halve<4>(sum, q & 2, 8);
            halve<2>(sum, q & 1, 4);
            hidden[u] = down * OWN + u * GROUP + row() < now.rows
                            ? activate_compactly(plan.activation[1], sum[0] + bias)
                            : 0.0f;
            at<float>(smem_layout::H2)[(u * GROUP + row()) * TILE_OUT + column()] = hidden[u];
        }
    }

    /* --- output layer --- */

    /* dL/dlogits, one row per warp. All blocks with the same rows compute their losses; the first of them
       records them. After a barrier. */
    __device__ void output_layer(const step_info &now, int label) const {
        const int own_row = warp(), r = down * OWN + own_row, packet = lane() % PACKETS, c = lane() % CLASSES;
        if (own_row >= OWN) return;
        float sum[3] = {}, part[1][3];
#pragma unroll
        for (int i = 0; i < TILE_OUT; i += 32 / PACKETS) {
            const int k = i + lane() / PACKETS;
            const float h = at<float>(smem_layout::H2)[own_row * TILE_OUT + k];
            const float4 w = out_weight(k, packet);
            sum[0] += h * w.x;
            sum[1] += h * w.y;
            sum[2] += h * w.z;
        }
        reduce_across_lanes(sum);
        ll_packet3 *logits = plan.logits + r * ACROSS * PACKETS;
        if (lane() < PACKETS) ll_send(logits + across * PACKETS + lane(), sum[0], sum[1], sum[2], now.tag);
        const int source = lane() / PACKETS;
        ll_receive(part, now.tag,
                   [&](int) { return logits + min(source, plan.tiles_out - 1) * PACKETS + packet; });
        __syncwarp();
#pragma unroll
        for (int j = 0; j < 3; j++) sum[j] = source < plan.tiles_out ? part[0][j] : 0;
        reduce_across_lanes(sum);
        const float z = at<float>(smem_layout::BIAS3)[c] + value_of_class(sum);
        const row_loss loss = softmax_cross_entropy(z, r < now.rows, plan.classes, label, now.scale);
        const bool finite = __shfl_sync(0xffffffffu, loss.finite, 0);
        if (lane() < PACKED_PITCH) dlogits(own_row)[c] = c == FLAG ? (finite ? 0.0f : 1.0f) : loss.gradient;
        if (across == 0 && lane() == 0 && r < now.rows) plan.record(now.number, r, loss.record);
    }

    /* --- backward --- */

    /* dZ2 of this thread's elements, sent to the tiles of W2. After a barrier. */
    __device__ void send_dz2(const step_info &now) const {
        float4 w[PACKETS];
#pragma unroll
        for (int p = 0; p < PACKETS; p++) w[p] = out_weight(column(), p);
        w[PACKETS - 1].z = 0; /* the bias */
#pragma unroll
        for (int u = 0; u < GROUPS; u++) {
            const int own_row = u * GROUP + row();
            float d[PACKED_PITCH], sum = 0;
#pragma unroll
            for (int i = 0; i < PACKED_PITCH; i += 4) {
                const float4 four = *reinterpret_cast<const float4 *>(dlogits(own_row) + i);
                d[i] = four.x, d[i + 1] = four.y, d[i + 2] = four.z, d[i + 3] = four.w;
            }
#pragma unroll
            for (int p = 0; p < PACKETS; p++)
                sum += d[3 * p] * w[p].x + d[3 * p + 1] * w[p].y + d[3 * p + 2] * w[p].z;
            sum *= derivative_compactly(plan.activation[1], hidden[u], hidden[u]);
            at<float>(smem_layout::DZ2_ROWS)[own_row * TILE_OUT + column()] = sum;
            ll_send8_from_lanes(plan.dz2 + (across * CHUNKS + column() / 8) * 2 * ROWS + down * OWN + own_row,
                                ROWS, d[FLAG] != 0 ? NAN : not_nan(sum), now.packet_phase(),
                                [](int i) { return i % 2 * 4 + i / 2; });
        }
    }

    /* The owned rows' part of dW3, db2 and db3, sent to the blocks that update them. After a barrier. */
    __device__ void send_gradients(uint32_t tag) const {
        const int unit = threadIdx.x / PACKETS, packet = threadIdx.x % PACKETS;
        float sum[3] = {};
        if (unit > TILE_OUT) return;
#pragma unroll
        for (int r = 0; r < OWN; r++) {
            const float h = unit < TILE_OUT ? at<float>(smem_layout::H2)[r * TILE_OUT + unit] : 1;
#pragma unroll
            for (int j = 0; j < 3; j++) sum[j] += h * dlogits(r)[3 * packet + j];
        }
        if (unit < TILE_OUT && packet == PACKETS - 1) {
            sum[2] = 0;
#pragma unroll
            for (int r = 0; r < OWN; r++) sum[2] += at<float>(smem_layout::DZ2_ROWS)[r * TILE_OUT + unit];
        }
        ll_send(unit < TILE_OUT
                    ? plan.out_sums + ((across * TILE_OUT + unit) * OWNERS + down) * PACKETS + packet
                    : plan.out_bias + (across * OWNERS + down) * PACKETS + packet,
                sum[0], sum[1], sum[2], tag);
    }

    /* --- update --- */

    static constexpr int SOURCES = 32 / PACKETS, EACH = OWNERS / SOURCES; /* packets of a lane */
    typedef ll_receiver<EACH> gradient_packets;
    static_assert(OWNERS % SOURCES == 0, "lanes for all");

    /* The packets of this thread's gradients, from all blocks that own rows. */
    __device__ const ll_packet3 *parts_of_gradient(int i) const {
        return (warp_from_last() < OUTPUT ? plan.out_sums + unit_of_weight() * OWNERS * PACKETS
                                          : plan.out_bias + across * OWNERS * PACKETS) +
               i * 32 + lane();
    }

    __device__ void try_poll_gradient(gradient_packets &parts) const {
        if (warp_from_last() <= OUTPUT) parts.try_poll([&](int i) { return parts_of_gradient(i); });
    }

    /* The last warps do it: they have the fewest pixels. */
    __device__ void update_weights(gradient_packets &parts, const step_info &now) {
        float sum[3] = {};
        if (warp_from_last() > OUTPUT) return;
        parts.wait(now.tag, [&](int i) { return parts_of_gradient(i); });
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 3 * EACH; i++) sum[i % 3] += parts.value(i / 3, i % 3);
        reduce_across_lanes(sum);
        if (warp_from_last() < OUTPUT) {
            each_weight([&](int, size_t, int j) { update(now.rate, sum[j], weight[j], velocity[j]); });
        } else {
            float *bias = at<float>(smem_layout::BIAS3) + 3 * lane();
#pragma unroll
            for (int j = 0; j < 3; j++)
                if (lane() < PACKETS && 3 * lane() + j < plan.classes)
                    update(now.rate, sum[j], bias[j], bias[PACKED_PITCH + j]);
        }
    }

    /* --- weights --- */

    __device__ static int warp_from_last() {
        return WARPS - 1 - warp();
    }
    __device__ int unit_of_weight() const {
        return across * TILE_OUT + down * OUTPUT + warp_from_last();
    }

    /* Calls each(layer, index in its weights or in the biases of layer 1, index in registers). */
    template <typename E> __device__ void each_weight(E each) const {
        if (warp_from_last() >= OUTPUT || lane() >= PACKETS || unit_of_weight() >= plan.hidden[1]) return;
#pragma unroll
        for (int j = 0; j < 3; j++) {
            const int c = 3 * lane() + j;
            if (c < plan.classes) each(2, (size_t)unit_of_weight() * plan.classes + c, j);
            if (c == MAX_CLASSES) each(1, (size_t)unit_of_weight(), j);
        }
    }

    /* Sends the weights of the step with this tag. After a barrier that follows the last read of gradients of
       the previous step. */
    __device__ void send_weights(uint32_t tag) const {
        if (warp_from_last() < OUTPUT && lane() < PACKETS)
            ll_send(plan.out_weight + unit_of_weight() * PACKETS + lane(), weight[0], weight[1], weight[2],
                    tag);
    }

    /* All blocks have the same biases of the output layer. */
    template <typename E> __device__ void all_weights(E each) {
        float *bias = at<float>(smem_layout::BIAS3) + threadIdx.x;
        each_weight([&](int layer, size_t i, int j) {
            each(layer == 2 ? plan.weight[2] : plan.bias[1],
                 layer == 2 ? plan.weight_velocity[2] : plan.bias_velocity[1], i, weight[j], velocity[j],
                 true);
        });
        if ((int)threadIdx.x < plan.classes)
            each(plan.bias[2], plan.bias_velocity[2], (size_t)threadIdx.x, bias[0], bias[PACKED_PITCH],
                 !down && !across);
    }

    __device__ void load() {
#pragma unroll
        for (int j = 0; j < 3; j++) weight[j] = velocity[j] = 0;
        all_weights(load_weight{VELOCITY});
    }

    __device__ void store() {
        all_weights(store_weight{VELOCITY});
    }
};

} // namespace persistent::two_hidden

#endif
