/* The limits of the control groups (cgroups, version 1 and 2) that the process is in: what a container, a
   batch system or a service may use. */
#ifndef TESSERA_BASE_CGROUP_H
#define TESSERA_BASE_CGROUP_H

#include <stdint.h>

/* Where to read: the file that names the groups, and the folder where they are mounted. A missing file limits
   nothing. */
struct cgroup_files {
    const char *membership, *root;
};
extern const struct cgroup_files cgroup_of_process;

/* The least CPU quota of the group and of the groups above it, as a number of cores; INFINITY: none. */
double cgroup_cores(const struct cgroup_files *files);

struct cgroup_memory {
    uint64_t available; /* bytes below the limit; page cache counts as free. UINT64_MAX: no limit */
    const char *limit;  /* "memory.max", the name of the file with this limit; "" */
};
/* Of the group, or of one above it, that leaves least. */
struct cgroup_memory cgroup_memory(const struct cgroup_files *files);

#endif
