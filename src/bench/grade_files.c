#define _GNU_SOURCE
#include "src/bench/grade_files.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "src/backend/backend_options.h"
#include "src/base/hash.h"
#include "src/base/input.h"
#include "src/base/memory.h"
#include "src/base/process.h"
#include "src/base/profile.h"
#include "src/base/share.h"
#include "src/base/text.h"

/* --- the list --- */

static const char *const endings[] = {".so", ".c", ".cc", ".cpp", ".cu"};
enum { SHARED_OBJECT, SOURCE_C, SOURCE_CC, SOURCE_CPP, SOURCE_CU, ENDINGS };

/* The index of the ending; ENDINGS: none of them. */
static int ending_of(const char *path) {
    const char *dot = strrchr(path, '.');
    int i = 0;
    while (i < ENDINGS && (!dot || strcmp(dot, endings[i]) != 0)) i++;
    return i;
}

static enum status no_memory(void) {
    return status_set(STATUS_FAILED, "out of memory");
}

/* `options` is the end of `name`, and `length` the bytes of the path. */
static enum status add(struct submissions *to, const char *name, const char *options, const char *path,
                       size_t length) {
    if (to->count == to->capacity) {
        const size_t capacity = to->capacity ? 2 * to->capacity : 64;
        struct submission *list = memory_resize(to->list, capacity * sizeof *list);
        if (!list) return no_memory();
        to->list = list;
        to->capacity = capacity;
    }
    struct submission *one = &to->list[to->count];
    *one = (struct submission){.name = memory_copy(name), .path = strndup(path, length)};
    if (!one->name || !one->path) {
        free(one->name);
        free(one->path);
        return no_memory();
    }
    text_clean(one->name); /* it is printed */
    one->options = one->name + (options - name);
    to->count++;
    return STATUS_OK;
}

/* nftw passes no context. */
static struct submissions *found;
static const char *root, *left_out;
static enum status walk_status;

static bool is_same(const struct stat *one, const char *path) {
    struct stat other;
    return stat(path, &other) == 0 && one->st_dev == other.st_dev && one->st_ino == other.st_ino;
}

static int visit(const char *path, const struct stat *info, int type, struct FTW *at) {
    const char *name = path + strlen(root);
    while (*name == '/') name++;
    if (at->level && path[at->base] == '.') return FTW_SKIP_SUBTREE;
    if (type == FTW_D && is_same(info, left_out)) return FTW_SKIP_SUBTREE;
    if (type == FTW_DNR) walk_status = input_error(EACCES, "the folder ", path);
    if (type == FTW_F && ending_of(path) < ENDINGS)
        walk_status = add(found, name, name + strlen(name), path, strlen(path)); /* without options */
    return walk_status ? FTW_STOP : FTW_CONTINUE;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const struct submission *)a)->name, ((const struct submission *)b)->name);
}

static enum status add_folder(struct submissions *submissions, const char *path, const char *except) {
    const size_t before = submissions->count;
    found = submissions;
    root = path;
    left_out = except;
    walk_status = STATUS_OK;
    if (nftw(path, visit, 16, FTW_ACTIONRETVAL) < 0) return input_error(errno, "the folder ", path);
    if (walk_status) return walk_status;
    if (submissions->count == before)
        return status_set(STATUS_BAD_DATA, "'%s' has no .so, .c, .cc, .cpp or .cu file", path);
    qsort(submissions->list + before, submissions->count - before, sizeof *submissions->list, by_name);
    return STATUS_OK;
}

enum status submissions_add(struct submissions *submissions, const char *path, const char *except) {
    struct stat info;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) return add_folder(submissions, path, except);
    const char *options = backend_options_in(path);
    const size_t length = options[0] ? (size_t)(options - path) - 1 : strlen(path);
    char *file = strndup(path, length);
    if (!file) return no_memory();
    enum status status = stat(file, &info) == 0 ? STATUS_OK : input_error(errno, "", file);
    if (!status && (!S_ISREG(info.st_mode) || ending_of(file) == ENDINGS))
        status = status_set(STATUS_BAD_DATA, "'%s' is no .so, .c, .cc, .cpp or .cu file", file);
    free(file);
    return status ? status : add(submissions, path, options, path, length);
}

void submissions_free(struct submissions *submissions) {
    for (size_t i = 0; i < submissions->count; i++) {
        free(submissions->list[i].name);
        free(submissions->list[i].path);
    }
    free(submissions->list);
    *submissions = (struct submissions){0};
}

