/* libnnie.so: the NNIE calls on the simulated Hi3559A, with the checks of the vendor's library. */
#include "../nnie.h"
#include "mmz.h"
#include "wk.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT PYASC_EXPORT
#define CODE(code) ((HI_S32)(0xA0338000u | (code)))
enum {
    INVALID_DEVID = 0x01,
    ILLEGAL_PARAM = 0x03,
    EXIST = 0x04,
    UNEXIST = 0x05,
    NULL_PTR = 0x06,
    NOT_CONFIG = 0x07,
    NOT_SURPPORT = 0x08,
    NOMEM = 0x0C,
    NOTREADY = 0x10,
    BADADDR = 0x11,
    SYS_TIMEOUT = 0x40,
    QUERY_TIMEOUT = 0x41,
};

#define CORES 2
#define MAX_TASK_BUFFERS 32
#define BLOCK_S 1.0
#define FAILED_KEPT 64

struct network {
    _Atomic int references;
    uint64_t physical, size;
    uint32_t segments;
    struct npu_program *programs[SVP_NNIE_MAX_NET_SEG_NUM];
    struct network *next;
};

struct core {
    struct npu_queue *queue;
    uint64_t failed[FAILED_KEPT]; /* the last tasks that the chip did not do */
    uint32_t failed_count;
};

