/* libcndev.so: what the simulated card tells of itself. The setting `cndev` gives the age of the library, with whose structures it answers. */
#include "../../sim/device.h"
#include "../cndev.h"

#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define VIRTUAL_MIB 1048576
#define FULL_MHZ 1000 /* a guess: the clock is not published */
#define DDR_MHZ 1600  /* a guess as well */
#define LANES 2
#define PCIE_GENERATION 3
#define KIB_A_MIB 1024u
/* The card in the list of the bus. */
enum { DOMAIN = 0, BUS = 1, DEVICE = 0, FUNCTION = 0, VENDOR_ID = 0xCABC, DEVICE_ID = 0x0220, SUBSYSTEM_ID = 0x0033 };
/* Two engines for video, one for pictures and one for scaling: guesses. */
enum { VIDEO_ENGINES = 2, PICTURE_ENGINES = 1, SCALERS = 1 };

static _Atomic int starts;

static struct npu_device *device(void) { return npu_device(NPU_MLU220); }
static int year(void) { return (int)npu_setting(device(), NPU_SET_CNDEV); }
static int lost(void) { return npu_setting(device(), NPU_SET_LOST) != 0; }
static int rounded(double value) { return (int)(value + 0.5); }

EXPORT cndevRet_t cndevInit(int reserved) {
    if (reserved) return CNDEV_ERROR_INVALID_ARGUMENT;
    atomic_fetch_add(&starts, 1);
    return CNDEV_SUCCESS;
}

EXPORT cndevRet_t cndevRelease(void) {
    int before = atomic_load(&starts);
    while (before > 0 && !atomic_compare_exchange_weak(&starts, &before, before - 1)) continue;
    return before > 0 ? CNDEV_SUCCESS : CNDEV_ERROR_UNINITIALIZED;
}

EXPORT const char *cndevGetErrorString(cndevRet_t code) {
    static const char *const texts[] = {
        [CNDEV_SUCCESS] = "success",
        [CNDEV_ERROR_NO_DRIVER] = "no driver",
        [CNDEV_ERROR_LOW_DRIVER_VERSION] = "the driver is too old",
        [CNDEV_ERROR_UNSUPPORTED_API_VERSION] = "the version in the structure is not supported",
        [CNDEV_ERROR_UNINITIALIZED] = "cndevInit was not called",
        [CNDEV_ERROR_INVALID_ARGUMENT] = "an argument is wrong",
        [CNDEV_ERROR_INVALID_DEVICE_ID] = "no such card",
        [CNDEV_ERROR_UNKNOWN] = "an unknown error",
        [CNDEV_ERROR_MALLOC] = "out of memory",
        [CNDEV_ERROR_INSUFFICIENT_SPACE] = "the array is too short",
        [CNDEV_ERROR_NOT_SUPPORTED] = "not supported",
    };
    return (size_t)code < sizeof texts / sizeof texts[0] ? texts[code] : "not a status of this version";
}

static cndevRet_t check_version(int version) {
    if (!atomic_load(&starts)) return CNDEV_ERROR_UNINITIALIZED;
    int newest = year() > 2022 ? 6 : CNDEV_VERSION_5;
    return version < CNDEV_VERSION_1 || version > newest ? CNDEV_ERROR_UNSUPPORTED_API_VERSION : CNDEV_SUCCESS;
}

static cndevRet_t check_card(int card) {
    if (!atomic_load(&starts)) return CNDEV_ERROR_UNINITIALIZED;
    if (card != 0) return CNDEV_ERROR_INVALID_DEVICE_ID;
    return lost() ? CNDEV_ERROR_UNKNOWN : CNDEV_SUCCESS;
}

/* A structure of a caller, which begins with the version; it has what comes after that. */
static cndevRet_t check(const void *info, int card) {
    int version;
    if (!info) return CNDEV_ERROR_INVALID_ARGUMENT;
    memcpy(&version, info, sizeof version);
    cndevRet_t status = check_version(version);
    return status == CNDEV_SUCCESS ? check_card(card) : status;
}

/* Everything but the version, which stays the caller's; as much as the structure of this library's age has. */
static void put(void *info, const void *made, size_t size) {
    memcpy((char *)info + sizeof(int), (const char *)made + sizeof(int), size - sizeof(int));
}
#define PUT(info, made) put(info, &(made), sizeof *(info))

/* The library and the cards --------------------------------------------------------------------------------------------------- */

EXPORT cndevRet_t cndevGetDeviceCount(cndevCardInfo_t *info) {
    if (!info) return CNDEV_ERROR_INVALID_ARGUMENT;
    cndevRet_t status = check_version(info->version);
    if (status == CNDEV_SUCCESS) info->Number = lost() ? 0 : 1;
    return status;
}

