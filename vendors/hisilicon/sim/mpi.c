/* libmpi.so: the system, MMZ and VB calls of HiSilicon's media libraries on the simulated Hi3559A.
 *
 * Cached memory has two sides here as on the chip: the processor's, and the accelerator's. A flush carries lines that the processor
 * wrote to the other side, and lines that it did not write back from there. Who forgets one sees old data, unless the setting
 * `coherent` is on.
 */
#include "../mpi.h"
#include "mmz.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT PYASC_EXPORT
#define LINE 64u
#define FIRST_BLOCK 0x100u
#define MAX_BLOCKS 4096u

#define SYS(code) ((HI_S32)(0xA0028000u | (code)))
#define VB(code) ((HI_S32)(0xA0018000u | (code)))
enum { ILLEGAL_PARAM = 0x03, UNEXIST = 0x05, NULL_PTR = 0x06, NOT_PERM = 0x09, NOMEM = 0x0C, NOBUF = 0x0D, NOTREADY = 0x10, BUSY = 0x12 };
#define INVALID 0xFFFFFFFFu

struct memory {
    uint64_t physical, size;
    uint8_t *device; /* the accelerator's side */
    uint8_t *cpu;    /* the processor's; the same bytes where there is no cache */
    uint8_t *synced; /* both sides after the last flush; NULL without a cache */
    struct memory *next;
};

struct pool {
    int used, common;
    uint64_t block_size;
    uint32_t count, taken;
    uint64_t physical;
    char zone[MAX_MMZ_NAME_LEN];
};

