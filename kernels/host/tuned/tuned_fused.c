/* Engine fused on the host: one team of threads for as many steps as are asked for, on the products of
   `tuned`.

   Idea       bias and activation, the way back through it, and the update are done on a tile while it is in
              the L1 cache; threads meet at a barrier where they need each other's results, 3 times a step of
              two layers (4 times where they share the pixels), instead of a fork and join for every op.
   Phases     forward, a barrier after each layer but the last: of a small batch a thread has some columns of
              W. last layer, its loss, and the way back through it: a thread has some rows of the batch, and
              needs nobody. back through the others, a barrier after each, and then the update of that layer:
              in a small batch a thread has the same columns of W as before, so they stay in its cache.
   Weights    of a small batch in panels from step to step, and back in their place after each call: forward
              reads them as they are, and the update writes whole lines of one thread. As rows, half of each
              page belongs to another thread, whose lines the prefetchers fetched: two threads took 8 %
              longer.
   Pixels every thread converts a small batch for itself: 100 KB of uint8 are read faster than 400 KB of
   another core's floats.
   Floor 784-128-10 at batch 128: 52 MFLOP, 148 us on two threads of 177 GFLOP/s each; 3 barriers, 1 us;
   pixels, 3 us.
   Same bits  for any number of threads: every sum has one order.
   Run        ./train --backend tuned --engine fused */
#include <math.h>
#include <string.h>
#include <time.h>
#ifdef _OPENMP
#    include <omp.h>
#endif

#include "kernels/activation.h"
#include "kernels/host/ops/ops.h"
#include "kernels/host/tuned/tuned_fused.h"

#define LOAD(x) (x)
#define STORE(x) (x)
#define REAL float
#define STORED float
#define NAME(x) x##_f32
#include "kernels/host/tuned/tuned_fused.inc"
#undef REAL
#undef STORED
#undef NAME
#define REAL double
#define STORED double
#define NAME(x) x##_f64
#include "kernels/host/tuned/tuned_fused.inc"

/* --- one thread's part of a step --- */

/* Who works on what; and the time, which the first thread alone keeps. */
struct worker {
    const struct tuned_fused_state *state;
    size_t me, team;
    struct fused_times *times; /* NULL: another thread */
    double last;
    const volatile sig_atomic_t *stop;
    bool *halt; /* no step after this one: decided by one for all, between two barriers */
};

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void lap(struct worker *worker, size_t offset) {
    if (!worker->times) return;
    const double time = now();
    *(double *)((char *)worker->times + offset) += time - worker->last;
    worker->last = time;
}

#define LAP_GEMM(op, l) \
    (offsetof(struct fused_times, gemm) + ((size_t)(op)*FUSED_MAX_LAYERS + (l)) * sizeof(double))
#define LAP_ELEMENTWISE offsetof(struct fused_times, elementwise)
#define LAP_BATCH offsetof(struct fused_times, batch)

static size_t begin(size_t count, size_t parts, size_t part) {
    return count * part / parts;
}

static void wait_for_all(void) {
#pragma omp barrier
}

/* This worker's part of a plan. */
static void run_part(const struct worker *worker, const struct gemm_call *call,
                     const struct tuned_plan *plan) {
    const struct tuned_context *tuned = worker->state->tuned;
    if (worker->me < plan->row_parts * plan->col_parts && call->m && call->n)
        worker->state->code->part(call, plan, worker->me, tuned->workspace + worker->me * tuned->stride);
}

/* The whole of it, whatever the others do. It is a slice of a product of `rows` rows, and cut as that would
   be: for its bits. */
static void run_alone(const struct worker *worker, const struct gemm_call *call, size_t rows) {
    const struct tuned_context *tuned = worker->state->tuned;
    struct gemm_call whole = *call;
    whole.m = rows;
    const struct tuned_plan plan = tuned_plan_for(worker->state->code, &whole, 1);
    if (call->m && call->n)
        worker->state->code->part(call, &plan, 0, tuned->workspace + worker->me * tuned->stride);
}

/* Rows first .. end - 1 of a matrix of `cols` columns. */
static char *row_of(const struct tuned_fused_state *state, const void *matrix, size_t cols, size_t row) {
    return (char *)matrix + row * cols * state->code->size;
}

