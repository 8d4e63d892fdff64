/* Files on disk: replacement as a whole, log lines of several processes, two names of one file. */
#include "tests/support.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "src/base/files.h"
#include "src/base/logfile.h"
#include "src/base/replace.h"

static void write_text(const char *path, const char *text) {
    support_write(path, text, strlen(text));
}

static void assert_text(const char *path, const char *wanted) {
    size_t length;
    char *text = (char *)support_read(path, &length);
    text[length] = '\0';
    assert_string_equal(text, wanted);
    free(text);
}

static enum status replace(const char *path, const char *text) {
    struct replacement file;
    const enum status status = replace_open(&file, "", path);
    if (status) return status;
    fputs(text, file.out);
    return replace_close(&file, STATUS_OK);
}

static unsigned mode_of(const char *path) {
    struct stat info;
    assert_int_equal(lstat(path, &info), 0);
    return info.st_mode;
}

static void mode_and_links_are_kept(void **state) {
    (void)state;
    const char *path = support_path("kept"), *link = support_path("link"), *chain = support_path("chain");
    const mode_t before = umask(027);
    assert_status(replace(path, "new"), STATUS_OK);
    umask(before);
    assert_int_equal(mode_of(path) & 07777, 0640); /* a new file: as open creates it */
    static const mode_t modes[] = {0600, 0644, 0660};
    for (size_t i = 0; i < 3; i++) {
        chmod(path, modes[i]);
        assert_status(replace(path, "again"), STATUS_OK);
        assert_int_equal(mode_of(path) & 07777, modes[i]);
    }
    assert_int_equal(symlink("kept", link), 0); /* relative to its own folder */
    assert_int_equal(symlink(link, chain), 0);
    assert_status(replace(chain, "through links"), STATUS_OK);
    assert_true(S_ISLNK(mode_of(link)) && S_ISLNK(mode_of(chain)));
    assert_text(path, "through links");
    assert_int_equal(unlink(path), 0);
    assert_status(replace(link, "made"), STATUS_OK); /* a link may name a file to come */
    assert_true(S_ISLNK(mode_of(link)));
    assert_text(path, "made");
    const char *loop = support_path("loop");
    assert_int_equal(symlink(loop, loop), 0);
    assert_status(replace(loop, ""), STATUS_FAILED);
    assert_says(status_message(), "Too many levels of symbolic links");
}

static void protected_files_are_kept(void **state) {
    (void)state;
    const char *path = support_path("protected");
    write_text(path, "precious");
    chmod(path, 0400);
    if (access(path, W_OK) == 0) {
        print_message("skipped: this user may write every file\n");
        skip();
    }
    assert_status(replace(path, "new"), STATUS_FAILED);
    assert_says(status_message(), "Permission denied; the old file, if any, is unchanged");
    assert_text(path, "precious");
}

static void discarded_files_leave_the_old_one(void **state) {
    (void)state;
    struct replacement file;
    const char *path = support_path("discarded");
    write_text(path, "old");
    assert_status(replace_open(&file, "", path), STATUS_OK);
    fputs("half of", file.out);
    assert_int_equal(access(file.temporary, F_OK), 0);
    assert_status(replace_close(&file, STATUS_INTERRUPTED), STATUS_INTERRUPTED);
    assert_int_not_equal(access(file.temporary, F_OK), 0);
    assert_text(path, "old");
    assert_status(replace_open(&file, "the page ", support_path("no-such/page")), STATUS_FAILED);
    assert_says(status_message(), "cannot write the page '");
    assert_says(status_message(), "No such file or directory");
    assert_status(replace_open(&file, "", support_path(".")), STATUS_FAILED);
}

/* Devices and open files cannot be renamed over. */
static void devices_are_written_directly(void **state) {
    (void)state;
    char name[64];
    const char *path = support_path("open");
    const int fd = open(path, O_RDWR | O_CREAT, 0666);
    assert_true(fd >= 0);
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    assert_status(replace(name, "direct"), STATUS_OK);
    char text[8] = "";
    assert_int_equal(pread(fd, text, 7, 0), 6);
    assert_string_equal(text, "direct");
    close(fd);
    assert_status(replace("/dev/null", "x"), STATUS_OK);
    assert_true(S_ISCHR(mode_of("/dev/null")));
    if (access("/dev/full", W_OK) != 0) return;
    assert_status(replace("/dev/full", "x"), STATUS_FAILED);
    assert_says(status_message(), "No space left on device");
}

