/* The panel of QR (kernels/qr.h): a template, parameters in kernels/host/element.h.

   The columns are gathered as rows of V^T, so that each is contiguous. One pass over a chunk of rows applies
   reflector c to the columns after it, and adds up the products of column c + 1 with all: those with later
   columns give the next W, those with earlier ones a column of V^T V, of which T is made. */
#ifndef TESSERA_KERNELS_HOST_OPS_PANEL_H
#    define TESSERA_KERNELS_HOST_OPS_PANEL_H

#    include <math.h>
#    ifdef _OPENMP
#        include <omp.h>
#    else
#        define omp_get_num_threads() 1
#        define omp_get_thread_num() 0
#    endif

#    include "kernels/host/ops/template.h"
#    include "kernels/host/team.h"
#    include "kernels/qr.h"

static inline size_t panel_least(size_t a, size_t b) {
    return a < b ? a : b;
}

#endif

#ifndef NAME
#    include "kernels/host/element.h"
#endif

/* What one thread has of a panel; all threads compute the same. */
struct NAME(panel) {
    size_t width, top_rows, rows, ld;
    REAL *v;                         /* V^T of the rows below: [width][ld] */
    double *parts;                   /* [2][chunks][QR_WIDTH] */
    REAL top[QR_WIDTH][QR_WIDTH];    /* the first rows; becomes R, with V below the diagonal */
    double gram[QR_WIDTH][QR_WIDTH]; /* V^T V above the diagonal */
    double tau[QR_WIDTH];
};

/* v = the transpose of rows first .. end - 1 of the panel. */
static void NAME(gather_columns)(const REAL *restrict a, size_t lda, size_t width, size_t first, size_t end,
                                 REAL *restrict v, size_t ld) {
    enum { ROWS = 16 };
    for (size_t i = first; i < end; i += ROWS) {
        const size_t count = panel_least(ROWS, end - i);
        for (size_t c = 0; c < width; c++)
            for (size_t r = 0; r < count; r++) v[c * ld + i + r] = a[(i + r) * lda + c];
    }
}

INLINE REAL NAME(dot)(size_t count, const REAL *restrict x, const REAL *restrict a) {
    REAL sum = 0;
#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < count; i++) sum += x[i] * a[i];
    return sum;
}

/* Four columns: if `w` is not NULL, a[j] -= w[j] v; part[j] = x.a[j]. */
INLINE void NAME(four_columns)(size_t count, const REAL *w, const REAL *restrict v, const REAL *restrict x,
                               REAL *restrict a, size_t ld, double *restrict part) {
    REAL *restrict a1 = a + ld, *restrict a2 = a1 + ld, *restrict a3 = a2 + ld;
    REAL s0 = 0, s1 = 0, s2 = 0, s3 = 0;
    if (w) {
        const REAL w0 = w[0], w1 = w[1], w2 = w[2], w3 = w[3];
#pragma omp simd reduction(+ : s0, s1, s2, s3)
        for (size_t i = 0; i < count; i++) {
            s0 += x[i] * (a[i] -= w0 * v[i]);
            s1 += x[i] * (a1[i] -= w1 * v[i]);
            s2 += x[i] * (a2[i] -= w2 * v[i]);
            s3 += x[i] * (a3[i] -= w3 * v[i]);
        }
    } else {
#pragma omp simd reduction(+ : s0, s1, s2, s3)
        for (size_t i = 0; i < count; i++) {
            s0 += x[i] * a[i];
            s1 += x[i] * a1[i];
            s2 += x[i] * a2[i];
            s3 += x[i] * a3[i];
        }
    }
    part[0] = (double)s0, part[1] = (double)s1, part[2] = (double)s2, part[3] = (double)s3;
}

INLINE void NAME(one_column)(size_t count, const REAL *w, const REAL *restrict v, const REAL *restrict x,
                             REAL *restrict a, double *part) {
    const REAL by = w ? *w : 0;
#pragma omp simd
    for (size_t i = 0; i < (w ? count : 0); i++) a[i] -= by * v[i];
    *part = (double)NAME(dot)(count, x, a);
}

