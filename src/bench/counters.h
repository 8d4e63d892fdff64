/* Hardware counters of one GEMM call: of the CPU from perf_event_open(2), of an NVIDIA GPU from Nsight
   Compute (ncu), which runs `bench call` of this program. */
#ifndef TESSERA_BENCH_COUNTERS_H
#define TESSERA_BENCH_COUNTERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "src/bench/problem.h"
#include "src/nn/config.h"

enum { COUNTERS_MOST = 20 };
#define COUNTERS_RANGE "counted" /* the NVTX range of the call */

struct counters {
    enum { COUNTERS_NONE /* nothing was asked for */, COUNTERS_CPU, COUNTERS_GPU } of;
    char why[640]; /* not available: the reason and what to do next; else "" */
    bool nowhere;  /* for this reason no other call is counted on this GPU either */
    double
        value[COUNTERS_MOST]; /* of a call, in the order of the table of the CPU or GPU; NaN: not available */
    /* The least share of the time in which a counter of the CPU counted. Below 1 the kernel multiplexed them,
       and the values are scaled up. */
    double share;
};

/* Adds the object "counters": the values by name, or "reason". Adds nothing if nothing was asked for. */
void counters_add(cJSON *line, const struct counters *counters);

/* --- the CPU, in the process that calls the GEMM --- */

/* As in struct perf_event_attr. */
struct cpu_event {
    const char *key;
    uint32_t type;
    uint64_t config;
};
enum { CPU_EVENTS = 5 };
extern const struct cpu_event cpu_events[CPU_EVENTS];

struct cpu_counters {
    size_t events, threads, room;
    int *fds;  /* [threads][events]; -1: this kernel does not have the event */
    int error; /* errno of the last event that did not open; 0 if all did */
};

/* Opens the events for every thread of this process, and those that it will start, and starts counting user
   code. `count` is at most COUNTERS_MOST. */
void cpu_counters_start(struct cpu_counters *counters, const struct cpu_event *events, size_t count);
/* Stops, reads and closes. The values are those of one of `calls`. */
void cpu_counters_stop(struct cpu_counters *counters, size_t calls, struct counters *to);
/* Writes why perf_event_open failed with this errno, and what to do. */
void cpu_counters_explain(int error, char *why, size_t size);

/* --- the GPU, in a process of its own --- */

/* Multiplies once with config->backend under ncu, which the PATH has. `program` is this program; NULL:
   /proc/self/exe. */
void gpu_counters_take(struct counters *to, const char *program, const struct config *config,
                       enum gemm_dtype dtype, const struct gemm_shape *shape, bool warm);
/* Reads the output of ncu --csv --page raw, which it changes. Several kernels: bytes, cycles and seconds add
   up; shares are means weighted by time. */
void gpu_counters_parse(struct counters *to, char *output);
/* The key of a counter of the GPU, NULL after the last. */
const char *gpu_counters_key(size_t index);

#endif