static void stale_temporaries_are_removed(void **state) {
    (void)state;
    struct replacement live;
    const char *path = support_path("model");
    static const char *const others[] = {"model.tessera-abc.tmp",    "model.tessera-abcde1.tmp.x",
                                         "model.backup.tmp",         "model.tessera-abc_e1.tmp",
                                         "other.tessera-abcde1.tmp", "model.12345.tmp"};
    for (size_t i = 0; i < 6; i++) write_text(support_path(others[i]), "");
    const char *stale = support_path("model.tessera-abcde1.tmp"),
               *link = support_path("model.tessera-abcde2.tmp");
    write_text(stale, "half");
    assert_int_equal(symlink(support_path("other"), link), 0);
    assert_status(replace_open(&live, "", path), STATUS_OK); /* locks its temporary file */
    assert_status(replace_check("", path), STATUS_OK);
    assert_int_not_equal(access(stale, F_OK), 0);
    assert_true(S_ISLNK(mode_of(link)));
    for (size_t i = 0; i < 6; i++) assert_int_equal(access(support_path(others[i]), F_OK), 0);
    fputs("live", live.out);
    assert_status(replace_close(&live, STATUS_OK), STATUS_OK);
    assert_text(path, "live");
}

/* --- several processes --- */

enum { LINE = 3000, LINES = 300 };

/* Each line is one letter many times. */
static void append_lines(const char *path, char letter) {
    struct logfile *log;
    char line[LINE + 1];
    memset(line, letter, LINE);
    line[LINE] = '\n';
    if (logfile_open(&log, path, true)) _exit(1);
    for (int i = 0; i < LINES; i++) logfile_write(log, line, sizeof line);
    _exit(logfile_close(log, STATUS_OK) ? 1 : 0);
}

static pid_t start(void (*work)(const char *path, char letter), const char *path, char letter) {
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) work(path, letter);
    return child;
}

