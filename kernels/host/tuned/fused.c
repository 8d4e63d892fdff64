/* Engine fused on the host: one team of threads runs many steps on the products of `tuned`.

   Idea       bias and activation, the backward epilogue and the update run on a micro-tile while it is in the
              L1 cache. A step of two layers has 3 barriers (4 if the threads share the pixels), where eager
              forks and joins for every op.
   Stages     forward, a barrier after each layer but the last; in a small batch a thread computes columns of
              W. Output layer, loss and input gradient: a thread computes rows of the batch, without barriers.
              Backward, a barrier after each input gradient, then that layer's update: in a small batch the
              same columns of W, which are still in the thread's cache.
   Weights    of a small batch are packed as micro-panels while steps run (fused.h): on two threads, W stored
              by rows takes 8 % longer.
   Pixels     of a small batch are converted by every thread: reading 100 KB of uint8 is faster than 400 KB of
              floats from another core's cache.
   Bound by   FMA: 784-128-10 at batch 128 is 52 MFLOP, 148 us on two threads of 177 GFLOP/s each; 3 barriers
              are 1 us. A step takes 210 us, 23 to 26 of them for pixels (docs/cpu-gemm.md).
   Same bits  for any number of threads: every sum has one order.
   Neighbours beside busy processes fewer threads can be faster: team_size.h decides between two calls.
   Improves   engine eager on `tuned`
   Run        ./train --backend tuned --engine fused */
#include <math.h>
#include <string.h>
#include <time.h>
#ifdef _OPENMP
#    include <omp.h>
#endif

#include "kernels/activation.h"
#include "kernels/host/ops/ops.h"
#include "kernels/host/team.h"
#include "kernels/host/tuned/fused.h"
#include "kernels/host/tuned/fused_rows.h"
#define ELEMENT_BITS 64
#include "kernels/host/element.h"
#include "kernels/host/tuned/fused_rows.h"

/* --- one thread's part of a step --- */

/* A thread of the team. */
struct worker {
    const struct tuned_fused_state *state;
    size_t rank, team;
    struct team *barrier;
    struct fused_times *times; /* rank 0; NULL for the others */
    double last;               /* end of the previous stage */
    const volatile sig_atomic_t *stop;
    bool *halt; /* shared: no further step; rank 0 writes it between two barriers */
};

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void stage_end(struct worker *worker, size_t offset) {
    if (!worker->times) return;
    const double time = now();
    *(double *)((char *)worker->times + offset) += time - worker->last;
    worker->last = time;
}

#define STAGE_GEMM(op, l) \
    (offsetof(struct fused_times, gemm) + ((size_t)(op)*FUSED_MAX_LAYERS + (l)) * sizeof(double))
#define STAGE_ELEMENTWISE offsetof(struct fused_times, elementwise)
#define STAGE_BATCH offsetof(struct fused_times, batch)

/* This thread's part of a plan. */
static void run_part(const struct worker *worker, const struct gemm_call *call,
                     const struct tuned_plan *plan) {
    const struct tuned_context *tuned = worker->state->tuned;
    if (worker->rank < plan->row_parts * plan->col_parts && call->m && call->n)
        worker->state->kernel->part(call, plan, worker->rank,
                                    tuned->workspace + worker->rank * tuned->stride);
}

/* The whole call on this thread. It is a slice of a product of `rows` rows, and has that product's plan: so
   the bits are the same. */
static void run_own_rows(const struct worker *worker, const struct gemm_call *call, size_t rows) {
    const struct tuned_context *tuned = worker->state->tuned;
    struct gemm_call whole = *call;
    whole.m = rows;
    const struct tuned_plan plan = tuned_plan_for(worker->state->kernel, &whole, 1);
    if (call->m && call->n)
        worker->state->kernel->part(call, &plan, 0, tuned->workspace + worker->rank * tuned->stride);
}

static char *row_of(const struct tuned_fused_state *state, const void *matrix, size_t cols, size_t row) {
    return (char *)matrix + row * cols * state->kernel->size;
}

static char *pixels_of(const struct worker *worker) {
    return worker->state->input + worker->rank * worker->state->input_stride;
}

static uint8_t *labels_of(const struct worker *worker) {
    const struct fused_network *network = &worker->state->network;
    return (uint8_t *)row_of(worker->state, pixels_of(worker), network->features, network->batch);
}

