/* Queues and notifiers. */
#include "runtime.h"

#include <stdio.h>
#include <stdlib.h>

static struct cn_queue usual; /* what a NULL queue means; it is never destroyed */
static pthread_mutex_t usual_lock = PTHREAD_MUTEX_INITIALIZER;

/* Queues ---------------------------------------------------------------------------------------------------------------------- */

static void destroy_queue(struct cn_object *object) {
    struct cn_queue *queue = (struct cn_queue *)object;
    if (queue->lane) npu_queue_destroy(queue->lane);
    free(queue);
}

struct cn_queue *cn_enter(cnrtQueue_t handle, const char *call, cnrtRet_t *status) {
    struct cn_queue *queue = handle ? cn_get(handle, CN_QUEUE) : &usual;
    if (!queue) {
        *status = cn_fail(CNRT_RET_ERR_QUEUE, call, "no such queue, or it was destroyed");
    } else if (queue == &usual) {
        pthread_mutex_lock(&usual_lock);
        if (!usual.lane) usual.lane = npu_queue_create(cn_device());
        if (!usual.lane) queue = NULL;
        pthread_mutex_unlock(&usual_lock);
        if (!queue) *status = cn_fail(CNRT_RET_ERR_NOMEM, call, "no thread or memory for the default queue");
    }
    return queue;
}

void cn_leave(struct cn_queue *queue) {
    if (queue != &usual) cn_drop(&queue->object);
}

void cn_queue_failed(struct cn_queue *queue, cnrtRet_t code, const char *reason) {
    unsigned int none = CNRT_RET_SUCCESS;
    atomic_compare_exchange_strong(&queue->error, &none, (unsigned int)code);
    const char *quiet = getenv("PYASC_SIM_QUIET");
    if (!quiet || *quiet != '1') fprintf(stderr, "[simulated CNRT] work of a queue: %s\n", reason);
}

EXPORT cnrtRet_t cnrtCreateQueue(cnrtQueue_t *handle) {
    static const char call[] = "cnrtCreateQueue";
    if (!handle) return cn_fail(CNRT_RET_ERR_INVALID, call, "a null pointer");
    cnrtRet_t status = cn_ready(call);
    if (status != CNRT_RET_SUCCESS) return status;
    struct cn_queue *queue = calloc(1, sizeof *queue);
    if (queue && !(queue->lane = npu_queue_create(cn_device()))) {
        free(queue);
        queue = NULL;
    }
    *handle = queue ? cn_put(&queue->object, CN_QUEUE, destroy_queue) : NULL;
    if (!*handle) return cn_fail(CNRT_RET_ERR_NOMEM, call, "no thread or memory");
    return cn_on_fake_device() ? CNRT_RET_WARNING_FAKE_DEVICE : CNRT_RET_SUCCESS;
}

EXPORT cnrtRet_t cnrtDestroyQueue(cnrtQueue_t handle) {
    struct cn_queue *queue = cn_get(handle, CN_QUEUE);
    if (!queue || cn_remove(handle, CN_QUEUE)) {
        if (queue) cn_drop(&queue->object);
        return cn_fail(CNRT_RET_ERR_QUEUE, "cnrtDestroyQueue", "no such queue, or it was destroyed");
    }
    npu_queue_close(queue->lane); /* another thread may wait for it */
    cn_drop(&queue->object);
    return CNRT_RET_SUCCESS;
}

/* The failure of earlier work, told once. */
static cnrtRet_t told(struct cn_queue *queue, const char *call) {
    unsigned int code = atomic_exchange(&queue->error, CNRT_RET_SUCCESS);
    if (code != CNRT_RET_SUCCESS) return cn_fail((cnrtRet_t)code, call, "work that was queued before failed");
    if (npu_setting(cn_device(), NPU_SET_LOST)) return cn_fail(CNRT_RET_ERR_NODEV, call, "the device is gone");
    return CNRT_RET_SUCCESS;
}

EXPORT cnrtRet_t cnrtQueryQueue(cnrtQueue_t handle) {
    cnrtRet_t status = CNRT_RET_SUCCESS;
    struct cn_queue *queue = cn_enter(handle, "cnrtQueryQueue", &status);
    if (!queue) return status;
    int ended = npu_queue_wait(queue->lane, npu_queue_last(queue->lane), 0);
    status = ended ? told(queue, "cnrtQueryQueue") : CNRT_RET_ERR_NOT_READY;
    cn_leave(queue);
    return status;
}

