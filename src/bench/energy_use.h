/* The energy of an epoch, from a counter that is read around repeated epochs, and around a pause before them:
   what the device needs when it computes nothing is subtracted. */
#ifndef TESSERA_BENCH_ENERGY_USE_H
#define TESSERA_BENCH_ENERGY_USE_H

#include <stddef.h>

#include "src/backend/compute.h"
#include "src/base/energy.h"

struct energy_use {
    char counter[8];        /* "NVML": of the GPU alone; "RAPL": of the CPU's packages; "": not measured */
    double seconds, joules; /* of whole epochs */
    double idle_seconds, idle_joules; /* of the pause, with the backend open */
    size_t epochs;
};

/* Watts in the pause, and in the epochs. */
double energy_idle_watts(const struct energy_use *use);
double energy_watts(const struct energy_use *use);
/* Joules of an epoch, without and with what the device would have needed idle. */
double energy_of_epoch(const struct energy_use *use);
double energy_of_epoch_gross(const struct energy_use *use);

/* In seconds. */
struct energy_plan {
    double settle;  /* after the backend has been opened, before the pause */
    double pause;   /* in which idle power is measured */
    double warm_up; /* epochs before those that are measured */
    double least;   /* of the epochs that are measured; 0: no measurement */
};

struct energy_watch {
    struct energy_meter *meter; /* owned */
    const struct energy_plan *plan;
    struct energy_use *use;
    double ready;               /* when the first epoch could start */
    double start, start_joules; /* of the epochs that are measured; start is 0 before them */
    bool failed;                /* to read the counter; the status message says why */
};

/* The meter of the device that multiplies: a GPU's, or the CPU's. NULL with the reason in the status
   message. */
struct energy_meter *energy_meter_of(struct compute *compute);

/* Settles, then measures the pause. STATUS_UNAVAILABLE if `meter` is NULL or cannot be read. */
enum status energy_watch_open(struct energy_watch *watch, struct energy_meter *meter,
                              const struct energy_plan *plan, struct energy_use *use);
/* At the end of each epoch. True when all is measured, and if the counter fails. */
bool energy_watch_epoch(struct energy_watch *watch);
void energy_watch_close(struct energy_watch *watch);

#endif
