/* Weight gradients that update the weights themselves (gemm_update in kernels/gemm.h), by a backend of this
   test on the host: each parameter is updated once, whatever the backend takes. Those of cuda-tuned:
   test_gpu_weight_update.c. */
#include "tests/support.h"

#include <stdlib.h>

#include "src/nn/optimizer.h"

enum { ROWS = 13, CLASSES = 5, ALL = 1000 };

/* What the backend takes, and what it was asked for. */
static struct compute compute;
static struct gemm_backend backend;
static struct device_driver driver;
static struct {
    bool lists, rest, output;        /* output: output layers */
    size_t refused;                  /* columns of the product that it does not take, or ALL; 0: none */
    size_t calls, products, updates; /* of gemm_update; with a product; all */
    size_t columns;                  /* of the product before */
    size_t asides, low;              /* aside_begin since the last join; all of the lowest priority */
} fake;

static bool takes(void *context, const struct gemm_call *call, const struct weight_update *update) {
    (void)context;
    assert_ptr_equal(update->rule.grad, call->c);
    return call->k ? call->n != fake.refused && fake.refused != ALL : fake.rest;
}

static enum gemm_status gemm_update(void *context, const struct gemm_call *calls,
                                    const struct weight_update *updates, size_t count) {
    if (count > 1 && !fake.lists) return GEMM_UNSUPPORTED;
    fake.calls++;
    for (size_t i = 0; i < count; i++) {
        assert_true(takes(context, calls + i, updates + i));
        assert_true(calls[i].beta == (calls[i].k ? 0 : 1) && calls[i].ldc == calls[i].n);
        fake.updates++;
        if (count > 1) assert_ptr_equal(updates[i].stream, i == 0 && calls[i].n == CLASSES ? &fake : NULL);
        if (calls[i].k) {
            assert_true(calls[i].n > fake.columns); /* from the last layer on, which is the narrowest */
            fake.columns = calls[i].n;
            fake.products++;
            assert_int_equal(backend.gemm(context, calls + i), GEMM_OK);
        }
        compute.device.driver->ops(&compute.device, calls[i].dtype)
            ->update(compute.device.ops_context, calls[i].m * calls[i].n, &updates[i].rule, updates[i].step,
                     updates[i].guard);
    }
    return GEMM_OK;
}

static enum gemm_status output_layer(void *context, const struct output_layer *layer) {
    if (!fake.output) return GEMM_UNSUPPORTED;
    const struct ops *ops = compute.device.driver->ops(&compute.device, GEMM_F32);
    void *const own = compute.device.ops_context, *const grad = (void *)layer->input_gradient->a;
    struct gemm_call logits = *layer->logits, input = *layer->input_gradient;
    const struct gemm_epilogue *forward = logits.epilogue;
    const struct gemm_backward *below = input.backward;
    logits.epilogue = NULL;
    input.backward = NULL;
    assert_int_equal(backend.gemm(context, &logits), GEMM_OK);
    ops->bias_activation(own, ROWS, CLASSES, ACTIVATION_NONE, forward->bias, logits.c, logits.c);
    ops->softmax_cross_entropy(own, ROWS, ROWS, CLASSES, layer->smoothing, logits.c, layer->labels, grad,
                               layer->loss, layer->tally, layer->counted);
    ops->bias_activation_backward(own, ROWS, CLASSES, ACTIVATION_NONE, logits.c, logits.c, grad, 1, 0,
                                  layer->bias_grad);
    assert_int_equal(backend.gemm(context, layer->gradient), GEMM_OK);
    assert_int_equal(backend.gemm(context, &input), GEMM_OK);
    ops->bias_activation_backward(own, ROWS, input.n, below->activation, below->pre, below->output, input.c,
                                  1, 0, below->bias_grad);
    return GEMM_OK;
}

static void *aside_begin(struct device *device) {
    fake.asides++;
    return device->ops_context;
}

static void *aside_begin_low(struct device *device) {
    fake.low++;
    return aside_begin(device);
}

static void aside_join(struct device *device) {
    (void)device;
    assert_true(fake.asides > 0);
    fake.asides = 0;
}

static void *aside_stream(struct device *device) {
    (void)device;
    return &fake;
}

/* The parameters and moments after two steps. overlap: as in engine graph; updates: products may update;
   many: ROWS are many rows. The caller frees them. */
