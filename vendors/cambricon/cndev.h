/* libcndev: telemetry of Cambricon's cards, as of Neuware 1.4. Read by C, by C++ and by cffi.
 *
 * Nearly every structure begins with the version of the interface that its caller speaks, 1 to 5, which is set before each call. Newer
 * libraries have longer structures of the same names: a program that may meet one keeps room for the longest, and zeroes it. Those are
 * here with the year in their names. Units: MB, W, degrees Celsius, MHz, percent; memory of a process in KiB.
 */
#ifndef PYASC_CNDEV_H
#define PYASC_CNDEV_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CNDEV_VERSION_1 1
#define CNDEV_VERSION_2 2
#define CNDEV_VERSION_3 3
#define CNDEV_VERSION_4 4
#define CNDEV_VERSION_5 5

typedef enum {
    CNDEV_SUCCESS = 0,
    CNDEV_ERROR_NO_DRIVER = 1,
    CNDEV_ERROR_LOW_DRIVER_VERSION = 2,
    CNDEV_ERROR_UNSUPPORTED_API_VERSION = 3,
    CNDEV_ERROR_UNINITIALIZED = 4,
    CNDEV_ERROR_INVALID_ARGUMENT = 5,
    CNDEV_ERROR_INVALID_DEVICE_ID = 6,
    CNDEV_ERROR_UNKNOWN = 7,
    CNDEV_ERROR_MALLOC = 8,
    CNDEV_ERROR_INSUFFICIENT_SPACE = 9,
    CNDEV_ERROR_NOT_SUPPORTED = 10,
} cndevRet_t;

typedef enum {
    MLU100 = 0,
    MLU270 = 1,
    MLU220_M2 = 16,
    MLU220_EDGE = 17,
    MLU220_EVB = 18,
    MLU220_M2i = 19,
} cndevNameEnum_t;

typedef enum {
    SELF = 0,
    INTERNAL = 1,
    SINGLE = 2,
    MULTIPLE = 3,
    HOST_BRIDGE = 4,
    CPU = 5,
    SYSTEM = 6,
} cndevTopologyRelationshipEnum_t;

typedef struct {
    int version;
    unsigned int Number;
} cndevCardInfo_t;

typedef struct {
    int version;
    int64_t PhysicalMemoryTotal;
    int64_t PhysicalMemoryUsed;
    int64_t VirtualMemoryTotal;
    int64_t VirtualMemoryUsed;
    int64_t ChannelNumber;
    int64_t ChannelMemoryUsed[20];
} cndevMemoryInfo_t;

typedef struct {
    int version;
    unsigned int MCUMajorVersion;
    unsigned int MCUMinorVersion;
    unsigned int MCUBuildVersion;
    unsigned int DriverMajorVersion;
    unsigned int DriverMinorVersion;
    unsigned int DriverBuildVersion;
} cndevVersionInfo_t;

typedef struct {
    int version;
    uint64_t OneBitError;
    uint64_t MultipleOneError;
    uint64_t MultipleError;
    uint64_t MultipleMultipleError;
    uint64_t CorrectedError;
    uint64_t UncorrectedError;
    uint64_t TotalError;
} cndevECCInfo_t;

typedef struct {
    int version;
    int Usage;
    int Cap;
    int Usage_Decimal;
} cndevPowerInfo_t;

typedef struct {
    int version;
    int Board;
    int Cluster[8];
} cndevTemperatureInfo_t;

typedef struct {
    int version;
    int FanSpeed;
} cndevFanSpeedInfo_t;

typedef struct {
    int version;
    uint64_t Total;
    uint64_t Hit;
} cndevLLCInfo_t;

typedef struct {
    int version;
    int BoardUtilization;
    int CoreUtilization[32];
} cndevUtilizationInfo_t;

typedef struct {
    int version;
    int Frequency;
    int DdrFreq;
} cndevFrequencyInfo_t;

typedef struct {
    int version;
    unsigned int pid;
    unsigned long PhysicalMemoryUsed;
    unsigned long VirtualMemoryUsed;
} cndevProcessInfo_t;

typedef struct {
    int version;
    unsigned int LibMajorVersion;
    unsigned int LibMinorVersion;
    unsigned int LibBuildVersion;
} cndevLibVersionInfo_t;

typedef struct {
    int version;
    int count;
} cndevCardCoreCount_t;

typedef struct {
    int version;
    int count;
} cndevCardClusterCount_t;

typedef struct {
    int version;
    cndevNameEnum_t id;
} cndevCardName_t;

typedef struct {
    int version;
    int count;
} cndevCodecCount_t;

typedef struct {
    int version;
    int totalUtilization[20];
} cndevCodecUtilization_t;

typedef struct {
    int version;
    int64_t sn;
} cndevCardSN_t;

typedef struct {
    int version;
    unsigned int subsystem_id;
    unsigned int device_id;
    unsigned short vendor;
    unsigned short subsystem_vendor;
    unsigned int domain;
    unsigned int bus;
    unsigned int device;
    unsigned int function;
    const char *phy_slot;
} cndevPCIeInfo_t;

