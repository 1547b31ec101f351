/* libcnrt: Cambricon's runtime for offline models, CNRT 4.4 to 4.10, which share one binary interface. Read by C, by C++ and by cffi.
 *
 * Device memory is named by pointers that the processor cannot use. Shapes are NHWC. What a caller has to give back:
 *   - shape arrays (cnrtGetInputDataShape, cnrtGetOutputDataShape, cnrtGetShapeFromParamDesc) and text (cnrtGetFunctionSymbol,
 *     cnrtGetNameFromParamDesc) to free();
 *   - arrays of sizes and types (cnrtGetInputDataSize, cnrtGetInputDataType and those of outputs) to nobody: they are the function's.
 * The status codes are those of 4.10. Older libraries number some of them differently: CNRT_RET_ERR_IO and those after it.
 * Not declared: the calls that launch kernels of a program's own; the simulator has their names, and they refuse.
 */
#ifndef PYASC_CNRT_H
#define PYASC_CNRT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CNRT_MAJOR_VERSION 4
#define CNRT_MINOR_VERSION 10
#define CNRT_PATCH_VERSION 1
#define CNRT_VERSION 41001
#define CNRT_PARAM_END ((void *)0xFFFFFFFF)
#define CNRT_CHECK(call) cnrtCheck((call), __func__, __FILE__, __LINE__)

typedef uint64_t cnrtDev_t; /* not the ordinal */
typedef uint64_t MLUdev_t;
typedef void *cnrtIpcMemHandle;

typedef struct cnrtModel *cnrtModel_t;
typedef struct cnrtFunction *cnrtFunction_t;
typedef struct cnrtRuntimeContext *cnrtRuntimeContext_t;
typedef struct cnrtQueue *cnrtQueue_t;
typedef struct cnrtNotifier *cnrtNotifier_t;
typedef struct cnrtParamDesc *cnrtParamDesc_t;
typedef struct cnrtParamDesc **cnrtParamDescArray_t;
typedef struct cnrtQuantizedParam *cnrtQuantizedParam_t;
typedef struct cnrtKernelInitParam *cnrtKernelInitParam_t;
typedef struct cnrtPluginOpDimInfo *cnrtPluginOpDimInfo_t;

typedef enum {
    CNRT_RET_SUCCESS = 0,
    CNRT_RET_WARNING_FAKE_DEVICE = 1,
    CNRT_RET_ERR_NOT_READY = 632006,
    CNRT_RET_ERR_INVALID = 632007,
    CNRT_RET_ERR_NOMEM = 632008,
    CNRT_RET_ERR_NODEV = 632009,
    CNRT_RET_ERR_SYS = 632011,
    CNRT_RET_ERR_ACCES = 632012,
    CNRT_RET_ERR_ACCESS = 632012,
    CNRT_RET_ERR_FAULT = 632013,
    CNRT_RET_ERR_BUSY = 632014,
    CNRT_RET_ERR_NORES = 632019,
    CNRT_RET_ERR_UNSUPPORTED = 632020,
    CNRT_RET_ERR_INVALID_POINTER = 632021,
    CNRT_RET_ERR_NO_EXIST = 632022,
    CNRT_RET_ERR_BROKEN = 632023,
    CNRT_RET_ERR_INIT = 632024,
    CNRT_RET_ERR_QUEUE = 632025,
    CNRT_RET_ERR_OUT_RANGE = 632026,
    CNRT_RET_ERR_FUNC_CALL = 632028,
    CNRT_RET_ERR_UNHANDLED = 632029,
    CNRT_RET_ERR_INVALID_TYPE = 632030,
    CNRT_RET_ERR_INVALID_OP = 632031,
    CNRT_RET_ERR_RESHAPE = 632035,
    CNRT_RET_ERR_MEMCPY = 632036,
    CNRT_RET_ERR_ENCRYPT = 632037,
    CNRT_RET_ERR_INVALID_DATADESC = 632038,
    CNRT_RET_ERR_MAP = 632039,
    CNRT_RET_ERR_UNMAP = 632040,
    CNRT_RET_ERR_CACHE = 632041,
    CNRT_RET_ERR_FIND_DEV_ADDR = 632042,
    CNRT_RET_ERR_KERNEL_VERSION_TOO_HIGH = 632043,
    CNRT_RET_ERR_CNDRV_FUNC_CALL = 632046,
    CNRT_RET_ERR_CNDEV_FUNC_CALL = 632047,
    CNRT_RET_ERR_IO = 632048,
    CNRT_RET_ERR_TIMEOUT = 632049,
    CNRT_RET_ERR_NOSYS = 632050,
    CNRT_RET_ERR_AGAIN = 632051,
    CNRT_RET_ERR_EXIST = 632052,
    CNRT_RET_ERR_MATH_OVERFLOW = 632053,
    CNRT_RET_ERR_MLU = 632054,
    CNRT_RET_ERR_ONCHIP_CORE = 632055,
    CNRT_RET_ERR_GET_MEM_RANGE = 632056,
    CNRT_RET_ERR_GET_MEM_INFO = 632057,
    CNRT_RET_ERR_EVENT = 632058,
    CNRT_RET_ERR_NOTIFIER = 632059,
    CNRT_RET_ERR_GET_IMP_DEV = 632060,
    CNRT_RET_ERR_LOAD_MODULE = 632061,
    CNRT_RET_ERR_UNKNOWN = 999991,
    CNRT_RET_ERR_MAX = 999992,
} cnrtRet_t;

