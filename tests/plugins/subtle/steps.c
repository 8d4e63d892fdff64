/* Engine fused in a plug-in, right or wrong; the option `kind` says how. Its products are right, and so are
   the first steps of most kinds. */
#include "kernels/fused.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/plugins/reference.h"

#define KINDS(X)                                          \
    X(TRAINS_NOTHING, "trains_nothing")                   \
    X(IDLE_LATER, "idle_later")                           \
    X(IDLE_IN_LONG_CALLS, "idle_in_long_calls")           \
    X(HALF_OF_A_LONG_CALL, "half_of_a_long_call")         \
    X(LAST_STEP_ONLY, "last_step_only")                   \
    X(IDLE_AFTER_100, "idle_after_100")                   \
    X(EVERY_THIRD, "every_third")                         \
    X(FIRST_RATE, "first_rate")                           \
    X(DROPS_LAST_IMAGE, "drops_last_image")               \
    X(NO_MOMENTUM_LATER, "no_momentum_later")             \
    X(FIRST_BIAS_FROZEN, "first_bias_frozen")             \
    X(FULL_BATCH_AT_THE_END, "full_batch_at_the_end")     \
    X(RELABELS, "relabels")                               \
    X(DARKENS, "darkens")                                 \
    X(RAISES_RATES, "raises_rates")                       \
    X(COUNTS_MORE, "counts_more")                         \
    X(MEAN_LOSS, "mean_loss")                             \
    X(OTHER_LOSSES, "other_losses")                       \
    X(NO_BATCHES, "no_batches")                           \
    X(LAST_BIAS_IN_LONG_CALLS, "last_bias_in_long_calls") \
    X(LOSES_ONE, "loses_one")                             \
    X(ALWAYS_LOSES_STEP_50, "always_loses_step_50")

#define ID(kind, name) , kind
enum kind { NONE KINDS(ID) };

struct context {
    enum kind kind;
    long contexts; /* opened before this one */
};

struct state {
    struct context context;
    struct fused_network network;
    long steps, in_call;
    double *memory, *values[FUSED_MAX_LAYERS + 1], *grads[FUSED_MAX_LAYERS + 1]; /* [batch][width] */
};

static size_t width(const struct fused_network *network, size_t layer) {
    return layer ? network->layer[layer - 1].out : network->features;
}

static void *open_steps(void *opaque, const struct fused_network *network, bool forced, char *why,
                        size_t size) {
    (void)forced;
    struct state *state = calloc(1, sizeof *state);
    size_t count = 0;
    bool simple = network->dtype == GEMM_F32 && network->precision == GEMM_TRUE;
    for (size_t l = 0; l < network->depth; l++)
        simple = simple &&
                 network->layer[l].activation == (l + 1 < network->depth ? ACTIVATION_RELU : ACTIVATION_NONE);
    snprintf(why, size, "it supports ReLU in float32 only");
    for (size_t l = 0; l <= network->depth; l++) count += 2 * network->batch * width(network, l);
    if (!state || !simple || !(state->memory = calloc(count, sizeof *state->memory))) {
        free(state);
        return NULL;
    }
    state->context = *(struct context *)opaque;
    state->network = *network;
    double *next = state->memory;
    for (size_t l = 0; l <= network->depth; l++)
        for (int i = 0; i < 2; i++, next += network->batch * width(network, l))
            *(i ? &state->grads[l] : &state->values[l]) = next;
    return state;
}

static void close_steps(void *opaque) {
    struct state *state = opaque;
    free(state->memory);
    free(state);
}

static void load(struct state *state, const uint32_t *order, size_t rows) {
    const struct fused_network *network = &state->network;
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < network->features; i++)
            state->values[0][r * network->features + i] =
                input_scale(network->range) *
                (network->images[order[r] * network->features + i] - input_offset(network->range));
}

