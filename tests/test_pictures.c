/* Pictures: PNG, JPEG and PGM, valid, damaged and hostile; scaling, and the looks of MNIST. */
#include "tests/support.h"

#include <stdio.h>
#include <stdlib.h>

#ifdef HAVE_JPEG
#    include <jpeglib.h>
#endif

#include "src/base/memstream.h"
#include "src/data/picture.h"
#include "src/report/png.h"

enum { HEIGHT = 5, WIDTH = 7, PIXELS = HEIGHT * WIDTH };

static void draw(uint8_t *pixels) {
    for (unsigned i = 0; i < PIXELS; i++) pixels[i] = (uint8_t)(i * i * 7 % 256);
}

static void assert_refused(const void *bytes, size_t size, const char *says) {
    struct picture picture;
    assert_status(picture_decode(&picture, bytes, size, "NAME"), STATUS_BAD_DATA);
    assert_null(picture.pixels);
    assert_says(status_message(), "NAME: ");
    assert_says(status_message(), says);
}

/* --- PGM --- */

#define BYTES(text) text, sizeof(text) - 1

static void pgm_of_every_kind(void **state) {
    (void)state;
    static const struct {
        const char *bytes;
        size_t size;
        uint8_t pixels[2];
    } files[] = {
        {BYTES("P5\n2 1\n255\n\x07\xff"), {7, 255}},
        {BYTES("P5 2 1 255 \x07\xffmore"), {7, 255}},
        {BYTES("P5 # a comment 9 9\n# 8\n2 # 7\r1 255\n\x07\xff"), {7, 255}},
        {BYTES("P5\n2 1\n15\n\x0f\x05"), {255, 85}},
        {BYTES("P5\n2 1\n65535\n\xff\xff\x80\x00"), {255, 128}},
        {BYTES("P2\n2 1\n255\n7 255\n"), {7, 255}},
        {BYTES("P2\n2 1\n1\n1 #\n0"), {255, 0}},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        struct picture picture;
        assert_status(picture_decode(&picture, (const uint8_t *)files[i].bytes, files[i].size, "pgm"),
                      STATUS_OK);
        assert_true(picture.height == 1 && picture.width == 2);
        assert_memory_equal(picture.pixels, files[i].pixels, 2);
        picture_free(&picture);
    }
}

static void bad_files_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *bytes;
        size_t size;
        const char *says;
    } files[] = {
        {BYTES(""), "it is empty"},
        {BYTES("GIF89a"), "not a PNG, JPEG or grey PGM"},
        {BYTES("P6\n1 1\n255\nabc"), "not a PNG"},
        {BYTES("P5"), "damaged header"},
        {BYTES("P5\n2 1\n255"), "damaged header"},
        {BYTES("P5\n2 1\n0\nab"), "damaged header"},
        {BYTES("P5\n2 1\n65536\nabcd"), "damaged header"},
        {BYTES("P5\n-2 1\n255\nab"), "damaged header"},
        {BYTES("P5\n99999999999999999999 1\n255\nab"), "damaged header"},
        {BYTES("P5\n0 1\n255\nab"), "without pixels"},
        {BYTES("P5\n1 0\n255\nab"), "1 to"},
        {BYTES("P5\n2 1\n255\na"), "ends before"},
        {BYTES("P5\n33000000 33000000\n255\na"), "ends before"},
        {BYTES("P5\n2 1\n65535\nabc"), "pixel 1"},
        {BYTES("P5\n2 1\n15\n\x0f\x10"), "pixel 1"},
        {BYTES("P2\n2 1\n255\n7 256"), "pixel 1"},
        {BYTES("P2\n2 1\n255\n7 x"), "pixel 1"},
        {BYTES("\x89PNG\r\n\x1a\n"), "PNG"},
        {BYTES("\xff\xd8\xff\xe0"), "JPEG"},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        assert_refused(files[i].bytes, files[i].size, files[i].says);
}

/* --- PNG and JPEG: written here, read back, and cut at every byte --- */

