#include "src/backend/core_use.h"

#include <time.h>

#include "src/base/profile.h"

/* One thread uses 1 core at most, up to the resolution of the clocks. */
static const double TOLERANCE = 0.25, RESOLUTION = 0.002 /* seconds */;

static double cpu_seconds(void) {
    struct timespec now = {0};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void core_use_begin(struct core_use *use) {
    use->cpu_at = cpu_seconds();
    use->wall_at = clock_seconds();
}

void core_use_end(struct core_use *use) {
    use->cpu += cpu_seconds() - use->cpu_at;
    use->wall += clock_seconds() - use->wall_at;
}

enum status core_use_check(const struct core_use *use, const struct compute *compute) {
    const int threads = compute->threads, teams = threads > 1 ? 2 : 1;
    if (compute->backend->device != GEMM_ON_HOST) return STATUS_OK;
    if (use->cpu <= (teams * threads + TOLERANCE) * use->wall + RESOLUTION) return STATUS_OK;
    return status_set(STATUS_VERIFY_FAILED,
                      "it used %.1f cores and says that it uses %d thread%s (set_threads in kernels/gemm.h)",
                      use->cpu / use->wall, threads, threads == 1 ? "" : "s");
}
