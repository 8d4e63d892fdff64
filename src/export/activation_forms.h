/* The activations in the languages of the exports. The formulas are those of kernels/activation.h. */
#ifndef TESSERA_EXPORT_ACTIVATION_FORMS_H
#define TESSERA_EXPORT_ACTIVATION_FORMS_H

#include "kernels/activation.h"

/* An ONNX operator that is applied to the result of the previous one, y, beginning with y = z. */
struct onnx_step {
    const char *op; /* NULL: no more */
    enum { OF_Y, OF_Y_AND_CONSTANT, OF_Y_AND_Z } operands;
    float constant;
};

struct activation_form {
    const char *c;     /* a C99 expression of `float z` */
    const char *torch; /* the module in an nn.Sequential */
    struct onnx_step steps[6];
};

static const struct activation_form activation_forms[ACTIVATION_COUNT] = {
    [ACTIVATION_NONE] = {"z", "nn.Identity()", {{"Identity", OF_Y, 0}}},
    [ACTIVATION_RELU] = {"z < 0.0f ? 0.0f : z", "nn.ReLU()", {{"Relu", OF_Y, 0}}},
    [ACTIVATION_TANH] = {"tanhf(z)", "nn.Tanh()", {{"Tanh", OF_Y, 0}}},
    [ACTIVATION_SCALED_TANH] = {"1.7159f * tanhf(0.666666667f * z)",
                                "ScaledTanh()",
                                {{"Mul", OF_Y_AND_CONSTANT, (float)(2.0 / 3.0)},
                                 {"Tanh", OF_Y, 0},
                                 {"Mul", OF_Y_AND_CONSTANT, 1.7159f}}},
    [ACTIVATION_SIGMOID] = {"1.0f / (1.0f + expf(-z))", "nn.Sigmoid()", {{"Sigmoid", OF_Y, 0}}},
    [ACTIVATION_GELU] = {"0.5f * z * (1.0f + erff(0.707106781f * z))",
                         "nn.GELU()",
                         {{"Mul", OF_Y_AND_CONSTANT, 0.707106781f},
                          {"Erf", OF_Y, 0},
                          {"Add", OF_Y_AND_CONSTANT, 1},
                          {"Mul", OF_Y_AND_Z, 0},
                          {"Mul", OF_Y_AND_CONSTANT, 0.5f}}},
};

#endif
