#include "src/report/markup.h"

#include <math.h>
#include <string.h>

/* The length of the UTF-8 character at `text` (RFC 3629: shortest form, no surrogates); 0 if there is
   none. */
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

/* One character; returns the bytes that it took. */
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

/* --- numbers --- */

static struct text_number none(void) {
    return (struct text_number){"-"};
}

struct text_number markup_fixed(double value, int decimals) {
    struct text_number out;
    if (!isfinite(value)) return none();
    snprintf(out.text, sizeof out.text, "%.*f", decimals, value);
    return out;
}

struct text_number markup_short(double value) {
    struct text_number out;
    if (!isfinite(value)) return none();
    const double size = fabs(value);
    if (size >= 999.5 && size <= 1e15) {
        const struct text_number digits = text_grouped((uint64_t)llround(size));
        snprintf(out.text, sizeof out.text, "%s%.30s", value < 0 ? "-" : "", digits.text);
    } else if (size >= 1e-4 && size < 999.5) {
        const int decimals = size >= 99.95    ? 0
                             : size >= 9.995  ? 1
                             : size >= 0.9995 ? 2
                                              : 2 - (int)floor(log10(size));
        snprintf(out.text, sizeof out.text, "%.*f", decimals, value);
    } else {
        snprintf(out.text, sizeof out.text, "%.3g", value);
    }
    return out;
}

struct text_number markup_seconds(double seconds) {
    static const struct {
        double size;
        const char *unit;
    } units[] = {{1, "s"}, {1e-3, "ms"}, {1e-6, "us"}, {1e-9, "ns"}};
    struct text_number out;
    if (!isfinite(seconds)) return none();
    if (seconds == 0) return (struct text_number){"0 s"};
    size_t unit = 0;
    while (unit < 3 && fabs(seconds) < 0.9995 * units[unit].size) unit++;
    snprintf(out.text, sizeof out.text, "%.24s %s", markup_short(seconds / units[unit].size).text,
             units[unit].unit);
    return out;
}

struct text_number markup_percent(double fraction, int decimals) {
    struct text_number out;
    if (!isfinite(fraction)) return none();
    snprintf(out.text, sizeof out.text, "%.*f %%", decimals, 100 * fraction);
    return out;
}
