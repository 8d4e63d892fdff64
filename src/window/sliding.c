#include "src/window/sliding.h"

#include <math.h>

enum status sliding_open(struct sliding *sliding, struct readout *readout,
                         const struct sliding_history *history, size_t blocks, double forgetting,
                         double ridge) {
    *sliding = (struct sliding){
        .readout = readout, .history = history, .blocks = blocks, .forgetting = forgetting, .ridge = ridge};
    sliding->back = readout_triangles(readout, 1);
    if (sliding->back.values) sliding->work = readout_triangles(readout, 1);
    if (sliding->work.values && blocks > 1) sliding->front = readout_triangles(readout, blocks - 1);
    return sliding->work.values && (blocks <= 1 || sliding->front.values) ? STATUS_OK : STATUS_FAILED;
}

void sliding_close(struct sliding *sliding) {
    if (!sliding->readout) return;
    readout_free(sliding->readout, &sliding->front);
    readout_free(sliding->readout, &sliding->back);
    readout_free(sliding->readout, &sliding->work);
    *sliding = (struct sliding){0};
}

/* Scales row i of a block so that it counts as the older one that it is at the end of the block. */
static void forget_rows(struct sliding *sliding, const struct qr_matrix *rows, size_t count) {
    struct readout *readout = sliding->readout;
    const size_t size = dtype_size(readout->shape.dtype), columns = readout->shape.n + readout->shape.classes;
    for (size_t i = 0; i < count; i++) {
        void *const row = (char *)rows->values + i * rows->ld * size;
        const struct qr_triangles one = {NULL, &row, rows->ld};
        readout->qr.ops->scale(readout->compute->device.ops_context, 1, 1, columns,
                               pow(sliding->forgetting, 0.5 * (double)(count - 1 - i)), &one);
    }
}

static void forget_triangle(struct sliding *sliding, const struct qr_matrix *triangle, size_t rows) {
    struct readout *readout = sliding->readout;
    const struct qr_triangles r = {NULL, &triangle->values, triangle->ld};
    readout->qr.ops->scale(readout->compute->device.ops_context, 1, readout->shape.n,
                           readout->shape.n + readout->shape.classes,
                           pow(sliding->forgetting, 0.5 * (double)rows), &r);
}

/* Block `number` of the stream enters. */
static enum status append_block(struct sliding *sliding, size_t number, const struct qr_matrix *triangle) {
    struct readout *readout = sliding->readout;
    const struct sliding_history *history = sliding->history;
    const size_t at = number % history->blocks * history->rows * history->values.ld;
    const char *from = (const char *)history->values.values + at * dtype_size(readout->shape.dtype);
    readout->qr.ops->rows(readout->compute->device.ops_context, history->rows, history->rows,
                          readout->shape.n + readout->shape.classes, from, history->values.ld, NULL,
                          readout->rows.values, readout->rows.ld);
    if (sliding->forgetting < 1) {
        forget_rows(sliding, &readout->rows, history->rows);
        forget_triangle(sliding, triangle, history->rows);
    }
    device_lap(&readout->compute->device, PART_ELEMENTWISE);
    return readout_append(readout, triangle, &readout->rows, history->rows);
}

/* The youngest blocks of the window, all of which are in `back`, become the stack `front`: those that stay
   when the oldest one leaves. */
static enum status refill(struct sliding *sliding) {
    struct readout *readout = sliding->readout;
    enum status status = STATUS_OK;
    for (size_t k = 0; k + 1 < sliding->blocks && !status; k++) {
        const struct qr_matrix triangle = readout_triangle_at(readout, &sliding->front, k);
        if (k) {
            const struct qr_matrix younger = readout_triangle_at(readout, &sliding->front, k - 1);
            readout_copy(readout, &younger, &triangle);
        } else {
            readout_zero(readout, &triangle);
        }
        status = append_block(sliding, sliding->entered - 1 - k, &triangle);
    }
    readout_zero(readout, &sliding->back);
    sliding->front_count = sliding->blocks - 1;
    return status;
}

enum status sliding_enter(struct sliding *sliding) {
    enum status status = STATUS_OK;
    if (sliding->blocks && sliding->entered >= sliding->blocks) {
        if (sliding->front_count) {
            sliding->front_count--;
        } else {
            status = refill(sliding);
        }
    }
    if (!status) status = append_block(sliding, sliding->entered, &sliding->back);
    sliding->entered++;
    return status;
}

enum status sliding_solve(struct sliding *sliding, void *w, bool *finite) {
    struct readout *readout = sliding->readout;
    enum status status = STATUS_OK;
    readout_copy(readout, &sliding->back, &sliding->work);
    if (sliding->front_count) {
        const struct qr_matrix oldest =
            readout_triangle_at(readout, &sliding->front, sliding->front_count - 1);
        status = readout_merge(readout, &sliding->work, &oldest);
    }
    if (!status) status = readout_add_ridges(readout, &sliding->work, 1, &sliding->ridge);
    *finite = true;
    return status ? status : readout_solve(readout, &sliding->work, w, finite);
}
