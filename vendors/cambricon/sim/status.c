/* Status codes: which number a name has in which version, and what each thread was told last. */
#include "runtime.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ABSENT 0xFFFFFFFFu

/* Numbers of 4.10; `before` where 4.4 to 4.7 have another one, ABSENT where they have none. The words are our own. */
static const struct {
    unsigned int number, before;
    const char *name, *text;
} statuses[] = {
    {CNRT_RET_SUCCESS, 0, "CNRT_RET_SUCCESS", "success"},
    {CNRT_RET_WARNING_FAKE_DEVICE, 0, "CNRT_RET_WARNING_FAKE_DEVICE", "the device is a fake one"},
    {CNRT_RET_ERR_NOT_READY, 0, "CNRT_RET_ERR_NOT_READY", "work is not finished"},
    {CNRT_RET_ERR_INVALID, 0, "CNRT_RET_ERR_INVALID", "an argument is wrong"},
    {CNRT_RET_ERR_NOMEM, 0, "CNRT_RET_ERR_NOMEM", "out of memory"},
    {CNRT_RET_ERR_NODEV, 0, "CNRT_RET_ERR_NODEV", "no such device"},
    {CNRT_RET_ERR_SYS, 0, "CNRT_RET_ERR_SYS", "a call of the operating system failed"},
    {CNRT_RET_ERR_ACCES, 0, "CNRT_RET_ERR_ACCES", "no permission"},
    {CNRT_RET_ERR_FAULT, 0, "CNRT_RET_ERR_FAULT", "a bad address"},
    {CNRT_RET_ERR_BUSY, 0, "CNRT_RET_ERR_BUSY", "busy"},
    {CNRT_RET_ERR_NORES, 0, "CNRT_RET_ERR_NORES", "out of resources"},
    {CNRT_RET_ERR_UNSUPPORTED, 0, "CNRT_RET_ERR_UNSUPPORTED", "not supported"},
    {CNRT_RET_ERR_INVALID_POINTER, 0, "CNRT_RET_ERR_INVALID_POINTER", "a pointer is wrong"},
    {CNRT_RET_ERR_NO_EXIST, 0, "CNRT_RET_ERR_NO_EXIST", "it does not exist"},
    {CNRT_RET_ERR_BROKEN, 0, "CNRT_RET_ERR_BROKEN", "data is broken"},
    {CNRT_RET_ERR_INIT, 0, "CNRT_RET_ERR_INIT", "not initialised, or too late"},
    {CNRT_RET_ERR_QUEUE, 0, "CNRT_RET_ERR_QUEUE", "the queue is wrong"},
    {CNRT_RET_ERR_OUT_RANGE, 0, "CNRT_RET_ERR_OUT_RANGE", "out of range"},
    {CNRT_RET_ERR_FUNC_CALL, 0, "CNRT_RET_ERR_FUNC_CALL", "a call inside failed"},
    {CNRT_RET_ERR_UNHANDLED, 0, "CNRT_RET_ERR_UNHANDLED", "an error that nobody handles"},
    {CNRT_RET_ERR_INVALID_TYPE, 0, "CNRT_RET_ERR_INVALID_TYPE", "of the wrong type"},
    {CNRT_RET_ERR_INVALID_OP, 0, "CNRT_RET_ERR_INVALID_OP", "not allowed now"},
    {CNRT_RET_ERR_RESHAPE, 0, "CNRT_RET_ERR_RESHAPE", "the shape cannot be changed"},
    {CNRT_RET_ERR_MEMCPY, 0, "CNRT_RET_ERR_MEMCPY", "memory cannot be copied"},
    {CNRT_RET_ERR_ENCRYPT, 0, "CNRT_RET_ERR_ENCRYPT", "encryption failed"},
    {CNRT_RET_ERR_INVALID_DATADESC, 0, "CNRT_RET_ERR_INVALID_DATADESC", "a descriptor is wrong"},
    {CNRT_RET_ERR_MAP, 0, "CNRT_RET_ERR_MAP", "memory cannot be mapped"},
    {CNRT_RET_ERR_UNMAP, 0, "CNRT_RET_ERR_UNMAP", "memory cannot be unmapped"},
    {CNRT_RET_ERR_CACHE, 0, "CNRT_RET_ERR_CACHE", "the cache operation failed"},
    {CNRT_RET_ERR_FIND_DEV_ADDR, 0, "CNRT_RET_ERR_FIND_DEV_ADDR", "no such device address"},
    {CNRT_RET_ERR_KERNEL_VERSION_TOO_HIGH, 0, "CNRT_RET_ERR_KERNEL_VERSION_TOO_HIGH", "made by a newer tool than this library"},
    {CNRT_RET_ERR_CNDRV_FUNC_CALL, ABSENT, "CNRT_RET_ERR_CNDRV_FUNC_CALL", "the driver refused"},
    {CNRT_RET_ERR_CNDEV_FUNC_CALL, ABSENT, "CNRT_RET_ERR_CNDEV_FUNC_CALL", "the telemetry library refused"},
    {CNRT_RET_ERR_IO, 632010, "CNRT_RET_ERR_IO", "input or output failed"},
    {CNRT_RET_ERR_TIMEOUT, 632015, "CNRT_RET_ERR_TIMEOUT", "timed out"},
    {CNRT_RET_ERR_NOSYS, 632017, "CNRT_RET_ERR_NOSYS", "no such call"},
    {CNRT_RET_ERR_AGAIN, 632018, "CNRT_RET_ERR_AGAIN", "try again"},
    {CNRT_RET_ERR_EXIST, 632016, "CNRT_RET_ERR_EXIST", "it exists already"},
    {CNRT_RET_ERR_MATH_OVERFLOW, 632027, "CNRT_RET_ERR_MATH_OVERFLOW", "a number is too large"},
    {CNRT_RET_ERR_MLU, 632032, "CNRT_RET_ERR_MLU", "the device reports an error"},
    {CNRT_RET_ERR_ONCHIP_CORE, 632033, "CNRT_RET_ERR_ONCHIP_CORE", "a core reports an error"},
    {CNRT_RET_ERR_GET_MEM_RANGE, 632044, "CNRT_RET_ERR_GET_MEM_RANGE", "no such allocation"},
    {CNRT_RET_ERR_GET_MEM_INFO, 632045, "CNRT_RET_ERR_GET_MEM_INFO", "the state of the memory is not known"},
    {CNRT_RET_ERR_EVENT, 632034, "CNRT_RET_ERR_EVENT", "the event is wrong"},
    {CNRT_RET_ERR_NOTIFIER, 632034, "CNRT_RET_ERR_NOTIFIER", "the notifier is wrong"},
    {CNRT_RET_ERR_GET_IMP_DEV, ABSENT, "CNRT_RET_ERR_GET_IMP_DEV", "no device for it"},
    {CNRT_RET_ERR_LOAD_MODULE, ABSENT, "CNRT_RET_ERR_LOAD_MODULE", "the module cannot be loaded"},
    {CNRT_RET_ERR_UNKNOWN, 0, "CNRT_RET_ERR_UNKNOWN", "an unknown error"},
};
#define COUNT (sizeof statuses / sizeof statuses[0])

