// A complete float64 plug-in in C++17 with kernels/gemm.h alone.
#include "kernels/gemm.h"

#include <algorithm>

namespace {

bool supports(gemm_dtype dtype, gemm_op op) {
    return dtype == GEMM_F64 && op != GEMM_TT;
}

gemm_status gemm(void *, const gemm_call *call) {
    constexpr size_t COLUMNS = 16; // whose sums are added side by side
    const bool ta = gemm_transposes_a(call->op), tb = gemm_transposes_b(call->op);
    const size_t a_row = ta ? 1 : call->lda, a_p = ta ? call->lda : 1;
    const size_t b_p = tb ? 1 : call->ldb, b_col = tb ? call->ldb : 1;
    const auto *a = static_cast<const double *>(call->a), *b = static_cast<const double *>(call->b);
    for (size_t i = 0; i < call->m; i++)
        for (size_t j0 = 0; j0 < call->n; j0 += COLUMNS) {
            const size_t columns = std::min(call->n - j0, COLUMNS);
            double sum[COLUMNS] = {}, *c = static_cast<double *>(call->c) + i * call->ldc + j0;
            for (size_t p = 0; p < call->k; p++)
                for (size_t j = 0; j < columns; j++)
                    sum[j] += a[i * a_row + p * a_p] * b[p * b_p + (j0 + j) * b_col];
            for (size_t j = 0; j < columns; j++)
                c[j] = call->alpha * sum[j] + (call->beta == 0 ? 0 : call->beta * c[j]);
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
