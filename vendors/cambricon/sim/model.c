/* Offline models. */
#include "model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MOST_FILE_BYTES (1ll << 31)

/* Models ---------------------------------------------------------------------------------------------------------------------- */

static void destroy_model(struct cn_object *object) {
    struct model *model = (struct model *)object;
    cam_unload(model->file);
    free(model);
}

static cnrtRet_t make_model(const char *call, cnrtModel_t *handle, const void *data, size_t size) {
    char reason[256] = "";
    struct model *model = calloc(1, sizeof *model);
    if (!model) return cn_fail(CNRT_RET_ERR_NOMEM, call, "out of memory");
    model->file = cam_load(data, size, reason, sizeof reason);
    if (!model->file) {
        free(model);
        int memory = strstr(reason, "out of memory") != NULL;
        return cn_fail(memory ? CNRT_RET_ERR_NOMEM : CNRT_RET_ERR_INVALID, call, reason);
    }
    *handle = cn_put(&model->object, CN_MODEL, destroy_model);
    return *handle ? CNRT_RET_SUCCESS : cn_fail(CNRT_RET_ERR_NOMEM, call, "out of memory");
}

/* A whole file, or its first `most` bytes, in memory that the caller frees; NULL after a failure that is told in `status`. */
static uint8_t *read_file(const char *call, const char *path, size_t most, size_t *size, long long *whole, cnrtRet_t *status) {
    struct stat found;
    FILE *file = fopen(path, "rbe");
    if (!file || fstat(fileno(file), &found) || !S_ISREG(found.st_mode) || found.st_size > MOST_FILE_BYTES) {
        if (file) fclose(file);
        *status = cn_fail(CNRT_RET_ERR_SYS, call, "the file cannot be read, or is larger than 2 GiB");
        return NULL;
    }
    *whole = (long long)found.st_size;
    size_t wanted = (size_t)found.st_size < most ? (size_t)found.st_size : most;
    uint8_t *data = malloc(wanted ? wanted : 1);
    if (!data) *status = cn_fail(CNRT_RET_ERR_NOMEM, call, "out of memory");
    *size = data ? fread(data, 1, wanted, file) : 0;
    fclose(file);
    return data;
}

EXPORT cnrtRet_t cnrtLoadModel(cnrtModel_t *handle, const char *path) {
    static const char call[] = "cnrtLoadModel";
    if (!handle || !path) return cn_fail(CNRT_RET_ERR_INVALID, call, "a null pointer");
    *handle = NULL;
    cnrtRet_t status = CNRT_RET_SUCCESS;
    size_t size = 0;
    long long whole = 0;
    uint8_t *data = read_file(call, path, SIZE_MAX, &size, &whole, &status);
    if (data) status = make_model(call, handle, data, size);
    free(data);
    return status;
}

EXPORT cnrtRet_t cnrtLoadModelFromMem(cnrtModel_t *handle, char *data) {
    static const char call[] = "cnrtLoadModelFromMem";
    if (!handle || !data) return cn_fail(CNRT_RET_ERR_INVALID, call, "a null pointer");
    *handle = NULL;
    /* The call has no size: the file's own word is all there is. */
    size_t size = cam_is_model(data, 4) ? cam_size(data, CAM_HEAD + sizeof(struct cam_header)) : 0;
    return size ? make_model(call, handle, data, size) : cn_fail(CNRT_RET_ERR_INVALID, call, "not a model of Cambricon for the simulator");
}

EXPORT cnrtRet_t cnrtLoadModelFromMem_V2(cnrtModel_t *handle, char *data, bool reuse) {
    (void)reuse; /* it saves a copy on the real one; here programs are unpacked anyway */
    return cnrtLoadModelFromMem(handle, data);
}

EXPORT cnrtRet_t cnrtUnloadModel(cnrtModel_t handle) {
    if (!cn_remove(handle, CN_MODEL)) return CNRT_RET_SUCCESS;
    return cn_fail(CNRT_RET_ERR_INVALID, "cnrtUnloadModel", "no such model, or it was unloaded");
}

EXPORT cnrtRet_t cnrtGetModelSize(const char *path, int *size) {
    static const char call[] = "cnrtGetModelSize";
    if (!path || !size) return cn_fail(CNRT_RET_ERR_INVALID, call, "a null pointer");
    cnrtRet_t status = CNRT_RET_SUCCESS;
    size_t some = 0;
    long long whole = 0;
    uint8_t *data = read_file(call, path, CAM_HEAD + sizeof(struct cam_header), &some, &whole, &status);
    if (data && (!cam_is_model(data, some) || whole > INT32_MAX))
        status = cn_fail(CNRT_RET_ERR_INVALID, call, "not a model of Cambricon");
    else if (data)
        *size = (int)whole;
    free(data);
    return status;
}

