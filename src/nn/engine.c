#include "src/nn/engine.h"

#include <math.h>
#include <stdio.h>

#include "kernels/fused.h"
#include "src/base/text.h"

/* Steps of a graph, or in one launch of a kernel: a node of a graph takes about a kilobyte, and a step a
   dozen nodes. */
enum { LONGEST_LAUNCH = 4096 };

/* Forward and back through what `input` is: the images of the batch or, after that, those images attacked. */
static enum status there_and_back(struct trainer *trainer, size_t step, size_t rows, bool attacked) {
    struct mlp *mlp = &trainer->mlp;
    struct device *device = &trainer->compute->device;
    const struct mlp_layer *last = mlp_last(mlp);
    const struct step_scalars *at = trainer->scalars + step;
    const enum status status = mlp_forward(mlp, rows, at);
    if (status) return status;
    mlp->ops->softmax_cross_entropy(device->ops_context, rows, last->out, trainer->config->label_smoothing,
                                    last->output, mlp->labels, last->grad,
                                    attacked ? NULL : trainer->losses + step, trainer->tally, !attacked);
    device_lap(device, PART_ELEMENTWISE);
    return mlp_backward(mlp, rows, at, attacked ? 0.5 : 0);
}

enum status engine_gradients(struct trainer *trainer, size_t step, size_t rows) {
    struct mlp *mlp = &trainer->mlp;
    struct device *device = &trainer->compute->device;
    mlp->ops->gather(device->ops_context, rows, trainer->train.features, trainer->train.range,
                     trainer->train.images, trainer->train.labels, trainer->order + step * trainer->batch,
                     mlp->input, mlp->labels);
    device_lap(device, PART_BATCH);
    enum status status = there_and_back(trainer, step, rows, false);
    if (mlp->adversarial == 0) return status;
    if (!status) status = mlp_attack(mlp, rows);
    return status ? status : there_and_back(trainer, step, rows, true);
}

static enum status eager_run(struct trainer *trainer, size_t first, size_t *count) {
    for (size_t step = first; step < first + *count; step++) {
        const enum status status = engine_gradients(trainer, step, engine_rows(trainer, step));
        if (status) return status;
        optimizer_step(&trainer->optimizer, &trainer->mlp, trainer->scalars + step, trainer->tally);
    }
    return STATUS_OK;
}

const struct engine engine_eager = {.name = "eager", .run = eager_run};

/* --- graph --- */

static enum status graph_prepare(struct trainer *trainer) {
    struct device *device = &trainer->compute->device;
    enum status status = device->driver->begin_capture(device);
    if (status) return status;
    size_t all = trainer->steps;
    status = eager_run(trainer, 0, &all);
    const enum status ended = device->driver->end_capture(device, &trainer->engine_state);
    return status ? status : ended;
}

static enum status graph_run(struct trainer *trainer, size_t first, size_t *count) {
    struct device *device = &trainer->compute->device;
    if (*count != trainer->steps)
        return eager_run(trainer, first, count); /* the rest of an interrupted epoch */
    const enum status status = device->driver->replay(device, trainer->engine_state);
    device_lap(device, PART_STEPS);
    return status;
}

static void graph_close(struct trainer *trainer) {
    struct device *device = &trainer->compute->device;
    if (trainer->engine_state) device->driver->free_graph(device, trainer->engine_state);
}

const struct engine engine_graph = {.name = "graph",
                                    .stride = LONGEST_LAUNCH,
                                    .prepare = graph_prepare,
                                    .run = graph_run,
                                    .close = graph_close};

/* --- fused --- */

/* Of one call on the host: often enough to show progress. The backend looks at trainer->stop itself, step by
   step. */
static const double HOST_SECONDS = 0.2;

static size_t next_stride(double seconds, size_t steps) {
    const double fit = HOST_SECONDS * (double)steps / fmax(seconds, 1e-9);
    return fit < 1 ? 1 : fit > LONGEST_LAUNCH ? LONGEST_LAUNCH : (size_t)fit;
}

