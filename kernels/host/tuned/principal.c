#include "kernels/host/tuned/principal.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/pages.h"
#include "src/base/rng.h"

enum {
    PANELS = (PRINCIPAL_MOST + PRINCIPAL_PANEL - 1) / PRINCIPAL_PANEL,
    WIDTH = PANELS * PRINCIPAL_PANEL,
    SAMPLE = 1024, /* rows */
    ROUNDS = 4
};

/* --- products with panels --- */

/* out[PRINCIPAL_ROWS][PRINCIPAL_PANEL] = a[PRINCIPAL_ROWS][depth] panel */
static void multiply(size_t depth, const double *restrict a, size_t lda, const double *restrict panel,
                     double *restrict out, size_t ldo) {
    double sum[PRINCIPAL_ROWS][PRINCIPAL_PANEL] = {{0}};
    for (size_t k = 0; k < depth; k++)
        for (size_t r = 0; r < PRINCIPAL_ROWS; r++)
#pragma omp simd
            for (size_t j = 0; j < PRINCIPAL_PANEL; j++)
                sum[r][j] += a[r * lda + k] * panel[k * PRINCIPAL_PANEL + j];
    for (size_t r = 0; r < PRINCIPAL_ROWS; r++) memcpy(out + r * ldo, sum[r], sizeof sum[r]);
}

/* out[rows][WIDTH] = a[rows][depth] panels; rows is a multiple of PRINCIPAL_ROWS. */
static void multiply_all(int threads, size_t rows, size_t depth, const double *a, const double *panels,
                         double *out) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (size_t r = 0; r < rows; r += PRINCIPAL_ROWS)
        for (size_t p = 0; p < PANELS; p++)
            multiply(depth, a + r * depth, depth, panels + p * depth * PRINCIPAL_PANEL,
                     out + r * WIDTH + p * PRINCIPAL_PANEL, WIDTH);
}

/* panels of [depth][WIDTH] */
static void to_panels(size_t depth, const double *from, double *panels) {
    for (size_t k = 0; k < depth; k++)
        for (size_t j = 0; j < WIDTH; j++)
            panels[(j / PRINCIPAL_PANEL * depth + k) * PRINCIPAL_PANEL + j % PRINCIPAL_PANEL] =
                from[k * WIDTH + j];
}

/* --- rows --- */

/* y = row - mean, with one rounding. */
static void centred_row(const struct principal *principal, const struct principal_rows *rows, size_t row,
                        double *restrict y) {
    const size_t features = principal->features, at = row * features;
    const double *restrict mean = principal->mean;
    if (rows->bytes) {
        const uint8_t *restrict x = (const uint8_t *)rows->x + at;
        for (size_t f = 0; f < features; f++) y[f] = (double)x[f] - mean[f];
    } else if (rows->dtype == GEMM_F32) {
        const float *restrict x = (const float *)rows->x + at;
        for (size_t f = 0; f < features; f++) y[f] = (double)x[f] - mean[f];
    } else {
        const double *restrict x = (const double *)rows->x + at;
        for (size_t f = 0; f < features; f++) y[f] = x[f] - mean[f];
    }
}

static double dot(size_t count, const double *restrict a, const double *restrict b) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < count; i++) sum += a[i] * b[i];
    return sum;
}

/* --- the directions --- */

struct sample {
    size_t rows, padded_features; /* multiples of PRINCIPAL_ROWS */
    double *centred;              /* [rows][features] */
    double *transposed;           /* [padded features][rows] */
    double *product;              /* [rows][WIDTH] */
    double *product_panels;
    double *basis;   /* [padded features][WIDTH] */
    double *columns; /* [PRINCIPAL_MOST][features] */
};

