/* Models and functions of the simulated libcnrt. */
#ifndef PYASC_SIM_MODEL_H
#define PYASC_SIM_MODEL_H

#include "cambricon.h"
#include "runtime.h"

struct model {
    struct cn_object object;
    struct cam_model *file;
};

/* What cnrtCreateFunction makes; `model` is NULL until something is extracted into it. The arrays are what callers get of it. */
struct function {
    struct cn_object object;
    struct model *model;
    const struct cam_model_function *compiled;
    int64_t *sizes;         /* inputs, then outputs */
    cnrtDataType_t *dtypes; /* likewise */
};

/* An extracted function with one more reference; NULL after a failure that is told in `status`. */
struct function *fn_get(cnrtFunction_t handle, const char *call, cnrtRet_t *status);
/* A new function with that extracted into it; NULL when memory is short. */
cnrtFunction_t fn_make(struct model *model, const struct cam_model_function *compiled);
/* Bytes of device memory that a context of a function takes. */
int64_t fn_memory(const struct cam_model_function *compiled);
/* Index of a port by its name, inputs first; -1 when it has none. */
int fn_port(const struct function *function, const char *name);

#endif
