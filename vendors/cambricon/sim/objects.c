/* Handles. One is no address but a place in a table with the number of its use, so that one that was destroyed is found out. */
#include "runtime.h"

#include <stdlib.h>

#define PLACES (1u << 20)

struct place {
    struct cn_object *object;
    uint32_t use;
};

static const enum npu_thing counted[CN_KINDS] = {
    [CN_MODEL] = NPU_MODELS,       [CN_FUNCTION] = NPU_FUNCTIONS, [CN_CONTEXT] = NPU_CONTEXTS,      [CN_QUEUE] = NPU_QUEUES,
    [CN_NOTIFIER] = NPU_NOTIFIERS, [CN_PARAM] = NPU_DESCRIPTORS,  [CN_QUANTIZED] = NPU_DESCRIPTORS, [CN_PARAM_LIST] = NPU_DESCRIPTORS,
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct place *places;
static uint32_t room, next_place;

static void count(enum cn_kind kind, int change) { npu_count(cn_device(), counted[kind], change); }

/* A free place, or PLACES; with the lock held. Places are taken in turn, so that a number comes back late. */
static uint32_t free_place(void) {
    for (uint32_t tried = 0; tried < room; tried++) {
        uint32_t at = (next_place + tried) % room;
        if (places[at].object) continue;
        next_place = at + 1;
        return at;
    }
    if (room >= PLACES) return PLACES;
    uint32_t wanted = room ? room * 2 : 256;
    struct place *made = realloc(places, wanted * sizeof *made);
    if (!made) return PLACES;
    for (uint32_t i = room; i < wanted; i++) made[i] = (struct place){NULL, 0};
    places = made;
    next_place = room + 1;
    uint32_t at = room;
    room = wanted;
    return at;
}

static void *handle_of(uint32_t at, uint32_t use, enum cn_kind kind) {
    return (void *)(uintptr_t)((uint64_t)kind << 56 | (uint64_t)(use & 0xFFFFFFF) << 24 | (uint64_t)at << 4 | 8);
}

/* With the lock held; NULL when there is no such object. */
static struct place *place_of(const void *handle, enum cn_kind kind) {
    uint64_t bits = (uint64_t)(uintptr_t)handle;
    uint32_t at = (uint32_t)(bits >> 4) & (PLACES - 1);
    if (at >= room || !places[at].object || handle_of(at, places[at].use, kind) != handle) return NULL;
    return places[at].object->kind == kind ? &places[at] : NULL;
}

void *cn_put(struct cn_object *object, enum cn_kind kind, void (*destroy)(struct cn_object *object)) {
    void *handle = NULL;
    object->kind = kind;
    object->destroy = destroy;
    atomic_init(&object->references, 1);
    pthread_mutex_lock(&lock);
    uint32_t at = free_place();
    if (at < PLACES) {
        places[at].object = object;
        places[at].use++;
        handle = handle_of(at, places[at].use, kind);
    }
    pthread_mutex_unlock(&lock);
    if (handle)
        count(kind, 1);
    else
        destroy(object);
    return handle;
}

void cn_hold(struct cn_object *object) { atomic_fetch_add(&object->references, 1); }

void cn_drop(struct cn_object *object) {
    if (object && atomic_fetch_sub(&object->references, 1) == 1) object->destroy(object);
}

void *cn_get(const void *handle, enum cn_kind kind) {
    pthread_mutex_lock(&lock);
    struct place *place = place_of(handle, kind);
    struct cn_object *object = place ? place->object : NULL;
    if (object) cn_hold(object);
    pthread_mutex_unlock(&lock);
    return object;
}

int cn_remove(const void *handle, enum cn_kind kind) {
    pthread_mutex_lock(&lock);
    struct place *place = place_of(handle, kind);
    struct cn_object *object = place ? place->object : NULL;
    if (place) place->object = NULL;
    pthread_mutex_unlock(&lock);
    if (!object) return -1;
    count(kind, -1);
    cn_drop(object);
    return 0;
}
