/* Runs a harness on the files that are named, without libFuzzer. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/fuzz/fuzz.h"

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        char *bytes = NULL;
        size_t size = 0;
        FILE *in = fopen(argv[i], "rb"), *out = open_memstream(&bytes, &size);
        if (!in || !out) {
            fprintf(stderr, "cannot read %s\n", argv[i]);
            return 1;
        }
        for (int byte; (byte = fgetc(in)) != EOF;) fputc(byte, out);
        fclose(in);
        fclose(out);
        printf("%s: %zu bytes\n", argv[i], size);
        LLVMFuzzerTestOneInput((const uint8_t *)bytes, size);
        free(bytes);
    }
    return 0;
}