typedef enum {
    CNRT_MEMTYPE_DEFAULT = 0,
    CNRT_MEMTYPE_LOCKED = 1,
    CNRT_MEMTYPE_DEV = 2,
} cnrtMemType_t;

typedef enum {
    CNRT_MALLOC_EX_PARALLEL_FRAMEBUFFER = 1,
} cnrtMallocExType_t;

typedef enum {
    CNRT_FUNC_TYPE_BLOCK = 1,
    CNRT_FUNC_TYPE_BLOCK0 = 1,
    CNRT_FUNC_TYPE_BLOCK1 = 2,
    CNRT_FUNC_TYPE_UNION1 = 4,
    CNRT_FUNC_TYPE_UNION2 = 8,
    CNRT_FUNC_TYPE_UNION4 = 16,
    CNRT_FUNC_TYPE_UNION8 = 32,
    CNRT_FUNC_TYPE_UNION16 = 64,
    CNRT_FUNC_TYPE_MUTABLE = -1,
    CNRT_JOB_TYPE_BLOCK = 1,
    CNRT_JOB_TYPE_UNION1 = 4,
    CNRT_JOB_TYPE_UNION2 = 8,
    CNRT_JOB_TYPE_UNION4 = 16,
} cnrtFunctionType_t;

typedef enum {
    CNRT_CHANNEL_TYPE_DUPLICATE = -2,
    CNRT_CHANNEL_TYPE_NONE = -1,
    CNRT_CHANNEL_TYPE_0 = 0,
    CNRT_CHANNEL_TYPE_1 = 1,
    CNRT_CHANNEL_TYPE_2 = 2,
    CNRT_CHANNEL_TYPE_3 = 3,
} cnrtChannelType_t;

typedef enum {
    CNRT_MEM_TRANS_DIR_HOST2DEV = 0,
    CNRT_MEM_TRANS_DIR_DEV2DEV = 1,
    CNRT_MEM_TRANS_DIR_DEV2HOST = 2,
    CNRT_MEM_TRANS_DIR_HOST2HOST = 3,
    CNRT_MEM_TRANS_DIR_PEER2PEER = 4,
    CNRT_MEM_TRANS_DIR_NODIR = 5,
} cnrtMemTransDir_t;

typedef enum {
    CNRT_FLUSH_CACHE = 1,
    CNRT_INVALID_CACHE = 2,
} cnrtCacheOps_t;