/* A chunk: scales reflector c = next - 1 by `factor`, applies it with w[c + 1 ..], and multiplies column
   `next` with all columns. The first pass, with next 0, only multiplies. */
static void NAME(pass)(const struct NAME(panel) * panel, size_t first, size_t count, size_t next, REAL factor,
                       const REAL *w, double *restrict part) {
    const size_t ld = panel->ld, width = panel->width;
    REAL *a = panel->v + first, *x = a + next * ld, *v = next ? x - ld : NULL;
    size_t j = 0;
    const REAL by = w[next];
#pragma omp simd
    for (size_t i = 0; i < (v ? count : 0); i++) {
        v[i] *= factor;
        x[i] -= by * v[i];
    }
    for (; j + 4 <= next; j += 4) NAME(four_columns)(count, NULL, v, x, a + j * ld, ld, part + j);
    for (; j < next; j++) NAME(one_column)(count, NULL, v, x, a + j * ld, part + j);
    part[j++] = (double)NAME(dot)(count, x, x);
    for (; j + 4 <= width; j += 4)
        NAME(four_columns)(count, v ? w + j : NULL, v, x, a + j * ld, ld, part + j);
    for (; j < width; j++) NAME(one_column)(count, v ? w + j : NULL, v, x, a + j * ld, part + j);
}

/* Reflector c, from the products of column c with all columns in the rows below. Updates the first rows, and
   returns the factor of column c and w of the columns after it. */
static REAL NAME(reflect)(struct NAME(panel) * panel, size_t c, const double *product, REAL *w) {
    const size_t width = panel->width, rows = panel->top_rows;
    double sum[QR_WIDTH];
    for (size_t j = 0; j < width; j++) {
        sum[j] = panel->rows ? product[j] : 0;
        for (size_t i = c + 1; i < rows; i++) sum[j] += (double)panel->top[i][c] * (double)panel->top[i][j];
    }
    const double head = c < rows ? (double)panel->top[c][c] : 0;
    const bool none = c >= rows || sum[c] == 0; /* nothing to eliminate; NaN spreads */
    const double length = sqrt(head * head + sum[c]),
                 beta = none       ? head
                        : head > 0 ? -length
                                   : length,
                 factor = none ? 0 : 1 / (head - beta), tau = none ? 0 : (beta - head) / beta;
    panel->tau[c] = tau;
    for (size_t j = 0; j < c; j++) /* v_j . v_c, whose element c is 1 */
        panel->gram[j][c] = factor * sum[j] + (c < rows ? (double)panel->top[c][j] : 0);
    for (size_t j = c + 1; j < width; j++)
        w[j] = (REAL)(none ? 0 : tau * ((double)panel->top[c][j] + factor * sum[j]));
    if (c >= rows) return 0;
    for (size_t i = c + 1; i < rows; i++) {
        panel->top[i][c] = (REAL)((double)panel->top[i][c] * factor);
        for (size_t j = c + 1; j < width; j++) panel->top[i][j] -= w[j] * panel->top[i][c];
    }
    for (size_t j = c + 1; j < width; j++) panel->top[c][j] -= w[j];
    panel->top[c][c] = (REAL)beta;
    return (REAL)factor;
}

/* T: column c is -tau_c T (V^T v_c), and tau_c on the diagonal. */
static void NAME(write_t)(const struct NAME(panel) * panel, REAL *t, size_t ld) {
    double full[QR_WIDTH][QR_WIDTH] = {{0}};
    for (size_t c = 0; c < panel->width; c++) {
        for (size_t i = 0; i < c; i++) {
            double sum = 0;
            for (size_t k = i; k < c; k++) sum += full[i][k] * panel->gram[k][c];
            full[i][c] = -panel->tau[c] * sum;
        }
        full[c][c] = panel->tau[c];
    }
    for (size_t i = 0; i < panel->width; i++)
        for (size_t j = 0; j < panel->width; j++) t[i * ld + j] = (REAL)full[i][j];
}

