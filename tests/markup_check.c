#include "tests/markup_check.h"

#include <ctype.h>
#include <string.h>

enum { DEEPEST = 64, LONGEST = 32 };

static const char *skip_name(const char *at) {
    while (isalnum((unsigned char)*at) || strchr("-:_", *at)) {
        if (!*at) break;
        at++;
    }
    return at;
}

/* Returns the place behind the ';', or NULL if there is no entity. */
static const char *skip_entity(const char *at) {
    const char *start = ++at;
    if (*at == '#') at++;
    at = skip_name(at);
    return at > start && *at == ';' ? at + 1 : NULL;
}

/* Returns the place behind the closing quote, or NULL if there is no attribute. */
static const char *skip_attribute(const char *at) {
    const char *name = at;
    at = skip_name(at);
    if (at == name || at[0] != '=' || at[1] != '"') return NULL;
    for (at += 2; *at && *at != '"';) {
        if (*at == '<') return NULL;
        at = *at == '&' ? skip_entity(at) : at + 1;
        if (!at) return NULL;
    }
    return *at == '"' ? at + 1 : NULL;
}

/* Returns the place behind the '>' of an opening tag. *empty: it closes itself. */
static const char *skip_tag(const char *at, int *empty) {
    *empty = 0;
    for (;;) {
        const int space = isspace((unsigned char)*at);
        while (isspace((unsigned char)*at)) at++;
        if (at[0] == '/' && at[1] == '>') *empty = 1;
        if (*empty) return at + 2;
        if (*at == '>') return at + 1;
        if (!space || !(at = skip_attribute(at))) return NULL;
    }
}

const char *markup_fault(const char *text) {
    char open[DEEPEST][LONGEST];
    size_t depth = 0;
    const char *at = text;
    if (strncmp(at, "<!DOCTYPE html>", 15) == 0) at += 15;
    while (*at) {
        const char *here = at;
        const int closing = at[0] == '<' && at[1] == '/';
        if (*at == '&' && !(at = skip_entity(at))) return here;
        if (at != here) continue;
        if (*at != '<') {
            at++;
            continue;
        }
        const char *name = at + 1 + closing, *end = skip_name(name);
        const size_t length = (size_t)(end - name);
        int empty = 0;
        if (!length || length >= LONGEST) return here;
        if (closing) {
            if (!depth || strlen(open[depth - 1]) != length || strncmp(open[depth - 1], name, length) != 0 ||
                *end != '>')
                return here;
            depth--;
            at = end + 1;
            continue;
        }
        at = skip_tag(end, &empty);
        if (!at || depth == DEEPEST) return here;
        if (empty) continue;
        memcpy(open[depth], name, length);
        open[depth++][length] = '\0';
    }
    return depth ? at : NULL;
}

size_t count_of(const char *text, const char *part) {
    size_t count = 0;
    for (const char *at = text; (at = strstr(at, part)); at += strlen(part)) count++;
    return count;
}
