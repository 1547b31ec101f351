/* Start and end, the device of a thread, and what is known of the device. One card is simulated. */
#include "runtime.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LEAST_MIB 4u
#define MOST_MIB 511u

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int starts;
static unsigned int start_flags, stack_mib = 16, local_mib = 16, wait_flag = CNRT_QUEUE_SYNC_SPIN;

static _Thread_local cnrtDev_t current;
static _Thread_local cnrtChannelType_t current_channel = CNRT_CHANNEL_TYPE_NONE;

/* Start and end --------------------------------------------------------------------------------------------------------------- */

/* CNRT_DEFAULT_DEVICE: 1 and its number, 0 when it is not set, -1 when it is no device. */
static int default_device(int *ordinal) {
    const char *text = getenv("CNRT_DEFAULT_DEVICE");
    if (!text) return 0;
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno || end == text || *end || value < CN_FAKE_ORDINAL || value > 0) return -1;
    *ordinal = (int)value;
    return 1;
}

EXPORT cnrtRet_t cnrtInit(unsigned int flags) {
    static const char call[] = "cnrtInit";
    int ordinal;
    if (flags > 1) return cn_fail(CNRT_RET_ERR_INVALID, call, "the flag is neither 0, a real device, nor 1, a fake one");
    if (default_device(&ordinal) < 0) return cn_fail(CNRT_RET_ERR_INIT, call, "CNRT_DEFAULT_DEVICE names no device");
    pthread_mutex_lock(&lock);
    int clash = starts && start_flags != flags;
    if (!clash) {
        start_flags = flags;
        starts++;
    }
    pthread_mutex_unlock(&lock);
    return clash ? cn_fail(CNRT_RET_ERR_INVALID_TYPE, call, "called before with another flag") : CNRT_RET_SUCCESS;
}

EXPORT void cnrtDestroy(void) {
    pthread_mutex_lock(&lock);
    if (starts) starts--;
    pthread_mutex_unlock(&lock);
}

int cn_initialised(void) {
    pthread_mutex_lock(&lock);
    int yes = starts > 0;
    pthread_mutex_unlock(&lock);
    return yes;
}

static int lost(void) { return npu_setting(cn_device(), NPU_SET_LOST) != 0; }

cnrtRet_t cn_present(const char *call) {
    if (lost()) return cn_fail(CNRT_RET_ERR_NODEV, call, "the device is gone");
    if (npu_setting(cn_device(), NPU_SET_BUSY)) return cn_fail(CNRT_RET_ERR_BUSY, call, "another process has the device");
    return CNRT_RET_SUCCESS;
}

cnrtRet_t cn_ready(const char *call) {
    if (!cn_initialised()) return cn_fail(CNRT_RET_ERR_INIT, call, "cnrtInit was not called");
    if (!current) return cn_fail(CNRT_RET_ERR_NODEV, call, "this thread has no current device: cnrtSetCurrentDevice");
    return current == CN_FAKE_DEVICE ? CNRT_RET_SUCCESS : cn_present(call);
}

int cn_on_fake_device(void) { return current == CN_FAKE_DEVICE; }

cnrtDev_t cn_swap_current(cnrtDev_t device) {
    cnrtDev_t before = current;
    current = device;
    return before;
}

/* Devices --------------------------------------------------------------------------------------------------------------------- */

static cnrtRet_t bad_ordinal(const char *call) { return cn_fail(CNRT_RET_ERR_INVALID, call, "no such ordinal"); }

EXPORT cnrtRet_t cnrtGetDeviceCount(unsigned int *number) {
    static const char call[] = "cnrtGetDeviceCount";
    if (!number) return cn_fail(CNRT_RET_ERR_INVALID, call, "a null pointer");
    if (!cn_initialised()) return cn_fail(CNRT_RET_ERR_INIT, call, "cnrtInit was not called");
    *number = lost() ? 0 : 1;
    return CNRT_RET_SUCCESS;
}

