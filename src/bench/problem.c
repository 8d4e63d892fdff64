#include "src/bench/problem.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/ops.h"
#include "src/base/pages.h"
#include "src/base/profile.h"
#include "src/base/secret.h"
#include "src/base/statistics.h"

enum { A = PROBLEM_A, B = PROBLEM_B, C = PROBLEM_C, MOST_COPIES = 4096, TRANSFERS = 7, LONGEST = 1 << 24 };

static size_t padded(size_t bytes) {
    return (bytes + PROBLEM_GUARD - 1) / PROBLEM_GUARD * PROBLEM_GUARD;
}

enum status problem_open(struct problem *problem, struct compute *compute, enum gemm_dtype dtype,
                         const struct gemm_shape *shape, size_t rotate) {
    const size_t m = shape->m, n = shape->n, k = shape->k, size = dtype_size(dtype);
    const bool ta = gemm_transposes_a(shape->op), tb = gemm_transposes_b(shape->op);
    if (m > LONGEST || n > LONGEST || k > LONGEST)
        return status_set(STATUS_USAGE, "m=%zu n=%zu k=%zu: a side may be at most %d", m, n, k, LONGEST);
    *problem = (struct problem){.compute = compute, .shape = *shape, .random = secret_seed()};
    problem->call = (struct gemm_call){.dtype = dtype,
                                       .c_f32 = gemm_is_16bit(dtype),
                                       .op = shape->op,
                                       .m = m,
                                       .n = n,
                                       .k = k,
                                       .alpha = 1,
                                       .lda = ta ? m : k,
                                       .ldb = tb ? k : n,
                                       .ldc = n};
    problem->bytes[A] = m * k * size;
    problem->bytes[B] = k * n * size;
    problem->bytes[C] = m * n * dtype_size(dtype_of_c(&problem->call));
    problem->pitch[A] = padded(problem->bytes[A]);
    problem->pitch[B] = padded(problem->bytes[B]);
    problem->pitch[C] = padded(problem->bytes[C]) + 2 * (size_t)PROBLEM_GUARD;
    const size_t one = problem->pitch[A] + problem->pitch[B] + problem->pitch[C];
    problem->copies = rotate / one + 1 < MOST_COPIES ? rotate / one + 1 : MOST_COPIES;
    if (rotate && problem->copies < 2) problem->copies = 2;
    for (int x = A; x <= C; x++) {
        problem->host[x] = pages_alloc(problem->pitch[x]);
        problem->device[x] =
            compute->device.driver->alloc(&compute->device, problem->copies * problem->pitch[x]);
        if (problem->host[x] && problem->device[x]) continue;
        problem_close(problem);
        return STATUS_FAILED;
    }
    return STATUS_OK;
}

void problem_close(struct problem *problem) {
    for (int x = A; x <= C; x++) {
        free(problem->host[x]);
        if (problem->compute)
            problem->compute->device.driver->free(&problem->compute->device, problem->device[x]);
    }
    *problem = (struct problem){0};
}

double problem_flops(const struct problem *problem) {
    return 2.0 * (double)problem->call.m * (double)problem->call.n * (double)problem->call.k;
}

double problem_bytes(const struct problem *problem) {
    return (double)(problem->bytes[A] + problem->bytes[B] + problem->bytes[C]);
}

/* --- calls --- */

void *problem_at(const struct problem *problem, int matrix, size_t copy) {
    return (char *)problem->device[matrix] + copy * problem->pitch[matrix] +
           (matrix == C ? PROBLEM_GUARD : 0);
}

enum status problem_call(struct problem *problem) {
    struct gemm_call call = problem->call;
    call.a = problem_at(problem, A, problem->next);
    call.b = problem_at(problem, B, problem->next);
    call.c = problem_at(problem, C, problem->next);
    problem->next = (problem->next + 1) % problem->copies;
    return compute_gemm(problem->compute, &call);
}

