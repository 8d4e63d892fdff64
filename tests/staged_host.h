/* The host as a device that streams points. A copy happens as late as the contract of device.h allows, and a
   buffer that was released loses its content: a caller that is too early or too late reads wrong values. */
#ifndef TESSERA_TESTS_STAGED_HOST_H
#define TESSERA_TESTS_STAGED_HOST_H

#include "src/device/device.h"

extern struct device_driver staged_host;

/* Uploads of stages so far, and page-locked bytes that are not freed. */
extern size_t staged_uploads, staged_pinned;

/* Fills the table. */
void staged_host_open(void);

#endif