EXPORT cndevRet_t cndevGetLibVersion(cndevLibVersionInfo_t *info) {
    if (!info) return CNDEV_ERROR_INVALID_ARGUMENT;
    cndevRet_t status = check_version(info->version);
    const cndevLibVersionInfo_t made = {.LibMajorVersion = 1, .LibMinorVersion = 9, .LibBuildVersion = 0};
    if (status == CNDEV_SUCCESS) PUT(info, made);
    return status;
}

/* The driver is the one that public systems with CNRT 4.10.1 show. */
static const cndevVersionInfo_t versions = {.MCUMajorVersion = 1, .MCUMinorVersion = 1, .MCUBuildVersion = 1, .DriverMajorVersion = 4,
                                            .DriverMinorVersion = 9, .DriverBuildVersion = 2};

EXPORT cndevRet_t cndevGetLowestSupportDriverVersion(cndevVersionInfo_t *info) {
    if (!info) return CNDEV_ERROR_INVALID_ARGUMENT;
    cndevRet_t status = check_version(info->version);
    const cndevVersionInfo_t made = {.DriverMajorVersion = 4};
    if (status == CNDEV_SUCCESS) PUT(info, made);
    return status;
}

EXPORT cndevRet_t cndevGetVersionInfo(cndevVersionInfo_t *info, int card) {
    cndevRet_t status = check(info, card);
    if (status == CNDEV_SUCCESS) PUT(info, versions);
    return status;
}

EXPORT const char *cndevGetCardNameString(cndevNameEnum_t name) {
    switch (name) {
    case MLU100: return "MLU100";
    case MLU270: return "MLU270";
    case MLU220_M2: return "MLU220-M2 (simulated)";
    case MLU220_EDGE: return "MLU220-EDGE";
    case MLU220_EVB: return "MLU220-EVB";
    case MLU220_M2i: return "MLU220-M2i";
    default: return "Unknown";
    }
}

EXPORT cndevRet_t cndevGetCardName(cndevCardName_t *info, int card) {
    cndevRet_t status = check(info, card);
    if (status == CNDEV_SUCCESS) info->id = MLU220_M2;
    return status;
}

EXPORT cndevRet_t cndevGetCardSN(cndevCardSN_t *info, int card) {
    cndevRet_t status = check(info, card);
    const cndevCardSN_2021_t made = {.sn = 0, .mother_board_sn = 0}; /* a simulated card has no serial number */
    if (status == CNDEV_SUCCESS) put(info, &made, year() >= 2021 ? sizeof made : sizeof *info);
    return status;
}

/* A card that is gone still answers here: it is ill. */
EXPORT cndevRet_t cndevGetCardHealthState(cndevCardHealthState_t *info, int card) {
    cndevRet_t status = check(info, card);
    if (status != CNDEV_SUCCESS && !(status == CNDEV_ERROR_UNKNOWN && lost())) return status;
    info->health = !lost();
    return CNDEV_SUCCESS;
}

EXPORT cndevRet_t cndevGetCoreCount(cndevCardCoreCount_t *info, int card) {
    cndevRet_t status = check(info, card);
    if (status == CNDEV_SUCCESS) info->count = (int)npu_facts(device())->cores;
    return status;
}

EXPORT cndevRet_t cndevGetClusterCount(cndevCardClusterCount_t *info, int card) {
    cndevRet_t status = check(info, card);
    if (status == CNDEV_SUCCESS) info->count = 1;
    return status;
}

/* How it fares ---------------------------------------------------------------------------------------------------------------- */

EXPORT cndevRet_t cndevGetMemoryUsage(cndevMemoryInfo_t *info, int card) {
    cndevRet_t status = check(info, card);
    if (status != CNDEV_SUCCESS) return status;
    struct npu_usage usage = npu_usage(device());
    int64_t used = (int64_t)((usage.used + (1u << 20) - 1) >> 20);
    cndevMemoryInfo_t made = {.PhysicalMemoryTotal = (int64_t)(usage.total >> 20), .PhysicalMemoryUsed = used, .VirtualMemoryTotal = VIRTUAL_MIB,
                              .VirtualMemoryUsed = used, .ChannelNumber = 1};
    made.ChannelMemoryUsed[0] = used;
    PUT(info, made);
    return status;
}

static int tenths(double value) { return rounded(value * 10) % 10; }

