/* JPEG by libjpeg, whose errors leave by longjmp. */
#include <setjmp.h>
#include <stdio.h>

#include <jpeglib.h>

#include <jerror.h>

#include "src/data/picture.h"

enum { MOST_SCANS = 100 }; /* of a progressive file: a small one may ask for hours of work */

struct decompressor {
    struct jpeg_decompress_struct info;
    struct jpeg_error_mgr errors;
    struct jpeg_progress_mgr progress;
    jmp_buf failed;
    char reason[JMSG_LENGTH_MAX];
};

static void fail(j_common_ptr info) {
    struct decompressor *decompressor = info->client_data;
    info->err->format_message(info, decompressor->reason);
    longjmp(decompressor->failed, 1);
}

/* Warnings: libjpeg fills what is missing with grey. Other damage cannot be told from what cameras write. */
static void warn(j_common_ptr info, int level) {
    if (level < 0 && info->err->msg_code == JWRN_JPEG_EOF) fail(info);
}

static void count_scans(j_common_ptr info) {
    struct decompressor *decompressor = info->client_data;
    if (decompressor->info.input_scan_number <= MOST_SCANS) return;
    snprintf(decompressor->reason, sizeof decompressor->reason, "more than %d scans", MOST_SCANS);
    longjmp(decompressor->failed, 1);
}

static enum status read_rows(struct decompressor *decompressor, struct picture *picture, const uint8_t *bytes,
                             size_t size, const char *name) {
    struct jpeg_decompress_struct *info = &decompressor->info;
    jpeg_mem_src(info, bytes, size);
    jpeg_read_header(info, TRUE);
    const enum status status = picture_alloc(picture, info->image_height, info->image_width, name);
    if (status) return status;
    info->out_color_space = JCS_GRAYSCALE;
    jpeg_start_decompress(info);
    while (info->output_scanline < info->output_height) {
        JSAMPROW row = picture->pixels + info->output_scanline * picture->width;
        jpeg_read_scanlines(info, &row, 1);
    }
    jpeg_finish_decompress(info);
    return STATUS_OK;
}

enum status picture_decode_jpeg(struct picture *picture, const uint8_t *bytes, size_t size,
                                const char *name) {
    struct decompressor decompressor = {.progress.progress_monitor = count_scans};
    enum status status;
    decompressor.info.err = jpeg_std_error(&decompressor.errors);
    decompressor.errors.error_exit = fail;
    decompressor.errors.emit_message = warn;
    decompressor.info.client_data = &decompressor;
    if (setjmp(decompressor.failed)) {
        status = status_set(STATUS_BAD_DATA, "%s: a damaged JPEG file (%s)", name, decompressor.reason);
    } else {
        jpeg_create_decompress(&decompressor.info);
        decompressor.info.progress = &decompressor.progress;
        status = read_rows(&decompressor, picture, bytes, size, name);
    }
    jpeg_destroy_decompress(&decompressor.info);
    return status;
}
