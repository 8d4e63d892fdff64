/* Engine fused: whole steps inside the backend. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/fused.h"
#include "src/base/text.h"
#include "src/nn/engine.h"

/* The duration of one call on the host, short enough to show progress often, and for the backend to change
   its number of threads. Within a call the backend reads trainer->stop after every step. */
static const double HOST_CALL_SECONDS = 0.05;

static size_t next_stride(double seconds, size_t steps) {
    const double fit = HOST_CALL_SECONDS * (double)steps / fmax(seconds, 1e-9);
    return fit < 1 ? 1 : fit > ENGINE_MAX_STEPS ? ENGINE_MAX_STEPS : (size_t)fit;
}

/* On this device; several processes may share the members of an ensemble. */
static size_t networks_of(const struct trainer *trainer) {
    const size_t networks = trainer->compute->networks;
    return networks ? networks : (size_t)trainer->config->ensemble;
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
                                    .order = trainer->feed.order,
                                    .scalars = trainer->feed.scalars,
                                    .losses = trainer->losses,
                                    .tally = trainer->tally,
                                    .concurrent_networks = networks_of(trainer)};
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

const char *engine_fused_unsupported(const struct config *config) {
    if (config->precision == GEMM_MIXED_F16) return "precision fp16";
    if (config->optimizer != UPDATE_SGD) return config_choice("optimizer", config->optimizer);
    if (config->nesterov) return "nesterov";
    if (config->dropout > 0 || config->input_dropout > 0) return "dropout";
    if (config->label_smoothing > 0) return "label smoothing";
    if (config->adversarial > 0) return "adversarial training";
    if (config->clip_norm > 0) return "clipping by norm";
    if (config->max_norm > 0) return "max-norm";
    if (config->ema_decay > 0) return "moving average of the weights";
    return NULL;
}

/* Does the backend have fused steps that support this recipe? If not, the reason is in `why`. */
static bool available(const struct trainer *trainer, char *why, size_t size) {
    const struct gemm_backend *backend = trainer->compute->backend;
    const char *unsupported = engine_fused_unsupported(trainer->config);
    if (!backend->fused || trainer->compute->residency == RESIDENCY_HOST) {
        snprintf(why, size, "backend '%s' has no fused steps%s", backend->name,
                 backend->fused ? " with --residency host" : "");
    } else if (unsupported) {
        snprintf(why, size, "it does not support %s, only SGD with momentum and weight decay", unsupported);
    } else {
        return true;
    }
    return false;
}

static bool open_fused(struct trainer *trainer, char *why, size_t size) {
    const struct compute *compute = trainer->compute;
    if (!available(trainer, why, size)) return false;
    const struct fused_network network = network_of(trainer);
    const bool forced = trainer->config->engine == ENGINE_FUSED;
    trainer->engine_state = compute->backend->fused->open(compute->context, &network, forced, why, size);
    return trainer->engine_state != NULL;
}

/* Adds the times that the backend measured to the profile. */
static void record_times(const struct trainer *trainer, size_t first, size_t count,
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

static enum status run(struct trainer *trainer, size_t first, size_t *count) {
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
    mlp_parameters_changed(&trainer->mlp); /* evaluation reads the low-precision copy */
    trainer->engine_stride = next_stride(clock_seconds() - start, *count);
    if (!host) {
        device_lap(&compute->device, PART_STEPS);
    } else if (compute->device.profile) {
        record_times(trainer, first, *count, &times);
    }
    return STATUS_OK;
}

static bool may_end(const struct trainer *trainer, size_t step) {
    const struct gemm_fused *fused = trainer->compute->backend->fused;
    return !fused->may_end || fused->may_end(trainer->engine_state, step);
}

static void close_fused(struct trainer *trainer) {
    if (trainer->engine_state) trainer->compute->backend->fused->close(trainer->engine_state);
}

void engine_fused_describe(const struct trainer *trainer, char *text, size_t size) {
    const struct gemm_fused *fused = trainer->compute->backend->fused;
    if (fused->describe) fused->describe(trainer->engine_state, text, size);
}

void engine_fused_explain(const struct trainer *trainer, char *text, size_t size) {
    char why[256] = "", variants[1024] = "";
    text[0] = '\0';
    if (!available(trainer, why, sizeof why)) {
        text_append(text, size, "fused: no, %s\n", why);
        return;
    }
    const struct gemm_fused *fused = trainer->compute->backend->fused;
    if (!fused->explain) {
        text_append(text, size, "fused: yes\n");
        return;
    }
    const struct fused_network network = network_of(trainer);
    fused->explain(trainer->compute->context, &network, variants, sizeof variants);
    for (char *line = variants; *line; line += text_line_length(line))
        text_append(text, size, "fused, %.*s\n", (int)strcspn(line, "\n"), line);
}

const struct engine engine_fused = {.name = "fused",
                                    .stride = ENGINE_MAX_STEPS,
                                    .open = open_fused,
                                    .run = run,
                                    .may_end = may_end,
                                    .close = close_fused};