static void assert_ends(pid_t child) {
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void lines_of_two_processes_stay_whole(void **state) {
    (void)state;
    size_t length, lines = 0;
    const char *path = support_path("shared.jsonl");
    const pid_t a = start(append_lines, path, 'a'), b = start(append_lines, path, 'b');
    assert_ends(a);
    assert_ends(b);
    char *text = (char *)support_read(path, &length);
    assert_int_equal(length, (size_t)2 * LINES * (LINE + 1));
    for (const char *line = text; line < text + length; line += LINE + 1, lines++) {
        assert_int_equal(line[LINE], '\n');
        for (int i = 1; i < LINE; i++) assert_int_equal(line[i], line[0]);
    }
    free(text);
}

/* A log that lacks its last newline gets one, so that the next line stands alone. */
static void logs_continue_on_a_line_of_their_own(void **state) {
    (void)state;
    struct logfile *log;
    const char *path = support_path("torn.jsonl");
    write_text(path, "{\"whole\":1}\n{\"to");
    assert_status(logfile_open(&log, path, true), STATUS_OK);
    logfile_write(log, "next\n", 5);
    assert_status(logfile_close(log, STATUS_OK), STATUS_OK);
    assert_text(path, "{\"whole\":1}\n{\"to\nnext\n");
    assert_status(logfile_open(&log, path, false), STATUS_OK);
    assert_true(logfile_is_empty(log));
    assert_status(logfile_close(log, STATUS_OK), STATUS_OK);
    assert_text(path, "");
}

/* A disk that is full within a line leaves no half line behind; a process that keeps the lock does not stop
   others. */
static void lines_are_whole_or_absent(void **state) {
    (void)state;
    struct logfile *log;
    struct rlimit limit, small;
    const char *path = support_path("full.jsonl");
    char line[4096];
    memset(line, 'x', sizeof line);
    assert_status(logfile_open(&log, path, false), STATUS_OK);
    logfile_write(log, "first\n", 6);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    small = limit;
    small.rlim_cur = 1000;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    logfile_write(log, line, sizeof line);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    signal(SIGXFSZ, SIG_DFL);
    const int keeper = open(path, O_RDONLY);
    assert_true(keeper >= 0 && flock(keeper, LOCK_EX) == 0);
    logfile_write(log, "last\n", 5);
    close(keeper);
    assert_status(logfile_close(log, STATUS_OK), STATUS_FAILED);
    assert_says(status_message(), "full.jsonl' is not complete: File too large");
    assert_text(path, "first\nlast\n");
}

/* The temporary file of a process with the same PID in another container, and those of killed ones, are no
   obstacle: two processes replace one file, and others are killed while they do. */
static void replace_often(const char *path, char letter) {
    char text[100000];
    memset(text, letter, sizeof text);
    text[sizeof text - 1] = '\0';
    for (int i = 0; i < 200; i++)
        if (replace(path, text)) _exit(1);
    _exit(0);
}

static void two_processes_replace_one_file(void **state) {
    (void)state;
    size_t length;
    const char *path = support_path("two-writers");
    const pid_t a = start(replace_often, path, 'a'), b = start(replace_often, path, 'b');
    for (int i = 0; i < 20; i++) {
        const pid_t killed = start(replace_often, path, 'c');
        usleep(3000);
        kill(killed, SIGKILL);
        waitpid(killed, NULL, 0);
        if (access(path, F_OK) != 0) continue;
        unsigned char *text = support_read(path, &length);
        assert_int_equal(length, 99999);
        for (size_t at = 1; at < length; at++) assert_int_equal(text[at], text[0]);
        free(text);
    }
    assert_ends(a);
    assert_ends(b);
    assert_status(replace_check("", path), STATUS_OK);
    char command[400];
    snprintf(command, sizeof command, "test -z \"$(ls %s.tessera-* 2>/dev/null)\"", path);
    assert_int_equal(system(command), 0);
}

/* --- two names of one file --- */

static enum status check_two(const char *first, enum file_use use, const char *second, enum file_use other) {
    struct files files = {0};
    files_add(&files, "--first", first, use);
    files_add(&files, "--second", second, other);
    return files_check(&files);
}

static void one_file_under_two_names(void **state) {
    (void)state;
    char spelled[300];
    const char *file = support_path("one"), *hard = support_path("hard"), *soft = support_path("soft"),
               *absent = support_path("absent"), *dangling = support_path("dangling");
    write_text(file, "x");
    assert_int_equal(link(file, hard), 0);
    assert_int_equal(symlink(file, soft), 0);
    assert_int_equal(symlink("absent", dangling), 0);
    const char *slash = strrchr(file, '/');
    snprintf(spelled, sizeof spelled, "%.*s/./absent", (int)(slash - file), file);
    const char *const pairs[][2] = {{file, file},     {file, hard},      {file, soft},
                                    {absent, absent}, {absent, spelled}, {absent, dangling}};
    for (size_t i = 0; i < 6; i++) {
        assert_status(check_two(pairs[i][0], FILE_WRITTEN, pairs[i][1], FILE_WRITTEN), STATUS_USAGE);
        assert_says(status_message(), "--first and --second name the same file, '");
        assert_status(check_two(pairs[i][0], FILE_READ, pairs[i][1], FILE_WRITTEN), STATUS_USAGE);
        assert_status(check_two(pairs[i][0], FILE_RESUMED, pairs[i][1], FILE_WRITTEN), STATUS_USAGE);
        assert_status(check_two(pairs[i][0], FILE_SAVED, pairs[i][1], FILE_READ), STATUS_USAGE);
        assert_status(check_two(pairs[i][0], FILE_RESUMED, pairs[i][1], FILE_SAVED), STATUS_OK);
        assert_status(check_two(pairs[i][0], FILE_READ, pairs[i][1], FILE_READ), STATUS_OK);
    }
    assert_status(check_two(file, FILE_WRITTEN, absent, FILE_WRITTEN), STATUS_OK);
    assert_status(check_two("/dev/null", FILE_WRITTEN, "/dev/null", FILE_WRITTEN), STATUS_OK);
    assert_status(check_two("", FILE_WRITTEN, NULL, FILE_WRITTEN), STATUS_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mode_and_links_are_kept),
        cmocka_unit_test(protected_files_are_kept),
        cmocka_unit_test(discarded_files_leave_the_old_one),
        cmocka_unit_test(devices_are_written_directly),
        cmocka_unit_test(stale_temporaries_are_removed),
        cmocka_unit_test(lines_of_two_processes_stay_whole),
        cmocka_unit_test(logs_continue_on_a_line_of_their_own),
        cmocka_unit_test(lines_are_whole_or_absent),
        cmocka_unit_test(two_processes_replace_one_file),
        cmocka_unit_test(one_file_under_two_names),
    };
    return cmocka_run_group_tests_name("replace", tests, NULL, NULL);
}
