#include "src/export/c_text.h"

#include <ctype.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

void c_name(const char *path, char name[C_NAME]) {
    const char *start = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    size_t length = 0;
    if (!isalpha((unsigned char)*start)) name[length++] = 'm'; /* an identifier begins with a letter */
    for (; *start && *start != '.' && length + 1 < C_NAME; start++)
        name[length++] = isalnum((unsigned char)*start) ? *start : '_';
    name[length] = '\0';
}

void c_code(FILE *out, const char *code, const char *name, const char *expression) {
    for (; *code; code++) {
        if (*code == '@')
            fputs(name, out);
        else if (*code == '$')
            fputs(expression, out);
        else
            fputc(*code, out);
    }
}

void c_comment(FILE *out, const char *text) {
    for (; *text; text++) fprintf(out, text[0] == '*' && text[1] == '/' ? "%c " : "%c", *text);
}

void c_string(FILE *out, const char *text) {
    fputc('"', out);
    for (; *text; text++) {
        const unsigned char byte = (unsigned char)*text;
        if (byte < ' ' || byte > '~')
            fprintf(out, "\\%03o", byte);
        else
            fprintf(out, strchr("\"\\?", byte) ? "\\%c" : "%c", byte); /* no trigraph */
    }
    fputc('"', out);
}

void c_print_float(char *text, size_t size, const void *values, size_t i) {
    const float value = ((const float *)values)[i];
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, size, "%.*g", digits, (double)value);
        if (strtof(text, NULL) == value) break;
    }
    snprintf(text + strlen(text), size - strlen(text), strpbrk(text, ".e") ? "f" : ".0f");
}

#define PRINT_INTEGER(type, name)                                      \
    void name(char *text, size_t size, const void *values, size_t i) { \
        snprintf(text, size, "%ld", (long)((const type *)values)[i]);  \
    }
PRINT_INTEGER(int8_t, c_print_int8)
PRINT_INTEGER(uint8_t, c_print_uint8)
PRINT_INTEGER(int32_t, c_print_int32)

void c_array(FILE *out, const char *name, size_t l, const struct c_array *array) {
    enum { COLUMNS = 110 };
    size_t column = COLUMNS;
    if (!array->values) return;
    fprintf(out, "static const %s %s_%s_%zu[%zu] = {", array->type, name, array->part, l, array->count);
    for (size_t k = 0; k < array->count; k++) {
        char text[48];
        array->print(text, sizeof text, array->values,
                     k % array->rows * (array->count / array->rows) + k / array->rows);
        const size_t length = strlen(text) + 2;
        column = column + length > COLUMNS ? 3 + length : column + length;
        fprintf(out, column == 3 + length ? "\n    %s," : " %s,", text);
    }
    fprintf(out, "\n};\n\n");
}
