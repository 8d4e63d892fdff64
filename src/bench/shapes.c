#include "src/bench/shapes.h"

#include <string.h>

static struct gemm_shape shape(enum gemm_op op, size_t m, size_t n, size_t k, size_t layer,
                               const char *name) {
    static const char *const what[] = {
        [GEMM_NN] = "forward", [GEMM_TN] = "weight gradient", [GEMM_NT] = "input gradient"};
    struct gemm_shape one = {.op = op, .m = m, .n = n, .k = k, .pixels = layer == 0 && op != GEMM_NT};
    snprintf(one.what, sizeof one.what, "layer %zu %s", layer + 1, what[op]);
    snprintf(one.config, sizeof one.config, "%s", name);
    return one;
}

size_t shapes_of_training(const struct layer_list *layers, bool adversarial, size_t rows, const char *name,
                          struct gemm_shape list[SHAPES_MOST]) {
    size_t count = 0;
    for (size_t l = 0; l + 1 < layers->count; l++) {
        const size_t in = layers->width[l], out = layers->width[l + 1];
        list[count++] = shape(GEMM_NN, rows, out, in, l, name);
        list[count++] = shape(GEMM_TN, in, out, rows, l, name);
        if (l > 0 || adversarial) list[count++] = shape(GEMM_NT, rows, in, out, l, name);
    }
    return count;
}

bool shapes_equal(const struct gemm_shape *a, const struct gemm_shape *b) {
    return a->op == b->op && a->m == b->m && a->n == b->n && a->k == b->k && a->pixels == b->pixels;
}

void shapes_config_name(const char *path, char *name, size_t size) {
    const char *slash = path ? strrchr(path, '/') : NULL;
    snprintf(name, size, "%s", !path || !path[0] ? "defaults" : slash ? slash + 1 : path);
    char *dot = strrchr(name, '.');
    if (dot && strcmp(dot, ".cfg") == 0) *dot = '\0';
}