typedef enum {
    CNRT_INVOKE_PARAM_TYPE_0 = 0,
} cnrtInvokeParamType_t;

typedef enum {
    CNRT_INVALID = 0x0,
    CNRT_FLOAT16 = 0x12,
    CNRT_FLOAT32 = 0x13,
    CNRT_FLOAT64 = 0x14,
    CNRT_INT4 = 0x20,
    CNRT_INT8 = 0x21,
    CNRT_INT16 = 0x22,
    CNRT_INT32 = 0x23,
    CNRT_INT64 = 0x24,
    CNRT_AUTO = 0x25,
    CNRT_UINT8 = 0x31,
    CNRT_UINT16 = 0x32,
    CNRT_UINT32 = 0x33,
    CNRT_FIX8 = 0x41,
    CNRT_QUANT8 = 0x51,
    CNRT_BOOL = 0x61,
} cnrtDataType_t;

typedef enum {
    CNRT_NCHW = 0x123,
    CNRT_NHWC = 0x231,
    CNRT_HWCN = 0x2310,
    CNRT_TNC = 0x401,
    CNRT_NTC = 0x41,
    CNRT_NCDHW = 0x1523,
    CNRT_NDHWC = 0x5231,
    CNRT_DHWCN = 0x52310,
} cnrtDimOrder_t;

typedef enum {
    CNRT_RT_CTX_FUNCTION = 1,
    CNRT_RT_CTX_DEV_ORDINAL = 2,
    CNRT_RT_CTX_CORE_NUMBER = 3,
    CNRT_RT_CTX_MODEL_PARALLEL = 4,
    CNRT_RT_CTX_CHANNEL = 5,
    CNRT_RT_CTX_MAX_BATCH_NUM = 6,
} cnrtRuntimeContextInfo_t;

typedef enum {
    CNRT_1H8 = 0,
    CNRT_1H16 = 1,
    CNRT_1H8MINI = 4,
    CNRT_MLU100 = 3,
    CNRT_MLU270 = 5,
    CNRT_MLU220 = 6,
    CNRT_MLU290 = 7,
    CNRT_1M20 = 8,
    CNRT_1M70 = 9,
    CNRT_CISS = 10,
    CNRT_MLU370 = 11,
} cnrtCoreVersion_t;

typedef enum {
    CNRT_TOPO_SELF = 0,
    CNRT_TOPO_INTERNAL = 1,
    CNRT_TOPO_SINGLE = 2,
    CNRT_TOPO_MULTIPLE = 3,
    CNRT_TOPO_HOST_BRIDGE = 4,
    CNRT_TOPO_CPU = 5,
    CNRT_TOPO_SYSTEM = 6,
} cnrtTopologyRelationshipEnum_t;

typedef cnrtFunctionType_t cnrtJobType_t;

/* For cnrtSetDeviceFlag: how a thread waits for the device. */
enum cnrt_queue_sync_type {
    CNRT_QUEUE_SYNC_SPIN = 0,
    CNRT_QUEUE_SYNC_BLOCK = 1,
    CNRT_QUEUE_SYNC_YIELD = 2,
    CNRT_QUEUE_SYNC_MAX = 3,
};

typedef struct {
    unsigned int x;
    unsigned int y;
    unsigned int z;
} cnrtDim3_t;

/* Of calls that are gone. */
typedef struct {
    int *data_parallelism;
    unsigned int *affinity;
    void *end;
} cnrtInvokeFuncParam_t;

/* A mask of 1 << channel; all ones: no binding. */
typedef struct {
    unsigned int *affinity;
} cnrtClusterAffinity_t;

typedef struct {
    cnrtInvokeParamType_t invoke_param_type;
    cnrtClusterAffinity_t cluster_affinity;
} cnrtInvokeParam_t;

typedef struct {
    char device_name[64];
    cnrtCoreVersion_t core_version;
    int core_num;
} cnrtDeviceInfo_t;

