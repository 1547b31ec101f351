/* A network for the simulated accelerators: the format of a compiled program, and how one is loaded and run.
 *
 * A program is one segment: a list of tensors and a list of operations on them, in order. It stands where a vendor's file has the
 * instructions of its chip. Everything is little-endian; offsets count from the start of the program.
 *
 *   struct npu_header
 *   struct npu_tensor [tensors]        NHWC, without a batch: a run takes one picture
 *   struct npu_op     [ops]            an operation reads only tensors that an operation before it wrote
 *   data                               names (zero-terminated), weights, biases, scales, tables; each aligned to 4
 *
 * Arithmetic. A tensor of integers stands for real = (stored - zero) * scale. A convolution multiplies integers and adds them in 32
 * bits (64 for 16-bit data), then, in float32,
 *
 *   value = sum * (scale of the input * scale of the channel's weights) + bias;  value = activation(value)
 *   stored = saturate(round to nearest even(value / scale of the output) + zero of the output)
 *
 * With the activation NPU_ACT_TABLE, which takes 8-bit data, value is first stored with `pre_scale` and zero 0, and the 256 bytes of
 * the table, in the order of the unsigned byte, give what is stored: a chip's look-up unit. The other operations compute in float32
 * on real values and store the same way; NPU_F16 stores values rounded to half precision and multiplies and adds in float32.
 */
#ifndef PYASC_SIM_PROGRAM_H
#define PYASC_SIM_PROGRAM_H

#include <stddef.h>
#include <stdint.h>

#define NPU_MAGIC "PyASCnpu"
#define NPU_FORMAT 1u

enum npu_dtype { NPU_I8 = 1, NPU_I16 = 2, NPU_F16 = 3 };

enum npu_op_kind {
    NPU_INPUT = 1,    /* out = (bytes or numbers of the caller - mean[c]) * factor[c]; data: float mean[C], float factor[C] */
    NPU_OUTPUT = 2,   /* in[0] goes to the caller */
    NPU_CONV = 3,     /* weights [OC][KH][KW][IC / groups] of the dtype of in[0], zero 0; scales float[OC] (1 for F16), bias float[OC] */
    NPU_MAX_POOL = 4, /* outside of the picture does not count */
    NPU_AVG_POOL = 5, /* NPU_COUNT_PAD: divides by the whole window */
    NPU_ADD = 6,      /* as many inputs as wanted, of one shape */
    NPU_MUL = 7,      /* two inputs; the second may have H = W = 1 */
    NPU_CONCAT = 8,   /* along C */
    NPU_UPSAMPLE = 9, /* nearest; the factor is kernel_h, kernel_w */
    NPU_ACT = 10,     /* the activation alone */
    NPU_SPACE_TO_DEPTH = 11, /* blocks of stride_h x stride_w; channel of the output = (y * stride_w + x) * C + c */
    NPU_FLATTEN = 12, /* H = W = 1, C = H * W * C of the input, in the order H, W, C */
};

enum npu_activation {
    NPU_ACT_NONE = 0,
    NPU_ACT_RELU = 1,
    NPU_ACT_LEAKY = 2, /* a: slope below 0 */
    NPU_ACT_CLIP = 3,  /* a: lowest, b: highest */
    NPU_ACT_SIGMOID = 4,
    NPU_ACT_SILU = 5,
    NPU_ACT_TANH = 6,
    NPU_ACT_HARD_SWISH = 7,
    NPU_ACT_HARD_SIGMOID = 8, /* clip(a * x + b, 0, 1) */
    NPU_ACT_TABLE = 9,
};

enum npu_flag { NPU_COUNT_PAD = 1u };

#define NPU_MAX_INPUTS 8
#define NPU_NONE 0xFFFFFFFFu

struct npu_header {
    char magic[8];
    uint32_t format;
    uint32_t size; /* of the whole program */
    uint32_t chip; /* enum npu_chip_id that it was compiled for */
    uint32_t tensors;
    uint32_t ops;
    uint32_t reserved; /* 0 */
};

struct npu_tensor {
    uint32_t dtype;
    uint32_t h, w, c;
    float scale; /* 1 for F16 */
    int32_t zero;
    uint32_t reserved[2];
};

struct npu_op {
    uint32_t kind;
    uint32_t name; /* offset */
    uint32_t in_count;
    uint32_t in[NPU_MAX_INPUTS];
    uint32_t out; /* NPU_NONE for NPU_OUTPUT */
    uint16_t kernel_h, kernel_w, stride_h, stride_w, dilation_h, dilation_w;
    uint16_t pad_top, pad_left, pad_bottom, pad_right;
    uint32_t groups;
    uint32_t activation;
    float act_a, act_b;
    float pre_scale;
    uint32_t flags;
    uint32_t weights; /* offsets; NPU_NONE where the operation has none */
    uint32_t scales;
    uint32_t bias;
    uint32_t table;
    uint32_t data; /* of NPU_INPUT */
    uint32_t reserved[4];
};

_Static_assert(sizeof(struct npu_header) == 32, "the format is fixed");
_Static_assert(sizeof(struct npu_tensor) == 32, "the format is fixed");
_Static_assert(sizeof(struct npu_op) == 128, "the format is fixed");

/* What a caller gives or takes: one picture, by strides. */
enum npu_blob_type {
    NPU_BLOB_U8 = 1,
    NPU_BLOB_S8 = 2,
    NPU_BLOB_S16 = 3,
    NPU_BLOB_F16 = 4,
    NPU_BLOB_F32 = 5,
    NPU_BLOB_SQ20_12 = 6, /* 32 bits, 12 of them after the point */
};

struct npu_blob {
    void *data;
    enum npu_blob_type type;
    int64_t stride_h, stride_w, stride_c; /* in bytes */
};

struct npu_port {
    const char *name;
    uint32_t h, w, c;
};

struct npu_program;

/* Check and load a program: nothing in it is trusted, nothing of `data` is kept. NULL, with one line in `error`, when it is wrong or
 * memory is short. */
struct npu_program *npu_load(const void *data, size_t size, char *error, size_t error_size);
void npu_unload(struct npu_program *program);

uint32_t npu_chip(const struct npu_program *program);
uint32_t npu_input_count(const struct npu_program *program);
uint32_t npu_output_count(const struct npu_program *program);
struct npu_port npu_input(const struct npu_program *program, uint32_t index);
struct npu_port npu_output(const struct npu_program *program, uint32_t index);

/* Bytes of scratch memory that a run takes, and of the weights as the chip holds them. */
size_t npu_scratch_bytes(const struct npu_program *program);
size_t npu_weight_bytes(const struct npu_program *program);

/* Run once. `scratch` holds npu_scratch_bytes, aligned to 64, and belongs to this run alone; blobs are in the order of the ports and
 * as large as these say. Several threads may run one program at once. */
void npu_run(const struct npu_program *program, const struct npu_blob *inputs, const struct npu_blob *outputs, void *scratch);

/* For the cost model: multiplications with their additions, and bytes that go between memory and core, in one run. */
struct npu_work {
    double macs_8, macs_16; /* of 8-bit and of 16-bit or half precision data */
    double elements;        /* that other operations compute */
    double bytes;
};
struct npu_work npu_count_work(const struct npu_program *program);

#endif
