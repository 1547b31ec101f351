/* The simulated chips: memory, cores and queues. */
#include "chip.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define PAGE 4096u
#define FILL_LIMIT 65536u
#define POLL_S 0.002

struct block {
    uint64_t begin, size;
};

struct task {
    npu_work_function work;
    void *context;
    uint32_t cores;
    double seconds;
    uint64_t number, arrival;
    struct npu_queue *after; /* NULL, or a queue whose task `after_task` must have ended */
    uint64_t after_task;
    struct task *next;
};

struct npu_queue {
    struct npu_device *device;
    struct task *head, **tail;
    int running, closing;
    uint64_t last, done;
    double time;
    struct npu_queue *next;
};

struct npu_device {
    enum npu_chip_id chip;
    const struct npu_chip_facts *facts;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint8_t *memory;
    uint64_t memory_size, used;
    struct block *blocks; /* by address */
    size_t block_count, block_room;
    struct npu_queue *queues;
    uint32_t threads, free_cores;
    uint64_t arrivals;
    double core_time, busy_s, busy_since, load;
    _Atomic int64_t things[NPU_THINGS];
};

static struct npu_device devices[NPU_CHIPS];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void set_up(void) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    for (enum npu_chip_id chip = NPU_HI3559; chip < NPU_CHIPS; chip++) {
        struct npu_device *device = &devices[chip];
        device->chip = chip;
        device->facts = npu_chip_facts(chip);
        device->free_cores = device->facts->cores;
        device->busy_since = npu_clock();
        pthread_mutex_init(&device->lock, NULL);
        pthread_cond_init(&device->changed, &attributes);
    }
    pthread_condattr_destroy(&attributes);
}

struct npu_device *npu_device(enum npu_chip_id chip) {
    pthread_once(&once, set_up);
    return &devices[chip];
}

const struct npu_chip_facts *npu_facts(const struct npu_device *device) { return device->facts; }
enum npu_chip_id npu_chip_of(const struct npu_device *device) { return device->chip; }

