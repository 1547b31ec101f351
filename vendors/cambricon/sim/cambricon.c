/* Reads `.cambricon` files. Nothing in one is trusted. */
#include "cambricon.h"
#include "../cnrt.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_FUNCTIONS 64u
#define MOST_PORTS 64u
#define MOST_BATCH 1024u
#define MOST_SIDE 65536u
#define MOST_BYTES (1ull << 31)
#define HEAD_BYTES (sizeof head - 1)
#define SIZE_AT (CAM_HEAD + 16u) /* of the field `size`, with which the sum begins */

static const char head[] = "\x7F" "MEF\x14\x14\x03\x1E\x01\0\0\0\x0D\0\0\0" "forward_model";

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
    return 0;
}

static const void *slice(const struct source *source, uint32_t offset, size_t size) {
    if (offset % 4 || offset > source->size || size > source->size - offset) return NULL;
    return source->data + offset;
}

static uint32_t crc32(const uint8_t *data, size_t size) {
    uint32_t table[256], crc = ~0u;
    for (uint32_t i = 0; i < 256; i++) {
        table[i] = i;
        for (int bit = 0; bit < 8; bit++) table[i] = table[i] & 1 ? 0xEDB88320u ^ table[i] >> 1 : table[i] >> 1;
    }
    for (size_t i = 0; i < size; i++) crc = table[(crc ^ data[i]) & 255] ^ crc >> 8;
    return ~crc;
}

int cam_is_model(const void *data, size_t size) { return size >= 4 && !memcmp(data, head, size < HEAD_BYTES ? size : HEAD_BYTES); }

size_t cam_size(const void *data, size_t size) {
    struct cam_header header;
    if (size < CAM_HEAD + sizeof header || memcmp(data, head, HEAD_BYTES)) return 0;
    memcpy(&header, (const uint8_t *)data + CAM_HEAD, sizeof header);
    return memcmp(header.magic, CAM_MAGIC, sizeof header.magic) || header.size < CAM_HEAD + sizeof header ? 0 : header.size;
}

static int copy_name(struct source *source, uint32_t offset, char name[64]) {
    if (offset >= source->size) return fail(source, "a name lies outside of the file");
    size_t most = source->size - offset < 64 ? source->size - offset : 64;
    size_t length = strnlen((const char *)source->data + offset, most);
    if (length == most) return fail(source, "a name has no end, or more than 63 letters");
    memcpy(name, source->data + offset, length + 1);
    return 1;
}

static int check_port(struct source *source, const struct cam_function *function, struct cam_model_port *made, int input,
                      struct npu_port program) {
    struct cam_port *port = &made->port;
    if (!copy_name(source, port->name, made->name)) return 0;
    made->size = port->dtype == CNRT_FLOAT32 ? 4 : port->dtype == CNRT_FLOAT16 ? 2 : port->dtype == CNRT_UINT8 && input ? 1 : 0;
    if (!made->size) return fail(source, "%.40s: numbers of the type 0x%X", made->name, port->dtype);
    if (port->n != function->batches[function->batch_count - 1] || port->h != program.h || port->w != program.w)
        return fail(source, "%.40s: its shape is not that of its program", made->name);
    if (!port->c || port->c > MOST_SIDE) return fail(source, "%.40s: its channels are wrong", made->name);
    int64_t last = (int64_t)port->first + (int64_t)port->step * (program.c - 1);
    if (port->first < 0 || port->first >= (int64_t)port->c || last < 0 || last >= (int64_t)port->c || (program.c > 1 && !port->step))
        return fail(source, "%.40s: its program reads channels that it does not have", made->name);
    if (!input && (port->c != program.c || port->first || port->step != 1))
        return fail(source, "%.40s: an output with other channels than its program has", made->name);
    made->picture = (uint64_t)port->h * port->w * port->c * made->size;
    if (made->picture * port->n > MOST_BYTES) return fail(source, "%.40s: too large", made->name);
    return 1;
}