static void assert_cut_is_refused(const uint8_t *bytes, size_t size, size_t needed) {
    for (size_t cut = 0; cut < needed; cut++) {
        uint8_t *part = malloc(cut + 1); /* so that a sanitizer sees what lies behind */
        assert_non_null(part);
        memcpy(part, bytes, cut);
        assert_refused(part, cut, "");
        free(part);
    }
    for (size_t at = 0; at < size; at++) { /* damaged: any answer, but no crash */
        struct picture picture;
        uint8_t *copy = malloc(size);
        assert_non_null(copy);
        memcpy(copy, bytes, size);
        copy[at] ^= 0x5a;
        if (!picture_decode(&picture, copy, size, "damaged")) picture_free(&picture);
        free(copy);
    }
}

static void png_reads_back(void **state) {
    (void)state;
#ifdef HAVE_PNG
    enum { TRAILER = 12 }; /* the chunk IEND */
    struct memstream file;
    struct picture picture;
    uint8_t pixels[PIXELS];
    draw(pixels);
    assert_status(memstream_open(&file), STATUS_OK);
    assert_status(memstream_close(&file, png_write(file.out, pixels, HEIGHT, WIDTH)), STATUS_OK);
    const uint8_t *bytes = (const uint8_t *)file.text;
    assert_status(picture_decode(&picture, bytes, file.length, "png"), STATUS_OK);
    assert_true(picture.height == HEIGHT && picture.width == WIDTH);
    assert_memory_equal(picture.pixels, pixels, PIXELS);
    picture_free(&picture);
    assert_cut_is_refused(bytes, file.length, file.length - TRAILER);
    free(file.text);
#else
    print_message("skipped: built without libpng\n");
    skip();
#endif
}

/* A header of 30,000 x 30,000 pixels before 60 bytes of data: refused by its size. */
static void png_that_announces_too_much(void **state) {
    (void)state;
#ifdef HAVE_PNG
    static const uint8_t huge[] =
        "\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x75\x30\0\0\x75\x30\x08\0\0\0\0\xc9\x2a\x3d\xe9"
        "\0\0\0\x0bIDAT\x78\x9c\x63\0\1\0\0\5\0\1";
    struct picture picture;
    assert_status(picture_decode(&picture, huge, sizeof huge - 1, "NAME"), STATUS_BAD_DATA);
    assert_null(picture.pixels);
#else
    skip();
#endif
}

static void jpeg_reads_back(void **state) {
    (void)state;
#ifdef HAVE_JPEG
    struct jpeg_compress_struct info;
    struct jpeg_error_mgr errors;
    unsigned char *bytes = NULL;
    unsigned long size = 0;
    struct picture picture;
    uint8_t pixels[PIXELS];
    for (int i = 0; i < PIXELS; i++) pixels[i] = (uint8_t)(6 * i);
    info.err = jpeg_std_error(&errors);
    jpeg_create_compress(&info);
    jpeg_mem_dest(&info, &bytes, &size);
    info.image_height = HEIGHT;
    info.image_width = WIDTH;
    info.input_components = 1;
    info.in_color_space = JCS_GRAYSCALE;
    jpeg_set_defaults(&info);
    jpeg_set_quality(&info, 100, TRUE);
    jpeg_start_compress(&info, TRUE);
    for (size_t y = 0; y < HEIGHT; y++) {
        JSAMPROW row = pixels + y * WIDTH;
        jpeg_write_scanlines(&info, &row, 1);
    }
    jpeg_finish_compress(&info);
    jpeg_destroy_compress(&info);
    assert_status(picture_decode(&picture, bytes, size, "jpeg"), STATUS_OK);
    assert_true(picture.height == HEIGHT && picture.width == WIDTH);
    for (int i = 0; i < PIXELS; i++) assert_near(picture.pixels[i], pixels[i], 0.05);
    picture_free(&picture);
    assert_cut_is_refused(bytes, size, size - 2); /* all but the end marker */
    free(bytes);
#else
    print_message("skipped: built without libjpeg\n");
    skip();
#endif
}

