#include "src/backend/plugin.h"

#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "src/backend/backend_options.h"

/* A plug-in stays loaded until the program ends: threads that it started may run its code. */
struct plugin {
    struct gemm_backend backend; /* a copy; slots that the header of the plug-in did not have are NULL */
    void *handle;
    struct plugin *next;
    char path[512];
    char name[600];
};

static struct plugin *loaded; /* used by the main thread alone */

bool plugin_is_path(const char *name) {
    const size_t length = strlen(name);
    return strchr(name, '/') || (length > 3 && strcmp(name + length - 3, ".so") == 0);
}

static struct plugin *find_handle(const void *handle) {
    struct plugin *plugin = loaded;
    while (plugin && plugin->handle != handle) plugin = plugin->next;
    return plugin;
}

const char *plugin_path(const struct gemm_backend *backend) {
    for (const struct plugin *plugin = loaded; plugin; plugin = plugin->next)
        if (&plugin->backend == backend) return plugin->path;
    return NULL;
}

/* --- checks --- */

#define HOW_TO_BUILD "docs/your-own-gemm.md has the compile line"

static enum status wrong(const char *path, const char *what) {
    return status_set(STATUS_UNAVAILABLE, "'%s' is no backend: %s", path, what);
}

static bool is_source(const char *path) {
    static const char *const endings[] = {".c", ".cc", ".cpp", ".cu"};
    const char *dot = strrchr(path, '.');
    size_t i = 0;
    while (i < 4 && (!dot || strcmp(dot, endings[i]) != 0)) i++;
    return i < 4;
}

static enum status open_object(const char *path, void **handle) {
    struct stat file;
    if (stat(path, &file) != 0)
        return status_set(STATUS_UNAVAILABLE, "cannot load the backend '%s': %s", path, strerror(errno));
    if (!S_ISREG(file.st_mode)) return wrong(path, "it is not a file");
    if (is_source(path))
        return wrong(path, "it is a source file; compile it and name the shared object, as in ./my.so "
                           "(" HOW_TO_BUILD ")");
    *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (*handle) return STATUS_OK;
    return status_set(STATUS_UNAVAILABLE,
                      "cannot load the backend '%s': %s (a plug-in is a shared object, linked with the "
                      "libraries that it needs; " HOW_TO_BUILD ")",
                      path, dlerror());
}

static enum status check_table(const char *path, const struct gemm_plugin *found) {
    if (found->abi == 1)
        return status_set(
            STATUS_UNAVAILABLE,
            "'%s' was built for ABI 1 of kernels/gemm.h, and this program has ABI %d: in its source, let "
            "`create` take a struct gemm_setup (was gemm_options) and move `supports` and `gemm` up to "
            "right behind `device` in the struct gemm_backend; then compile it again",
            path, GEMM_ABI);
    if (found->abi != GEMM_ABI)
        return status_set(
            STATUS_UNAVAILABLE,
            "'%s' was built for ABI %d of kernels/gemm.h, and this program has ABI %d: compile it again "
            "with kernels/gemm.h of this program; `supports` must name each dtype that it has, because "
            "there are new ones (`dtype == GEMM_F32`, not `dtype != GEMM_BF16`)",
            path, found->abi, GEMM_ABI);
    if (!found->backend || found->backend_size < offsetof(struct gemm_backend, create))
        return wrong(path, "its gemm_plugin holds no backend; export it with GEMM_PLUGIN(backend)");
    if (found->backend_size % sizeof(void *))
        return wrong(path, "its table of slots ends within a slot; export it with GEMM_PLUGIN(backend)");
    return STATUS_OK;
}

static enum status check_slots(const char *path, const struct gemm_backend *backend) {
    char what[128];
    const char *missing = !backend->name || !backend->name[0]    ? "name"
                          : !backend->summary                    ? "summary"
                          : !backend->supports                   ? "supports"
                          : !backend->gemm                       ? "gemm"
                          : backend->options && !backend->create ? "create"
                                                                 : NULL;
    if (missing) {
        snprintf(what, sizeof what, "its slot '%s' is empty, but %s needs it (kernels/gemm.h)", missing,
                 backend->options ? "a backend with options" : "every backend");
        return wrong(path, what);
    }
    if (backend->device == GEMM_ON_HOST || backend->device == GEMM_ON_CUDA) return STATUS_OK;
    snprintf(what, sizeof what, "its device is %d, not GEMM_ON_HOST or GEMM_ON_CUDA", (int)backend->device);
    return wrong(path, what);
}

