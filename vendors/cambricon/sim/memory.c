/* Memory of the device and of the host. */
#include "runtime.h"

#include <stdlib.h>
#include <string.h>

#define FRAME_ALIGN 65536u

/* Blocks of the host that cnrtMallocHost gave, to know them again. */
struct host_block {
    void *memory;
    struct host_block *next;
};
static struct host_block *host_blocks;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void *cn_memory(const void *pointer, size_t size) { return npu_memory(cn_device(), (uint64_t)(uintptr_t)pointer, size); }

/* Allocation ------------------------------------------------------------------------------------------------------------------ */

static cnrtRet_t allocate(const char *call, void **pointer, size_t bytes, uint64_t alignment) {
    if (!pointer) return cn_fail(CNRT_RET_ERR_INVALID, call, "a null pointer");
    cnrtRet_t status = cn_ready(call);
    if (status != CNRT_RET_SUCCESS) return status;
    *pointer = NULL;
    if (!bytes) return CNRT_RET_SUCCESS;
    uint64_t address;
    if (npu_allocate(cn_device(), bytes, alignment, &address)) return cn_fail(CNRT_RET_ERR_NOMEM, call, "the device's memory is full");
    *pointer = (void *)(uintptr_t)address;
    return CNRT_RET_SUCCESS;
}

EXPORT cnrtRet_t cnrtMalloc(void **pointer, size_t bytes) { return allocate("cnrtMalloc", pointer, bytes, 1); }
EXPORT cnrtRet_t cnrtMallocPeerAble(void **pointer, size_t bytes) { return allocate("cnrtMallocPeerAble", pointer, bytes, 1); }

EXPORT cnrtRet_t cnrtMallocFrameBuffer(void **pointer, size_t bytes) {
    return allocate("cnrtMallocFrameBuffer", pointer, bytes, FRAME_ALIGN);
}

EXPORT cnrtRet_t cnrtFree(void *pointer) {
    if (!pointer || !npu_free(cn_device(), (uint64_t)(uintptr_t)pointer)) return CNRT_RET_SUCCESS;
    return cn_fail(CNRT_RET_ERR_FIND_DEV_ADDR, "cnrtFree", "no memory of the device begins there, or it was freed");
}

EXPORT cnrtRet_t cnrtFreeArray(void **pointers, int length) {
    if (!pointers || length < 0) return cn_fail(CNRT_RET_ERR_INVALID, "cnrtFreeArray", "a null pointer, or a negative length");
    cnrtRet_t status = CNRT_RET_SUCCESS;
    for (int i = 0; i < length; i++) {
        cnrtRet_t one = cnrtFree(pointers[i]);
        if (one != CNRT_RET_SUCCESS) status = one;
    }
    return status;
}

EXPORT cnrtRet_t cnrtMallocHost(void **pointer, size_t bytes, cnrtMemType_t type) {
    static const char call[] = "cnrtMallocHost";
    if (!pointer || type > CNRT_MEMTYPE_DEV) return cn_fail(CNRT_RET_ERR_INVALID, call, "a null pointer, or no such kind of memory");
    *pointer = NULL;
    if (!bytes) return CNRT_RET_SUCCESS;
    struct host_block *block = malloc(sizeof *block);
    void *memory = block ? malloc(bytes) : NULL;
    if (!memory) {
        free(block);
        return cn_fail(CNRT_RET_ERR_NOMEM, call, "out of memory");
    }
    block->memory = memory;
    pthread_mutex_lock(&lock);
    block->next = host_blocks;
    host_blocks = block;
    pthread_mutex_unlock(&lock);
    npu_count(cn_device(), NPU_HOST_BLOCKS, 1);
    *pointer = memory;
    return CNRT_RET_SUCCESS;
}

EXPORT cnrtRet_t cnrtFreeHost(void *pointer) {
    if (!pointer) return CNRT_RET_SUCCESS;
    pthread_mutex_lock(&lock);
    struct host_block **link = &host_blocks;
    while (*link && (*link)->memory != pointer) link = &(*link)->next;
    struct host_block *block = *link;
    if (block) *link = block->next;
    pthread_mutex_unlock(&lock);
    if (!block) return cn_fail(CNRT_RET_ERR_INVALID_POINTER, "cnrtFreeHost", "not from cnrtMallocHost, or freed before");
    free(block->memory);
    free(block);
    npu_count(cn_device(), NPU_HOST_BLOCKS, -1);
    return CNRT_RET_SUCCESS;
}

/* Copies ---------------------------------------------------------------------------------------------------------------------- */

/* NULL, or why it cannot be copied. */
static const char *copy(void *to, const void *from, size_t bytes, cnrtMemTransDir_t direction) {
    int to_device = direction == CNRT_MEM_TRANS_DIR_HOST2DEV || direction == CNRT_MEM_TRANS_DIR_DEV2DEV;
    int from_device = direction == CNRT_MEM_TRANS_DIR_DEV2HOST || direction == CNRT_MEM_TRANS_DIR_DEV2DEV;
    if (!bytes) return NULL;
    if (to_device) to = cn_memory(to, bytes);
    if (from_device) from = cn_memory(from, bytes);
    if (!to) return "the destination is no memory of the device, or shorter";
    if (!from) return "the source is no memory of the device, or shorter";
    memmove(to, from, bytes);
    return NULL;
}

