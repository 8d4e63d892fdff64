/* The clock of a CUDA device: events after each op and around work aside, read when the host waits. */
#include "src/device/cuda_state.cuh"

enum status cuda_report(struct cuda_state *state) {
    const struct cuda_fault *fault = state->ops.fault.message[0]    ? &state->ops.fault
                                     : state->copy.fault.message[0] ? &state->copy.fault
                                                                    : &state->aside.fault;
    if (!fault->message[0]) return STATUS_OK;
    status_write("%s", fault->message);
    return STATUS_FAILED;
}

/* Adds the GPU time between two events to the slot of the second. The rest of the elapsed time (launch
   latency, waiting for results) goes to PART_OTHER. */
static void count_laps(struct device *device) {
    struct cuda_state *state = state_of(device);
    struct profile *profile = device->profile;
    if (!profile || !state->pending) return;
    const double elapsed = clock_seconds() - profile->last;
    double counted = 0;
    for (size_t i = 0; i < state->pending; i++) {
        float milliseconds = 0;
        TRY(state, cudaEventElapsedTime(&milliseconds, state->event[i], state->event[i + 1]));
        double seconds = 1e-3 * (double)milliseconds;
        if (seconds > elapsed - counted)
            seconds = elapsed - counted > 0 ? elapsed - counted : 0; /* the clocks differ */
        profile_take(profile, state->slot[i], seconds);
        counted += seconds;
    }
    state->pending = 0;
}

/* Intervals that the compute stream has joined. */
static void count_asides(struct device *device) {
    struct cuda_state *state = state_of(device);
    for (size_t i = 0; i + 1 < state->aside_events; i += 2) {
        float milliseconds = 0;
        TRY(state, cudaEventElapsedTime(&milliseconds, state->aside_event[i], state->aside_event[i + 1]));
        if (device->profile) device->profile->aside += 1e-3 * (double)milliseconds;
    }
    state->aside_events = 0;
}

bool cuda_wait(struct device *device) {
    struct cuda_state *state = state_of(device);
    const bool done = TRY(state, cudaStreamSynchronize(state->ops.stream));
    count_laps(device);
    if (!state->aside_begun) count_asides(device);
    if (device->profile) {
        profile_lap(device->profile, {PART_OTHER, 0, 0});
        TRY(state, cudaEventRecord(state->event[0], state->ops.stream));
    }
    return done;
}

void cuda_lap(struct device *device, struct profile_slot slot) {
    struct cuda_state *state = state_of(device);
    if (state->capturing || !device->profile) return;
    if (state->pending == RING) cuda_wait(device);
    TRY(state, cudaEventRecord(state->event[state->pending + 1], state->ops.stream));
    state->slot[state->pending++] = slot;
}

enum status cuda_check(struct device *device) {
    return cuda_report(state_of(device));
}

enum status cuda_synchronize(struct device *device) {
    cuda_wait(device);
    return cuda_check(device);
}
