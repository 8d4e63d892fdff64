/* Weight gradients that update their weights: which do, and their launches at the end of a step. */
#include "src/nn/mlp_updates.h"

/* The part of mlp->update from an element of the parameter arena on. */
static struct weight_update update_from(const struct mlp *mlp, size_t first) {
    struct weight_update update = *mlp->update;
    update.rule = mlp_update_from(mlp, &update.rule, first);
    return update;
}

/* .. that is for the weights of layer l. */
static struct weight_update update_of(const struct mlp *mlp, size_t l) {
    return update_from(mlp, mlp_first_weight(mlp, l));
}

bool mlp_fuses_update(const struct mlp *mlp, size_t l, const struct gemm_call *call) {
    if (!mlp->update) return false;
    const struct weight_update update = update_of(mlp, l);
    return compute_fuses_update(mlp->compute, call, &update);
}

void *mlp_beside(const struct mlp *mlp, size_t rows) {
    struct device *device = &mlp->compute->device;
    return rows >= mlp->many_rows ? device->driver->aside_begin_low(device)
                                  : device->driver->aside_begin(device);
}

bool mlp_works_beside(const struct mlp *mlp, size_t rows) {
    return mlp->update && mlp->updates_overlap && rows >= mlp->many_rows;
}

void mlp_update_beside(struct mlp *mlp, size_t l, size_t rows) {
    if (!mlp_works_beside(mlp, rows) || mlp->layer[l].updated) return;
    size_t next = l;
    do mlp->layer[next++].updated_beside = true;
    while (next < mlp->depth && !mlp->layer[next].updated && !mlp->layer[next].updated_beside);
    const size_t first = mlp_first_weight(mlp, l), end = mlp_first_weight(mlp, next);
    const struct weight_update update = update_from(mlp, first);
    mlp->ops->update(mlp_beside(mlp, rows), end - first, &update.rule, update.step, update.guard);
}

/* Several weight gradients that update their weights, from the last layer on: the next step begins with the
   first, whose weights a cache then still has. */
struct update_list {
    size_t count, layer[PROFILE_MAX_LAYERS]; /* layer: of each weight gradient */
    struct gemm_call call[PROFILE_MAX_LAYERS + MLP_MAX_RANGES];
    struct weight_update update[PROFILE_MAX_LAYERS + MLP_MAX_RANGES];
};

static struct update_list list_updates(const struct mlp *mlp, size_t rows, const struct step_scalars *step) {
    struct update_list list;
    list.count = 0;
    for (size_t l = mlp->depth; l-- > 0;) {
        if (!mlp->layer[l].updated) continue;
        list.layer[list.count] = l;
        list.call[list.count] = mlp_weight_gradient(mlp, l, rows, step != NULL, 0, false);
        /* the kernel issued last wrote dL/dZ of layer 0: those above were complete before */
        list.call[list.count].b_complete = l > 0;
        list.update[list.count++] = update_of(mlp, l);
    }
    return list;
}

/* Adds all that no weight gradient updates, such as biases: their gradients are complete. Returns false if
   the backend cannot update some of it. */
static bool list_rest(const struct mlp *mlp, struct update_list *list) {
    const size_t columns = 16;
    struct mlp_range left[MLP_MAX_RANGES];
    const size_t count = mlp_ranges_left(mlp, left);
    bool all = true;
    for (size_t i = 0; i < count && all; i++, list->count++) {
        const struct weight_update update = update_from(mlp, left[i].first);
        const size_t rows = left[i].count / columns;
        const struct gemm_call call = {.dtype = mlp->activation_dtype,
                                       .c_f32 = gemm_is_16bit(mlp->activation_dtype),
                                       .op = GEMM_TN,
                                       .m = rows,
                                       .n = columns,
                                       .lda = rows,
                                       .ldb = columns,
                                       .beta = 1,
                                       .c = (void *)update.rule.grad,
                                       .ldc = columns};
        all = left[i].count % columns == 0 && compute_fuses_update(mlp->compute, &call, &update);
        list->call[list->count] = call;
        list->update[list->count] = update;
    }
    return all;
}

/* No launch of them fills a GPU from its start to its end: every second one runs on a second stream, until
   aside_join. */
static void spread(struct mlp *mlp, struct update_list *list) {
    struct device *device = &mlp->compute->device;
    device->driver->aside_begin(device);
    for (size_t i = 0; i < list->count; i += 2) list->update[i].stream = device->driver->aside_stream(device);
}

static enum status update_one_by_one(struct mlp *mlp, struct update_list *list) {
    struct device *device = &mlp->compute->device;
    enum status status = STATUS_OK;
    if (mlp->updates_overlap) spread(mlp, list);
    for (size_t i = 0; i < list->count && !status; i++) {
        const size_t l = list->layer[i];
        status = compute_gemm_update(mlp->compute, &list->call[i], &list->update[i], &mlp->layer[l].updated);
        mlp_lap_gemm(mlp, l, &list->call[i]);
    }
    if (mlp->updates_overlap) device->driver->aside_join(device);
    return status;
}

/* The same at once: *done, if the backend can. A float32 output layer may have a launch of its own: aside. */
static enum status update_at_once(struct mlp *mlp, struct update_list *list, bool *done) {
    struct device *device = &mlp->compute->device;
    const bool aside =
        list->count > 1 && list->layer[0] + 1 == mlp->depth && !gemm_is_16bit(mlp->activation_dtype);
    if (aside) {
        device->driver->aside_begin(device);
        list->update[0].stream = device->driver->aside_stream(device);
    }
    const enum status status =
        compute_gemm_updates(mlp->compute, list->call, list->update, list->count, done);
    if (aside) device->driver->aside_join(device);
    return status;
}

static enum status update_listed(struct mlp *mlp, struct update_list *list) {
    const size_t products = list->count;
    bool done = false;
    if (mlp->updates_overlap) {
        const bool all = list_rest(mlp, list);
        if (!all) list->count = products;
        const enum status status = update_at_once(mlp, list, &done);
        mlp->rest_updated = all && done;
        if (status || done) return status;
    }
    list->count = products;
    return update_one_by_one(mlp, list);
}

enum status mlp_update_weights(struct mlp *mlp, size_t rows, const struct step_scalars *step) {
    struct update_list list = list_updates(mlp, rows, step);
    if (list.count == 0) return STATUS_OK;
    mlp_update_beside(mlp, 0, rows); /* if its gradient is stored */
    const enum status status = update_listed(mlp, &list);
    if (mlp->layer[0].updated_beside) mlp->compute->device.driver->aside_join(&mlp->compute->device);
    return status;
}
