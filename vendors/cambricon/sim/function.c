/* Functions of models, and what is known of their inputs and outputs. */
#include "model.h"

#include <stdlib.h>
#include <string.h>

/* Functions ------------------------------------------------------------------------------------------------------------------- */

static void clear(struct function *function) {
    if (function->model) cn_drop(&function->model->object);
    free(function->sizes);
    free(function->dtypes);
    function->model = NULL;
    function->sizes = NULL;
    function->dtypes = NULL;
}

static void destroy_function(struct cn_object *object) {
    clear((struct function *)object);
    free(object);
}

/* Once, and before anybody else has the handle: what an object says does not change afterwards. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static cnrtRet_t extract(const char *call, struct function *function, struct model *model, const struct cam_model_function *compiled) {
    uint32_t count = compiled->function.inputs + compiled->function.outputs;
    int64_t *sizes = calloc(count, sizeof *sizes);
    cnrtDataType_t *dtypes = calloc(count, sizeof *dtypes);
    cnrtRet_t status = CNRT_RET_SUCCESS;
    pthread_mutex_lock(&lock);
    if (function->model)
        status = CNRT_RET_ERR_EXIST;
    else if (!sizes || !dtypes)
        status = CNRT_RET_ERR_NOMEM;
    if (status == CNRT_RET_SUCCESS) {
        for (uint32_t i = 0; i < count; i++) {
            sizes[i] = (int64_t)(compiled->ports[i].picture * compiled->ports[i].port.n);
            dtypes[i] = (cnrtDataType_t)compiled->ports[i].port.dtype;
        }
        function->sizes = sizes;
        function->dtypes = dtypes;
        function->compiled = compiled;
        cn_hold(&model->object);
        function->model = model;
    }
    pthread_mutex_unlock(&lock);
    if (status == CNRT_RET_SUCCESS) return status;
    free(sizes);
    free(dtypes);
    return cn_fail(status, call, status == CNRT_RET_ERR_EXIST ? "something was extracted into it before" : "out of memory");
}

EXPORT cnrtRet_t cnrtCreateFunction(cnrtFunction_t *handle) {
    static const char call[] = "cnrtCreateFunction";
    if (!handle) return cn_fail(CNRT_RET_ERR_INVALID, call, "a null pointer");
    struct function *function = calloc(1, sizeof *function);
    *handle = function ? cn_put(&function->object, CN_FUNCTION, destroy_function) : NULL;
    return *handle ? CNRT_RET_SUCCESS : cn_fail(CNRT_RET_ERR_NOMEM, call, "out of memory");
}

EXPORT cnrtRet_t cnrtDestroyFunction(cnrtFunction_t handle) {
    if (!cn_remove(handle, CN_FUNCTION)) return CNRT_RET_SUCCESS;
    return cn_fail(CNRT_RET_ERR_INVALID, "cnrtDestroyFunction", "no such function, or it was destroyed");
}

EXPORT cnrtRet_t cnrtExtractFunction(cnrtFunction_t *handle, cnrtModel_t model_handle, const char *symbol) {
    static const char call[] = "cnrtExtractFunction";
    if (!handle || !symbol) return cn_fail(CNRT_RET_ERR_INVALID, call, "a null pointer");
    struct function *function = cn_get(*handle, CN_FUNCTION);
    struct model *model = cn_get(model_handle, CN_MODEL);
    cnrtRet_t status = CNRT_RET_SUCCESS;
    if (!function || !model) {
        status = cn_fail(CNRT_RET_ERR_INVALID, call, "no function of cnrtCreateFunction, or no such model");
    } else {
        uint32_t i = 0;
        while (i < model->file->header.functions && strcmp(model->file->functions[i].name, symbol)) i++;
        if (i == model->file->header.functions)
            status = cn_fail(CNRT_RET_ERR_NO_EXIST, call, "the model has no function of that name");
        else
            status = extract(call, function, model, &model->file->functions[i]);
    }
    if (function) cn_drop(&function->object);
    if (model) cn_drop(&model->object);
    return status;
}

cnrtFunction_t fn_make(struct model *model, const struct cam_model_function *compiled) {
    cnrtFunction_t handle = NULL;
    if (cnrtCreateFunction(&handle) != CNRT_RET_SUCCESS) return NULL;
    struct function *function = cn_get(handle, CN_FUNCTION);
    cnrtRet_t status = extract("a function", function, model, compiled);
    cn_drop(&function->object);
    if (status == CNRT_RET_SUCCESS) return handle;
    cnrtDestroyFunction(handle);
    return NULL;
}

/* Programs call it on what cnrtCreateFunction made as well as on a bare pointer. */
EXPORT cnrtRet_t cnrtCopyFunction(cnrtFunction_t *handle, cnrtFunction_t source_handle) {
    static const char call[] = "cnrtCopyFunction";
    cnrtRet_t status = CNRT_RET_SUCCESS;
    if (!handle) return cn_fail(CNRT_RET_ERR_INVALID, call, "a null pointer");
    struct function *source = fn_get(source_handle, call, &status);
    if (!source) return status;
    struct function *function = cn_get(*handle, CN_FUNCTION);
    if (function) {
        status = extract(call, function, source->model, source->compiled);
        cn_drop(&function->object);
    } else if (!(*handle = fn_make(source->model, source->compiled))) {
        status = CNRT_RET_ERR_NOMEM;
    }
    cn_drop(&source->object);
    return status;
}