static char *pixels_of(const struct worker *worker) {
    return worker->state->input + worker->me * worker->state->input_stride;
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

static size_t panel_if_kept(const struct worker *worker, size_t l) {
    return worker->state->layer[l].panels ? panel_of(worker->state, l) : 0;
}

/* This worker's panels of all layers, from the weights or back to them. */
static void move_weights(const struct worker *worker, bool home) {
    const struct tuned_fused_state *state = worker->state;
    const size_t size = state->code->size, wide = state->code->cols;
    for (size_t l = 0; l < state->network.depth; l++) {
        if (!state->layer[l].panels) continue;
        const struct fused_layer *layer = &state->network.layer[l];
        const size_t count = panels_of(state, l), first = begin(count, worker->team, worker->me),
                     end = begin(count, worker->team, worker->me + 1);
        for (size_t r = 0; r < layer->in; r++)
            for (size_t p = first; p < end; p++) {
                const size_t left = layer->out - p * wide, bytes = (left < wide ? left : wide) * size;
                char *panel = (char *)state->layer[l].panels + (p * panel_of(state, l) + r * wide) * size,
                     *row = (char *)layer->weight + (r * layer->out + p * wide) * size;
                memcpy(home ? row : panel, home ? panel : row, bytes);
            }
    }
}

/* How the team shares a product with W: small batches by columns, so that a thread's part of W stays in its
   cache from step to step. */
static struct tuned_plan plan_for(const struct worker *worker, const struct gemm_call *call) {
    const struct tuned_fused_state *state = worker->state;
    return state->network.batch <= ALONE ? tuned_plan_by_columns(state->code, call, worker->team)
                                         : tuned_plan_for(state->code, call, worker->team);
}

/* Y = act(X W + b) for rows first .. end - 1 of `rows`: all of them in parts by columns, or these by this
   worker alone. */
static void forward(const struct worker *worker, size_t l, size_t rows, size_t first, size_t end,
                    bool alone) {
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
    if (alone) {
        run_alone(worker, &call, rows);
    } else {
        struct tuned_plan plan = plan_for(worker, &call);
        plan.b_panel = panel_if_kept(worker, l);
        run_part(worker, &call, &plan);
    }
}

/* dL/dZ of layer l - 1 from that of layer l, for some rows, in the same two ways. */
static void back(const struct worker *worker, size_t l, size_t rows, size_t first, size_t end, bool alone) {
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
    if (alone) {
        run_alone(worker, &call, rows);
    } else {
        struct tuned_plan plan = tuned_plan_for(state->code, &call, worker->team);
        plan.b_panel = panel_if_kept(worker, l);
        run_part(worker, &call, &plan);
    }
}

static void update(const struct worker *worker, size_t l, size_t rows, double rate) {
    const struct tuned_fused_state *state = worker->state;
    const struct fused_network *network = &state->network;
    const struct fused_layer *layer = &network->layer[l];
    const bool plain = is_plain(network);
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
    plan.sums = plain ? NULL : state->layer[l].gradient;
    plan.c_panel = panel_if_kept(worker, l);
    run_part(worker, &call, &plan);
    const size_t first = begin(layer->out, worker->team, worker->me),
                 end = begin(layer->out, worker->team, worker->me + 1);
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

/* The pixels and labels of a step, where this worker needs them. */
static void fetch(const struct worker *worker, size_t step) {
    const struct tuned_fused_state *state = worker->state;
    const struct fused_network *network = &state->network;
    struct host_ops_context one = {.threads = 1};
    const size_t rows = rows_of(network, step), share = state->input_stride ? 1 : worker->team,
                 part = state->input_stride ? 0 : worker->me;
    const size_t first = begin(rows, share, part), count = begin(rows, share, part + 1) - first;
    state->ops->gather(&one, count, network->features, network->range, network->images, network->labels,
                       network->order + step * network->batch + first,
                       row_of(state, pixels_of(worker), network->features, first), labels_of(worker) + first);
}

/* The last layer, its loss and the way back, for this worker's rows: some at a time, whose inputs are in the
   L2 cache still when their gradients need them. But all at once where there are many classes, for each of
   the products packs W. */
static void turn(struct worker *worker, size_t rows) {
    const struct tuned_fused_state *state = worker->state;
    const struct fused_network *network = &state->network;
    const size_t last = network->depth - 1, end = begin(rows, worker->team, worker->me + 1);
    const struct fused_layer *layer = &network->layer[last];
    const size_t some = layer->out > TUNED_FEW ? rows : tuned_rows_in_cache(state->code, layer->in);
    size_t correct = 0;
    bool finite = true;
    for (size_t first = begin(rows, worker->team, worker->me); first < end; first += some) {
        const size_t stop = end - first < some ? end : first + some;
        forward(worker, last, rows, first, stop, true);
        lap(worker, LAP_GEMM(GEMM_NN, last));
        finite &= network->dtype == GEMM_F32
                      ? loss_rows_f32(state, labels_of(worker), rows, first, stop, &correct)
                      : loss_rows_f64(state, labels_of(worker), rows, first, stop, &correct);
        lap(worker, LAP_ELEMENTWISE);
        if (last) back(worker, last, rows, first, stop, true);
        lap(worker, LAP_GEMM(GEMM_NT, last));
    }
    state->correct[worker->me] = correct;
    state->finite[worker->me] = finite;
}

/* What the batch did, and whether to go on: by one worker for all. */
static void count_up(const struct worker *worker, size_t step, size_t rows, bool finite) {
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

/* After a loss that is not finite nothing is updated. */
static void run_step(struct worker *worker, size_t step, bool another) {
    const struct tuned_fused_state *state = worker->state;
    const struct fused_network *network = &state->network;
    const size_t rows = rows_of(network, step), last = network->depth - 1;
    bool finite = true;
    for (size_t l = 0; l < last; l++) {
        forward(worker, l, rows, 0, rows, false);
        wait_for_all();
        lap(worker, LAP_GEMM(GEMM_NN, l));
    }
    turn(worker, rows);
    wait_for_all();
    lap(worker, LAP_ELEMENTWISE);
    for (size_t t = 0; t < worker->team; t++) finite &= state->finite[t];
    const double rate = network->scalars[step].learning_rate;
    for (size_t l = last + 1; l-- > 0;) {
        if (l < last && l > 0) {
            back(worker, l, rows, 0, rows, false);
            wait_for_all();
            lap(worker, LAP_GEMM(GEMM_NT, l));
        }
        /* what it reads is not long ago, and nobody needs its W any more */
        if (finite) update(worker, l, rows, rate);
        lap(worker, LAP_GEMM(GEMM_TN, l));
    }
    if (worker->me == 0) count_up(worker, step, rows, finite);
    lap(worker, LAP_ELEMENTWISE);
    if (!state->input_stride) wait_for_all(); /* they read the pixels still */
    if (another) fetch(worker, step + 1);
    wait_for_all();
    lap(worker, LAP_BATCH);
}

size_t tuned_fused_run(void *opaque, size_t first, size_t count, const volatile sig_atomic_t *stop,
                       struct fused_times *times) {
    const struct tuned_fused_state *state = opaque;
    size_t done = 0;
    bool halt = false;
    const size_t now_set = (size_t)state->tuned->threads;
    const int threads = (int)(state->threads < now_set ? state->threads : now_set);
    (void)threads; /* without OpenMP */
    const double start = now();
    double end =
        start; /* of the last lap: what comes after it are weights that go home, and waiting for the team */
#pragma omp parallel num_threads(threads)
    {
        struct worker worker = {.state = state, .team = 1, .last = start, .stop = stop, .halt = &halt};
#ifdef _OPENMP
        worker.me = (size_t)omp_get_thread_num();
        worker.team = (size_t)omp_get_num_threads();
#endif
        worker.times = worker.me == 0 ? times : NULL;
        move_weights(&worker, false);
        lap(&worker, LAP_ELEMENTWISE);
        fetch(&worker, first);
        wait_for_all();
        lap(&worker, LAP_BATCH);
        size_t step = first;
        do {
            run_step(&worker, step, step + 1 < first + count);
            step++;
        } while (step < first + count && !halt);
        move_weights(&worker, true);
        if (worker.me == 0) {
            done = step - first;
            end = worker.last;
        }
    }
    times->elementwise += now() - end;
    return done;
}