/* Is it a valid key that no option before it has? */
static bool is_new_key(const struct gemm_option *options, size_t index) {
    const char *key = options[index].key;
    bool valid = key[0] && !key[backend_options_key(key)];
    for (size_t i = 0; i < index; i++) valid = valid && strcmp(options[i].key, key) != 0;
    return valid;
}

static enum status check_options(const char *path, const struct gemm_backend *backend) {
    const struct gemm_option *options = backend->options;
    struct backend_values values = {0};
    char what[128];
    for (size_t i = 0; options && options[i].key; i++) {
        if (i == GEMM_MOST_OPTIONS) {
            snprintf(what, sizeof what, "it has more than %d options", GEMM_MOST_OPTIONS);
            return wrong(path, what);
        }
        if (options[i].values && options[i].help && is_new_key(options, i)) continue;
        snprintf(what, sizeof what, "its option '%.32s' has %s", options[i].key,
                 is_new_key(options, i) ? "no values or no help"
                                        : "an invalid key, or that of another option");
        return wrong(path, what);
    }
    if (backend_options_fallbacks(backend, &values) == STATUS_OK) return STATUS_OK;
    return status_context(STATUS_UNAVAILABLE, "'%s' is no backend: the fallback of an option", path);
}

enum status plugin_check(const char *path, const struct gemm_plugin *found, struct gemm_backend *backend) {
    enum status status = check_table(path, found);
    if (status) return status;
    *backend = (struct gemm_backend){0};
    memcpy(backend, found->backend,
           found->backend_size < sizeof *backend ? found->backend_size : sizeof *backend);
    backend->fuses_update = NULL;
    backend->gemm_update = NULL;
    backend->output_layer = NULL;
    status = check_slots(path, backend);
    return status ? status : check_options(path, backend);
}

/* --- loading --- */

/* Tables and logs tell backends apart by name. */
static void set_name(struct plugin *plugin, bool (*name_taken)(const char *name)) {
    const char *own = plugin->backend.name;
    bool taken = name_taken(own);
    for (const struct plugin *other = loaded; other; other = other->next)
        taken = taken || strcmp(own, other->name) == 0;
    if (taken) {
        snprintf(plugin->name, sizeof plugin->name, "%.64s (%s)", own, plugin->path);
    } else {
        snprintf(plugin->name, sizeof plugin->name, "%.64s", own);
    }
    plugin->backend.name = plugin->name;
}

static enum status register_plugin(const char *path, void *handle, struct plugin *plugin,
                                   bool (*name_taken)(const char *name)) {
    const struct gemm_plugin *found = dlsym(handle, "gemm_plugin");
    if (!found)
        return wrong(path,
                     "it has no symbol gemm_plugin; put GEMM_PLUGIN(backend); at the end of its source, "
                     "outside of functions");
    const enum status status = plugin_check(path, found, &plugin->backend);
    if (status) return status;
    plugin->handle = handle;
    snprintf(plugin->path, sizeof plugin->path, "%s", path);
    set_name(plugin, name_taken);
    plugin->next = loaded;
    loaded = plugin;
    return STATUS_OK;
}

enum status plugin_load(const char *name, bool (*name_taken)(const char *name),
                        const struct gemm_backend **backend) {
    char path[sizeof loaded->path];
    void *handle = NULL;
    const int length = snprintf(path, sizeof path, "%s%s", strchr(name, '/') ? "" : "./", name);
    if (length < 0 || (size_t)length >= sizeof path)
        return status_set(STATUS_UNAVAILABLE, "the path of the backend is too long (%d characters)", length);
    enum status status = open_object(path, &handle);
    if (status) return status;
    struct plugin *plugin = find_handle(handle);
    if (plugin) {
        dlclose(handle); /* drops the reference that dlopen added */
        *backend = &plugin->backend;
        return STATUS_OK;
    }
    plugin = calloc(1, sizeof *plugin);
    if (plugin) {
        status = register_plugin(path, handle, plugin, name_taken);
    } else {
        status = status_set(STATUS_FAILED, "out of memory");
    }
    if (status) {
        free(plugin);
        dlclose(handle);
    } else {
        *backend = &plugin->backend;
    }
    return status;
}
