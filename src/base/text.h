/* Text: strict parsing of numbers, the nearest known word, formatted numbers. */
#ifndef TESSERA_BASE_TEXT_H
#define TESSERA_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* `text` must be one decimal number and nothing else; a real must be finite. Otherwise returns false and
   leaves `value` unchanged. */
bool text_parse_int(const char *text, int64_t *value);
bool text_parse_real(const char *text, double *value);

/* Returns the one of `count` words with the least edit distance to `word`, or NULL if that is more than a
   third of the longer word. */
const char *text_nearest(const char *word, const char *const *words, size_t count);

/* Cuts white space off both ends, in place; returns the new start. */
char *text_trim(char *text);

/* The length of the first line, with its newline; that of the text if it has no newline. */
size_t text_line_length(const char *text);

/* Reads the first line of a file that starts with `key`, without the key and trimmed; "" if there is none. */
void text_find_line(const char *path, const char *key, char *text, size_t size);

/* The directory part of a path: "." if it has none, "/" for the root. Truncated to `size` bytes. */
void text_directory(const char *path, char *directory, size_t size);

/* The bytes of the UTF-8 character that `text` starts with (RFC 3629: no overlong forms, no surrogates, at
   most U+10FFFF); 0 if it is not one. */
size_t text_character(const char *text);

/* A copy in which every byte that is not UTF-8 is U+FFFD, the replacement character; file names may hold any
   bytes, JSON may not. The caller frees it. NULL: out of memory. */
char *text_utf8(const char *text);

/* Is the text UTF-8 without control characters, line separators and marks that change the direction of
   writing? Then it is safe to print, wherever it comes from. */
bool text_is_printable(const char *text);
/* Replaces what is not printable by '?', in place; newlines stay. */
void text_clean(char *text);

/* The number of characters of a UTF-8 text, which is its width on a terminal but for wide scripts. */
size_t text_letters(const char *text);
/* The bytes of the first whole characters of a UTF-8 text, at most `most`; for "%.*s". */
int text_cut(const char *text, size_t most);
/* The spaces that fill it up to `width` characters; for "%*s" with "". */
int text_padding(const char *text, size_t width);

/* Appends to a string like printf, truncated to `size` bytes. */
void text_append(char *text, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* A formatted number, returned by value. */
struct text_number {
    char text[32];
};
/* 60000 as "60,000". */
struct text_number text_grouped(uint64_t value);

/* The functions below write "-" for a value that is not finite. */
struct text_number text_fixed(double value, int decimals);
/* A fraction as "97.59 %". */
struct text_number text_percent(double fraction, int decimals);
/* Three significant digits: "1,540", "2.50", "0.000420". */
struct text_number text_short(double value);
/* Three significant digits and a unit from ns to s: "41.2 ms". */
struct text_number text_seconds(double seconds);
/* A time to wait: "9 s", "12 min", "3.5 h". */
struct text_number text_wait(double seconds);
/* Bytes as "1.5 MiB". */
struct text_number text_bytes(double bytes);

#endif