struct function *fn_get(cnrtFunction_t handle, const char *call, cnrtRet_t *status) {
    struct function *function = cn_get(handle, CN_FUNCTION);
    pthread_mutex_lock(&lock);
    int extracted = function && function->model;
    pthread_mutex_unlock(&lock);
    if (extracted) return function;
    *status = cn_fail(CNRT_RET_ERR_INVALID, call, function ? "nothing was extracted into the function" : "no such function");
    if (function) cn_drop(&function->object);
    return NULL;
}

int fn_port(const struct function *function, const char *name) {
    uint32_t count = function->compiled->function.inputs + function->compiled->function.outputs;
    for (uint32_t i = 0; i < count; i++)
        if (!strcmp(function->compiled->ports[i].name, name)) return (int)i;
    return -1;
}

EXPORT cnrtRet_t cnrtGetFunctionMemUsed(cnrtFunction_t handle, int64_t *bytes) {
    static const char call[] = "cnrtGetFunctionMemUsed";
    cnrtRet_t status = CNRT_RET_SUCCESS;
    if (!bytes) return cn_fail(CNRT_RET_ERR_INVALID, call, "a null pointer");
    struct function *function = fn_get(handle, call, &status);
    if (!function) return status;
    *bytes = fn_memory(function->compiled);
    cn_drop(&function->object);
    return status;
}

EXPORT cnrtRet_t cnrtQueryCacheMode(cnrtFunction_t handle, bool *cache_mode, int *number) {
    static const char call[] = "cnrtQueryCacheMode";
    cnrtRet_t status = CNRT_RET_SUCCESS;
    if (!cache_mode || !number) return cn_fail(CNRT_RET_ERR_INVALID, call, "a null pointer");
    struct function *function = fn_get(handle, call, &status);
    if (!function) return status;
    *cache_mode = function->compiled->function.batch_count > 1;
    *number = (int)function->compiled->function.batch_count;
    cn_drop(&function->object);
    return status;
}

EXPORT cnrtRet_t cnrtQueryBatches(cnrtFunction_t handle, int *batches) {
    static const char call[] = "cnrtQueryBatches";
    cnrtRet_t status = CNRT_RET_SUCCESS;
    if (!batches) return cn_fail(CNRT_RET_ERR_INVALID, call, "a null pointer");
    struct function *function = fn_get(handle, call, &status);
    if (!function) return status;
    for (uint32_t i = 0; i < function->compiled->function.batch_count; i++) batches[i] = (int)function->compiled->function.batches[i];
    cn_drop(&function->object);
    return status;
}

/* Inputs and outputs ---------------------------------------------------------------------------------------------------------- */

static cnrtRet_t list(const char *call, cnrtFunction_t handle, int outputs, int64_t **sizes, cnrtDataType_t **dtypes, int *number) {
    cnrtRet_t status = CNRT_RET_SUCCESS;
    if ((!sizes && !dtypes) || !number) return cn_fail(CNRT_RET_ERR_INVALID, call, "a null pointer");
    struct function *function = fn_get(handle, call, &status);
    if (!function) return status;
    uint32_t skip = outputs ? function->compiled->function.inputs : 0;
    if (sizes) *sizes = function->sizes + skip;
    if (dtypes) *dtypes = function->dtypes + skip;
    *number = (int)(outputs ? function->compiled->function.outputs : function->compiled->function.inputs);
    cn_drop(&function->object);
    return status;
}

EXPORT cnrtRet_t cnrtGetInputDataSize(int64_t **sizes, int *number, cnrtFunction_t function) {
    return list("cnrtGetInputDataSize", function, 0, sizes, NULL, number);
}

