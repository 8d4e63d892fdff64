#include "src/base/logfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct logfile {
    int fd;
    int error; /* errno of the first line that is missing; 0: none */
    char path[];
};

/* The size of a regular file; -1 for a device or a pipe. */
static off_t size_of(int fd) {
    struct stat info;
    return fstat(fd, &info) == 0 && S_ISREG(info.st_mode) ? info.st_size : -1;
}

/* Waits for other writers, but not for ever: one of them may be stopped. Without the lock, and where the file
   system has none, the single write keeps a line whole. Returns true if the file is locked. */
static bool lock(int fd) {
    enum { MOST_TRIES = 1000 };
    const struct timespec pause = {.tv_nsec = 1000000};
    for (int tries = 0; tries < MOST_TRIES; tries++) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0) return true;
        if (errno != EWOULDBLOCK && errno != EINTR) return false;
        nanosleep(&pause, NULL);
    }
    return false;
}

static bool ends_in_a_line(const char *path, off_t size) {
    char last = '\n';
    const int fd = size > 0 ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return true;
    const bool read = pread(fd, &last, 1, size - 1) == 1;
    close(fd);
    return !read || last == '\n';
}

/* Returns 0 or errno. */
static int write_whole(int fd, const char *line, size_t length) {
    while (length) {
        const ssize_t written = write(fd, line, length);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) return errno;
        line += written;
        length -= (size_t)written;
    }
    return 0;
}

enum status logfile_open(struct logfile **log, const char *path, bool append) {
    *log = NULL;
    if (!path[0]) return STATUS_OK;
    struct logfile *file = malloc(sizeof *file + strlen(path) + 1);
    if (!file) return status_set(STATUS_FAILED, "out of memory");
    *file = (struct logfile){
        .fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (append ? 0 : O_TRUNC), 0666)};
    strcpy(file->path, path);
    if (file->fd < 0) {
        const enum status status =
            status_set(STATUS_FAILED, "cannot write the log '%s': %s", path, strerror(errno));
        free(file);
        return status;
    }
    lock(file->fd);
    if (!ends_in_a_line(path, size_of(file->fd))) file->error = write_whole(file->fd, "\n", 1);
    flock(file->fd, LOCK_UN);
    *log = file;
    return STATUS_OK;
}

bool logfile_is_empty(const struct logfile *log) {
    return size_of(log->fd) <= 0;
}

void logfile_write(struct logfile *log, const char *line, size_t length) {
    if (!log) return;
    const bool locked = lock(log->fd);
    const off_t before = size_of(log->fd);
    const int error = write_whole(log->fd, line, length);
    if (error && locked && before >= 0 && ftruncate(log->fd, before) != 0) log->error = errno;
    flock(log->fd, LOCK_UN);
    if (error) logfile_fail(log, error);
}

void logfile_fail(struct logfile *log, int error) {
    if (log && !log->error) log->error = error;
}

enum status logfile_close(struct logfile *log, enum status status) {
    if (!log) return status;
    int error = log->error;
    if (close(log->fd) != 0 && !error) error = errno;
    if (error && !status)
        status = status_set(STATUS_FAILED, "the log '%s' is not complete: %s", log->path, strerror(error));
    free(log);
    return status;
}
