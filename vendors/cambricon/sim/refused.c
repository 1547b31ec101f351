/* Calls that the simulated card does not have: memory shared with the processor, as on the edge platform alone; kernels of a program's own. */
#include "runtime.h"

static cnrtRet_t edge_only(const char *call) {
    return cn_fail(CNRT_RET_ERR_UNSUPPORTED, call, "only where processor and device share their memory, not on a card");
}

EXPORT cnrtRet_t cnrtMap(void **host, void *device) {
    (void)host, (void)device;
    return edge_only("cnrtMap");
}

EXPORT cnrtRet_t cnrtMapRange(void **host, void *device, size_t size) {
    (void)host, (void)device, (void)size;
    return edge_only("cnrtMapRange");
}

EXPORT cnrtRet_t cnrtUnmap(void *host) {
    (void)host;
    return edge_only("cnrtUnmap");
}

EXPORT cnrtRet_t cnrtCacheOperation(void *host, cnrtCacheOps_t operation) {
    (void)host, (void)operation;
    return edge_only("cnrtCacheOperation");
}

EXPORT cnrtRet_t cnrtCacheOperationRange(void *host, size_t size, cnrtCacheOps_t operation) {
    (void)host, (void)size, (void)operation;
    return edge_only("cnrtCacheOperationRange");
}

EXPORT cnrtRet_t cnrtFindDevAddrByMappedAddr(void *mapped, void **device) {
    (void)mapped, (void)device;
    return edge_only("cnrtFindDevAddrByMappedAddr");
}

EXPORT cnrtRet_t cnrtFindDevAddrWithOffsetByMappedAddr(void *mapped, void **device) {
    (void)mapped, (void)device;
    return edge_only("cnrtFindDevAddrWithOffsetByMappedAddr");
}

EXPORT cnrtRet_t cnrtMallocBufferEx(void **pointer, void *param) {
    (void)pointer, (void)param;
    return cn_fail(CNRT_RET_ERR_UNSUPPORTED, "cnrtMallocBufferEx", "the simulator has one kind of memory: cnrtMalloc");
}

/* Whatever they are called with is left alone. */
#define KERNEL(name)                                                                                          \
    EXPORT cnrtRet_t name(void);                                                                              \
    cnrtRet_t name(void) { return cn_fail(CNRT_RET_ERR_UNSUPPORTED, #name, "the simulator runs offline models alone, no kernels"); }

KERNEL(cnrtCopyKernelParamsBuffer)
KERNEL(cnrtCreateKernelInitParam)
KERNEL(cnrtDestroyKernelInitParamAndMemory)
KERNEL(cnrtDestroyKernelParamsBuffer)
KERNEL(cnrtGetKernelParamsBuffer)
KERNEL(cnrtInitKernelMemory)
KERNEL(cnrtInvokeKernel_V2)
KERNEL(cnrtInvokeKernel_V3)
KERNEL(cnrtKernelParamsBufferAddParam)
KERNEL(cnrtKernelParamsBufferMarkInput)
KERNEL(cnrtKernelParamsBufferMarkOutput)
KERNEL(cnrtKernelParamsBufferMarkStatic)