/* --- scaling --- */

static struct picture blank(size_t height, size_t width, uint8_t grey) {
    struct picture picture;
    assert_status(picture_alloc(&picture, height, width, "blank"), STATUS_OK);
    memset(picture.pixels, grey, height * width);
    return picture;
}

static void scaling_keeps_the_mean(void **state) {
    (void)state;
    static const size_t sizes[][4] = {{5, 7, 28, 28}, {300, 200, 28, 28}, {28, 28, 1, 1}, {1, 90, 3, 3}};
    for (size_t s = 0; s < 4; s++) {
        struct picture picture = blank(sizes[s][0], sizes[s][1], 77);
        assert_status(picture_scale(&picture, sizes[s][2], sizes[s][3]), STATUS_OK);
        assert_true(picture.height == sizes[s][2] && picture.width == sizes[s][3]);
        for (size_t i = 0; i < sizes[s][2] * sizes[s][3]; i++) assert_int_equal(picture.pixels[i], 77);
        picture_free(&picture);
    }
    struct picture halves = blank(40, 40, 0); /* the left half is white */
    for (size_t y = 0; y < 40; y++) memset(halves.pixels + y * 40, 255, 20);
    assert_status(picture_scale(&halves, 4, 4), STATUS_OK);
    for (size_t y = 0; y < 4; y++) {
        const uint8_t *row = halves.pixels + y * 4;
        assert_true(row[0] == 255 && row[3] == 0 && row[1] > 200 && row[2] < 55);
        assert_int_equal(row[1] + row[2], 255);
    }
    picture_free(&halves);
}

/* Dark ink on bright paper, off the centre, with an uneven background: a bar that is four times as high as it
   is wide becomes 20 x 5 pixels in the middle of 28 x 28. */
static void mnist_looks(void **state) {
    (void)state;
    struct picture picture = blank(300, 400, 230);
    for (size_t i = 0; i < 300 * 400; i += 3) picture.pixels[i] = 220;
    for (size_t y = 10; y < 210; y++) memset(picture.pixels + y * 400 + 330, 40, 50);
    assert_status(picture_like_mnist(&picture, 28, "bar"), STATUS_OK);
    assert_true(picture.height == 28 && picture.width == 28);
    for (size_t y = 0; y < 28; y++)
        for (size_t x = 0; x < 28; x++) {
            const unsigned pixel = picture.pixels[y * 28 + x];
            const bool inside = y >= 4 && y < 24 && x >= 11 && x < 17; /* 5 columns: 11 to 15 or 12 to 16 */
            if (!inside) assert_int_equal(pixel, 0);
            if (inside && x >= 12 && x < 16) assert_true(pixel > 240);
        }
    struct picture inverse = blank(28, 28, 0); /* already so: bright on black */
    memset(inverse.pixels + 5 * 28 + 3, 200, 8);
    assert_status(picture_like_mnist(&inverse, 14, "line"), STATUS_OK);
    assert_int_equal(inverse.height, 14);
    size_t ink = 0;
    for (size_t i = 0; i < 14 * 14; i++) ink += inverse.pixels[i] > 200;
    assert_int_equal(ink, 10); /* the box is 10 wide, the line 1 high */
    struct picture nothing = blank(9, 9, 250);
    assert_status(picture_like_mnist(&nothing, 28, "NAME"), STATUS_BAD_DATA);
    assert_says(status_message(), "nothing is drawn");
    picture_free(&picture);
    picture_free(&inverse);
    picture_free(&nothing);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pgm_of_every_kind), cmocka_unit_test(bad_files_are_refused),
        cmocka_unit_test(png_reads_back),    cmocka_unit_test(png_that_announces_too_much),
        cmocka_unit_test(jpeg_reads_back),   cmocka_unit_test(scaling_keeps_the_mean),
        cmocka_unit_test(mnist_looks),
    };
    return cmocka_run_group_tests_name("pictures", tests, NULL, NULL);
}
