#include "src/base/share.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/text.h"

/* $XDG_DATA_HOME/tessera; the working directory if the user has no home. */
static void user_folder(char *folder, size_t size) {
    const char *data = getenv("XDG_DATA_HOME"), *home = getenv("HOME");
    if (data && data[0] == '/') {
        snprintf(folder, size, "%s/tessera", data);
    } else {
        snprintf(folder, size, "%s", home && home[0] ? home : ".");
        if (home && home[0]) text_append(folder, size, "/.local/share/tessera");
    }
}

/* The folder of the program. */
static void program_folder(char *folder, size_t size) {
    char program[PATH_MAX];
    const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    program[length > 0 ? length : 0] = '\0';
    text_directory(program, folder, size);
}

/* PREFIX/share/tessera, where the program is in PREFIX/bin. */
static void installed_folder(char *folder, size_t size) {
    char program[PATH_MAX], prefix[PATH_MAX];
    program_folder(program, sizeof program);
    text_directory(program, prefix, sizeof prefix);
    snprintf(folder, size, "%.*s/share/tessera", PATH_MAX - 32, prefix);
}

bool share_path(enum share_folder folder, const char *name, char *path, size_t size) {
    static void (*const folders[])(char *, size_t) = {NULL, user_folder, installed_folder, program_folder};
    char above[PATH_MAX];
    if (folder == SHARE_FOLDERS || (folder != SHARE_HERE && (name[0] == '/' || name[0] == '.'))) return false;
    if (folder == SHARE_HERE) {
        snprintf(path, size, "%s", name);
    } else {
        folders[folder](above, sizeof above);
        snprintf(path, size, "%s/%s", above, name);
    }
    return true;
}

bool share_find_header(char *folder, size_t size) {
    char program[PATH_MAX], prefix[PATH_MAX], path[PATH_MAX + 32];
    program_folder(program, sizeof program);
    text_directory(program, prefix, sizeof prefix);
    snprintf(path, sizeof path, "%s/kernels/gemm.h", program);
    const bool here = access("kernels/gemm.h", R_OK) == 0, beside = access(path, R_OK) == 0;
    snprintf(path, sizeof path, "%s/include/tessera/gemm.h", prefix);
    const bool installed = access(path, R_OK) == 0;
    text_directory(path, prefix, sizeof prefix); /* .../include/tessera */
    text_directory(prefix, path, sizeof path);
    snprintf(folder, size, "%s", here ? "." : beside ? program : installed ? path : "");
    return here || beside;
}

void share_find_config(const char *name, char *path, size_t size) {
    static const char *const spellings[][2] = {{"", ""}, {"configs/", ""}, {"configs/", ".cfg"}};
    const bool is_path = name[0] == '/' || name[0] == '.';
    char spelled[PATH_MAX];
    struct stat info;
    for (size_t s = 0; s < (is_path ? 1 : sizeof spellings / sizeof *spellings); s++) {
        snprintf(spelled, sizeof spelled, "%s%s%s", spellings[s][0], name, spellings[s][1]);
        for (enum share_folder i = SHARE_HERE; share_path(i, spelled, path, size); i++)
            if (stat(path, &info) == 0 && !S_ISDIR(info.st_mode)) return;
    }
    snprintf(path, size, "%s", strcmp(name, "-") == 0 ? "/dev/stdin" : name);
}
