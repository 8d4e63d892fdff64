/* ./train new-backend: writes the source of a backend to start from, and says how to compile and try it. */
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "skeletons.h"
#include "src/base/share.h"
#include "src/base/terminal.h"
#include "src/cmd/command.h"
#include "src/cmd/options.h"

/* The examples of docs/your-own-gemm.md. The names of file and backend in `source` are replaced. */
static const struct skeleton {
    const char *ending; /* of the file to write */
    const char *source, *file, *backend;
    const char *what;
    const char *compile; /* before the source file; then `libraries` */
    const char *libraries;
} skeletons[] = {
    {".c", my_gemm_c, "my_gemm.c", "my-gemm", "tiles of C in registers, float32, with OpenMP",
     "gcc -O3 -march=native -fopenmp -shared -fPIC", ""},
    {".cpp", my_gemm_c, "my_gemm.c", "my-gemm", "tiles of C in registers, float32, with OpenMP",
     "g++ -std=c++20 -O3 -march=native -fopenmp -shared -fPIC", ""},
    {".cu", my_gemm_cu, "my_gemm.cu", "my-cuda", "one GPU thread for each element of C, float32",
     "nvcc -O3 -arch=native -shared -Xcompiler -fPIC", ""},
};
static const struct skeleton around_cblas = {".c",
                                             my_blas_c,
                                             "my_blas.c",
                                             "my-blas",
                                             "a wrapper around cblas_sgemm and cblas_dgemm",
                                             "gcc -O3 -shared -fPIC",
                                             " -lopenblas"};

static enum status find_skeleton(const char *path, const struct skeleton **skeleton) {
    const char *dot = strrchr(path, '.');
    for (size_t i = 0; dot && i < sizeof skeletons / sizeof *skeletons; i++)
        if (strcmp(dot, skeletons[i].ending) == 0 || (i == 1 && strcmp(dot, ".cc") == 0)) {
            *skeleton = &skeletons[i];
            return STATUS_OK;
        }
    return status_set(
        STATUS_USAGE,
        "'%s' is no source file: its name must end in .c, .cpp or .cu; 'cblas' writes my_blas.c", path);
}

/* "my-fast" of "dir/my_fast.c": letters, digits and '-'. */
static void name_of(const char *path, char *name, size_t size) {
    const char *slash = strrchr(path, '/'), *start = slash ? slash + 1 : path;
    snprintf(name, size, "%.*s", (int)(strrchr(start, '.') - start), start);
    for (char *at = name; *at; at++)
        if (!isalnum((unsigned char)*at)) *at = '-';
}

/* Where the compiler finds the contract: in the source tree, or installed. */
struct header {
    char flag[PATH_MAX + 2];
    const char *name; /* as #include has it */
};

static struct header find_header(void) {
    struct header header = {"$(pkg-config --cflags tessera)", "<tessera/gemm.h>"};
    char folder[PATH_MAX];
    if (share_find_header(folder, sizeof folder)) header.name = "\"kernels/gemm.h\"";
    if (folder[0]) snprintf(header.flag, sizeof header.flag, "-I%s", folder);
    return header;
}

/* Writes the source, with other names of its file, of its backend and of the header. */
static void write_source(FILE *out, const struct skeleton *skeleton, const char *file, const char *backend) {
    const struct header header = find_header();
    const char *const names[][2] = {
        {skeleton->file, file}, {skeleton->backend, backend}, {"\"kernels/gemm.h\"", header.name}};
    enum { NAMES = sizeof names / sizeof *names };
    for (const char *at = skeleton->source; *at;) {
        size_t i = 0;
        while (i < NAMES && strncmp(at, names[i][0], strlen(names[i][0])) != 0) i++;
        if (i < NAMES) {
            fputs(names[i][1], out);
            at += strlen(names[i][0]);
        } else {
            fputc(*at++, out);
        }
    }
}

static enum status write_file(const char *path, const struct skeleton *skeleton, const char *backend) {
    FILE *out = fopen(path, "wx"); /* never over an existing file */
    if (!out)
        return status_set(STATUS_FAILED, "cannot write %s: %s%s", path, strerror(errno),
                          errno == EEXIST ? "; remove it, or choose another name" : "");
    const char *slash = strrchr(path, '/');
    write_source(out, skeleton, slash ? slash + 1 : path, backend);
    const bool failed = ferror(out) != 0;
    if (fclose(out) == 0 && !failed) return STATUS_OK;
    return status_set(STATUS_FAILED, "cannot write %s: %s", path, strerror(errno));
}

static void print_commands(const char *path, const struct skeleton *skeleton, const char *name) {
    char stem[512];
    const char *slash = strrchr(path, '/');
    snprintf(stem, sizeof stem, "%s%.*s", slash ? "" : "./", (int)(strrchr(path, '.') - path), path);
    printf("wrote %s: the backend '%s', %s\n\n", path, name, skeleton->what);
    printf("compile  %s %s %s%s -o %s.so\n", skeleton->compile, find_header().flag, path, skeleton->libraries,
           stem);
    terminal_print(stdout, 0, "verify   ./train devices --backend %s.so --verify\n", stem);
    terminal_print(stdout, 0, "train    ./train --backend %s.so --epochs 3\n", stem);
    terminal_print(stdout, 0, "compare  ./train bench gemm --backends openblas,%s.so\n", stem);
}

static enum status run_new_backend(int argc, char **argv) {
    static const char *const keys[] = {NULL};
    const char *path = NULL;
    const struct option_set set = {
        .usage = "new-backend FILE.c|FILE.cpp|FILE.cu|cblas",
        .details =
            "Writes the source of a GEMM backend that is right and compiles, to start from, and prints the "
            "commands to compile, verify, train and time it (docs/your-own-gemm.md explains it). 'cblas' "
            "writes my_blas.c, a wrapper around a library; a library with cblas_sgemm needs none: --backend "
            "cblas:FILE.\n"
            "  ./train new-backend fast.c",
        .keys = keys,
        .positional = &path,
    };
    struct config config;
    const struct skeleton *skeleton = &around_cblas;
    char name[128];
    bool help;
    enum status status = options_parse(&set, argc, argv, &config, &help);
    if (status || help) return status;
    if (!path)
        return status_set(STATUS_USAGE, "new-backend needs the file to write: ./train new-backend my_gemm.c");
    if (strcmp(path, "cblas") == 0) {
        path = around_cblas.file;
    } else {
        status = find_skeleton(path, &skeleton);
    }
    if (status) return status;
    name_of(path, name, sizeof name);
    status = write_file(path, skeleton, name);
    if (!status) print_commands(path, skeleton, name);
    return status;
}

const struct command command_new_backend = {"new-backend", "write the source of a GEMM backend to start from",
                                            run_new_backend};
