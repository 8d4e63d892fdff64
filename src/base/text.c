#include "src/base/text.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool text_parse_int(const char *text, int64_t *value) {
    char *end = NULL;
    errno = 0;
    const long long parsed = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || errno || isspace((unsigned char)*text)) return false;
    *value = parsed;
    return true;
}

bool text_parse_real(const char *text, double *value) {
    char *end = NULL;
    const double parsed = strtod(text, &end); /* the decimal point is '.': process_pin_locale */
    if (end == text || *end != '\0' || !isfinite(parsed) || isspace((unsigned char)*text)) return false;
    *value = parsed;
    return true;
}

enum { LONGEST_WORD = 63 };

static size_t edit_distance(const char *a, const char *b) {
    size_t row[LONGEST_WORD + 1];
    const size_t la = strlen(a), lb = strlen(b);
    if (la > LONGEST_WORD || lb > LONGEST_WORD) return SIZE_MAX;
    for (size_t j = 0; j <= lb; j++) row[j] = j;
    for (size_t i = 1; i <= la; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= lb; j++) {
            const size_t up = row[j];
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            if (up + 1 < best) best = up + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            row[j] = best;
            diagonal = up;
        }
    }
    return row[lb];
}

const char *text_nearest(const char *word, const char *const *words, size_t count) {
    const char *nearest = NULL;
    size_t least = SIZE_MAX;
    for (size_t i = 0; i < count; i++) {
        const size_t distance = edit_distance(word, words[i]);
        const size_t longer = strlen(word) > strlen(words[i]) ? strlen(word) : strlen(words[i]);
        if (distance < least && distance <= (longer + 2) / 3) {
            least = distance;
            nearest = words[i];
        }
    }
    return nearest;
}

char *text_trim(char *text) {
    while (isspace((unsigned char)*text)) text++;
    char *end = text + strlen(text);
    while (end > text && isspace((unsigned char)end[-1])) end--;
    *end = '\0';
    return text;
}

size_t text_line_length(const char *text) {
    const size_t length = strcspn(text, "\n");
    return length + (text[length] == '\n');
}

void text_find_line(const char *path, const char *key, char *text, size_t size) {
    char line[256];
    FILE *file = fopen(path, "r");
    text[0] = '\0';
    while (file && fgets(line, sizeof line, file)) {
        if (strncmp(line, key, strlen(key)) != 0) continue;
        snprintf(text, size, "%s", text_trim(line + strlen(key)));
        break;
    }
    if (file) fclose(file);
}

void text_directory(const char *path, char *directory, size_t size) {
    const char *slash = strrchr(path, '/');
    if (!slash) {
        snprintf(directory, size, ".");
    } else {
        snprintf(directory, size, "%.*s", slash == path ? 1 : (int)(slash - path), path);
    }
}

size_t text_character(const char *start) {
    const unsigned char *text = (const unsigned char *)start, first = text[0];
    if (first < 0x80) return 1;
    const size_t length = first >= 0xc2 && first < 0xe0 ? 2 : first >= 0xe0 && first < 0xf0 ? 3 : 4;
    if (first < 0xc2 || first > 0xf4) return 0;
    const unsigned char low = first == 0xe0   ? 0xa0
                              : first == 0xf0 ? 0x90
                                              : 0x80,
                        high = first == 0xed   ? 0x9f
                               : first == 0xf4 ? 0x8f
                                               : 0xbf;
    if (text[1] < low || text[1] > high) return 0;
    for (size_t i = 2; i < length; i++)
        if (text[i] < 0x80 || text[i] > 0xbf) return 0;
    return length;
}

char *text_utf8(const char *text) {
    char *copy = malloc(3 * strlen(text) + 1), *to = copy;
    while (copy && *text) {
        const size_t length = text_character(text), taken = length ? length : 1;
        const char *from = length ? text : "\xef\xbf\xbd"; /* U+FFFD */
        for (size_t i = 0; i < (length ? length : 3); i++) *to++ = from[i];
        text += taken;
    }
    if (copy) *to = '\0';
    return copy;
}