static const void *input_of(const struct worker *worker, size_t l) {
    return l ? worker->state->layer[l - 1].output : pixels_of(worker);
}

static void *weights_of(const struct worker *worker, size_t l) {
    void *panels = worker->state->layer[l].panels;
    return panels ? panels : worker->state->network.layer[l].weight;
}

static size_t weight_panel_stride(const struct worker *worker, size_t l) {
    return worker->state->layer[l].panels ? panel_elements(worker->state, l) : 0;
}

/* Packs this thread's micro-panels of all layers, or unpacks them into the weights. */
static void copy_weights(const struct worker *worker, bool unpack) {
    const struct tuned_fused_state *state = worker->state;
    const size_t size = state->kernel->size, wide = state->kernel->nr;
    for (size_t l = 0; l < state->network.depth; l++) {
        if (!state->layer[l].panels) continue;
        const struct fused_layer *layer = &state->network.layer[l];
        const size_t count = panel_count(state, l),
                     first = tuned_part_begin(count, worker->team, worker->rank),
                     end = tuned_part_begin(count, worker->team, worker->rank + 1);
        for (size_t r = 0; r < layer->in; r++)
            for (size_t p = first; p < end; p++) {
                const size_t left = layer->out - p * wide, bytes = (left < wide ? left : wide) * size;
                char *panel =
                         (char *)state->layer[l].panels + (p * panel_elements(state, l) + r * wide) * size,
                     *row = (char *)layer->weight + (r * layer->out + p * wide) * size;
                memcpy(unpack ? row : panel, unpack ? panel : row, bytes);
            }
    }
}

/* The team's plan for a product with W. A small batch is split along n, so that a thread's columns of W stay
   in its cache from step to step. */
static struct tuned_plan plan_for(const struct worker *worker, const struct gemm_call *call) {
    const struct tuned_fused_state *state = worker->state;
    return state->network.batch <= SMALL_BATCH ? tuned_plan_split_n(state->kernel, call, worker->team)
                                               : tuned_plan_for(state->kernel, call, worker->team);
}

/* Y = act(X W + b) for rows first .. end - 1 of a batch of `rows`: this thread's part of them, or all of them
   if they are its `own_rows`. */
static void forward(const struct worker *worker, size_t l, size_t rows, size_t first, size_t end,
                    bool own_rows) {
    const struct tuned_fused_state *state = worker->state;
    const struct fused_layer *layer = &state->network.layer[l];
    const struct tuned_fused_layer *to = &state->layer[l];
    void *pre = to->pre == to->output ? NULL : row_of(state, to->pre, layer->out, first);
    const struct gemm_epilogue epilogue = {.bias = layer->bias, .activation = layer->activation, .pre = pre};
    const struct gemm_call call = {.dtype = state->network.dtype,
                                   .op = GEMM_NN,
                                   .m = end - first,
                                   .n = layer->out,
                                   .k = layer->in,
                                   .alpha = 1,
                                   .a = row_of(state, input_of(worker, l), layer->in, first),
                                   .lda = layer->in,
                                   .b = weights_of(worker, l),
                                   .ldb = layer->out,
                                   .c = row_of(state, to->output, layer->out, first),
                                   .ldc = layer->out,
                                   .epilogue = &epilogue};
    if (own_rows) {
        run_own_rows(worker, &call, rows);
    } else {
        struct tuned_plan plan = plan_for(worker, &call);
        plan.b_panel_stride = weight_panel_stride(worker, l);
        run_part(worker, &call, &plan);
    }
}

/* dL/dZ of layer l - 1 from that of layer l, with the arguments of `forward`. */
static void input_gradient(const struct worker *worker, size_t l, size_t rows, size_t first, size_t end,
                           bool own_rows) {
    const struct tuned_fused_state *state = worker->state;
    const struct fused_layer *layer = &state->network.layer[l];
    const struct tuned_fused_layer *below = &state->layer[l - 1];
    const struct gemm_backward backward = {.activation = state->network.layer[l - 1].activation,
                                           .pre = row_of(state, below->pre, layer->in, first),
                                           .output = row_of(state, below->output, layer->in, first)};
    const struct gemm_call call = {.dtype = state->network.dtype,
                                   .op = GEMM_NT,
                                   .m = end - first,
                                   .n = layer->in,
                                   .k = layer->out,
                                   .alpha = 1,
                                   .a = row_of(state, state->layer[l].grad, layer->out, first),
                                   .lda = layer->out,
                                   .b = weights_of(worker, l),
                                   .ldb = layer->out,
                                   .c = row_of(state, below->grad, layer->in, first),
                                   .ldc = layer->in,
                                   .backward = &backward};
    if (own_rows) {
        run_own_rows(worker, &call, rows);
    } else {
        struct tuned_plan plan = tuned_plan_for(state->kernel, &call, worker->team);
        plan.b_panel_stride = weight_panel_stride(worker, l);
        run_part(worker, &call, &plan);
    }
}

