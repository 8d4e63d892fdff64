/* A contact sheet: small grey images in rows and columns, enlarged so that they can be seen, as a PNG or PGM
   file. */
#ifndef TESSERA_REPORT_SHEET_H
#define TESSERA_REPORT_SHEET_H

#include <stdbool.h>

#include "src/base/status.h"
#include "src/report/picture.h"

struct sheet {
    size_t rows, columns;
    size_t height, width; /* of each image */
    /* [rows][columns], 0 is black; NULL pixels: an empty place. The captions stand below, in the characters
       of lettering.h. */
    const struct picture *pictures;
    bool apart; /* the first column stands apart */
};

/* Writes it, as the name's ending says. STATUS_USAGE for another ending; STATUS_FAILED if there is no memory,
   or the file cannot be written. */
enum status sheet_write(const struct sheet *sheet, const char *path);

/* STATUS_USAGE unless the name ends in .png or .pgm. */
enum status sheet_check_name(const char *path);

#endif