EXPORT cnrtRet_t cnrtSyncQueue(cnrtQueue_t handle) {
    static const char call[] = "cnrtSyncQueue";
    cnrtRet_t status = CNRT_RET_SUCCESS;
    struct cn_queue *queue = cn_enter(handle, call, &status);
    if (!queue) return status;
    if (npu_take(cn_device(), NPU_SET_QUERY_TIMEOUT)) {
        status = cn_fail(CNRT_RET_ERR_TIMEOUT, call, "the device did not answer in time");
    } else {
        npu_queue_wait(queue->lane, npu_queue_last(queue->lane), -1);
        status = told(queue, call);
    }
    cn_leave(queue);
    return status;
}

EXPORT cnrtRet_t cnrtSyncDevice(void) {
    static const char call[] = "cnrtSyncDevice";
    cnrtRet_t status = cn_ready(call);
    if (status != CNRT_RET_SUCCESS) return status;
    npu_wait_all(cn_device());
    return CNRT_RET_SUCCESS;
}

/* Notifiers ------------------------------------------------------------------------------------------------------------------- */

struct notifier {
    struct cn_object object;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t placed; /* how often; only the last counts */
    int done;
    double time;            /* of the device */
    struct npu_queue *lane; /* while not done: where it is, and as which task */
    uint64_t task;
};

struct mark {
    struct notifier *notifier;
    struct npu_queue *lane;
    uint64_t placed;
};

static void destroy_notifier(struct cn_object *object) {
    struct notifier *notifier = (struct notifier *)object;
    pthread_cond_destroy(&notifier->changed);
    pthread_mutex_destroy(&notifier->lock);
    free(notifier);
}

static struct notifier *notifier_of(cnrtNotifier_t handle, const char *call, cnrtRet_t *status) {
    struct notifier *notifier = cn_get(handle, CN_NOTIFIER);
    if (!notifier) *status = cn_fail(CNRT_RET_ERR_NOTIFIER, call, "no such notifier, or it was destroyed");
    return notifier;
}

EXPORT cnrtRet_t cnrtCreateNotifier(cnrtNotifier_t *handle) {
    static const char call[] = "cnrtCreateNotifier";
    if (!handle) return cn_fail(CNRT_RET_ERR_INVALID, call, "a null pointer");
    cnrtRet_t status = cn_ready(call);
    if (status != CNRT_RET_SUCCESS) return status;
    struct notifier *notifier = calloc(1, sizeof *notifier);
    if (notifier) {
        pthread_mutex_init(&notifier->lock, NULL);
        pthread_cond_init(&notifier->changed, NULL);
    }
    *handle = notifier ? cn_put(&notifier->object, CN_NOTIFIER, destroy_notifier) : NULL;
    return *handle ? CNRT_RET_SUCCESS : cn_fail(CNRT_RET_ERR_NOMEM, call, "out of memory");
}

EXPORT cnrtRet_t cnrtDestroyNotifier(cnrtNotifier_t *handle) {
    static const char call[] = "cnrtDestroyNotifier";
    if (!handle) return cn_fail(CNRT_RET_ERR_INVALID, call, "a null pointer");
    if (cn_remove(*handle, CN_NOTIFIER)) return cn_fail(CNRT_RET_ERR_NOTIFIER, call, "no such notifier, or it was destroyed");
    *handle = NULL;
    return CNRT_RET_SUCCESS;
}

static void pass(void *context, int was_lost) {
    struct mark *mark = context;
    struct notifier *notifier = mark->notifier;
    double time = npu_queue_time(mark->lane);
    (void)was_lost;
    pthread_mutex_lock(&notifier->lock);
    if (notifier->placed == mark->placed) {
        notifier->done = 1;
        notifier->time = time;
        pthread_cond_broadcast(&notifier->changed);
    }
    pthread_mutex_unlock(&notifier->lock);
    cn_drop(&notifier->object);
    free(mark);
}

/* The notifier's lock is held while it is queued: its task ends after that, so the queue is there as long as it is not done. */
static cnrtRet_t place(struct notifier *notifier, struct cn_queue *queue, const char *call) {
    struct mark *mark = calloc(1, sizeof *mark);
    if (!mark) return cn_fail(CNRT_RET_ERR_NOMEM, call, "out of memory");
    cn_hold(&notifier->object);
    pthread_mutex_lock(&notifier->lock);
    *mark = (struct mark){notifier, queue->lane, notifier->placed + 1};
    uint64_t task = npu_enqueue(queue->lane, pass, mark, 0, 0);
    if (task) {
        notifier->placed++;
        notifier->done = 0;
        notifier->lane = queue->lane;
        notifier->task = task;
    }
    pthread_mutex_unlock(&notifier->lock);
    if (task) return CNRT_RET_SUCCESS;
    cn_drop(&notifier->object);
    free(mark);
    return cn_fail(CNRT_RET_ERR_NOMEM, call, "out of memory");
}