typedef struct {
    uint32_t cpu_count;
    uint32_t cpu_affinity_bitmap[1024];
} cnrtDeviceAffinity_t;

struct cnrtKernelParamsBuffer {
    void *host_ptr;
    unsigned int max_param;
    unsigned int cur_param;
    int *input_index;
    int num_input;
    int *output_index;
    int num_output;
    int *static_index;
    int num_static;
    cnrtPluginOpDimInfo_t dim_info;
    int num_dim_info;
};
typedef struct cnrtKernelParamsBuffer *cnrtKernelParamsBuffer_t;

/* Errors, start-up, version */
const char *cnrtGetErrorStr(cnrtRet_t err_code);
const char *cnrtGetErrorName(cnrtRet_t err_code);
cnrtRet_t cnrtGetLastErr(void);
cnrtRet_t cnrtPeekLastErr(void);
void cnrtCheck(cnrtRet_t result, const char *const func, const char *const file, const int line);
cnrtRet_t cnrtInit(unsigned int flags);
void cnrtDestroy(void);
cnrtRet_t cnrtGetVersion(unsigned int *ver);
void cnrtGetLibVersion(int *major, int *minor, int *patch);

/* Devices */
cnrtRet_t cnrtGetDeviceCount(unsigned int *dev_num);
cnrtRet_t cnrtGetDeviceHandle(cnrtDev_t *pdev, int ordinal);
cnrtRet_t cnrtSetCurrentDevice(cnrtDev_t dev);
cnrtRet_t cnrtGetCurrentDevice(cnrtDev_t *pdev);
cnrtRet_t cnrtGetCurrentOrdinal(unsigned int *dev_ordinal);
cnrtRet_t cnrtGetDeviceInfo(cnrtDeviceInfo_t *info, int device_ordinal);
cnrtRet_t cnrtSyncDevice(void);
cnrtRet_t cnrtGetMLUdev(MLUdev_t *mlu_dev, cnrtDev_t cnrt_dev);
cnrtRet_t cnrtSetDeviceFlag(unsigned int flags);
cnrtRet_t cnrtGetDeviceFlag(unsigned int *flags);
cnrtRet_t cnrtGetPeerAccessibility(unsigned int *CanPeer, int Dev, int PeerDev);
cnrtRet_t cnrtGetDeviceAffinity(cnrtDeviceAffinity_t *affinity, int dev_ordinal);
cnrtRet_t cnrtSetCurrentThreadAffinity(int dev_ordinal);
cnrtRet_t cnrtClearCurrentThreadAffinity(int dev_ordinal);
cnrtRet_t cnrtTopologyGetRelationship(cnrtTopologyRelationshipEnum_t *relationship, int dev_ordinal1, int dev_ordinal2);
cnrtRet_t cnrtTopologyGetNearestDevices(cnrtTopologyRelationshipEnum_t relationship, uint64_t *count, uint64_t *ordinal_array,
                                        int dev_ordinal);
cnrtRet_t cnrtTopologyGetCpuRelatedDevices(int cpuid, uint64_t *count, uint64_t *ordinal_array);

/* Queues and notifiers. cnrtDestroyNotifier takes the address of the handle. cnrtNotifierDuration tells microseconds. */
cnrtRet_t cnrtCreateQueue(cnrtQueue_t *pQueue);
cnrtRet_t cnrtDestroyQueue(cnrtQueue_t queue);
cnrtRet_t cnrtQueryQueue(cnrtQueue_t queue);
cnrtRet_t cnrtSyncQueue(cnrtQueue_t queue);
cnrtRet_t cnrtQueueWaitNotifier(cnrtNotifier_t notifier, cnrtQueue_t queue, unsigned int flag);
cnrtRet_t cnrtCreateNotifier(cnrtNotifier_t *notifier);
cnrtRet_t cnrtDestroyNotifier(cnrtNotifier_t *notifier);
cnrtRet_t cnrtPlaceNotifier(cnrtNotifier_t notifier, cnrtQueue_t queue);
cnrtRet_t cnrtWaitNotifier(cnrtNotifier_t notifier);
cnrtRet_t cnrtQueryNotifier(cnrtNotifier_t notifier);
cnrtRet_t cnrtNotifierDuration(cnrtNotifier_t start, cnrtNotifier_t end, float *us);

