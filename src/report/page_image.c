/* Images that records hold in hexadecimal (jsonl_image), on the page as data: URIs. */
#include <stdlib.h>
#include <string.h>

#include "src/base/memory.h"
#include "src/report/markup.h"
#include "src/report/page.h"
#include "src/report/png.h"

static int hex_digit(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* The image of a row, which the caller frees; NULL if invalid. */
static uint8_t *read_pixels(const cJSON *line, size_t *height, size_t *width) {
    const char *hex = record_text(line, "pixels");
    *height = record_count(line, "height", PNG_MOST_PIXELS, 0);
    *width = record_count(line, "width", PNG_MOST_PIXELS, 0);
    const size_t count = *height * *width;
    if (!count || count > PNG_MOST_PIXELS || strlen(hex) != 2 * count) return NULL;
    uint8_t *pixels = memory_zero(count, 1);
    for (size_t i = 0; pixels && i < count; i++) {
        const int high = hex_digit(hex[2 * i]), low = hex_digit(hex[2 * i + 1]);
        if (high < 0 || low < 0) {
            free(pixels);
            return NULL;
        }
        pixels[i] = (uint8_t)(high << 4 | low);
    }
    return pixels;
}

bool page_has_image(const cJSON *line) {
    size_t height, width;
    uint8_t *pixels = read_pixels(line, &height, &width);
    const bool found = pixels != NULL;
    free(pixels);
    return found;
}

void page_images_open(struct page *page) {
    fputs("<div class=\"digits\">\n", page->out);
}

void page_images_close(struct page *page) {
    fputs("</div>\n", page->out);
}

void page_image(struct page *page, const cJSON *line, const struct image_text *text) {
    size_t height, width;
    uint8_t *pixels = read_pixels(line, &height, &width);
    if (!pixels) return;
    fputs("<figure class=\"digit\"><img width=\"84\" height=\"84\" alt=\"", page->out);
    markup_text(page->out, text->alternative);
    fputs("\" src=\"", page->out);
    const enum status status = png_data_uri(page->out, pixels, height, width);
    if (status && !page->status) page->status = status;
    fputs("\"/><figcaption><b>", page->out);
    markup_text(page->out, text->bold);
    fputs("</b>", page->out);
    markup_text(page->out, text->rest);
    fputs("<br/>", page->out);
    markup_text(page->out, text->below);
    fputs("</figcaption></figure>\n", page->out);
    free(pixels);
}