static struct fused_network network_of(const struct trainer *trainer) {
    const struct mlp *mlp = &trainer->mlp;
    const struct update *update = &trainer->optimizer.update;
    struct fused_network network = {.dtype = mlp->dtype,
                                    .precision = trainer->compute->precision,
                                    .depth = mlp->depth,
                                    .momentum = update->momentum,
                                    .weight_decay = update->weight_decay,
                                    .batch = trainer->batch,
                                    .count = trainer->train.count,
                                    .features = trainer->train.features,
                                    .range = trainer->train.range,
                                    .images = trainer->train.images,
                                    .labels = trainer->train.labels,
                                    .order = trainer->order,
                                    .scalars = trainer->scalars,
                                    .losses = trainer->losses,
                                    .tally = trainer->tally,
                                    .share = (size_t)trainer->config->ensemble};
    for (size_t l = 0; l < mlp->depth; l++) {
        const struct mlp_layer *layer = &mlp->layer[l];
        struct fused_layer *to = &network.layer[l];
        *to = (struct fused_layer){layer->in,     layer->out,  layer->ld, layer->activation,
                                   layer->weight, layer->bias, NULL,      NULL};
        if (!update->moment1) continue;
        to->weight_velocity = mlp_counterpart(mlp, layer->weight, update->moment1);
        to->bias_velocity = mlp_counterpart(mlp, layer->bias, update->moment1);
    }
    return network;
}

/* What no fused step has, of what the recipe asks for; NULL: nothing. */
static const char *beyond_fused(const struct config *config) {
    if (config->optimizer != OPTIMIZER_SGD) return config_choice("optimizer", config->optimizer);
    if (config->nesterov) return "nesterov";
    if (config->dropout > 0 || config->input_dropout > 0) return "dropout";
    if (config->label_smoothing > 0) return "label smoothing";
    if (config->adversarial > 0) return "adversarial training";
    if (config->clip_norm > 0) return "clipping by norm";
    if (config->max_norm > 0) return "max-norm";
    if (config->ema_decay > 0) return "moving average of the weights";
    return NULL;
}

/* Is there one to ask? If not, the reason is in `why`. */
static bool fused_there(const struct trainer *trainer, char *why, size_t size) {
    const struct compute *compute = trainer->compute;
    const struct gemm_backend *backend = compute->backend;
    if (!backend->fused || !compute->context) {
        snprintf(why, size, "backend '%s' has none%s", backend->name,
                 backend->fused ? " with --residency host" : "");
    } else if (beyond_fused(trainer->config)) {
        snprintf(why, size, "it has no %s, but SGD with momentum and weight decay",
                 beyond_fused(trainer->config));
    } else {
        return true;
    }
    return false;
}

/* True, or false with the reason in `why`. */
static bool fused_open(struct trainer *trainer, char *why, size_t size) {
    const struct compute *compute = trainer->compute;
    if (!fused_there(trainer, why, size)) return false;
    const struct fused_network network = network_of(trainer);
    const bool forced = trainer->config->engine == ENGINE_FUSED;
    trainer->engine_state = compute->backend->fused->open(compute->context, &network, forced, why, size);
    return trainer->engine_state != NULL;
}

/* What the steps did with their time, as the backend says. */
static void take_times(const struct trainer *trainer, size_t first, size_t count,
                       const struct fused_times *times) {
    static const enum profile_part part[] = {PART_GEMM_NN, PART_GEMM_TN, PART_GEMM_NT};
    struct profile *profile = trainer->compute->device.profile;
    size_t images = 0;
    for (size_t step = first; step < first + count; step++) images += engine_rows(trainer, step);
    for (size_t op = 0; op < PROFILE_OPS; op++)
        for (size_t l = op == 2; l < trainer->mlp.depth; l++) {
            const struct mlp_layer *layer = &trainer->mlp.layer[l];
            profile_take(profile, profile_gemm_slot(part[op], l, images, layer->in, layer->out),
                         times->gemm[op][l]);
            if (!profile->diverted) profile->gemm[op][l].calls += count - 1;
        }
    profile_take(profile, (struct profile_slot){.part = PART_BATCH}, times->batch);
    profile_take(profile, (struct profile_slot){.part = PART_ELEMENTWISE}, times->elementwise);
}

