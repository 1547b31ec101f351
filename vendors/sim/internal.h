/* What the files of the program runner share. */
#ifndef PYASC_SIM_INTERNAL_H
#define PYASC_SIM_INTERNAL_H

#include "program.h"

#define NPU_ALIGN 64u
#define NPU_ROW 32u /* output channels of one step of a convolution; kernels take a divisor of it */
#define NPU_CHUNK 512u

/* How a convolution's operands lie in memory for one kind of kernel. */
struct npu_layout {
    uint32_t rows;  /* pixels of one step */
    uint32_t depth; /* values along K that lie side by side; K is padded to it */
    uint32_t size;  /* bytes of one value of a picture */
    int32_t offset; /* added to an 8-bit value when it is packed */
};

struct npu_conv {
    struct npu_layout layout;
    size_t k, k_padded;
    uint32_t blocks;   /* of NPU_ROW channels, of one group */
    size_t panel_rows; /* pixels that are packed at once */
    void *weights;     /* [group][block][k_padded / depth][NPU_ROW][depth] */
    int32_t *start;    /* [group][block][NPU_ROW]: what a sum starts with */
    float *scale;      /* [OC], with the input's */
};

/* An operation with its tables in memory of our own. */
struct npu_step {
    struct npu_op op;
    char name[48];
    struct npu_conv conv; /* NPU_CONV but depthwise */
    int16_t *taps;        /* depthwise, integers: [KH * KW][C] */
    float *float_taps;    /* depthwise, half precision */
    float *scales;        /* depthwise: of input and channel together */
    float *bias;
    float *mean, *factor;
    int8_t *table;  /* NPU_ACT_TABLE, or of an 8-bit NPU_INPUT: [C][256] */
    int depthwise;
};

struct npu_program {
    uint32_t chip, tensor_count, step_count, input_count, output_count;
    struct npu_tensor *tensors;
    size_t *offsets; /* of each tensor in the scratch memory */
    struct npu_step *steps;
    uint32_t *inputs, *outputs; /* steps */
    size_t tensor_bytes, panel_bytes, weight_bytes;
    struct npu_work work;
};

/* The kernels of one instruction set. */
struct npu_kernels {
    const char *name;
    struct npu_layout i8, i16, f16;
    void (*conv)(const struct npu_program *, const struct npu_step *, const uint8_t *in, uint8_t *out, uint32_t first, uint32_t last,
                 uint8_t *panel);
    void (*depthwise)(const struct npu_program *, const struct npu_step *, const uint8_t *in, uint8_t *out, uint32_t first,
                      uint32_t last);
    void (*rows)(const struct npu_program *, const struct npu_step *, const uint8_t *const *in, uint8_t *out, uint32_t first,
                 uint32_t last);
    void (*input)(const struct npu_program *, const struct npu_step *, const struct npu_blob *, uint8_t *out, uint32_t first,
                  uint32_t last);
    void (*output)(const struct npu_program *, const struct npu_step *, const uint8_t *in, const struct npu_blob *, uint32_t first,
                   uint32_t last);
};

const struct npu_kernels *npu_kernels(void);

static inline size_t npu_size_of(uint32_t dtype) { return dtype == NPU_I8 ? 1 : 2; }

static inline size_t npu_elements(const struct npu_tensor *tensor) { return (size_t)tensor->h * tensor->w * tensor->c; }

/* Threads: chunks 0 .. chunks - 1 of work, on the caller's thread and the pool's. */
#define NPU_MAX_THREADS 8u
uint32_t npu_threads(void);
void npu_parallel(void (*work)(void *context, uint32_t chunk, uint32_t thread), void *context, uint32_t chunks);

#endif
