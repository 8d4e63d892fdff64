#include "src/base/input.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/pages.h"
#include "src/base/text.h"

enum status input_error(int error, const char *what, const char *path) {
    const bool here = error == ENOMEM || error == EMFILE || error == ENFILE; /* the file may be good */
    return status_set(here ? STATUS_FAILED : STATUS_BAD_DATA, "cannot read %s'%s': %s", what, path,
                      strerror(error));
}

enum status input_open(int *fd, const char *what, const char *path) {
    struct stat info = {0};
    *fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (*fd < 0) return input_error(errno, what, path);
    if (fstat(*fd, &info) == 0 && S_ISREG(info.st_mode)) return STATUS_OK;
    const bool folder = S_ISDIR(info.st_mode);
    close(*fd);
    return status_set(STATUS_BAD_DATA, "cannot read %s'%s': it is %s", what, path,
                      folder ? "a folder; name a file of it" : "not a regular file");
}

static enum status read_descriptor(int fd, uint8_t **bytes, size_t *size, size_t most, const char *path) {
    struct stat info;
    if (fstat(fd, &info) != 0) return input_error(errno, "", path);
    const size_t length = (size_t)info.st_size;
    if (length > most)
        return status_set(STATUS_BAD_DATA, "%s: the file has %s; at most %s are read", path,
                          text_bytes((double)length).text, text_bytes((double)most).text);
    const enum status fits = pages_check(length);
    if (fits) return status_context(fits, "%s", path);
    uint8_t *buffer = malloc(length + 1);
    if (!buffer) return status_set(STATUS_FAILED, "%s: out of memory", path);
    size_t done = 0;
    for (ssize_t got = 1; got > 0 && done < length; done += (size_t)got) {
        got = read(fd, buffer + done, length - done);
        if (got < 0) {
            free(buffer);
            return input_error(errno, "", path);
        }
    }
    *bytes = buffer;
    *size = done; /* less than `length` if the file has just been cut */
    return STATUS_OK;
}

enum status input_bytes(uint8_t **bytes, size_t *size, size_t most, const char *path) {
    int fd;
    enum status status = input_open(&fd, "", path);
    if (status) return status;
    status = read_descriptor(fd, bytes, size, most, path);
    close(fd);
    return status;
}

enum status input_text(char **text, size_t most, const char *path) {
    uint8_t *bytes;
    size_t size;
    const enum status status = input_bytes(&bytes, &size, most, path);
    if (status) return status;
    bytes[size] = '\0';
    *text = (char *)bytes;
    if (strlen(*text) == size) return STATUS_OK;
    free(bytes);
    return status_set(STATUS_BAD_DATA, "%s: not a text file", path);
}
