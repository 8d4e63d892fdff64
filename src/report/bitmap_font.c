#include "src/report/bitmap_font.h"

#include <string.h>

enum {
    ROWS = 7,
    COLUMNS = 5,
    SIDE = 2, /* pixels of a square of a glyph */
    ADVANCE = (COLUMNS + 1) * SIDE,
    LINE = (ROWS + 3) * SIDE,
    INK = 255
};

struct glyph {
    char character;
    const char *rows[ROWS];
};

/* clang-format off */
static const struct glyph glyphs[] = {
    {'0', {" ### ", "#   #", "#   #", "#   #", "#   #", "#   #", " ### "}},
    {'1', {"  #  ", " ##  ", "  #  ", "  #  ", "  #  ", "  #  ", " ### "}},
    {'2', {" ### ", "#   #", "    #", "   # ", "  #  ", " #   ", "#####"}},
    {'3', {" ### ", "#   #", "    #", "  ## ", "    #", "#   #", " ### "}},
    {'4', {"   # ", "  ## ", " # # ", "#  # ", "#####", "   # ", "   # "}},
    {'5', {"#####", "#    ", "#### ", "    #", "    #", "#   #", " ### "}},
    {'6', {" ### ", "#    ", "#    ", "#### ", "#   #", "#   #", " ### "}},
    {'7', {"#####", "    #", "   # ", "  #  ", "  #  ", " #   ", " #   "}},
    {'8', {" ### ", "#   #", "#   #", " ### ", "#   #", "#   #", " ### "}},
    {'9', {" ### ", "#   #", "#   #", " ####", "    #", "    #", " ### "}},
    {'#', {" # # ", " # # ", "#####", " # # ", "#####", " # # ", " # # "}},
    {',', {"     ", "     ", "     ", "     ", " ##  ", "  #  ", " #   "}},
    {'n', {"     ", "     ", "# ## ", "##  #", "#   #", "#   #", "#   #"}},
    {'o', {"     ", "     ", " ### ", "#   #", "#   #", "#   #", " ### "}},
    {'t', {" #   ", " #   ", "#### ", " #   ", " #   ", " #  #", "  ## "}},
    {' ', {"     ", "     ", "     ", "     ", "     ", "     ", "     "}},
    {0,   {"#####", "#   #", "#   #", "#   #", "#   #", "#   #", "#####"}}, /* any other */
};
/* clang-format on */

static const struct glyph *find_glyph(char character) {
    const struct glyph *glyph = glyphs;
    while (glyph->character && glyph->character != character) glyph++;
    return glyph;
}

static size_t line_width(const char *line) {
    const size_t length = strcspn(line, "\n");
    return length ? length * ADVANCE - SIDE : 0;
}

/* NULL after the last line. */
static const char *next_line(const char *line) {
    const char *end = strchr(line, '\n');
    return end ? end + 1 : NULL;
}

size_t font_width(const char *text) {
    size_t widest = 0;
    for (const char *line = text; line; line = next_line(line))
        if (line_width(line) > widest) widest = line_width(line);
    return widest;
}

size_t font_height(const char *text) {
    size_t height = 0;
    for (const char *line = *text ? text : NULL; line; line = next_line(line)) height += LINE;
    return height;
}

static void draw_glyph(uint8_t *pixels, size_t stride, const struct glyph *glyph) {
    for (size_t y = 0; y < ROWS * SIDE; y++)
        for (size_t x = 0; x < COLUMNS * SIDE; x++)
            if (glyph->rows[y / SIDE][x / SIDE] == '#') pixels[y * stride + x] = INK;
}

void font_draw(uint8_t *pixels, size_t stride, size_t width, const char *text) {
    for (const char *line = text; line; line = next_line(line)) {
        uint8_t *at = pixels + (width - line_width(line)) / 2;
        for (const char *c = line; *c && *c != '\n'; c++, at += ADVANCE)
            draw_glyph(at, stride, find_glyph(*c));
        pixels += LINE * stride;
    }
}
