/* Initial weights of the first layer from the centres of k-means: --init kmeans:FILE. */
#ifndef TESSERA_NN_CENTRE_LAYER_H
#define TESSERA_NN_CENTRE_LAYER_H

#include "src/nn/mlp.h"

/* Sets row j of the first layer to sqrt(2) (c_j - m) / |c_j - m|: c_j is centre j of the file, which
   ./train kmeans --save wrote, and m the mean of its points. So a unit responds to what tells its cluster
   from the mean image, and each row has the norm that a row of INIT_HE has on average. (Centred data and rows
   of one norm: Coates, Lee and Ng 2011, AISTATS 15; Coates and Ng 2012, "Learning feature representations
   with k-means".) Biases stay 0. A centre that equals the mean leaves its row as it is. Computed in double
   and cast once, as in mlp_initialize, which is called before. STATUS_USAGE if the file has another number of
   clusters than the layer has outputs, or of features than it has inputs; STATUS_BAD_DATA if it is not a
   checkpoint of k-means. */
enum status centre_layer_load(struct mlp *mlp, const char *path);

#endif
