/* tuned for any processor: vectors of 16 bytes, which every one of today has (SSE2, NEON). */
#define BYTES 16
#define LANES_F32 4
#define LANES_F64 2
#define ROWS 6
#define FOR_ROWS(DO) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6)
#include "kernels/host/tuned/tuned_isa.inc"

static bool usable(void) {
    return true;
}

const struct tuned_isa tuned_portable = {"portable", usable, &code_f32, &code_f64, &code_bf16, NULL};
