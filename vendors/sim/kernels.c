/* The kernels, once for each instruction set that they are made for, and the choice among them when the program starts. */
#include "internal.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

float npu_half_to_float(uint16_t half);

#define PASTE_(a, b) a##_##b
#define PASTE(a, b) PASTE_(a, b)
#define NAME(a) PASTE(a, VARIANT)

#define VARIANT plain
#define LEVEL 0
#include "kernels.inc"
#undef VARIANT
#undef LEVEL

#if defined(__x86_64__)
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#define VARIANT avx2
#define LEVEL 1
#include "kernels.inc"
#undef VARIANT
#undef LEVEL
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,prefer-vector-width=512")
#define VARIANT vnni
#define LEVEL 2
#include "kernels.inc"
#undef VARIANT
#undef LEVEL
#pragma GCC pop_options
#endif

static const struct npu_kernels *chosen = &kernels_plain;

/* PYASC_SIM_KERNELS forces a set that this processor has, to compare them. */
static void choose(void) {
#if defined(__x86_64__)
    const char *wanted = getenv("PYASC_SIM_KERNELS");
    __builtin_cpu_init();
    int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    int vnni = avx2 && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (wanted && !strcmp(wanted, "plain")) return;
    if (wanted && !strcmp(wanted, "avx2")) vnni = 0;
    chosen = vnni ? &kernels_vnni : avx2 ? &kernels_avx2 : &kernels_plain;
#endif
}

const struct npu_kernels *npu_kernels(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, choose);
    return chosen;
}
