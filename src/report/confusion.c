#include "src/report/confusion.h"

#include "src/base/text.h"

void confusion_count(uint32_t *counts, size_t classes, const uint8_t *labels, const uint8_t *predicted,
                     size_t images) {
    for (size_t i = 0; i < images; i++) counts[labels[i] * classes + predicted[i]]++;
}

static void print_matrix(FILE *out, const uint32_t *counts, size_t classes) {
    fprintf(out, "confusion matrix (row: label, column: prediction; . is none)\n      ");
    for (size_t c = 0; c < classes; c++) fprintf(out, " %5zu", c);
    fputc('\n', out);
    for (size_t r = 0; r < classes; r++) {
        fprintf(out, "%6zu", r);
        for (size_t c = 0; c < classes; c++) {
            if (counts[r * classes + c]) {
                fprintf(out, " %5u", counts[r * classes + c]);
            } else {
                fprintf(out, "     .");
            }
        }
        fputc('\n', out);
    }
}

/* part / whole in per cent, right-aligned. */
static void print_ratio(FILE *out, uint64_t part, uint64_t whole) {
    if (whole) {
        fprintf(out, "  %8.2f %%", 100.0 * (double)part / (double)whole);
    } else {
        fprintf(out, "  %10s", "-");
    }
}

void confusion_print(FILE *out, const uint32_t *counts, size_t classes) {
    print_matrix(out, counts, classes);
    fprintf(out, "\n class   images   precision      recall\n");
    for (size_t c = 0; c < classes; c++) {
        uint64_t labelled = 0, predicted = 0;
        for (size_t other = 0; other < classes; other++) {
            labelled += counts[c * classes + other];
            predicted += counts[other * classes + c];
        }
        fprintf(out, "%6zu %8s", c, text_grouped(labelled).text);
        print_ratio(out, counts[c * classes + c], predicted);
        print_ratio(out, counts[c * classes + c], labelled);
        fputc('\n', out);
    }
}