EXPORT cnrtRet_t cnrtGetModelLevelFromFile(const char *path, int *level) {
    int size;
    if (!level) return cn_fail(CNRT_RET_ERR_INVALID, "cnrtGetModelLevelFromFile", "a null pointer");
    cnrtRet_t status = cnrtGetModelSize(path, &size);
    if (status == CNRT_RET_SUCCESS) *level = 0;
    return status;
}

static struct model *model_of(cnrtModel_t handle, const void *out, const char *call, cnrtRet_t *status) {
    struct model *model = out ? cn_get(handle, CN_MODEL) : NULL;
    if (!model) *status = cn_fail(CNRT_RET_ERR_INVALID, call, "a null pointer, or no such model");
    return model;
}

EXPORT cnrtRet_t cnrtQueryCoreVersion(cnrtModel_t handle, cnrtCoreVersion_t *version) {
    cnrtRet_t status = CNRT_RET_SUCCESS;
    struct model *model = model_of(handle, version, "cnrtQueryCoreVersion", &status);
    if (!model) return status;
    *version = (cnrtCoreVersion_t)model->file->header.core_version;
    cn_drop(&model->object);
    return status;
}

EXPORT cnrtRet_t cnrtQueryModelParallelism(cnrtModel_t handle, int *cores) {
    cnrtRet_t status = CNRT_RET_SUCCESS;
    struct model *model = model_of(handle, cores, "cnrtQueryModelParallelism", &status);
    if (!model) return status;
    *cores = (int)model->file->header.parallelism;
    cn_drop(&model->object);
    return status;
}

EXPORT cnrtRet_t cnrtQueryModelStackSize(cnrtModel_t handle, uint64_t *mib) {
    cnrtRet_t status = CNRT_RET_SUCCESS;
    struct model *model = model_of(handle, mib, "cnrtQueryModelStackSize", &status);
    if (!model) return status;
    *mib = model->file->header.stack_mib;
    cn_drop(&model->object);
    return status;
}

EXPORT cnrtRet_t cnrtQueryModelLocalMemSize(cnrtModel_t handle, uint64_t *mib) {
    cnrtRet_t status = CNRT_RET_SUCCESS;
    struct model *model = model_of(handle, mib, "cnrtQueryModelLocalMemSize", &status);
    if (!model) return status;
    *mib = model->file->header.local_mib;
    cn_drop(&model->object);
    return status;
}

int64_t fn_memory(const struct cam_model_function *function) {
    return (int64_t)(npu_weight_bytes(function->program) + npu_scratch_bytes(function->program));
}

EXPORT cnrtRet_t cnrtGetModelMemUsed(cnrtModel_t handle, int64_t *bytes) {
    cnrtRet_t status = CNRT_RET_SUCCESS;
    struct model *model = model_of(handle, bytes, "cnrtGetModelMemUsed", &status);
    if (!model) return status;
    *bytes = 0;
    for (uint32_t i = 0; i < model->file->header.functions; i++) *bytes += fn_memory(&model->file->functions[i]);
    cn_drop(&model->object);
    return status;
}

EXPORT cnrtRet_t cnrtGetFunctionNumber(cnrtModel_t handle, int *number) {
    cnrtRet_t status = CNRT_RET_SUCCESS;
    struct model *model = model_of(handle, number, "cnrtGetFunctionNumber", &status);
    if (!model) return status;
    *number = (int)model->file->header.functions;
    cn_drop(&model->object);
    return status;
}

EXPORT cnrtRet_t cnrtGetFunctionSymbol(cnrtModel_t handle, int index, char **symbol, int *size) {
    static const char call[] = "cnrtGetFunctionSymbol";
    cnrtRet_t status = CNRT_RET_SUCCESS;
    struct model *model = model_of(handle, symbol, call, &status);
    if (!model) return status;
    char *name = NULL;
    if (index < 0 || (uint32_t)index >= model->file->header.functions)
        status = cn_fail(CNRT_RET_ERR_INVALID, call, "no such function");
    else if (!(name = strdup(model->file->functions[index].name)))
        status = cn_fail(CNRT_RET_ERR_NOMEM, call, "out of memory");
    cn_drop(&model->object);
    if (!name) return status;
    *symbol = name;
    if (size) *size = (int)strlen(name);
    return status;
}
