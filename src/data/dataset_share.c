#define _GNU_SOURCE
#include "src/data/dataset_share.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static size_t image_bytes(const struct dataset *set) {
    return set->count * set->height * set->width;
}

static bool write_all(int fd, const void *bytes, size_t count) {
    for (const char *at = bytes; count;) {
        const ssize_t written = write(fd, at, count);
        if (written <= 0) return false;
        at += written;
        count -= (size_t)written;
    }
    return true;
}

static bool write_set(int fd, const struct dataset *set) {
    return write_all(fd, set->images, image_bytes(set)) && write_all(fd, set->labels, set->count);
}

int dataset_share(const struct dataset_pair *pair) {
    const int fd = memfd_create("data set", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd >= 0 && write_all(fd, pair, sizeof *pair) && write_set(fd, &pair->train) &&
        write_set(fd, &pair->test) &&
        fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
        return fd;
    status_write("cannot share the data set between processes: %s", strerror(errno));
    if (fd >= 0) close(fd);
    return -1;
}

static uint8_t *map_set(struct dataset *set, uint8_t *at) {
    set->images = at;
    set->labels = at + image_bytes(set);
    return set->labels + set->count;
}

enum status dataset_map(struct dataset_pair *pair, int fd) {
    struct stat file;
    void *bytes =
        fstat(fd, &file) == 0 ? mmap(NULL, (size_t)file.st_size, PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (bytes == MAP_FAILED)
        return status_set(STATUS_FAILED, "cannot map the shared data set: %s", strerror(errno));
    memcpy(pair, bytes, sizeof *pair);
    map_set(&pair->test, map_set(&pair->train, (uint8_t *)bytes + sizeof *pair));
    return STATUS_OK;
}
