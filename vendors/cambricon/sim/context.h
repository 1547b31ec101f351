/* Runtime contexts of the simulated libcnrt. */
#ifndef PYASC_SIM_CONTEXT_H
#define PYASC_SIM_CONTEXT_H

#include "model.h"

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

/* The context of a handle with one more reference; NULL after a failure that is told in `status`. */
struct context *cx_get(cnrtRuntimeContext_t handle, const char *call, cnrtRet_t *status);

#endif
