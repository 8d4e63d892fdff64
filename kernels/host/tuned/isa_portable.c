/* tuned for any processor. */
#include "kernels/host/tuned/isa_portable.h"
#include "kernels/host/tuned/isa.h"

static bool usable(void) {
    return true;
}

const struct tuned_isa tuned_portable = {"portable", usable, &kernel_f32, &kernel_f64, &kernel_bf16, NULL};