typedef struct {
    int version;
    int64_t pcie_read;
    int64_t pcie_write;
} cndevPCIethroughput_t;

typedef struct {
    int version;
    uint32_t cpuCount;
    uint32_t cpuAffinityBitMap[1024];
} cndevAffinity_t;

typedef struct {
    int version;
    cndevTopologyRelationshipEnum_t relation;
} cndevTopologyRelationship_t;

typedef struct {
    int version;
    int currentSpeed;
    int currentWidth;
} cndevCurrentPCIInfo_t;

typedef struct cndevTopologyNodeCapInfo_t {
    struct cndevTopologyNodeCapInfo_t *next;
    uint8_t id;
    uint16_t cap;
} cndevTopologyNodeCapInfo_t;

typedef struct cndevTopologyNode_t {
    int virtual_root_node;
    int domain;
    int bus;
    int device;
    int function;
    unsigned int subsystem_id;
    unsigned int device_id;
    unsigned int vendor;
    unsigned int subsystem_vendor;
    const char *device_name;
    unsigned int class_val;
    const char *class_name;
    struct cndevTopologyNodeCapInfo_t *first_cap;
    struct cndevTopologyNode_t *parent;
    struct cndevTopologyNode_t *left;
    struct cndevTopologyNode_t *right;
    struct cndevTopologyNode_t *child;
    unsigned int link_speed;
    int is_bridge;
    int is_cardbus;
    unsigned char primary_bus;
    unsigned char secondary_bus;
    unsigned char subordinate_bus;
} cndevTopologyNode_t;

typedef struct {
    int version;
    uint8_t id;
    uint16_t cap;
} cndevCapabilityInfo_t;

typedef struct {
    int version;
    int health;
} cndevCardHealthState_t;

typedef struct {
    int version;
    int link_speed;
} cndevLinkSpeed_t;

typedef struct {
    int version;
    int vpuCount;
    int vpuCodecUtilization[20];
} cndevVideoCodecUtilization_t;

typedef struct {
    int version;
    int jpuCount;
    int jpuCodecUtilization[20];
} cndevImageCodecUtilization_t;

typedef struct {
    int version;
    int fa_memtotal;
    int fa_memfree;
} cndevFastAlloc_t;

typedef struct {
    int version;
    int32_t nodeId;
} cndevNUMANodeId_t;

typedef struct {
    int version;
    int scalerCount;
    int scalerUtilization[20];
} cndevScalerUtilization_t;

typedef struct {
    int version;
    int codecTurbo;
} cndevCodecTurbo_t;

/* As they grew. */

typedef struct {
    int version;
    int Usage;
    int Cap;
    int Usage_Decimal;
    int Machine;
} cndevPowerInfo_2021_t;

typedef struct {
    int version;
    int Board;
    int Cluster[20];
    int MemoryDie[8];
    int Chip;
    int Case;
} cndevTemperatureInfo_2021_t;

typedef struct {
    int version;
    int BoardUtilization;
    int CoreUtilization[80];
} cndevUtilizationInfo_2021_t;

typedef struct {
    int version;
    int Frequency;
    int DdrFreq;
    uint8_t OvertempDfsFlag;
    uint8_t FastDfsFlag;
} cndevFrequencyInfo_2021_t;

typedef struct {
    int version;
    int64_t sn;
    int64_t mother_board_sn;
} cndevCardSN_2021_t;

typedef struct {
    int version;
    int usage;
    int cap;
    int usageDecimal;
    int machine;
    int capDecimal;
    uint16_t thermalDesignPower;
} cndevPowerInfo_2022_t;

typedef struct {
    int version;
    int board;
    int cluster[20];
    int memoryDie[8];
    int chip;
    int airInlet;
    int airOutlet;
    int memory;
    int videoInput;
    int cpu;
} cndevTemperatureInfo_2022_t;

typedef struct {
    int version;
    unsigned int subsystemId;
    unsigned int deviceId;
    uint16_t vendor;
    uint16_t subsystemVendor;
    unsigned int domain;
    unsigned int bus;
    unsigned int device;
    unsigned int function;
    const char *physicalSlot;
    int slotID;
} cndevPCIeInfo_2022_t;

typedef struct {
    int version;
    int fanSpeed;
    int chassisFanCount;
    int chassisFan[12];
} cndevFanSpeedInfo_2022_t;

typedef int (*CNDEV_TRAVERSE_CALLBACK)(cndevTopologyNode_t *current, void *userdata);

cndevRet_t cndevInit(int reserved);
cndevRet_t cndevRelease(void);
const char *cndevGetErrorString(cndevRet_t errorId);
cndevRet_t cndevGetDeviceCount(cndevCardInfo_t *cardNum);
cndevRet_t cndevGetLibVersion(cndevLibVersionInfo_t *info);
cndevRet_t cndevGetLowestSupportDriverVersion(cndevVersionInfo_t *info);
const char *cndevGetCardNameString(cndevNameEnum_t cardName);