struct task {
    struct network *network;
    uint32_t segment, sources, destinations;
    struct core *core;
    uint64_t number; /* under `lock` */
    SVP_BLOB_S source[SVP_NNIE_MAX_INPUT_NUM], destination[SVP_NNIE_MAX_OUTPUT_NUM];
    SVP_MEM_INFO_S scratch;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct network *networks;
static struct core cores[CORES];
static SVP_MEM_INFO_S task_buffers[MAX_TASK_BUFFERS];
static uint32_t task_buffer_count;

static struct npu_device *device(void) { return npu_device(NPU_HI3559); }
static int lost(void) { return npu_setting(device(), NPU_SET_LOST) != 0; }

/* The vendor's library tells the reason on the console as well. */
static HI_S32 refuse(HI_U32 code, const char *call, const char *reason) {
    const char *quiet = getenv("PYASC_SIM_QUIET");
    if (!quiet || *quiet != '1') fprintf(stderr, "[simulated NNIE] %s: %s\n", call, reason);
    return CODE(code);
}

/* Networks ------------------------------------------------------------------------------------------------------------------- */

static void let_go(struct network *network) {
    if (atomic_fetch_sub(&network->references, 1) > 1) return;
    for (uint32_t i = 0; i < network->segments; i++) npu_unload(network->programs[i]);
    npu_count(device(), NPU_MODELS, -1);
    free(network);
}

/* Take networks that lie in a piece of memory off the list; with the lock held, the list of what was taken. */
static struct network *take_off(uint64_t physical, uint64_t size) {
    struct network *taken = NULL, **link = &networks;
    while (*link) {
        struct network *network = *link;
        if (network->physical < physical || network->physical - physical >= size) {
            link = &network->next;
            continue;
        }
        *link = network->next;
        network->next = taken;
        taken = network;
    }
    return taken;
}

static int drop_networks(uint64_t physical, uint64_t size) {
    pthread_mutex_lock(&lock);
    struct network *taken = take_off(physical, size);
    pthread_mutex_unlock(&lock);
    int count = 0;
    for (struct network *next; taken; taken = next, count++) {
        next = taken->next;
        let_go(taken);
    }
    return count;
}

static void freed(uint64_t physical, uint64_t size) { drop_networks(physical, size); }
static void set_up(void) { pyasc_sim_mmz_on_free(freed); }

static struct network *network_of(const SVP_NNIE_MODEL_S *model) {
    pthread_mutex_lock(&lock);
    struct network *network = networks;
    while (network && network->physical != model->stBase.u64PhyAddr) network = network->next;
    if (network) atomic_fetch_add(&network->references, 1);
    pthread_mutex_unlock(&lock);
    return network;
}

EXPORT HI_S32 HI_MPI_SVP_NNIE_LoadModel(const SVP_SRC_MEM_INFO_S *memory, SVP_NNIE_MODEL_S *model) {
    static const char call[] = "LoadModel";
    pthread_once(&once, set_up);
    if (!memory || !model) return refuse(NULL_PTR, call, "a null pointer");
    if (!pyasc_sim_sys_ready()) return refuse(NOTREADY, call, "HI_MPI_SYS_Init was not called");
    if (lost()) return CODE(SYS_TIMEOUT);
    if (!memory->u64PhyAddr || !memory->u64VirAddr || memory->u64PhyAddr % 16 || !memory->u32Size)
        return refuse(ILLEGAL_PARAM, call, "the model's address is 0 or not aligned to 16, or its size is 0");
    const uint8_t *data = pyasc_sim_mmz(memory->u64PhyAddr, memory->u32Size);
    if (!data) return refuse(BADADDR, call, "the model does not lie in MMZ memory");
    struct network *network = calloc(1, sizeof *network);
    if (!network) return CODE(NOMEM);
    int64_t version = npu_setting(device(), NPU_SET_VERSION);
    char reason[256] = "";
    int result = wk_load(data, memory->u32Size, version ? (uint32_t)version : 11, model, network->programs, reason, sizeof reason);
    network->segments = SVP_NNIE_MAX_NET_SEG_NUM;
    network->references = 1;
    network->physical = memory->u64PhyAddr;
    network->size = memory->u32Size;
    npu_count(device(), NPU_MODELS, 1);
    if (result) {
        let_go(network);
        memset(model, 0, sizeof *model);
        return refuse(ILLEGAL_PARAM, call, reason);
    }
    network->segments = model->u32NetSegNum;
    model->stBase = *memory;
    drop_networks(memory->u64PhyAddr, 1);
    pthread_mutex_lock(&lock);
    network->next = networks;
    networks = network;
    pthread_mutex_unlock(&lock);
    return HI_SUCCESS;
}

EXPORT HI_S32 HI_MPI_SVP_NNIE_UnloadModel(SVP_NNIE_MODEL_S *model) {
    if (!model) return refuse(NULL_PTR, "UnloadModel", "a null pointer");
    if (!drop_networks(model->stBase.u64PhyAddr, 1)) return refuse(UNEXIST, "UnloadModel", "no such model is loaded");
    memset(model, 0, sizeof *model);
    return HI_SUCCESS;
}

/* Task buffers ---------------------------------------------------------------------------------------------------------------- */

static uint32_t align16(uint32_t size) { return (size + 15) / 16 * 16; }

/* The formula of OpenIPC's library; the vendor's own sizes are not known. */
static uint32_t task_buffer_size(const SVP_NNIE_SEG_S *segment, uint32_t inputs) {
    uint32_t addresses = 0;
    for (uint32_t i = 0; i < segment->u16SrcNum; i++) {
        SVP_BLOB_TYPE_E type = segment->astSrcNode[i].enType;
        int yuv = type == SVP_BLOB_TYPE_YVU420SP || type == SVP_BLOB_TYPE_YVU422SP;
        addresses += (type == SVP_BLOB_TYPE_U8 && segment->astSrcNode[i].unShape.stWhc.u32Chn == 3 ? 4 : yuv ? 2 : 1) * inputs;
    }
    return align16(4u * (segment->u16SrcNum + segment->u16DstNum)) + align16(8u * segment->u16DstNum) + align16(8u * addresses);
}

EXPORT HI_S32 HI_MPI_SVP_NNIE_GetTskBufSize(HI_U32 inputs, HI_U32 boxes, const SVP_NNIE_MODEL_S *model, HI_U32 sizes[], HI_U32 segments) {
    static const char call[] = "GetTskBufSize";
    if (!model || !sizes) return refuse(NULL_PTR, call, "a null pointer");
    if (!inputs || inputs > 256) return refuse(ILLEGAL_PARAM, call, "the number of inputs is not in 1..256");
    if (boxes > 5000) return refuse(ILLEGAL_PARAM, call, "more than 5000 boxes");
    if (segments != model->u32NetSegNum || segments > SVP_NNIE_MAX_NET_SEG_NUM)
        return refuse(ILLEGAL_PARAM, call, "the number of segments is not the model's");
    for (HI_U32 i = 0; i < segments; i++) sizes[i] = task_buffer_size(&model->astSeg[i], inputs);
    return HI_SUCCESS;
}

EXPORT HI_S32 HI_MPI_SVP_NNIE_AddTskBuf(const SVP_MEM_INFO_S *buffer) {
    static const char call[] = "AddTskBuf";
    if (!buffer) return refuse(NULL_PTR, call, "a null pointer");
    if (!buffer->u64PhyAddr || !buffer->u32Size) return refuse(ILLEGAL_PARAM, call, "the address or the size is 0");
    if (!pyasc_sim_mmz(buffer->u64PhyAddr, buffer->u32Size)) return refuse(BADADDR, call, "the buffer does not lie in MMZ memory");
    HI_S32 result = HI_SUCCESS;
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < task_buffer_count; i++)
        if (task_buffers[i].u64PhyAddr == buffer->u64PhyAddr) result = CODE(EXIST);
    if (!result && task_buffer_count == MAX_TASK_BUFFERS) result = CODE(NOMEM);
    if (!result) task_buffers[task_buffer_count++] = *buffer;
    pthread_mutex_unlock(&lock);
    return result;
}

