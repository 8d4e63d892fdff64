#include "kernels/host/ops/parts.h"

#include "kernels/parts.h"

void host_part_values(void *context, const struct tally *part, const double *stop,
                      struct batch_values *values) {
    (void)context;
    *values = values_of_part(part, *stop);
}

void host_count_batch(void *context, const struct batch_values *values, double *loss, struct tally *tally) {
    (void)context;
    *loss = count_values(values, tally);
}
