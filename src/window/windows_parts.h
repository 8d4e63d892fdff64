/* Private to windows*.c: the memory and the plan of windows.h. */
#ifndef TESSERA_WINDOW_WINDOWS_PARTS_H
#define TESSERA_WINDOW_WINDOWS_PARTS_H

#include "src/window/windows.h"

enum { WINDOWS_MOST_LEVELS = 64 };

/* Consecutive windows of a group, and the triangle of the rows that all of them have. */
struct windows_node {
    size_t first, end;
    size_t start, size; /* of its group: the first window, and their number */
    size_t index;       /* which part of the group it is, on its level */
    const struct windows_node *parent;
    const void *r; /* [n][ld], device memory */
};

/* Level 0 has a node for each group, level l + 1 divides those of level l. */
struct windows_level {
    size_t parts;               /* nodes of a group; some are empty if the group has fewer windows */
    size_t batch;               /* nodes that are expanded together */
    size_t rows;                /* that enter a triangle; shorter lists are padded with zero rows */
    struct windows_node *nodes; /* [batch] */
    char *triangles;            /* [batch][n][ld]; NULL on level 0 unless there is a ridge */
};

struct windows {
    struct compute *compute;
    enum windows_method method;
    struct windows_shape shape; /* with the group in use; nb 0: the default of qr.h */
    const struct qr_ops *ops;
    size_t groups; /* as even as possible */
    size_t ld, triangle;
    size_t depth; /* the last level */
    struct windows_level levels[WINDOWS_MOST_LEVELS];
    struct qr roots, steps; /* factors common rows; appends */
    char *dense;            /* the rows of level 0: [batch][rows][ld] */
    char *entering;         /* those of other levels */
    char *start;            /* sqrt(ridge) I, with gram ridge I; NULL: no ridge */
    char *current;          /* gram: the Gram matrix of the last window */
    double *least;          /* gram: [batch][n]: the pivots below are rounding errors */
    double *most_squares;   /* gram: [2][n]: the largest diagonal elements of the group; scratch */
    const void **from;      /* [most]: the triangles of a call */
    void **to;
    struct qr_rows *pieces; /* [most]: the rows of a call */
    size_t *column;         /* [most]: where a triangle fails */
    size_t most;            /* the largest batch */

    /* Of a run. */
    const char *a;
    size_t lda;
    const struct windows_visitor *visitor;
    double *largest;   /* [cols] */
    double *bound;     /* [cols]: no column of a window has a larger norm */
    double *scale;     /* [cols]: powers of two */
    double *unscale;   /* [cols] */
    bool scaled;       /* columns are multiplied by `scale` */
    char *scaled_back; /* [most][n][ld]; allocated by the first run that scales */
};

/* --- windows_plan.c --- */

/* The most windows that have a row in common. */
size_t windows_sharing(const struct windows_shape *shape);
/* Flops with groups of at most `group` windows. */
double windows_plan_flops(enum windows_method method, const struct windows_shape *shape, size_t group);
/* The best group. */
size_t windows_plan_group(enum windows_method method, const struct windows_shape *shape);
/* The first window of a group; `groups` gives the number of windows. */
size_t windows_group_start(const struct windows *windows, size_t group);
/* Fills `depth`, and `parts` and `rows` of the levels. */
void windows_plan_levels(struct windows *windows);

/* --- windows_input.c --- */

/* Measures the columns of a run: fails if a value is not finite, chooses the scales. */
enum status windows_measure(struct windows *windows);
/* `start` with the scales. */
enum status windows_start(struct windows *windows);
/* Checks the rank of triangles, scales them back and shows them to the visitor. */
enum status windows_deliver(struct windows *windows, size_t first, size_t count,
                            const struct qr_triangles *r);

/* --- windows_tree.c, windows_gram.c --- */

enum status windows_tree_open(struct windows *windows);
enum status windows_tree_run(struct windows *windows);
enum status windows_gram_open(struct windows *windows);
enum status windows_gram_run(struct windows *windows);

/* --- windows.c --- */

/* Device memory of `elements` elements; NULL: out of memory. */
void *windows_alloc(struct windows *windows, size_t elements);
/* The number of items of `bytes` bytes to work on together: at most `count`; as many as fit the last-level
   cache `hot` times, or else `least`, if that does not take much memory. */
size_t windows_batch(const struct windows *windows, size_t bytes, size_t hot, size_t least, size_t count);

#endif
