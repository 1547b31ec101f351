/* A few threads for all runs of the process. They start with the first run and live as long as the process. */
#include "internal.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#define PAUSE() _mm_pause()
#elif defined(__aarch64__)
#define PAUSE() __asm__ volatile("yield")
#else
#define PAUSE() ((void)0)
#endif

/* The operations of a network follow each other within microseconds, less than it takes to wake a thread. */
#define SPINS 20000

struct job {
    void (*work)(void *, uint32_t, uint32_t);
    void *context;
    uint32_t chunks;
    _Atomic uint32_t next;
    _Atomic uint32_t helpers;
    struct job *following;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t arrived = PTHREAD_COND_INITIALIZER, finished = PTHREAD_COND_INITIALIZER;
static struct job *jobs;
static _Atomic uint32_t announced;
static uint32_t workers;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void take_chunks(struct job *job, uint32_t thread) {
    for (;;) {
        uint32_t chunk = atomic_fetch_add(&job->next, 1);
        if (chunk >= job->chunks) return;
        job->work(job->context, chunk, thread);
    }
}

static struct job *open_job(void) {
    for (struct job *job = jobs; job; job = job->following)
        if (atomic_load(&job->next) < job->chunks) return job;
    return NULL;
}

static void *serve(void *argument) {
    uint32_t thread = (uint32_t)(uintptr_t)argument;
    for (;;) {
        uint32_t seen = atomic_load(&announced);
        pthread_mutex_lock(&lock);
        struct job *job = open_job();
        if (job) atomic_fetch_add(&job->helpers, 1);
        pthread_mutex_unlock(&lock);
        if (job) {
            take_chunks(job, thread);
            pthread_mutex_lock(&lock);
            if (atomic_fetch_sub(&job->helpers, 1) == 1) pthread_cond_broadcast(&finished);
            pthread_mutex_unlock(&lock);
            continue;
        }
        for (int spin = 0; spin < SPINS && atomic_load(&announced) == seen; spin++) PAUSE();
        pthread_mutex_lock(&lock);
        while (atomic_load(&announced) == seen) pthread_cond_wait(&arrived, &lock);
        pthread_mutex_unlock(&lock);
    }
    return NULL;
}

static uint32_t wanted_threads(void) {
    const char *text = getenv("PYASC_SIM_THREADS");
    long count = text ? strtol(text, NULL, 10) : sysconf(_SC_NPROCESSORS_ONLN);
    if (count < 1) count = 1;
    return count > (long)NPU_MAX_THREADS ? NPU_MAX_THREADS : (uint32_t)count;
}

static void start(void) {
    uint32_t count = wanted_threads();
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    for (uint32_t thread = 1; thread < count; thread++) {
        pthread_t id;
        if (pthread_create(&id, &attributes, serve, (void *)(uintptr_t)thread)) break;
        workers++;
    }
    pthread_attr_destroy(&attributes);
}

uint32_t npu_threads(void) {
    pthread_once(&once, start);
    return workers + 1;
}

void npu_parallel(void (*work)(void *, uint32_t, uint32_t), void *context, uint32_t chunks) {
    if (npu_threads() == 1 || chunks == 1) {
        for (uint32_t chunk = 0; chunk < chunks; chunk++) work(context, chunk, 0);
        return;
    }
    struct job job = {.work = work, .context = context, .chunks = chunks};
    pthread_mutex_lock(&lock);
    job.following = jobs;
    jobs = &job;
    atomic_fetch_add(&announced, 1);
    pthread_cond_broadcast(&arrived);
    pthread_mutex_unlock(&lock);
    take_chunks(&job, 0);
    for (int spin = 0; spin < SPINS && atomic_load(&job.helpers); spin++) PAUSE();
    pthread_mutex_lock(&lock);
    while (atomic_load(&job.helpers)) pthread_cond_wait(&finished, &lock);
    struct job **link = &jobs;
    while (*link != &job) link = &(*link)->following;
    *link = job.following;
    pthread_mutex_unlock(&lock);
}