/* Of one card. */
cndevRet_t cndevGetCardName(cndevCardName_t *info, int devId);
cndevRet_t cndevGetCardSN(cndevCardSN_t *info, int devId);
cndevRet_t cndevGetCardHealthState(cndevCardHealthState_t *info, int devId);
cndevRet_t cndevGetCoreCount(cndevCardCoreCount_t *info, int devId);
cndevRet_t cndevGetClusterCount(cndevCardClusterCount_t *info, int devId);
cndevRet_t cndevGetMemoryUsage(cndevMemoryInfo_t *info, int devId);
cndevRet_t cndevGetPowerInfo(cndevPowerInfo_t *info, int devId);
cndevRet_t cndevGetTemperatureInfo(cndevTemperatureInfo_t *info, int devId);
cndevRet_t cndevGetDeviceUtilizationInfo(cndevUtilizationInfo_t *info, int devId);
cndevRet_t cndevGetFrequencyInfo(cndevFrequencyInfo_t *info, int devId);
cndevRet_t cndevGetFanSpeedInfo(cndevFanSpeedInfo_t *info, int devId);
cndevRet_t cndevGetVersionInfo(cndevVersionInfo_t *info, int devId);
cndevRet_t cndevGetECCInfo(cndevECCInfo_t *info, int devId);
cndevRet_t cndevGetLLCInfo(cndevLLCInfo_t *info, int devId);
cndevRet_t cndevGetPCIeInfo(cndevPCIeInfo_t *info, int devId);
cndevRet_t cndevGetPCIethroughput(cndevPCIethroughput_t *info, int devId);
cndevRet_t cndevGetCurrentPCIInfo(cndevCurrentPCIInfo_t *info, int devId);
cndevRet_t cndevGetLowestLinkSpeed(cndevLinkSpeed_t *info, int devId);
cndevRet_t cndevGetCodecCount(cndevCodecCount_t *info, int devId);
cndevRet_t cndevGetCodecUtilization(cndevCodecUtilization_t *info, int devId);
cndevRet_t cndevGetCodecTurbo(cndevCodecTurbo_t *info, int devId);
cndevRet_t cndevGetVideoCodecUtilization(cndevVideoCodecUtilization_t *info, int devId);
cndevRet_t cndevGetImageCodecUtilization(cndevImageCodecUtilization_t *info, int devId);
cndevRet_t cndevGetScalerUtilization(cndevScalerUtilization_t *info, int devId);
cndevRet_t cndevGetFastAlloc(cndevFastAlloc_t *info, int devId);
cndevRet_t cndevGetDeviceAffinity(cndevAffinity_t *info, int devId);
cndevRet_t cndevGetProcessInfo(unsigned int *infoCount, cndevProcessInfo_t *procInfo, int devId);

/* Where cards and processors lie. */
cndevRet_t cndevSetCurrentThreadAffinity(int version, int devId);
cndevRet_t cndevClearCurrentThreadAffinity(int version, int devId);
cndevRet_t cndevTopologyGetRelationship(cndevTopologyRelationship_t *relationship, int devId1, int devId2);
cndevRet_t cndevTopologyGetNearestDevices(int version, cndevTopologyRelationshipEnum_t rel, uint64_t *count, uint64_t *devIdArray,
                                          int devId);
cndevRet_t cndevTopologyGetCpuRelatedDevices(int version, int cpuId, uint64_t *count, uint64_t *devIdArray);
cndevRet_t cndevGetDevIdByBDF(int version, int *devId, unsigned int domain, unsigned int bus, unsigned int device,
                              unsigned int function);
cndevRet_t cndevTopologyGetRelationshipByNode(cndevTopologyRelationship_t *relationship, cndevTopologyNode_t *node1,
                                              cndevTopologyNode_t *node2);
cndevRet_t cndevGetNodeByBDF(int version, cndevTopologyNode_t **treeNode, unsigned int domain, unsigned int bus, unsigned int device,
                             unsigned int function);
cndevRet_t cndevGetNodeByDevId(int version, cndevTopologyNode_t **treeNode, int devId);
cndevRet_t cndevTopologyGetVirtualRootNode(int version, cndevTopologyNode_t **root);
cndevRet_t cndevTopologyTraverseTree(int version, CNDEV_TRAVERSE_CALLBACK callback, void *userdata);
cndevRet_t cndevGetNodeCapabilityInfo(cndevCapabilityInfo_t *capability, cndevTopologyNode_t *treeNode);
cndevRet_t cndevGetNodeByDeviceName(int version, int *count, cndevTopologyNode_t *nodeArray, const char *deviceName);
cndevRet_t cndevGetNUMANodeIdByTopologyNode(cndevNUMANodeId_t *numaNodeId, cndevTopologyNode_t *treeNode);

#ifdef __cplusplus
}
#endif

#endif
