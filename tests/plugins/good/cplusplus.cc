// A complete float64 plug-in in C++17 with kernels/gemm.h alone.
#include "kernels/gemm.h"

namespace {

bool supports(gemm_dtype dtype, gemm_op op) {
    return dtype == GEMM_F64 && op != GEMM_TT;
}

gemm_status gemm(void *, const gemm_call *call) {
    const auto *a = static_cast<const double *>(call->a), *b = static_cast<const double *>(call->b);
    const bool ta = gemm_transposes_a(call->op), tb = gemm_transposes_b(call->op);
    for (size_t i = 0; i < call->m; i++)
        for (size_t j = 0; j < call->n; j++) {
            double sum = 0;
            for (size_t p = 0; p < call->k; p++)
                sum += a[ta ? p * call->lda + i : i * call->lda + p] *
                       b[tb ? j * call->ldb + p : p * call->ldb + j];
            double &c = static_cast<double *>(call->c)[i * call->ldc + j];
            c = call->alpha * sum + (call->beta == 0 ? 0 : call->beta * c);
        }
    return GEMM_OK;
}

const gemm_backend backend = [] {
    gemm_backend table = {};
    table.name = "cplusplus";
    table.summary = "three loops in C++";
    table.device = GEMM_ON_HOST;
    table.supports = supports;
    table.gemm = gemm;
    return table;
}();

} // namespace

GEMM_PLUGIN(backend);
