/* The table of keys: an entry defines a key for the config file, flags, the environment, --help and
   --dump-config. */
#include <string.h>

#include "kernels/activation.h"
#include "kernels/ops.h"
#include "src/nn/config.h"

static const char *const activations[] = {ACTIVATIONS(ACTIVATION_NAME, ) NULL};
static const char *const inits[] = {"he", "xavier", "uniform", "kmeans:FILE", NULL};
static const char *const input_ranges[] = {"0,1", "-1,1", NULL};
static const char *const optimizers[] = {OPTIMIZERS(OPTIMIZER_NAME, ) NULL};
static const char *const schedules[] = {"constant", "step", "cosine", "exponential", "one-cycle", NULL};
static const char *const switches[] = {"off", "on", NULL};
static const char *const transposes[] = {"auto", "off", "on", NULL};
static const char *const dtypes[] = {"f32", "f64", NULL};
static const char *const engines[] = {"auto", "eager", "graph", "fused", NULL};
static const char *const residencies[] = {"device", "host", NULL};
static const char *const precisions[] = {"f32", "tf32", "bf16", "fp16", NULL};
static const char *const audits[] = {"sample", "all", "off", NULL}; /* enum audit_mode */

static const char *const comms[] = {"auto", "none", "mpi", "tcp", "nccl", NULL}; /* enum comm_choice */
static const char *const reductions[] = {"any", "fixed", NULL};

static const char *const kmeans_inits[] = {"first", "random", "k-means++", "k-means-parallel", NULL};
static const char *const kmeans_empties[] = {"keep", "far", "split", NULL};
static const char *const kmeans_bounds[] = {"auto", "on", "off", NULL};
static const char *const steps[] = {"auto",    "naive", "transpose", "shared", "atomics",
                                    "partial", "gemm",  "nearest",   NULL};
static const char *const features[] = {"hidden", "random:N", "kmeans:FILE", NULL};
static const char *const kmeans_precisions[] = {"exact", "f32", "tf32", "bf16", "scores", NULL};

enum { MOST_MEMBERS = 256 }; /* of an ensemble: each takes a thread and about 60 MB of GPU memory */

#define AT(field) offsetof(struct config, field)
#define RECIPE true
#define RUN false

/* Kind, part and field of an entry, with the bounds or the choices of its kind. */
#define INTEGER(part, field, min, max) KEY_INT, part, AT(field), min, max, NULL
#define REAL(part, field, min, max) KEY_REAL, part, AT(field), min, max, NULL
#define CHOICE(part, field, choices) KEY_CHOICE, part, AT(field), 0, 0, choices
#define CHOICE_FILE(part, field, choices) KEY_CHOICE_FILE, part, AT(field), 0, 0, choices
#define TEXT(part, field) KEY_TEXT, part, AT(field), 0, 0, NULL
#define LAYERS(part, field) KEY_LAYERS, part, AT(field), 0, 0, NULL
#define LABELS(part, field) KEY_LABELS, part, AT(field), 0, 0, NULL

