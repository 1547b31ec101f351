/* Runs of a context in a queue. */
#include "context.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_POINTERS 128u

struct run {
    struct context *context;
    struct cn_queue *queue;
    uint32_t batch;
    void *pointers[MOST_POINTERS];
};

static struct npu_blob blob_at(const struct cam_model_port *port, uint8_t *data) {
    const struct cam_port *shape = &port->port;
    enum npu_blob_type type = port->size == 1 ? NPU_BLOB_U8 : port->size == 2 ? NPU_BLOB_F16 : NPU_BLOB_F32;
    int64_t size = port->size, pixel = size * shape->c;
    return (struct npu_blob){data + shape->first * size, type, pixel * shape->w, pixel, size * shape->step};
}

/* NULL, or what went wrong on the device. */
static const char *compute(const struct run *run) {
    const struct cam_model_function *compiled = run->context->compiled;
    uint32_t inputs = compiled->function.inputs, count = inputs + compiled->function.outputs;
    uint8_t *data[MOST_POINTERS];
    uint8_t *scratch = npu_memory(cn_device(), run->context->scratch, npu_scratch_bytes(compiled->program));
    if (!scratch) return "the context has no memory";
    for (uint32_t i = 0; i < count; i++) {
        data[i] = cn_memory(run->pointers[i], (size_t)(compiled->ports[i].picture * run->batch));
        if (!data[i]) return "an input or output is no memory of the device, or shorter than it has to be";
    }
    for (uint32_t picture = 0; picture < run->batch; picture++) {
        struct npu_blob blobs[MOST_POINTERS];
        for (uint32_t i = 0; i < count; i++) blobs[i] = blob_at(&compiled->ports[i], data[i] + compiled->ports[i].picture * picture);
        npu_run(compiled->program, blobs, blobs + inputs, scratch);
    }
    if (npu_take(cn_device(), NPU_SET_CORRUPT))
        for (uint64_t i = 0; i < compiled->ports[inputs].picture * run->batch; i += 37) data[inputs][i] ^= 0x5A;
    return NULL;
}

static void perform(void *argument, int was_lost) {
    struct run *run = argument;
    struct context *context = run->context;
    const char *wrong = was_lost ? "the device is gone, or its queue was destroyed" : compute(run);
    if (wrong) cn_queue_failed(run->queue, was_lost ? CNRT_RET_ERR_NODEV : CNRT_RET_ERR_MLU, wrong);
    pthread_mutex_lock(&context->lock);
    context->pending--;
    pthread_mutex_unlock(&context->lock);
    cn_drop(&context->object);
    free(run);
}

static cnrtRet_t refuse_launch(const char *call, const char *reason) { return cn_fail(CNRT_RET_ERR_CNDRV_FUNC_CALL, call, reason); }

/* What the driver would refuse when the kernel is launched, and not before. */
static cnrtRet_t check_launch(const struct context *context, const char *call) {
    const struct cam_header *header = &context->model->file->header;
    char reason[128];
    uint32_t cores = npu_facts(cn_device())->cores;
    if (header->parallelism > cores) {
        snprintf(reason, sizeof reason, "the model takes %u cores at once, the device has %u", header->parallelism, cores);
        return refuse_launch(call, reason);
    }
    unsigned int stack = cn_stack_mib();
    if (header->stack_mib > stack) {
        snprintf(reason, sizeof reason, "the model needs a stack of %u MB, the device has %u: cnrtSetStackMem", header->stack_mib, stack);
        return refuse_launch(call, reason);
    }
    return CNRT_RET_SUCCESS;
}

/* Take a context for one call: it is for one thread and one queue at a time, as its memory is. */
static cnrtRet_t claim(struct context *context, const struct cn_queue *queue, const char *call) {
    const char *wrong = NULL;
    cnrtRet_t status = CNRT_RET_ERR_INVALID_OP;
    pthread_mutex_lock(&context->lock);
    if (!context->ready) {
        status = CNRT_RET_ERR_INIT;
        wrong = "the context is not initialised: cnrtInitRuntimeContext";
    } else if (context->calling) {
        wrong = "two threads use one context at once: each needs its own, see cnrtForkRuntimeContext";
    } else if (context->pending && context->queue != queue) {
        wrong = "the context still runs in another queue, with the same memory: use cnrtForkRuntimeContext";
    } else {
        context->calling = 1;
    }
    pthread_mutex_unlock(&context->lock);
    return wrong ? cn_fail(status, call, wrong) : CNRT_RET_SUCCESS;
}

