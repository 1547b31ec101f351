/* Descriptors of inputs and outputs, and what a function says of one by its name. */
#include "model.h"

#include <stdlib.h>
#include <string.h>

#define MOST_DIMS 16

/* Descriptors ----------------------------------------------------------------------------------------------------------------- */

struct descriptor {
    struct cn_object object;
    int dims[MOST_DIMS], dim_count;
    char *name;
    cnrtDataType_t dtype;
    cnrtDimOrder_t order;
};

/* One is used by one thread at a time, as with the vendor's; only its life is guarded. */
static void destroy_descriptor(struct cn_object *object) {
    free(((struct descriptor *)object)->name);
    free(object);
}

static struct descriptor *descriptor_of(cnrtParamDesc_t handle, const char *call, cnrtRet_t *status) {
    struct descriptor *descriptor = cn_get(handle, CN_PARAM);
    if (!descriptor) *status = cn_fail(CNRT_RET_ERR_INVALID_DATADESC, call, "no such descriptor, or it was destroyed");
    return descriptor;
}

EXPORT cnrtRet_t cnrtCreateParamDesc(cnrtParamDesc_t *handle) {
    static const char call[] = "cnrtCreateParamDesc";
    if (!handle) return cn_fail(CNRT_RET_ERR_INVALID, call, "a null pointer");
    struct descriptor *descriptor = calloc(1, sizeof *descriptor);
    if (descriptor) {
        descriptor->dtype = CNRT_FLOAT16;
        descriptor->order = CNRT_NHWC;
    }
    *handle = descriptor ? cn_put(&descriptor->object, CN_PARAM, destroy_descriptor) : NULL;
    return *handle ? CNRT_RET_SUCCESS : cn_fail(CNRT_RET_ERR_NOMEM, call, "out of memory");
}

EXPORT cnrtRet_t cnrtDestroyParamDesc(cnrtParamDesc_t handle) {
    if (!cn_remove(handle, CN_PARAM)) return CNRT_RET_SUCCESS;
    return cn_fail(CNRT_RET_ERR_INVALID_DATADESC, "cnrtDestroyParamDesc", "no such descriptor, or it was destroyed");
}

EXPORT cnrtRet_t cnrtDestroyParamDescArray(cnrtParamDescArray_t handles, int count) {
    if (!handles || count < 0) return cn_fail(CNRT_RET_ERR_INVALID, "cnrtDestroyParamDescArray", "a null pointer, or a negative number");
    cnrtRet_t status = CNRT_RET_SUCCESS;
    for (int i = 0; i < count; i++) {
        cnrtRet_t one = cnrtDestroyParamDesc(handles[i]);
        if (one != CNRT_RET_SUCCESS) status = one;
    }
    free(handles);
    return status;
}

EXPORT cnrtRet_t cnrtCreateParamDescArray(cnrtParamDescArray_t *handles, int count) {
    static const char call[] = "cnrtCreateParamDescArray";
    if (!handles || count < 1) return cn_fail(CNRT_RET_ERR_INVALID, call, "a null pointer, or no number");
    cnrtParamDescArray_t made = calloc((size_t)count, sizeof *made);
    if (!made) return cn_fail(CNRT_RET_ERR_NOMEM, call, "out of memory");
    for (int i = 0; i < count; i++) {
        cnrtRet_t status = cnrtCreateParamDesc(&made[i]);
        if (status == CNRT_RET_SUCCESS) continue;
        cnrtDestroyParamDescArray(made, i);
        return status;
    }
    *handles = made;
    return CNRT_RET_SUCCESS;
}

EXPORT cnrtRet_t cnrtSetShapeToParamDesc(cnrtParamDesc_t handle, int *dims, int count) {
    static const char call[] = "cnrtSetShapeToParamDesc";
    cnrtRet_t status = CNRT_RET_SUCCESS;
    if (!dims || count < 1 || count > MOST_DIMS) return cn_fail(CNRT_RET_ERR_INVALID, call, "a null pointer, or not 1 to 16 dimensions");
    for (int i = 0; i < count; i++)
        if (dims[i] < 1) return cn_fail(CNRT_RET_ERR_INVALID, call, "a dimension below 1");
    struct descriptor *descriptor = descriptor_of(handle, call, &status);
    if (!descriptor) return status;
    memcpy(descriptor->dims, dims, (size_t)count * sizeof *dims);
    descriptor->dim_count = count;
    cn_drop(&descriptor->object);
    return status;
}

