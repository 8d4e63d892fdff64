/* Panels of QR on the host, beside products on a GPU: the hybrid of MAGMA (Tomov, Nath, Ltaief and
   Dongarra 2010, IPDPS Workshops). The columns of a panel are copied to the host and factored there, while
   the GPU applies the panel before to the columns beyond. Then V^T, T and R are copied back. */
#ifndef TESSERA_WINDOW_QR_HOST_PANEL_H
#define TESSERA_WINDOW_QR_HOST_PANEL_H

#include "src/window/qr.h"

/* A panel of each matrix of a batch: the columns col .. col + width - 1, its V^T and T. The rows of the
   triangle start at `col`; those of a dense matrix are its rows from there on. */
struct qr_step {
    size_t count, col, width;
    const struct qr_triangles *r; /* NULL: `a` is dense */
    const struct qr_matrix *a;
    size_t rows;     /* of `a` */
    bool triangular; /* row i of `a` is zero before column i: a panel has those that begin before its end */
    struct qr_matrix vt, t;
};

/* For panels of `qr`, whose shape is known, by `host`, which computes in host memory. */
enum status qr_host_panel_open(struct qr_host_panel **out, struct qr *qr, struct compute *host);
void qr_host_panel_close(struct qr_host_panel *panel); /* NULL is allowed */

/* Copies the columns to the host; returns when they are there. Then the GPU may get other work. */
enum status qr_host_panel_fetch(struct qr_host_panel *panel, const struct qr_step *step);
/* Factors them, and copies the results to the device. */
enum status qr_host_panel_factor(struct qr_host_panel *panel, const struct qr_step *step);

#endif
