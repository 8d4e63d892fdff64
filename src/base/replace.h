/* Replaces a file as a whole. The new contents go to a temporary file in the same directory, which is synced
   and renamed, so that the path always names a whole file, old or new.
   - The mode of an existing file is kept, and its owner where that is allowed. A new file gets 0666 less the
     umask. A file that may not be written is not replaced.
   - A symbolic link stays; the file that it names is replaced.
   - A device, a pipe or a file under /proc (/dev/stdout) is written directly.
   - Temporary names are random: <name>.tessera-XXXXXX.tmp. The writer holds an flock on its temporary file.
     Those for the same target whose writer was killed, and hold no lock, are removed. */
#ifndef TESSERA_BASE_REPLACE_H
#define TESSERA_BASE_REPLACE_H

#include <limits.h>
#include <stddef.h>
#include <stdio.h>

#include "src/base/status.h"

struct replacement {
    FILE *out;                     /* for the new contents */
    const char *what;              /* "the checkpoint ", for messages */
    char path[PATH_MAX];           /* as given */
    char target[PATH_MAX];         /* without symbolic links in the last component */
    char temporary[PATH_MAX + 32]; /* "": out is the target itself */
};

/* Opens the temporary file. STATUS_FAILED with the reason; then replace_close must not be called. `what`
   stands in front of the path in messages: "the checkpoint ", or "". */
enum status replace_open(struct replacement *replacement, const char *what, const char *path);

/* If `status` is STATUS_OK, puts the new file in the place of the old one: STATUS_FAILED if that, or an
   earlier write to `out`, failed. Otherwise discards the new file and returns `status`. The old file is
   unchanged unless STATUS_OK is returned. */
enum status replace_close(struct replacement *replacement, enum status status);

/* Can this path be replaced? Checks directory, name and permissions, and removes stale temporary files. */
enum status replace_check(const char *what, const char *path);

/* Follows symbolic links in the last component of the path, whose target may not exist. Returns 0 or errno.
   */
int replace_resolve(const char *path, char *target, size_t size);

#endif