EXPORT HI_S32 HI_MPI_SVP_NNIE_RemoveTskBuf(const SVP_MEM_INFO_S *buffer) {
    static const char call[] = "RemoveTskBuf";
    if (!buffer) return refuse(NULL_PTR, call, "a null pointer");
    HI_S32 result = CODE(UNEXIST);
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < task_buffer_count; i++)
        if (task_buffers[i].u64PhyAddr == buffer->u64PhyAddr && task_buffers[i].u32Size == buffer->u32Size) {
            task_buffers[i] = task_buffers[--task_buffer_count];
            result = HI_SUCCESS;
            break;
        }
    pthread_mutex_unlock(&lock);
    return result;
}

/* Running -------------------------------------------------------------------------------------------------------------------- */

static int is_yuv(SVP_BLOB_TYPE_E type) { return type == SVP_BLOB_TYPE_YVU420SP || type == SVP_BLOB_TYPE_YVU422SP; }
static int is_vector(SVP_BLOB_TYPE_E type) { return type == SVP_BLOB_TYPE_VEC_S32 || type == SVP_BLOB_TYPE_SEQ_S32; }

/* Bytes of one picture, vector or step. */
static uint64_t frame_bytes(const SVP_BLOB_S *blob) {
    uint64_t stride = blob->u32Stride, height = blob->unShape.stWhc.u32Height;
    switch (blob->enType) {
    case SVP_BLOB_TYPE_YVU420SP: return stride * height * 3 / 2;
    case SVP_BLOB_TYPE_YVU422SP: return stride * height * 2;
    case SVP_BLOB_TYPE_VEC_S32:
    case SVP_BLOB_TYPE_SEQ_S32: return stride;
    default: return stride * height * blob->unShape.stWhc.u32Chn;
    }
}

/* The steps of each sequence stand in an array in the processor's memory. */
static uint64_t frames(const SVP_BLOB_S *blob) {
    if (blob->enType != SVP_BLOB_TYPE_SEQ_S32) return blob->u32Num;
    uint64_t total = 0;
    for (HI_U32 i = 0; i < blob->u32Num; i++) total += ((const HI_U32 *)(uintptr_t)blob->unShape.stSeq.u64VirAddrStep)[i];
    return total;
}

