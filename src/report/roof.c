#include "src/report/roof.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "src/base/text.h"
#include "src/report/row.h"
#include "src/report/selection.h"

static bool on_gpu(const struct record *row) {
    return row_on_gpu(row->line) || strcmp(row->type, "shmem") == 0; /* which names no device */
}

/* Does the peak hold for the product? The number of threads is one of the CPU. */
static bool is_peak_of(const struct record *peak, const struct record *product) {
    char machine[SELECTION_TEXT], other[SELECTION_TEXT];
    selection_machine(peak, machine, sizeof machine);
    selection_machine(product, other, sizeof other);
    return strcmp(machine, other) == 0 && on_gpu(peak) == on_gpu(product) &&
           (on_gpu(peak) || record_count(peak->line, "threads", 1u << 20, 0) ==
                                record_count(product->line, "threads", 1u << 20, 0));
}

struct roof roof_of(const struct records *records, const struct record *product) {
    const char *rate = strcmp(record_text(product->line, "dtype"), "f64") == 0 ? "f64_gflops" : "f32_gflops";
    const struct record *row = NULL;
    struct roof roof = {(double)NAN, (double)NAN};
    while ((row = records_after(records, row, "peak"))) {
        if (!is_peak_of(row, product)) continue;
        roof.peak = fmax(roof.peak, record_number(row->line, rate));
        roof.bandwidth = fmax(roof.bandwidth, record_number(row->line, "copy_gbytes_per_second"));
    }
    return roof;
}

double roof_intensity(const cJSON *line) {
    const double bytes = record_number(line, "bytes");
    if (row_refused(line, NULL, 0) || !(bytes > 0) || !(record_number(line, "gflops") > 0))
        return (double)NAN;
    const double flops = record_number(line, "flops"); /* of a step of k-means */
    if (flops > 0) return flops / bytes;
    return 2 * record_number(line, "m") * record_number(line, "n") * record_number(line, "k") / bytes;
}

double roof_limit(const struct roof *roof, const cJSON *line) {
    const double slope = roof_intensity(line) * roof->bandwidth;
    return roof->peak > 0 && slope > 0 ? fmin(roof->peak, slope) : (double)NAN;
}

void roof_draw(struct chart *chart, const struct roof *roof, double low, double high) {
    const struct chart_style style = {7, 0, 0};
    const double ridge = roof->peak / roof->bandwidth;
    const size_t series = chart_series(chart, "roof: peak and copy bandwidth", style);
    if (series >= chart->series_count) return;
    chart->series[series].marks = false;
    low = fmin(low, ridge / 4);
    chart_add_xy(chart, series, low, low * roof->bandwidth);
    chart_add_xy(chart, series, ridge, roof->peak);
    chart_add_xy(chart, series, fmax(high, 4 * ridge), roof->peak);
}

/* --- shares --- */

/* A clock that changes between two measurements explains this much. */
static const double CLOCK = 1.05;

/* Why the share is above 1; NULL if there is no reason. */
static const char *reason_of(const cJSON *line, double share, double of_peak) {
    if (strcmp(row_precision(line), record_text(line, "dtype")) != 0) return "tensor cores";
    if (of_peak < share && of_peak <= CLOCK) return "data in a cache"; /* above the bandwidth of memory */
    if (share <= CLOCK) return "higher clock";
    return record_true(line, "noisy") ? "noisy" : NULL;
}

bool roof_exceeded(const cJSON *line, double share, double of_peak) {
    return share > 1 && !reason_of(line, share, of_peak);
}

struct roof_text roof_share(const cJSON *line, double share, double of_peak) {
    struct roof_text out;
    if (roof_exceeded(line, share, of_peak)) {
        snprintf(out.text, sizeof out.text, "above the measured peak");
    } else {
        snprintf(out.text, sizeof out.text, "%s%s%s", text_percent(share, share < 0.0995 ? 1 : 0).text,
                 share > 1 ? ", " : "", share > 1 ? reason_of(line, share, of_peak) : "");
    }
    return out;
}