static void update(const struct worker *worker, size_t l, size_t rows, double rate) {
    const struct tuned_fused_state *state = worker->state;
    const struct fused_network *network = &state->network;
    const struct fused_layer *layer = &network->layer[l];
    const bool plain = update_is_gemm(network);
    const struct tuned_update sgd = {.learning_rate = rate,
                                     .momentum = network->momentum,
                                     .weight_decay = network->weight_decay,
                                     .velocity = layer->weight_velocity};
    const struct gemm_call call = {.dtype = network->dtype,
                                   .op = GEMM_TN,
                                   .m = layer->in,
                                   .n = layer->out,
                                   .k = rows,
                                   .alpha = plain ? -rate : 1,
                                   .a = input_of(worker, l),
                                   .lda = layer->in,
                                   .b = state->layer[l].grad,
                                   .ldb = layer->out,
                                   .beta = plain,
                                   .c = weights_of(worker, l),
                                   .ldc = layer->out};
    struct tuned_plan plan = plan_for(worker, &call);
    plan.update = plain ? NULL : &sgd;
    plan.partial_sums = plain ? NULL : state->layer[l].weight_grad;
    plan.c_panel_stride = weight_panel_stride(worker, l);
    run_part(worker, &call, &plan);
    const size_t first = tuned_part_begin(layer->out, worker->team, worker->rank),
                 end = tuned_part_begin(layer->out, worker->team, worker->rank + 1);
    if (network->dtype == GEMM_F32) {
        update_bias_f32(state, l, rows, rate, first, end);
    } else {
        update_bias_f64(state, l, rows, rate, first, end);
    }
}

static size_t rows_of(const struct fused_network *network, size_t step) {
    const size_t left = network->count - step * network->batch;
    return left < network->batch ? left : network->batch;
}

/* Converts the pixels and labels of a step: all of them, or, if the threads share the input, this thread's
   part. */
static void gather_batch(const struct worker *worker, size_t step) {
    const struct tuned_fused_state *state = worker->state;
    const struct fused_network *network = &state->network;
    struct host_ops_context one = {.threads = 1};
    const size_t rows = rows_of(network, step), parts = state->input_stride ? 1 : worker->team,
                 part = state->input_stride ? 0 : worker->rank;
    const size_t first = tuned_part_begin(rows, parts, part),
                 count = tuned_part_begin(rows, parts, part + 1) - first;
    state->ops->gather(&one, count, network->features, network->range, network->images, network->labels,
                       network->order + step * network->batch + first,
                       row_of(state, pixels_of(worker), network->features, first), labels_of(worker) + first);
}

/* Forward pass of the last layer, loss, and input gradient, for this thread's rows. In chunks whose inputs
   stay in the L2 cache until their gradients need them; in one chunk if n is not small, because each product
   packs W. */
static void output_layer(struct worker *worker, size_t rows) {
    const struct tuned_fused_state *state = worker->state;
    const struct fused_network *network = &state->network;
    const size_t last = network->depth - 1, end = tuned_part_begin(rows, worker->team, worker->rank + 1);
    const struct fused_layer *layer = &network->layer[last];
    const size_t chunk = layer->out > TUNED_NARROW ? rows : tuned_rows_in_l2(state->kernel, layer->in);
    size_t correct = 0;
    bool finite = true;
    for (size_t first = tuned_part_begin(rows, worker->team, worker->rank); first < end; first += chunk) {
        const size_t stop = end - first < chunk ? end : first + chunk;
        forward(worker, last, rows, first, stop, true);
        stage_end(worker, STAGE_GEMM(GEMM_NN, last));
        finite &= network->dtype == GEMM_F32
                      ? loss_rows_f32(state, labels_of(worker), rows, first, stop, &correct)
                      : loss_rows_f64(state, labels_of(worker), rows, first, stop, &correct);
        stage_end(worker, STAGE_ELEMENTWISE);
        if (last) input_gradient(worker, last, rows, first, stop, true);
        stage_end(worker, STAGE_GEMM(GEMM_NT, last));
    }
    state->correct[worker->rank] = correct;
    state->finite[worker->rank] = finite;
}

