#include "src/report/markup.h"

#include <string.h>

/* The length of the UTF-8 character at `text` (RFC 3629: shortest form, no surrogates); 0 if invalid. */
static size_t utf8_length(const unsigned char *text) {
    const unsigned lead = text[0];
    const size_t length = lead < 0x80   ? 1
                          : lead < 0xC2 ? 0
                          : lead < 0xE0 ? 2
                          : lead < 0xF0 ? 3
                          : lead < 0xF5 ? 4
                                        : 0;
    for (size_t i = 1; i < length; i++)
        if ((text[i] & 0xC0) != 0x80) return 0;
    if (lead == 0xE0 && text[1] < 0xA0) return 0;
    if (lead == 0xED && text[1] > 0x9F) return 0;
    if (lead == 0xF0 && text[1] < 0x90) return 0;
    if (lead == 0xF4 && text[1] > 0x8F) return 0;
    return length;
}

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
    const size_t length = utf8_length((const unsigned char *)text);
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
        const size_t length = utf8_length((const unsigned char *)text);
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