EXPORT cnrtRet_t cnrtGetOutputDataSize(int64_t **sizes, int *number, cnrtFunction_t function) {
    return list("cnrtGetOutputDataSize", function, 1, sizes, NULL, number);
}

EXPORT cnrtRet_t cnrtGetInputDataType(cnrtDataType_t **dtypes, int *number, cnrtFunction_t function) {
    return list("cnrtGetInputDataType", function, 0, NULL, dtypes, number);
}

EXPORT cnrtRet_t cnrtGetOutputDataType(cnrtDataType_t **dtypes, int *number, cnrtFunction_t function) {
    return list("cnrtGetOutputDataType", function, 1, NULL, dtypes, number);
}

static cnrtRet_t shape(const char *call, cnrtFunction_t handle, int outputs, int index, int **dims, int *number) {
    cnrtRet_t status = CNRT_RET_SUCCESS;
    if (!dims || !number) return cn_fail(CNRT_RET_ERR_INVALID, call, "a null pointer");
    struct function *function = fn_get(handle, call, &status);
    if (!function) return status;
    const struct cam_function *compiled = &function->compiled->function;
    int *made = NULL;
    if (index < 0 || (uint32_t)index >= (outputs ? compiled->outputs : compiled->inputs)) {
        status = cn_fail(CNRT_RET_ERR_INVALID, call, "no such index");
    } else if (!(made = malloc(4 * sizeof *made))) {
        status = cn_fail(CNRT_RET_ERR_NOMEM, call, "out of memory");
    } else {
        const struct cam_port *port = &function->compiled->ports[(uint32_t)index + (outputs ? compiled->inputs : 0)].port;
        const uint32_t nhwc[4] = {port->n, port->h, port->w, port->c};
        for (int i = 0; i < 4; i++) made[i] = (int)nhwc[i];
        *dims = made; /* the caller's to free */
        *number = 4;
    }
    cn_drop(&function->object);
    return status;
}

EXPORT cnrtRet_t cnrtGetInputDataShape(int **dims, int *number, int index, cnrtFunction_t function) {
    return shape("cnrtGetInputDataShape", function, 0, index, dims, number);
}

EXPORT cnrtRet_t cnrtGetOutputDataShape(int **dims, int *number, int index, cnrtFunction_t function) {
    return shape("cnrtGetOutputDataShape", function, 1, index, dims, number);
}

EXPORT cnrtRet_t cnrtDestroyInputAndOutputNames(char **inputs, char **outputs, int input_number, int output_number) {
    for (int i = 0; inputs && i < input_number; i++) free(inputs[i]);
    for (int i = 0; outputs && i < output_number; i++) free(outputs[i]);
    free(inputs);
    free(outputs);
    return CNRT_RET_SUCCESS;
}

static char **names(const struct cam_model_port *ports, uint32_t count) {
    char **made = calloc(count, sizeof *made);
    int done = made != NULL;
    for (uint32_t i = 0; done && i < count; i++) done = (made[i] = strdup(ports[i].name)) != NULL;
    if (done) return made;
    for (uint32_t i = 0; made && i < count; i++) free(made[i]);
    free(made);
    return NULL;
}

EXPORT cnrtRet_t cnrtGetInputAndOutputNamesFromFunction(cnrtFunction_t handle, char ***inputs, char ***outputs, int *input_number,
                                                        int *output_number) {
    static const char call[] = "cnrtGetInputAndOutputNamesFromFunction";
    cnrtRet_t status = CNRT_RET_SUCCESS;
    if (!inputs || !outputs || !input_number || !output_number) return cn_fail(CNRT_RET_ERR_INVALID, call, "a null pointer");
    struct function *function = fn_get(handle, call, &status);
    if (!function) return status;
    const struct cam_function *compiled = &function->compiled->function;
    char **first = names(function->compiled->ports, compiled->inputs);
    char **second = names(function->compiled->ports + compiled->inputs, compiled->outputs);
    if (first && second) {
        *inputs = first;
        *outputs = second;
        *input_number = (int)compiled->inputs;
        *output_number = (int)compiled->outputs;
    } else {
        cnrtDestroyInputAndOutputNames(first, second, first ? (int)compiled->inputs : 0, second ? (int)compiled->outputs : 0);
        status = cn_fail(CNRT_RET_ERR_NOMEM, call, "out of memory");
    }
    cn_drop(&function->object);
    return status;
}