/* Offline models and functions. cnrtQueryModelStackSize tells MB, cnrtGetModelMemUsed bytes. */
cnrtRet_t cnrtLoadModel(cnrtModel_t *pmodel, const char *fname);
cnrtRet_t cnrtLoadModelFromMem(cnrtModel_t *pmodel, char *ptr);
cnrtRet_t cnrtLoadModelFromMem_V2(cnrtModel_t *pmodel, char *ptr, bool reuseUserMem);
cnrtRet_t cnrtUnloadModel(cnrtModel_t model);
cnrtRet_t cnrtGetModelSize(const char *fname, int *size);
cnrtRet_t cnrtGetModelLevelFromFile(const char *fname, int *model_level);
cnrtRet_t cnrtQueryCoreVersion(cnrtModel_t model, cnrtCoreVersion_t *coreVersion);
cnrtRet_t cnrtQueryModelParallelism(cnrtModel_t model, int *modelParallelism);
cnrtRet_t cnrtQueryModelStackSize(cnrtModel_t model, uint64_t *stack_size);
cnrtRet_t cnrtQueryModelLocalMemSize(cnrtModel_t model, uint64_t *local_mem_size);
cnrtRet_t cnrtGetModelMemUsed(cnrtModel_t model, int64_t *pMemused);
cnrtRet_t cnrtGetFunctionNumber(cnrtModel_t model, int *func_num);
cnrtRet_t cnrtGetFunctionSymbol(cnrtModel_t model, int index, char **symbol, int *name_size);
cnrtRet_t cnrtCreateFunction(cnrtFunction_t *pfunction);
cnrtRet_t cnrtExtractFunction(cnrtFunction_t *pfunction, cnrtModel_t model, const char *symbol);
cnrtRet_t cnrtCopyFunction(cnrtFunction_t *dst, cnrtFunction_t src);
cnrtRet_t cnrtDestroyFunction(cnrtFunction_t function);
cnrtRet_t cnrtGetFunctionMemUsed(cnrtFunction_t function, int64_t *pMemused);
cnrtRet_t cnrtQueryCacheMode(cnrtFunction_t function, bool *is_cache_mode, int *cache_num);
cnrtRet_t cnrtQueryBatches(cnrtFunction_t function, int *batches_array);

/* Inputs and outputs of a function */
cnrtRet_t cnrtGetInputDataSize(int64_t **sizeArray, int *num, cnrtFunction_t function);
cnrtRet_t cnrtGetOutputDataSize(int64_t **sizeArray, int *num, cnrtFunction_t function);
cnrtRet_t cnrtGetInputDataType(cnrtDataType_t **dtype, int *num, cnrtFunction_t function);
cnrtRet_t cnrtGetOutputDataType(cnrtDataType_t **dtype, int *num, cnrtFunction_t function);
cnrtRet_t cnrtGetInputDataShape(int **dimValues, int *dimNum, int index, cnrtFunction_t function);
cnrtRet_t cnrtGetOutputDataShape(int **dimValues, int *dimNum, int index, cnrtFunction_t function);
cnrtRet_t cnrtGetInputAndOutputNamesFromFunction(cnrtFunction_t func, char ***input_names, char ***output_names, int *input_num,
                                                 int *output_num);