/* NULL, or what is wrong with a blob for a node. */
static const char *wrong_blob(const SVP_BLOB_S *blob, const SVP_NNIE_NODE_S *node, int source, uint32_t most_steps) {
    uint32_t width = blob->unShape.stWhc.u32Width, height = blob->unShape.stWhc.u32Height, channels = blob->unShape.stWhc.u32Chn;
    uint32_t size = blob->enType == SVP_BLOB_TYPE_U8 || is_yuv(blob->enType) ? 1 : 4;
    if (blob->enType >= SVP_BLOB_TYPE_BUTT) return "an unknown type";
    if (!source && size != 4) return "a destination is S32, VEC_S32 or SEQ_S32";
    int yuv_for_u8 = is_yuv(blob->enType) && node->enType == SVP_BLOB_TYPE_U8;
    if (blob->enType != node->enType && !yuv_for_u8) return "its type is not the node's";
    if (!blob->u32Num || blob->u32Num > (size == 1 || blob->enType == SVP_BLOB_TYPE_SEQ_S32 ? 256u : 5000u)) return "u32Num is out of range";
    if (blob->enType == SVP_BLOB_TYPE_SEQ_S32) {
        if (blob->unShape.stSeq.u32Dim != node->unShape.u32Dim) return "u32Dim is not the node's";
        if (!blob->unShape.stSeq.u64VirAddrStep) return "the steps are null";
        for (HI_U32 i = 0; i < blob->u32Num; i++) {
            HI_U32 steps = ((const HI_U32 *)(uintptr_t)blob->unShape.stSeq.u64VirAddrStep)[i];
            if (!steps || steps > most_steps) return "a sequence has more steps than the model takes, or none";
        }
        width = blob->unShape.stSeq.u32Dim;
    } else {
        if (width != node->unShape.stWhc.u32Width || height != node->unShape.stWhc.u32Height || channels != node->unShape.stWhc.u32Chn)
            return "its size is not the node's";
        if (blob->enType == SVP_BLOB_TYPE_U8 && channels != 1 && channels != 3) return "U8 has 1 or 3 channels";
        if (is_yuv(blob->enType) && channels != 3) return "YUV has 3 channels";
        if (size == 1 && (width < 8 || width > 4096 || height < 8 || height > 4096)) return "width and height of a picture are in 8..4096";
        if (is_yuv(blob->enType) && (width % 2 || (blob->enType == SVP_BLOB_TYPE_YVU420SP && height % 2)))
            return "YUV has an even width, and in 4:2:0 an even height";
        if (blob->enType == SVP_BLOB_TYPE_VEC_S32 && (height != 1 || channels != 1)) return "a vector has height 1 and channel 1";
    }
    if (blob->u32Stride % 16 || blob->u32Stride < (uint64_t)width * size) return "u32Stride is no multiple of 16, or less than a line";
    if (!blob->u64PhyAddr || blob->u64PhyAddr % 16) return "its physical address is 0 or not aligned to 16";
    if (!pyasc_sim_mmz(blob->u64PhyAddr, frame_bytes(blob) * frames(blob))) return "it does not lie in MMZ memory";
    return NULL;
}

static uint8_t clamp(int value) { return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value); }

/* A picture in YVU with its chroma lines as planes of blue, green and red (BT.601, video range, in 8 bits after the point). */
static void to_planes(const SVP_BLOB_S *blob, const uint8_t *from, uint8_t *planes) {
    uint32_t width = blob->unShape.stWhc.u32Width, height = blob->unShape.stWhc.u32Height, stride = blob->u32Stride;
    const uint8_t *chroma = from + (size_t)stride * height;
    size_t plane = (size_t)width * height;
    for (uint32_t y = 0; y < height; y++)
        for (uint32_t x = 0; x < width; x++) {
            const uint8_t *vu = chroma + (size_t)stride * (blob->enType == SVP_BLOB_TYPE_YVU420SP ? y / 2 : y) + x / 2 * 2;
            int c = 298 * (from[(size_t)stride * y + x] - 16) + 128, e = vu[0] - 128, d = vu[1] - 128;
            size_t at = (size_t)y * width + x;
            planes[at] = clamp((c + 516 * d) >> 8);
            planes[plane + at] = clamp((c - 100 * d - 208 * e) >> 8);
            planes[2 * plane + at] = clamp((c + 409 * e) >> 8);
        }
}