EXPORT cnrtRet_t cnrtGetDeviceHandle(cnrtDev_t *device, int ordinal) {
    static const char call[] = "cnrtGetDeviceHandle";
    if (!device) return cn_fail(CNRT_RET_ERR_INVALID, call, "a null pointer");
    if (!cn_initialised()) return cn_fail(CNRT_RET_ERR_INIT, call, "cnrtInit was not called");
    default_device(&ordinal);
    if (ordinal < CN_FAKE_ORDINAL || ordinal > 0) return bad_ordinal(call);
    if (ordinal == 0 && lost()) return cn_fail(CNRT_RET_ERR_NODEV, call, "the device is gone");
    *device = ordinal == CN_FAKE_ORDINAL ? CN_FAKE_DEVICE : CN_REAL_DEVICE;
    return CNRT_RET_SUCCESS;
}

EXPORT cnrtRet_t cnrtSetCurrentDevice(cnrtDev_t device) {
    static const char call[] = "cnrtSetCurrentDevice";
    if (device != CN_REAL_DEVICE && device != CN_FAKE_DEVICE)
        return cn_fail(CNRT_RET_ERR_INVALID, call, "not a handle of cnrtGetDeviceHandle; an ordinal is none");
    if (!cn_initialised()) return cn_fail(CNRT_RET_ERR_INIT, call, "cnrtInit was not called");
    cnrtRet_t status = device == CN_REAL_DEVICE ? cn_present(call) : CNRT_RET_SUCCESS;
    if (status == CNRT_RET_SUCCESS) current = device;
    return status;
}

EXPORT cnrtRet_t cnrtGetCurrentDevice(cnrtDev_t *device) {
    static const char call[] = "cnrtGetCurrentDevice";
    if (!device) return cn_fail(CNRT_RET_ERR_INVALID, call, "a null pointer");
    if (!current) return cn_fail(CNRT_RET_ERR_NODEV, call, "this thread has no current device");
    *device = current;
    return CNRT_RET_SUCCESS;
}

EXPORT cnrtRet_t cnrtGetCurrentOrdinal(unsigned int *ordinal) {
    static const char call[] = "cnrtGetCurrentOrdinal";
    if (!ordinal) return cn_fail(CNRT_RET_ERR_INVALID, call, "a null pointer");
    if (!current) return cn_fail(CNRT_RET_ERR_NODEV, call, "this thread has no current device");
    *ordinal = current == CN_FAKE_DEVICE ? (unsigned int)CN_FAKE_ORDINAL : 0;
    return CNRT_RET_SUCCESS;
}

cnrtCoreVersion_t cn_core_version(void) {
    int64_t version = npu_setting(cn_device(), NPU_SET_VERSION);
    return version > 0 ? (cnrtCoreVersion_t)version : CNRT_MLU220;
}

EXPORT cnrtRet_t cnrtGetDeviceInfo(cnrtDeviceInfo_t *info, int ordinal) {
    static const char call[] = "cnrtGetDeviceInfo";
    if (!info) return cn_fail(CNRT_RET_ERR_INVALID, call, "a null pointer");
    if (!cn_initialised()) return cn_fail(CNRT_RET_ERR_INIT, call, "cnrtInit was not called");
    if (ordinal != 0) return bad_ordinal(call);
    if (lost()) return cn_fail(CNRT_RET_ERR_NODEV, call, "the device is gone");
    memset(info, 0, sizeof *info);
    snprintf(info->device_name, sizeof info->device_name, "MLU220-M2 (simulated)");
    info->core_version = cn_core_version();
    info->core_num = (int)npu_facts(cn_device())->cores;
    return CNRT_RET_SUCCESS;
}

