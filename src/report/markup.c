#include "src/report/markup.h"

#include <string.h>

#include "src/base/text.h"

static const char *entity(char c) {
    switch (c) {
    case '&':
        return "&amp;";
    case '<':
        return "&lt;";
    case '>':
        return "&gt;";
    case '"':
        return "&quot;";
    case '\'':
        return "&#39;";
    default:
        return NULL;
    }
}

/* Writes one character and returns its length in bytes. */
static size_t write_character(FILE *out, const char *text) {
    const size_t length = text_character(text);
    const char *safe = entity(*text);
    if (safe) {
        fputs(safe, out);
    } else if (length == 1) {
        fputc((unsigned char)*text < ' ' || *text == 0x7F ? ' ' : *text, out);
    } else if (length) {
        fwrite(text, 1, length, out);
    } else {
        fputc('?', out);
    }
    return length ? length : 1;
}

void markup_text(FILE *out, const char *text) {
    while (*text) text += write_character(out, text);
}

void markup_markdown(FILE *out, const char *text) {
    while (*text) {
        if (strchr("|`*_[]\\", *text)) fputc('\\', out);
        text += write_character(out, text);
    }
}

void markup_code(FILE *out, const char *text) {
    fputc('`', out);
    while (*text) {
        const size_t length = text_character(text);
        if (*text == '|') fputc('\\', out);
        if (length > 1) {
            fwrite(text, 1, length, out);
        } else {
            fputc(!length ? '?' : *text == '`' || (unsigned char)*text < ' ' ? ' ' : *text, out);
        }
        text += length ? length : 1;
    }
    fputc('`', out);
}
