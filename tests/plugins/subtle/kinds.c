/* Wrong in ways that a look at a few products does not show; the option `kind` says which. Most are right for
   every case of the verification, or for the first calls. */
#define _GNU_SOURCE
#include <stdlib.h>

#include "tests/plugins/subtle/side_effects.h"
#include "tests/plugins/subtle/wrong_results.h"

typedef enum gemm_status mistake(struct context *context, const struct gemm_call *call);

static enum gemm_status none(struct context *context, const struct gemm_call *call) {
    (void)context;
    return reference_gemm(call);
}

#define KINDS(X)          \
    X(idle_later)         \
    X(idle_after_1000)    \
    X(every_third_later)  \
    X(rarely)             \
    X(time_bomb)          \
    X(command_line)       \
    X(many_rows)          \
    X(evaluation_rows)    \
    X(this_network)       \
    X(other_alpha)        \
    X(other_beta)         \
    X(long_k)             \
    X(first_is_zero)      \
    X(drops_small)        \
    X(drops_subnormal)    \
    X(hides_nan)          \
    X(clamps)             \
    X(sparse)             \
    X(skips_zeros)        \
    X(stale_b)            \
    X(stale_after_corner) \
    X(memoised)           \
    X(writes_a)           \
    X(writes_b)           \
    X(flushes_to_zero)    \
    X(rounds_up)          \
    X(changes_locale)     \
    X(changes_directory)  \
    X(changes_affinity)   \
    X(changes_priority)   \
    X(changes_scheduler) X(leaves_threads) X(leaks) X(leaks_pages) X(shrinks_weights) X(returns_early)

#define NAME(kind) "|" #kind
#define FUNCTION(kind) kind,

static mistake *const mistakes[] = {none, KINDS(FUNCTION)};

static const struct gemm_option options[] = {{"kind", "none" KINDS(NAME), "none", "of mistake"}, {0}};

static void *create(const struct gemm_setup *setup, char *why, size_t size) {
    (void)why;
    (void)size;
    static long contexts;
    struct context *context = calloc(1, sizeof *context);
    if (!context) return NULL;
    context->kind = (int)setup->option[0].number;
    context->contexts = contexts++;
    return context;
}

static enum gemm_status gemm(void *opaque, const struct gemm_call *call) {
    struct context *context = opaque;
    context->calls++;
    return mistakes[context->kind](context, call);
}

static const struct gemm_backend backend = {
    .name = "subtle", REFERENCE_SLOTS, .gemm = gemm, .create = create, .destroy = free, .options = options};
GEMM_PLUGIN(backend);