static bool open_sample(struct sample *sample, size_t rows, size_t features) {
    sample->rows = rows;
    sample->padded_features = (features + PRINCIPAL_ROWS - 1) / PRINCIPAL_ROWS * PRINCIPAL_ROWS;
    sample->centred = pages_alloc(rows * features * sizeof(double));
    sample->transposed = calloc(sample->padded_features * rows, sizeof(double));
    sample->product = pages_alloc(rows * WIDTH * sizeof(double));
    sample->product_panels = pages_alloc(rows * WIDTH * sizeof(double));
    sample->basis = calloc(sample->padded_features * WIDTH, sizeof(double));
    sample->columns = calloc(PRINCIPAL_MOST * features, sizeof(double));
    return sample->centred && sample->transposed && sample->product && sample->product_panels &&
           sample->basis && sample->columns;
}

static void close_sample(struct sample *sample) {
    free(sample->centred);
    free(sample->transposed);
    free(sample->product);
    free(sample->product_panels);
    free(sample->basis);
    free(sample->columns);
}

static void read_sample(struct principal *principal, const struct principal_rows *rows,
                        struct sample *sample) {
    const size_t features = principal->features;
    for (int pass = 0; pass < 2; pass++) { /* the mean is 0 in the first one */
        for (size_t r = 0; r < sample->rows; r++)
            centred_row(principal, rows, (size_t)((double)r * (double)rows->count / (double)sample->rows),
                        sample->centred + r * features);
        for (size_t f = 0; pass == 0 && f < features; f++) {
            double sum = 0;
            for (size_t r = 0; r < sample->rows; r++) sum += sample->centred[r * features + f];
            principal->mean[f] = sum / (double)sample->rows;
        }
    }
    for (size_t r = 0; r < sample->rows; r++)
        for (size_t f = 0; f < features; f++)
            sample->transposed[f * sample->rows + r] = sample->centred[r * features + f];
}

/* Gram-Schmidt, twice for each column. A column that depends on those before it is dropped. */
static void orthonormalise(struct principal *principal, struct sample *sample) {
    const size_t features = principal->features;
    size_t kept = 0;
    for (size_t j = 0; j < PRINCIPAL_MOST && kept < features; j++) {
        double *column = sample->columns + kept * features, norm = 0;
        for (size_t f = 0; f < features; f++) column[f] = sample->basis[f * WIDTH + j];
        const double before = sqrt(dot(features, column, column));
        for (int pass = 0; pass < 2; pass++) {
            for (size_t i = 0; i < kept; i++) {
                const double *other = sample->columns + i * features, along = dot(features, column, other);
                for (size_t f = 0; f < features; f++) column[f] -= along * other[f];
            }
            norm = sqrt(dot(features, column, column));
            for (size_t f = 0; f < features; f++) column[f] /= pass ? norm : 1;
        }
        kept += norm > 1e-9 * before && isfinite(norm); /* also NaN */
    }
    memset(sample->basis, 0, sample->padded_features * WIDTH * sizeof *sample->basis);
    for (size_t j = 0; j < kept; j++)
        for (size_t f = 0; f < features; f++)
            sample->basis[f * WIDTH + j] = sample->columns[j * features + f];
    to_panels(features, sample->basis, principal->panels);
    principal->columns = kept;
}

/* Bounds the Frobenius norm of P^T P - I: each dot product has an error of at most (features + 2) 2^-53. */
static void measure_defect(struct principal *principal, const struct sample *sample) {
    const size_t features = principal->features;
    double sum = 0;
    for (size_t i = 0; i < principal->columns; i++)
        for (size_t j = 0; j <= i; j++) {
            const double product =
                             dot(features, sample->columns + i * features, sample->columns + j * features),
                         error = product - (i == j);
            sum += (i == j ? 1 : 2) * error * error;
        }
    principal->defect = 1.01 * sqrt(sum) + (double)PRINCIPAL_MOST * ((double)features + 8) * 0x1p-52;
}

