/* Counters of the CPU: an event is opened for each thread, because OpenMP and OpenBLAS start theirs early. */
#include <dirent.h>
#include <errno.h>
#include <linux/perf_event.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "src/base/jsonl.h"
#include "src/base/text.h"
#include "src/bench/counters.h"

#define L1D_READ_MISS \
    (PERF_COUNT_HW_CACHE_L1D | PERF_COUNT_HW_CACHE_OP_READ << 8 | PERF_COUNT_HW_CACHE_RESULT_MISS << 16)

const struct cpu_event cpu_events[CPU_EVENTS] = {
    {"cycles", PERF_TYPE_HARDWARE, PERF_COUNT_HW_CPU_CYCLES},
    {"instructions", PERF_TYPE_HARDWARE, PERF_COUNT_HW_INSTRUCTIONS},
    {"l1d_misses", PERF_TYPE_HW_CACHE, L1D_READ_MISS},
    {"cache_references", PERF_TYPE_HARDWARE, PERF_COUNT_HW_CACHE_REFERENCES},
    {"cache_misses", PERF_TYPE_HARDWARE, PERF_COUNT_HW_CACHE_MISSES},
};

void cpu_counters_explain(int error, char *why, size_t size) {
    char paranoid[16];
    text_find_line("/proc/sys/kernel/perf_event_paranoid", "", paranoid, sizeof paranoid);
    switch (error) {
    case ENOENT:
    case ENODEV:
    case EOPNOTSUPP:
        snprintf(why, size,
                 "this machine has no such counter (most virtual machines have none): run it on the bare "
                 "machine, or give the virtual machine a PMU");
        break;
    case EACCES:
    case EPERM:
        snprintf(why, size,
                 "the kernel does not allow it (perf_event_paranoid is %s): run 'sudo sysctl "
                 "kernel.perf_event_paranoid=2', in a container with '--cap-add PERFMON'",
                 paranoid[0] ? paranoid : "unknown");
        break;
    case ENOSYS:
        snprintf(why, size, "this kernel has no perf events: use one with CONFIG_PERF_EVENTS");
        break;
    case EMFILE:
        snprintf(why, size, "too many threads for the limit of open files: raise it with 'ulimit -n 65536'");
        break;
    default:
        snprintf(why, size, "perf_event_open: %s; see perf_event_open(2)", strerror(error));
    }
}

static int open_event(const struct cpu_event *event, pid_t thread) {
    struct perf_event_attr attributes = {.type = event->type,
                                         .size = sizeof attributes,
                                         .config = event->config,
                                         .read_format =
                                             PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING,
                                         .disabled = 1,
                                         .inherit = 1,
                                         .exclude_kernel = 1,
                                         .exclude_hv = 1};
    return (int)syscall(SYS_perf_event_open, &attributes, thread, -1, -1, PERF_FLAG_FD_CLOEXEC);
}

static bool add_thread(struct cpu_counters *counters, const struct cpu_event *events, pid_t thread) {
    if (counters->threads == counters->room) {
        const size_t room = counters->room ? 2 * counters->room : 16;
        int *fds = realloc(counters->fds, room * counters->events * sizeof *fds);
        if (!fds) return false;
        counters->fds = fds;
        counters->room = room;
    }
    int *fds = counters->fds + counters->threads * counters->events;
    for (size_t i = 0; i < counters->events; i++) {
        fds[i] = open_event(&events[i], thread);
        if (fds[i] < 0 && errno == ESRCH) { /* it has ended meanwhile */
            while (i > 0) close(fds[--i]);
            return true;
        }
        if (fds[i] < 0) counters->error = errno;
    }
    counters->threads++;
    return true;
}

static void control(const struct cpu_counters *counters, unsigned long request) {
    for (size_t i = 0; i < counters->threads * counters->events; i++)
        if (counters->fds[i] >= 0) ioctl(counters->fds[i], request, 0);
}

void cpu_counters_start(struct cpu_counters *counters, const struct cpu_event *events, size_t count) {
    *counters = (struct cpu_counters){.events = count};
    DIR *tasks = opendir("/proc/self/task");
    if (!tasks) counters->error = errno;
    for (struct dirent *entry; tasks && (entry = readdir(tasks));)
        if (entry->d_name[0] != '.' && !add_thread(counters, events, (pid_t)atoi(entry->d_name)))
            counters->error = ENOMEM;
    if (tasks) closedir(tasks);
    control(counters, PERF_EVENT_IOC_ENABLE);
}

/* The sum over all threads; NaN if one of them does not have the event, or if it never counted. */
static double read_event(const struct cpu_counters *counters, size_t event, double *share) {
    double sum = 0;
    for (size_t t = 0; t < counters->threads; t++) {
        struct {
            uint64_t value, enabled, running; /* of the thread and those that it started */
        } got;
        const int fd = counters->fds[t * counters->events + event];
        if (fd < 0 || read(fd, &got, sizeof got) != sizeof got) return (double)NAN;
        if (got.enabled == 0) continue; /* the thread slept */
        if (got.running == 0) return (double)NAN;
        const double counted = (double)got.running / (double)got.enabled;
        *share = fmin(*share, counted);
        sum += (double)got.value / counted;
    }
    return counters->threads ? sum : (double)NAN;
}

void cpu_counters_stop(struct cpu_counters *counters, size_t calls, struct counters *to) {
    bool any = false;
    control(counters, PERF_EVENT_IOC_DISABLE);
    *to = (struct counters){.of = COUNTERS_CPU, .share = 1};
    for (size_t i = 0; i < COUNTERS_MOST; i++) to->value[i] = (double)NAN;
    for (size_t i = 0; i < counters->events; i++) {
        to->value[i] = read_event(counters, i, &to->share) / (double)calls;
        any = any || isfinite(to->value[i]);
    }
    if (!any) cpu_counters_explain(counters->error, to->why, sizeof to->why);
    for (size_t i = 0; i < counters->threads * counters->events; i++)
        if (counters->fds[i] >= 0) close(counters->fds[i]);
    free(counters->fds);
    *counters = (struct cpu_counters){0};
}

void counters_add(cJSON *line, const struct counters *counters) {
    if (counters->of == COUNTERS_NONE) return;
    cJSON *object = cJSON_AddObjectToObject(line, "counters");
    const bool cpu = counters->of == COUNTERS_CPU;
    jsonl_text(object, "tool", cpu ? "perf_event_open" : "ncu");
    jsonl_text(object, "reason", counters->why);
    for (size_t i = 0; i < COUNTERS_MOST && !counters->why[0]; i++) {
        const char *key = !cpu ? gpu_counters_key(i) : i < CPU_EVENTS ? cpu_events[i].key : NULL;
        if (key && isfinite(counters->value[i])) cJSON_AddNumberToObject(object, key, counters->value[i]);
    }
    if (!cpu || counters->why[0]) return;
    const long line_bytes = sysconf(_SC_LEVEL1_DCACHE_LINESIZE);
    cJSON_AddNumberToObject(object, "cache_line_bytes", line_bytes > 0 ? (double)line_bytes : 64);
    cJSON_AddNumberToObject(object, "counted_share", counters->share);
}
