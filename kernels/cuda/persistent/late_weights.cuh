/* What the forms with look-ahead (docs/look-ahead.md, depth 1) share: packets of four words in two buffers,
   and the state from which a launch goes on where the last one ended, with the bits of one launch. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_LATE_WEIGHTS_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_LATE_WEIGHTS_CUH

#include "kernels/cuda/persistent/byte_pixels.cuh"
#include "kernels/cuda/persistent/f16x2.cuh"

namespace persistent {

/* The state that a launch left. The next one, if nothing has changed it, goes on with the same late weights,
   and so with the bits of one launch. */
struct resume_point {
    int end;     /* the step after the last one of a launch, or -1 */
    int differs; /* not 0 if the network, the order or the rate has changed since */
    float rate;  /* of the last step */
};

/* A plan with the network as the last launch left it. */
template <int LAYERS> struct late_plan : byte_pixel_plan<LAYERS> {
    resume_point *resume;
    uint32_t *last_order;    /* the images of the last step */
    float *after[LAYERS][4]; /* the network at `end`: weight, bias and their velocities of each layer */

    __host__ __device__ float *state_of(int layer, int which) const {
        return which == 0   ? this->weight[layer]
               : which == 1 ? this->bias[layer]
               : which == 2 ? this->weight_velocity[layer]
                            : this->bias_velocity[layer];
    }
    __host__ __device__ size_t state_count(int layer, int which) const {
        const size_t in = layer ? this->hidden[layer - 1] : this->features,
                     out = layer == LAYERS - 1 ? this->classes : this->hidden[layer];
        if (which >= 2 && !this->update.has_velocity) return 0;
        return which % 2 ? out : in * out;
    }
    __device__ float rate_of(int step) const {
        return (float)this->scalars[step].learning_rate;
    }

    void lay_out_state(memory_layout &layout) {
        layout.take(&resume, 1);
        layout.take(&last_order, (size_t)ROWS);
        for (int s = 0; s < 4 * LAYERS; s++) layout.take(&after[s / 4][s % 4], state_count(s / 4, s % 4));
    }

    /* One block, when a launch has ended before step `last_end`. */
    __device__ void keep_order(int last_end, bool bad) const {
        const int last = last_end - 1;
        if ((int)threadIdx.x < this->rows_of(last, last_end))
            last_order[threadIdx.x] = this->order[(size_t)last * this->batch + threadIdx.x];
        if (threadIdx.x == 0) *resume = {bad ? -1 : last_end, 0, rate_of(last)};
    }
};

/* The weight that SGD makes of one without its gradient: that of the next step, but for a correction. */
__device__ inline float ahead_of(const sgd_update &update, float rate, float weight, float velocity) {
    const float kept = (1 - rate * update.weight_decay) * weight;
    return update.has_velocity ? kept - rate * update.momentum * velocity : kept;
}

/* In the network, and in the copy that the next launch compares with. */
template <int LAYERS>
__device__ inline void store_weight_twice(const late_plan<LAYERS> &plan, int layer, bool bias, size_t i,
                                          float weight, float velocity) {
    plan.state_of(layer, bias)[i] = plan.after[layer][bias][i] = weight;
    if (plan.update.has_velocity)
        plan.state_of(layer, 2 + bias)[i] = plan.after[layer][2 + bias][i] = velocity;
}

/* Calls each(i) for a share of 0 .. count - 1; all threads of the launch take part. */
template <typename E> __device__ inline void for_share(size_t count, E each) {
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < count;
         i += (size_t)gridDim.x * blockDim.x)
        each(i);
}

/* Whether all is as the last launch left it. */
template <int LAYERS>
__device__ inline void compare_state(const late_plan<LAYERS> &plan, int first, int longest) {
    bool differs = first != plan.resume->end || first % longest == 0;
    if (!differs) {
        const int last = first - 1;
        differs = plan.resume->rate != plan.rate_of(last);
        for_share(plan.rows_of(last, first), [&](size_t r) {
            differs |= plan.last_order[r] != plan.order[(size_t)last * plan.batch + r];
        });
        for (int s = 0; s < 4 * LAYERS; s++) {
            const uint32_t *now = reinterpret_cast<const uint32_t *>(plan.state_of(s / 4, s % 4)),
                           *then = reinterpret_cast<const uint32_t *>(plan.after[s / 4][s % 4]);
            for_share(plan.state_count(s / 4, s % 4), [&](size_t i) { differs |= now[i] != then[i]; });
        }
    }
    if (differs) plan.resume->differs = 1;
}

template <int ID, int COUNT> __device__ inline bool barrier_or(bool mine) {
    unsigned any;
    asm volatile("{ .reg .pred p, q; setp.ne.u32 p, %1, 0; bar.red.or.pred q, %2, %3, p; "
                 "selp.u32 %0, 1, 0, q; }"
                 : "=r"(any)
                 : "r"((unsigned)mine), "n"(ID), "n"(COUNT)
                 : "memory");
    return any;
}

/* --- packets of four words: no word for a tag, so the last bit of the last word is the phase ---

   Step i of a launch uses buffer i % 2. The bit is 1 in the first use of a buffer, which is zeroed before the
   launch, and changes from use to use. Arithmetic takes the bit as 0, wherever an epoch is cut. */
__device__ inline uint32_t phase_of(int i) {
    return i / 2 % 2 ^ 1;
}

__device__ inline uint4 load_packet(const uint4 *from) {
    uint64_t low, high;
    load_16_bytes(from, low, high);
    return make_uint4((uint32_t)low, (uint32_t)(low >> 32), (uint32_t)high, (uint32_t)(high >> 32));
}

__device__ inline void send_packet(uint4 *to, uint4 words, uint32_t phase) {
    store_16_bytes(to, (uint64_t)words.y << 32 | words.x,
                   (uint64_t)((words.w & ~1u) | phase) << 32 | words.z);
}

__device__ inline bool arrived(uint4 packet, uint32_t phase) {
    return (packet.w & 1) == phase;
}

/* Two bytes of a word as float16: `select` as in __byte_perm, with 4 for the upper bytes. */
__device__ inline uint32_t half2_of_bytes(uint32_t word, uint32_t select) {
    const uint32_t offset = 0x64006400u, above = __byte_perm(word, 0x64646464u, select); /* 1024 + byte */
    return bits_of(
        __hsub2(*reinterpret_cast<const __half2 *>(&above), *reinterpret_cast<const __half2 *>(&offset)));
}

} // namespace persistent

#endif
