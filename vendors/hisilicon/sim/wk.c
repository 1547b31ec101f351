/* Reads `.wk` files; the offsets are those seen in public files. */
#include "wk.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define HEAD 0xC0u
#define SEGMENT 16u
#define NODE 64u

struct source {
    const uint8_t *data;
    size_t size;
    char *error;
    size_t error_size;
};

static int fail(struct source *source, const char *format, ...) __attribute__((format(printf, 2, 3)));

static int fail(struct source *source, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(source->error, source->error_size, format, arguments);
    va_end(arguments);
    return -1;
}

static uint32_t u32(const uint8_t *at) {
    uint32_t value;
    memcpy(&value, at, 4);
    return value;
}

static uint16_t u16(const uint8_t *at) {
    uint16_t value;
    memcpy(&value, at, 2);
    return value;
}

static uint32_t crc32(const uint8_t *data, size_t size) {
    uint32_t table[256], crc = 0;
    for (uint32_t i = 0; i < 256; i++) {
        table[i] = i;
        for (int bit = 0; bit < 8; bit++) table[i] = table[i] & 1 ? 0xEDB88320u ^ table[i] >> 1 : table[i] >> 1;
    }
    for (size_t i = 0; i < size; i++) crc = table[(crc ^ data[i]) & 255] ^ crc >> 8;
    return ~crc;
}

static void read_node(const uint8_t *at, int source, SVP_NNIE_NODE_S *node) {
    memset(node, 0, sizeof *node);
    node->unShape.stWhc.u32Height = u32(at);
    node->unShape.stWhc.u32Width = u32(at + 4);
    node->unShape.stWhc.u32Chn = u32(at + 8);
    node->enType = source ? (SVP_BLOB_TYPE_E)at[14] : at[12] ? SVP_BLOB_TYPE_S32 : SVP_BLOB_TYPE_VEC_S32;
    if (node->enType == SVP_BLOB_TYPE_VEC_S32 || node->enType == SVP_BLOB_TYPE_SEQ_S32) {
        node->unShape.stWhc.u32Width = u32(at + 8); /* u32Dim lies in the same place */
        node->unShape.stWhc.u32Height = node->unShape.stWhc.u32Chn = 1;
    }
    node->u32NodeId = at[15];
    memcpy(node->szName, at + 16, SVP_NNIE_NODE_NAME_LEN - 1);
}

static int fits(const SVP_NNIE_NODE_S *node, struct npu_port port) {
    int vector = node->enType == SVP_BLOB_TYPE_VEC_S32 || node->enType == SVP_BLOB_TYPE_SEQ_S32;
    if (vector) return port.h == 1 && port.w == 1 && port.c == node->unShape.u32Dim;
    return node->enType < SVP_BLOB_TYPE_BUTT && port.h == node->unShape.stWhc.u32Height && port.w == node->unShape.stWhc.u32Width &&
           port.c == node->unShape.stWhc.u32Chn;
}

/* One segment, whose record begins at `at`; where the next begins, or 0. */
static size_t read_segment(struct source *source, size_t at, uint32_t end, SVP_NNIE_SEG_S *segment, struct npu_program **program) {
    if (at + SEGMENT > end) return fail(source, "cut off in its segments"), 0;
    const uint8_t *record = source->data + at;
    segment->enNetType = (SVP_NNIE_NET_TYPE_E)record[0];
    segment->u16SrcNum = record[1];
    segment->u16DstNum = record[2];
    segment->u16RoiPoolNum = record[3];
    segment->u16MaxStep = u16(record + 4);
    segment->u32InstOffset = u32(record + 8);
    segment->u32InstLen = u32(record + 12);
    if (record[0] > SVP_NNIE_NET_TYPE_RECURRENT || !record[1] || record[1] > SVP_NNIE_MAX_INPUT_NUM || !record[2] ||
        record[2] > SVP_NNIE_MAX_OUTPUT_NUM)
        return fail(source, "a segment of kind %u with %u sources and %u destinations", record[0], record[1], record[2]), 0;
    if (segment->u16RoiPoolNum) return fail(source, "a segment with ROI pooling, which the simulator does not have"), 0;
    size_t nodes = (size_t)record[1] + record[2];
    if (at + SEGMENT + nodes * NODE > end) return fail(source, "cut off in its nodes"), 0;
    for (size_t i = 0; i < nodes; i++) {
        int from = i < record[1];
        read_node(record + SEGMENT + i * NODE, from, from ? &segment->astSrcNode[i] : &segment->astDstNode[i - record[1]]);
    }
    if (segment->u32InstOffset > source->size || segment->u32InstLen > source->size - segment->u32InstOffset)
        return fail(source, "the instructions of a segment lie outside of the file"), 0;
    char reason[160] = "";
    *program = npu_load(source->data + segment->u32InstOffset, segment->u32InstLen, reason, sizeof reason);
    if (!*program) return fail(source, "its instructions: %s", reason), 0;
    if (npu_input_count(*program) != segment->u16SrcNum || npu_output_count(*program) != segment->u16DstNum)
        return fail(source, "its nodes are not those of its instructions"), 0;
    for (size_t i = 0; i < nodes; i++) {
        uint32_t index = (uint32_t)(i < record[1] ? i : i - record[1]);
        int same = i < record[1] ? fits(&segment->astSrcNode[index], npu_input(*program, index))
                                 : fits(&segment->astDstNode[index], npu_output(*program, index));
        if (!same) return fail(source, "a node is not of the size that its instructions have"), 0;
    }
    return at + SEGMENT + nodes * NODE;
}

int wk_load(const uint8_t *data, size_t size, uint32_t arch, SVP_NNIE_MODEL_S *model, struct npu_program **programs, char *error,
            size_t error_size) {
    struct source source = {data, size, error, error_size};
    memset(model, 0, sizeof *model);
    if (size < HEAD + SEGMENT) return fail(&source, "shorter than the head of a model");
    uint32_t start = u32(data + 52), length = u32(data + 56);
    if (u32(data + 8) != HEAD || start < HEAD || start > size || length > size - start) return fail(&source, "not a model of NNIE");
    if (crc32(data + 4, (size_t)start + length - 4) != u32(data)) return fail(&source, "damaged: its checksum is wrong");
    uint32_t version = 10 + data[19];
    if (version != arch) return fail(&source, "made for architecture %u, the chip is %u: use the other mapper", version, arch);
    source.size = (size_t)start + length;
    model->enRunMode = (SVP_NNIE_RUN_MODE_E)data[48];
    model->u32TmpBufSize = u32(data + 12);
    model->u32NetSegNum = data[49];
    if (!model->u32TmpBufSize) return fail(&source, "a temporary buffer of no size");
    if (model->enRunMode != SVP_NNIE_RUN_MODE_CHIP) return fail(&source, "made for the functional simulator, not for the chip");
    if (!model->u32NetSegNum || model->u32NetSegNum > SVP_NNIE_MAX_NET_SEG_NUM)
        return fail(&source, "%u segments", model->u32NetSegNum);
    size_t at = HEAD;
    for (uint32_t i = 0; i < model->u32NetSegNum; i++) {
        at = read_segment(&source, at, start, &model->astSeg[i], &programs[i]);
        if (!at) return -1;
        if (npu_scratch_bytes(programs[i]) + 64 > model->u32TmpBufSize) return fail(&source, "its temporary buffer is too small");
    }
    return 0;
}
