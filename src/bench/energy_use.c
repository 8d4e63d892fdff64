#include "src/bench/energy_use.h"

#include <stdio.h>
#include <time.h>

#include "src/base/profile.h"
#include "src/base/progress.h"

double energy_idle_watts(const struct energy_use *use) {
    return use->idle_joules / use->idle_seconds;
}

double energy_watts(const struct energy_use *use) {
    return use->joules / use->seconds;
}

double energy_of_epoch(const struct energy_use *use) {
    return (use->joules - energy_idle_watts(use) * use->seconds) / (double)use->epochs;
}

double energy_of_epoch_gross(const struct energy_use *use) {
    return use->joules / (double)use->epochs;
}

static void rest(double seconds) {
    const double end = clock_seconds() + seconds;
    while (clock_seconds() < end) {
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
        progress_beat();
    }
}

struct energy_meter *energy_meter_of(struct compute *compute) {
    struct device *device = compute->residency == RESIDENCY_HOST ? &compute->offload.gpu : &compute->device;
    char address[64];
    if (device->driver->host_memory) return energy_open_cpu(ENERGY_RAPL);
    device->driver->identify(device, address, sizeof address);
    return energy_open_gpu(ENERGY_NVML, address);
}

/* Reads the counter and the clock. */
static bool take(struct energy_watch *watch, double *joules, double *now) {
    const bool read = !watch->failed && energy_read(watch->meter, joules);
    *now = clock_seconds();
    watch->failed = !read;
    return read;
}

enum status energy_watch_open(struct energy_watch *watch, struct energy_meter *meter,
                              const struct energy_plan *plan, struct energy_use *use) {
    double before = 0, after = 0, start = 0, end = 0;
    *watch = (struct energy_watch){.meter = meter, .plan = plan, .use = use, .failed = !meter};
    *use = (struct energy_use){0};
    if (!meter) return STATUS_UNAVAILABLE;
    rest(plan->settle);
    if (!take(watch, &before, &start)) return STATUS_UNAVAILABLE;
    rest(plan->pause);
    if (!take(watch, &after, &end)) return STATUS_UNAVAILABLE;
    use->idle_seconds = end - start;
    use->idle_joules = after - before;
    watch->ready = end;
    return STATUS_OK;
}

bool energy_watch_epoch(struct energy_watch *watch) {
    struct energy_use *use = watch->use;
    double joules = 0, now = clock_seconds();
    if (watch->start == 0) {
        if (now - watch->ready >= watch->plan->warm_up) take(watch, &watch->start_joules, &watch->start);
        return watch->failed;
    }
    use->epochs++;
    if (now - watch->start < watch->plan->least) return false;
    if (!take(watch, &joules, &now)) return true;
    use->seconds = now - watch->start;
    use->joules = joules - watch->start_joules;
    snprintf(use->counter, sizeof use->counter, "%s", energy_counter(watch->meter));
    return true;
}

void energy_watch_close(struct energy_watch *watch) {
    energy_close(watch->meter);
    watch->meter = NULL;
}