bool principal_open(struct principal *principal, const struct principal_rows *rows, size_t features,
                    int threads) {
    struct sample sample = {0};
    const size_t wanted = rows->count < SAMPLE ? rows->count : SAMPLE,
                 padded = (wanted + PRINCIPAL_ROWS - 1) / PRINCIPAL_ROWS * PRINCIPAL_ROWS;
    struct rng rng = rng_open(features, RNG_SHUFFLE, 0);
    *principal = (struct principal){.features = features};
    principal->mean = calloc(features, sizeof *principal->mean);
    principal->panels = pages_alloc(features * WIDTH * sizeof *principal->panels);
    const bool done = open_sample(&sample, padded, features) && principal->mean && principal->panels;
    if (done) {
        read_sample(principal, rows, &sample);
        for (size_t i = 0; i < features * WIDTH; i++) sample.basis[i] = rng_uniform(&rng) - 0.5;
        orthonormalise(principal, &sample);
        for (int round = 0; round < ROUNDS; round++) {
            multiply_all(threads, sample.rows, features, sample.centred, principal->panels, sample.product);
            to_panels(sample.rows, sample.product, sample.product_panels);
            multiply_all(threads, sample.padded_features, sample.rows, sample.transposed,
                         sample.product_panels, sample.basis);
            orthonormalise(principal, &sample);
        }
        measure_defect(principal, &sample);
    }
    close_sample(&sample);
    return done;
}

void principal_close(struct principal *principal) {
    free(principal->mean);
    free(principal->panels);
    *principal = (struct principal){0};
}

/* --- images --- */

/* Bounds E of a row y = x - mean of squared norm `squares`, whose coordinates are u in float64 and whose rest
   has the norm `rest`. With Q the orthonormal factor of P: | P^T y - Q^T y | <= defect |y|; a product has an
   error of at most (features + 2) 2^-53 |y| |column|, and with the rounding of y, one more; float32 rounds
   each component by FLT_EPSILON / 2 or less than FLT_TRUE_MIN. The square of the rest is a difference, whose
   error is at most `lost`; the error of its root is at most that of the square divided by the root, or its
   root. */
static double image_error(const struct principal *principal, double squares, double rest) {
    const double terms = (double)principal->features + 2 * PRINCIPAL_MOST + 16,
                 norm = sqrt(squares) * (1 + terms * 0x1p-52) + 0x1p-500,
                 product = norm * (8 * terms * 0x1p-53 + principal->defect),
                 lost = norm * (3 * product + 4 * terms * 0x1p-53 * norm),
                 of_rest = fmin(sqrt(lost), rest > 0 ? lost / rest : INFINITY);
    if (!(principal->defect < 0.01) || !(norm < 0x1p120)) return INFINITY;
    return 1.001 * (product + of_rest + (double)FLT_EPSILON * norm + 64 * (double)FLT_TRUE_MIN);
}

double principal_image(const struct principal *principal, size_t columns, const struct principal_rows *from,
                       size_t first, size_t rows, double *scratch, float *image) {
    const size_t features = principal->features, panels = (columns + PRINCIPAL_PANEL - 1) / PRINCIPAL_PANEL;
    double *y = scratch, *u = scratch + PRINCIPAL_ROWS * features, most = 0;
    for (size_t r = 0; r < rows; r += PRINCIPAL_ROWS) {
        for (size_t i = 0; i < PRINCIPAL_ROWS; i++)
            centred_row(principal, from, first + (r + i < rows ? r + i : rows - 1), y + i * features);
        for (size_t p = 0; p < panels; p++)
            multiply(features, y, features, principal->panels + p * features * PRINCIPAL_PANEL,
                     u + p * PRINCIPAL_PANEL, WIDTH);
        for (size_t i = 0; i < PRINCIPAL_ROWS && r + i < rows; i++) {
            float *to = image + (r + i) * (columns + 1);
            const double squares = dot(features, y + i * features, y + i * features),
                         along = dot(columns, u + i * WIDTH, u + i * WIDTH),
                         rest = squares > along ? sqrt(squares - along) : 0,
                         error = image_error(principal, squares, rest);
            for (size_t j = 0; j < columns; j++) to[j] = (float)u[i * WIDTH + j];
            to[columns] = (float)rest;
            most = fmax(most, error); /* never NaN: see image_error */
        }
    }
    return most;
}
