#define _GNU_SOURCE
#include "src/base/terminal.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "src/base/text.h"

enum { COLUMNS = 80, MOST_TEXT = 4096 };

static bool wide, progress_shown, muted;

const char *terminal_program(void) {
    return program_invocation_short_name;
}

int terminal_columns(void) {
    return wide || getenv("TESSERA_WIDE") ? INT_MAX : COLUMNS;
}

void terminal_set_wide(void) {
    wide = true;
}

bool terminal_is_watched(void) {
    return isatty(STDERR_FILENO);
}

/* --- text --- */

static void name_program(const char *text, char *named, size_t size) {
    static const char name[] = "./train ";
    const char *next;
    for (named[0] = '\0'; (next = strstr(text, name)); text = next + strlen(name))
        text_append(named, size, "%.*s%s ", (int)(next - text), text, program_invocation_name);
    text_append(named, size, "%s", text);
}

int terminal_wrap(FILE *out, int column, int indent, const char *text) {
    const int most = terminal_columns();
    char named[MOST_TEXT];
    name_program(text, named, sizeof named);
    for (const char *at = named; *at;) {
        const int spaces = (int)strspn(at, " "), word = (int)strcspn(at + spaces, " \n");
        if (word && column > indent && column + spaces > most - word) {
            fprintf(out, "\n%*s", indent, "");
            column = indent;
        } else {
            column += fprintf(out, "%*s", spaces, "");
        }
        column += fprintf(out, "%.*s", word, at + spaces);
        at += spaces + word;
        if (*at != '\n') continue;
        fputc(*at++, out);
        column = 0;
    }
    return column;
}

void terminal_print(FILE *out, int indent, const char *format, ...) {
    char text[MOST_TEXT];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    terminal_wrap(out, 0, indent, text);
}

void terminal_mute(void) {
    fflush(stdout);
    if (!freopen("/dev/null", "w", stdout)) clearerr(stdout);
    muted = true;
}

void terminal_note(const char *format, ...) {
    char text[MOST_TEXT], named[MOST_TEXT];
    va_list args;
    if (muted) return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    terminal_clear_progress();
    name_program(text, named, sizeof named);
    fprintf(stderr, "%s: %s\n", terminal_program(), named);
}

void terminal_tell(const char *format, ...) {
    char text[MOST_TEXT];
    va_list args;
    if (muted || !terminal_is_watched()) return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    terminal_print(stderr, 2, "%s: %s\n", terminal_program(), text);
}

/* --- the progress line --- */

/* One less than the width of the terminal, whose cursor may wrap after the last column. */
static int progress_width(void) {
    struct winsize size;
    const bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
    return (known ? size.ws_col : COLUMNS) - 1;
}

void terminal_progress(const char *format, ...) {
    char text[512];
    va_list args;
    if (muted || !terminal_is_watched()) return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(stderr, "\r\033[K%.*s", text_cut(text, (size_t)progress_width()), text);
    fflush(stderr);
    progress_shown = true;
}

void terminal_clear_progress(void) {
    if (progress_shown) fprintf(stderr, "\r\033[K");
    progress_shown = false;
}