/* Adds the step to the tally and decides whether the next one runs. On rank 0. */
static void tally_step(const struct worker *worker, size_t step, size_t rows, bool finite) {
    const struct tuned_fused_state *state = worker->state;
    struct tally *tally = state->network.tally;
    double sum = 0;
    for (size_t r = 0; r < rows; r++) sum += state->loss[r];
    for (size_t t = 0; t < worker->team; t++) tally->correct += state->correct[t];
    tally->loss_sum += sum;
    tally->images += rows;
    tally->batches++;
    if (!finite && !tally->bad_step) tally->bad_step = tally->batches;
    state->network.losses[step] = sum / (double)rows;
    *worker->halt = !finite || (worker->stop && *worker->stop);
}

/* If a loss is not finite, the step updates nothing. */
static void run_step(struct worker *worker, size_t step, bool more) {
    const struct tuned_fused_state *state = worker->state;
    const struct fused_network *network = &state->network;
    const size_t rows = rows_of(network, step), last = network->depth - 1;
    bool finite = true;
    for (size_t l = 0; l < last; l++) {
        forward(worker, l, rows, 0, rows, false);
        team_barrier(worker->barrier);
        stage_end(worker, STAGE_GEMM(GEMM_NN, l));
    }
    output_layer(worker, rows);
    team_barrier(worker->barrier);
    stage_end(worker, STAGE_ELEMENTWISE);
    for (size_t t = 0; t < worker->team; t++) finite &= state->finite[t];
    const double rate = network->scalars[step].learning_rate;
    for (size_t l = last + 1; l-- > 0;) {
        if (l < last && l > 0) {
            input_gradient(worker, l, rows, 0, rows, false);
            team_barrier(worker->barrier);
            stage_end(worker, STAGE_GEMM(GEMM_NT, l));
        }
        /* here its operands are still in the cache, and no thread reads this W any more */
        if (finite) update(worker, l, rows, rate);
        stage_end(worker, STAGE_GEMM(GEMM_TN, l));
    }
    if (worker->rank == 0) tally_step(worker, step, rows, finite);
    stage_end(worker, STAGE_ELEMENTWISE);
    if (!state->input_stride) team_barrier(worker->barrier); /* other threads may still read the pixels */
    if (more) gather_batch(worker, step + 1);
    team_barrier(worker->barrier);
    stage_end(worker, STAGE_BATCH);
}

enum { SETTLED_STEPS = 8 };

size_t tuned_fused_run(void *opaque, size_t first, size_t count, const volatile sig_atomic_t *stop,
                       struct fused_times *times) {
    struct tuned_fused_state *state = opaque;
    size_t done = 0;
    bool halt = false;
    const size_t current = (size_t)state->tuned->threads, wanted = team_size_next(&state->size);
    const int threads = (int)(wanted < current ? wanted : current);
    (void)threads; /* without OpenMP */
    struct team team;
    const double start = now();
    double end = start; /* of the last stage; then the weights are unpacked and the team joins */
#pragma omp parallel num_threads(threads)
    {
        struct worker worker = {
            .state = state, .team = 1, .barrier = &team, .last = start, .stop = stop, .halt = &halt};
#ifdef _OPENMP
        worker.rank = (size_t)omp_get_thread_num();
        worker.team = (size_t)omp_get_num_threads();
#endif
#pragma omp single
        team_init(&team, worker.team);
        worker.times = worker.rank == 0 ? times : NULL;
        copy_weights(&worker, false);
        stage_end(&worker, STAGE_ELEMENTWISE);
        gather_batch(&worker, first);
        team_barrier(&team);
        stage_end(&worker, STAGE_BATCH);
        size_t step = first;
        do {
            run_step(&worker, step, step + 1 < first + count);
            step++;
        } while (step < first + count && !halt);
        copy_weights(&worker, true);
        if (worker.rank == 0) {
            done = step - first;
            end = worker.last;
        }
    }
    const double stopped = now();
    times->elementwise += stopped - end;
    if (done >= SETTLED_STEPS && team.size == wanted) /* short calls mostly pack weights */
        team_size_measured(&state->size, (stopped - start) / (double)done,
                           team_lost(&team) / (stopped - start));
    return done;
}