cnrtRet_t cnrtDestroyInputAndOutputNames(char **input_names, char **output_names, int input_num, int output_num);
cnrtRet_t cnrtGetParamIndexByName(cnrtFunction_t func, const char *name, int *index);
cnrtRet_t cnrtGetSupportedParamDimNumberByName(cnrtFunction_t func, const char *name, int *dim_num);
cnrtRet_t cnrtGetSupportedParamShapeByName(cnrtFunction_t func, const char *name, int *dim_shape);
cnrtRet_t cnrtGetSupportedParamDataTypeByName(cnrtFunction_t func, const char *name, cnrtDataType_t *dtype);
cnrtRet_t cnrtGetSupportedParamLayoutByName(cnrtFunction_t func, const char *name, cnrtDimOrder_t *dorder);
cnrtRet_t cnrtInferFunctionOutputShape(cnrtFunction_t func, int input_num, cnrtParamDescArray_t input_params, int output_num,
                                       cnrtParamDescArray_t output_params);

/* Runtime context */
cnrtRet_t cnrtCreateRuntimeContext(cnrtRuntimeContext_t *pctx, cnrtFunction_t function, void *extra);
cnrtRet_t cnrtSetRuntimeContextChannel(cnrtRuntimeContext_t pctx, cnrtChannelType_t channel);
cnrtRet_t cnrtSetRuntimeContextDeviceId(cnrtRuntimeContext_t pctx, int dev_ordinal);
cnrtRet_t cnrtInitRuntimeContext(cnrtRuntimeContext_t pctx, void *extra);
cnrtRet_t cnrtForkRuntimeContext(cnrtRuntimeContext_t *dst_pctx, cnrtRuntimeContext_t src_pctx, void *extra);
cnrtRet_t cnrtSetCurrentContextDevice(cnrtRuntimeContext_t pctx);
cnrtRet_t cnrtRuntimeContextCreateQueue(cnrtRuntimeContext_t pctx, cnrtQueue_t *queue);
cnrtRet_t cnrtRuntimeContextCreateNotifier(cnrtRuntimeContext_t pctx, cnrtNotifier_t *pnotifier);
cnrtRet_t cnrtRuntimeContextMallocBySizeArray(cnrtRuntimeContext_t pctx, void ***ptr, size_t *bytesArray, int length);
cnrtRet_t cnrtRuntimeContextFree(cnrtRuntimeContext_t pctx, void *ptr);
cnrtRet_t cnrtRuntimeContextFreeArray(cnrtRuntimeContext_t pctx, void **ptr, int length);
cnrtRet_t cnrtInvokeRuntimeContext(cnrtRuntimeContext_t pctx, void **params, cnrtQueue_t queue, void *extra);
cnrtRet_t cnrtInvokeRuntimeContext_V2(cnrtRuntimeContext_t pctx, cnrtParamDesc_t *param_descs, void **param_buffers,
                                      cnrtQueue_t queue, void *extra);
cnrtRet_t cnrtInvokeRuntimeContext_V3(cnrtRuntimeContext_t pctx, int *batch_sizes, void **param_buffers, cnrtQueue_t queue,
                                      void *extra);
cnrtRet_t cnrtGetRuntimeContextInfo(cnrtRuntimeContext_t pctx, cnrtRuntimeContextInfo_t key, void **out);
cnrtRet_t cnrtDestroyRuntimeContext(cnrtRuntimeContext_t pctx);