EXPORT cndevRet_t cndevGetPowerInfo(cndevPowerInfo_t *info, int card) {
    cndevRet_t status = check(info, card);
    if (status != CNDEV_SUCCESS) return status;
    double watts = npu_usage(device()).power_w, most = npu_facts(device())->busy_w;
    const cndevPowerInfo_2022_t made = {.usage = rounded(watts * 10) / 10, .usageDecimal = tenths(watts), .cap = (int)most, .machine = 0,
                                        .capDecimal = tenths(most), .thermalDesignPower = (uint16_t)rounded(most)};
    put(info, &made, year() >= 2022 ? sizeof made : year() >= 2021 ? sizeof(cndevPowerInfo_2021_t) : sizeof *info);
    return status;
}

EXPORT cndevRet_t cndevGetTemperatureInfo(cndevTemperatureInfo_t *info, int card) {
    cndevRet_t status = check(info, card);
    if (status != CNDEV_SUCCESS) return status;
    int celsius = rounded(npu_usage(device()).temperature_c);
    const cndevTemperatureInfo_t first = {.Board = celsius, .Cluster = {celsius}};
    const cndevTemperatureInfo_2021_t second = {.Board = celsius, .Cluster = {celsius}, .MemoryDie = {celsius}, .Chip = celsius, .Case = celsius};
    const cndevTemperatureInfo_2022_t third = {.board = celsius, .cluster = {celsius}, .memoryDie = {celsius}, .chip = celsius, .memory = celsius};
    if (year() >= 2022)
        put(info, &third, sizeof third);
    else if (year() >= 2021)
        put(info, &second, sizeof second);
    else
        put(info, &first, sizeof first);
    return status;
}

EXPORT cndevRet_t cndevGetDeviceUtilizationInfo(cndevUtilizationInfo_t *info, int card) {
    cndevRet_t status = check(info, card);
    if (status != CNDEV_SUCCESS) return status;
    int percent = rounded(npu_usage(device()).busy * 100);
    cndevUtilizationInfo_2021_t made = {.BoardUtilization = percent};
    for (uint32_t i = 0; i < npu_facts(device())->cores; i++) made.CoreUtilization[i] = percent;
    put(info, &made, year() >= 2021 ? sizeof made : sizeof *info);
    return status;
}

EXPORT cndevRet_t cndevGetFrequencyInfo(cndevFrequencyInfo_t *info, int card) {
    cndevRet_t status = check(info, card);
    if (status != CNDEV_SUCCESS) return status;
    int64_t percent = npu_setting(device(), NPU_SET_THROTTLE);
    const cndevFrequencyInfo_2021_t made = {.Frequency = (int)(FULL_MHZ * percent / 100), .DdrFreq = DDR_MHZ, .OvertempDfsFlag = percent < 100};
    put(info, &made, year() >= 2021 ? sizeof made : sizeof *info);
    return status;
}

/* The card has no fan. */
EXPORT cndevRet_t cndevGetFanSpeedInfo(cndevFanSpeedInfo_t *info, int card) {
    cndevRet_t status = check(info, card);
    const cndevFanSpeedInfo_2022_t made = {.fanSpeed = 0};
    if (status == CNDEV_SUCCESS) put(info, &made, year() >= 2022 ? sizeof made : sizeof *info);
    return status;
}

EXPORT cndevRet_t cndevGetECCInfo(cndevECCInfo_t *info, int card) {
    cndevRet_t status = check(info, card);
    const cndevECCInfo_t made = {.OneBitError = 0};
    if (status == CNDEV_SUCCESS) PUT(info, made);
    return status;
}

EXPORT cndevRet_t cndevGetLLCInfo(cndevLLCInfo_t *info, int card) {
    cndevRet_t status = check(info, card);
    const cndevLLCInfo_t made = {.Total = 0};
    if (status == CNDEV_SUCCESS) PUT(info, made);
    return status;
}

EXPORT cndevRet_t cndevGetCodecCount(cndevCodecCount_t *info, int card) {
    cndevRet_t status = check(info, card);
    if (status == CNDEV_SUCCESS) info->count = VIDEO_ENGINES;
    return status;
}

/* Nothing decodes or scales on the simulated card. */
EXPORT cndevRet_t cndevGetCodecUtilization(cndevCodecUtilization_t *info, int card) {
    cndevRet_t status = check(info, card);
    const cndevCodecUtilization_t made = {.totalUtilization = {0}};
    if (status == CNDEV_SUCCESS) PUT(info, made);
    return status;
}

EXPORT cndevRet_t cndevGetVideoCodecUtilization(cndevVideoCodecUtilization_t *info, int card) {
    cndevRet_t status = check(info, card);
    const cndevVideoCodecUtilization_t made = {.vpuCount = VIDEO_ENGINES};
    if (status == CNDEV_SUCCESS) PUT(info, made);
    return status;
}

