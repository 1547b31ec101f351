/* What the files of the simulated libcnrt share. */
#ifndef PYASC_SIM_RUNTIME_H
#define PYASC_SIM_RUNTIME_H

#include "../../sim/device.h"
#include "../cnrt.h"

#include <pthread.h>
#include <stdatomic.h>

#define EXPORT __attribute__((visibility("default")))

struct npu_device *cn_device(void);

/* Status (status.c) ----------------------------------------------------------------------------------------------------------- */

/* The version that this library says it has: 41001, or the setting `api`. */
unsigned int cn_version(void);
/* Remember a failure for cnrtGetLastErr, tell its reason on stderr, and give the number that this version has for it. */
cnrtRet_t cn_fail(cnrtRet_t code, const char *call, const char *reason);
/* The number of this version for a code of 4.10. */
cnrtRet_t cn_number(cnrtRet_t code);

/* Handles (objects.c) --------------------------------------------------------------------------------------------------------- */

enum cn_kind { CN_MODEL = 1, CN_FUNCTION, CN_CONTEXT, CN_QUEUE, CN_NOTIFIER, CN_PARAM, CN_QUANTIZED, CN_PARAM_LIST, CN_KINDS };

/* What a handle stands for: it lives until its handle is removed and nobody uses it any more. */
struct cn_object {
    enum cn_kind kind;
    _Atomic int references;
    void (*destroy)(struct cn_object *object);
};

/* A handle for a new object, which has one reference, the handle's; NULL when memory is short, and the object is destroyed. */
void *cn_put(struct cn_object *object, enum cn_kind kind, void (*destroy)(struct cn_object *object));
/* The object with one more reference; NULL when the handle is none of that kind, or was destroyed. */
void *cn_get(const void *handle, enum cn_kind kind);
void cn_hold(struct cn_object *object);
void cn_drop(struct cn_object *object);
/* Take a handle back: 0, or -1 when it is none. */
int cn_remove(const void *handle, enum cn_kind kind);

/* Devices (devices.c) --------------------------------------------------------------------------------------------------------- */

#define CN_FAKE_ORDINAL (-1)
#define CN_REAL_DEVICE 0x0220000000000100ull /* no part of it is an ordinal that exists: mixing them up shows */
#define CN_FAKE_DEVICE 0x02200000FFFFFF00ull
/* Success when cnrtInit was called, this thread has a current device, and that is there; else the failure, which is told. */
cnrtRet_t cn_ready(const char *call);
/* Success when the device is there and free. */
cnrtRet_t cn_present(const char *call);
int cn_initialised(void);
int cn_on_fake_device(void);
/* Give this thread another current device, 0 for none; the one before. */
cnrtDev_t cn_swap_current(cnrtDev_t device);
unsigned int cn_stack_mib(void);
/* The core that the chip has. */
cnrtCoreVersion_t cn_core_version(void);
/* MLU220 has one channel. */
int cn_channel_exists(cnrtChannelType_t channel);

/* Memory (memory.c) ----------------------------------------------------------------------------------------------------------- */

/* Where `size` bytes of device memory are; NULL when they are none. */
void *cn_memory(const void *pointer, size_t size);

/* Queues (queue.c) ------------------------------------------------------------------------------------------------------------ */

struct cn_queue {
    struct cn_object object;
    struct npu_queue *lane;
    _Atomic unsigned int error; /* of work that failed and was not told yet */
};
/* The queue of a handle, or the default one for NULL; give it to cn_leave. NULL after a failure that is told in `status`. */
struct cn_queue *cn_enter(cnrtQueue_t queue, const char *call, cnrtRet_t *status);
void cn_leave(struct cn_queue *queue);
/* From the work of a task: the first failure is kept until it is asked for. */
void cn_queue_failed(struct cn_queue *queue, cnrtRet_t code, const char *reason);

#endif