EXPORT cnrtRet_t cnrtGetMLUdev(MLUdev_t *mlu, cnrtDev_t device) {
    if (!mlu || (device != CN_REAL_DEVICE && device != CN_FAKE_DEVICE))
        return cn_fail(CNRT_RET_ERR_INVALID, "cnrtGetMLUdev", "a null pointer, or not a device");
    *mlu = device;
    return CNRT_RET_SUCCESS;
}

EXPORT cnrtRet_t cnrtSetDeviceFlag(unsigned int flags) {
    if (flags > CNRT_QUEUE_SYNC_YIELD) return cn_fail(CNRT_RET_ERR_INVALID, "cnrtSetDeviceFlag", "no such way to wait");
    pthread_mutex_lock(&lock);
    wait_flag = flags;
    pthread_mutex_unlock(&lock);
    return CNRT_RET_SUCCESS;
}

EXPORT cnrtRet_t cnrtGetDeviceFlag(unsigned int *flags) {
    if (!flags) return cn_fail(CNRT_RET_ERR_INVALID, "cnrtGetDeviceFlag", "a null pointer");
    pthread_mutex_lock(&lock);
    *flags = wait_flag;
    pthread_mutex_unlock(&lock);
    return CNRT_RET_SUCCESS;
}

/* Limits of a device ---------------------------------------------------------------------------------------------------------- */

static cnrtRet_t set_limit(const char *call, unsigned int *limit, unsigned int mib) {
    cnrtRet_t status = cn_ready(call);
    if (status != CNRT_RET_SUCCESS) return status;
    if (mib < LEAST_MIB || mib > MOST_MIB) return cn_fail(CNRT_RET_ERR_INVALID, call, "not in 4..511 MB");
    pthread_mutex_lock(&lock);
    *limit = mib;
    pthread_mutex_unlock(&lock);
    return CNRT_RET_SUCCESS;
}

static cnrtRet_t get_limit(const char *call, const unsigned int *limit, unsigned int *mib) {
    if (!mib) return cn_fail(CNRT_RET_ERR_INVALID, call, "a null pointer");
    cnrtRet_t status = cn_ready(call);
    if (status != CNRT_RET_SUCCESS) return status;
    pthread_mutex_lock(&lock);
    *mib = *limit;
    pthread_mutex_unlock(&lock);
    return CNRT_RET_SUCCESS;
}

unsigned int cn_stack_mib(void) {
    pthread_mutex_lock(&lock);
    unsigned int mib = stack_mib;
    pthread_mutex_unlock(&lock);
    return mib;
}

EXPORT cnrtRet_t cnrtSetStackMem(unsigned int mib) { return set_limit("cnrtSetStackMem", &stack_mib, mib); }
EXPORT cnrtRet_t cnrtGetStackMem(unsigned int *mib) { return get_limit("cnrtGetStackMem", &stack_mib, mib); }
EXPORT cnrtRet_t cnrtSetLocalMem(unsigned int mib) { return set_limit("cnrtSetLocalMem", &local_mib, mib); }
EXPORT cnrtRet_t cnrtGetLocalMem(unsigned int *mib) { return get_limit("cnrtGetLocalMem", &local_mib, mib); }

int cn_channel_exists(cnrtChannelType_t channel) {
    return channel == CNRT_CHANNEL_TYPE_DUPLICATE || channel == CNRT_CHANNEL_TYPE_NONE || channel == CNRT_CHANNEL_TYPE_0;
}

EXPORT cnrtRet_t cnrtSetCurrentChannel(cnrtChannelType_t channel) {
    static const char call[] = "cnrtSetCurrentChannel";
    cnrtRet_t status = cn_ready(call);
    if (status != CNRT_RET_SUCCESS) return status;
    if (!cn_channel_exists(channel)) return cn_fail(CNRT_RET_ERR_INVALID, call, "MLU220 has channel 0 alone");
    current_channel = channel;
    return CNRT_RET_SUCCESS;
}

