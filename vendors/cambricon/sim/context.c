/* Runtime contexts: a function on a device, with memory of its own, and its runs. */
#include "model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UNSET_ORDINAL (-2)
#define MOST_POINTERS 128u
#define SCRATCH_ALIGN 64u

/* Weights on the device; forks share them. */
struct weights {
    _Atomic int references;
    uint64_t address;
};

struct context {
    struct cn_object object;
    struct model *model;
    const struct cam_model_function *compiled;
    cnrtFunction_t function; /* its own, once cnrtGetRuntimeContextInfo asked: that of the program may be gone */
    pthread_mutex_t lock;
    cnrtChannelType_t channel;
    int ordinal, ready, calling;
    struct weights *weights;
    uint64_t scratch;
    const struct cn_queue *queue; /* where its runs wait, */
    uint32_t pending;             /* so many */
};

static void let_go(struct weights *weights) {
    if (!weights || atomic_fetch_sub(&weights->references, 1) > 1) return;
    npu_free(cn_device(), weights->address);
    free(weights);
}

static void destroy_context(struct cn_object *object) {
    struct context *context = (struct context *)object;
    let_go(context->weights);
    if (context->scratch) npu_free(cn_device(), context->scratch);
    if (context->function) cn_remove(context->function, CN_FUNCTION);
    cn_drop(&context->model->object);
    pthread_mutex_destroy(&context->lock);
    free(context);
}

static struct context *context_of(cnrtRuntimeContext_t handle, const char *call, cnrtRet_t *status) {
    struct context *context = cn_get(handle, CN_CONTEXT);
    if (!context) *status = cn_fail(CNRT_RET_ERR_INVALID, call, "no such context, or it was destroyed");
    return context;
}

static struct context *make(struct model *model, const struct cam_model_function *compiled) {
    struct context *context = calloc(1, sizeof *context);
    if (!context) return NULL;
    pthread_mutex_init(&context->lock, NULL);
    cn_hold(&model->object);
    context->model = model;
    context->compiled = compiled;
    context->channel = CNRT_CHANNEL_TYPE_NONE;
    context->ordinal = UNSET_ORDINAL;
    return context;
}

/* Life ------------------------------------------------------------------------------------------------------------------------ */

EXPORT cnrtRet_t cnrtCreateRuntimeContext(cnrtRuntimeContext_t *handle, cnrtFunction_t function_handle, void *extra) {
    static const char call[] = "cnrtCreateRuntimeContext";
    (void)extra;
    cnrtRet_t status = CNRT_RET_SUCCESS;
    if (!handle) return cn_fail(CNRT_RET_ERR_INVALID, call, "a null pointer");
    struct function *function = fn_get(function_handle, call, &status);
    if (!function) return status;
    struct context *context = make(function->model, function->compiled);
    cn_drop(&function->object);
    *handle = context ? cn_put(&context->object, CN_CONTEXT, destroy_context) : NULL;
    return *handle ? CNRT_RET_SUCCESS : cn_fail(CNRT_RET_ERR_NOMEM, call, "out of memory");
}

EXPORT cnrtRet_t cnrtDestroyRuntimeContext(cnrtRuntimeContext_t handle) {
    if (!cn_remove(handle, CN_CONTEXT)) return CNRT_RET_SUCCESS;
    return cn_fail(CNRT_RET_ERR_INVALID, "cnrtDestroyRuntimeContext", "no such context, or it was destroyed");
}

EXPORT cnrtRet_t cnrtSetRuntimeContextChannel(cnrtRuntimeContext_t handle, cnrtChannelType_t channel) {
    static const char call[] = "cnrtSetRuntimeContextChannel";
    cnrtRet_t status = CNRT_RET_SUCCESS;
    if (!cn_channel_exists(channel)) return cn_fail(CNRT_RET_ERR_INVALID, call, "MLU220 has channel 0 alone");
    struct context *context = context_of(handle, call, &status);
    if (!context) return status;
    pthread_mutex_lock(&context->lock);
    int late = context->ready;
    if (!late) context->channel = channel;
    pthread_mutex_unlock(&context->lock);
    cn_drop(&context->object);
    return late ? cn_fail(CNRT_RET_ERR_INIT, call, "the context is initialised: too late") : status;
}

EXPORT cnrtRet_t cnrtSetRuntimeContextDeviceId(cnrtRuntimeContext_t handle, int ordinal) {
    static const char call[] = "cnrtSetRuntimeContextDeviceId";
    cnrtRet_t status = CNRT_RET_SUCCESS;
    if (ordinal != 0 && ordinal != CN_FAKE_ORDINAL) return cn_fail(CNRT_RET_ERR_INVALID, call, "no such ordinal; a handle is none");
    struct context *context = context_of(handle, call, &status);
    if (!context) return status;
    pthread_mutex_lock(&context->lock);
    int late = context->ready;
    if (!late) context->ordinal = ordinal;
    pthread_mutex_unlock(&context->lock);
    cn_drop(&context->object);
    return late ? cn_fail(CNRT_RET_ERR_INIT, call, "the context is initialised: too late") : status;
}

