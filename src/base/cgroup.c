#include "src/base/cgroup.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/text.h"

enum { PATH = 1024 };

/* The number that follows `key` at the start of a line; -1 if there is none, or a word ("max"). */
static double read_number(const char *group, const char *file, const char *key) {
    char path[PATH + 64], text[64], *end;
    snprintf(path, sizeof path, "%s/%s", group, file);
    text_find_line(path, key, text, sizeof text);
    const double value = strtod(text, &end);
    return end > text ? value : -1;
}

/* --- one group; the names of the files are those of version 2, then of version 1 --- */

static void limit_cores(const char *group, void *result) {
    double *cores = result, quota, period;
    char path[PATH + 64], text[64];
    snprintf(path, sizeof path, "%s/cpu.max", group);
    text_find_line(path, "", text, sizeof text);
    if (sscanf(text, "%lf %lf", &quota, &period) != 2) { /* "max 100000": no quota */
        quota = read_number(group, "cpu.cfs_quota_us", "");
        period = read_number(group, "cpu.cfs_period_us", "");
    }
    if (quota > 0 && period > 0) *cores = fmin(*cores, quota / period);
}

static void limit_memory(const char *group, void *result) {
    static const struct {
        const char *limit, *usage, *active, *inactive; /* of the group and those below it */
    } files[] = {
        {"memory.max", "memory.current", "active_file ", "inactive_file "},
        {"memory.high", "memory.current", "active_file ", "inactive_file "},
        {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_active_file ", "total_inactive_file "}};
    struct cgroup_memory *memory = result;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        const double limit = read_number(group, files[i].limit, "");
        const double used = limit < 0 ? -1 : read_number(group, files[i].usage, "");
        if (used < 0 || limit - used >= (double)memory->available) continue;
        const double cache = fmax(read_number(group, "memory.stat", files[i].active), 0) +
                             fmax(read_number(group, "memory.stat", files[i].inactive), 0);
        const double left = fmax(limit - fmax(used - cache, 0), 0);
        if (left >= (double)memory->available) continue;
        memory->available = (uint64_t)left;
        memory->limit = files[i].limit;
    }
}

/* --- the groups of the process --- */

/* Reads the group and those above it. In a container the path may be that of the host, where nothing is; the
   folder of the mount is then the group of the container. */
static void read_up(const char *folder, const char *path, void (*read)(const char *group, void *result),
                    void *result) {
    char group[PATH];
    const size_t top = strlen(folder);
    if (top + strlen(path) >= sizeof group) return;
    memcpy(group, folder, top + 1);
    if (strcmp(path, "/") != 0) text_append(group, sizeof group, "%s", path);
    for (;;) {
        read(group, result);
        char *slash = strrchr(group, '/');
        if (!slash || (size_t)(slash - group) < top) return;
        *slash = '\0';
    }
}

static bool lists(const char *controllers, const char *name) {
    const size_t length = strlen(name);
    for (const char *at = controllers;; at++) {
        if (strncmp(at, name, length) == 0 && (at[length] == ',' || !at[length])) return true;
        if (!(at = strchr(at, ','))) return false;
    }
}

/* A line is 4:cpu,cpuacct:/path, or 0::/path in version 2. */
static void read_groups(const struct cgroup_files *files, const char *controller,
                        void (*read)(const char *group, void *result), void *result) {
    char line[PATH], folder[PATH];
    FILE *file = fopen(files->membership, "r");
    while (file && fgets(line, sizeof line, file)) {
        char *controllers = strchr(text_trim(line), ':'),
             *path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path) continue;
        *path++ = '\0';
        controllers++;
        if (*controllers && !lists(controllers, controller)) continue;
        snprintf(folder, sizeof folder, "%.512s%s%s", files->root, *controllers ? "/" : "",
                 *controllers ? controller : "");
        read_up(folder, path, read, result);
    }
    if (file) fclose(file);
}

const struct cgroup_files cgroup_of_process = {"/proc/self/cgroup", "/sys/fs/cgroup"};

double cgroup_cores(const struct cgroup_files *files) {
    double cores = INFINITY;
    read_groups(files, "cpu", limit_cores, &cores);
    return cores;
}

struct cgroup_memory cgroup_memory(const struct cgroup_files *files) {
    struct cgroup_memory memory = {.available = UINT64_MAX, .limit = ""};
    read_groups(files, "memory", limit_memory, &memory);
    return memory;
}
