/* Data sets as users have them: folders of pictures, one folder for each class. */
#ifndef TESSERA_TESTS_OWN_PICTURES_H
#define TESSERA_TESTS_OWN_PICTURES_H

#include "tests/support.h"

enum { SIDE = 6, PIXELS = SIDE * SIDE, PICTURE_CLASSES = 3 };

/* The classes of make_pictures, in natural order. */
extern const char *const picture_classes[PICTURE_CLASSES];

/* Makes the folder, unless it is there. */
void make_folder(const char *path);

/* Writes a PGM in which two bright columns say the class; the corner pixel has `mark`. */
void write_picture(const char *path, size_t height, size_t width, size_t class, unsigned mark);

/* Writes NAME/CLASS/0.pgm, 1.pgm .. of SIDE x SIDE pixels: of the three classes 10, 20 and 40 pictures,
   divided by `divisor`. Returns the path of NAME in a static buffer. */
const char *make_pictures(const char *name, size_t divisor);

void write_text(const char *folder, const char *name, const char *text);

#endif
