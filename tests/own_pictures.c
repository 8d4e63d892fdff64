#include "tests/own_pictures.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

const char *const picture_classes[PICTURE_CLASSES] = {"class 2", "class 10", "über"};

void make_folder(const char *path) {
    assert_true(mkdir(path, 0777) == 0 || access(path, F_OK) == 0);
}

void write_picture(const char *path, size_t height, size_t width, size_t class, unsigned mark) {
    char file[512];
    const int header = snprintf(file, sizeof file, "P5\n%zu %zu\n255\n", width, height);
    uint8_t *pixels = (uint8_t *)file + header;
    for (size_t i = 0; i < height * width; i++)
        pixels[i] = (uint8_t)(i % width / 2 == class ? 200 + mark % 40 : i * 3 % 50);
    pixels[0] = (uint8_t)mark;
    support_write(path, file, (size_t)header + height * width);
}

const char *make_pictures(const char *name, size_t divisor) {
    static char folder[400];
    char path[600];
    snprintf(folder, sizeof folder, "%s", support_path(name));
    make_folder(folder);
    for (size_t c = 0; c < PICTURE_CLASSES; c++) {
        snprintf(path, sizeof path, "%s/%s", folder, picture_classes[c]);
        make_folder(path);
        for (unsigned i = 0; i < (10u << c) / divisor; i++) {
            snprintf(path, sizeof path, "%s/%s/%u.pgm", folder, picture_classes[c], i);
            write_picture(path, SIDE, SIDE, c, i);
        }
    }
    return folder;
}

void write_text(const char *folder, const char *name, const char *text) {
    char path[600];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    support_write(path, text, strlen(text));
}
