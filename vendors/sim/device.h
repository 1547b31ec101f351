/* A simulated chip: its memory, its cores with their queues, its clock, and the faults that it is told to have.
 *
 * One of each kind lives in a process, from its first use on. Every function may be called from several threads.
 *
 * Settings come from the environment variable PYASC_SIM (`hi3559.memory_mib=64,mlu220.pace=1`) and from the file that PYASC_SIM_CONTROL
 * names (one `hi3559.fault=value` a line, `#` for comments), which is read again whenever it changes and wins over the variable.
 * Names and meanings are in `settings` of control.c; a name that is not known is told once on stderr.
 */
#ifndef PYASC_SIM_DEVICE_H
#define PYASC_SIM_DEVICE_H

#include "program.h"

enum npu_chip_id { NPU_HI3559 = 1, NPU_MLU220 = 2 };
#define NPU_CHIPS 3

struct npu_device;
struct npu_device *npu_device(enum npu_chip_id chip);

/* What is modelled, from published figures; sources in chips.c. */
struct npu_chip_facts {
    const char *name;        /* as in settings: hi3559 */
    uint32_t cores;
    uint64_t memory_bytes;   /* without the setting memory_mib */
    uint64_t memory_base;    /* first device address */
    double macs_8, macs_16;  /* a core's multiplications a second that networks get, of what the data sheet promises */
    double elements;         /* other results a second, a core */
    double bytes_s;          /* memory bandwidth, all cores together */
    double start_s;          /* of one task */
    double idle_w, busy_w;   /* with all cores busy */
    double idle_c, busy_c;   /* temperature */
};
const struct npu_chip_facts *npu_facts(const struct npu_device *device);

/* Settings ------------------------------------------------------------------------------------------------------------------- */

enum npu_setting {
    NPU_SET_MEMORY_MIB,    /* size of the device's memory */
    NPU_SET_PACE,          /* 1: a task takes the time that is modelled; 0: as fast as this machine can */
    NPU_SET_QUERY_TIMEOUT, /* so many waits end in a time-out, -1 every one */
    NPU_SET_HANG,          /* 1: tasks do not end while it is set */
    NPU_SET_NO_MEMORY,     /* so many allocations fail, -1 every one */
    NPU_SET_BUSY,          /* 1: another process holds the device */
    NPU_SET_LOST,          /* 1: the device is gone */
    NPU_SET_VERSION,       /* architecture of the chip: a model for another one is refused; 0: the usual one */
    NPU_SET_THROTTLE,      /* speed of the chip in percent, 100 as a rule */
    NPU_SET_CORRUPT,       /* so many results are wrong, -1 every one */
    NPU_SET_COHERENT,      /* 1: no cache between CPU and device, a forgotten flush does not show */
    NPU_SET_API,           /* version that the vendor's library says it has, which decides its status codes: 40400; 0: the usual one */
    NPU_SET_CNDEV,         /* year of the telemetry library, whose structures grew: 2020, 2021, 2022 */
    NPU_SET_COUNT
};
int64_t npu_setting(struct npu_device *device, enum npu_setting setting);
/* For settings that count: 1, and one less of them, while there are any. */
int npu_take(struct npu_device *device, enum npu_setting setting);

/* Memory --------------------------------------------------------------------------------------------------------------------- */

/* 0, or -1 when there is no room. The contents are whatever they were. Nothing but the simulator reads or writes an address. */
int npu_allocate(struct npu_device *device, uint64_t size, uint64_t alignment, uint64_t *address);
/* 0, or -1 when nothing begins there. */
int npu_free(struct npu_device *device, uint64_t address);
/* Where the simulator keeps `size` bytes at an address; NULL unless they lie in one allocation. */
void *npu_memory(struct npu_device *device, uint64_t address, uint64_t size);
/* The allocation around an address: 0, or -1. */
int npu_find(struct npu_device *device, uint64_t address, uint64_t *begin, uint64_t *size);

struct npu_usage {
    uint64_t total, used, allocations;
    double busy;        /* 0..1, of all cores, since the call before */
    double power_w, temperature_c;
};
struct npu_usage npu_usage(struct npu_device *device);

/* Queues --------------------------------------------------------------------------------------------------------------------- */

/* Work in order. `work` runs on a thread of a core, with `lost` set when the device went away before it could. */
struct npu_queue;
typedef void (*npu_work_function)(void *context, int lost);

struct npu_queue *npu_queue_create(struct npu_device *device);
/* Nobody needs it any more: what hangs in it is dropped. */
void npu_queue_close(struct npu_queue *queue);
/* Waits for what is in it. */
void npu_queue_destroy(struct npu_queue *queue);
/* The number of the task, counted from 1; 0 when memory is short. It needs so many cores at once (0: none, as for a copy), and its
 * modelled time is that of `seconds`. `work` may be NULL. */
uint64_t npu_enqueue(struct npu_queue *queue, npu_work_function work, void *context, uint32_t cores, double seconds);
/* A task without work that begins when a task of another queue has ended; 0 when memory is short. */
uint64_t npu_enqueue_after(struct npu_queue *queue, struct npu_queue *other, uint64_t task);
/* 1 when the task and all before it have ended, else 0 after `seconds` (0: at once, below 0: no end). */
int npu_queue_wait(struct npu_queue *queue, uint64_t task, double seconds);
/* Until every queue is empty. */
void npu_wait_all(struct npu_device *device);
/* The last task's number. */
uint64_t npu_queue_last(struct npu_queue *queue);
/* Device time in seconds at which the last ended task of the queue ended. */
double npu_queue_time(struct npu_queue *queue);

/* Modelled time of one run on so many cores. */
double npu_seconds(struct npu_device *device, const struct npu_work *work, uint32_t cores);

/* Things that a caller has to give back, counted for tests --------------------------------------------------------------------- */

enum npu_thing { NPU_MODELS, NPU_FUNCTIONS, NPU_CONTEXTS, NPU_QUEUES, NPU_NOTIFIERS, NPU_HOST_BLOCKS, NPU_DESCRIPTORS, NPU_THINGS };
void npu_count(struct npu_device *device, enum npu_thing thing, int change);
/* Of a kind of thing, or with NPU_THINGS the allocations of device memory. Exported for tests: chip, thing. */
int64_t pyasc_sim_outstanding(int chip, int thing);
/* The version of the simulator, and how a binding knows that no hardware is there. */
const char *pyasc_sim_version(void);

#endif
