/* The slot `fused` of cuda-tuned: which form takes a network, if any. */
#include <stdlib.h>

#include "kernels/cuda/persistent/fused.cuh"

struct fused_state {
    const fused_form *form;
    double seconds; /* of a step, as expected */
    void *state;
};

static const fused_form *const forms[] = {&fused_resident, &fused_whole, &fused_pair, &fused_phases};
static const int FORMS = sizeof forms / sizeof *forms;

/* Seconds of a step op by op, in a captured graph: 4 us a launch, and what the library needs for large
   products (FLOP/s measured with 784-2048-2048-10 at batch 8,192), which networks that train at once wait for
   in turn. */
static double seconds_by_op(const fused_network *network) {
    double flops = 0;
    for (size_t l = 0; l < network->depth; l++)
        flops += (l ? 6.0 : 4.0) * (double)(network->batch * network->layer[l].in * network->layer[l].out);
    const double networks = network->concurrent_networks ? (double)network->concurrent_networks : 1;
    const double rate = network->dtype == GEMM_F64              ? 40e12
                        : network->precision == GEMM_TF32       ? 200e12
                        : network->precision == GEMM_MIXED_BF16 ? 390e12
                                                                : 45e12;
    return 4e-6 * (double)(3 * network->depth + 2) + networks * flops / rate;
}

static const char *const APART =
    "this GPU cannot keep all blocks of a kernel running at once (cooperative launch)";

static bool launches_together(void) {
    int device = 0, can = 0;
    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&can, cudaDevAttrCooperativeLaunch, device) == cudaSuccess && can;
}

/* The form's state; if there is none, the backend goes on as if nothing had been tried. */
static void *open_form(const fused_form *form, tuned_context *context, const fused_network *network,
                       char *why, size_t size) {
    const cuda_fault before = context->fault;
    void *state = form->open(context, network, why, size);
    if (state) return state;
    context->fault = before;
    cudaGetLastError(); /* not sticky */
    return NULL;
}

static fused_state *keep(fused_state best, char *why, size_t size) {
    fused_state *state = (fused_state *)malloc(sizeof *state);
    if (state) {
        *state = best;
    } else {
        snprintf(why, size, "out of memory");
        best.form->close(best.state);
    }
    return state;
}

/* The best form, or the next best if that one cannot be opened. */
static void *fused_open(void *opaque, const struct fused_network *network, bool forced, char *why,
                        size_t size) {
    tuned_context *context = (tuned_context *)opaque;
    const double otherwise = seconds_by_op(network);
    double seconds[FORMS];
    if (!launches_together()) {
        snprintf(why, size, "%s", APART);
        return NULL;
    }
    for (int f = 0; f < FORMS; f++) seconds[f] = forms[f]->estimate(context, network, why, size);
    while (true) {
        int best = -1;
        for (int f = 0; f < FORMS; f++)
            if (seconds[f] > 0 && (best < 0 || seconds[f] < seconds[best])) best = f;
        if (best < 0) return NULL;
        if (!forced && seconds[best] > otherwise) {
            snprintf(why, size, "a step would take %.0f us, and %.0f us op by op", 1e6 * seconds[best],
                     1e6 * otherwise);
            return NULL;
        }
        void *state = open_form(forms[best], context, network, why, size);
        if (state) return keep({forms[best], seconds[best], state}, why, size);
        seconds[best] = 0;
    }
}

static void fused_close(void *opaque) {
    fused_state *state = (fused_state *)opaque;
    state->form->close(state->state);
    free(state);
}

static size_t fused_run(void *opaque, size_t first, size_t count, const volatile sig_atomic_t *stop,
                        struct fused_times *times) {
    fused_state *state = (fused_state *)opaque;
    static const double LONGEST = 0.5; /* seconds of a launch, as expected: so long nobody can stop it */
    (void)stop;
    (void)times;
    const double most = LONGEST / state->seconds;
    const size_t fit = most < 1 ? 1 : (double)count > most ? (size_t)most : count;
    return state->form->run(state->state, first, fit);
}

static void fused_describe(void *opaque, char *text, size_t size) {
    const fused_state *state = (const fused_state *)opaque;
    state->form->describe(state->state, text, size);
    const size_t used = strlen(text);
    snprintf(text + used, size - used, ", expected %.1f us a step", 1e6 * state->seconds);
}

static void fused_explain(void *opaque, const struct fused_network *network, char *text, size_t size) {
    const tuned_context *context = (const tuned_context *)opaque;
    char why[256];
    size_t used = 0;
    if (!launches_together()) {
        snprintf(text, size, "no, %s\n", APART);
        return;
    }
    const auto add = [&](const char *name, double seconds) {
        if (used >= size) return;
        used += seconds > 0
                    ? snprintf(text + used, size - used, "%s: %.1f us a step expected\n", name, 1e6 * seconds)
                    : snprintf(text + used, size - used, "%s: no, %s\n", name, why);
    };
    for (const fused_form *form : forms) add(form->name, form->estimate(context, network, why, sizeof why));
    add("against a graph", seconds_by_op(network));
}

const struct gemm_fused cuda_fused = {.open = fused_open,
                                      .close = fused_close,
                                      .run = fused_run,
                                      .describe = fused_describe,
                                      .explain = fused_explain};