static const struct config_key keys[] = {
    {"layers", NULL, LAYERS(RECIPE, layers), "784-128-10", "N-N-..-N",
     "widths of the layers, from the pixels to the classes"},
    {"activation", NULL, CHOICE(RECIPE, activation, activations), "relu", NULL,
     "of the hidden layers; scaled-tanh is 1.7159 tanh(2x/3)"},
    {"init", NULL, CHOICE_FILE(RECIPE, init, inits), "he", NULL,
     "he: normal, sd sqrt(2/in); xavier: uniform, sqrt(6/(in+out)); uniform: 1/sqrt(in), biases too; "
     "kmeans:FILE: he, but the first layer looks for the centres of 'kmeans --save FILE' (docs/kmeans.md)"},
    {"init-range", NULL, REAL(RECIPE, init_range, 0, 1e6), "0", "X",
     "for init = uniform: weights and biases are uniform in [-X, X]; 0: X is 1/sqrt(in)"},
    {"epochs", NULL, INTEGER(RECIPE, epochs, 0, 1e9), "20", "N", "passes over the training set"},
    {"batch-size", "batch", INTEGER(RECIPE, batch_size, 1, 1e9), "128", "IMAGES",
     "images per step (short: --batch); at most the training set"},
    {"optimizer", NULL, CHOICE(RECIPE, optimizer, optimizers), "sgd", NULL,
     "as in torch.optim: sgd, with momentum and nesterov; adam; adamw, with decoupled weight decay"},
    {"learning-rate", "lr", REAL(RECIPE, learning_rate, 0, 1e6), "0.1", "X",
     "step size (short: --lr); about 0.001 for adam and adamw"},
    {"momentum", NULL, REAL(RECIPE, momentum, 0, 1), "0", "X", "of sgd: v = momentum v + gradient"},
    {"nesterov", NULL, CHOICE(RECIPE, nesterov, switches), "off", NULL,
     "of sgd: the step is gradient + momentum v"},
    {"beta1", NULL, REAL(RECIPE, beta1, 0, 0.999999999), "0.9", "X",
     "of adam and adamw: decay of the mean of gradients at each step"},
    {"beta2", NULL, REAL(RECIPE, beta2, 0, 0.999999999), "0.999", "X",
     "of adam and adamw: decay of the mean of squared gradients at each step"},
    {"epsilon", "eps", REAL(RECIPE, epsilon, 1e-30, 1), "1e-08", "X",
     "of adam and adamw (short: --eps): added to the square root of the mean of squared gradients"},
    {"weight-decay", NULL, REAL(RECIPE, weight_decay, 0, 1e6), "0", "X",
     "sgd and adam: X times the weight is added to the gradient; adamw: each weight is multiplied by 1 - "
     "learning rate times X; biases included"},
    {"clip-norm", NULL, REAL(RECIPE, clip_norm, 0, 1e12), "0", "X",
     "scales the gradient of all parameters down to this Euclidean norm if it is larger; 0: off"},
    {"max-norm", NULL, REAL(RECIPE, max_norm, 0, 1e12), "0", "X",
     "scales the incoming weights of each unit down to this Euclidean norm if it is larger; 0: off"},
    {"schedule", NULL, CHOICE(RECIPE, schedule, schedules), "constant", NULL,
     "of the learning rate: step (x lr-gamma every lr-step-epochs), cosine (to lr-min, every step), "
     "exponential (x lr-gamma every epoch), one-cycle (up to learning-rate and down, with pct-start, "
     "div-factor and final-div-factor)"},
    {"warmup-steps", NULL, INTEGER(RECIPE, warmup_steps, 0, 1e9), "0", "STEPS",
     "linear warm-up of the learning rate over the first steps"},
    {"warmup-epochs", NULL, REAL(RECIPE, warmup_epochs, 0, 1e9), "0", "EPOCHS",
     "the same in epochs, or fractions of one"},
    {"lr-step-epochs", NULL, INTEGER(RECIPE, lr_step_epochs, 1, 1e9), "10", "EPOCHS",
     "for schedule = step: epochs between two changes of the rate"},
    {"lr-gamma", NULL, REAL(RECIPE, lr_gamma, 0, 1), "0.1", "X",
     "for schedule = step or exponential: factor of the rate at each change"},
    {"lr-min", NULL, REAL(RECIPE, lr_min, 0, 1e6), "0", "X", "for schedule = cosine: the final rate"},
    {"pct-start", NULL, REAL(RECIPE, pct_start, 0, 1), "0.3", "X",
     "for schedule = one-cycle: fraction of all steps with a rising rate"},
    {"div-factor", NULL, REAL(RECIPE, div_factor, 1, 1e12), "25", "X",
     "for schedule = one-cycle: the initial rate is learning-rate / X"},
    {"final-div-factor", NULL, REAL(RECIPE, final_div_factor, 1, 1e12), "10000", "X",
     "for schedule = one-cycle: the final rate is the initial rate / X"},
    {"ema-decay", NULL, REAL(RECIPE, ema_decay, 0, 0.999999999), "0", "X",
     "decay per step of a moving average of the weights, such as 0.999; the average is evaluated like the "
     "weights and saved as ema.layers.N; 0: none"},
    {"dropout", NULL, REAL(RECIPE, dropout, 0, 0.999), "0", "RATE",
     "fraction of the outputs of every hidden layer that a training step drops; the others are divided by 1 "
     "- RATE"},
    {"input-dropout", NULL, REAL(RECIPE, input_dropout, 0, 0.999), "0", "RATE", "the same for pixels"},
    {"label-smoothing", NULL, REAL(RECIPE, label_smoothing, 0, 1), "0", "X",
     "the target in training is 1 - X for the label, plus X spread over all classes"},
    {"adversarial", NULL, REAL(RECIPE, adversarial, 0, 1), "0", "X",
     "train each step with equal weight on its images and on adversarial copies, in which each pixel moves "
     "by X of its range (also beyond it) along the sign of the gradient of the loss (arXiv 1412.6572); 0: "
     "off"},
    {"seed", NULL, INTEGER(RECIPE, seed, 0, 9e15), "1", "N",
     "of initial weights, batch order, dropout and augmentation, the same on every backend"},
    {"shuffle", NULL, CHOICE(RECIPE, shuffle, switches), "on", NULL,
     "a new order in every epoch; off: file order"},
    {"augment", NULL, CHOICE(RECIPE, augment, switches), "off", NULL,
     "new random deformations of the training images in every epoch, by all augment- keys together"},
    {"augment-elastic", NULL, REAL(RECIPE, augment_elastic, 0, 32), "1.5", "PIXELS",
     "elastic distortion: root mean square of the displacement"},
    {"augment-sigma", NULL, REAL(RECIPE, augment_sigma, 0.1, 1000), "5", "PIXELS",
     "width of the Gaussian (21 taps) that smooths the displacement"},
    {"augment-rotate", NULL, REAL(RECIPE, augment_rotate, 0, 180), "15", "DEGREES",
     "maximum rotation; if augment-shear is not 0 either, each image is randomly rotated or sheared"},
    {"augment-shear", NULL, REAL(RECIPE, augment_shear, 0, 45), "15", "DEGREES", "maximum horizontal shear"},
    {"augment-gentle", NULL, LABELS(RECIPE, augment_gentle), "", "N,N..",
     "labels that are rotated and sheared half as much; for digits: 1,7"},
    {"augment-scale", NULL, REAL(RECIPE, augment_scale, 0, 50), "15", "PERCENT",
     "maximum change of size, in x and y separately"},
    {"augment-shift", NULL, REAL(RECIPE, augment_shift, 0, 512), "0", "PIXELS",
     "maximum shift, in x and y separately"},
    {"input-size", NULL, INTEGER(RECIPE, input_size, 0, AUGMENT_MOST_SIDE), "0", "PIXELS",
     "resize all images to squares of this side, bilinearly; 0: no resizing"},
    {"input-range", NULL, CHOICE(RECIPE, input_range, input_ranges), "0,1", NULL,
     "network input for a pixel from 0 to 255: 0,1 is pixel/255; -1,1 is pixel/127.5 - 1"},
    {"validation", NULL, INTEGER(RECIPE, validation, 0, 1e9), "0", "IMAGES",
     "number of images held out from the end of the training set for model selection; the test set is then "
     "evaluated once, at the end"},
    {"patience", NULL, INTEGER(RECIPE, patience, 0, 1e9), "0", "EPOCHS",
     "early stopping: end after this many epochs without a better validation accuracy, and restore the best "
     "weights; 0: off"},
    {"data", NULL, TEXT(RECIPE, data), "auto", "DIR",
     "IDX files (MNIST, Fashion-MNIST, EMNIST), CSV files, or a folder of pictures for each class "
     "(docs/formats.md); 'synthetic': the embedded digits; 'auto': data/mnist if it exists, else synthetic"},
    {"label-offset", NULL, INTEGER(RECIPE, label_offset, 0, DATASET_MAX_CLASSES - 1), "0", "N",
     "the first label in the files: 1 if they count from 1, as those of EMNIST's letters do"},
    {"transpose", NULL, CHOICE(RECIPE, transpose, transposes), "auto", NULL,
     "exchange rows and columns of the images; auto: only if the files have EMNIST's names"},
    {"dtype", NULL, CHOICE(RECIPE, dtype, dtypes), "f32", NULL, "of weights and arithmetic"},
    {"backend", NULL, TEXT(RUN, backend), "auto", "NAME",
     "the GEMM: a name listed by './train devices'; auto: tuned, the fastest on the host; ./my.so: a plug-in "
     "(docs/your-own-gemm.md). NAME:key=value,key=value sets its options"},
    {"threads", NULL, INTEGER(RUN, threads, 0, 1024), "0", "N",
     "of the host; 0: OMP_NUM_THREADS, or all usable cores (affinity, CPU quota); at most OMP_THREAD_LIMIT"},
    {"engine", NULL, CHOICE(RUN, engine, engines), "auto", NULL,
     "how steps are issued: eager, op by op; graph, an epoch captured once and replayed (GPU); fused, whole "
     "steps inside the backend (tuned, cuda-tuned); auto: the fastest available"},
    {"device", NULL, INTEGER(RUN, device, 0, 1023), "0", "N", "which GPU of those in CUDA_VISIBLE_DEVICES"},
    {"devices", NULL, TEXT(RUN, devices), "", "N,N.. | all",
     "train on several GPUs of this host: starts a process for each, which share every batch, or the members "
     "of --ensemble (docs/scaling.md)"},
    {"residency", NULL, CHOICE(RUN, residency, residencies), "device", NULL,
     "where tensors live if the backend runs on a GPU: device, or host with copies for each GEMM"},
    {"pin", NULL, CHOICE(RUN, pin, switches), "off", NULL, "page-locked host memory, with residency = host"},
    {"precision", NULL, CHOICE(RUN, precision, precisions), "f32", NULL,
     "of float32 runs: tf32 rounds GEMM operands; bf16 and fp16 store activations and GEMM operands in 16 "
     "bits"},
    {"audit", NULL, CHOICE(RUN, audit, audits), "sample", NULL,
     "check GEMM calls right after they ran: a secret random sample in 0.5 % of the time, all, or none"},
    {"comm", NULL, CHOICE(RUN, comm, comms), "auto", NULL,
     "how several processes train together, if mpirun, srun or torchrun started them: mpi; tcp, without MPI, "
     "at MASTER_ADDR and MASTER_PORT; auto: mpi if MPI started them; none: each trains alone. Sums of GPU "
     "tensors: auto, by NCCL if it can; nccl, or not at all; mpi and tcp, through the host "
     "(docs/scaling.md)"},
    {"comm-timeout", NULL, REAL(RUN, comm_timeout, 0, 1e6), "10", "SECONDS",
     "all processes end if one does not come, or does not answer, for so long; 0: they wait for ever"},
    {"reduction", NULL, CHOICE(RUN, reduction, reductions), "any", NULL,
     "how the gradients of several processes are summed: any order that is fast; fixed: a tree over four "
     "parts of each batch, with the same bits on 1, 2 and 4 processes"},
    {"evaluate-every", NULL, INTEGER(RECIPE, evaluate_every, 0, 1e9), "1", "EPOCHS",
     "interval of evaluations on the validation set or, if there is none, on the test set; the last epoch is "
     "always evaluated; 0: only the last"},
    {"target-accuracy", NULL, REAL(RUN, target_accuracy, 0, 100), "0", "PERCENT",
     "exit with 6 if the final test accuracy (of an ensemble: of its committee) is lower; 97.5, or 0.975"},
    {"ensemble", NULL, INTEGER(RUN, ensemble, 1, MOST_MEMBERS), "1", "N",
     "train N networks of seeds s, s + 1, ..: concurrently on a GPU, else one after the other; their "
     "committee predicts by mean log-probability. --save x.safetensors writes x-seedS.safetensors for each; "
     "--resume and --save-init do the same"},
    {"log", NULL, TEXT(RUN, log), "", "FILE",
     "JSON lines: a header with machine, build and options, then the measurements; ./train report draws "
     "them"},
    {"log-steps", NULL, INTEGER(RUN, log_steps, 0, 1e9), "0", "N", "also log the loss of the first N steps"},
    {"csv", NULL, TEXT(RUN, csv), "", "FILE", "the epochs as comma-separated values"},
    {"save", NULL, TEXT(RUN, save), "", "FILE",
     "safetensors checkpoint, written at the end and when interrupted; an existing file must be one, or "
     "empty"},
    {"save-every", NULL, INTEGER(RUN, save_every, 0, 1e9), "0", "EPOCHS",
     "also write --save at this interval; 0: off"},
    {"save-init", NULL, TEXT(RUN, save_init), "", "FILE", "safetensors of the initial weights"},
    {"resume", NULL, TEXT(RUN, resume), "", "FILE",
     "continue from a checkpoint, with its recipe unless a flag, the environment or the config file "
     "overrides it"},
    {"clusters", NULL, INTEGER(RUN, clusters, 1, 1e7), "10", "K", "number of clusters"},
    {"kmeans-init", NULL, CHOICE(RUN, kmeans_init, kmeans_inits), "k-means++", NULL,
     "initial centres: the first K points; K random points; k-means++ (Arthur and Vassilvitskii 2007), one "
     "point at a time by squared distance; k-means-parallel (Bahmani et al. 2012), for many clusters"},
    {"iterations", NULL, INTEGER(RUN, iterations, 0, 1e9), "300", "N",
     "the most iterations; each reads all points"},
    {"tolerance", NULL, REAL(RUN, tolerance, 0, 1e6), "0.0001", "X",
     "ends if the centres move less: the sum of their squared shifts is at most X times the mean variance of "
     "the features, as in scikit-learn"},
    {"change-limit", NULL, REAL(RUN, change_limit, 0, 1), "0", "FRACTION",
     "ends if at most this fraction of the points changed its cluster"},
    {"empty", NULL, CHOICE(RUN, kmeans_empty, kmeans_empties), "far", NULL,
     "a cluster without points: its centre stays; moves to the point that is farthest from its centre; or "
     "takes half of the largest cluster"},
    {"restarts", NULL, INTEGER(RUN, restarts, 1, 1e6), "1", "N",
     "runs with other initial centres; the one of the smallest inertia is the result"},
    {"kmeans-precision", NULL, CHOICE(RUN, kmeans_precision, kmeans_precisions), "exact", NULL,
     "exact: labels that the error of the product may change are decided in float64 and beyond; f32: the "
     "largest score as computed (scores is the old name); tf32, bf16: the largest score of points and "
     "centres rounded to 11 or 8 bits of significand (backend cuda-tuned on compute capability 9.0, --dtype "
     "f32, no pixels)"},
    {"bounds", NULL, CHOICE(RUN, kmeans_bounds, kmeans_bounds), "auto", NULL,
     "prune centres that principal components of the points prove too far (backend tuned); the labels are "
     "the same; auto: if it is faster for a sample of the points and the first centres"},
    {"step", NULL, CHOICE(RUN, step, steps), "auto", NULL,
     "the course of kernels on a GPU: naive, a thread a point; transpose, coalesced; shared, centres in "
     "shared "
     "memory (all with the update on the host); atomics and partial, sums on the GPU; their labels are not "
     "certified. gemm: engine eager; nearest: engine fused; auto: as --engine says"},
    {"block-size", NULL, INTEGER(RUN, block_size, KMEANS_LEAST_BLOCK, KMEANS_MOST_BLOCK), "128", "THREADS",
     "threads of a block in steps naive to partial"},
    {"features", NULL, CHOICE_FILE(RUN, features, features), "hidden", NULL,
     "hidden: the last hidden layer of the network MODEL; random:N: a layer of N random units, by init, "
     "activation and seed; kmeans:FILE: a unit for each centre of 'kmeans --save FILE' (docs/windows.md)"},
    {"ridge", NULL, TEXT(RUN, ridge), "auto", "X",
     "minimise the squared error plus X times the squared weights, without the biases; auto: the best of "
     "powers of 10 on the validation images; in a stream, on the second block"},
    {"window", NULL, TEXT(RUN, window), "", "N,N,..,all",
     "a stream: each readout is of the last N images, or of all so far [with --drift, --forgetting or "
     "--stride: 1000,4000,16000,all]"},
    {"forgetting", NULL, TEXT(RUN, forgetting), "", "X,X..",
     "a stream: further readouts, of all images so far, in which the weight of an image is multiplied by X "
     "for each one after it, as in 0.999"},
    {"drift", NULL, TEXT(RUN, drift), "", "rotate:A..B",
     "a stream: its images turn from A to B degrees, in proportion to their number"},
    {"stride", NULL, INTEGER(RUN, stride, 1, 1e9), "1000", "IMAGES",
     "of a stream, between two fits: as many are predicted, and then enter"},
};

