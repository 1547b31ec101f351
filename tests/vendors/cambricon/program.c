/* A program as somebody writes it for CNRT: runs an offline model on a file of numbers and writes what comes out.
 *
 *   cambricon_program MODEL INPUT OUTPUT THREADS
 *
 * INPUT holds the first input as the device wants it, NHWC and in its type; OUTPUT gets all outputs as float32, NCHW. Each thread runs the
 * model with a context forked from the first; all must get the same numbers. On the simulator it also tells what was not given back.
 */
#include <cnrt.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(call)                                                                              \
    do {                                                                                         \
        cnrtRet_t status_ = (call);                                                              \
        if (status_ != CNRT_RET_SUCCESS) {                                                       \
            fprintf(stderr, "%s: %u %s\n", #call, status_, cnrtGetErrorStr(status_));            \
            exit(3);                                                                             \
        }                                                                                        \
    } while (0)

#define MOST 16
#define THREADS 8
#define MLU220 2
#define KINDS 8

int64_t pyasc_sim_outstanding(int chip, int thing);

struct network {
    cnrtModel_t model;
    cnrtFunction_t function;
    cnrtRuntimeContext_t context;
    int64_t *input_sizes, *output_sizes;
    cnrtDataType_t *output_types;
    int inputs, outputs;
};

struct worker {
    const struct network *network;
    const char *input;
    cnrtRuntimeContext_t context;
    float *results[MOST];
    size_t counts[MOST];
    float microseconds;
};

static cnrtDev_t use_device(void) {
    cnrtDev_t device;
    CHECK(cnrtGetDeviceHandle(&device, 0));
    CHECK(cnrtSetCurrentDevice(device));
    return device;
}

static char *read_file(const char *path, size_t size) {
    FILE *file = fopen(path, "rb");
    char *data = malloc(size);
    if (!file || !data || fread(data, 1, size, file) != size) {
        fprintf(stderr, "%s: not %zu bytes\n", path, size);
        exit(4);
    }
    fclose(file);
    return data;
}

static void open_network(struct network *network, const char *path) {
    int cores;
    uint64_t stack;
    unsigned int limit;
    CHECK(cnrtLoadModel(&network->model, path));
    CHECK(cnrtQueryModelParallelism(network->model, &cores));
    CHECK(cnrtQueryModelStackSize(network->model, &stack));
    CHECK(cnrtGetStackMem(&limit));
    if (stack > limit) CHECK(cnrtSetStackMem((unsigned int)stack + 50));
    CHECK(cnrtCreateFunction(&network->function));
    CHECK(cnrtExtractFunction(&network->function, network->model, "subnet0"));
    CHECK(cnrtCreateRuntimeContext(&network->context, network->function, NULL));
    CHECK(cnrtSetRuntimeContextChannel(network->context, CNRT_CHANNEL_TYPE_NONE));
    CHECK(cnrtSetRuntimeContextDeviceId(network->context, 0));
    CHECK(cnrtInitRuntimeContext(network->context, NULL));
    CHECK(cnrtGetInputDataSize(&network->input_sizes, &network->inputs, network->function));
    CHECK(cnrtGetOutputDataSize(&network->output_sizes, &network->outputs, network->function));
    CHECK(cnrtGetOutputDataType(&network->output_types, &network->outputs, network->function));
    printf("cores %d inputs %d outputs %d\n", cores, network->inputs, network->outputs);
}

/* One output as the host wants it. */
static void fetch(struct worker *worker, int index, void *device) {
    const struct network *network = worker->network;
    size_t bytes = (size_t)network->output_sizes[index];
    cnrtDataType_t type = network->output_types[index];
    int count = (int)(bytes / (size_t)cnrtDataTypeSize(type)), *dims, rank, order[4] = {0, 3, 1, 2};
    char *raw = malloc(bytes);
    float *plain = malloc((size_t)count * sizeof(float));
    worker->results[index] = malloc((size_t)count * sizeof(float));
    worker->counts[index] = (size_t)count;
    CHECK(cnrtMemcpy(raw, device, bytes, CNRT_MEM_TRANS_DIR_DEV2HOST));
    CHECK(cnrtCastDataType(raw, type, plain, CNRT_FLOAT32, count, NULL));
    CHECK(cnrtGetOutputDataShape(&dims, &rank, index, network->function));
    CHECK(cnrtTransDataOrder(plain, CNRT_FLOAT32, worker->results[index], rank, dims, order));
    free(dims);
    free(plain);
    free(raw);
}

static void *work(void *argument) {
    struct worker *worker = argument;
    const struct network *network = worker->network;
    void *params[MOST];
    cnrtQueue_t queue;
    cnrtNotifier_t start, end;
    use_device();
    CHECK(cnrtRuntimeContextCreateQueue(worker->context, &queue));
    CHECK(cnrtCreateNotifier(&start));
    CHECK(cnrtCreateNotifier(&end));
    for (int i = 0; i < network->inputs; i++) CHECK(cnrtMalloc(&params[i], (size_t)network->input_sizes[i]));
    for (int i = 0; i < network->outputs; i++) CHECK(cnrtMalloc(&params[network->inputs + i], (size_t)network->output_sizes[i]));
    CHECK(cnrtMemcpy(params[0], (void *)worker->input, (size_t)network->input_sizes[0], CNRT_MEM_TRANS_DIR_HOST2DEV));
    CHECK(cnrtPlaceNotifier(start, queue));
    CHECK(cnrtInvokeRuntimeContext(worker->context, params, queue, NULL));
    CHECK(cnrtPlaceNotifier(end, queue));
    CHECK(cnrtSyncQueue(queue));
    CHECK(cnrtNotifierDuration(start, end, &worker->microseconds));
    for (int i = 0; i < network->outputs; i++) fetch(worker, i, params[network->inputs + i]);
    CHECK(cnrtFreeArray(params, network->inputs + network->outputs));
    CHECK(cnrtDestroyNotifier(&start));
    CHECK(cnrtDestroyNotifier(&end));
    CHECK(cnrtDestroyQueue(queue));
    return NULL;
}

static int same(const struct worker *a, const struct worker *b) {
    for (int i = 0; i < a->network->outputs; i++)
        if (memcmp(a->results[i], b->results[i], a->counts[i] * sizeof(float))) return 0;
    return 1;
}

int main(int count, char **arguments) {
    if (count != 5) return 2;
    int threads = atoi(arguments[4]);
    struct network network;
    struct worker workers[THREADS] = {{0}};
    pthread_t ids[THREADS];
    cnrtDeviceInfo_t info;
    unsigned int devices, version;
    CHECK(cnrtInit(0));
    CHECK(cnrtGetVersion(&version));
    CHECK(cnrtGetDeviceCount(&devices));
    if (!devices) return 5;
    CHECK(cnrtGetDeviceInfo(&info, 0));
    printf("CNRT %u, %s, %d cores\n", version, info.device_name, info.core_num);
    use_device();
    open_network(&network, arguments[1]);
    char *input = read_file(arguments[2], (size_t)network.input_sizes[0]);
    for (int i = 0; i < threads; i++) {
        workers[i].network = &network;
        workers[i].input = input;
        CHECK(cnrtForkRuntimeContext(&workers[i].context, network.context, NULL));
    }
    for (int i = 0; i < threads; i++) pthread_create(&ids[i], NULL, work, &workers[i]);
    for (int i = 0; i < threads; i++) pthread_join(ids[i], NULL);
    printf("microseconds %.1f\n", (double)workers[0].microseconds);
    FILE *output = fopen(arguments[3], "wb");
    for (int i = 0; i < network.outputs; i++) fwrite(workers[0].results[i], sizeof(float), workers[0].counts[i], output);
    fclose(output);
    int differ = 0;
    for (int i = 0; i < threads; i++) {
        differ += !same(&workers[0], &workers[i]);
        CHECK(cnrtDestroyRuntimeContext(workers[i].context));
    }
    for (int i = 0; i < threads; i++)
        for (int k = 0; k < network.outputs; k++) free(workers[i].results[k]);
    CHECK(cnrtDestroyFunction(network.function));
    CHECK(cnrtUnloadModel(network.model));
    CHECK(cnrtDestroyRuntimeContext(network.context)); /* last, as some programs do */
    free(input);
    cnrtDestroy();
    printf("outstanding");
    for (int kind = 0; kind < KINDS; kind++) printf(" %lld", (long long)pyasc_sim_outstanding(MLU220, kind));
    printf("\n");
    return differ ? 6 : 0;
}