EXPORT cnrtRet_t cnrtSetNameToParamDesc(cnrtParamDesc_t handle, char *name, int size) {
    static const char call[] = "cnrtSetNameToParamDesc";
    cnrtRet_t status = CNRT_RET_SUCCESS;
    if (!name || size < 0) return cn_fail(CNRT_RET_ERR_INVALID, call, "a null pointer, or a negative size");
    struct descriptor *descriptor = descriptor_of(handle, call, &status);
    if (!descriptor) return status;
    char *copy = strndup(name, (size_t)size);
    if (copy) {
        free(descriptor->name);
        descriptor->name = copy;
    } else {
        status = cn_fail(CNRT_RET_ERR_NOMEM, call, "out of memory");
    }
    cn_drop(&descriptor->object);
    return status;
}

EXPORT cnrtRet_t cnrtSetDataTypeToParamDesc(cnrtParamDesc_t handle, cnrtDataType_t dtype) {
    cnrtRet_t status = CNRT_RET_SUCCESS;
    struct descriptor *descriptor = descriptor_of(handle, "cnrtSetDataTypeToParamDesc", &status);
    if (!descriptor) return status;
    descriptor->dtype = dtype;
    cn_drop(&descriptor->object);
    return status;
}

static size_t elements(const struct descriptor *descriptor) {
    size_t number = descriptor->dim_count > 0;
    for (int i = 0; i < descriptor->dim_count; i++)
        if (__builtin_mul_overflow(number, (size_t)descriptor->dims[i], &number)) return SIZE_MAX / 16;
    return number < SIZE_MAX / 16 ? number : SIZE_MAX / 16;
}

EXPORT cnrtRet_t cnrtGetParamElementNum(cnrtParamDesc_t handle, size_t *number) {
    static const char call[] = "cnrtGetParamElementNum";
    cnrtRet_t status = CNRT_RET_SUCCESS;
    if (!number) return cn_fail(CNRT_RET_ERR_INVALID, call, "a null pointer");
    struct descriptor *descriptor = descriptor_of(handle, call, &status);
    if (!descriptor) return status;
    *number = elements(descriptor);
    cn_drop(&descriptor->object);
    return status;
}

EXPORT cnrtRet_t cnrtGetParamDescSize(cnrtParamDesc_t handle, int64_t *size) {
    static const char call[] = "cnrtGetParamDescSize";
    cnrtRet_t status = CNRT_RET_SUCCESS;
    if (!size) return cn_fail(CNRT_RET_ERR_INVALID, call, "a null pointer");
    struct descriptor *descriptor = descriptor_of(handle, call, &status);
    if (!descriptor) return status;
    *size = (int64_t)elements(descriptor) * cnrtDataTypeSize(descriptor->dtype);
    cn_drop(&descriptor->object);
    return status;
}

EXPORT cnrtRet_t cnrtGetShapeFromParamDesc(cnrtParamDesc_t handle, int **dims, int *count) {
    static const char call[] = "cnrtGetShapeFromParamDesc";
    cnrtRet_t status = CNRT_RET_SUCCESS;
    if (!dims || !count) return cn_fail(CNRT_RET_ERR_INVALID, call, "a null pointer");
    struct descriptor *descriptor = descriptor_of(handle, call, &status);
    if (!descriptor) return status;
    int *made = malloc(MOST_DIMS * sizeof *made);
    if (made) {
        memcpy(made, descriptor->dims, sizeof descriptor->dims);
        *dims = made; /* the caller's to free */
        *count = descriptor->dim_count;
    } else {
        status = cn_fail(CNRT_RET_ERR_NOMEM, call, "out of memory");
    }
    cn_drop(&descriptor->object);
    return status;
}