EXPORT cndevRet_t cndevGetImageCodecUtilization(cndevImageCodecUtilization_t *info, int card) {
    cndevRet_t status = check(info, card);
    const cndevImageCodecUtilization_t made = {.jpuCount = PICTURE_ENGINES};
    if (status == CNDEV_SUCCESS) PUT(info, made);
    return status;
}

EXPORT cndevRet_t cndevGetScalerUtilization(cndevScalerUtilization_t *info, int card) {
    cndevRet_t status = check(info, card);
    const cndevScalerUtilization_t made = {.scalerCount = SCALERS};
    if (status == CNDEV_SUCCESS) PUT(info, made);
    return status;
}

/* The one process that can use a simulated card is this one. */
EXPORT cndevRet_t cndevGetProcessInfo(unsigned int *count, cndevProcessInfo_t *processes, int card) {
    if (!count || (*count && !processes)) return CNDEV_ERROR_INVALID_ARGUMENT;
    cndevRet_t status = *count ? check(processes, card) : check_card(card);
    if (status != CNDEV_SUCCESS) return status;
    unsigned int room = *count;
    struct npu_usage usage = npu_usage(device());
    *count = usage.allocations > 0;
    if (room < *count) return CNDEV_ERROR_INSUFFICIENT_SPACE;
    const unsigned long kib = (unsigned long)(usage.used / KIB_A_MIB);
    const cndevProcessInfo_t made = {.pid = (unsigned int)getpid(), .PhysicalMemoryUsed = kib, .VirtualMemoryUsed = kib};
    if (*count) put(processes, &made, sizeof made);
    return status;
}

/* The bus --------------------------------------------------------------------------------------------------------------------- */

EXPORT cndevRet_t cndevGetPCIeInfo(cndevPCIeInfo_t *info, int card) {
    cndevRet_t status = check(info, card);
    const cndevPCIeInfo_2022_t made = {.subsystemId = SUBSYSTEM_ID, .deviceId = DEVICE_ID, .vendor = VENDOR_ID, .subsystemVendor = VENDOR_ID,
                                       .domain = DOMAIN, .bus = BUS, .device = DEVICE, .function = FUNCTION, .physicalSlot = "simulated"};
    if (status == CNDEV_SUCCESS) put(info, &made, year() >= 2022 ? sizeof made : sizeof *info);
    return status;
}

EXPORT cndevRet_t cndevGetPCIethroughput(cndevPCIethroughput_t *info, int card) {
    cndevRet_t status = check(info, card);
    const cndevPCIethroughput_t made = {.pcie_read = 0, .pcie_write = 0};
    if (status == CNDEV_SUCCESS) PUT(info, made);
    return status;
}

EXPORT cndevRet_t cndevGetCurrentPCIInfo(cndevCurrentPCIInfo_t *info, int card) {
    cndevRet_t status = check(info, card);
    const cndevCurrentPCIInfo_t made = {.currentSpeed = PCIE_GENERATION, .currentWidth = LANES};
    if (status == CNDEV_SUCCESS) PUT(info, made);
    return status;
}

EXPORT cndevRet_t cndevGetLowestLinkSpeed(cndevLinkSpeed_t *info, int card) {
    cndevRet_t status = check(info, card);
    if (status == CNDEV_SUCCESS) info->link_speed = PCIE_GENERATION;
    return status;
}

EXPORT cndevRet_t cndevGetDeviceAffinity(cndevAffinity_t *info, int card) {
    cndevRet_t status = check(info, card);
    cndevAffinity_t made = {.cpuCount = 0};
    long processors = sysconf(_SC_NPROCESSORS_CONF);
    for (uint32_t i = 0; (long)i < processors && i < 1024 * 32; i++, made.cpuCount++) made.cpuAffinityBitMap[i / 32] |= 1u << i % 32;
    if (status == CNDEV_SUCCESS) PUT(info, made);
    return status;
}

static cndevRet_t check_both(int version, int card) {
    cndevRet_t status = check_version(version);
    return status == CNDEV_SUCCESS ? check_card(card) : status;
}

/* Every processor is as near to the card as the others: nothing to bind. */
EXPORT cndevRet_t cndevSetCurrentThreadAffinity(int version, int card) { return check_both(version, card); }
EXPORT cndevRet_t cndevClearCurrentThreadAffinity(int version, int card) { return check_both(version, card); }

EXPORT cndevRet_t cndevTopologyGetRelationship(cndevTopologyRelationship_t *info, int first, int second) {
    cndevRet_t status = check(info, first);
    if (status == CNDEV_SUCCESS) status = check_card(second);
    if (status == CNDEV_SUCCESS) info->relation = SELF;
    return status;
}