/* Memory. Sizes of cnrtGetMemInfo, cnrtSetStackMem and cnrtSetLocalMem are in MB. */
cnrtRet_t cnrtMalloc(void **pPtr, size_t bytes);
cnrtRet_t cnrtFree(void *ptr);
cnrtRet_t cnrtFreeArray(void **ptr, int length);
cnrtRet_t cnrtMallocHost(void **pPtr, size_t bytes, cnrtMemType_t type);
cnrtRet_t cnrtFreeHost(void *ptr);
cnrtRet_t cnrtMallocPeerAble(void **pPtr, size_t bytes);
cnrtRet_t cnrtMallocFrameBuffer(void **pPtr, size_t bytes);
cnrtRet_t cnrtMallocBufferEx(void **pPtr, void *param);
cnrtRet_t cnrtMemcpy(void *dest, void *src, size_t bytes, cnrtMemTransDir_t dir);
cnrtRet_t cnrtMemcpyAsync(void *dest, void *src, size_t bytes, cnrtQueue_t queue, cnrtMemTransDir_t dir);
cnrtRet_t cnrtMemcpyPeer(void *dst, int dstDevOrdinal, void *src, int srcDevOrdinal, size_t bytes);
cnrtRet_t cnrtMemcpyPeerAsync(void *dst, int dstDevOrdinal, void *src, int srcDevOrdinal, size_t bytes, cnrtQueue_t queue);
cnrtRet_t cnrtMemset(void *ptr, int c, size_t bytes);
cnrtRet_t cnrtMemsetD8(void *ptr, uint8_t uc, size_t n);
cnrtRet_t cnrtMemsetD32(void *ptr, uint32_t ui, size_t n);
cnrtRet_t cnrtMemsetD8Async(void *ptr, uint8_t uc, size_t n, cnrtQueue_t queue);
cnrtRet_t cnrtMemsetD32Async(void *ptr, uint32_t ui, size_t n, cnrtQueue_t queue);
cnrtRet_t cnrtGetMemInfo(size_t *free, size_t *total, cnrtChannelType_t channel);
cnrtRet_t cnrtGetMemorySize(void **devBasePtr, void *devPtr, size_t *bytes);
cnrtRet_t cnrtSetStackMem(unsigned int stacksize);
cnrtRet_t cnrtGetStackMem(unsigned int *pStacksize);
cnrtRet_t cnrtSetLocalMem(unsigned int local_mem_size);
cnrtRet_t cnrtGetLocalMem(unsigned int *pLocalsize);
cnrtRet_t cnrtSetCurrentChannel(cnrtChannelType_t channel);
cnrtRet_t cnrtGetCurrentChannel(cnrtChannelType_t *pChannel);
cnrtRet_t cnrtMap(void **host_ptr, void *dev_ptr);
cnrtRet_t cnrtMapRange(void **host_ptr, void *dev_ptr, size_t size);
cnrtRet_t cnrtUnmap(void *host_ptr);
cnrtRet_t cnrtCacheOperation(void *host_ptr, cnrtCacheOps_t opr);
cnrtRet_t cnrtCacheOperationRange(void *host_ptr, size_t size, cnrtCacheOps_t opr);
cnrtRet_t cnrtFindDevAddrByMappedAddr(void *mapped_host_ptr, void **dev_ptr);
cnrtRet_t cnrtFindDevAddrWithOffsetByMappedAddr(void *mapped_host_ptr, void **dev_ptr);
cnrtRet_t cnrtAcquireMemHandle(cnrtIpcMemHandle *handle, void *memPtr);
cnrtRet_t cnrtMapMemHandle(void **memPtr, cnrtIpcMemHandle handle, int flag);
cnrtRet_t cnrtUnMapMemHandle(void *memPtr);

/* Parameter descriptors (mutable shapes) */
cnrtRet_t cnrtCreateParamDesc(cnrtParamDesc_t *param_desc);
cnrtRet_t cnrtDestroyParamDesc(cnrtParamDesc_t param_desc);
cnrtRet_t cnrtCreateParamDescArray(cnrtParamDescArray_t *param_descs, int param_num);
cnrtRet_t cnrtDestroyParamDescArray(cnrtParamDescArray_t param_descs, int param_num);
cnrtRet_t cnrtSetShapeToParamDesc(cnrtParamDesc_t param_desc, int *dims, int dim_num);
cnrtRet_t cnrtSetNameToParamDesc(cnrtParamDesc_t param_desc, char *name, int name_size);
cnrtRet_t cnrtSetDataTypeToParamDesc(cnrtParamDesc_t param_desc, cnrtDataType_t dtype);
cnrtRet_t cnrtGetParamElementNum(cnrtParamDesc_t param_desc, size_t *num);
cnrtRet_t cnrtGetParamDescSize(cnrtParamDesc_t param_desc, int64_t *size);
cnrtRet_t cnrtGetShapeFromParamDesc(cnrtParamDesc_t param_desc, int **dims, int *dim_num);
cnrtRet_t cnrtGetNameFromParamDesc(cnrtParamDesc_t param_desc, char **name, int *name_size);
cnrtRet_t cnrtGetDataTypeFromParamDesc(cnrtParamDesc_t param_desc, cnrtDataType_t *dtype);
cnrtRet_t cnrtGetDimOrderFromParamDesc(cnrtParamDesc_t param_desc, cnrtDimOrder_t *dim_order);
cnrtRet_t cnrtGetParamDescFromParamDescArrayByName(cnrtParamDesc_t *param_desc, cnrtParamDescArray_t param_descs, int param_num,
                                                   const char *name);
