/* Pieces of C source. */
#ifndef TESSERA_EXPORT_C_TEXT_H
#define TESSERA_EXPORT_C_TEXT_H

#include <stddef.h>
#include <stdio.h>

/* An identifier from the name of a file, without folder and extension, cut to C_NAME - 1 characters. */
enum { C_NAME = 64 };
void c_name(const char *path, char name[C_NAME]);

/* Writes code in which @ becomes `name`, and $ `expression`. */
void c_code(FILE *out, const char *code, const char *name, const char *expression);

/* Writes a text that stands in a comment and must not end it. */
void c_comment(FILE *out, const char *text);

/* Writes a text in UTF-8 as a string constant, in ASCII. */
void c_string(FILE *out, const char *text);

/* Element i as a constant; a float with the fewest digits that read back to it. */
typedef void c_print(char *text, size_t size, const void *values, size_t i);
c_print c_print_float, c_print_int8, c_print_uint8, c_print_int32;

/* An array [count] of constants. `values` is [rows][count / rows], and is written transposed. */
struct c_array {
    const char *type, *part; /* it is called NAME_part_l */
    c_print *print;
    const void *values;
    size_t count, rows;
};
void c_array(FILE *out, const char *name, size_t l, const struct c_array *array);

#endif
