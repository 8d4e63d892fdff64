/* Engine fused on the host: allocation and opening. The steps are in fused.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/host/tuned/fused.h"
#include "src/base/pages.h"

/* Takes the next `bytes` of `base`, 64-byte aligned. If base is NULL, only counts them. */
static void *take(char *base, size_t *used, size_t bytes) {
    void *piece = base ? base + *used : NULL;
    *used += (bytes + 63) / 64 * 64;
    return piece;
}

static size_t lay_out(struct tuned_fused_state *state, char *base) {
    const struct fused_network *network = &state->network;
    const size_t size = state->kernel->size, batch = network->batch, threads = state->threads;
    size_t used = 0;
    for (size_t l = 0; l < network->depth; l++) {
        const struct fused_layer *layer = &network->layer[l];
        const size_t bytes = batch * layer->out * size;
        struct tuned_fused_layer *to = &state->layer[l];
        to->output = take(base, &used, bytes);
        to->pre = activation_needs_input(layer->activation) ? take(base, &used, bytes) : to->output;
        to->grad = take(base, &used, bytes);
        if (!update_is_gemm(network)) to->weight_grad = take(base, &used, layer->in * layer->out * size);
        if (weights_stay_packed(network, l))
            to->panels = take(base, &used, panel_elements(state, l) * panel_count(state, l) * size);
    }
    const size_t before = used;
    state->input = take(base, &used, batch * (network->features * size + 1));
    state->input_stride = batch <= SMALL_BATCH ? used - before : 0;
    if (state->input_stride) take(base, &used, state->input_stride * (threads - 1));
    state->loss = take(base, &used, batch * sizeof *state->loss);
    state->correct = take(base, &used, threads * sizeof *state->correct);
    state->finite = take(base, &used, threads * sizeof *state->finite);
    return used;
}

static void fused_close(void *opaque) {
    struct tuned_fused_state *state = opaque;
    free(state->memory);
    free(state);
}

static void *fused_open(void *context, const struct fused_network *network, bool forced, char *why,
                        size_t size) {
    (void)forced; /* never slower than eager */
    const struct tuned_context *tuned = context;
    struct tuned_fused_state *state = NULL;
    if (network->precision != GEMM_TRUE) {
        snprintf(why, size, "on the CPU it has true float32 and float64 only");
        return NULL;
    }
    state = calloc(1, sizeof *state);
    if (state) {
        state->tuned = tuned;
        state->threads = (size_t)tuned->threads;
        state->size = team_size_init(state->threads);
        state->kernel = tuned_kernel_for(tuned, network->dtype);
        state->ops = host_ops(network->dtype);
        state->network = *network;
        const size_t bytes = lay_out(state, NULL);
        state->memory = pages_alloc(bytes);
        if (state->memory) {
            memset(state->memory, 0, bytes);
            lay_out(state, state->memory);
            return state;
        }
    }
    free(state);
    snprintf(why, size, "out of memory");
    return NULL;
}

static void fused_explain(void *context, const struct fused_network *network, char *text, size_t size) {
    const struct tuned_context *tuned = context;
    (void)network;
    snprintf(text, size, "one team of %d thread%s for whole steps: never slower than op by op\n",
             tuned->threads, tuned->threads == 1 ? "" : "s");
}

const struct gemm_fused tuned_fused = {
    .open = fused_open, .close = fused_close, .run = tuned_fused_run, .explain = fused_explain};
