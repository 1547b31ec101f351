/* Threads that share queues and notifiers, place, wait for and destroy them at random, on one model.
 *
 *   stress MODEL ROUNDS
 *
 * For sanitizers: the results do not matter, that everything ends and is given back does. Many calls fail on purpose, on handles that
 * another thread destroyed.
 */
#include <cnrt.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define WORKERS 6
#define SHARED 4
#define MLU220 2
#define KINDS 8
#define MOST 16

int64_t pyasc_sim_outstanding(int chip, int thing);

static cnrtFunction_t function;
static cnrtRuntimeContext_t base;
static cnrtNotifier_t notifiers[SHARED];
static cnrtQueue_t queues[SHARED]; /* under `lock` */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int64_t *sizes[2];
static int counts[2], rounds;

static void must(cnrtRet_t status) {
    if (status == CNRT_RET_SUCCESS) return;
    fprintf(stderr, "%s\n", cnrtGetErrorStr(status));
    exit(3);
}

static void use_device(void) {
    cnrtDev_t device;
    must(cnrtGetDeviceHandle(&device, 0));
    must(cnrtSetCurrentDevice(device));
}

static cnrtQueue_t shared_queue(int index) {
    pthread_mutex_lock(&lock);
    cnrtQueue_t queue = queues[index];
    pthread_mutex_unlock(&lock);
    return queue;
}

static void replace_queue(int index) {
    cnrtQueue_t made, old;
    must(cnrtCreateQueue(&made));
    pthread_mutex_lock(&lock);
    old = queues[index];
    queues[index] = made;
    pthread_mutex_unlock(&lock);
    must(cnrtDestroyQueue(old));
}

static void short_notifier(cnrtQueue_t queue) {
    cnrtNotifier_t notifier;
    must(cnrtCreateNotifier(&notifier));
    must(cnrtPlaceNotifier(notifier, queue));
    must(cnrtDestroyNotifier(&notifier)); /* the queue may not have come to it */
}

static void play(cnrtRuntimeContext_t context, cnrtQueue_t queue, void **params, char *host, unsigned int *seed) {
    int index = rand_r(seed) % SHARED;
    float microseconds;
    cnrtQueue_t other = shared_queue(index); /* may be destroyed at any time */
    must(cnrtMemcpyAsync(params[0], host, (size_t)sizes[0][0], queue, CNRT_MEM_TRANS_DIR_HOST2DEV));
    must(cnrtInvokeRuntimeContext(context, params, queue, NULL));
    cnrtPlaceNotifier(notifiers[index], rand_r(seed) % 2 ? queue : other);
    must(cnrtQueueWaitNotifier(notifiers[(index + 1) % SHARED], queue, 0));
    cnrtQueueWaitNotifier(notifiers[(index + 2) % SHARED], other, 0);
    must(cnrtMemcpyAsync(host, params[counts[0]], (size_t)sizes[1][0], queue, CNRT_MEM_TRANS_DIR_DEV2HOST));
    if (rand_r(seed) % 8 == 0) replace_queue(index);
    if (rand_r(seed) % 8 == 0) short_notifier(queue);
    if (rand_r(seed) % 3 == 0) must(cnrtSyncQueue(queue));
    if (rand_r(seed) % 8 == 0) must(cnrtWaitNotifier(notifiers[index]));
    cnrtNotifierDuration(notifiers[0], notifiers[1], &microseconds);
}

static void *work(void *argument) {
    unsigned int seed = (unsigned int)(uintptr_t)argument;
    cnrtRuntimeContext_t context;
    cnrtQueue_t queue;
    void *params[MOST];
    use_device();
    must(cnrtForkRuntimeContext(&context, base, NULL));
    must(cnrtRuntimeContextCreateQueue(context, &queue));
    for (int i = 0; i < counts[0] + counts[1]; i++)
        must(cnrtMalloc(&params[i], (size_t)(i < counts[0] ? sizes[0][i] : sizes[1][i - counts[0]])));
    char *host = calloc(1, (size_t)(sizes[0][0] + sizes[1][0]));
    for (int i = 0; i < rounds; i++) play(context, queue, params, host, &seed);
    must(cnrtSyncQueue(queue));
    must(cnrtDestroyQueue(queue));
    must(cnrtFreeArray(params, counts[0] + counts[1]));
    must(cnrtDestroyRuntimeContext(context));
    free(host);
    return NULL;
}

int main(int count, char **arguments) {
    if (count != 3) return 2;
    rounds = atoi(arguments[2]);
    cnrtModel_t model;
    pthread_t ids[WORKERS];
    must(cnrtInit(0));
    use_device();
    must(cnrtLoadModel(&model, arguments[1]));
    must(cnrtCreateFunction(&function));
    must(cnrtExtractFunction(&function, model, "subnet0"));
    must(cnrtGetInputDataSize(&sizes[0], &counts[0], function));
    must(cnrtGetOutputDataSize(&sizes[1], &counts[1], function));
    must(cnrtCreateRuntimeContext(&base, function, NULL));
    must(cnrtInitRuntimeContext(base, NULL));
    for (int i = 0; i < SHARED; i++) {
        must(cnrtCreateNotifier(&notifiers[i]));
        must(cnrtCreateQueue(&queues[i]));
    }
    for (int i = 0; i < WORKERS; i++) pthread_create(&ids[i], NULL, work, (void *)(uintptr_t)(i + 1));
    must(cnrtUnloadModel(model));
    for (int i = 0; i < WORKERS; i++) pthread_join(ids[i], NULL);
    for (int i = 0; i < SHARED; i++) {
        must(cnrtDestroyQueue(queues[i]));
        must(cnrtDestroyNotifier(&notifiers[i]));
    }
    must(cnrtDestroyFunction(function));
    must(cnrtDestroyRuntimeContext(base));
    cnrtDestroy();
    for (int kind = 0; kind < KINDS; kind++) printf("%lld ", (long long)pyasc_sim_outstanding(MLU220, kind));
    printf("\n");
    return 0;
}