/* Is this UTF-8 character one that text_is_printable refuses? */
static bool is_control(const unsigned char *text, size_t length) {
    if (length == 1) return text[0] < ' ' || text[0] == 0x7f;
    if (length == 2) return text[0] == 0xc2 && text[1] < 0xa0; /* U+0080 to U+009F */
    if (length != 3 || text[0] != 0xe2) return false;
    return (text[1] == 0x80 && text[2] >= 0xa8 && text[2] <= 0xae) || /* U+2028 to U+202E */
           (text[1] == 0x81 && text[2] >= 0xa6 && text[2] <= 0xa9);   /* U+2066 to U+2069 */
}

bool text_is_printable(const char *text) {
    for (size_t length; *text; text += length) {
        length = text_character(text);
        if (!length || is_control((const unsigned char *)text, length)) return false;
    }
    return true;
}

void text_clean(char *text) {
    for (size_t length; *text; text += length) {
        length = text_character(text);
        const bool bad = !length || (*text != '\n' && is_control((const unsigned char *)text, length));
        if (!length) length = 1;
        if (bad) memset(text, '?', length);
    }
}

size_t text_letters(const char *text) {
    size_t letters = 0;
    for (; *text; text++) letters += ((unsigned char)*text & 0xc0) != 0x80;
    return letters;
}

int text_cut(const char *text, size_t most) {
    const size_t length = strlen(text);
    if (length <= most) return (int)length;
    while (most && ((unsigned char)text[most] & 0xc0) == 0x80) most--;
    return (int)most;
}

int text_padding(const char *text, size_t width) {
    const size_t letters = text_letters(text);
    return letters < width ? (int)(width - letters) : 0;
}

void text_append(char *text, size_t size, const char *format, ...) {
    const size_t used = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + used, size - used, format, args);
    va_end(args);
}

struct text_number text_grouped(uint64_t value) {
    char digits[24];
    struct text_number out;
    const int length = snprintf(digits, sizeof digits, "%" PRIu64, value);
    size_t at = 0;
    for (int i = 0; i < length; i++) {
        if (i && (length - i) % 3 == 0) out.text[at++] = ',';
        out.text[at++] = digits[i];
    }
    out.text[at] = '\0';
    return out;
}

struct text_number text_fixed(double value, int decimals) {
    struct text_number out = {"-"};
    if (isfinite(value)) snprintf(out.text, sizeof out.text, "%.*f", decimals, value);
    return out;
}

struct text_number text_percent(double fraction, int decimals) {
    struct text_number out = {"-"};
    if (isfinite(fraction)) snprintf(out.text, sizeof out.text, "%.*f %%", decimals, 100 * fraction);
    return out;
}

struct text_number text_short(double value) {
    struct text_number out = {"-"};
    if (!isfinite(value)) return out;
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

struct text_number text_seconds(double seconds) {
    static const struct {
        double size;
        const char *unit;
    } units[] = {{1, "s"}, {1e-3, "ms"}, {1e-6, "us"}, {1e-9, "ns"}};
    struct text_number out = {"-"};
    if (!isfinite(seconds)) return out;
    if (seconds == 0) return (struct text_number){"0 s"};
    size_t unit = 0;
    while (unit < 3 && fabs(seconds) < 0.9995 * units[unit].size) unit++;
    snprintf(out.text, sizeof out.text, "%.24s %s", text_short(seconds / units[unit].size).text,
             units[unit].unit);
    return out;
}

struct text_number text_wait(double seconds) {
    struct text_number out = {"-"};
    if (!isfinite(seconds)) return out;
    if (seconds < 99.5) {
        snprintf(out.text, sizeof out.text, "%.0f s", seconds);
    } else if (seconds < 99.5 * 60) {
        snprintf(out.text, sizeof out.text, "%.0f min", seconds / 60);
    } else {
        snprintf(out.text, sizeof out.text, "%.1f h", seconds / 3600);
    }
    return out;
}

struct text_number text_bytes(double bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    struct text_number out;
    size_t unit = 0;
    for (; bytes >= 1024 && unit < 6; unit++) bytes /= 1024;
    snprintf(out.text, sizeof out.text, unit ? "%.1f %s" : "%.0f %s", bytes, units[unit]);
    return out;
}
