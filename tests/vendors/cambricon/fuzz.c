/* Loads spoilt copies of a model file, and runs those that are taken.
 *
 *   fuzz MODEL SCRATCH-FILE ROUNDS
 *
 * Prints how many were refused and how many ran. Half of the copies get a checksum that fits, so that the checks behind it are met.
 */
#include <cnrt.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SUM_AT 44u
#define SUM_FROM 48u
#define TABLES 2048u /* most of what can be wrong stands here */
#define MOST_BYTES (8 << 20)

static uint64_t state = 88172645463325252ull;

static uint32_t next(uint32_t below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 16) % below;
}

static uint32_t crc32(const uint8_t *data, size_t size) {
    uint32_t crc = ~0u;
    for (size_t i = 0; i < size; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? 0xEDB88320u ^ crc >> 1 : crc >> 1;
    }
    return ~crc;
}

static size_t spoil(uint8_t *data, size_t size) {
    static const uint32_t odd[] = {0, 1, 2, 3, 4, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFC, 0xFFFFFFFF};
    uint32_t changes = 1 + next(3);
    int late = next(2) == 0;
    for (uint32_t i = 0; i < changes; i++) {
        uint32_t reach = late || size < TABLES ? (uint32_t)size : TABLES;
        uint32_t at = 52 + next(reach - 56);
        if (next(2))
            data[at] ^= (uint8_t)(1u << next(8));
        else
            memcpy(data + at / 4 * 4, &odd[next(sizeof odd / sizeof odd[0])], 4);
    }
    if (next(2)) {
        uint32_t sum = crc32(data + SUM_FROM, size - SUM_FROM);
        memcpy(data + SUM_AT, &sum, 4);
    }
    return next(16) ? size : next((uint32_t)size);
}

/* Whether it ran to the end. */
static int run(cnrtModel_t model) {
    cnrtFunction_t function = NULL;
    cnrtRuntimeContext_t context = NULL;
    cnrtQueue_t queue = NULL;
    void *params[128];
    int64_t *sizes[2], total = 0, used = 0;
    int counts[2], made = 0, ran = 0;
    cnrtCreateFunction(&function);
    if (cnrtExtractFunction(&function, model, "subnet0") == CNRT_RET_SUCCESS &&
        cnrtCreateRuntimeContext(&context, function, NULL) == CNRT_RET_SUCCESS && cnrtInitRuntimeContext(context, NULL) == CNRT_RET_SUCCESS &&
        cnrtRuntimeContextCreateQueue(context, &queue) == CNRT_RET_SUCCESS) {
        cnrtGetInputDataSize(&sizes[0], &counts[0], function);
        cnrtGetOutputDataSize(&sizes[1], &counts[1], function);
        cnrtGetModelMemUsed(model, &used);
        for (int side = 0; side < 2; side++)
            for (int i = 0; i < counts[side]; i++) total += sizes[side][i];
        for (int side = 0; side < 2 && total < MOST_BYTES && used < MOST_BYTES; side++)
            for (int i = 0; i < counts[side]; i++) made += cnrtMalloc(&params[made], (size_t)sizes[side][i]) == CNRT_RET_SUCCESS;
        if (made == counts[0] + counts[1] && cnrtInvokeRuntimeContext(context, params, queue, NULL) == CNRT_RET_SUCCESS)
            ran = cnrtSyncQueue(queue) == CNRT_RET_SUCCESS;
    }
    if (queue) cnrtDestroyQueue(queue);
    for (int i = 0; i < made; i++) cnrtFree(params[i]);
    if (context) cnrtDestroyRuntimeContext(context);
    cnrtDestroyFunction(function);
    return ran;
}

int main(int count, char **arguments) {
    if (count != 4) return 2;
    static uint8_t seed[1 << 20], mutant[1 << 20];
    FILE *file = fopen(arguments[1], "rb");
    size_t size = file ? fread(seed, 1, sizeof seed, file) : 0;
    if (size < 128) return 3;
    fclose(file);
    cnrtDev_t device;
    cnrtInit(0);
    cnrtGetDeviceHandle(&device, 0);
    cnrtSetCurrentDevice(device);
    int refused = 0, ran = 0;
    for (int round = 0; round < atoi(arguments[3]); round++) {
        cnrtModel_t model;
        memcpy(mutant, seed, size);
        size_t kept = spoil(mutant, size);
        file = fopen(arguments[2], "wb");
        if (!file) return 4;
        fwrite(mutant, 1, kept, file);
        fclose(file);
        if (cnrtLoadModel(&model, arguments[2]) != CNRT_RET_SUCCESS) {
            refused++;
            continue;
        }
        ran += run(model);
        cnrtUnloadModel(model);
    }
    cnrtDestroy();
    printf("%d %d\n", refused, ran);
    return 0;
}
