/* Reads an ONNX file and executes it in double: an independent reader of what src/export/onnx.c writes, for
   the operators of a perceptron. Any error fails the test. */
#ifndef TESSERA_TESTS_ONNX_RUN_H
#define TESSERA_TESTS_ONNX_RUN_H

#include <stddef.h>
#include <stdint.h>

enum { ONNX_NAME = 64, ONNX_DIMS = 2, ONNX_VALUES = 128 };

struct onnx_value {
    char name[ONNX_NAME];
    uint64_t dims[ONNX_DIMS]; /* of an initializer */
    size_t rank, count;
    double *values;
};

struct onnx_info {
    char name[ONNX_NAME], batch[ONNX_NAME];
    uint64_t type, width;
};

/* Parsed; the nodes stay in `bytes`. */
struct onnx_model {
    unsigned char *bytes;
    uint64_t ir_version, opset;
    char producer[ONNX_NAME], description[512];
    char *recipe; /* metadata tessera.config, or NULL */
    struct onnx_info input, output[2];
    size_t outputs, nodes;
    const unsigned char *node[ONNX_VALUES];
    size_t node_length[ONNX_VALUES];
    struct onnx_value value[ONNX_VALUES]; /* initializers, then results of nodes */
    size_t initializers, values;
};

void onnx_read(struct onnx_model *model, const char *path);
void onnx_free(struct onnx_model *model);

/* Runs the graph on one image. The values of onnx_find stay until the next call. */
void onnx_run(struct onnx_model *model, const uint8_t *pixels, size_t count);
const struct onnx_value *onnx_find(const struct onnx_model *model, const char *name);

#endif