struct vb_block {
    int used;
    uint32_t pool;
    uint64_t physical;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct memory *memories;
static void (*on_free)(uint64_t, uint64_t);
static _Atomic int sys_ready, vb_ready, vb_configured;
static HI_U32 alignment = 16;
static VB_CONFIG_S vb_config;
static struct pool pools[VB_MAX_POOLS];
static struct vb_block blocks[MAX_BLOCKS];

static struct npu_device *device(void) { return npu_device(NPU_HI3559); }
static int lost(void) { return npu_setting(device(), NPU_SET_LOST) != 0; }
static int busy(void) { return npu_setting(device(), NPU_SET_BUSY) != 0; }

/* MMZ ------------------------------------------------------------------------------------------------------------------------ */

static struct memory *find(uint64_t physical, uint64_t size) {
    for (struct memory *m = memories; m; m = m->next)
        if (physical >= m->physical && physical - m->physical <= m->size && size <= m->size - (physical - m->physical)) return m;
    return NULL;
}

static struct memory *find_virtual(const void *address) {
    for (struct memory *m = memories; m; m = m->next)
        if ((const uint8_t *)address >= m->cpu && (const uint8_t *)address < m->cpu + m->size) return m;
    return NULL;
}

static int zone_exists(const char *zone) { return !zone || !*zone || !strcmp(zone, "anonymous"); }

static HI_S32 allocate(HI_U64 *physical, HI_VOID **address, const HI_CHAR *zone, HI_U32 size, int cached) {
    if (!physical || !address) return SYS(NULL_PTR);
    if (!size || !zone_exists(zone)) return SYS(ILLEGAL_PARAM);
    if (lost()) return SYS(NOTREADY);
    uint64_t at;
    if (npu_allocate(device(), size, 4096, &at)) return SYS(NOMEM);
    struct memory *m = calloc(1, sizeof *m);
    uint8_t *here = npu_memory(device(), at, size);
    uint8_t *copies = NULL;
    if (m && cached && !npu_setting(device(), NPU_SET_COHERENT)) {
        size_t whole = ((size_t)size + LINE - 1) / LINE * LINE;
        copies = aligned_alloc(LINE, 2 * whole);
        if (copies) {
            memcpy(copies, here, size);
            memcpy(copies + whole, here, size);
            m->synced = copies + whole;
        } else {
            free(m);
            m = NULL;
        }
    }
    if (!m) {
        npu_free(device(), at);
        return SYS(NOMEM);
    }
    m->physical = at;
    m->size = size;
    m->device = here;
    m->cpu = copies ? copies : here;
    pthread_mutex_lock(&lock);
    m->next = memories;
    memories = m;
    pthread_mutex_unlock(&lock);
    *physical = at;
    *address = m->cpu;
    return HI_SUCCESS;
}

EXPORT HI_S32 HI_MPI_SYS_MmzAlloc(HI_U64 *physical, HI_VOID **address, const HI_CHAR *mmb, const HI_CHAR *zone, HI_U32 size) {
    (void)mmb;
    return allocate(physical, address, zone, size, 0);
}

EXPORT HI_S32 HI_MPI_SYS_MmzAlloc_Cached(HI_U64 *physical, HI_VOID **address, const HI_CHAR *mmb, const HI_CHAR *zone, HI_U32 size) {
    (void)mmb;
    return allocate(physical, address, zone, size, 1);
}

static void release(struct memory *m) {
    if (m->synced) free(m->cpu);
    npu_free(device(), m->physical);
    free(m);
}

EXPORT HI_S32 HI_MPI_SYS_MmzFree(HI_U64 physical, HI_VOID *address) {
    pthread_mutex_lock(&lock);
    struct memory **link = &memories;
    while (*link && (*link)->physical != physical) link = &(*link)->next;
    struct memory *m = *link;
    if (m && address && address != m->cpu) m = NULL;
    if (m) *link = m->next;
    void (*freed)(uint64_t, uint64_t) = on_free;
    pthread_mutex_unlock(&lock);
    if (!m) return SYS(ILLEGAL_PARAM);
    if (freed) freed(m->physical, m->size);
    release(m);
    return HI_SUCCESS;
}

/* Carry what the processor wrote to the accelerator's side, and what it did not write back from there. */
static void flush(struct memory *m, uint64_t from, uint64_t to) {
    if (!m->synced) return;
    from = from / LINE * LINE;
    for (uint64_t at = from; at < to && at < m->size; at += LINE) {
        size_t size = m->size - at < LINE ? m->size - at : LINE;
        if (memcmp(m->cpu + at, m->synced + at, size))
            memcpy(m->device + at, m->cpu + at, size);
        else
            memcpy(m->cpu + at, m->device + at, size);
        memcpy(m->synced + at, m->cpu + at, size);
    }
}

EXPORT HI_S32 HI_MPI_SYS_MmzFlushCache(HI_U64 physical, HI_VOID *address, HI_U32 size) {
    if (!address) return SYS(NULL_PTR);
    HI_S32 result = HI_SUCCESS;
    pthread_mutex_lock(&lock);
    struct memory *m = find(physical, size);
    if (!physical && !size) { /* the whole cache */
        for (m = memories; m; m = m->next) flush(m, 0, m->size);
    } else if (m && (uint8_t *)address == m->cpu + (physical - m->physical)) {
        flush(m, physical - m->physical, physical - m->physical + size);
    } else {
        result = SYS(ILLEGAL_PARAM);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

EXPORT HI_S32 HI_MPI_SYS_MflushCache(HI_U64 physical, HI_VOID *address, HI_U32 size) {
    return HI_MPI_SYS_MmzFlushCache(physical, address, size);
}

static HI_VOID *map(HI_U64 physical, HI_U32 size, int cached) {
    pthread_mutex_lock(&lock);
    struct memory *m = size ? find(physical, size) : NULL;
    /* Without a cache both sides are one; a mapping with a cache exists only of memory that was made so. */
    HI_VOID *address = m ? (cached ? m->cpu : m->device) + (physical - m->physical) : NULL;
    pthread_mutex_unlock(&lock);
    return address;
}

EXPORT HI_VOID *HI_MPI_SYS_Mmap(HI_U64 physical, HI_U32 size) { return map(physical, size, 0); }
EXPORT HI_VOID *HI_MPI_SYS_MmapCache(HI_U64 physical, HI_U32 size) { return map(physical, size, 1); }

EXPORT HI_S32 HI_MPI_SYS_Munmap(HI_VOID *address, HI_U32 size) {
    if (!address) return SYS(NULL_PTR);
    return size ? HI_SUCCESS : SYS(ILLEGAL_PARAM);
}

EXPORT int pyasc_sim_mmz_virtual(const void *address, uint64_t *physical, int *cached) {
    pthread_mutex_lock(&lock);
    struct memory *m = find_virtual(address);
    if (m) {
        *physical = m->physical + (uint64_t)((const uint8_t *)address - m->cpu);
        *cached = m->synced != NULL;
    }
    pthread_mutex_unlock(&lock);
    return m ? 0 : -1;
}

EXPORT HI_S32 HI_MPI_SYS_GetVirMemInfo(const void *address, SYS_VIRMEM_INFO_S *info) {
    if (!address || !info) return SYS(NULL_PTR);
    uint64_t physical;
    int cached;
    if (pyasc_sim_mmz_virtual(address, &physical, &cached)) return SYS(ILLEGAL_PARAM);
    info->u64PhyAddr = physical;
    info->bCached = cached ? HI_TRUE : HI_FALSE;
    return HI_SUCCESS;
}

EXPORT void *pyasc_sim_mmz(uint64_t physical, uint64_t size) { return npu_memory(device(), physical, size); }

EXPORT void pyasc_sim_mmz_on_free(void (*freed)(uint64_t, uint64_t)) {
    pthread_mutex_lock(&lock);
    on_free = freed;
    pthread_mutex_unlock(&lock);
}

/* SYS ------------------------------------------------------------------------------------------------------------------------ */

EXPORT HI_S32 HI_MPI_SYS_Init(void) {
    if (busy()) return SYS(BUSY);
    if (lost()) return SYS(NOTREADY);
    sys_ready = 1;
    return HI_SUCCESS;
}

EXPORT HI_S32 HI_MPI_SYS_Exit(void) {
    sys_ready = 0;
    return HI_SUCCESS;
}

EXPORT int pyasc_sim_sys_ready(void) { return sys_ready; }

EXPORT HI_S32 HI_MPI_SYS_SetConfig(const MPP_SYS_CONFIG_S *config) {
    if (!config) return SYS(NULL_PTR);
    if (!config->u32Align || config->u32Align > 1024 || config->u32Align % 16) return SYS(ILLEGAL_PARAM);
    if (sys_ready) return SYS(NOT_PERM);
    alignment = config->u32Align;
    return HI_SUCCESS;
}

EXPORT HI_S32 HI_MPI_SYS_GetConfig(MPP_SYS_CONFIG_S *config) {
    if (!config) return SYS(NULL_PTR);
    config->u32Align = alignment;
    return HI_SUCCESS;
}

EXPORT HI_S32 HI_MPI_SYS_GetVersion(MPP_VERSION_S *version) {
    if (!version) return SYS(NULL_PTR);
    memset(version, 0, sizeof *version);
    snprintf(version->aVersion, sizeof version->aVersion, "PyASC simulator %s of Hi3559AV100", pyasc_sim_version());
    return HI_SUCCESS;
}

EXPORT HI_S32 HI_MPI_SYS_GetChipId(HI_U32 *chip) {
    if (!chip) return SYS(NULL_PTR);
    *chip = 0x3559A100;
    return HI_SUCCESS;
}

EXPORT HI_S32 HI_MPI_SYS_CloseFd(void) { return HI_SUCCESS; }

/* VB ------------------------------------------------------------------------------------------------------------------------- */

EXPORT HI_S32 HI_MPI_VB_SetConfig(const VB_CONFIG_S *config) {
    if (!config) return VB(NULL_PTR);
    if (busy()) return VB(BUSY);
    if (!config->u32MaxPoolCnt || config->u32MaxPoolCnt > VB_MAX_POOLS) return VB(ILLEGAL_PARAM);
    if (vb_ready) return VB(BUSY);
    vb_config = *config;
    vb_configured = 1;
    return HI_SUCCESS;
}

EXPORT HI_S32 HI_MPI_VB_GetConfig(VB_CONFIG_S *config) {
    if (!config) return VB(NULL_PTR);
    if (!vb_configured) return VB(NOTREADY);
    *config = vb_config;
    return HI_SUCCESS;
}

/* A pool's number, or INVALID; with the lock held. */
static VB_POOL add_pool(const VB_POOL_CONFIG_S *config, int common) {
    uint64_t size = config->u64BlkSize * config->u32BlkCnt, physical;
    if (!config->u64BlkSize || !config->u32BlkCnt || config->u32BlkCnt > MAX_BLOCKS || config->u64BlkSize > UINT64_MAX / MAX_BLOCKS)
        return INVALID;
    VB_POOL number = 0;
    while (number < VB_MAX_POOLS && pools[number].used) number++;
    if (number == VB_MAX_POOLS || npu_allocate(device(), size, 4096, &physical)) return INVALID;
    pools[number] = (struct pool){1, common, config->u64BlkSize, config->u32BlkCnt, 0, physical, ""};
    memcpy(pools[number].zone, config->acMmzName, MAX_MMZ_NAME_LEN - 1);
    return number;
}

static void drop_pool(VB_POOL number) {
    npu_free(device(), pools[number].physical);
    for (uint32_t i = 0; i < MAX_BLOCKS; i++)
        if (blocks[i].used && blocks[i].pool == number) blocks[i].used = 0;
    pools[number].used = 0;
}

EXPORT HI_S32 HI_MPI_VB_Exit(void) {
    pthread_mutex_lock(&lock);
    for (VB_POOL number = 0; number < VB_MAX_POOLS; number++)
        if (pools[number].used) drop_pool(number);
    vb_ready = 0;
    pthread_mutex_unlock(&lock);
    return HI_SUCCESS;
}

EXPORT HI_S32 HI_MPI_VB_Init(void) {
    if (busy()) return VB(BUSY);
    if (!vb_configured) return VB(NOTREADY);
    HI_S32 result = HI_SUCCESS;
    pthread_mutex_lock(&lock);
    for (HI_U32 i = 0; !vb_ready && !result && i < VB_MAX_COMM_POOLS; i++) {
        const VB_POOL_CONFIG_S *pool = &vb_config.astCommPool[i];
        if (pool->u64BlkSize && pool->u32BlkCnt && add_pool(pool, 1) == INVALID) result = VB(NOMEM);
    }
    vb_ready = !result;
    pthread_mutex_unlock(&lock);
    if (result) HI_MPI_VB_Exit();
    return result;
}

EXPORT VB_POOL HI_MPI_VB_CreatePool(VB_POOL_CONFIG_S *config) {
    if (!config || !vb_ready) return INVALID;
    pthread_mutex_lock(&lock);
    VB_POOL number = add_pool(config, 0);
    pthread_mutex_unlock(&lock);
    return number;
}

EXPORT HI_S32 HI_MPI_VB_DestroyPool(VB_POOL number) {
    pthread_mutex_lock(&lock);
    HI_S32 result = HI_SUCCESS;
    if (number >= VB_MAX_POOLS || !pools[number].used)
        result = VB(UNEXIST);
    else if (pools[number].taken)
        result = VB(BUSY);
    else
        drop_pool(number);
    pthread_mutex_unlock(&lock);
    return result;
}

/* A free place in a pool, as a block; with the lock held. */
static VB_BLK take_block(VB_POOL number) {
    struct pool *pool = &pools[number];
    VB_BLK handle = 0;
    while (handle < MAX_BLOCKS && blocks[handle].used) handle++;
    if (handle == MAX_BLOCKS || pool->taken == pool->count) return INVALID;
    for (uint32_t place = 0; place < pool->count; place++) {
        uint64_t physical = pool->physical + place * pool->block_size;
        int free_place = 1;
        for (uint32_t i = 0; i < MAX_BLOCKS; i++)
            if (blocks[i].used && blocks[i].physical == physical) free_place = 0;
        if (!free_place) continue;
        blocks[handle] = (struct vb_block){1, number, physical};
        pool->taken++;
        return handle + FIRST_BLOCK;
    }
    return INVALID;
}

EXPORT VB_BLK HI_MPI_VB_GetBlock(VB_POOL number, HI_U64 size, const HI_CHAR *zone) {
    VB_BLK handle = INVALID;
    if (!vb_ready || !size || !zone_exists(zone)) return handle;
    pthread_mutex_lock(&lock);
    if (number != INVALID) {
        if (number < VB_MAX_POOLS && pools[number].used && size <= pools[number].block_size) handle = take_block(number);
    } else { /* of the common pools the one with the smallest blocks that are large enough */
        VB_POOL best = INVALID;
        for (VB_POOL i = 0; i < VB_MAX_POOLS; i++)
            if (pools[i].used && pools[i].common && size <= pools[i].block_size && pools[i].taken < pools[i].count &&
                (best == INVALID || pools[i].block_size < pools[best].block_size))
                best = i;
        if (best != INVALID) handle = take_block(best);
    }
    pthread_mutex_unlock(&lock);
    return handle;
}

static struct vb_block *block_of(VB_BLK handle) {
    if (handle < FIRST_BLOCK || handle - FIRST_BLOCK >= MAX_BLOCKS || !blocks[handle - FIRST_BLOCK].used) return NULL;
    return &blocks[handle - FIRST_BLOCK];
}

EXPORT HI_S32 HI_MPI_VB_ReleaseBlock(VB_BLK handle) {
    pthread_mutex_lock(&lock);
    struct vb_block *block = block_of(handle);
    if (block) {
        pools[block->pool].taken--;
        block->used = 0;
    }
    pthread_mutex_unlock(&lock);
    return block ? HI_SUCCESS : VB(ILLEGAL_PARAM);
}

EXPORT HI_U64 HI_MPI_VB_Handle2PhysAddr(VB_BLK handle) {
    pthread_mutex_lock(&lock);
    struct vb_block *block = block_of(handle);
    HI_U64 physical = block ? block->physical : 0;
    pthread_mutex_unlock(&lock);
    return physical;
}

EXPORT VB_BLK HI_MPI_VB_PhysAddr2Handle(HI_U64 physical) {
    VB_BLK handle = INVALID;
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < MAX_BLOCKS; i++)
        if (blocks[i].used && physical >= blocks[i].physical && physical < blocks[i].physical + pools[blocks[i].pool].block_size)
            handle = i + FIRST_BLOCK;
    pthread_mutex_unlock(&lock);
    return handle;
}