enum status submission_hash(const struct submission *submission, uint64_t *hash) {
    unsigned char bytes[1 << 14];
    int fd;
    const enum status status = input_open(&fd, "", submission->path);
    if (status) return status;
    *hash = hash_bytes(HASH_START, submission->options, strlen(submission->options) + 1);
    ssize_t got;
    while ((got = read(fd, bytes, sizeof bytes)) > 0) *hash = hash_bytes(*hash, bytes, (size_t)got);
    close(fd);
    return got < 0 ? input_error(errno, "", submission->path) : STATUS_OK;
}

/* --- compilation --- */

bool submission_is_source(const struct submission *submission) {
    return ending_of(submission->path) != SHARED_OBJECT;
}

static const char *line_of(const struct assignment *assignment, const char *path) {
    const int ending = ending_of(path);
    return ending == SOURCE_C    ? assignment->compile_c
           : ending == SOURCE_CU ? assignment->compile_cu
                                 : assignment->compile_cpp;
}

/* The compiler finds kernels/gemm.h from any folder, and that of an installation as tessera/gemm.h, too. */
static bool add_include_folders(void) {
    char folder[PATH_MAX], installed[PATH_MAX], path[4 * PATH_MAX];
    const char *others = getenv("CPATH");
    share_find_header(folder, sizeof folder);
    share_path(SHARE_INSTALLED, "", installed, sizeof installed);
    if (!folder[0]) return true;
    snprintf(path, sizeof path, "%s:%s%s%.4000s", folder, installed, others ? ":" : "", others ? others : "");
    return setenv("CPATH", path, 1) == 0;
}

/* In the child: the shell in a process group of its own. */
static _Noreturn void run_line(const char *line, const char *source, const char *output, int log) {
    const int null = open("/dev/null", O_RDONLY);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (null >= 0 && dup2(null, STDIN_FILENO) >= 0 && dup2(log, STDOUT_FILENO) >= 0 &&
        dup2(log, STDERR_FILENO) >= 0 && setenv("SOURCE", source, 1) == 0 &&
        setenv("OUTPUT", output, 1) == 0 && add_include_folders())
        execl("/bin/sh", "sh", "-c", line, (char *)NULL);
    _exit(127);
}

/* The exit code of the child; -1 if a signal ended it, -2 if it was ended: it took longer than `seconds`, or
   the program is interrupted. */
static int await(pid_t child, double seconds) {
    const double start = clock_seconds();
    int how = 0;
    pid_t ended;
    while ((ended = waitpid(child, &how, WNOHANG)) == 0 && clock_seconds() - start < seconds &&
           !process_is_interrupted())
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    kill(-child, SIGKILL);
    if (ended == 0) {
        while (waitpid(child, &how, 0) < 0 && errno == EINTR) continue;
        return -2;
    }
    return WIFEXITED(how) ? WEXITSTATUS(how) : -1;
}

/* The first line of the log that has the word "error", or else its first line. */
static void find_error(const char *log, char *text, size_t size) {
    char *line = NULL;
    size_t room = 0;
    FILE *file = fopen(log, "r");
    snprintf(text, size, "the compile line says nothing; see compile-c in the assignment");
    for (bool first = true; file && getline(&line, &room, file) > 0; first = false) {
        line[strcspn(line, "\n")] = '\0';
        text_clean(line); /* it may quote the source */
        const bool error = strstr(line, "error") != NULL;
        if (first || error) snprintf(text, size, "%s", line);
        if (error) break;
    }
    free(line);
    if (file) fclose(file);
}

enum status submission_compile(const struct submission *submission, const struct assignment *assignment,
                               const char *output, const char *log) {
    char error[512];
    const int fd = open(log, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) return status_set(STATUS_FAILED, "cannot write '%s': %s", log, strerror(errno));
    unlink(output);
    const pid_t child = fork();
    if (child == 0) run_line(line_of(assignment, submission->path), submission->path, output, fd);
    const int code = child < 0 ? -1 : await(child, assignment->compile_seconds);
    close(fd);
    if (code == 0 && access(output, R_OK) == 0) return STATUS_OK;
    if (code == -2)
        return status_set(STATUS_FAILED, "the compilation took more than %g s (--compile-seconds)",
                          assignment->compile_seconds);
    if (code == 0) return status_set(STATUS_FAILED, "the compile line wrote no \"$OUTPUT\"");
    find_error(log, error, sizeof error);
    return status_set(STATUS_FAILED, "%s", error);
}
