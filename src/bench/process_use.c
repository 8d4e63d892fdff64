#include "src/bench/process_use.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool process_use_read(const char *path, struct process_use *use) {
    char text[1024];
    long pages, group;
    FILE *file = fopen(path, "r");
    const size_t length = file ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file) fclose(file);
    text[length] = '\0';
    const char *after = strrchr(text, ')'); /* the second field is the name; then 3, 5, 20 and 24 */
    if (!after || sscanf(after,
                         ") %c %*s %ld %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %ld %*s %*s "
                         "%*s %ld",
                         &use->state, &group, &use->threads, &pages) != 4)
        return false;
    use->group = (pid_t)group;
    use->memory = (double)pages * (double)sysconf(_SC_PAGESIZE);
    return true;
}

bool process_runs(pid_t pid) {
    char path[320];
    bool found = false;
    struct process_use use;
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *tasks = opendir(path);
    for (struct dirent *entry; tasks && !found && (entry = readdir(tasks));) {
        snprintf(path, sizeof path, "/proc/%d/task/%s/stat", (int)pid, entry->d_name);
        found = entry->d_name[0] != '.' && process_use_read(path, &use) && use.state == 'R';
    }
    if (tasks) closedir(tasks);
    return found;
}

bool process_has_others(pid_t group) {
    char path[320];
    bool found = false;
    struct process_use use;
    DIR *processes = opendir("/proc");
    for (struct dirent *entry; processes && !found && (entry = readdir(processes));) {
        const pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10); /* 0: no process */
        snprintf(path, sizeof path, "/proc/%s/stat", entry->d_name);
        found = pid > 0 && pid != group && process_use_read(path, &use) && use.group == group &&
                use.state != 'Z' && use.state != 'X';
    }
    if (processes) closedir(processes);
    return found;
}