static unsigned char *two_steps(const char *settings, bool overlap, bool updates, bool many, size_t *bytes) {
    struct config config;
    struct mlp mlp;
    struct optimizer optimizer;
    struct tally tally = {0};
    const struct step_scalars step = {.learning_rate = 0.05, .adam_rate = 0.07, .adam_root = 1.5};
    support_config(&config, settings);
    support_open(&compute, "serial", 1);
    backend = *compute.backend;
    backend.fuses_update = takes;
    backend.gemm_update = gemm_update;
    backend.output_layer = output_layer;
    driver = *compute.device.driver;
    driver.aside_begin = aside_begin;
    driver.aside_begin_low = aside_begin_low;
    driver.aside_join = aside_join;
    driver.aside_stream = aside_stream;
    compute.backend = &backend;
    compute.device.driver = &driver;
    assert_status(mlp_open(&mlp, &compute, &config, ROWS), STATUS_OK);
    assert_int_equal(mlp.many_rows, 2048);
    if (many) mlp.many_rows = 1;
    assert_status(mlp_initialize(&mlp, INIT_UNIFORM, 0, 3), STATUS_OK);
    assert_status(optimizer_open(&optimizer, &mlp, &config), STATUS_OK);
    for (size_t i = 0; i < ROWS * mlp.layer[0].in; i++) ((float *)mlp.input)[i] = (float)(i * 37 % 101) / 64;
    for (size_t r = 0; r < ROWS; r++) mlp.labels[r] = (uint8_t)(r * r % 5);
    const struct weight_update update = {.rule = optimizer.update, .step = &step, .guard = &tally};
    const struct output_layer loss = {.batch = ROWS, .labels = mlp.labels, .tally = &tally, .counted = true};
    for (int i = 0; i < 2; i++) {
        fake.columns = 0;
        mlp.update = updates ? &update : NULL;
        mlp.updates_overlap = overlap;
        assert_status(mlp_gradients(&mlp, ROWS, &step, &loss, 0), STATUS_OK);
        mlp.update = NULL;
        optimizer_step(&optimizer, &mlp, &step, &tally);
        assert_int_equal(fake.asides, 0);
    }
    const size_t size = mlp.parameter_elements * sizeof(float);
    unsigned char *all = malloc(2 * size);
    assert_non_null(all);
    memcpy(all, mlp.parameters, size);
    memcpy(all + size, optimizer.update.moment1, size);
    *bytes = 2 * size;
    optimizer_close(&optimizer, &mlp);
    mlp_close(&mlp);
    compute_close(&compute);
    return all;
}

static void each_parameter_is_updated_once(void **state) {
    (void)state;
    static const struct {
        bool overlap, lists, rest, output;
        size_t refused, calls, products, updates, beside; /* a step; beside: of many rows, not in updates */
    } cases[] = {
        {false, true, true, false, 0, 4, 4, 4, 0},  /* engine eager: each apart */
        {false, true, true, false, 16, 3, 3, 3, 0}, /* .. but for one, which the op updates */
        {true, false, true, false, 0, 4, 4, 4, 0},  /* a backend without lists */
        {true, true, false, false, 0, 1, 4, 4, 0},  /* lists, but of products alone */
        {true, true, true, false, 0, 1, 4, 5, 0},   /* and biases */
        {true, true, true, false, 16, 1, 3, 5, 1},  /* .. and the weights of a layer in the middle */
        {true, true, true, false, 5, 1, 3, 5, 1},   /* .. or of the last one */
        {true, true, false, false, 24, 1, 3, 3, 1}, /* .. which the op updates */
        {true, true, true, true, 16, 1, 2, 4, 1},   /* the output layer's with the one below */
        {true, true, true, false, ALL, 0, 0, 0, 3}, /* no product: of many rows all but layer 0 beside */
    };
    static const char *const settings[] = {
        "layers=17-32-24-16-5 init=uniform momentum=0.9 weight-decay=0.01",
        "layers=17-32-24-16-5 init=uniform optimizer=adamw dropout=0.2",
    };
    for (size_t i = 0; i < 4 * sizeof cases / sizeof *cases; i++) {
        const size_t c = i / 4;
        const bool many = i / 2 % 2;
        size_t bytes;
        memset(&fake, 0, sizeof fake);
        unsigned char *apart = two_steps(settings[i % 2], cases[c].overlap, false, many, &bytes);
        assert_int_equal(fake.calls + fake.low, 0);
        fake.lists = cases[c].lists;
        fake.rest = cases[c].rest;
        fake.output = cases[c].output;
        fake.refused = cases[c].refused;
        unsigned char *fused = two_steps(settings[i % 2], cases[c].overlap, true, many, &bytes);
        assert_int_equal(fake.calls, 2 * cases[c].calls);
        assert_int_equal(fake.products, 2 * cases[c].products);
        assert_int_equal(fake.low, many ? 2 * cases[c].beside : 0);
        const size_t listed = many && cases[c].rest && cases[c].products ? cases[c].beside : 0;
        assert_int_equal(fake.updates, 2 * (cases[c].updates - listed));
        assert_memory_equal(fused, apart, bytes);
        free(apart);
        free(fused);
    }
}

/* While an audit is on, no list is issued at once. */
static void a_list_is_refused_beside_an_audit(void **state) {
    (void)state;
    memset(&fake, 0, sizeof fake);
    fake.lists = true;
    support_open(&compute, "serial", 1);
    backend = *compute.backend;
    backend.gemm_update = gemm_update;
    compute.backend = &backend;
    struct gemm_call calls[2] = {{.dtype = GEMM_F32}};
    const struct weight_update updates[2] = {{.step = NULL}};
    bool done = true;
    compute.audit = (struct audit *)&fake; /* any */
    assert_status(compute_gemm_updates(&compute, calls, updates, 2, &done), STATUS_OK);
    assert_false(done);
    assert_int_equal(fake.calls, 0);
    compute.audit = NULL;
    compute_close(&compute);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_parameter_is_updated_once),
                                       cmocka_unit_test(a_list_is_refused_beside_an_audit)};
    return cmocka_run_group_tests_name("weight update", tests, NULL, NULL);
}
