/* Correct, but with side effects on the process: it changes the locale, or its destructor never returns. */
#include "tests/plugins/reference.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { LOCALE, DESTRUCTOR };
static const struct gemm_option options[] = {
    {"on", "locale|destructor", "locale", "what it disturbs"},
    {0},
};

static bool hangs;

__attribute__((destructor)) static void hang(void) {
    while (hangs) pause();
}

static void *create(const struct gemm_setup *setup, char *why, size_t size) {
    hangs = setup->option[0].number == DESTRUCTOR;
    if (!hangs) setlocale(LC_ALL, "de_DE.UTF-8");
    void *context = malloc(1);
    if (!context) snprintf(why, size, "out of memory");
    return context;
}

static enum gemm_status gemm(void *context, const struct gemm_call *call) {
    (void)context;
    return reference_gemm(call);
}

static void describe(void *context, char *text, size_t size) {
    (void)context;
    snprintf(text, size, "locale %s", setlocale(LC_ALL, NULL));
}

static const struct gemm_backend backend = {.name = "side-effects",
                                            REFERENCE_SLOTS,
                                            .gemm = gemm,
                                            .create = create,
                                            .destroy = free,
                                            .options = options,
                                            .describe = describe};
GEMM_PLUGIN(backend);