static _Thread_local cnrtRet_t last;

struct npu_device *cn_device(void) { return npu_device(NPU_MLU220); }

unsigned int cn_version(void) {
    int64_t version = npu_setting(cn_device(), NPU_SET_API);
    return version > 0 && version < 100000 ? (unsigned int)version : CNRT_VERSION;
}

static unsigned int number_of(size_t i) {
    unsigned int version = cn_version(), number = statuses[i].number;
    if (version >= 41000 || !statuses[i].before) return number;
    if (version < 40700 && (number == CNRT_RET_ERR_GET_MEM_RANGE || number == CNRT_RET_ERR_GET_MEM_INFO)) return ABSENT;
    return statuses[i].before;
}

cnrtRet_t cn_number(cnrtRet_t code) {
    for (size_t i = 0; i < COUNT; i++)
        if (statuses[i].number == code) {
            unsigned int number = number_of(i);
            return number == ABSENT ? CNRT_RET_ERR_FUNC_CALL : (cnrtRet_t)number;
        }
    return CNRT_RET_ERR_UNKNOWN;
}

cnrtRet_t cn_fail(cnrtRet_t code, const char *call, const char *reason) {
    const char *quiet = getenv("PYASC_SIM_QUIET");
    if (!quiet || *quiet != '1') fprintf(stderr, "[simulated CNRT] %s: %s\n", call, reason);
    return last = cn_number(code);
}

static size_t find(cnrtRet_t code) {
    size_t i = 0;
    while (i < COUNT && number_of(i) != code) i++;
    return i;
}

EXPORT const char *cnrtGetErrorStr(cnrtRet_t code) {
    size_t i = find(code);
    return i < COUNT ? statuses[i].text : "not a status of this version";
}

EXPORT const char *cnrtGetErrorName(cnrtRet_t code) {
    size_t i = find(code);
    return i < COUNT ? statuses[i].name : "CNRT_RET_ERR_UNKNOWN";
}

EXPORT cnrtRet_t cnrtGetLastErr(void) {
    cnrtRet_t code = last;
    last = CNRT_RET_SUCCESS;
    return code;
}

EXPORT cnrtRet_t cnrtPeekLastErr(void) { return last; }

EXPORT void cnrtCheck(cnrtRet_t result, const char *const function, const char *const file, const int line) {
    if (result == CNRT_RET_SUCCESS) return;
    fprintf(stderr, "%s:%d: %s: %s (%u)\n", file ? file : "?", line, function ? function : "?", cnrtGetErrorStr(result), result);
}

EXPORT cnrtRet_t cnrtGetVersion(unsigned int *version) {
    if (!version) return cn_fail(CNRT_RET_ERR_INVALID, "cnrtGetVersion", "a null pointer");
    *version = cn_version();
    return CNRT_RET_SUCCESS;
}

EXPORT void cnrtGetLibVersion(int *major, int *minor, int *patch) {
    int version = (int)cn_version();
    if (major) *major = version / 10000;
    if (minor) *minor = version / 100 % 100;
    if (patch) *patch = version % 100;
}
