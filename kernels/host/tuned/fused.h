/* The state of engine fused on the host: allocated in fused_state.c, used in fused.c. */
#ifndef TESSERA_KERNELS_HOST_TUNED_FUSED_H
#define TESSERA_KERNELS_HOST_TUNED_FUSED_H

#include "kernels/fused.h"
#include "kernels/host/ops/ops.h"
#include "kernels/host/team_size.h"
#include "kernels/host/tuned/tuned.h"

/* The largest batch of which each thread converts all pixels itself, and computes the same columns of W in
   every step. */
enum { SMALL_BATCH = 1024 };

/* The buffers of a layer. */
struct tuned_fused_layer {
    void *pre, *output, *grad; /* [batch][out]; pre == output unless the derivative needs both */
    void *weight_grad;         /* [in][out]: its partial sums over the batch */
    void *panels; /* the weights as micro-panels (tuned_plan.b_panel_stride) while steps run, or NULL */
};

struct tuned_fused_state {
    const struct tuned_context *tuned;
    size_t threads; /* for which the buffers suffice */
    const struct tuned_kernel *kernel;
    const struct ops *ops; /* on one thread */
    struct fused_network network;
    struct tuned_fused_layer layer[FUSED_MAX_LAYERS];
    char *input;         /* [batch][features], then the labels [batch] */
    size_t input_stride; /* bytes between the inputs of two threads; 0: all threads share one */
    double *loss;        /* [batch] */
    size_t *correct;     /* by thread */
    bool *finite;        /* by thread */
    struct team_size size;
    void *memory; /* the allocation that holds all of these */
};

/* Is the update W += alpha * product, with alpha = -learning rate? */
static inline bool update_is_gemm(const struct fused_network *network) {
    return network->layer[0].weight_velocity == NULL && network->weight_decay == 0;
}

/* Do the weights of a layer stay packed as micro-panels? For a small batch: no product packs them again, and
   no two threads write the same memory. (If W is stored by rows, each page holds lines of all threads, and
   hardware prefetching causes false sharing.) TUNED_BLOCKED alone reads micro-panels, and cannot update them
   with momentum or decay. */
static inline bool weights_stay_packed(const struct fused_network *network, size_t l) {
    const struct fused_layer *layer = &network->layer[l];
    return network->batch <= SMALL_BATCH && update_is_gemm(network) && l + 1 < network->depth &&
           layer->in > TUNED_NARROW && layer->out > TUNED_NARROW;
}

/* Elements of a micro-panel of W, and their number. */
static inline size_t panel_elements(const struct tuned_fused_state *state, size_t l) {
    return state->network.layer[l].in * state->kernel->nr;
}

static inline size_t panel_count(const struct tuned_fused_state *state, size_t l) {
    return (state->network.layer[l].out + state->kernel->nr - 1) / state->kernel->nr;
}

/* As `run` of kernels/fused.h. */
size_t tuned_fused_run(void *opaque, size_t first, size_t count, const volatile sig_atomic_t *stop,
                       struct fused_times *times);

#endif
