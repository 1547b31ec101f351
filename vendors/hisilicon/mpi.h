/* libmpi: system, memory (MMZ) and video buffers (VB) of HiSilicon's media libraries, Hi3559AV100. Read by C and by cffi.
 *
 * The structures of video buffers differ by chip and age of the SDK; those of other chips are in `pyasc.vendors.hisilicon`.
 */
#ifndef PYASC_HI_MPI_H
#define PYASC_HI_MPI_H

#include "base.h"

#define MAX_MMZ_NAME_LEN 16
#define VB_MAX_COMM_POOLS 16
#define VB_MAX_POOLS 768

typedef HI_U32 VB_POOL;
typedef HI_U32 VB_BLK;

typedef enum { VB_REMAP_MODE_NONE = 0, VB_REMAP_MODE_NOCACHE = 1, VB_REMAP_MODE_CACHED = 2, VB_REMAP_MODE_BUTT } VB_REMAP_MODE_E;

typedef struct {
    HI_U32 u32Align;
} MPP_SYS_CONFIG_S;

typedef struct {
    HI_CHAR aVersion[64];
} MPP_VERSION_S;

typedef struct {
    HI_U64 u64PhyAddr;
    HI_BOOL bCached;
} SYS_VIRMEM_INFO_S;

typedef struct {
    HI_U64 u64BlkSize;
    HI_U32 u32BlkCnt;
    VB_REMAP_MODE_E enRemapMode;
    HI_CHAR acMmzName[MAX_MMZ_NAME_LEN];
} VB_POOL_CONFIG_S;

typedef struct {
    HI_U32 u32MaxPoolCnt;
    VB_POOL_CONFIG_S astCommPool[VB_MAX_COMM_POOLS];
} VB_CONFIG_S;

HI_S32 HI_MPI_SYS_Init(void);
HI_S32 HI_MPI_SYS_Exit(void);
HI_S32 HI_MPI_SYS_SetConfig(const MPP_SYS_CONFIG_S *pstSysConfig);
HI_S32 HI_MPI_SYS_GetConfig(MPP_SYS_CONFIG_S *pstSysConfig);
HI_S32 HI_MPI_SYS_GetVersion(MPP_VERSION_S *pstVersion);
HI_S32 HI_MPI_SYS_GetChipId(HI_U32 *pu32ChipId);
HI_S32 HI_MPI_SYS_CloseFd(void);
HI_S32 HI_MPI_SYS_MmzAlloc(HI_U64 *pu64PhyAddr, HI_VOID **ppVirAddr, const HI_CHAR *strMmb, const HI_CHAR *strZone, HI_U32 u32Len);
HI_S32 HI_MPI_SYS_MmzAlloc_Cached(HI_U64 *pu64PhyAddr, HI_VOID **ppVirAddr, const HI_CHAR *strMmb, const HI_CHAR *strZone,
                                  HI_U32 u32Len);
HI_S32 HI_MPI_SYS_MmzFree(HI_U64 u64PhyAddr, HI_VOID *pVirAddr);
HI_S32 HI_MPI_SYS_MmzFlushCache(HI_U64 u64PhyAddr, HI_VOID *pVirAddr, HI_U32 u32Size);
HI_VOID *HI_MPI_SYS_Mmap(HI_U64 u64PhyAddr, HI_U32 u32Size);
HI_VOID *HI_MPI_SYS_MmapCache(HI_U64 u64PhyAddr, HI_U32 u32Size);
HI_S32 HI_MPI_SYS_Munmap(HI_VOID *pVirAddr, HI_U32 u32Size);
HI_S32 HI_MPI_SYS_MflushCache(HI_U64 u64PhyAddr, HI_VOID *pVirAddr, HI_U32 u32Size);
HI_S32 HI_MPI_SYS_GetVirMemInfo(const void *pVirAddr, SYS_VIRMEM_INFO_S *pstMemInfo);

HI_S32 HI_MPI_VB_SetConfig(const VB_CONFIG_S *pstVbConfig);
HI_S32 HI_MPI_VB_GetConfig(VB_CONFIG_S *pstVbConfig);
HI_S32 HI_MPI_VB_Init(void);
HI_S32 HI_MPI_VB_Exit(void);
VB_POOL HI_MPI_VB_CreatePool(VB_POOL_CONFIG_S *pstVbPoolCfg);
HI_S32 HI_MPI_VB_DestroyPool(VB_POOL Pool);
VB_BLK HI_MPI_VB_GetBlock(VB_POOL Pool, HI_U64 u64BlkSize, const HI_CHAR *pcMmzName);
HI_S32 HI_MPI_VB_ReleaseBlock(VB_BLK Block);
HI_U64 HI_MPI_VB_Handle2PhysAddr(VB_BLK Block);
VB_BLK HI_MPI_VB_PhysAddr2Handle(HI_U64 u64PhyAddr);

#endif
