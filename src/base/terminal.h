/* Text for people: lines of at most 80 columns, one progress line, messages under the name of the program. */
#ifndef TESSERA_BASE_TERMINAL_H
#define TESSERA_BASE_TERMINAL_H

#include <stdbool.h>
#include <stdio.h>

/* The file name that the program was called by: "train", "tessera". */
const char *terminal_program(void);

/* The longest line: 80, or INT_MAX after terminal_set_wide and with the environment variable TESSERA_WIDE. */
int terminal_columns(void);
void terminal_set_wide(void);

/* Like printf, but breaks lines between words, and indents what goes into a next line. In the text "./train "
   stands for the program as it was called: "./train devices" is printed as "tessera devices". At most 4095
   bytes. */
void terminal_print(FILE *out, int indent, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* The same for a text that starts in column `column`. Returns the column after it. */
int terminal_wrap(FILE *out, int column, int indent, const char *text);

/* No notes and no progress from now on, and standard output goes to /dev/null: another process of the same
   job speaks. */
void terminal_mute(void);

/* Writes "train: MESSAGE" to stderr, as one line of any length. Clears the progress line before. */
void terminal_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* For a person who waits: the same in lines of at most 80 columns, only if stderr is a terminal. */
void terminal_tell(const char *format, ...) __attribute__((format(printf, 1, 2)));
bool terminal_is_watched(void); /* is it one? */

/* The progress line: on stderr, cut to the width of the terminal; nothing if stderr is none. It is to be
   cleared before standard output is written. */
void terminal_progress(const char *format, ...) __attribute__((format(printf, 1, 2)));
void terminal_clear_progress(void);

#endif
