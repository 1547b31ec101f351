/* Settings and faults of the simulated chips, from the environment and from a file that may change at any time. */
#include "chip.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define FILE_LIMIT 65536

static const struct {
    const char *name;
    int64_t usual;
} settings[NPU_SET_COUNT] = {
    [NPU_SET_MEMORY_MIB] = {"memory_mib", 0},
    [NPU_SET_PACE] = {"pace", 0},
    [NPU_SET_QUERY_TIMEOUT] = {"query_timeout", 0},
    [NPU_SET_HANG] = {"hang", 0},
    [NPU_SET_NO_MEMORY] = {"no_memory", 0},
    [NPU_SET_BUSY] = {"busy", 0},
    [NPU_SET_LOST] = {"lost", 0},
    [NPU_SET_VERSION] = {"version", 0},
    [NPU_SET_THROTTLE] = {"throttle", 100},
    [NPU_SET_CORRUPT] = {"corrupt", 0},
    [NPU_SET_COHERENT] = {"coherent", 0},
    [NPU_SET_API] = {"api", 0},
    [NPU_SET_CNDEV] = {"cndev", 2020},
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int64_t values[NPU_CHIPS][NPU_SET_COUNT];
static struct stat seen;
static int loaded;

static void complain(const char *text) {
    static char last[160];
    if (!strncmp(last, text, sizeof last - 1)) return;
    snprintf(last, sizeof last, "%s", text);
    fprintf(stderr, "pyasc simulator: the setting %s is not understood\n", last);
}

static void apply(char *line) {
    char *end = line + strcspn(line, "#\r");
    while (end > line && (end[-1] == ' ' || end[-1] == '\t')) end--;
    *end = 0;
    line += strspn(line, " \t");
    if (!*line) return;
    for (enum npu_chip_id chip = NPU_HI3559; chip < NPU_CHIPS; chip++) {
        size_t length = strlen(npu_chip_facts(chip)->name);
        if (strncmp(line, npu_chip_facts(chip)->name, length) || line[length] != '.') continue;
        for (int i = 0; i < NPU_SET_COUNT; i++) {
            const char *rest = line + length + 1;
            size_t name = strlen(settings[i].name);
            if (strncmp(rest, settings[i].name, name)) continue;
            rest += name;
            rest += strspn(rest, " \t");
            if (*rest != '=') continue;
            char *stop;
            long long value = strtoll(rest + 1, &stop, 10);
            if (stop == rest + 1 || *stop) break;
            values[chip][i] = value;
            return;
        }
    }
    complain(line);
}

static void apply_all(char *text, const char *separators) {
    char *rest = text, *line;
    while ((line = strsep(&rest, separators))) apply(line);
}

static void apply_file(const char *path) {
    FILE *file = fopen(path, "re");
    char *text = file ? malloc(FILE_LIMIT + 1) : NULL;
    if (text) {
        text[fread(text, 1, FILE_LIMIT, file)] = 0;
        apply_all(text, "\n");
        free(text);
    }
    if (file) fclose(file);
}

/* Read everything anew when the file has changed; with `lock` held. */
static void refresh(void) {
    const char *path = getenv("PYASC_SIM_CONTROL"), *environment = getenv("PYASC_SIM");
    struct stat now;
    memset(&now, 0, sizeof now);
    if (path && stat(path, &now)) memset(&now, 0, sizeof now);
    if (loaded && now.st_ino == seen.st_ino && now.st_size == seen.st_size && now.st_mtim.tv_sec == seen.st_mtim.tv_sec &&
        now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec)
        return;
    loaded = 1;
    seen = now;
    for (int chip = NPU_HI3559; chip < NPU_CHIPS; chip++)
        for (int i = 0; i < NPU_SET_COUNT; i++) values[chip][i] = settings[i].usual;
    if (environment) {
        char *copy = strdup(environment);
        if (copy) apply_all(copy, ",");
        free(copy);
    }
    if (path) apply_file(path);
}

int64_t npu_setting(struct npu_device *device, enum npu_setting setting) {
    pthread_mutex_lock(&lock);
    refresh();
    int64_t value = values[npu_chip_of(device)][setting];
    pthread_mutex_unlock(&lock);
    return value;
}

int npu_take(struct npu_device *device, enum npu_setting setting) {
    pthread_mutex_lock(&lock);
    refresh();
    int64_t *value = &values[npu_chip_of(device)][setting];
    int taken = *value != 0;
    if (*value > 0) --*value;
    pthread_mutex_unlock(&lock);
    return taken;
}