static int load_function(struct source *source, const struct cam_header *header, uint32_t index, struct cam_model_function *made) {
    struct cam_function *function = &made->function;
    memcpy(function, source->data + header->table + index * sizeof *function, sizeof *function);
    if (!copy_name(source, function->name, made->name)) return 0;
    if (!function->batch_count || function->batch_count > CAM_MOST_BATCHES)
        return fail(source, "%.40s: %u batch sizes", made->name, function->batch_count);
    for (uint32_t i = 0; i < function->batch_count; i++)
        if (!function->batches[i] || function->batches[i] > MOST_BATCH || (i && function->batches[i] <= function->batches[i - 1]))
            return fail(source, "%.40s: its batch sizes are wrong", made->name);
    if (!function->inputs || !function->outputs || function->inputs > MOST_PORTS || function->outputs > MOST_PORTS)
        return fail(source, "%.40s: %u inputs and %u outputs", made->name, function->inputs, function->outputs);
    const void *program = slice(source, function->program, function->program_size);
    uint32_t count = function->inputs + function->outputs;
    const uint8_t *ports = slice(source, function->ports, count * sizeof(struct cam_port));
    if (!program || !ports) return fail(source, "%.40s: its tables or its program lie outside of the file", made->name);
    char reason[160] = "";
    made->program = npu_load(program, function->program_size, reason, sizeof reason);
    if (!made->program) return fail(source, "%.40s: its program: %s", made->name, reason);
    if (npu_chip(made->program) != 2) return fail(source, "%.40s: its program is not for MLU220", made->name);
    if (npu_input_count(made->program) != function->inputs || npu_output_count(made->program) != function->outputs)
        return fail(source, "%.40s: its inputs and outputs are not those of its program", made->name);
    made->ports = calloc(count, sizeof *made->ports);
    if (!made->ports) return fail(source, "out of memory");
    for (uint32_t i = 0; i < count; i++) {
        int input = i < function->inputs;
        memcpy(&made->ports[i].port, ports + i * sizeof(struct cam_port), sizeof(struct cam_port));
        struct npu_port program_port =
            input ? npu_input(made->program, i) : npu_output(made->program, i - function->inputs);
        if (!check_port(source, function, &made->ports[i], input, program_port)) return 0;
    }
    return 1;
}

static int load(struct source *source, struct cam_model *model) {
    struct cam_header *header = &model->header;
    if (source->size < HEAD_BYTES || memcmp(source->data, head, HEAD_BYTES)) return fail(source, "not a model of Cambricon");
    if (source->size < CAM_HEAD + sizeof *header) return fail(source, "cut off in its head");
    memcpy(header, source->data + CAM_HEAD, sizeof *header);
    if (memcmp(header->magic, CAM_MAGIC, sizeof header->magic))
        return fail(source, "compiled by the vendor's tool: the simulator runs its own programs alone");
    if (header->format != CAM_FORMAT) return fail(source, "format %u of the simulator; this one reads %u", header->format, CAM_FORMAT);
    if (header->size > source->size || header->size < CAM_HEAD + sizeof *header)
        return fail(source, "cut off: %zu of %u bytes", source->size, header->size);
    source->size = header->size;
    if (crc32(source->data + SIZE_AT, source->size - SIZE_AT) != header->checksum) return fail(source, "damaged: its checksum is wrong");
    if (!header->functions || header->functions > MOST_FUNCTIONS) return fail(source, "%u functions", header->functions);
    if (!header->parallelism || header->parallelism > 64) return fail(source, "for %u cores", header->parallelism);
    if (!slice(source, header->table, header->functions * sizeof(struct cam_function))) return fail(source, "cut off in its functions");
    model->functions = calloc(header->functions, sizeof *model->functions);
    if (!model->functions) return fail(source, "out of memory");
    for (uint32_t i = 0; i < header->functions; i++)
        if (!load_function(source, header, i, &model->functions[i])) return 0;
    return 1;
}

struct cam_model *cam_load(const void *data, size_t size, char *error, size_t error_size) {
    struct source source = {data, size, error, error_size};
    struct cam_model *model = calloc(1, sizeof *model);
    if (!model) fail(&source, "out of memory");
    if (model && !load(&source, model)) {
        cam_unload(model);
        return NULL;
    }
    return model;
}

void cam_unload(struct cam_model *model) {
    if (!model) return;
    for (uint32_t i = 0; model->functions && i < model->header.functions; i++) {
        npu_unload(model->functions[i].program);
        free(model->functions[i].ports);
    }
    free(model->functions);
    free(model);
}
