/* Model files of Cambricon, `.cambricon`: the head that public files have, then tables and programs of the simulator in the place of the
 * vendor's, which are not public. Little-endian; offsets count from the start of the file, and the tables are aligned to 4.
 *
 *   0   7F 4D 45 46  14 14 03 1E  01 00 00 00  0D 00 00 00  "forward_model"  00 00 00
 *   32  struct cam_header
 *   ..  struct cam_function [functions]     at `table`
 *   ..  struct cam_port [inputs + outputs]  of each function, inputs first, at its `ports`
 *   ..  names (zero-terminated) and programs (program.h, aligned to 4, compiled for MLU220)
 *
 * A port is NHWC, as the caller sees it: FLOAT16, FLOAT32 or, of inputs, UINT8. With a first convolution that takes pictures of four
 * channels (RGBA, BGRA, ...) the program has fewer of them: its channel c is the caller's channel first + c * step.
 */
#ifndef PYASC_SIM_CAMBRICON_H
#define PYASC_SIM_CAMBRICON_H

#include "../../sim/program.h"

#define CAM_HEAD 32u
#define CAM_MAGIC "PyASCcam"
#define CAM_FORMAT 1u
#define CAM_MOST_BATCHES 6u

struct cam_header {
    char magic[8];
    uint32_t format;
    uint32_t checksum; /* CRC-32 of the bytes from `size` on to the end */
    uint32_t size;     /* of the whole file */
    uint32_t core_version; /* cnrtCoreVersion_t */
    uint32_t parallelism;  /* cores that one run takes at once */
    uint32_t stack_mib, local_mib;
    uint32_t functions;
    uint32_t table;
    uint32_t reserved[5];
};

struct cam_function {
    uint32_t name;
    uint32_t batch_count; /* more than one: a model in cache mode, which takes any of its batch sizes */
    uint32_t batches[CAM_MOST_BATCHES]; /* ascending */
    uint32_t inputs, outputs;
    uint32_t ports;
    uint32_t program, program_size;
    uint32_t reserved[3];
};

struct cam_port {
    uint32_t name;
    uint32_t dtype; /* cnrtDataType_t */
    uint32_t n, h, w, c; /* n: the largest batch */
    int32_t first, step;
    int32_t position; /* of quantised numbers, for information: 2^position / scale */
    float scale;
    uint32_t reserved[2];
};

_Static_assert(sizeof(struct cam_header) == 64, "the format is fixed");
_Static_assert(sizeof(struct cam_function) == 64, "the format is fixed");
_Static_assert(sizeof(struct cam_port) == 48, "the format is fixed");

/* A loaded file. */
struct cam_model_port {
    char name[64];
    struct cam_port port;
    uint32_t size;     /* bytes of a number */
    uint64_t picture;  /* bytes of one picture */
};

struct cam_model_function {
    char name[64];
    struct cam_function function;
    struct cam_model_port *ports;
    struct npu_program *program;
};

struct cam_model {
    struct cam_header header;
    struct cam_model_function *functions;
};

/* Whether it begins as a model file does; 29 bytes are enough. */
int cam_is_model(const void *data, size_t size);
/* The size that the file says it has, from its first 96 bytes; 0 when it is none of ours. */
size_t cam_size(const void *data, size_t size);
/* NULL, with one line in `error`, when it is wrong. Nothing of `data` is kept. */
struct cam_model *cam_load(const void *data, size_t size, char *error, size_t error_size);
void cam_unload(struct cam_model *model);

#endif