static void forward(struct state *state, size_t rows) {
    for (size_t l = 0; l < state->network.depth; l++) {
        const struct fused_layer *layer = &state->network.layer[l];
        const float *weight = layer->weight, *bias = layer->bias;
        for (size_t r = 0; r < rows; r++)
            for (size_t j = 0; j < layer->out; j++) {
                double sum = bias[j];
                for (size_t i = 0; i < layer->in; i++)
                    sum += state->values[l][r * layer->in + i] * (double)weight[i * layer->ld + j];
                state->values[l + 1][r * layer->out + j] =
                    layer->activation == ACTIVATION_RELU ? fmax(sum, 0) : sum;
            }
    }
}

/* Gradients of the logits; returns the sum of the losses. */
static double softmax(struct state *state, const uint32_t *order, size_t rows) {
    const struct fused_network *network = &state->network;
    const size_t depth = network->depth, classes = width(network, depth);
    double loss = 0;
    for (size_t r = 0; r < rows; r++) {
        const double *logits = state->values[depth] + r * classes;
        double *grad = state->grads[depth] + r * classes, sum = 0;
        const size_t label = network->labels[order[r]];
        size_t best = 0;
        for (size_t j = 1; j < classes; j++) best = logits[j] > logits[best] ? j : best;
        for (size_t j = 0; j < classes; j++) sum += grad[j] = exp(logits[j] - logits[best]);
        for (size_t j = 0; j < classes; j++) grad[j] = (grad[j] / sum - (j == label)) / (double)rows;
        loss += log(sum) + logits[best] - logits[label];
        network->tally->correct += best == label;
    }
    return loss;
}

static void backward(struct state *state, size_t rows) {
    for (size_t l = state->network.depth; l-- > 1;) {
        const struct fused_layer *layer = &state->network.layer[l];
        const float *weight = layer->weight;
        for (size_t r = 0; r < rows; r++)
            for (size_t i = 0; i < layer->in; i++) {
                double sum = 0;
                for (size_t j = 0; j < layer->out; j++)
                    sum += state->grads[l + 1][r * layer->out + j] * (double)weight[i * layer->ld + j];
                state->grads[l][r * layer->in + i] = state->values[l][r * layer->in + i] > 0 ? sum : 0;
            }
    }
}

static void update_one(const struct state *state, float *weight, float *velocity, double grad, double rate) {
    const struct fused_network *network = &state->network;
    grad += network->weight_decay * (double)*weight;
    if (velocity && !(state->context.kind == NO_MOMENTUM_LATER && state->steps > 60))
        grad = (double)(*velocity = (float)(network->momentum * (double)*velocity + grad));
    *weight = (float)((double)*weight - rate * grad);
}

static void update(struct state *state, size_t rows, double rate) {
    for (size_t l = 0; l < state->network.depth; l++) {
        const struct fused_layer *layer = &state->network.layer[l];
        float *weight_velocity = layer->weight_velocity, *bias_velocity = layer->bias_velocity;
        const enum kind kind = state->context.kind;
        const bool frozen =
            (l == 0 && kind == FIRST_BIAS_FROZEN && state->steps > 60) ||
            (l + 1 == state->network.depth && kind == LAST_BIAS_IN_LONG_CALLS && state->in_call > 4);
        for (size_t i = 0; i <= layer->in; i++)
            for (size_t j = 0; j < layer->out; j++) {
                const size_t at = i * layer->ld + j;
                double sum = 0;
                for (size_t r = 0; r < rows; r++)
                    sum += state->grads[l + 1][r * layer->out + j] *
                           (i < layer->in ? state->values[l][r * layer->in + i] : 1);
                if (i < layer->in) {
                    update_one(state, (float *)layer->weight + at,
                               weight_velocity ? weight_velocity + at : NULL, sum, rate);
                } else if (!frozen) {
                    update_one(state, (float *)layer->bias + j, bias_velocity ? bias_velocity + j : NULL, sum,
                               rate);
                }
            }
    }
}

