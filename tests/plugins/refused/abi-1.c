/* Built against the header of ABI 1: the start of its struct gemm_plugin, and a backend, never read. */
#include <stddef.h>

struct gemm_plugin {
    int abi;
    size_t backend_size;
    const void *backend;
};

extern const struct gemm_plugin gemm_plugin;
const struct gemm_plugin gemm_plugin = {1, 136, "a struct gemm_backend of ABI 1"};