/* With the context's lock held: its memory on the device, of which forks have the weights already. 0, or -1. */
static int allocate(struct context *context) {
    struct weights *weights = context->weights;
    if (!weights) {
        weights = calloc(1, sizeof *weights);
        if (!weights) return -1;
        atomic_init(&weights->references, 1);
        size_t bytes = npu_weight_bytes(context->compiled->program);
        if (npu_allocate(cn_device(), bytes ? bytes : 1, SCRATCH_ALIGN, &weights->address)) {
            free(weights);
            return -1;
        }
    }
    size_t scratch = npu_scratch_bytes(context->compiled->program);
    if (npu_allocate(cn_device(), scratch ? scratch : 1, SCRATCH_ALIGN, &context->scratch)) {
        context->scratch = 0;
        if (!context->weights) let_go(weights);
        return -1;
    }
    context->weights = weights;
    return 0;
}

EXPORT cnrtRet_t cnrtInitRuntimeContext(cnrtRuntimeContext_t handle, void *extra) {
    static const char call[] = "cnrtInitRuntimeContext";
    (void)extra;
    if (!cn_initialised()) return cn_fail(CNRT_RET_ERR_INIT, call, "cnrtInit was not called");
    cnrtRet_t status = cn_present(call);
    if (status != CNRT_RET_SUCCESS) return status;
    struct context *context = context_of(handle, call, &status);
    if (!context) return status;
    const char *wrong = NULL;
    pthread_mutex_lock(&context->lock);
    if (context->ready) {
        status = CNRT_RET_ERR_INIT;
        wrong = "the context was initialised before";
    } else if (context->model->file->header.core_version != cn_core_version()) {
        status = CNRT_RET_ERR_UNSUPPORTED;
        wrong = "the model is for another kind of core than the device has: cnrtQueryCoreVersion";
    } else if (allocate(context)) {
        status = CNRT_RET_ERR_NOMEM;
        wrong = "the device's memory is full";
    } else {
        context->ready = 1;
        if (context->ordinal == UNSET_ORDINAL) context->ordinal = 0;
    }
    pthread_mutex_unlock(&context->lock);
    cn_drop(&context->object);
    return wrong ? cn_fail(status, call, wrong) : status;
}

EXPORT cnrtRet_t cnrtForkRuntimeContext(cnrtRuntimeContext_t *handle, cnrtRuntimeContext_t source_handle, void *extra) {
    static const char call[] = "cnrtForkRuntimeContext";
    (void)extra;
    cnrtRet_t status = CNRT_RET_SUCCESS;
    if (!handle) return cn_fail(CNRT_RET_ERR_INVALID, call, "a null pointer");
    struct context *source = context_of(source_handle, call, &status);
    if (!source) return status;
    *handle = NULL;
    pthread_mutex_lock(&source->lock);
    struct context *context = source->ready ? make(source->model, source->compiled) : NULL;
    int ready = source->ready;
    if (context) {
        context->channel = source->channel;
        context->ordinal = source->ordinal;
        context->weights = source->weights;
        atomic_fetch_add(&context->weights->references, 1);
    }
    pthread_mutex_unlock(&source->lock);
    cn_drop(&source->object);
    if (!ready) return cn_fail(CNRT_RET_ERR_INIT, call, "the context is not initialised");
    if (!context) return cn_fail(CNRT_RET_ERR_NOMEM, call, "out of memory");
    if (allocate(context)) {
        destroy_context(&context->object);
        return cn_fail(CNRT_RET_ERR_NOMEM, call, "the device's memory is full");
    }
    context->ready = 1;
    *handle = cn_put(&context->object, CN_CONTEXT, destroy_context);
    return *handle ? CNRT_RET_SUCCESS : cn_fail(CNRT_RET_ERR_NOMEM, call, "out of memory");
}

EXPORT cnrtRet_t cnrtGetRuntimeContextInfo(cnrtRuntimeContext_t handle, cnrtRuntimeContextInfo_t key, void **out) {
    static const char call[] = "cnrtGetRuntimeContextInfo";
    cnrtRet_t status = CNRT_RET_SUCCESS;
    if (!out) return cn_fail(CNRT_RET_ERR_INVALID, call, "a null pointer");
    struct context *context = context_of(handle, call, &status);
    if (!context) return status;
    pthread_mutex_lock(&context->lock);
    int parallelism = (int)context->model->file->header.parallelism, ordinal = context->ordinal;
    if (key == CNRT_RT_CTX_FUNCTION && !context->function) context->function = fn_make(context->model, context->compiled);
    cnrtFunction_t function = context->function;
    pthread_mutex_unlock(&context->lock);
    /* Programs pass the address of an int for a number: no more than an int is written. */
    switch (key) {
    case CNRT_RT_CTX_FUNCTION: *out = function; break;
    case CNRT_RT_CTX_DEV_ORDINAL: memcpy(out, &ordinal, sizeof ordinal); break;
    case CNRT_RT_CTX_MODEL_PARALLEL: memcpy(out, &parallelism, sizeof parallelism); break;
    default: status = cn_fail(CNRT_RET_ERR_UNSUPPORTED, call, "the key is not supported");
    }
    cn_drop(&context->object);
    return status;
}

