#include "src/base/input.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum status input_error(int error, const char *what, const char *path) {
    const bool here = error == ENOMEM || error == EMFILE || error == ENFILE; /* the file may be good */
    return status_set(here ? STATUS_FAILED : STATUS_BAD_DATA, "cannot read %s'%s': %s", what, path,
                      strerror(error));
}

enum status input_open(int *fd, const char *what, const char *path) {
    struct stat info;
    *fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (*fd < 0) return input_error(errno, what, path);
    if (fstat(*fd, &info) == 0 && S_ISREG(info.st_mode)) return STATUS_OK;
    close(*fd);
    return status_set(STATUS_BAD_DATA, "cannot read %s'%s': it is not a regular file", what, path);
}
