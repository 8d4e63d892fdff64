/* A double of NVML: one GPU, at 0000:19:00.0, that has used 1.5 J more at each reading. */
#include <stdlib.h>
#include <string.h>

int nvmlInit_v2(void);
int nvmlShutdown(void);
const char *nvmlErrorString(int error);
int nvmlDeviceGetHandleByPciBusId_v2(const char *address, void **device);
int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *millijoules);

enum { SUCCESS = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6 };
static int readings;
static int gpus[2]; /* the second has no counter */

int nvmlInit_v2(void) {
    readings = 0;
    return SUCCESS;
}

int nvmlShutdown(void) {
    readings = -1;
    return SUCCESS;
}

const char *nvmlErrorString(int error) {
    return error == NOT_SUPPORTED ? "Not Supported" : error == NOT_FOUND ? "Not Found" : "Success";
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *address, void **device) {
    if (strcmp(address, "0000:19:00.0") == 0) *device = &gpus[0];
    if (strcmp(address, "0000:1A:00.0") == 0) *device = &gpus[1];
    return *device ? SUCCESS : NOT_FOUND;
}

int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *millijoules) {
    *millijoules = 1500ull * (unsigned)readings++ + 7;
    return device == &gpus[0] && readings > 0 ? SUCCESS : NOT_SUPPORTED;
}
