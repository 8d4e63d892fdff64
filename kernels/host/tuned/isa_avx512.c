/* tuned for AVX-512. */
#if defined(__x86_64__)
#    define TARGET "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma"
#    include "kernels/host/tuned/isa_avx512.h"
#    include "kernels/host/tuned/isa.h"

static bool usable(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
}

const struct tuned_isa tuned_avx512 = {"avx512", usable, &kernel_f32, &kernel_f64, &kernel_bf16, NULL};
#endif