/* A group of --help begins at a key. */
static const struct {
    const char *first, *title;
} groups[] = {{"layers", "Network"},
              {"epochs", "Training"},
              {"schedule", "Schedule of the learning rate"},
              {"ema-decay", "Regularisation"},
              {"seed", "Random numbers and augmentation"},
              {"input-size", "Data"},
              {"dtype", "Computation"},
              {"evaluate-every", "Results and files"},
              {"clusters", "k-means"},
              {"features", "Readout"}};

/* --help explains these, and only names the others. */
static const char *const common[] = {
    "layers",   "epochs",  "batch-size", "learning-rate", "optimizer", "seed",  "augment", "validation",
    "data",     "backend", "threads",    "engine",        "log",       "save",  "resume",  "clusters",
    "features", "ridge",   "window",     "forgetting",    "drift",     "stride"};

enum { KEYS = sizeof keys / sizeof *keys };
_Static_assert((int)KEYS <= (int)CONFIG_MAX_KEYS, "struct config has no room for the origin of every key");

size_t config_key_count(void) {
    return KEYS;
}

const struct config_key *config_key_at(size_t index) {
    return &keys[index];
}

const struct config_key *config_key_find(const char *name) {
    for (size_t i = 0; i < KEYS; i++)
        if (strcmp(keys[i].name, name) == 0 || (keys[i].alias && strcmp(keys[i].alias, name) == 0))
            return &keys[i];
    return NULL;
}

const char *config_key_group(const struct config_key *key) {
    const char *title = "";
    for (const struct config_key *other = keys; other <= key; other++)
        for (size_t g = 0; g < sizeof groups / sizeof *groups; g++)
            if (strcmp(groups[g].first, other->name) == 0) title = groups[g].title;
    return title;
}

bool config_key_is_common(const struct config_key *key) {
    for (size_t i = 0; i < sizeof common / sizeof *common; i++)
        if (strcmp(common[i], key->name) == 0) return true;
    return false;
}

bool config_key_clusters(const struct config_key *key) {
    return strcmp(config_key_group(key), "k-means") == 0;
}

bool config_key_reads_out(const struct config_key *key) {
    return strcmp(config_key_group(key), "Readout") == 0;
}

const char *config_choice(const char *key, int value) {
    return config_key_find(key)->choices[value];
}
