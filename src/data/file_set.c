#include "src/data/file_set.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/input.h"
#include "src/base/text.h"

/* The directory of the source and the part of the name that its files must start with: "" if the source is a
   directory itself. */
static bool split_source(const char *source, char *directory, size_t size, const char **start) {
    struct stat info;
    const char *slash = strrchr(source, '/');
    if (stat(source, &info) == 0 && S_ISDIR(info.st_mode)) {
        *start = "";
        return snprintf(directory, size, "%s", source) < (int)size;
    }
    text_directory(source, directory, size);
    *start = slash ? slash + 1 : source;
    return **start && strlen(source) < size;
}

/* The length of the prefix if the name is a prefix and one of the endings; else -1. */
static int prefix_length(const char *name, const char *start, const char *const *endings) {
    const size_t length = strlen(name), least = strlen(start);
    for (; *endings; endings++) {
        const size_t ending = strlen(*endings), prefix = length - ending;
        if (ending > length || strcmp(name + prefix, *endings) != 0) continue;
        if (prefix == 0) return least ? -1 : 0;
        if (!strchr("-_.", name[prefix - 1]) || strncmp(name, start, least) != 0) continue;
        if (least == 0 || prefix == least + 1) return (int)prefix;
    }
    return -1;
}

bool file_set_path(const struct file_set *set, const char *const *endings, char *path, size_t size) {
    for (; *endings; endings++) {
        snprintf(path, size, "%s/%s%s", set->directory, set->prefix, *endings);
        if (access(path, F_OK) == 0) return true;
    }
    return false;
}

/* Keeps the prefix that is first in the alphabet; returns the number of different ones, up to 2. */
static size_t add_prefix(struct file_set *set, size_t found, const char *name, size_t length) {
    char prefix[sizeof set->prefix];
    if (length >= sizeof prefix) return found;
    snprintf(prefix, sizeof prefix, "%.*s", (int)length, name);
    const int order = found ? strcmp(prefix, set->prefix) : -1;
    if (order < 0) memcpy(set->prefix, prefix, sizeof prefix);
    return found ? found + (order != 0 && found < 2) : 1;
}

size_t file_set_find(struct file_set *set, const char *source, const char *const *endings) {
    const char *start;
    char path[sizeof set->directory + 256];
    size_t found = 0;
    *set = (struct file_set){0};
    if (!split_source(source, set->directory, sizeof set->directory, &start)) return 0;
    if (!*start && file_set_path(set, endings, path, sizeof path)) return 1; /* files without a prefix */
    DIR *directory = opendir(set->directory);
    for (struct dirent *entry; directory && (entry = readdir(directory));) {
        const int length = prefix_length(entry->d_name, start, endings);
        if (length >= 0) found = add_prefix(set, found, entry->d_name, (size_t)length);
    }
    if (directory) closedir(directory);
    return found;
}

enum status file_set_open(struct file_set *set, const char *source, const char *const *endings) {
    const size_t found = file_set_find(set, source, endings);
    if (found == 1) return STATUS_OK;
    if (!found) return status_set(STATUS_BAD_DATA, "'%s' has no files of a data set", source);
    return status_set(
        STATUS_BAD_DATA,
        "'%s' holds several data sets: name one by the start of its files, as in --data %s/%.*s", source,
        set->directory, (int)strlen(set->prefix) - 1, set->prefix);
}

/* A line of EMNIST's mapping: "1 65 97" is the class "Aa". */
static enum status add_mapping(struct class_names *names, char *line, const char *path) {
    char name[CLASS_NAME] = "", *rest = line;
    int64_t code;
    strtok_r(line, " \t\r", &rest); /* the label: lines are in its order */
    for (char *word; (word = strtok_r(NULL, " \t\r", &rest));) {
        if (!text_parse_int(word, &code) || code <= ' ' || code > '~')
            return status_set(STATUS_BAD_DATA, "%s: class %zu has no ASCII character of code '%.20s'", path,
                              names->count, text_is_printable(word) ? word : "?");
        text_append(name, sizeof name, "%c", (char)code);
    }
    return classes_add(names, name, path);
}

static enum status read_mapping(struct class_names *names, const char *path) {
    char *text;
    enum status status = input_text(&text, CLASSES_TEXT, path);
    if (status) return status;
    char *rest = text;
    for (char *line; !status && (line = strsep(&rest, "\n"));)
        if (*text_trim(line)) status = add_mapping(names, line, path);
    free(text);
    return status;
}

enum status file_set_classes(const struct file_set *set, struct class_names *names) {
    static const char *const own[] = {"classes.txt", NULL}, *const mapping[] = {"mapping.txt", NULL};
    struct file_set common = *set;
    char path[sizeof set->directory + 256];
    common.prefix[0] = '\0';
    if (file_set_path(set, own, path, sizeof path) || file_set_path(&common, own, path, sizeof path))
        return classes_read(names, path);
    return file_set_path(set, mapping, path, sizeof path) ? read_mapping(names, path) : STATUS_OK;
}

bool file_set_is_emnist(const char *name) {
    const char *slash = strrchr(name, '/');
    return strncmp(slash ? slash + 1 : name, "emnist-", strlen("emnist-")) == 0;
}