static struct npu_blob blob_at(const SVP_BLOB_S *blob, uint8_t *data) {
    struct npu_blob made = {data, NPU_BLOB_SQ20_12, blob->u32Stride, 4, 4};
    if (blob->enType == SVP_BLOB_TYPE_U8) {
        made.type = NPU_BLOB_U8;
        made.stride_w = 1;
    }
    if (!is_vector(blob->enType)) made.stride_c = (int64_t)blob->u32Stride * blob->unShape.stWhc.u32Height;
    return made;
}

static void spoil(const struct task *task) {
    const SVP_BLOB_S *blob = &task->destination[0];
    uint8_t *bytes = pyasc_sim_mmz(blob->u64PhyAddr, frame_bytes(blob));
    for (uint64_t i = 0; bytes && i < frame_bytes(blob); i += 37) bytes[i] ^= 0x5A;
}

static int run(struct task *task) {
    const struct npu_program *program = task->network->programs[task->segment];
    uint8_t *scratch = pyasc_sim_mmz(task->scratch.u64PhyAddr, task->scratch.u32Size);
    if (!scratch) return -1;
    scratch += (64 - (uintptr_t)scratch % 64) % 64;
    uint8_t *planes[SVP_NNIE_MAX_INPUT_NUM] = {0};
    int done = 0;
    for (uint64_t frame = 0; frame < frames(&task->source[0]) && !done; frame++) {
        struct npu_blob inputs[SVP_NNIE_MAX_INPUT_NUM], outputs[SVP_NNIE_MAX_OUTPUT_NUM];
        for (uint32_t i = 0; i < task->sources && !done; i++) {
            const SVP_BLOB_S *blob = &task->source[i];
            uint8_t *at = pyasc_sim_mmz(blob->u64PhyAddr + frame * frame_bytes(blob), frame_bytes(blob));
            if (at && is_yuv(blob->enType)) {
                size_t pixels = (size_t)blob->unShape.stWhc.u32Width * blob->unShape.stWhc.u32Height;
                if (!planes[i]) planes[i] = malloc(3 * pixels);
                if (planes[i]) to_planes(blob, at, planes[i]);
                inputs[i] = (struct npu_blob){planes[i], NPU_BLOB_U8, blob->unShape.stWhc.u32Width, 1, (int64_t)pixels};
                at = planes[i];
            } else {
                inputs[i] = blob_at(blob, at);
            }
            if (!at) done = -1; /* freed while the task waited */
        }
        for (uint32_t i = 0; i < task->destinations && !done; i++) {
            const SVP_BLOB_S *blob = &task->destination[i];
            outputs[i] = blob_at(blob, pyasc_sim_mmz(blob->u64PhyAddr + frame * frame_bytes(blob), frame_bytes(blob)));
            if (!outputs[i].data) done = -1;
        }
        if (!done) npu_run(program, inputs, outputs, scratch);
    }
    for (uint32_t i = 0; i < SVP_NNIE_MAX_INPUT_NUM; i++) free(planes[i]);
    if (!done && npu_take(device(), NPU_SET_CORRUPT)) spoil(task);
    return done;
}

static void perform(void *context, int was_lost) {
    struct task *task = context;
    int failed = was_lost || run(task);
    pthread_mutex_lock(&lock);
    if (failed) task->core->failed[task->core->failed_count++ % FAILED_KEPT] = task->number;
    pthread_mutex_unlock(&lock);
    let_go(task->network);
    free(task);
}

static const char *wrong_control(const SVP_NNIE_FORWARD_CTRL_S *control, const SVP_NNIE_MODEL_S *model, HI_BOOL instant) {
    if (instant != HI_FALSE && instant != HI_TRUE) return "bInstant is neither HI_TRUE nor HI_FALSE";
    if (control->u32NetSegId >= model->u32NetSegNum) return "no such segment";
    const SVP_NNIE_SEG_S *segment = &model->astSeg[control->u32NetSegId];
    if (control->u32SrcNum != segment->u16SrcNum || control->u32DstNum != segment->u16DstNum)
        return "the number of sources or destinations is not the segment's";
    if (!control->stTmpBuf.u64PhyAddr || control->stTmpBuf.u64PhyAddr % 16 || control->stTmpBuf.u32Size < model->u32TmpBufSize)
        return "the temporary buffer is not aligned, or smaller than u32TmpBufSize";
    if (!control->stTskBuf.u64PhyAddr || control->stTskBuf.u64PhyAddr % 16 || control->stTskBuf.u32Size < task_buffer_size(segment, 1))
        return "the task buffer is not aligned, or too small";
    if (!pyasc_sim_mmz(control->stTmpBuf.u64PhyAddr, control->stTmpBuf.u32Size) ||
        !pyasc_sim_mmz(control->stTskBuf.u64PhyAddr, control->stTskBuf.u32Size))
        return "the temporary or task buffer does not lie in MMZ memory";
    return NULL;
}