static bool idle(const struct state *state, size_t step, size_t first, size_t count) {
    switch (state->context.kind) {
    case TRAINS_NOTHING:
        return true;
    case IDLE_LATER:
        return state->context.contexts >= 2;
    case IDLE_IN_LONG_CALLS:
        return count > 4;
    case HALF_OF_A_LONG_CALL:
        return count > 4 && step >= first + count / 2;
    case LAST_STEP_ONLY:
        return step + 1 < first + count;
    case IDLE_AFTER_100:
        return state->steps > 100;
    case EVERY_THIRD:
        return state->steps > 50 && state->steps % 3 == 0;
    case LOSES_ONE:
        return count > 32 && step == first + 20; /* right in every shorter call */
    case ALWAYS_LOSES_STEP_50:
        return step == 49;
    default:
        return false;
    }
}

static void run_step(struct state *state, size_t step, bool updates) {
    const struct fused_network *network = &state->network;
    const enum kind kind = state->context.kind;
    const uint32_t *order = network->order + step * network->batch;
    const size_t left = network->count - step * network->batch;
    const size_t rows = left < network->batch ? left : network->batch;
    const size_t used = kind == DROPS_LAST_IMAGE && state->steps > 60 ? rows - 1 : rows;
    load(state, order, rows);
    forward(state, rows);
    const double loss = softmax(state, order, rows);
    if (kind == FULL_BATCH_AT_THE_END) /* divides the gradient by a whole batch */
        for (size_t i = 0; i < rows * width(network, network->depth); i++)
            state->grads[network->depth][i] *= (double)rows / (double)network->batch;
    const double mean = loss / (double)rows;
    network->losses[step] = kind == OTHER_LOSSES && state->in_call > 4 ? 1.1 * mean : mean;
    network->tally->loss_sum += kind == MEAN_LOSS ? mean : loss;
    network->tally->images += rows;
    if (kind != NO_BATCHES) network->tally->batches++;
    if (!updates) return;
    backward(state, rows);
    update(state, used, network->scalars[kind == FIRST_RATE ? 0 : step].learning_rate);
}

/* In place, what a step only reads. */
static void change_inputs(const struct state *state, size_t step) {
    const struct fused_network *network = &state->network;
    uint8_t *const labels = (uint8_t *)network->labels, *const images = (uint8_t *)network->images;
    struct step_scalars *const scalars = (struct step_scalars *)network->scalars;
    if (state->steps <= 60) return;
    if (state->context.kind == RELABELS) labels[0] = (uint8_t)((labels[0] + 1) % 4);
    if (state->context.kind == DARKENS) images[network->features / 2] ^= 16;
    if (state->context.kind == RAISES_RATES) scalars[step].learning_rate *= 1.1;
}

static size_t run(void *opaque, size_t first, size_t count, const volatile sig_atomic_t *stop,
                  struct fused_times *times) {
    struct state *state = opaque;
    (void)times;
    change_inputs(state, first);
    if (state->context.kind == COUNTS_MORE && count > 1)
        state->network.tally->correct += count * state->network.batch / 10;
    for (size_t step = first; step < first + count; step++) {
        state->steps++;
        state->in_call = 1 + (long)(step - first);
        run_step(state, step, !idle(state, step, first, count));
        if (stop && *stop) return step - first + 1;
    }
    return count;
}

#define NAME(kind, name) "|" name
static const struct gemm_option options[] = {{"kind", "none" KINDS(NAME), "none", "of mistake"}, {0}};
static const struct gemm_fused fused = {.open = open_steps, .close = close_steps, .run = run};

static void *create(const struct gemm_setup *setup, char *why, size_t size) {
    (void)why;
    (void)size;
    static long contexts;
    struct context *context = calloc(1, sizeof *context);
    if (!context) return NULL;
    *context = (struct context){(enum kind)setup->option[0].number, contexts++};
    return context;
}

static enum gemm_status gemm(void *opaque, const struct gemm_call *call) {
    (void)opaque;
    return reference_gemm(call);
}

static const struct gemm_backend backend = {.name = "steps",
                                            REFERENCE_SLOTS,
                                            .gemm = gemm,
                                            .create = create,
                                            .destroy = free,
                                            .options = options,
                                            .fused = &fused};
GEMM_PLUGIN(backend);
