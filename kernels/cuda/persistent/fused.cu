/* The slot `fused` of cuda-tuned: chooses the form for a network. */
#include <stdlib.h>

#include "kernels/cuda/persistent/fused.cuh"

struct fused_state {
    fused_instance *instance;
    double seconds; /* expected per step */
};

static const fused_form *const forms[] = {&fused_look_ahead, &fused_split_pixels, &fused_split_units,
                                          &fused_two_ahead,  &fused_two_hidden,   &fused_tiled};
static const int FORMS = sizeof forms / sizeof *forms;

/* Own kernels, which do more in a launch than the library's, need rows of a multiple of 16 bytes; those of 16
   bits and of TF32 are padded. */
static bool has_own_kernels(const fused_network *network) {
    for (size_t l = 0; l < network->depth; l++)
        if (network->layer[l].in % 4 && network->precision == GEMM_TRUE) return false;
    return network->dtype == GEMM_F32;
}

/* Expected seconds of a step in a captured graph: 2.5 us for each launch, or 4 us, and the products at the
   library's rate for large ones (FLOP/s measured with 784-2048-2048-10 at batch 8,192), which concurrent
   networks share. */
static double graph_seconds(const fused_network *network) {
    double flops = 0;
    for (size_t l = 0; l < network->depth; l++)
        flops += (l ? 6.0 : 4.0) * (double)(network->batch * network->layer[l].in * network->layer[l].out);
    const double networks = network->concurrent_networks ? (double)network->concurrent_networks : 1;
    const double rate = network->dtype == GEMM_F64              ? 40e12
                        : network->precision == GEMM_TF32       ? 200e12
                        : network->precision == GEMM_MIXED_BF16 ? 390e12
                                                                : 45e12;
    const double launch = has_own_kernels(network) ? 2.5e-6 : 4e-6;
    return launch * (double)(3 * network->depth + 2) + networks * flops / rate;
}

static const char *const NO_COOPERATIVE_LAUNCH =
    "this GPU cannot keep all thread blocks of a kernel resident (cooperative launch)";

/* If the form cannot be opened, the context does not keep its error. */
static fused_instance *open_form(const fused_form *form, tuned_context *context, const fused_network *network,
                                 char *why, size_t size) {
    const cuda_fault before = context->fault;
    fused_instance *instance = form->open(context, network, why, size);
    if (instance) return instance;
    context->fault = before;
    cudaGetLastError(); /* clears it */
    return NULL;
}

static fused_state *new_state(fused_instance *instance, double seconds, char *why, size_t size) {
    fused_state *state = (fused_state *)malloc(sizeof *state);
    if (state) {
        *state = {instance, seconds};
    } else {
        snprintf(why, size, "out of memory");
        instance->close(instance);
    }
    return state;
}

/* The form with the shortest expected step, or the next one if it cannot be opened. */
static void *fused_open(void *opaque, const struct fused_network *network, bool forced, char *why,
                        size_t size) {
    tuned_context *context = (tuned_context *)opaque;
    const double graph = graph_seconds(network);
    double seconds[FORMS];
    if (!cuda_launches_cooperatively()) {
        snprintf(why, size, "%s", NO_COOPERATIVE_LAUNCH);
        return NULL;
    }
    for (int f = 0; f < FORMS; f++) seconds[f] = forms[f]->estimate(context, network, why, size);
    while (true) {
        int best = -1;
        for (int f = 0; f < FORMS; f++)
            if (seconds[f] > 0 && (best < 0 || seconds[f] < seconds[best])) best = f;
        if (best < 0) return NULL;
        if (!forced && seconds[best] > graph) {
            snprintf(why, size, "a step would take %.0f us, and %.0f us in a graph", 1e6 * seconds[best],
                     1e6 * graph);
            return NULL;
        }
        fused_instance *instance = open_form(forms[best], context, network, why, size);
        if (instance) return new_state(instance, seconds[best], why, size);
        seconds[best] = 0;
    }
}

static void fused_close(void *opaque) {
    fused_state *state = (fused_state *)opaque;
    state->instance->close(state->instance);
    free(state);
}

static size_t fused_run(void *opaque, size_t first, size_t count, const volatile sig_atomic_t *stop,
                        struct fused_times *times) {
    fused_state *state = (fused_state *)opaque;
    static const double LONGEST = 0.5; /* expected seconds of a launch, which cannot be interrupted */
    (void)stop;
    (void)times;
    const double most = LONGEST / state->seconds;
    const size_t fit = most < 1 ? 1 : (double)count > most ? (size_t)most : count;
    return state->instance->run(state->instance, first, fit);
}

static bool fused_may_end(void *opaque, size_t step) {
    const size_t longest = ((fused_state *)opaque)->instance->longest;
    return !longest || step % longest == 0;
}

static void fused_describe(void *opaque, char *text, size_t size) {
    const fused_state *state = (const fused_state *)opaque;
    state->instance->describe(state->instance, text, size);
    const size_t used = strlen(text);
    snprintf(text + used, size - used, ", expected %.1f us a step", 1e6 * state->seconds);
}

static void fused_explain(void *opaque, const struct fused_network *network, char *text, size_t size) {
    const tuned_context *context = (const tuned_context *)opaque;
    char why[256];
    size_t used = 0;
    if (!cuda_launches_cooperatively()) {
        snprintf(text, size, "no, %s\n", NO_COOPERATIVE_LAUNCH);
        return;
    }
    const auto add = [&](const char *name, double seconds) {
        if (used >= size) return;
        used += seconds > 0
                    ? snprintf(text + used, size - used, "%s: %.1f us a step expected\n", name, 1e6 * seconds)
                    : snprintf(text + used, size - used, "%s: no, %s\n", name, why);
    };
    for (const fused_form *form : forms) add(form->name, form->estimate(context, network, why, sizeof why));
    add("against a graph", graph_seconds(network));
}

const struct gemm_fused cuda_fused = {.open = fused_open,
                                      .close = fused_close,
                                      .run = fused_run,
                                      .may_end = fused_may_end,
                                      .describe = fused_describe,
                                      .explain = fused_explain};
