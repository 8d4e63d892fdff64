/* tuned for AVX-512. */
#if defined(__x86_64__)
#    define TARGET "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma"
#    include "kernels/host/tuned/tuned_avx512.inc"
#    include "kernels/host/tuned/tuned_isa.inc"

static bool usable(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
}

const struct tuned_isa tuned_avx512 = {"avx512", usable, &code_f32, &code_f64, &code_bf16, NULL};
#endif
