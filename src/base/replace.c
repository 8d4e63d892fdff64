#define _GNU_SOURCE
#include "src/base/replace.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "src/base/text.h"

static const char MARK[] = ".tessera-", ENDING[] = ".tmp";
static const char LETTERS[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
enum { RANDOM_LETTERS = 6, MOST_LINKS = 40, MOST_TRIES = 100 };

static enum status cannot_write(const struct replacement *replacement, int error) {
    return status_set(STATUS_FAILED, "cannot write %s'%s': %s; the old file, if any, is unchanged",
                      replacement->what, replacement->path, strerror(error));
}

int replace_resolve(const char *path, char *target, size_t size) {
    if (snprintf(target, size, "%s", path) >= (int)size) return ENAMETOOLONG;
    for (int links = 0; links < MOST_LINKS; links++) {
        char link[PATH_MAX], directory[PATH_MAX];
        const ssize_t length = readlink(target, link, sizeof link - 1);
        if (length < 0) return errno == EINVAL || errno == ENOENT ? 0 : errno; /* no link, or no file */
        link[length] = '\0';
        text_directory(target, directory, sizeof directory);
        const int used = link[0] == '/' ? snprintf(target, size, "%s", link)
                                        : snprintf(target, size, "%s/%s", directory, link);
        if (used >= (int)size) return ENAMETOOLONG;
    }
    return ELOOP;
}

static bool is_in_proc(const char *path) {
    char directory[PATH_MAX];
    struct statfs info;
    text_directory(path, directory, sizeof directory);
    return statfs(directory, &info) == 0 && info.f_type == PROC_SUPER_MAGIC;
}

/* Does the path name an open file, such as /dev/stdout, which links to /proc/self/fd/1? */
static bool is_open_file(const char *path) {
    char link[PATH_MAX];
    const ssize_t length = readlink(path, link, sizeof link - 1);
    link[length > 0 ? length : 0] = '\0';
    return is_in_proc(path) || (link[0] == '/' && is_in_proc(link));
}

/* --- temporary files --- */

static bool is_temporary_of(const char *name, const char *target) {
    const size_t base = strlen(target), mark = sizeof MARK - 1;
    if (strncmp(name, target, base) != 0 || strncmp(name + base, MARK, mark) != 0) return false;
    name += base + mark;
    return strspn(name, LETTERS) == RANDOM_LETTERS && strcmp(name + RANDOM_LETTERS, ENDING) == 0;
}

static bool is_same_file(int fd, const char *path) {
    struct stat open, named;
    return fstat(fd, &open) == 0 && lstat(path, &named) == 0 && open.st_dev == named.st_dev &&
           open.st_ino == named.st_ino;
}

/* Unlinks a temporary file that no writer has locked. The name is looked up again under the lock: the writer
   may have renamed it in between. */
static void remove_if_stale(const char *path) {
    const int fd = open(path, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    struct stat info;
    if (fd < 0) return;
    if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && flock(fd, LOCK_EX | LOCK_NB) == 0 &&
        is_same_file(fd, path))
        unlink(path);
    close(fd);
}

static void remove_stale(const char *target) {
    char folder[PATH_MAX], path[2 * PATH_MAX];
    const char *slash = strrchr(target, '/');
    text_directory(target, folder, sizeof folder);
    DIR *directory = opendir(folder);
    if (!directory) return;
    for (const struct dirent *entry; (entry = readdir(directory));) {
        if (!is_temporary_of(entry->d_name, slash ? slash + 1 : target)) continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        remove_if_stale(path);
    }
    closedir(directory);
}

/* Locks a file that was just created. False if another process took it for stale in between. File systems
   without locks have no stale files either: remove_if_stale cannot lock them. */
static bool lock_new(int fd, const char *path) {
    return (flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) && is_same_file(fd, path);
}

/* Creates and locks the temporary file: -1 with errno on failure. */
static int create_temporary(struct replacement *replacement, mode_t mode) {
    for (int tries = 0; tries < MOST_TRIES; tries++) {
        unsigned char random[RANDOM_LETTERS];
        char letters[RANDOM_LETTERS + 1] = "";
        if (getrandom(random, sizeof random, 0) != sizeof random) return -1;
        for (size_t i = 0; i < RANDOM_LETTERS; i++) letters[i] = LETTERS[random[i] % (sizeof LETTERS - 1)];
        snprintf(replacement->temporary, sizeof replacement->temporary, "%s%s%s%s", replacement->target, MARK,
                 letters, ENDING);
        const int fd = open(replacement->temporary, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
        if (fd < 0 && errno != EEXIST) return -1;
        if (fd >= 0 && lock_new(fd, replacement->temporary)) return fd;
        if (fd >= 0) close(fd);
    }
    errno = EEXIST;
    return -1;
}

/* --- open and close --- */

/* `old` is the existing file, or NULL. Returns 0 or errno. */
static int open_temporary(struct replacement *replacement, const struct stat *old) {
    const int error = replace_resolve(replacement->path, replacement->target, sizeof replacement->target);
    if (error) return error;
    if (old && faccessat(AT_FDCWD, replacement->target, W_OK, AT_EACCESS) != 0) return errno;
    remove_stale(replacement->target);
    const int fd = create_temporary(replacement, old ? 0600 : 0666);
    if (fd < 0) return errno;
    if (old) { /* file systems without owners and modes refuse both */
        const bool group =
            fchown(fd, old->st_uid, old->st_gid) == 0 || fchown(fd, (uid_t)-1, old->st_gid) == 0;
        fchmod(fd, old->st_mode & (group ? 0777 : 0707)); /* another group gets no access */
    }
    replacement->out = fdopen(fd, "wb");
    if (replacement->out) return 0;
    const int failure = errno;
    unlink(replacement->temporary);
    close(fd);
    return failure;
}

enum status replace_open(struct replacement *replacement, const char *what, const char *path) {
    struct stat old;
    *replacement = (struct replacement){.what = what};
    if (snprintf(replacement->path, sizeof replacement->path, "%s", path) >= (int)sizeof replacement->path)
        return cannot_write(replacement, ENAMETOOLONG);
    const bool exists = stat(path, &old) == 0;
    if ((exists && !S_ISREG(old.st_mode)) || is_open_file(path)) {
        replacement->out = fopen(path, "wb");
        return replacement->out ? STATUS_OK : cannot_write(replacement, errno);
    }
    const int error = open_temporary(replacement, exists ? &old : NULL);
    return error ? cannot_write(replacement, error) : STATUS_OK;
}

/* After this the new name survives a power failure. */
static void sync_directory(const char *path) {
    char directory[PATH_MAX];
    text_directory(path, directory, sizeof directory);
    const int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    fsync(fd);
    close(fd);
}

/* Returns 0 or errno. */
static int put_in_place(struct replacement *replacement) {
    FILE *out = replacement->out;
    const int earlier = errno; /* that of the write that failed, if one did */
    if (ferror(out)) return earlier ? earlier : EIO;
    if (fflush(out) != 0) return errno;
    if (!replacement->temporary[0]) return 0;
    if (fsync(fileno(out)) != 0 || rename(replacement->temporary, replacement->target) != 0) return errno;
    sync_directory(replacement->target);
    replacement->temporary[0] = '\0';
    return 0;
}

enum status replace_close(struct replacement *replacement, enum status status) {
    const int error = status ? 0 : put_in_place(replacement);
    if (replacement->temporary[0]) unlink(replacement->temporary);
    fclose(replacement->out); /* everything is written; this releases the lock */
    if (status || !error) return status;
    return cannot_write(replacement, error);
}

enum status replace_check(const char *what, const char *path) {
    struct replacement replacement;
    const enum status status = replace_open(&replacement, what, path);
    if (!status) replace_close(&replacement, STATUS_FAILED);
    return status;
}
