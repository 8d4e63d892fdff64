/* A correct GEMM that does something to its process, in its first call unless AT says another one. */
#ifndef TESSERA_TESTS_PLUGINS_HOSTILE_H
#define TESSERA_TESTS_PLUGINS_HOSTILE_H

#include "tests/plugins/reference.h"

#ifndef AT
#    define AT 1
#endif

#define HOSTILE(name_)                                                                                 \
    static enum gemm_status hostile_gemm(void *context, const struct gemm_call *call) {                \
        static int calls;                                                                              \
        (void)context;                                                                                 \
        if (++calls == AT) attack();                                                                   \
        return reference_gemm(call);                                                                   \
    }                                                                                                  \
    static const struct gemm_backend backend = {.name = name_, REFERENCE_SLOTS, .gemm = hostile_gemm}; \
    GEMM_PLUGIN(backend)

#endif