EXPORT cndevRet_t cndevTopologyGetNearestDevices(int version, cndevTopologyRelationshipEnum_t relation, uint64_t *count, uint64_t *cards,
                                                 int card) {
    if (!count || (*count && !cards)) return CNDEV_ERROR_INVALID_ARGUMENT;
    cndevRet_t status = check_both(version, card);
    if (status != CNDEV_SUCCESS) return status;
    uint64_t room = *count;
    *count = relation == SELF;
    if (room < *count) return CNDEV_ERROR_INSUFFICIENT_SPACE;
    if (*count) cards[0] = 0;
    return status;
}

EXPORT cndevRet_t cndevTopologyGetCpuRelatedDevices(int version, int processor, uint64_t *count, uint64_t *cards) {
    if (!count || (*count && !cards) || processor < 0 || processor >= sysconf(_SC_NPROCESSORS_CONF)) return CNDEV_ERROR_INVALID_ARGUMENT;
    return cndevTopologyGetNearestDevices(version, SELF, count, cards, 0);
}

EXPORT cndevRet_t cndevGetDevIdByBDF(int version, int *card, unsigned int domain, unsigned int bus, unsigned int slot, unsigned int function) {
    if (!card) return CNDEV_ERROR_INVALID_ARGUMENT;
    cndevRet_t status = check_version(version);
    if (status != CNDEV_SUCCESS) return status;
    if (domain != DOMAIN || bus != BUS || slot != DEVICE || function != FUNCTION) return CNDEV_ERROR_INVALID_ARGUMENT;
    *card = 0;
    return status;
}

/* What a simulated card does not have: the machine's tree of buses, and tuning. -------------------------------------------------- */

static cndevRet_t without(void) { return atomic_load(&starts) ? CNDEV_ERROR_NOT_SUPPORTED : CNDEV_ERROR_UNINITIALIZED; }

EXPORT cndevRet_t cndevGetCodecTurbo(cndevCodecTurbo_t *info, int card) {
    cndevRet_t status = check(info, card);
    return status == CNDEV_SUCCESS ? without() : status;
}

EXPORT cndevRet_t cndevGetFastAlloc(cndevFastAlloc_t *info, int card) {
    cndevRet_t status = check(info, card);
    return status == CNDEV_SUCCESS ? without() : status;
}

EXPORT cndevRet_t cndevTopologyGetRelationshipByNode(cndevTopologyRelationship_t *info, cndevTopologyNode_t *first,
                                                     cndevTopologyNode_t *second) {
    return info && first && second ? without() : CNDEV_ERROR_INVALID_ARGUMENT;
}

EXPORT cndevRet_t cndevGetNodeByBDF(int version, cndevTopologyNode_t **node, unsigned int domain, unsigned int bus, unsigned int slot,
                                    unsigned int function) {
    (void)version, (void)domain, (void)bus, (void)slot, (void)function;
    return node ? without() : CNDEV_ERROR_INVALID_ARGUMENT;
}

EXPORT cndevRet_t cndevGetNodeByDevId(int version, cndevTopologyNode_t **node, int card) {
    cndevRet_t status = check_both(version, card);
    return status != CNDEV_SUCCESS ? status : node ? without() : CNDEV_ERROR_INVALID_ARGUMENT;
}

EXPORT cndevRet_t cndevTopologyGetVirtualRootNode(int version, cndevTopologyNode_t **root) {
    (void)version;
    return root ? without() : CNDEV_ERROR_INVALID_ARGUMENT;
}

EXPORT cndevRet_t cndevTopologyTraverseTree(int version, CNDEV_TRAVERSE_CALLBACK callback, void *data) {
    (void)version, (void)data;
    return callback ? without() : CNDEV_ERROR_INVALID_ARGUMENT;
}

EXPORT cndevRet_t cndevGetNodeCapabilityInfo(cndevCapabilityInfo_t *info, cndevTopologyNode_t *node) {
    return info && node ? without() : CNDEV_ERROR_INVALID_ARGUMENT;
}

EXPORT cndevRet_t cndevGetNodeByDeviceName(int version, int *count, cndevTopologyNode_t *nodes, const char *name) {
    (void)version, (void)nodes;
    return count && name ? without() : CNDEV_ERROR_INVALID_ARGUMENT;
}

EXPORT cndevRet_t cndevGetNUMANodeIdByTopologyNode(cndevNUMANodeId_t *info, cndevTopologyNode_t *node) {
    return info && node ? without() : CNDEV_ERROR_INVALID_ARGUMENT;
}