/* A core's queue, made with its first task; with the lock held. */
static struct npu_queue *queue_of(struct core *core) {
    if (!core->queue) core->queue = npu_queue_create(device());
    return core->queue;
}

static HI_S32 submit(struct task *task, SVP_NNIE_ID_E id, SVP_NNIE_HANDLE *handle) {
    struct npu_work work = npu_count_work(task->network->programs[task->segment]);
    double seconds = npu_seconds(device(), &work, 1) * (double)frames(&task->source[0]);
    task->core = &cores[id];
    pthread_mutex_lock(&lock);
    struct npu_queue *queue = queue_of(task->core);
    if (queue) task->number = npu_enqueue(queue, perform, task, 1, seconds);
    uint64_t number = queue ? task->number : 0;
    if (number) *handle = (SVP_NNIE_HANDLE)(number & 0x7FFFFFFF);
    pthread_mutex_unlock(&lock);
    return number ? HI_SUCCESS : CODE(NOMEM);
}

EXPORT HI_S32 HI_MPI_SVP_NNIE_Forward(SVP_NNIE_HANDLE *handle, const SVP_SRC_BLOB_S sources[], const SVP_NNIE_MODEL_S *model,
                                      const SVP_DST_BLOB_S destinations[], const SVP_NNIE_FORWARD_CTRL_S *control, HI_BOOL instant) {
    static const char call[] = "Forward";
    pthread_once(&once, set_up);
    if (!handle || !sources || !model || !destinations || !control) return refuse(NULL_PTR, call, "a null pointer");
    if (!pyasc_sim_sys_ready()) return refuse(NOTREADY, call, "HI_MPI_SYS_Init was not called");
    if (control->enNnieId >= CORES) return refuse(INVALID_DEVID, call, "no such core");
    if (lost()) return CODE(SYS_TIMEOUT);
    struct network *network = network_of(model);
    if (!network) return refuse(UNEXIST, call, "the model is not loaded, or its memory was freed");
    const char *wrong = wrong_control(control, model, instant);
    const SVP_NNIE_SEG_S *segment = wrong ? NULL : &model->astSeg[control->u32NetSegId];
    for (HI_U32 i = 0; !wrong && i < control->u32SrcNum; i++) {
        wrong = wrong_blob(&sources[i], &segment->astSrcNode[i], 1, segment->u16MaxStep);
        if (!wrong && frames(&sources[i]) != frames(&sources[0])) wrong = "sources of different numbers of pictures";
    }
    for (HI_U32 i = 0; !wrong && i < control->u32DstNum; i++) {
        wrong = wrong_blob(&destinations[i], &segment->astDstNode[i], 0, segment->u16MaxStep);
        if (!wrong && frames(&destinations[i]) != frames(&sources[0])) wrong = "a destination for another number of pictures";
    }
    struct task *task = wrong ? NULL : calloc(1, sizeof *task);
    if (!task) {
        let_go(network);
        return wrong ? refuse(ILLEGAL_PARAM, call, wrong) : CODE(NOMEM);
    }
    task->network = network;
    task->segment = control->u32NetSegId;
    task->sources = control->u32SrcNum;
    task->destinations = control->u32DstNum;
    memcpy(task->source, sources, task->sources * sizeof *sources);
    memcpy(task->destination, destinations, task->destinations * sizeof *destinations);
    task->scratch = control->stTmpBuf;
    HI_S32 result = submit(task, control->enNnieId, handle);
    if (result) {
        let_go(network);
        free(task);
    }
    return result;
}

