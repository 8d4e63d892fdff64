/* Counters of energy: of an NVIDIA GPU, read by NVML, and of the CPU's packages, which Linux reads by
   RAPL. */
#ifndef TESSERA_BASE_ENERGY_H
#define TESSERA_BASE_ENERGY_H

#include <stdbool.h>

#define ENERGY_NVML "libnvidia-ml.so.1"   /* part of the driver */
#define ENERGY_RAPL "/sys/class/powercap" /* all packages; their files may be readable by root alone */

struct energy_meter;

/* The meter of the GPU at a PCI address ("0000:19:00.0"), by this library. NULL if there is none, and the
   status message says why. */
struct energy_meter *energy_open_gpu(const char *library, const char *address);
/* The same of the CPU, from this folder. */
struct energy_meter *energy_open_cpu(const char *folder);
void energy_close(struct energy_meter *meter);

/* "NVML", "RAPL" */
const char *energy_counter(const struct energy_meter *meter);

/* Joules from an unknown start; what counts is the difference of two readings. A GPU updates its counter
   every 0.1 s or less. RAPL's wraps around: read it at least every few minutes. False, with the reason in the
   status message, if it cannot be read. */
bool energy_read(struct energy_meter *meter, double *joules);

#endif