static enum status fused_run(struct trainer *trainer, size_t first, size_t *count) {
    struct compute *compute = trainer->compute;
    const struct gemm_fused *fused = compute->backend->fused;
    struct fused_times times = {0};
    const bool host = compute->device.driver->host_memory;
    const size_t limit = trainer->engine_stride ? trainer->engine_stride : 1;
    if (host && *count > limit) *count = limit;
    const double start = clock_seconds();
    *count = fused->run(trainer->engine_state, first, *count, trainer->stop, &times);
    if (!*count)
        return status_set(STATUS_FAILED, "engine fused of backend '%s': %s", compute->backend->name,
                          compute->backend->error(compute->context));
    mlp_parameters_changed(&trainer->mlp); /* those who ask how well it does multiply with them */
    trainer->engine_stride = next_stride(clock_seconds() - start, *count);
    if (!host) {
        device_lap(&compute->device, PART_STEPS);
    } else if (compute->device.profile) {
        take_times(trainer, first, *count, &times);
    }
    return STATUS_OK;
}

static void fused_close(struct trainer *trainer) {
    if (trainer->engine_state) trainer->compute->backend->fused->close(trainer->engine_state);
}

const struct engine engine_fused = {
    .name = "fused", .stride = LONGEST_LAUNCH, .run = fused_run, .close = fused_close};

/* Can epochs be captured here? If not, the reason is in `why`. */
static bool graph_there(const struct trainer *trainer, char *why, size_t size) {
    const struct device_driver *driver = trainer->compute->device.driver;
    if (!driver->begin_capture) {
        snprintf(why, size, "it needs a CUDA backend with --residency device, and tensors live on the %s",
                 driver->name);
    } else if (trainer->steps > LONGEST_LAUNCH) {
        snprintf(why, size, "it takes epochs of up to %d steps, and this one has %zu (--batch-size)",
                 LONGEST_LAUNCH, trainer->steps);
    } else {
        return true;
    }
    return false;
}

enum status engine_select(struct trainer *trainer, const struct engine **engine) {
    const enum engine_choice choice = (enum engine_choice)trainer->config->engine;
    char why[256] = "";
    *engine = &engine_fused;
    if ((choice == ENGINE_AUTO || choice == ENGINE_FUSED) && fused_open(trainer, why, sizeof why))
        return STATUS_OK;
    if (choice == ENGINE_FUSED)
        snprintf(trainer->notice, sizeof trainer->notice,
                 "engine fused cannot be used here: %s; eager instead", why);
    *engine = &engine_graph;
    if ((choice == ENGINE_AUTO || choice == ENGINE_GRAPH) && graph_there(trainer, why, sizeof why))
        return STATUS_OK;
    *engine = &engine_eager;
    if (choice != ENGINE_GRAPH) return STATUS_OK;
    return status_set(STATUS_UNAVAILABLE, "engine graph cannot be used here: %s; use --engine eager", why);
}

void engine_describe(const struct trainer *trainer, char *text, size_t size) {
    const struct gemm_fused *fused = trainer->compute->backend->fused;
    char how[128] = "";
    if (trainer->engine == &engine_fused) {
        if (fused->describe) fused->describe(trainer->engine_state, how, sizeof how);
    } else if (fused && trainer->config->engine == ENGINE_AUTO && beyond_fused(trainer->config)) {
        snprintf(how, sizeof how, "fused has no %s", beyond_fused(trainer->config));
    }
    snprintf(text, size, "%s%s%s%s", trainer->engine->name, how[0] ? " (" : "", how, how[0] ? ")" : "");
}

void engine_explain(const struct trainer *trainer, char *text, size_t size) {
    const struct gemm_fused *fused = trainer->compute->backend->fused;
    char why[256] = "", ways[1024] = "";
    text[0] = '\0';
    if (!fused_there(trainer, why, sizeof why)) {
        text_append(text, size, "fused: no, %s\n", why);
    } else if (fused->explain) {
        const struct fused_network network = network_of(trainer);
        fused->explain(trainer->compute->context, &network, ways, sizeof ways);
        for (char *line = ways; *line; line += strcspn(line, "\n") + 1)
            text_append(text, size, "fused, %.*s\n", (int)strcspn(line, "\n"), line);
    } else {
        text_append(text, size, "fused: yes\n");
    }
    const bool captures = graph_there(trainer, why, sizeof why);
    text_append(text, size, "graph: %s%s\neager: yes\n", captures ? "yes" : "no, ", captures ? "" : why);
    text_append(text, size, "--engine %s takes %s\n", config_choice("engine", trainer->config->engine),
                trainer->engine->name);
}