EXPORT cnrtRet_t cnrtGetCurrentChannel(cnrtChannelType_t *channel) {
    if (!channel) return cn_fail(CNRT_RET_ERR_INVALID, "cnrtGetCurrentChannel", "a null pointer");
    *channel = current_channel;
    return CNRT_RET_SUCCESS;
}

/* Processors and neighbours --------------------------------------------------------------------------------------------------- */

EXPORT cnrtRet_t cnrtGetPeerAccessibility(unsigned int *can, int device, int peer) {
    if (!can) return cn_fail(CNRT_RET_ERR_INVALID, "cnrtGetPeerAccessibility", "a null pointer");
    if (device != 0 || peer != 0) return bad_ordinal("cnrtGetPeerAccessibility");
    *can = 0; /* nor does a card reach itself this way */
    return CNRT_RET_SUCCESS;
}

EXPORT cnrtRet_t cnrtGetDeviceAffinity(cnrtDeviceAffinity_t *affinity, int ordinal) {
    if (!affinity) return cn_fail(CNRT_RET_ERR_INVALID, "cnrtGetDeviceAffinity", "a null pointer");
    if (ordinal != 0) return bad_ordinal("cnrtGetDeviceAffinity");
    long processors = sysconf(_SC_NPROCESSORS_CONF);
    memset(affinity, 0, sizeof *affinity);
    for (uint32_t i = 0; (long)i < processors && i < 1024 * 32; i++, affinity->cpu_count++)
        affinity->cpu_affinity_bitmap[i / 32] |= 1u << i % 32;
    return CNRT_RET_SUCCESS;
}

/* Every processor is as near to the card as the others: nothing to bind. */
EXPORT cnrtRet_t cnrtSetCurrentThreadAffinity(int ordinal) {
    return ordinal == 0 ? CNRT_RET_SUCCESS : bad_ordinal("cnrtSetCurrentThreadAffinity");
}

EXPORT cnrtRet_t cnrtClearCurrentThreadAffinity(int ordinal) {
    return ordinal == 0 ? CNRT_RET_SUCCESS : bad_ordinal("cnrtClearCurrentThreadAffinity");
}

EXPORT cnrtRet_t cnrtTopologyGetRelationship(cnrtTopologyRelationshipEnum_t *relationship, int first, int second) {
    if (!relationship) return cn_fail(CNRT_RET_ERR_INVALID, "cnrtTopologyGetRelationship", "a null pointer");
    if (first != 0 || second != 0) return bad_ordinal("cnrtTopologyGetRelationship");
    *relationship = CNRT_TOPO_SELF;
    return CNRT_RET_SUCCESS;
}

EXPORT cnrtRet_t cnrtTopologyGetNearestDevices(cnrtTopologyRelationshipEnum_t relationship, uint64_t *count, uint64_t *ordinals,
                                               int ordinal) {
    if (!count || (*count && !ordinals)) return cn_fail(CNRT_RET_ERR_INVALID, "cnrtTopologyGetNearestDevices", "a null pointer");
    if (ordinal != 0) return bad_ordinal("cnrtTopologyGetNearestDevices");
    if (relationship == CNRT_TOPO_SELF && *count) ordinals[0] = 0;
    *count = relationship == CNRT_TOPO_SELF;
    return CNRT_RET_SUCCESS;
}

EXPORT cnrtRet_t cnrtTopologyGetCpuRelatedDevices(int processor, uint64_t *count, uint64_t *ordinals) {
    static const char call[] = "cnrtTopologyGetCpuRelatedDevices";
    if (!count || (*count && !ordinals)) return cn_fail(CNRT_RET_ERR_INVALID, call, "a null pointer");
    if (processor < 0 || processor >= sysconf(_SC_NPROCESSORS_CONF)) return cn_fail(CNRT_RET_ERR_INVALID, call, "no such processor");
    if (*count) ordinals[0] = 0;
    *count = 1;
    return CNRT_RET_SUCCESS;
}