static void NAME(read_top)(const struct qr_panel *call, size_t number, struct NAME(panel) * panel) {
    const REAL *from = (const REAL *)call->top.from[number] + call->row * call->top.ld + call->col;
    for (size_t i = 0; i < panel->top_rows; i++)
        for (size_t j = 0; j < panel->width; j++)
            panel->top[i][j] = call->triangular && j < i ? 0 : from[i * call->top.ld + j];
}

/* R, and V^T of the columns before those of the rows below. */
static void NAME(write_top)(const struct qr_panel *call, size_t number, const struct NAME(panel) * panel) {
    REAL *to = (REAL *)call->top.to[number] + call->row * call->top.ld + call->col;
    for (size_t i = 0; i < panel->top_rows; i++)
        for (size_t j = 0; j < panel->width; j++) to[i * call->top.ld + j] = j < i ? 0 : panel->top[i][j];
    REAL *vt = (REAL *)call->vt.values + number * call->vt.stride;
    for (size_t c = 0; c < panel->width; c++, vt += call->vt.ld) {
        for (size_t i = 0; i < call->lead; i++) vt[i] = 0;
        for (size_t i = 0; !call->triangular && i < panel->top_rows; i++)
            vt[call->lead + i] = i < c ? 0 : i == c ? 1 : panel->top[i][c];
    }
}

/* Thread `rank` of a team. */
static void NAME(run_panel)(const struct qr_panel *call, size_t number, struct team *team, size_t rank) {
    const size_t chunks = (call->rows + QR_CHUNK - 1) / QR_CHUNK, begin = chunks * rank / team->size,
                 end = chunks * (rank + 1) / team->size;
    const size_t lead = call->lead + (call->triangular ? 0 : call->top_rows);
    const REAL *a = (const REAL *)call->a.values + number * call->a.stride;
    struct NAME(panel) panel = {
        .width = call->width,
        .top_rows = call->top_rows,
        .rows = call->rows,
        .ld = call->vt.ld,
        .v = (REAL *)call->vt.values + number * call->vt.stride + lead,
        .parts = call->scratch + number * qr_scratch(call->rows),
    };
    REAL w[QR_WIDTH] = {0}, factor = 1;
    NAME(read_top)(call, number, &panel);
    for (size_t c = 0; c <= panel.width; c++) {
        double *parts = panel.parts + c % 2 * chunks * QR_WIDTH, sum[QR_WIDTH] = {0};
        for (size_t k = begin; k < end; k++) {
            const size_t first = k * QR_CHUNK, count = panel_least(QR_CHUNK, call->rows - first);
            if (c == 0)
                NAME(gather_columns)(a, call->a.ld, panel.width, first, first + count, panel.v, panel.ld);
            if (c < panel.width) {
                NAME(pass)(&panel, first, count, c, factor, w, parts + k * QR_WIDTH);
            } else {
                for (size_t i = first; i < first + count; i++) panel.v[(c - 1) * panel.ld + i] *= factor;
            }
        }
        if (c == panel.width) break;
        team_barrier(team);
        for (size_t k = 0; k < chunks; k++)
            for (size_t j = 0; j < panel.width; j++) sum[j] += parts[k * QR_WIDTH + j];
        factor = NAME(reflect)(&panel, c, sum, w);
    }
    if (rank) return;
    NAME(write_top)(call, number, &panel);
    NAME(write_t)(&panel, (REAL *)call->t.values + number * call->t.stride, call->t.ld);
}

/* Panels are shared out among the threads; if they are fewer, and long, the threads share each. */
static void NAME(panel)(void *context, const struct qr_panel *panel) {
    const int threads = threads_for(context, panel->count * panel->rows * panel->width);
    if (panel->count >= (size_t)threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
        for (size_t number = 0; number < panel->count; number++) {
            struct team team;
            team_init(&team, 1);
            NAME(run_panel)(panel, number, &team, 0);
        }
        return;
    }
    for (size_t number = 0; number < panel->count; number++) {
        struct team team;
#pragma omp parallel num_threads(threads)
        {
#pragma omp single
            team_init(&team, (size_t)omp_get_num_threads());
            NAME(run_panel)(panel, number, &team, (size_t)omp_get_thread_num());
        }
    }
}