double npu_clock(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static struct timespec after(double seconds) {
    double at = npu_clock() + (seconds < 1e8 ? seconds : 1e8);
    struct timespec time = {.tv_sec = (time_t)at};
    time.tv_nsec = (long)((at - (double)time.tv_sec) * 1e9);
    return time;
}

/* Memory --------------------------------------------------------------------------------------------------------------------- */

/* Address space for the whole memory, which the machine gives page by page as it is used; with the lock held. */
static int reserve(struct npu_device *device) {
    if (device->memory) return 0;
    int64_t mib = npu_setting(device, NPU_SET_MEMORY_MIB);
    device->memory_size = mib > 0 ? (uint64_t)mib << 20 : device->facts->memory_bytes;
    void *memory = mmap(NULL, device->memory_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return -1;
    device->memory = memory;
    return 0;
}

static int add_block(struct npu_device *device, size_t at, struct block block) {
    if (device->block_count == device->block_room) {
        size_t room = device->block_room ? device->block_room * 2 : 64;
        struct block *blocks = realloc(device->blocks, room * sizeof *blocks);
        if (!blocks) return -1;
        device->blocks = blocks;
        device->block_room = room;
    }
    memmove(device->blocks + at + 1, device->blocks + at, (device->block_count - at) * sizeof block);
    device->blocks[at] = block;
    device->block_count++;
    device->used += block.size;
    return 0;
}

/* Fresh memory holds no zeros that a program could come to rely on. */
static void spoil(uint8_t *memory, uint64_t size) { memset(memory, 0xA5, size < FILL_LIMIT ? size : FILL_LIMIT); }

int npu_allocate(struct npu_device *device, uint64_t size, uint64_t alignment, uint64_t *address) {
    if (!size || alignment & (alignment - 1)) return -1;
    if (alignment < PAGE) alignment = PAGE;
    if (npu_take(device, NPU_SET_NO_MEMORY)) return -1;
    pthread_mutex_lock(&device->lock);
    int result = reserve(device);
    if (!result && size <= device->memory_size) {
        uint64_t whole = (size + PAGE - 1) / PAGE * PAGE, at = 0;
        size_t i = 0;
        for (; i < device->block_count; i++) {
            if (device->blocks[i].begin >= at + whole) break;
            at = (device->blocks[i].begin + device->blocks[i].size + alignment - 1) / alignment * alignment;
        }
        if (at + whole > device->memory_size || add_block(device, i, (struct block){at, whole}))
            result = -1;
        else
            spoil(device->memory + at, whole);
        *address = device->facts->memory_base + at;
    } else {
        result = -1;
    }
    pthread_mutex_unlock(&device->lock);
    return result;
}

/* Index of the block that holds an offset, or block_count; with the lock held. */
static size_t block_at(const struct npu_device *device, uint64_t offset) {
    size_t low = 0, high = device->block_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (device->blocks[middle].begin <= offset)
            low = middle + 1;
        else
            high = middle;
    }
    if (!low || offset - device->blocks[low - 1].begin >= device->blocks[low - 1].size) return device->block_count;
    return low - 1;
}

int npu_free(struct npu_device *device, uint64_t address) {
    pthread_mutex_lock(&device->lock);
    uint64_t offset = address - device->facts->memory_base;
    size_t i = block_at(device, offset);
    int found = i < device->block_count && device->blocks[i].begin == offset;
    if (found) {
        madvise(device->memory + offset, device->blocks[i].size, MADV_DONTNEED);
        device->used -= device->blocks[i].size;
        device->block_count--;
        memmove(device->blocks + i, device->blocks + i + 1, (device->block_count - i) * sizeof(struct block));
    }
    pthread_mutex_unlock(&device->lock);
    return found ? 0 : -1;
}

int npu_find(struct npu_device *device, uint64_t address, uint64_t *begin, uint64_t *size) {
    pthread_mutex_lock(&device->lock);
    size_t i = block_at(device, address - device->facts->memory_base);
    int found = i < device->block_count;
    if (found) {
        *begin = device->facts->memory_base + device->blocks[i].begin;
        *size = device->blocks[i].size;
    }
    pthread_mutex_unlock(&device->lock);
    return found ? 0 : -1;
}

void *npu_memory(struct npu_device *device, uint64_t address, uint64_t size) {
    uint64_t begin, whole;
    if (npu_find(device, address, &begin, &whole) || size > whole || address - begin > whole - size) return NULL;
    return device->memory + (address - device->facts->memory_base);
}

/* Queues --------------------------------------------------------------------------------------------------------------------- */

static int must_wait(const struct npu_queue *queue) {
    const struct task *task = queue->head;
    if (!task->after || task->after->done >= task->after_task) return 0;
    return !queue->closing || !npu_setting(queue->device, NPU_SET_HANG); /* what it waits for may never end */
}

/* The next task: the oldest that its queue lets begin. One that waits for cores is not overtaken by others that want cores. */
static struct npu_queue *next_queue(struct npu_device *device) {
    struct npu_queue *best = NULL, *light = NULL;
    for (struct npu_queue *queue = device->queues; queue; queue = queue->next) {
        if (queue->running || !queue->head || must_wait(queue)) continue;
        struct npu_queue **kind = queue->head->cores ? &best : &light;
        if (!*kind || queue->head->arrival < (*kind)->head->arrival) *kind = queue;
    }
    if (best && best->head->cores > device->free_cores) best = NULL;
    if (best && light) return best->head->arrival < light->head->arrival ? best : light;
    return best ? best : light;
}

static void wait_until(double time) {
    double rest = time - npu_clock();
    if (rest <= 0) return;
    struct timespec pause = {.tv_sec = (time_t)rest};
    pause.tv_nsec = (long)((rest - (double)pause.tv_sec) * 1e9);
    nanosleep(&pause, NULL);
}

/* A chip that hangs: until the fault is taken away, or the queue, as a driver resets a core whose program ends. */
static int hang(struct npu_queue *queue) {
    struct npu_device *device = queue->device;
    int closing = 0;
    while (!closing && npu_setting(device, NPU_SET_HANG) && !npu_setting(device, NPU_SET_LOST)) {
        wait_until(npu_clock() + POLL_S);
        pthread_mutex_lock(&device->lock);
        closing = queue->closing;
        pthread_mutex_unlock(&device->lock);
    }
    return closing;
}

static void perform(struct npu_queue *queue, struct task *task) {
    struct npu_device *device = queue->device;
    double begun = npu_clock();
    int dropped = task->cores && hang(queue);
    int lost = dropped || npu_setting(device, NPU_SET_LOST) != 0;
    if (task->work) task->work(task->context, lost);
    if (!lost && task->cores && npu_setting(device, NPU_SET_PACE)) wait_until(begun + task->seconds);
    pthread_mutex_lock(&device->lock);
    if (task->cores) {
        double start = queue->time > device->core_time ? queue->time : device->core_time;
        if (device->free_cores) start = queue->time; /* another core was idle: nothing to wait for */
        queue->time = start + task->seconds;
        if (queue->time > device->core_time) device->core_time = queue->time;
        device->busy_s += (npu_clock() - begun) * task->cores;
    }
}

static void *serve(void *argument) {
    struct npu_device *device = argument;
    pthread_mutex_lock(&device->lock);
    for (;;) {
        struct npu_queue *queue = next_queue(device);
        if (!queue) {
            pthread_cond_wait(&device->changed, &device->lock);
            continue;
        }
        struct task *task = queue->head;
        queue->head = task->next;
        if (!queue->head) queue->tail = &queue->head;
        if (task->after && task->after->time > queue->time) queue->time = task->after->time;
        queue->running = 1;
        device->free_cores -= task->cores;
        pthread_mutex_unlock(&device->lock);
        perform(queue, task); /* comes back with the lock */
        queue->running = 0;
        queue->done = task->number;
        device->free_cores += task->cores;
        pthread_cond_broadcast(&device->changed);
        free(task);
    }
    return NULL;
}

/* One thread a core, and one for copies; with the lock held. */
static int start_threads(struct npu_device *device) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    while (device->threads < device->facts->cores + 1) {
        pthread_t id;
        if (pthread_create(&id, &attributes, serve, device)) break;
        device->threads++;
    }
    pthread_attr_destroy(&attributes);
    return device->threads == device->facts->cores + 1 ? 0 : -1;
}

