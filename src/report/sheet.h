/* A contact sheet: small grey images in rows and columns, enlarged so that they can be seen, as a PNG or PGM file. */
#ifndef TESSERA_REPORT_SHEET_H
#define TESSERA_REPORT_SHEET_H

#include <stddef.h>
#include <stdint.h>

#include "src/base/status.h"

struct sheet {
    size_t rows, columns;
    size_t height, width; /* of each image */
    const uint8_t *const
        *images; /* [rows][columns], each [height][width], 0 is black; the first column stands apart */
};

/* Writes it, as the name's ending says. STATUS_USAGE for another ending; STATUS_FAILED if there is no memory, or the file cannot be
   written. */
enum status sheet_write(const struct sheet *sheet, const char *path);

/* STATUS_USAGE unless the name ends in .png or .pgm. */
enum status sheet_check_name(const char *path);

#endif
