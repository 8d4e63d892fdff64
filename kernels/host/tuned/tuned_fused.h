/* What engine fused on the host keeps from step to step: made in tuned_fused_state.c, used in
   tuned_fused.c. */
#ifndef TESSERA_KERNELS_HOST_TUNED_TUNED_FUSED_H
#define TESSERA_KERNELS_HOST_TUNED_TUNED_FUSED_H

#include "kernels/fused.h"
#include "kernels/host/ops/ops.h"
#include "kernels/host/tuned/tuned.h"

/* Rows of a small batch: every thread converts the pixels for itself, and keeps its columns of W. */
enum { ALONE = 1024 };

/* Of a layer, for a batch. */
struct tuned_fused_layer {
    void *pre, *output, *grad; /* [batch][out]; pre == output unless the derivative needs both */
    void *gradient;            /* [in][out]: of the weights, while they are summed up */
    void *panels; /* the weights as long as steps run, as tuned_plan.b_panel says; NULL: where they are */
};

struct tuned_fused_state {
    const struct tuned_context *tuned;
    size_t threads; /* what there is room for */
    const struct tuned_code *code;
    const struct ops *ops; /* on one thread */
    struct fused_network network;
    struct tuned_fused_layer layer[FUSED_MAX_LAYERS];
    char *input;         /* [batch][features] and, behind it, the labels [batch] */
    size_t input_stride; /* bytes of it, and every thread has its own; 0: all share one */
    double *loss;        /* [batch] */
    size_t *correct;     /* by thread */
    bool *finite;        /* by thread */
    void *memory;        /* all of it */
};

/* Is an update the product itself? */
static inline bool is_plain(const struct fused_network *network) {
    return network->layer[0].weight_velocity == NULL && network->weight_decay == 0;
}

/* Are the weights of a layer kept in panels? Of a small batch: no product packs them then, and each thread
   has a piece of memory, where as rows every page has lines of all threads, which a processor fetches
   unasked. Not of what is narrow, which has other ways; nor where an update is more than the product. */
static inline bool stays_in_panels(const struct fused_network *network, size_t l) {
    const struct fused_layer *layer = &network->layer[l];
    return network->batch <= ALONE && is_plain(network) && l + 1 < network->depth && layer->in > TUNED_FEW &&
           layer->out > TUNED_FEW;
}

/* Elements of a panel, and how many there are. */
static inline size_t panel_of(const struct tuned_fused_state *state, size_t l) {
    return state->network.layer[l].in * state->code->cols;
}

static inline size_t panels_of(const struct tuned_fused_state *state, size_t l) {
    return (state->network.layer[l].out + state->code->cols - 1) / state->code->cols;
}

/* As `run` of kernels/fused.h. */
size_t tuned_fused_run(void *opaque, size_t first, size_t count, const volatile sig_atomic_t *stop,
                       struct fused_times *times);

#endif