struct npu_queue *npu_queue_create(struct npu_device *device) {
    struct npu_queue *queue = calloc(1, sizeof *queue);
    if (!queue) return NULL;
    queue->device = device;
    queue->tail = &queue->head;
    pthread_mutex_lock(&device->lock);
    int started = start_threads(device);
    if (!started) {
        queue->next = device->queues;
        device->queues = queue;
    }
    pthread_mutex_unlock(&device->lock);
    if (!started) return queue;
    free(queue);
    return NULL;
}

void npu_queue_close(struct npu_queue *queue) {
    pthread_mutex_lock(&queue->device->lock);
    queue->closing = 1;
    pthread_cond_broadcast(&queue->device->changed);
    pthread_mutex_unlock(&queue->device->lock);
}

void npu_queue_destroy(struct npu_queue *queue) {
    struct npu_device *device = queue->device;
    npu_queue_close(queue);
    pthread_mutex_lock(&device->lock);
    while (queue->running || queue->head) pthread_cond_wait(&device->changed, &device->lock);
    struct npu_queue **link = &device->queues;
    while (*link != queue) link = &(*link)->next;
    *link = queue->next;
    for (struct npu_queue *other = device->queues; other; other = other->next)
        for (struct task *task = other->head; task; task = task->next)
            if (task->after == queue) task->after = NULL; /* all that was in it has ended */
    pthread_mutex_unlock(&device->lock);
    free(queue);
}

static uint64_t append(struct npu_queue *queue, struct task *task) {
    struct npu_device *device = queue->device;
    pthread_mutex_lock(&device->lock);
    uint64_t number = task->number = ++queue->last;
    task->arrival = ++device->arrivals;
    /* An idle queue goes on now, after everything that has ended. */
    if (!queue->head && !queue->running && queue->time < device->core_time) queue->time = device->core_time;
    *queue->tail = task;
    queue->tail = &task->next;
    pthread_cond_broadcast(&device->changed);
    pthread_mutex_unlock(&device->lock);
    return number;
}

