/* Every GEMM backend and device driver that the program knows, built or not, and plug-ins by their path. */
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

/* Is the entry built, and do its device and its probe say that it works on this machine? If not, the reason
   goes to `why`. */
bool registry_usable(const struct registry_entry *entry, char *why, size_t size);

/* The usable backend of "NAME" or "NAME:options". NAME "auto" is the fastest usable one on the host, and a
   path (./my.so) is a plug-in, which is not verified yet. STATUS_UNAVAILABLE names the reason and the usable
   backends; STATUS_USAGE says what is wrong with the options (backend_options.h). */
enum status registry_find(const char *text, const struct gemm_backend **backend);

/* The first backend that has an option of this key, NULL if none was built. */
const char *registry_option_owner(const char *key);

/* The driver for a backend's device, NULL if not built. */
const struct device_driver *registry_device(enum gemm_device where);

#endif