static cnrtRet_t check_copy(const char *call, const void *to, const void *from, cnrtMemTransDir_t direction) {
    if (!to || !from) return cn_fail(CNRT_RET_ERR_INVALID, call, "a null pointer");
    if (direction > CNRT_MEM_TRANS_DIR_HOST2HOST) return cn_fail(CNRT_RET_ERR_INVALID, call, "no such direction");
    return direction == CNRT_MEM_TRANS_DIR_HOST2HOST ? CNRT_RET_SUCCESS : cn_present(call);
}

EXPORT cnrtRet_t cnrtMemcpy(void *to, void *from, size_t bytes, cnrtMemTransDir_t direction) {
    cnrtRet_t status = check_copy("cnrtMemcpy", to, from, direction);
    if (status != CNRT_RET_SUCCESS) return status;
    const char *wrong = copy(to, from, bytes, direction);
    return wrong ? cn_fail(CNRT_RET_ERR_MEMCPY, "cnrtMemcpy", wrong) : CNRT_RET_SUCCESS;
}

struct transfer {
    struct cn_queue *queue;
    void *to;
    const void *from;
    size_t bytes;
    cnrtMemTransDir_t direction;
    uint32_t fill, fill_bytes; /* a fill: its value, and how many bytes of it repeat */
};

static const char *fill(void *pointer, uint32_t value, uint32_t value_bytes, size_t bytes) {
    uint8_t *to = bytes ? cn_memory(pointer, bytes) : NULL;
    if (!bytes) return NULL;
    if (!to) return "the destination is no memory of the device, or shorter";
    if (value_bytes == 1)
        memset(to, (int)(value & 255), bytes);
    else
        for (size_t i = 0; i + 4 <= bytes; i += 4) memcpy(to + i, &value, 4);
    return NULL;
}

static void transfer(void *context, int was_lost) {
    struct transfer *work = context;
    const char *wrong = NULL;
    if (was_lost)
        cn_queue_failed(work->queue, CNRT_RET_ERR_NODEV, "the device is gone");
    else if (work->fill_bytes)
        wrong = fill(work->to, work->fill, work->fill_bytes, work->bytes);
    else
        wrong = copy(work->to, work->from, work->bytes, work->direction);
    if (wrong) cn_queue_failed(work->queue, CNRT_RET_ERR_MEMCPY, wrong);
    free(work);
}

static cnrtRet_t later(const char *call, cnrtQueue_t handle, struct transfer how) {
    cnrtRet_t status = CNRT_RET_SUCCESS;
    how.queue = cn_enter(handle, call, &status);
    if (!how.queue) return status;
    struct transfer *work = malloc(sizeof *work);
    if (work) *work = how;
    if (!work || !npu_enqueue(how.queue->lane, transfer, work, 0, 0)) {
        free(work);
        status = cn_fail(CNRT_RET_ERR_NOMEM, call, "out of memory");
    }
    cn_leave(how.queue);
    return status;
}

EXPORT cnrtRet_t cnrtMemcpyAsync(void *to, void *from, size_t bytes, cnrtQueue_t queue, cnrtMemTransDir_t direction) {
    cnrtRet_t status = check_copy("cnrtMemcpyAsync", to, from, direction);
    if (status != CNRT_RET_SUCCESS) return status;
    return later("cnrtMemcpyAsync", queue, (struct transfer){.to = to, .from = from, .bytes = bytes, .direction = direction});
}

EXPORT cnrtRet_t cnrtMemcpyPeer(void *to, int to_ordinal, void *from, int from_ordinal, size_t bytes) {
    if (to_ordinal != 0 || from_ordinal != 0) return cn_fail(CNRT_RET_ERR_INVALID, "cnrtMemcpyPeer", "no such ordinal");
    return cnrtMemcpy(to, from, bytes, CNRT_MEM_TRANS_DIR_DEV2DEV);
}

EXPORT cnrtRet_t cnrtMemcpyPeerAsync(void *to, int to_ordinal, void *from, int from_ordinal, size_t bytes, cnrtQueue_t queue) {
    if (to_ordinal != 0 || from_ordinal != 0) return cn_fail(CNRT_RET_ERR_INVALID, "cnrtMemcpyPeerAsync", "no such ordinal");
    return cnrtMemcpyAsync(to, from, bytes, queue, CNRT_MEM_TRANS_DIR_DEV2DEV);
}