uint64_t npu_enqueue(struct npu_queue *queue, npu_work_function work, void *context, uint32_t cores, double seconds) {
    struct task *task = calloc(1, sizeof *task);
    if (!task) return 0;
    uint32_t most = queue->device->facts->cores;
    task->work = work;
    task->context = context;
    task->cores = cores < most ? cores : most;
    task->seconds = seconds;
    return append(queue, task);
}

uint64_t npu_enqueue_after(struct npu_queue *queue, struct npu_queue *other, uint64_t number) {
    struct task *task = calloc(1, sizeof *task);
    if (!task) return 0;
    if (other != queue) {
        task->after = other;
        task->after_task = number;
    }
    return append(queue, task);
}

int npu_queue_wait(struct npu_queue *queue, uint64_t task, double seconds) {
    struct npu_device *device = queue->device;
    struct timespec end = after(seconds < 0 ? 1e8 : seconds);
    pthread_mutex_lock(&device->lock);
    int late = 0;
    while (queue->done < task && seconds != 0 && !late) late = pthread_cond_timedwait(&device->changed, &device->lock, &end) != 0;
    int ended = queue->done >= task;
    pthread_mutex_unlock(&device->lock);
    return ended;
}

void npu_wait_all(struct npu_device *device) {
    pthread_mutex_lock(&device->lock);
    struct npu_queue *queue = device->queues;
    while (queue) {
        if (queue->running || queue->head) {
            pthread_cond_wait(&device->changed, &device->lock);
            queue = device->queues; /* the list may have changed */
        } else {
            queue = queue->next;
        }
    }
    pthread_mutex_unlock(&device->lock);
}

uint64_t npu_queue_last(struct npu_queue *queue) {
    pthread_mutex_lock(&queue->device->lock);
    uint64_t last = queue->last;
    pthread_mutex_unlock(&queue->device->lock);
    return last;
}

double npu_queue_time(struct npu_queue *queue) {
    pthread_mutex_lock(&queue->device->lock);
    double time = queue->time;
    pthread_mutex_unlock(&queue->device->lock);
    return time;
}

/* Counts and telemetry --------------------------------------------------------------------------------------------------------- */

void npu_count(struct npu_device *device, enum npu_thing thing, int change) { atomic_fetch_add(&device->things[thing], change); }

int64_t pyasc_sim_outstanding(int chip, int thing) {
    if (chip < NPU_HI3559 || chip >= NPU_CHIPS || thing < 0 || thing > NPU_THINGS) return -1;
    struct npu_device *device = npu_device((enum npu_chip_id)chip);
    if (thing < NPU_THINGS) return atomic_load(&device->things[thing]);
    pthread_mutex_lock(&device->lock);
    int64_t count = (int64_t)device->block_count;
    pthread_mutex_unlock(&device->lock);
    return count;
}

const char *pyasc_sim_version(void) { return "1"; }

struct npu_usage npu_usage(struct npu_device *device) {
    int64_t throttle = npu_setting(device, NPU_SET_THROTTLE);
    pthread_mutex_lock(&device->lock);
    double now = npu_clock(), passed = now - device->busy_since;
    if (passed > 0.05) {
        device->load = device->busy_s / passed / device->facts->cores;
        device->load = device->load < 1 ? device->load : 1;
        device->busy_s = 0;
        device->busy_since = now;
    }
    reserve(device);
    const struct npu_chip_facts *facts = device->facts;
    struct npu_usage usage = {.total = device->memory_size, .used = device->used, .allocations = device->block_count, .busy = device->load};
    usage.power_w = facts->idle_w + (facts->busy_w - facts->idle_w) * device->load;
    usage.temperature_c = throttle < 100 ? 95 : facts->idle_c + (facts->busy_c - facts->idle_c) * device->load;
    pthread_mutex_unlock(&device->lock);
    return usage;
}
