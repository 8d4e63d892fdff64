/* The files that come with the program: configs, data. They are looked for in the working directory, in the
   data folder of the user, in that of an installation, and beside the program (the source tree). */
#ifndef TESSERA_BASE_SHARE_H
#define TESSERA_BASE_SHARE_H

#include <stdbool.h>
#include <stddef.h>

enum share_folder { SHARE_HERE, SHARE_OF_USER, SHARE_INSTALLED, SHARE_BESIDE, SHARE_FOLDERS };

/* Writes the path of `name` in this folder; false after the last. The file may not exist. In SHARE_HERE it is
   `name` itself; an absolute name, or one that starts with '.', is in no other. */
bool share_path(enum share_folder folder, const char *name, char *path, size_t size);

/* The path of a config file as --config names it: a path; "fast.cfg" or "fast" for configs/fast.cfg; "-" for
   the standard input. `name` itself if there is no such file. */
void share_find_config(const char *name, char *path, size_t size);

/* The folder to compile plug-ins with (-I). True: it has "kernels/gemm.h", in the source tree. False: it has
   "tessera/gemm.h", of an installation; "" if there is none. */
bool share_find_header(char *folder, size_t size);

#endif