EXPORT cnrtRet_t cnrtPlaceNotifier(cnrtNotifier_t handle, cnrtQueue_t queue_handle) {
    static const char call[] = "cnrtPlaceNotifier";
    cnrtRet_t status = CNRT_RET_SUCCESS;
    struct notifier *notifier = notifier_of(handle, call, &status);
    if (!notifier) return status;
    struct cn_queue *queue = cn_enter(queue_handle, call, &status);
    if (queue) {
        status = place(notifier, queue, call);
        cn_leave(queue);
    }
    cn_drop(&notifier->object);
    return status;
}

EXPORT cnrtRet_t cnrtQueueWaitNotifier(cnrtNotifier_t handle, cnrtQueue_t queue_handle, unsigned int flag) {
    static const char call[] = "cnrtQueueWaitNotifier";
    (void)flag; /* reserved */
    cnrtRet_t status = CNRT_RET_SUCCESS;
    struct notifier *notifier = notifier_of(handle, call, &status);
    if (!notifier) return status;
    struct cn_queue *queue = cn_enter(queue_handle, call, &status);
    if (queue) {
        pthread_mutex_lock(&notifier->lock);
        int pending = notifier->placed && !notifier->done;
        if (pending && !npu_enqueue_after(queue->lane, notifier->lane, notifier->task))
            status = cn_fail(CNRT_RET_ERR_NOMEM, call, "out of memory");
        pthread_mutex_unlock(&notifier->lock);
        cn_leave(queue);
    }
    cn_drop(&notifier->object);
    return status;
}

EXPORT cnrtRet_t cnrtWaitNotifier(cnrtNotifier_t handle) {
    cnrtRet_t status = CNRT_RET_SUCCESS;
    struct notifier *notifier = notifier_of(handle, "cnrtWaitNotifier", &status);
    if (!notifier) return status;
    pthread_mutex_lock(&notifier->lock);
    while (notifier->placed && !notifier->done) pthread_cond_wait(&notifier->changed, &notifier->lock);
    pthread_mutex_unlock(&notifier->lock);
    cn_drop(&notifier->object);
    return status;
}

/* BUSY while work before it goes on, where a queue says NOT_READY. */
EXPORT cnrtRet_t cnrtQueryNotifier(cnrtNotifier_t handle) {
    cnrtRet_t status = CNRT_RET_SUCCESS;
    struct notifier *notifier = notifier_of(handle, "cnrtQueryNotifier", &status);
    if (!notifier) return status;
    pthread_mutex_lock(&notifier->lock);
    if (notifier->placed && !notifier->done) status = CNRT_RET_ERR_BUSY;
    pthread_mutex_unlock(&notifier->lock);
    cn_drop(&notifier->object);
    return status;
}

static cnrtRet_t passed(struct notifier *notifier, double *time) {
    pthread_mutex_lock(&notifier->lock);
    cnrtRet_t status = !notifier->placed ? CNRT_RET_ERR_CNDRV_FUNC_CALL : !notifier->done ? CNRT_RET_ERR_NOT_READY : CNRT_RET_SUCCESS;
    *time = notifier->time;
    pthread_mutex_unlock(&notifier->lock);
    return status;
}

EXPORT cnrtRet_t cnrtNotifierDuration(cnrtNotifier_t start, cnrtNotifier_t end, float *microseconds) {
    static const char call[] = "cnrtNotifierDuration";
    if (!microseconds) return cn_fail(CNRT_RET_ERR_INVALID, call, "a null pointer");
    cnrtRet_t status = CNRT_RET_SUCCESS;
    struct notifier *first = notifier_of(start, call, &status), *second = first ? notifier_of(end, call, &status) : NULL;
    if (second) {
        double begun, ended;
        status = passed(first, &begun);
        if (status == CNRT_RET_SUCCESS) status = passed(second, &ended);
        if (status == CNRT_RET_SUCCESS)
            *microseconds = (float)((ended - begun) * 1e6);
        else
            status = cn_fail(status, call, "a notifier that was not placed, or that work was not finished for");
        cn_drop(&second->object);
    }
    if (first) cn_drop(&first->object);
    return status;
}
