/* Any bytes as a picture. What is accepted has the announced size, scales, and takes the looks of MNIST; it
   is within the limit of pixels. A text PGM of the pixels reads back. The first byte of an input chooses: the
   bytes behind it as they are, or a PNG or JPEG that is encoded here from them and then damaged, so that
   whole files are there without seeds. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef HAVE_JPEG
#    include <jpeglib.h>
#endif
#ifdef HAVE_PNG
#    include <png.h>
#endif

#include "src/data/picture.h"
#include "tests/fuzz/fuzz.h"

enum { MOST_SCALED = 1 << 16, ENCODED = 1 << 16, HEADER = 6 };

/* --- encoders: a few pixels in the format and layout that the header chooses --- */

struct recipe {
    unsigned format; /* 0: the bytes themselves */
    unsigned height, width, layout, damaged_at, damage;
};

static struct recipe recipe_of(const uint8_t *header) {
    return (struct recipe){header[0] % 3, 1u + header[1] % 24, 1u + header[2] % 24,
                           header[3],     header[4],           header[5]};
}

/* Returns the size of the file in `to`; 0: not encoded. */
static size_t encode_png(const struct recipe *recipe, const uint8_t *pixels, uint8_t *to) {
#ifdef HAVE_PNG
    static const png_uint_32 layouts[] = {PNG_FORMAT_GRAY, PNG_FORMAT_GA,       PNG_FORMAT_RGB,
                                          PNG_FORMAT_RGBA, PNG_FORMAT_LINEAR_Y, PNG_FORMAT_LINEAR_RGB_ALPHA};
    png_alloc_size_t size = ENCODED;
    png_image image = {.version = PNG_IMAGE_VERSION,
                       .height = recipe->height,
                       .width = recipe->width,
                       .format = layouts[recipe->layout % 6]};
    const int done = png_image_write_to_memory(&image, to, &size, 0, pixels, 0, NULL);
    png_image_free(&image);
    return done ? size : 0;
#else
    (void)recipe, (void)pixels, (void)to;
    return 0;
#endif
}

static size_t encode_jpeg(const struct recipe *recipe, uint8_t *pixels, uint8_t *to) {
#ifdef HAVE_JPEG
    struct jpeg_compress_struct info;
    struct jpeg_error_mgr errors;
    unsigned char *bytes = NULL;
    unsigned long size = 0;
    info.err = jpeg_std_error(&errors);
    jpeg_create_compress(&info);
    jpeg_mem_dest(&info, &bytes, &size);
    info.image_height = recipe->height;
    info.image_width = recipe->width;
    info.input_components = recipe->layout & 1 ? 3 : 1;
    info.in_color_space = recipe->layout & 1 ? JCS_RGB : JCS_GRAYSCALE;
    jpeg_set_defaults(&info);
    if (recipe->layout & 2) jpeg_simple_progression(&info);
    jpeg_start_compress(&info, TRUE);
    for (unsigned y = 0; y < recipe->height; y++) {
        JSAMPROW row = pixels + y * recipe->width * (unsigned)info.input_components;
        jpeg_write_scanlines(&info, &row, 1);
    }
    jpeg_finish_compress(&info);
    jpeg_destroy_compress(&info);
    const size_t kept = size <= ENCODED ? size : 0;
    memcpy(to, bytes, kept);
    free(bytes);
    return kept;
#else
    (void)recipe, (void)pixels, (void)to;
    return 0;
#endif
}

/* Changes a byte of the pixels behind the header, or cuts the file. */
static size_t damage(const struct recipe *recipe, uint8_t *bytes, size_t size) {
    if (!size || recipe->damaged_at == 0) return size;
    if (recipe->damage == 0) return size * recipe->damaged_at / 256;
    bytes[size * recipe->damaged_at / 256] ^= (uint8_t)recipe->damage;
    return size;
}

/* --- checks --- */

static void check_text(const struct picture *picture) {
    char *text = NULL;
    size_t size;
    struct picture again;
    FILE *out = open_memstream(&text, &size);
    if (!out) abort();
    fprintf(out, "P2\n# text\n%zu %zu\n255\n", picture->width, picture->height);
    for (size_t i = 0; i < picture->height * picture->width; i++) fprintf(out, "%u\n", picture->pixels[i]);
    fclose(out);
    if (picture_decode(&again, (const uint8_t *)text, size, "text") || again.height != picture->height ||
        again.width != picture->width ||
        memcmp(again.pixels, picture->pixels, again.height * again.width) != 0)
        fuzz_fail("as text: %s", status_message());
    picture_free(&again);
    free(text);
}

static void check_picture(const uint8_t *bytes, size_t size, int whole) {
    struct picture picture;
    const enum status status = picture_decode(&picture, bytes, size, "fuzz");
    if (status && (picture.pixels || status != STATUS_BAD_DATA || whole))
        fuzz_fail("refused with status %d: %s", status, status_message());
    if (status) return;
    if (!picture.height || !picture.width || picture.height > PICTURE_MOST_PIXELS / picture.width)
        fuzz_fail("accepted with %zu x %zu pixels", picture.height, picture.width);
    if (picture.height * picture.width <= MOST_SCALED) {
        check_text(&picture);
        if (picture_scale(&picture, 1 + size % 40, 1 + size % 29)) fuzz_fail("not scaled");
        if (!picture_like_mnist(&picture, 28, "fuzz") && picture.height * picture.width != 28 * 28)
            fuzz_fail("not as MNIST");
    }
    picture_free(&picture);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static uint8_t file[ENCODED];
    if (size < HEADER) return 0;
    const struct recipe recipe = recipe_of(data);
    forbid_writing(1);
    if (recipe.format == 0) {
        check_picture(data + HEADER, size - HEADER, 0);
    } else {
        uint8_t pixels[24 * 24 * 8] = {0}; /* the largest layout */
        const size_t given = size - HEADER < sizeof pixels ? size - HEADER : sizeof pixels;
        memcpy(pixels, data + HEADER, given);
        const size_t encoded =
            recipe.format == 1 ? encode_png(&recipe, pixels, file) : encode_jpeg(&recipe, pixels, file);
        const int whole = encoded && recipe.damaged_at == 0;
        if (encoded) check_picture(file, damage(&recipe, file, encoded), whole);
    }
    forbid_writing(0);
    return 0;
}
