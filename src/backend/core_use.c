#include "src/backend/core_use.h"

#include <math.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "src/base/profile.h"

/* One thread uses 1 core at most, up to the resolution of the clocks. */
static const double TOLERANCE = 0.25, RESOLUTION = 0.002 /* seconds */;
static const double CLOCK_TOLERANCE = 0.01;

static double cpu_seconds(void) {
    struct timespec now = {0};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* By a system call: a backend may replace the function that clock_seconds calls. */
static double kernel_seconds(void) {
    struct timespec now = {0};
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* 0 if `seconds` was read between two readings of the kernel's clock. */
static double clock_off(double before, double seconds, double after) {
    return fmax(0, fmax(before - seconds, seconds - after));
}

void core_use_begin(struct core_use *use) {
    use->cpu_at = cpu_seconds();
    use->wall_at = clock_seconds();
}

void core_use_end(struct core_use *use) {
    use->cpu += cpu_seconds() - use->cpu_at;
    const double before = kernel_seconds(), now = clock_seconds();
    use->wall += now - use->wall_at;
    use->clock_off = fmax(use->clock_off, clock_off(before, now, kernel_seconds()));
}

static enum status check_clock(const struct core_use *use) {
    if (use->clock_off <= CLOCK_TOLERANCE) return STATUS_OK;
    return status_set(STATUS_VERIFY_FAILED, "its clock is wrong: %.2g s from that of the kernel",
                      use->clock_off);
}

enum status core_use_check_clock(void) {
    struct core_use use = {0};
    core_use_begin(&use);
    core_use_end(&use);
    return check_clock(&use);
}

enum status core_use_check(const struct core_use *use, const struct compute *compute) {
    const int threads = compute->threads, teams = threads > 1 ? 2 : 1;
    const enum status status = check_clock(use);
    if (status) return status;
    if (compute->backend->device != GEMM_ON_HOST) return STATUS_OK;
    if (use->cpu <= (teams * threads + TOLERANCE) * use->wall + RESOLUTION) return STATUS_OK;
    return status_set(STATUS_VERIFY_FAILED,
                      "it used %.1f cores and says that it uses %d thread%s (set_threads in kernels/gemm.h)",
                      use->cpu / use->wall, threads, threads == 1 ? "" : "s");
}
