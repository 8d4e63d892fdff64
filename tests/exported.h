/* Trained networks of all activations, depths, input ranges and dtypes, exported in every format, and what
   eval answers with them. */
#ifndef TESSERA_TESTS_EXPORTED_H
#define TESSERA_TESTS_EXPORTED_H

#include "tests/support.h"

enum { IMAGES = 100, FEATURES = 42, CLASSES = 4, CASES = 7 };

/* A network: its files, what `export` printed for ONNX, C and the state dict, and the nn.Sequential that it
   names. */
struct exported {
    char model[256], onnx[256], source[256], torch[256], integer[256], console[2048];
    const char *sequential;
};

/* The data set of the networks. */
extern struct dataset_pair exported_data;

/* Set-up and tear-down of a group that uses these. */
int exported_open(void **state);
int exported_close(void **state);

/* Trains the network of case n and exports it in every format; once in each program. */
const struct exported *exported_case(size_t n);

/* What eval computes: the log probabilities [IMAGES][CLASSES] and the classes. */
void exported_evaluate(const struct exported *at, double *log_probability, uint8_t *label);

/* Pixels [FEATURES] of test image i. */
const uint8_t *exported_image(size_t i);

/* Asserts that the probabilities of image i are those of eval, and that the class is, unless the two largest
   differ by no more than rounding. */
void exported_check(const double *log_probability, size_t label, size_t i, const double *got, size_t class);

#endif
