/* Runtime contexts: a function on a device, with memory of its own. */
#include "context.h"

#include <stdlib.h>
#include <string.h>

#define UNSET_ORDINAL (-2)
#define SCRATCH_ALIGN 64u

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

struct context *cx_get(cnrtRuntimeContext_t handle, const char *call, cnrtRet_t *status) {
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
    struct context *context = cx_get(handle, call, &status);
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
    struct context *context = cx_get(handle, call, &status);
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
    struct context *context = cx_get(handle, call, &status);
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
    struct context *source = cx_get(source_handle, call, &status);
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
    struct context *context = cx_get(handle, call, &status);
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
    struct context *context = cx_get(handle, call, &status);
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
    struct context *context = cx_get(handle, call, &status);
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
