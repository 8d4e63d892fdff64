/* tuned for AVX-512: 32 registers of 16 float32 or 8 float64. */
#if defined(__x86_64__)
#    define TARGET "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma"
#    define BYTES 64
#    define LANES_F32 16
#    define LANES_F64 8
#    define ROWS 14
#    define FOR_ROWS(DO) \
        DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11) DO(12) DO(13) DO(14)
#    include "kernels/host/tuned_isa.inc"

static bool usable(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
}

const struct tuned_isa tuned_avx512 = {"avx512", usable, &code_f32, &code_f64, &code_bf16};
#endif