static cnrtRet_t submit(struct context *context, struct cn_queue *queue, void **params, uint32_t batch, const char *call) {
    const struct cam_model_function *compiled = context->compiled;
    uint32_t count = compiled->function.inputs + compiled->function.outputs;
    struct run *run = calloc(1, sizeof *run);
    if (!run) return cn_fail(CNRT_RET_ERR_NOMEM, call, "out of memory");
    *run = (struct run){.context = context, .queue = queue, .batch = batch};
    memcpy(run->pointers, params, count * sizeof *params);
    struct npu_work work = npu_count_work(compiled->program);
    work.macs_8 *= batch, work.macs_16 *= batch, work.elements *= batch, work.bytes *= batch;
    uint32_t cores = context->model->file->header.parallelism;
    cn_hold(&context->object);
    pthread_mutex_lock(&context->lock);
    context->pending++;
    context->queue = queue;
    pthread_mutex_unlock(&context->lock);
    if (npu_enqueue(queue->lane, perform, run, cores, npu_seconds(cn_device(), &work, cores))) return CNRT_RET_SUCCESS;
    pthread_mutex_lock(&context->lock);
    context->pending--;
    pthread_mutex_unlock(&context->lock);
    cn_drop(&context->object);
    free(run);
    return cn_fail(CNRT_RET_ERR_NOMEM, call, "out of memory");
}

static cnrtRet_t invoke_claimed(struct context *context, struct cn_queue *queue, void **params, int batch, const char *call) {
    const struct cam_function *function = &context->compiled->function;
    cnrtRet_t status = cn_present(call);
    if (status != CNRT_RET_SUCCESS) return status;
    for (uint32_t i = 0; i < function->inputs + function->outputs; i++)
        if (!params[i]) return cn_fail(CNRT_RET_ERR_INVALID, call, "an input or output is a null pointer");
    uint32_t known = 0, wanted = batch ? (uint32_t)batch : function->batches[function->batch_count - 1];
    while (known < function->batch_count && function->batches[known] != wanted) known++;
    if (known == function->batch_count) return cn_fail(CNRT_RET_ERR_INVALID, call, "the model was not made for that batch size");
    status = check_launch(context, call);
    return status == CNRT_RET_SUCCESS ? submit(context, queue, params, wanted, call) : status;
}

static cnrtRet_t invoke(const char *call, cnrtRuntimeContext_t handle, void **params, cnrtQueue_t queue_handle, int batch) {
    cnrtRet_t status = CNRT_RET_SUCCESS;
    if (!params) return cn_fail(CNRT_RET_ERR_INVALID, call, "a null pointer");
    struct context *context = cx_get(handle, call, &status);
    if (!context) return status;
    struct cn_queue *queue = cn_enter(queue_handle, call, &status);
    if (queue) status = claim(context, queue, call);
    if (queue && status == CNRT_RET_SUCCESS) {
        status = invoke_claimed(context, queue, params, batch, call);
        pthread_mutex_lock(&context->lock);
        context->calling = 0;
        pthread_mutex_unlock(&context->lock);
    }
    if (queue) cn_leave(queue);
    cn_drop(&context->object);
    return status;
}

/* `extra` may name a cluster by a mask. There is one cluster, and programs leave pointers to what is gone in it: it is not read. */
EXPORT cnrtRet_t cnrtInvokeRuntimeContext(cnrtRuntimeContext_t context, void **params, cnrtQueue_t queue, void *extra) {
    (void)extra;
    return invoke("cnrtInvokeRuntimeContext", context, params, queue, 0);
}

/* Success when descriptors of inputs and outputs have the shapes that the model was made for. */
static cnrtRet_t check_shapes(const char *call, cnrtRuntimeContext_t handle, cnrtParamDesc_t *descriptors) {
    cnrtRet_t status = CNRT_RET_SUCCESS;
    struct context *context = cx_get(handle, call, &status);
    if (!context) return status;
    const struct cam_function *function = &context->compiled->function;
    for (uint32_t i = 0; status == CNRT_RET_SUCCESS && i < function->inputs + function->outputs; i++) {
        const struct cam_port *port = &context->compiled->ports[i].port;
        const int wanted[4] = {(int)port->n, (int)port->h, (int)port->w, (int)port->c};
        int *dims = NULL, count = 0;
        status = cnrtGetShapeFromParamDesc(descriptors[i], &dims, &count);
        int same = status == CNRT_RET_SUCCESS && count == 4 && !memcmp(dims, wanted, sizeof wanted);
        free(dims);
        if (status == CNRT_RET_SUCCESS && !same)
            status = cn_fail(CNRT_RET_ERR_INVALID_DATADESC, call, "a shape is not the one that the model was made for");
    }
    cn_drop(&context->object);
    return status;
}

EXPORT cnrtRet_t cnrtInvokeRuntimeContext_V2(cnrtRuntimeContext_t context, cnrtParamDesc_t *descriptors, void **buffers, cnrtQueue_t queue,
                                             void *extra) {
    static const char call[] = "cnrtInvokeRuntimeContext_V2";
    (void)extra;
    cnrtRet_t status = descriptors ? check_shapes(call, context, descriptors) : CNRT_RET_SUCCESS;
    return status == CNRT_RET_SUCCESS ? invoke(call, context, buffers, queue, 0) : status;
}

EXPORT cnrtRet_t cnrtInvokeRuntimeContext_V3(cnrtRuntimeContext_t context, int *batches, void **buffers, cnrtQueue_t queue, void *extra) {
    static const char call[] = "cnrtInvokeRuntimeContext_V3";
    (void)extra;
    if (batches && batches[0] < 1) return cn_fail(CNRT_RET_ERR_INVALID, call, "a batch size below 1");
    return invoke(call, context, buffers, queue, batches ? batches[0] : 0);
}