EXPORT cnrtRet_t cnrtGetNameFromParamDesc(cnrtParamDesc_t handle, char **name, int *size) {
    static const char call[] = "cnrtGetNameFromParamDesc";
    cnrtRet_t status = CNRT_RET_SUCCESS;
    if (!name || !size) return cn_fail(CNRT_RET_ERR_INVALID, call, "a null pointer");
    struct descriptor *descriptor = descriptor_of(handle, call, &status);
    if (!descriptor) return status;
    char *copy = strdup(descriptor->name ? descriptor->name : "");
    if (copy) {
        *name = copy; /* the caller's to free */
        *size = (int)strlen(copy);
    } else {
        status = cn_fail(CNRT_RET_ERR_NOMEM, call, "out of memory");
    }
    cn_drop(&descriptor->object);
    return status;
}

EXPORT cnrtRet_t cnrtGetDataTypeFromParamDesc(cnrtParamDesc_t handle, cnrtDataType_t *dtype) {
    static const char call[] = "cnrtGetDataTypeFromParamDesc";
    cnrtRet_t status = CNRT_RET_SUCCESS;
    if (!dtype) return cn_fail(CNRT_RET_ERR_INVALID, call, "a null pointer");
    struct descriptor *descriptor = descriptor_of(handle, call, &status);
    if (!descriptor) return status;
    *dtype = descriptor->dtype;
    cn_drop(&descriptor->object);
    return status;
}

EXPORT cnrtRet_t cnrtGetDimOrderFromParamDesc(cnrtParamDesc_t handle, cnrtDimOrder_t *order) {
    static const char call[] = "cnrtGetDimOrderFromParamDesc";
    cnrtRet_t status = CNRT_RET_SUCCESS;
    if (!order) return cn_fail(CNRT_RET_ERR_INVALID, call, "a null pointer");
    struct descriptor *descriptor = descriptor_of(handle, call, &status);
    if (!descriptor) return status;
    *order = descriptor->order;
    cn_drop(&descriptor->object);
    return status;
}

EXPORT cnrtRet_t cnrtGetIndexFromParamDescArrayByName(int *index, cnrtParamDescArray_t handles, int count, const char *name) {
    static const char call[] = "cnrtGetIndexFromParamDescArrayByName";
    if (!index || !handles || !name) return cn_fail(CNRT_RET_ERR_INVALID, call, "a null pointer");
    for (int i = 0; i < count; i++) {
        cnrtRet_t status = CNRT_RET_SUCCESS;
        struct descriptor *descriptor = descriptor_of(handles[i], call, &status);
        if (!descriptor) return status;
        int same = descriptor->name && !strcmp(descriptor->name, name);
        cn_drop(&descriptor->object);
        if (!same) continue;
        *index = i;
        return CNRT_RET_SUCCESS;
    }
    return cn_fail(CNRT_RET_ERR_NO_EXIST, call, "no descriptor has that name");
}

EXPORT cnrtRet_t cnrtGetParamDescFromParamDescArrayByName(cnrtParamDesc_t *handle, cnrtParamDescArray_t handles, int count,
                                                          const char *name) {
    int index;
    if (!handle) return cn_fail(CNRT_RET_ERR_INVALID, "cnrtGetParamDescFromParamDescArrayByName", "a null pointer");
    cnrtRet_t status = cnrtGetIndexFromParamDescArrayByName(&index, handles, count, name);
    if (status == CNRT_RET_SUCCESS) *handle = handles[index];
    return status;
}

/* By name --------------------------------------------------------------------------------------------------------------------- */

/* A port of a function, and its index among the inputs or the outputs. */
static cnrtRet_t port_by_name(const char *call, cnrtFunction_t handle, const char *name, const void *out, struct cam_port *port, int *index) {
    cnrtRet_t status = CNRT_RET_SUCCESS;
    if (!name || !out) return cn_fail(CNRT_RET_ERR_INVALID, call, "a null pointer");
    struct function *function = fn_get(handle, call, &status);
    if (!function) return status;
    int at = fn_port(function, name), inputs = (int)function->compiled->function.inputs;
    if (at < 0) {
        status = cn_fail(CNRT_RET_ERR_NO_EXIST, call, "no input or output has that name");
    } else {
        *port = function->compiled->ports[at].port;
        *index = at < inputs ? at : at - inputs;
    }
    cn_drop(&function->object);
    return status;
}

