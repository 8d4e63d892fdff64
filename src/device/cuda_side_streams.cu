/* The streams of a CUDA device beside the compute stream: uploads ahead on the copy stream, ops aside. Each
   waits for the others by events; the host waits in cuda_stage_wait only. */
#include "src/device/cuda_state.cuh"

void *cuda_prefetch_begin(struct device *device) {
    struct cuda_state *state = state_of(device);
    TRY(state, cudaStreamWaitEvent(state->copy.stream, state->committed, 0)); /* the buffers have been read */
    return &state->copy;
}

void cuda_prefetch_end(struct device *device) {
    struct cuda_state *state = state_of(device);
    TRY(state, cudaEventRecord(state->prefetched, state->copy.stream));
}

/* Ends or begins an interval of work aside. */
static void time_aside(struct device *device, bool begins) {
    struct cuda_state *state = state_of(device);
    if (state->capturing || state->aside_events % 2 == begins || (begins && !device->profile)) return;
    TRY(state, cudaEventRecord(state->aside_event[state->aside_events++], state->aside.stream));
}

void *cuda_aside_begin(struct device *device) {
    struct cuda_state *state = state_of(device);
    time_aside(device, false);
    if (state->aside_events == 2 * ASIDES && !state->capturing) {
        TRY(state, cudaStreamSynchronize(state->aside.stream));
        state->aside_begun = false;
        device->driver->synchronize(device);
    }
    state->aside_begun = true;
    TRY(state, cudaEventRecord(state->begun, state->ops.stream));
    TRY(state, cudaStreamWaitEvent(state->aside.stream, state->begun, 0));
    time_aside(device, true);
    state->aside.low = false;
    return &state->aside;
}

void *cuda_aside_begin_low(struct device *device) {
    struct cuda_state *state = state_of(device);
    cuda_aside_begin(device);
    state->aside.low = state->aside_low = true;
    return &state->aside;
}

void cuda_aside_join(struct device *device) {
    struct cuda_state *state = state_of(device);
    time_aside(device, false);
    state->aside_begun = false;
    TRY(state, cudaEventRecord(state->ended, state->aside.stream));
    TRY(state, cudaStreamWaitEvent(state->ops.stream, state->ended, 0));
}

void *cuda_aside_stream(struct device *device) {
    return state_of(device)->aside.stream;
}

void cuda_prefetch_upload(struct device *device, void *to, const void *from, size_t bytes) {
    struct cuda_state *state = state_of(device);
    cuda_prefetch_begin(device);
    TRY(state, cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, state->copy.stream));
    cuda_prefetch_end(device);
}

void cuda_prefetch_commit(struct device *device, void *to, const void *prefetched, size_t bytes) {
    struct cuda_state *state = state_of(device);
    TRY(state, cudaStreamWaitEvent(state->ops.stream, state->prefetched, 0));
    TRY(state, cudaMemcpyAsync(to, prefetched, bytes, cudaMemcpyDeviceToDevice, state->ops.stream));
    TRY(state, cudaEventRecord(state->committed, state->ops.stream));
}

void cuda_stage_upload(struct device *device, unsigned stage, void *to, const void *from, size_t bytes) {
    struct cuda_state *state = state_of(device);
    TRY(state, cudaStreamWaitEvent(state->copy.stream, state->released[stage], 0));
    TRY(state, cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, state->copy.stream));
    TRY(state, cudaEventRecord(state->uploaded[stage], state->copy.stream));
}

void cuda_stage_acquire(struct device *device, unsigned stage) {
    struct cuda_state *state = state_of(device);
    TRY(state, cudaStreamWaitEvent(state->ops.stream, state->uploaded[stage], 0));
}

void cuda_stage_release(struct device *device, unsigned stage) {
    struct cuda_state *state = state_of(device);
    TRY(state, cudaEventRecord(state->released[stage], state->ops.stream));
}

void cuda_stage_wait(struct device *device, unsigned stage) {
    TRY(state_of(device), cudaEventSynchronize(state_of(device)->uploaded[stage]));
}
