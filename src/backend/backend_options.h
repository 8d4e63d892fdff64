/* The options of a backend as text: --backend NAME:key=value,key=value. */
#ifndef TESSERA_BACKEND_BACKEND_OPTIONS_H
#define TESSERA_BACKEND_BACKEND_OPTIONS_H

#include "kernels/gemm.h"
#include "src/base/status.h"

enum { BACKEND_OPTIONS_TEXT = 512 };

/* One value for each option of a backend. */
struct backend_values {
    struct gemm_value list[GEMM_MOST_OPTIONS];
    char text[BACKEND_OPTIONS_TEXT]; /* the text that the list points into */
};

/* The options part of "NAME:options"; "" if there is none. The name ends at a ':' at the end of the text,
   else at the first ':'; if that stands behind a '/' (a path may contain ':'), at the first ':' that "key="
   follows. */
const char *backend_options_in(const char *backend);

/* Is "NAME:options" a path to a plug-in? */
bool backend_options_of_plugin(const char *backend);

/* The length of the key that the text begins with: letters, digits, '-' and '_'. */
size_t backend_options_key(const char *text);

/* Does the text begin with "key="? In a comma-separated list of backends, such an element continues the
   options of the backend before it. */
bool backend_options_begin(const char *text);

/* The values in `text`, and the fallbacks of all other options. The first option, if it must be given, may be
   written without its key: NAME:VALUE. STATUS_USAGE names the backend, the option, and the nearest known
   option or the allowed values, or an option that must be given. */
enum status backend_options_parse(const struct gemm_backend *backend, const char *text,
                                  struct backend_values *values);

/* Gives each option without a value its fallback. STATUS_USAGE: a fallback is not allowed. */
enum status backend_options_fallbacks(const struct gemm_backend *backend, struct backend_values *values);

/* The first option that must be given but has no value; NULL: there is none. `values` NULL: no option has. */
const struct gemm_option *backend_options_missing(const struct gemm_backend *backend,
                                                  const struct backend_values *values);

/* Writes "NAME:options", or "NAME" without options. */
void backend_options_name(const struct gemm_backend *backend, const char *options, char *name, size_t size);

/* Lists the options with their values, help and fallbacks, a line each. */
void backend_options_list(const struct gemm_backend *backend, char *list, size_t size);

#endif
