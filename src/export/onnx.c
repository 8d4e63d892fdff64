/* The field numbers are those of onnx.proto (github.com/onnx/onnx); "Message.field" names each. */
#include <stdlib.h>

#include "src/base/memory.h"
#include "src/base/platform.h"
#include "src/base/replace.h"
#include "src/base/text.h"
#include "src/export/activation_forms.h"
#include "src/export/formats.h"
#include "src/export/protobuf.h"

enum { TYPE_FLOAT = 1, TYPE_UINT8 = 2, ATTRIBUTE_INT = 2, NAME = 64 };
static const size_t MOST_BYTES = (size_t)1 << 31;

/* --- parts of a graph --- */

static void tensor(struct protobuf *p, const char *name, const struct tensor *shape, const float *values) {
    const size_t begin = protobuf_begin(p);
    for (size_t i = 0; i < shape->rank; i++) protobuf_integer(p, 1, shape->shape[i]); /* TensorProto.dims */
    protobuf_integer(p, 2, TYPE_FLOAT);                                               /* .data_type */
    protobuf_text(p, 8, name);                                                        /* .name */
    protobuf_bytes(p, 9, values, tensor_elements(shape) * sizeof *values); /* .raw_data, little-endian */
    protobuf_end(p, 5, begin);                                             /* GraphProto.initializer */
}

static void attribute(struct protobuf *p, const char *name, uint64_t value) {
    const size_t begin = protobuf_begin(p);
    protobuf_text(p, 1, name);              /* AttributeProto.name */
    protobuf_integer(p, 3, value);          /* .i */
    protobuf_integer(p, 20, ATTRIBUTE_INT); /* .type */
    protobuf_end(p, 5, begin);              /* NodeProto.attribute */
}

/* A node; `inputs` ends with NULL, and `attribute_name` may be NULL. */
static void node(struct protobuf *p, const char *op, const char *const *inputs, const char *output,
                 const char *attribute_name, uint64_t value) {
    const size_t begin = protobuf_begin(p);
    for (; *inputs; inputs++) protobuf_text(p, 1, *inputs); /* NodeProto.input */
    protobuf_text(p, 2, output);                            /* .output */
    protobuf_text(p, 3, output);                            /* .name: that of its output */
    protobuf_text(p, 4, op);                                /* .op_type */
    if (attribute_name) attribute(p, attribute_name, value);
    protobuf_end(p, 1, begin); /* GraphProto.node */
}

/* y = x op constant; the constant is an initializer of its own. */
static void with_constant(struct protobuf *p, const char *op, const char *x, float constant, const char *y) {
    char name[NAME + 16];
    snprintf(name, sizeof name, "%s.constant", y);
    tensor(p, name, &(struct tensor){.rank = 0}, &constant);
    node(p, op, (const char *const[]){x, name, NULL}, y, NULL, 0);
}

/* A graph's input (field 11) or output (12): [batch, width]. */
static void value(struct protobuf *p, unsigned field, const char *name, unsigned type, size_t width) {
    const size_t info = protobuf_begin(p);
    protobuf_text(p, 1, name); /* ValueInfoProto.name */
    const size_t of = protobuf_begin(p), tensor_type = protobuf_begin(p);
    protobuf_integer(p, 1, type); /* TypeProto.Tensor.elem_type */
    const size_t shape = protobuf_begin(p);
    protobuf_text(p, 2, "batch"); /* TensorShapeProto.Dimension.dim_param */
    protobuf_end(p, 1, shape);    /* TensorShapeProto.dim */
    const size_t second = protobuf_begin(p);
    protobuf_integer(p, 1, width);   /* TensorShapeProto.Dimension.dim_value */
    protobuf_end(p, 1, second);      /* TensorShapeProto.dim */
    protobuf_end(p, 2, shape);       /* TypeProto.Tensor.shape */
    protobuf_end(p, 1, tensor_type); /* TypeProto.tensor_type */
    protobuf_end(p, 2, of);          /* ValueInfoProto.type */
    protobuf_end(p, field, info);
}

/* --- the network --- */

/* pixels -> input.0 = (pixel - offset) scale, as training computes it. */
static void write_input(struct protobuf *p, const struct network *network) {
    node(p, "Cast", (const char *const[]){"pixels", NULL}, "pixels.float", "to", TYPE_FLOAT);
    with_constant(p, "Sub", "pixels.float", (float)input_offset(network->range), "pixels.centred");
    with_constant(p, "Mul", "pixels.centred", (float)input_scale(network->range), "input.0");
}