EXPORT HI_S32 HI_MPI_SVP_NNIE_ForwardWithBbox(SVP_NNIE_HANDLE *handle, const SVP_SRC_BLOB_S sources[], const SVP_SRC_BLOB_S boxes[],
                                              const SVP_NNIE_MODEL_S *model, const SVP_DST_BLOB_S destinations[],
                                              const SVP_NNIE_FORWARD_WITHBBOX_CTRL_S *control, HI_BOOL instant) {
    static const char call[] = "ForwardWithBbox";
    (void)instant;
    if (!handle || !sources || !boxes || !model || !destinations || !control) return refuse(NULL_PTR, call, "a null pointer");
    if (control->enNnieId >= CORES) return refuse(INVALID_DEVID, call, "no such core");
    if (control->u32NetSegId >= model->u32NetSegNum || control->u32ProposalNum != 1)
        return refuse(ILLEGAL_PARAM, call, "no such segment, or u32ProposalNum is not 1");
    if (!model->astSeg[control->u32NetSegId].u16RoiPoolNum)
        return refuse(ILLEGAL_PARAM, call, "the segment has no ROI pooling: use Forward");
    return refuse(NOT_SURPPORT, call, "the simulator has no ROI pooling");
}

static int has_failed(const struct core *core, uint64_t number) {
    for (uint32_t i = 0; i < FAILED_KEPT && i < core->failed_count; i++)
        if (core->failed[i] == number) return 1;
    return 0;
}

/* The task of a handle, which is its number without the high bits: the last one that fits. */
static uint64_t task_of(struct core *core, SVP_NNIE_HANDLE handle) {
    if (!core->queue || handle < 0) return 0;
    uint64_t last = npu_queue_last(core->queue), number = (last & ~0x7FFFFFFFull) | (uint64_t)handle;
    if (number > last) number = number > 0x7FFFFFFF ? number - 0x80000000ull : 0;
    return number;
}

static HI_S32 query(const char *call, SVP_NNIE_ID_E id, SVP_NNIE_HANDLE handle, HI_BOOL *finished, double seconds) {
    if (!finished) return refuse(NULL_PTR, call, "a null pointer");
    if (id >= CORES) return refuse(INVALID_DEVID, call, "no such core");
    pthread_mutex_lock(&lock);
    struct core *core = &cores[id];
    uint64_t number = task_of(core, handle);
    pthread_mutex_unlock(&lock);
    *finished = HI_FALSE;
    if (!number) return refuse(ILLEGAL_PARAM, call, "no such task");
    if (lost()) return CODE(SYS_TIMEOUT);
    if (seconds != 0 && npu_take(device(), NPU_SET_QUERY_TIMEOUT)) return CODE(QUERY_TIMEOUT);
    int ended = npu_queue_wait(core->queue, number, seconds);
    if (!ended) return seconds != 0 ? CODE(QUERY_TIMEOUT) : HI_SUCCESS;
    pthread_mutex_lock(&lock);
    int failed = has_failed(core, number);
    pthread_mutex_unlock(&lock);
    *finished = HI_TRUE;
    return failed ? CODE(SYS_TIMEOUT) : HI_SUCCESS;
}

EXPORT HI_S32 HI_MPI_SVP_NNIE_Query(SVP_NNIE_ID_E id, SVP_NNIE_HANDLE handle, HI_BOOL *finished, HI_BOOL block) {
    if (block != HI_FALSE && block != HI_TRUE) return refuse(ILLEGAL_PARAM, "Query", "bBlock is neither HI_TRUE nor HI_FALSE");
    return query("Query", id, handle, finished, block ? BLOCK_S : 0);
}

EXPORT HI_S32 HI_MPI_SVP_NNIE_Query_Timeout(SVP_NNIE_ID_E id, SVP_NNIE_HANDLE handle, HI_S32 milliseconds, HI_BOOL *finished) {
    return query("Query_Timeout", id, handle, finished, milliseconds < 0 ? -1 : milliseconds / 1000.0);
}
