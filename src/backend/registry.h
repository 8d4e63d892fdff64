/* Who is plugged in: every GEMM backend and device driver that the program knows, built or not, and plug-ins
   by their path. */
#ifndef TESSERA_BACKEND_REGISTRY_H
#define TESSERA_BACKEND_REGISTRY_H

#include "kernels/gemm.h"
#include "src/base/status.h"
#include "src/device/device.h"

struct registry_entry {
    const char *name;                   /* the key of --backend */
    const struct gemm_backend *backend; /* NULL: not built */
    const char *missing;                /* why it was not built and what to install; NULL if it was */
};

size_t registry_count(void);
const struct registry_entry *registry_at(size_t index);

/* Is the entry built, its device there and its probe content? If not, the reason goes to `why`. */
bool registry_usable(const struct registry_entry *entry, char *why, size_t size);

/* The usable backend of that name; "auto" is the fastest usable one on the host, and a path (./my.so) is a
   plug-in, still to be verified. Else STATUS_UNAVAILABLE with the reason and the list of those that are
   usable. */
enum status registry_find(const char *name, const struct gemm_backend **backend);

/* The driver for a backend's device, NULL if not built. */
const struct device_driver *registry_device(enum gemm_device where);

#endif
