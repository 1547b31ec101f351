/* Quantisation parameters, and the old tagged parameters. */
#include "quantized.h"

#include <stdlib.h>
#include <string.h>

/* Quantisation parameters ----------------------------------------------------------------------------------------------------- */

static void destroy_quantized(struct cn_object *object) {
    struct quantized *quantized = (struct quantized *)object;
    free(quantized->channels);
    free(quantized);
}

static cnrtRet_t put_quantized(const char *call, cnrtQuantizedParam_t *handle, struct quantized *quantized) {
    *handle = cn_put(&quantized->object, CN_QUANTIZED, destroy_quantized);
    return *handle ? CNRT_RET_SUCCESS : cn_fail(CNRT_RET_ERR_NOMEM, call, "out of memory");
}

EXPORT cnrtRet_t cnrtCreateQuantizedParamByChannel(cnrtQuantizedParam_t *handle, int *positions, float *scales, float *offsets, int count,
                                                   int *dims, int channel_axis) {
    static const char call[] = "cnrtCreateQuantizedParamByChannel";
    if (!handle || !positions || !scales || !dims || count < 1 || channel_axis < 0 || channel_axis >= count)
        return cn_fail(CNRT_RET_ERR_INVALID, call, "a null pointer, or no such axis");
    size_t channels = dims[channel_axis] > 0 ? (size_t)dims[channel_axis] : 0, inner = 1;
    for (int i = channel_axis + 1; i < count; i++) inner *= dims[i] > 0 ? (size_t)dims[i] : 0;
    if (!channels || !inner) return cn_fail(CNRT_RET_ERR_INVALID, call, "a dimension below 1");
    struct quantized *quantized = calloc(1, sizeof *quantized);
    if (quantized) quantized->channels = calloc(channels, sizeof *quantized->channels);
    if (!quantized || !quantized->channels) {
        free(quantized);
        return cn_fail(CNRT_RET_ERR_NOMEM, call, "out of memory");
    }
    quantized->count = channels;
    quantized->inner = inner;
    for (size_t i = 0; i < channels; i++)
        quantized->channels[i] = (struct quantized_channel){positions[i], scales[i], offsets ? offsets[i] : 0};
    return put_quantized(call, handle, quantized);
}

EXPORT cnrtRet_t cnrtCreateQuantizedParam(cnrtQuantizedParam_t *handle, int position, float scale, int offset) {
    int one = 1;
    float shift = (float)offset;
    return cnrtCreateQuantizedParamByChannel(handle, &position, &scale, &shift, 1, &one, 0);
}

EXPORT cnrtRet_t cnrtDestroyQuantizedParam(cnrtQuantizedParam_t handle) {
    if (!cn_remove(handle, CN_QUANTIZED)) return CNRT_RET_SUCCESS;
    return cn_fail(CNRT_RET_ERR_INVALID, "cnrtDestroyQuantizedParam", "no such parameter, or it was destroyed");
}

/* Old tagged parameters ------------------------------------------------------------------------------------------------------- */

struct tagged {
    char *name;
    void *data; /* the caller's */
    struct tagged *next;
};

struct tagged_list {
    struct cn_object object;
    struct tagged *first;
};

static void destroy_list(struct cn_object *object) {
    struct tagged_list *list = (struct tagged_list *)object;
    for (struct tagged *one = list->first, *next; one; one = next) {
        next = one->next;
        free(one->name);
        free(one);
    }
    free(list);
}

EXPORT cnrtRet_t cnrtAllocParam(void **handle) {
    if (!handle) return cn_fail(CNRT_RET_ERR_INVALID, "cnrtAllocParam", "a null pointer");
    struct tagged_list *list = calloc(1, sizeof *list);
    *handle = list ? cn_put(&list->object, CN_PARAM_LIST, destroy_list) : NULL;
    return *handle ? CNRT_RET_SUCCESS : cn_fail(CNRT_RET_ERR_NOMEM, "cnrtAllocParam", "out of memory");
}

EXPORT cnrtRet_t cnrtAddParam(void *handle, char *name, int length, void *data) {
    static const char call[] = "cnrtAddParam";
    if (!name || length < 0) return cn_fail(CNRT_RET_ERR_INVALID, call, "a null pointer, or a negative length");
    struct tagged_list *list = cn_get(handle, CN_PARAM_LIST);
    if (!list) return cn_fail(CNRT_RET_ERR_INVALID, call, "no such parameters");
    struct tagged *one = calloc(1, sizeof *one);
    if (one) one->name = strndup(name, (size_t)length);
    int made = one && one->name;
    if (made) {
        one->data = data;
        one->next = list->first;
        list->first = one;
    } else {
        free(one);
    }
    cn_drop(&list->object);
    return made ? CNRT_RET_SUCCESS : cn_fail(CNRT_RET_ERR_NOMEM, call, "out of memory");
}

EXPORT cnrtRet_t cnrtGetParam(void *handle, char *name, void *out, int size) {
    static const char call[] = "cnrtGetParam";
    if (!name || !out || size < 0) return cn_fail(CNRT_RET_ERR_INVALID, call, "a null pointer, or a negative size");
    struct tagged_list *list = cn_get(handle, CN_PARAM_LIST);
    if (!list) return cn_fail(CNRT_RET_ERR_INVALID, call, "no such parameters");
    struct tagged *one = list->first;
    while (one && strcmp(one->name, name)) one = one->next;
    int found = one && one->data;
    if (found) memcpy(out, one->data, (size_t)size);
    cn_drop(&list->object);
    return found ? CNRT_RET_SUCCESS : cn_fail(CNRT_RET_ERR_NO_EXIST, call, "no parameter has that name");
}

EXPORT cnrtRet_t cnrtDestroyParam(void *handle) {
    if (!cn_remove(handle, CN_PARAM_LIST)) return CNRT_RET_SUCCESS;
    return cn_fail(CNRT_RET_ERR_INVALID, "cnrtDestroyParam", "no such parameters, or they were destroyed");
}

EXPORT cnrtRet_t cnrtDestoryParam(void *handle) { return cnrtDestroyParam(handle); }