static cnrtRet_t set_now(const char *call, void *pointer, uint32_t value, uint32_t value_bytes, size_t bytes) {
    if (!pointer) return cn_fail(CNRT_RET_ERR_INVALID, call, "a null pointer");
    cnrtRet_t status = cn_present(call);
    if (status != CNRT_RET_SUCCESS) return status;
    const char *wrong = fill(pointer, value, value_bytes, bytes);
    return wrong ? cn_fail(CNRT_RET_ERR_MEMCPY, call, wrong) : CNRT_RET_SUCCESS;
}

static cnrtRet_t set_later(const char *call, void *pointer, uint32_t value, uint32_t value_bytes, size_t bytes, cnrtQueue_t queue) {
    if (!pointer) return cn_fail(CNRT_RET_ERR_INVALID, call, "a null pointer");
    cnrtRet_t status = cn_present(call);
    if (status != CNRT_RET_SUCCESS) return status;
    return later(call, queue, (struct transfer){.to = pointer, .bytes = bytes, .fill = value, .fill_bytes = value_bytes});
}

/* Four bytes a number; too many of them become a size that no memory has. */
static size_t words(size_t count) { return count > SIZE_MAX / 4 ? SIZE_MAX : count * 4; }

EXPORT cnrtRet_t cnrtMemset(void *pointer, int value, size_t bytes) {
    return set_now("cnrtMemset", pointer, (uint32_t)value & 255, 1, bytes);
}

EXPORT cnrtRet_t cnrtMemsetD8(void *pointer, uint8_t value, size_t count) { return set_now("cnrtMemsetD8", pointer, value, 1, count); }

EXPORT cnrtRet_t cnrtMemsetD32(void *pointer, uint32_t value, size_t count) {
    return set_now("cnrtMemsetD32", pointer, value, 4, words(count));
}

EXPORT cnrtRet_t cnrtMemsetD8Async(void *pointer, uint8_t value, size_t count, cnrtQueue_t queue) {
    return set_later("cnrtMemsetD8Async", pointer, value, 1, count, queue);
}

EXPORT cnrtRet_t cnrtMemsetD32Async(void *pointer, uint32_t value, size_t count, cnrtQueue_t queue) {
    return set_later("cnrtMemsetD32Async", pointer, value, 4, words(count), queue);
}

/* What there is --------------------------------------------------------------------------------------------------------------- */

EXPORT cnrtRet_t cnrtGetMemInfo(size_t *free_mib, size_t *total_mib, cnrtChannelType_t channel) {
    static const char call[] = "cnrtGetMemInfo";
    if (!free_mib || !total_mib) return cn_fail(CNRT_RET_ERR_INVALID, call, "a null pointer");
    cnrtRet_t status = cn_ready(call);
    if (status != CNRT_RET_SUCCESS) return status;
    if (!cn_channel_exists(channel)) return cn_fail(CNRT_RET_ERR_INVALID, call, "MLU220 has channel 0 alone");
    struct npu_usage usage = npu_usage(cn_device());
    *total_mib = (size_t)(usage.total >> 20);
    *free_mib = (size_t)((usage.total - usage.used) >> 20);
    return CNRT_RET_SUCCESS;
}

EXPORT cnrtRet_t cnrtGetMemorySize(void **base, void *pointer, size_t *bytes) {
    static const char call[] = "cnrtGetMemorySize";
    if (!base || !bytes) return cn_fail(CNRT_RET_ERR_INVALID, call, "a null pointer");
    uint64_t begin, size;
    if (npu_find(cn_device(), (uint64_t)(uintptr_t)pointer, &begin, &size))
        return cn_fail(CNRT_RET_ERR_GET_MEM_RANGE, call, "no memory of the device is there");
    *base = (void *)(uintptr_t)begin;
    *bytes = (size_t)size;
    return CNRT_RET_SUCCESS;
}

/* A handle for other processes. The simulated device belongs to one process: it is good in that one alone. */
EXPORT cnrtRet_t cnrtAcquireMemHandle(cnrtIpcMemHandle *handle, void *pointer) {
    static const char call[] = "cnrtAcquireMemHandle";
    uint64_t begin, size;
    if (!handle) return cn_fail(CNRT_RET_ERR_INVALID, call, "a null pointer");
    if (npu_find(cn_device(), (uint64_t)(uintptr_t)pointer, &begin, &size))
        return cn_fail(CNRT_RET_ERR_INVALID, call, "no memory of the device is there");
    *handle = pointer;
    return CNRT_RET_SUCCESS;
}

EXPORT cnrtRet_t cnrtMapMemHandle(void **pointer, cnrtIpcMemHandle handle, int flag) {
    (void)flag; /* reserved */
    cnrtIpcMemHandle same;
    if (!pointer) return cn_fail(CNRT_RET_ERR_INVALID, "cnrtMapMemHandle", "a null pointer");
    cnrtRet_t status = cnrtAcquireMemHandle(&same, handle);
    if (status == CNRT_RET_SUCCESS) *pointer = same;
    return status;
}

EXPORT cnrtRet_t cnrtUnMapMemHandle(void *pointer) {
    cnrtIpcMemHandle same;
    return cnrtAcquireMemHandle(&same, pointer);
}
