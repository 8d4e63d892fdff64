#include <stdio.h>

#include "src/base/replace.h"
#include "src/data/idx.h"

enum status idx_write(const struct idx *idx, const char *path) {
    struct replacement file;
    size_t values = 1;
    for (size_t i = 0; i < idx->rank; i++) {
        if (idx->dim[i] > UINT32_MAX)
            return status_set(STATUS_FAILED, "%s: %zu is too many for an IDX file", path, idx->dim[i]);
        values *= idx->dim[i];
    }
    const enum status status = replace_open(&file, "", path);
    if (status) return status;
    fwrite((const uint8_t[]){0, 0, 8, (uint8_t)idx->rank}, 1, 4, file.out);
    for (size_t i = 0; i < idx->rank; i++)
        for (int shift = 24; shift >= 0; shift -= 8) fputc((int)(idx->dim[i] >> shift & 0xff), file.out);
    fwrite(idx->values, 1, values, file.out);
    return replace_close(&file, STATUS_OK);
}