/* What belongs to a context's device ------------------------------------------------------------------------------------------ */

/* Success when the context is initialised. */
static cnrtRet_t check_ready(cnrtRuntimeContext_t handle, const char *call) {
    cnrtRet_t status = CNRT_RET_SUCCESS;
    struct context *context = context_of(handle, call, &status);
    if (!context) return status;
    pthread_mutex_lock(&context->lock);
    int ready = context->ready;
    pthread_mutex_unlock(&context->lock);
    cn_drop(&context->object);
    return ready ? status : cn_fail(CNRT_RET_ERR_INIT, call, "the context is not initialised: cnrtInitRuntimeContext");
}

EXPORT cnrtRet_t cnrtSetCurrentContextDevice(cnrtRuntimeContext_t handle) {
    static const char call[] = "cnrtSetCurrentContextDevice";
    cnrtRet_t status = CNRT_RET_SUCCESS;
    struct context *context = context_of(handle, call, &status);
    if (!context) return status;
    pthread_mutex_lock(&context->lock);
    int ordinal = context->ordinal;
    pthread_mutex_unlock(&context->lock);
    cn_drop(&context->object);
    if (ordinal == UNSET_ORDINAL) return cn_fail(CNRT_RET_ERR_INIT, call, "the context has no device yet");
    status = ordinal == 0 ? cn_present(call) : CNRT_RET_SUCCESS;
    if (status == CNRT_RET_SUCCESS) cn_swap_current(ordinal == 0 ? CN_REAL_DEVICE : CN_FAKE_DEVICE);
    return status;
}

/* Make the context's device the thread's until `leave`; the one before is in `before`. */
static cnrtRet_t visit(cnrtRuntimeContext_t handle, const char *call, cnrtDev_t *before) {
    cnrtRet_t status = check_ready(handle, call);
    if (status != CNRT_RET_SUCCESS) return status;
    *before = cn_swap_current(0);
    status = cnrtSetCurrentContextDevice(handle);
    if (status != CNRT_RET_SUCCESS) cn_swap_current(*before);
    return status;
}

EXPORT cnrtRet_t cnrtRuntimeContextCreateQueue(cnrtRuntimeContext_t handle, cnrtQueue_t *queue) {
    cnrtDev_t before;
    cnrtRet_t status = visit(handle, "cnrtRuntimeContextCreateQueue", &before);
    if (status != CNRT_RET_SUCCESS) return status;
    status = cnrtCreateQueue(queue);
    cn_swap_current(before);
    return status;
}

EXPORT cnrtRet_t cnrtRuntimeContextCreateNotifier(cnrtRuntimeContext_t handle, cnrtNotifier_t *notifier) {
    cnrtDev_t before;
    cnrtRet_t status = visit(handle, "cnrtRuntimeContextCreateNotifier", &before);
    if (status != CNRT_RET_SUCCESS) return status;
    status = cnrtCreateNotifier(notifier);
    cn_swap_current(before);
    return status;
}

EXPORT cnrtRet_t cnrtRuntimeContextMallocBySizeArray(cnrtRuntimeContext_t handle, void ***pointers, size_t *bytes, int length) {
    static const char call[] = "cnrtRuntimeContextMallocBySizeArray";
    if (!pointers || !bytes || length <= 0) return cn_fail(CNRT_RET_ERR_INVALID, call, "a null pointer, or no length");
    cnrtDev_t before;
    cnrtRet_t status = visit(handle, call, &before);
    if (status != CNRT_RET_SUCCESS) return status;
    void **made = calloc((size_t)length, sizeof *made);
    if (!made) status = cn_fail(CNRT_RET_ERR_NOMEM, call, "out of memory");
    for (int i = 0; i < length && status == CNRT_RET_SUCCESS; i++) status = cnrtMalloc(&made[i], bytes[i]);
    cn_swap_current(before);
    if (status == CNRT_RET_SUCCESS) {
        *pointers = made;
        return status;
    }
    if (made) cnrtFreeArray(made, length);
    free(made);
    return status;
}

EXPORT cnrtRet_t cnrtRuntimeContextFree(cnrtRuntimeContext_t handle, void *pointer) {
    cnrtRet_t status = check_ready(handle, "cnrtRuntimeContextFree");
    return status == CNRT_RET_SUCCESS ? cnrtFree(pointer) : status;
}

/* The array itself is given back too: it came from the call that made the memory. */
EXPORT cnrtRet_t cnrtRuntimeContextFreeArray(cnrtRuntimeContext_t handle, void **pointers, int length) {
    cnrtRet_t status = check_ready(handle, "cnrtRuntimeContextFreeArray");
    if (status != CNRT_RET_SUCCESS) return status;
    status = cnrtFreeArray(pointers, length);
    if (status == CNRT_RET_SUCCESS) free(pointers);
    return status;
}

/* Runs ------------------------------------------------------------------------------------------------------------------------ */

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
    struct context *context = context_of(handle, call, &status);
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
    struct context *context = context_of(handle, call, &status);
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
