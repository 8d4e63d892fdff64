/* Backends from shared objects: --backend ./my.so. kernels/gemm.h has the ABI. */
#ifndef TESSERA_BACKEND_PLUGIN_H
#define TESSERA_BACKEND_PLUGIN_H

#include "kernels/gemm.h"
#include "src/base/status.h"

/* Is the name a path? It has a '/', or ends in ".so". */
bool plugin_is_path(const char *name);

/* Checks the table that a plug-in exports, without a call, and copies it; slots that it does not have are
   NULL. STATUS_UNAVAILABLE says what is wrong. `path` is for the message. */
enum status plugin_check(const char *path, const struct gemm_plugin *found, struct gemm_backend *backend);

/* The backend in the shared object `path` ("my.so" is "./my.so"), for the life of the program. If the
   file is already loaded, returns the same backend. If `name_taken` or another plug-in has its name, the path
   is appended to the name. STATUS_UNAVAILABLE says what is wrong with the file and what to do. The registry
   checks probe and device; verify.h checks the results. */
enum status plugin_load(const char *path, bool (*name_taken)(const char *name),
                        const struct gemm_backend **backend);

/* The path that the backend was first loaded from, NULL if it is no plug-in. */
const char *plugin_path(const struct gemm_backend *backend);

#endif