EXPORT cnrtRet_t cnrtGetParamIndexByName(cnrtFunction_t function, const char *name, int *index) {
    struct cam_port port;
    int found;
    cnrtRet_t status = port_by_name("cnrtGetParamIndexByName", function, name, index, &port, &found);
    if (status == CNRT_RET_SUCCESS) *index = found;
    return status;
}

EXPORT cnrtRet_t cnrtGetSupportedParamDimNumberByName(cnrtFunction_t function, const char *name, int *count) {
    struct cam_port port;
    int found;
    cnrtRet_t status = port_by_name("cnrtGetSupportedParamDimNumberByName", function, name, count, &port, &found);
    if (status == CNRT_RET_SUCCESS) *count = 4;
    return status;
}

EXPORT cnrtRet_t cnrtGetSupportedParamShapeByName(cnrtFunction_t function, const char *name, int *dims) {
    struct cam_port port;
    int found;
    cnrtRet_t status = port_by_name("cnrtGetSupportedParamShapeByName", function, name, dims, &port, &found);
    if (status != CNRT_RET_SUCCESS) return status;
    dims[0] = (int)port.n, dims[1] = (int)port.h, dims[2] = (int)port.w, dims[3] = (int)port.c;
    return status;
}

EXPORT cnrtRet_t cnrtGetSupportedParamDataTypeByName(cnrtFunction_t function, const char *name, cnrtDataType_t *dtype) {
    struct cam_port port;
    int found;
    cnrtRet_t status = port_by_name("cnrtGetSupportedParamDataTypeByName", function, name, dtype, &port, &found);
    if (status == CNRT_RET_SUCCESS) *dtype = (cnrtDataType_t)port.dtype;
    return status;
}

EXPORT cnrtRet_t cnrtGetSupportedParamLayoutByName(cnrtFunction_t function, const char *name, cnrtDimOrder_t *order) {
    struct cam_port port;
    int found;
    cnrtRet_t status = port_by_name("cnrtGetSupportedParamLayoutByName", function, name, order, &port, &found);
    if (status == CNRT_RET_SUCCESS) *order = CNRT_NHWC;
    return status;
}

/* Shapes are fixed here: inputs must have theirs, outputs get theirs. */
EXPORT cnrtRet_t cnrtInferFunctionOutputShape(cnrtFunction_t handle, int input_count, cnrtParamDescArray_t inputs, int output_count,
                                              cnrtParamDescArray_t outputs) {
    static const char call[] = "cnrtInferFunctionOutputShape";
    cnrtRet_t status = CNRT_RET_SUCCESS;
    if (!inputs || !outputs) return cn_fail(CNRT_RET_ERR_INVALID, call, "a null pointer");
    struct function *function = fn_get(handle, call, &status);
    if (!function) return status;
    const struct cam_function *compiled = &function->compiled->function;
    if (input_count != (int)compiled->inputs || output_count != (int)compiled->outputs)
        status = cn_fail(CNRT_RET_ERR_INVALID, call, "the function has other numbers of inputs or outputs");
    for (int i = 0; status == CNRT_RET_SUCCESS && i < input_count + output_count; i++) {
        const struct cam_port *port = &function->compiled->ports[i].port;
        int dims[4] = {(int)port->n, (int)port->h, (int)port->w, (int)port->c};
        cnrtParamDesc_t one = i < input_count ? inputs[i] : outputs[i - input_count];
        struct descriptor *descriptor = descriptor_of(one, call, &status);
        if (!descriptor) break;
        if (i < input_count && (descriptor->dim_count != 4 || memcmp(descriptor->dims, dims, sizeof dims)))
            status = cn_fail(CNRT_RET_ERR_RESHAPE, call, "the model was made for another shape of its input");
        if (i >= input_count) {
            status = cnrtSetShapeToParamDesc(one, dims, 4);
            descriptor->dtype = (cnrtDataType_t)port->dtype;
        }
        cn_drop(&descriptor->object);
    }
    cn_drop(&function->object);
    return status;
}
