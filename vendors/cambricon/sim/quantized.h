/* Quantisation parameters of the simulated libcnrt. */
#ifndef PYASC_SIM_QUANTIZED_H
#define PYASC_SIM_QUANTIZED_H

#include "runtime.h"

/* stored = real * scale / 2^position + offset */
struct quantized_channel {
    int position;
    float scale, offset;
};

struct quantized {
    struct cn_object object;
    struct quantized_channel *channels;
    size_t count;
    size_t inner; /* numbers of one channel that lie side by side */
};

#endif