/* Each step of the activation has a result of its own; the last of them is the input of the next layer. */
static void write_activation(struct protobuf *p, enum activation activation, const char *z, size_t l) {
    const struct onnx_step *steps = activation_forms[activation].steps;
    char from[NAME], to[NAME];
    snprintf(from, sizeof from, "%s", z);
    for (size_t i = 0; steps[i].op; i++) {
        if (steps[i + 1].op)
            snprintf(to, sizeof to, "layers.%zu.activation.%zu", l, i);
        else
            snprintf(to, sizeof to, "input.%zu", l + 1);
        if (steps[i].operands == OF_Y_AND_CONSTANT)
            with_constant(p, steps[i].op, from, steps[i].constant, to);
        else
            node(p, steps[i].op,
                 (const char *const[]){from, steps[i].operands == OF_Y_AND_Z ? z : NULL, NULL}, to, NULL, 0);
        snprintf(from, sizeof from, "%s", to);
    }
}

/* input.l -> logits, or input.(l + 1). */
static void write_layer(struct protobuf *p, const struct network *network, size_t l) {
    char weight[NAME], bias[NAME], input[NAME], z[NAME];
    const bool last = l + 1 == network->depth;
    snprintf(weight, sizeof weight, "layers.%zu.weight", l);
    snprintf(bias, sizeof bias, "layers.%zu.bias", l);
    snprintf(input, sizeof input, "input.%zu", l);
    snprintf(z, sizeof z, "layers.%zu.output", l);
    tensor(p, weight, network_tensor(network, l, false), network->weight[l]);
    tensor(p, bias, network_tensor(network, l, true), network->bias[l]);
    node(p, "Gemm", (const char *const[]){input, weight, bias, NULL}, last ? "logits" : z, "transB", 1);
    if (!last) write_activation(p, network->activation, z, l);
}

static void write_graph(struct protobuf *p, const struct network *network) {
    const size_t begin = protobuf_begin(p), classes = network->layers.width[network->depth];
    protobuf_text(p, 2, "perceptron"); /* GraphProto.name */
    write_input(p, network);
    for (size_t l = 0; l < network->depth; l++) write_layer(p, network, l);
    node(p, "Softmax", (const char *const[]){"logits", NULL}, "probabilities", NULL, 0);
    value(p, 11, "pixels", TYPE_UINT8, network->layers.width[0]); /* GraphProto.input */
    value(p, 12, "probabilities", TYPE_FLOAT, classes);           /* GraphProto.output */
    value(p, 12, "logits", TYPE_FLOAT, classes);
    protobuf_end(p, 7, begin); /* ModelProto.graph */
}

static void write_metadata(struct protobuf *p, const char *key, const char *text) {
    const size_t begin = protobuf_begin(p);
    protobuf_text(p, 1, key);   /* StringStringEntryProto.key */
    protobuf_text(p, 2, text);  /* .value */
    protobuf_end(p, 14, begin); /* ModelProto.metadata_props */
}

static void write_model(struct protobuf *p, const struct network *network) {
    char description[512];
    char classes[CLASSES_TEXT + 1];
    const char *recipe = safetensors_metadata(&network->checkpoint->file, "tessera.config");
    classes_text(&network->classes, classes);
    network_describe(network, description, sizeof description);
    protobuf_integer(p, 1, ONNX_IR_VERSION); /* ModelProto.ir_version */
    const size_t opset = protobuf_begin(p);
    protobuf_integer(p, 2, ONNX_OPSET);   /* OperatorSetIdProto.version */
    protobuf_end(p, 8, opset);            /* ModelProto.opset_import */
    protobuf_text(p, 2, "Tessera");       /* .producer_name */
    protobuf_text(p, 3, TESSERA_VERSION); /* .producer_version */
    protobuf_text(p, 6, description);     /* .doc_string */
    if (recipe) write_metadata(p, "tessera.config", recipe);
    if (network->classes.count) write_metadata(p, "tessera.classes", classes);
    write_graph(p, network);
}

enum status onnx_write(const struct network *network, const char *path) {
    struct protobuf model = {0};
    struct replacement file;
    const size_t bytes = network_parameters(network) * sizeof(float);
    if (bytes >= MOST_BYTES)
        return status_set(STATUS_FAILED,
                          "cannot write '%s': %s of weights do not fit into an ONNX file, at most 2 GiB",
                          path, text_bytes((double)bytes).text);
    write_model(&model, network);
    enum status status = STATUS_OK;
    if (memory_ran_out()) status = status_set(STATUS_FAILED, "out of memory while writing '%s'", path);
    if (!status) status = replace_open(&file, "", path);
    if (!status) {
        fwrite(model.bytes, 1, model.length, file.out); /* replace_close sees a failure */
        status = replace_close(&file, STATUS_OK);
    }
    free(model.bytes);
    return status;
}
