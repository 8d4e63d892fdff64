/* The formats of other programs. Each function replaces the file `path` as a whole (src/base/replace.h) and
   returns STATUS_FAILED with the reason if it cannot. */
#ifndef TESSERA_EXPORT_FORMATS_H
#define TESSERA_EXPORT_FORMATS_H

#include "src/export/network.h"
#include "src/export/quantized.h"

/* ONNX, opset 13: input `pixels`, uint8 [batch, features]; outputs `probabilities` and `logits`, float
   [batch, classes]. STATUS_FAILED beyond 2 GiB, the limit of a protobuf file. */
enum { ONNX_OPSET = 13, ONNX_IR_VERSION = 7 };
enum status onnx_write(const struct network *network, const char *path);

/* A safetensors state dict of the nn.Sequential that torch_sequential describes: 0.weight, 0.bias, 2.weight,
   .. in the dtype of the checkpoint. The metadata have this description. */
enum status torch_write(const struct network *network, const char *path);

/* "nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))"; the caller frees it. NULL: out of
   memory. */
char *torch_sequential(const struct network *network);

/* One C99 file with the function
     int NAME_predict(const unsigned char *pixels, float *probabilities);
   NAME is that of the file (c_name). `quantized` (or NULL): the network in int8, by integer arithmetic, as
     int NAME_predict(const unsigned char *pixels, int32_t *scores);
   `accuracy` (or NULL): a sentence for its comment. */
enum status c_write(const struct network *network, const struct quantized *quantized, const char *accuracy,
                    const char *path);

/* Bytes of the constants, and of the stack that its buffers take. */
struct c_memory {
    size_t constants, stack;
};
struct c_memory c_memory(const struct network *network, const struct quantized *quantized);

#endif
