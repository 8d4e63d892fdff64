/* Backends from shared objects: --backend ./my.so. kernels/gemm.h has the ABI. */
#ifndef TESSERA_BACKEND_PLUGIN_H
#define TESSERA_BACKEND_PLUGIN_H

#include "kernels/gemm.h"
#include "src/base/status.h"

/* Is the name a path? It has a '/', or ends in ".so". */
bool plugin_is_path(const char *name);

/* The backend in the shared object `path` ("my.so" is "./my.so"), for the life of the program; the same file
   gives the same backend again. Its name is the plug-in's own, unless another backend has that: then with the
   path behind it. STATUS_UNAVAILABLE says what is wrong with the file and what to do. Probe and device are
   the registry's business, and whether it multiplies right is that of verify.h. */
enum status plugin_load(const char *path, const struct gemm_backend **backend);

/* The path that the backend was loaded from first, NULL if it is no plug-in. */
const char *plugin_path(const struct gemm_backend *backend);

#endif
