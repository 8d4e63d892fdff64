#include "src/base/energy.h"

#include <dlfcn.h>
#include <errno.h>
#include <glob.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/status.h"
#include "src/base/text.h"

enum { MOST_PACKAGES = 16, PATH = 512 };

struct package {
    char path[PATH];      /* of its counter, in microjoules */
    uint64_t last, range; /* the counter starts at 0 again after `range` */
};

struct energy_meter {
    bool (*read)(struct energy_meter *meter, double *joules);
    /* NVML, from nvml.h of CUDA 13, whose values are those of every version since energy counters exist */
    void *library, *device;
    int (*total_energy)(void *device, unsigned long long *millijoules);
    int (*shutdown)(void);
    const char *(*error_text)(int error);
    /* RAPL */
    struct package package[MOST_PACKAGES];
    size_t packages;
    double joules; /* since it was opened */
};

/* --- NVML --- */

static bool gpu_read(struct energy_meter *meter, double *joules) {
    unsigned long long millijoules = 0;
    const int error = meter->total_energy(meter->device, &millijoules);
    if (error) status_write("the GPU's energy counter cannot be read: %s", meter->error_text(error));
    *joules = 1e-3 * (double)millijoules;
    return !error;
}

static bool open_device(struct energy_meter *meter, const char *address) {
    int (*start)(void) = NULL, (*stop)(void) = NULL, (*find)(const char *pci, void **device) = NULL;
    const struct {
        const char *name;
        void *to; /* a pointer to a function */
    } all[] = {{"nvmlInit_v2", &start},
               {"nvmlShutdown", &stop},
               {"nvmlErrorString", &meter->error_text},
               {"nvmlDeviceGetHandleByPciBusId_v2", &find},
               {"nvmlDeviceGetTotalEnergyConsumption", &meter->total_energy}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        *(void **)all[i].to = dlsym(meter->library, all[i].name);
        if (*(void **)all[i].to) continue;
        status_write("NVML has no %s: the driver is too old", all[i].name);
        return false;
    }
    int error = start();
    if (!error) {
        meter->shutdown = stop;
        error = find(address, &meter->device);
    }
    if (error) status_write("NVML does not find the GPU %s: %s", address, meter->error_text(error));
    return !error;
}

struct energy_meter *energy_open_gpu(const char *library, const char *address) {
    struct energy_meter *meter = calloc(1, sizeof *meter);
    double joules;
    if (!meter) return status_write("out of memory"), NULL;
    meter->read = gpu_read;
    meter->library = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!meter->library) status_write("NVML cannot be loaded: %s", dlerror());
    if (meter->library && open_device(meter, address) && gpu_read(meter, &joules)) return meter;
    energy_close(meter);
    return NULL;
}

/* --- RAPL --- */

/* Reads a number; false with the reason in the status message. */
static bool read_count(const char *path, uint64_t *count) {
    FILE *file = fopen(path, "r");
    const bool read = file && fscanf(file, "%" SCNu64, count) == 1;
    if (!read) status_write("%s: %s", path, file ? "not a number" : strerror(errno));
    if (file) fclose(file);
    return read;
}

static bool cpu_read(struct energy_meter *meter, double *joules) {
    for (size_t i = 0; i < meter->packages; i++) {
        struct package *package = &meter->package[i];
        uint64_t now;
        if (!read_count(package->path, &now)) return false;
        const uint64_t wrapped = now < package->last ? package->range : 0;
        meter->joules += 1e-6 * (double)(now + wrapped - package->last);
        package->last = now;
    }
    *joules = meter->joules;
    return true;
}

/* A zone of the highest level is a package, or "psys", which contains the packages. */
static bool add_package(struct energy_meter *meter, const char *zone) {
    struct package *package = &meter->package[meter->packages];
    char path[PATH], name[32];
    snprintf(path, sizeof path, "%.400s/name", zone);
    text_find_line(path, "", name, sizeof name);
    if (strncmp(name, "package", 7) != 0 || meter->packages == MOST_PACKAGES) return true;
    snprintf(path, sizeof path, "%.400s/max_energy_range_uj", zone);
    snprintf(package->path, sizeof package->path, "%.400s/energy_uj", zone);
    meter->packages++;
    return read_count(path, &package->range) && read_count(package->path, &package->last);
}

struct energy_meter *energy_open_cpu(const char *folder) {
    struct energy_meter *meter = calloc(1, sizeof *meter);
    char pattern[PATH];
    glob_t zones = {0};
    bool open = meter != NULL;
    if (!meter) return status_write("out of memory"), NULL;
    meter->read = cpu_read;
    snprintf(pattern, sizeof pattern, "%.400s/intel-rapl:*", folder); /* AMD's have this name too */
    glob(pattern, 0, NULL, &zones);
    for (size_t i = 0; i < zones.gl_pathc && open; i++) {
        const char *zone = strrchr(zones.gl_pathv[i], '/') + 1;
        if (strchr(zone, ':') == strrchr(zone, ':')) open = add_package(meter, zones.gl_pathv[i]);
    }
    globfree(&zones);
    if (open && meter->packages) return meter;
    if (open) status_write("%s has no energy counter (RAPL) of a CPU package", folder);
    energy_close(meter);
    return NULL;
}

/* --- both --- */

void energy_close(struct energy_meter *meter) {
    if (!meter) return;
    if (meter->shutdown) meter->shutdown();
    if (meter->library) dlclose(meter->library);
    free(meter);
}

const char *energy_counter(const struct energy_meter *meter) {
    return meter->read == gpu_read ? "NVML" : "RAPL";
}

bool energy_read(struct energy_meter *meter, double *joules) {
    return meter->read(meter, joules);
}
