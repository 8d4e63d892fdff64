/* The program on a terminal of 80 columns (a pseudo-terminal): the lines, the progress line, Ctrl-C. */
#define _GNU_SOURCE
#include "tests/support.h"

#include <errno.h>
#include <pty.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "src/base/memstream.h"
#include "src/base/terminal.h"

enum { COLUMNS = 80, ROOM = 1 << 20, PATIENCE = 120 /* seconds: it hangs */ };

/* What a program wrote to its terminal. */
struct session {
    pid_t pid;
    int terminal;
    char text[ROOM];
    size_t length;
};
static struct session session;

static void start(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void start(const char *format, ...) {
    struct winsize size = {.ws_row = 24, .ws_col = COLUMNS};
    char arguments[1024], command[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(arguments, sizeof arguments, format, args);
    va_end(args);
    snprintf(command, sizeof command, "exec %s %s", getenv("TESSERA"), arguments);
    unsetenv("TESSERA_WIDE");
    session.length = 0;
    session.text[0] = '\0';
    session.pid = forkpty(&session.terminal, NULL, NULL, &size);
    assert_true(session.pid >= 0);
    if (session.pid == 0) {
        alarm(PATIENCE);
        signal(SIGINT, SIG_DFL); /* a background job of a shell ignores it */
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
}

/* Reads until the text has appeared, or, if it is NULL, to the end. False: the end. */
static bool wait_for(const char *text) {
    while (!text || !strstr(session.text, text)) {
        const ssize_t got = read(session.terminal, session.text + session.length, ROOM - 1 - session.length);
        if (got <= 0) return false; /* EIO: the other side is closed */
        session.length += (size_t)got;
        session.text[session.length] = '\0';
    }
    return true;
}

/* Returns the exit code, or 128 + the signal. */
static int finish(void) {
    int status;
    wait_for(NULL);
    close(session.terminal);
    assert_int_equal(waitpid(session.pid, &status, 0), session.pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Plays the text on a screen without a right margin. *longest: the length of the longest line at any time,
   but for messages ("train: ..."). The caller frees the lines as they look in the end. */
static char *play(size_t *longest) {
    char *screen = calloc(1, 2 * ROOM), *line = screen;
    size_t column = 0;
    assert_non_null(screen);
    *longest = 0;
    for (const char *at = session.text; *at; at++) {
        if (strncmp(at, "\033[K", 3) == 0) {
            memset(line + column, 0, strlen(line + column));
            at += 2;
        } else if (*at == '\r') {
            column = 0;
        } else if (*at == '\n') {
            line += strlen(line);
            *line++ = '\n';
            column = 0;
        } else {
            line[column++] = *at;
            if (column > *longest && strncmp(line, "train: ", 7) != 0) *longest = column;
        }
    }
    return screen;
}

static size_t count(const char *text, const char *part) {
    size_t found = 0;
    for (const char *at = text; (at = strstr(at, part)); at += strlen(part)) found++;
    return found;
}

#define SLOW "--data %s --layers 42-700-700-4 --batch-size 10 --backend serial --threads 1 --audit off "

static void progress_is_erased(void **state) {
    (void)state;
    size_t longest;
    start(SLOW "--epochs 100000", support_data); /* however fast the machine is */
    assert_true(wait_for(" left") && wait_for("    2  "));
    assert_int_equal(write(session.terminal, "\003", 1), 1);
    assert_int_equal(finish(), 130);
    assert_true(count(session.text, "\r\033[Kepoch ") > 0);
    assert_true(count(session.text, " of 100000  ") > 0 && count(session.text, " images/s  ") > 0);
    char *screen = play(&longest);
    assert_true(longest <= COLUMNS);
    assert_null(strstr(screen, " of 100000  ")); /* no rest of the progress line */
    assert_null(strstr(screen, " left"));
    assert_says(screen,
                "\nepoch    loss    train     test  seconds    images/s    NN    TN    NT  copies\n    1  ");
    for (int epoch = 1; epoch <= 2; epoch++) {
        char row[16];
        snprintf(row, sizeof row, "\n%5d  ", epoch);
        assert_int_equal(count(screen, row), 1);
    }
    free(screen);
}

/* The signal handler answers; the step, the checkpoint and the evaluation follow. */
static void an_interrupt_is_answered(void **state) {
    (void)state;
    size_t longest;
    const char *model = support_path("interrupted.safetensors");
    start(SLOW "--epochs 100000 --save %s", support_data, model);
    assert_true(wait_for("epoch 1 of "));
    assert_int_equal(write(session.terminal, "\003", 1), 1);
    assert_true(wait_for("Interrupted: ending"));
    assert_int_equal(finish(), 130);
    const char *answer = strstr(session.text, "Interrupted: ending");
    assert_null(strstr(answer, "\r\033[Kepoch ")); /* no further step */
    assert_says(answer, "test accuracy");
    assert_says(answer, "interrupted by SIGINT; go on with --resume ");
    assert_int_equal(access(model, R_OK), 0);
    char *screen = play(&longest);
    assert_says(screen, "\nInterrupted: ending");
    free(screen);
}

static void a_second_interrupt_ends_it(void **state) {
    (void)state;
    start("--data %s --layers 42-3000-3000-4 --batch-size 300 --backend serial --threads 1 --audit off",
          support_data);
    assert_true(wait_for("epoch    loss")); /* the first step takes seconds */
    assert_int_equal(write(session.terminal, "\003", 1), 1);
    assert_true(wait_for("Interrupted: "));
    assert_int_equal(write(session.terminal, "\003", 1), 1);
    assert_int_equal(finish(), 128 + SIGINT);
    assert_null(strstr(session.text, "test accuracy"));
}

static void lines_fit(void **state) {
    (void)state;
    static const char *const commands[] = {
        "--help",
        "--help-all",
        "help compare",
        "bench --help",
        "bench gemm --help-all",
        "bench call --help-all",
        "devices",
        "--data %s --layers 42-16-4 --epochs 1 --ema-decay 0.9 --validation 50 --optimizer adamw --lr 0.001 "
        "--augment on "
        "--augment-gentle 1,2 --verbose",
        "--data %s --layers 42-16-4 --epochs 1 --ensemble 2",
        "compare --data %s --layers 42-16-4 --epochs 1 --repeat 1 --backends serial,tuned --threads 1",
        "bench gemm --sizes 16 --dtype f32 --ops NN --repeat 1 --backends serial,tuned --threads 1 "
        "--operands warm --counters",
        "bench breakeven --data %s --layers 42-16-4 --batches 8 --hidden 4 --backends serial --cell-seconds "
        "0.01",
    };
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        size_t longest;
        char arguments[512];
        const char *data = strstr(commands[i], "%s");
        snprintf(arguments, sizeof arguments, "%.*s%s%s", (int)(data ? data - commands[i] : 0), commands[i],
                 data ? support_data : commands[i], data ? data + 2 : "");
        start("%s", arguments);
        finish();
        free(play(&longest));
        if (longest > COLUMNS || longest < 40)
            fail_msg("%s: %zu columns:\n%s", arguments, longest, session.text);
    }
}

static void wide_has_more(void **state) {
    (void)state;
    size_t longest;
    start("--data %s --layers 42-16-4 --epochs 1 --wide", support_data);
    assert_int_equal(finish(), 0);
    assert_says(session.text, "train accuracy");
    assert_says(session.text, "/300 ");
    free(play(&longest));
    assert_true(longest > COLUMNS);
}

static char *wrapped(int column, int indent, const char *text) {
    struct memstream stream;
    unsetenv("TESSERA_WIDE");
    assert_status(memstream_open(&stream), STATUS_OK);
    terminal_wrap(stream.out, column, indent, text);
    assert_status(memstream_close(&stream, STATUS_OK), STATUS_OK);
    return stream.text;
}

static void breaks_lines_between_words(void **state) {
    (void)state;
    char ten[] = "aaaa bbbb ", text[200] = "", *out;
    for (int i = 0; i < 8; i++) strcat(text, ten);
    text[79] = '\0'; /* 79 columns */
    static const struct {
        int column, indent;
        const char *more, *end;
    } cases[] = {{0, 4, "", "bbbb"},
                 {1, 4, "", "bbbb"},       /* the last column */
                 {2, 4, "", "\n    bbbb"}, /* one too many */
                 {0, 0, " c", "bbbb\nc"},
                 {0, 2, "\n  c", "bbbb\n  c"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char whole[220];
        snprintf(whole, sizeof whole, "%s%s", text, cases[i].more);
        out = wrapped(cases[i].column, cases[i].indent, whole);
        assert_string_equal(out + strlen(out) - strlen(cases[i].end), cases[i].end);
        free(out);
    }
    memset(text, 'x', 150); /* a word too long for a line stands alone in one */
    text[150] = '\0';
    out = wrapped(10, 2, text);
    assert_string_equal(out + 3, text);
    free(out);
}

static void names_the_program(void **state) {
    (void)state;
    char wanted[512];
    snprintf(wanted, sizeof wanted, "'%s eval' and ./train-images", program_invocation_name);
    char *out = wrapped(0, 0, "'./train eval' and ./train-images");
    assert_string_equal(out, wanted);
    free(out);
    assert_string_equal(terminal_program(), program_invocation_short_name);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(progress_is_erased),
        cmocka_unit_test(an_interrupt_is_answered),
        cmocka_unit_test(a_second_interrupt_ends_it),
        cmocka_unit_test(lines_fit),
        cmocka_unit_test(wide_has_more),
        cmocka_unit_test(breaks_lines_between_words),
        cmocka_unit_test(names_the_program),
    };
    return cmocka_run_group_tests_name("terminal", tests, support_make_data, NULL);
}
