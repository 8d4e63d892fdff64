/* The race of sliding windows as JSON lines: "qr". */
#ifndef TESSERA_BENCH_QR_LOG_H
#define TESSERA_BENCH_QR_LOG_H

#include "src/base/jsonl.h"
#include "src/bench/contest.h"
#include "src/bench/qr_race.h"

/* One line, which the caller owns. `rates`: of the devices, by enum gemm_device; zero if unknown. `naive`:
   seconds of a window of method naive on the same backend, which speed-up is over; 0: unknown. A wrong,
   failed or left-out result has a reason and no time. Seconds are those of all windows, proportional to
   those of the timed ones. */
cJSON *qr_line(const struct qr_problem *problem, const struct qr_variant *variant, const struct qr_time *time,
               const struct rates *rates, double naive);

/* Flops of the first `count` windows, one by one. */
double qr_flops_one_by_one(const struct qr_problem *problem, size_t count);

/* The device of a backend; the host if there is no such backend. */
enum gemm_device qr_device_of(const char *backend);

#endif