cnrtRet_t cnrtGetIndexFromParamDescArrayByName(int *index, cnrtParamDescArray_t param_descs, int param_num, const char *name);

/* Host-side data conversion */
cnrtRet_t cnrtTransDataOrder(void *src_addr, cnrtDataType_t data_type, void *dst_addr, int dimNum, int dimValues[],
                             int dimOrder[]);
cnrtRet_t cnrtCastDataType(void *src_addr, cnrtDataType_t src_data_type, void *dst_addr, cnrtDataType_t dst_data_type,
                           int data_num, cnrtQuantizedParam_t param);
cnrtRet_t cnrtTransOrderAndCast(void *src_addr, cnrtDataType_t src_type, void *dst_addr, cnrtDataType_t dst_type,
                                cnrtQuantizedParam_t param, int dimNum, int dimValues[], int dimOrder[]);
cnrtRet_t cnrtTransDataColorOrder(void *src_addr, void *dst_addr, cnrtDataType_t data_type, cnrtDimOrder_t dim_order,
                                  int dimValues[], int colorOrder[]);
cnrtRet_t cnrtAddDataStride(void *src_addr, cnrtDataType_t data_type, void *dst_addr, int dimNum, int *dimValues, int *dimStride);
cnrtRet_t cnrtCreateQuantizedParam(cnrtQuantizedParam_t *param, int pos, float scale, int offset);
cnrtRet_t cnrtCreateQuantizedParamByChannel(cnrtQuantizedParam_t *param, int *poses, float *scales, float *offsets, int dimNum,
                                            int *dimValues, int channelDim);
cnrtRet_t cnrtDestroyQuantizedParam(cnrtQuantizedParam_t param);
cnrtRet_t cnrtReshapeNCHWToNHWC(void *dst, void *src, int n, int h, int w, int c, cnrtDataType_t type);
cnrtRet_t cnrtReshapeNHWCToNCHW(void *dst, void *src, int n, int h, int w, int c, cnrtDataType_t type);
cnrtRet_t cnrtFilterReshape(void *dst, void *src, int n, int h, int w, int c, cnrtDataType_t type);
cnrtRet_t cnrtConvertFloatToHalf(uint16_t *f16, float d);
cnrtRet_t cnrtConvertHalfToFloat(float *d, uint16_t f16);
cnrtRet_t cnrtConvertDoubleToHalf(uint16_t *f16, double d);
cnrtRet_t cnrtConvertHalfToDouble(double *d, uint16_t f16);
int cnrtDataTypeSize(cnrtDataType_t dt);

/* Old tagged parameters */
cnrtRet_t cnrtAllocParam(void **pParam);
cnrtRet_t cnrtAddParam(void *param, char *name, int len, void *data);
cnrtRet_t cnrtGetParam(void *param, char *name, void *out, int outlen);
cnrtRet_t cnrtDestroyParam(void *param);
/* The name of cnrtDestroyParam up to 4.4. */
cnrtRet_t cnrtDestoryParam(void *param);

#ifdef __cplusplus
}
#endif

#endif