double problem_pixel(uint64_t random) {
    return (float)(random % 256) * (float)input_scale(INPUT_UNIT);
}

/* Changes an element of A or B of a copy to another one from -8 to 8, or to a pixel. Returns its index. */
static size_t change_element(struct problem *problem, int matrix, size_t copy) {
    const enum gemm_dtype dtype = problem->call.dtype;
    const size_t size = dtype_size(dtype), count = problem->bytes[matrix] / size;
    struct device *device = &problem->compute->device;
    double value;
    if (count == 0) return 0;
    const size_t at = secret_draw(&problem->random) % count;
    const uint64_t random = secret_draw(&problem->random);
    const bool pixels = matrix == A && problem->shape.pixels && problem->inputs == PROBLEM_REALS;
    dtype_set(dtype, &value, 0, pixels ? problem_pixel(random) : (double)(random % 17) - 8);
    char *const element = (char *)problem_at(problem, matrix, copy) + at * size;
    if (device->driver->host_memory) {
        memcpy(element, &value, size);
    } else {
        device->driver->upload(device, element, &value, size);
    }
    return at;
}

size_t problem_change(struct problem *problem, size_t copy) {
    const struct gemm_call *call = &problem->call;
    const size_t at = change_element(problem, A, copy);
    change_element(problem, B, copy);
    return gemm_transposes_a(call->op) ? at % call->lda : at / call->lda;
}

enum status problem_time(struct problem *problem, size_t calls, double *seconds) {
    struct device *device = &problem->compute->device;
    struct profile *before = device->profile, profile;
    const struct gemm_call *call = &problem->call;
    const bool host = device->driver->host_memory;
    const size_t last = (problem->next + calls - 1) % problem->copies;
    size_t row = host ? 0 : problem_change(problem, last);
    enum status status = device->driver->synchronize(device);
    profile_start(&profile);
    device->profile = &profile;
    if (!status)
        status = device->driver->synchronize(device); /* a device with its own clock starts it here */
    for (size_t c = 0; c < calls && !status; c++) {
        if (host) row = problem_change(problem, problem->next);
        status = problem_call(problem);
    }
    device->driver->lap(device, profile_gemm_slot(PART_GEMM_NN, 0, call->m, call->n, call->k));
    const enum status finished = device->driver->synchronize(device);
    *seconds = profile.seconds[PART_GEMM_NN] / (double)calls;
    device->profile = before;
    if (!status) status = finished;
    return status ? status
                  : problem_check(problem, last, row, secret_draw(&problem->random) % problem->call.m);
}

static enum status transfer(struct problem *problem, double *h2d, double *d2h) {
    struct device *device = &problem->compute->device;
    struct profile *before = device->profile, profile;
    enum status status = device->driver->synchronize(device);
    profile_start(&profile);
    device->profile = &profile;
    if (!status) status = device->driver->synchronize(device);
    device->driver->upload(device, problem_at(problem, A, 0), problem->host[A], problem->bytes[A]);
    device->driver->upload(device, problem_at(problem, B, 0), problem->host[B], problem->bytes[B]);
    device->driver->download(device, problem->host[C], problem_at(problem, C, 0), problem->bytes[C]);
    const enum status finished = device->driver->synchronize(device);
    *h2d = profile.seconds[PART_H2D];
    *d2h = profile.seconds[PART_D2H];
    device->profile = before;
    return status ? status : finished;
}

enum status problem_transfers(struct problem *problem, double *h2d, double *d2h) {
    double to_device[TRANSFERS], to_host[TRANSFERS];
    enum status status = transfer(problem, &to_device[0], &to_host[0]); /* warm-up */
    for (size_t i = 0; i < TRANSFERS && !status; i++) status = transfer(problem, &to_device[i], &to_host[i]);
    if (status) return status;
    *h2d = statistics_of(to_device, TRANSFERS).median;
    *d2h = statistics_of(to_host, TRANSFERS).median;
    return STATUS_OK;
}
