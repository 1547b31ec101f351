/* Checks a program, copies its tables and lays out its memory. */
#include "internal.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_TENSORS 4096u
#define MAX_OPS 4096u
#define MAX_SIDE 65536u
#define MAX_ELEMENTS (1u << 27)
#define MAX_SCRATCH ((size_t)1 << 31)
#define MAX_WORK 1e12 /* multiplications; a thousand times those of YOLOv5n */

struct source {
    const uint8_t *data;
    size_t size;
    char *error;
    size_t error_size;
};

static int fail(struct source *source, const char *format, ...) __attribute__((format(printf, 2, 3)));

static int fail(struct source *source, const char *format, ...) {
    if (source->error_size) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(source->error, source->error_size, format, arguments);
        va_end(arguments);
    }
    return 0;
}

static const void *slice(const struct source *source, uint32_t offset, size_t size) {
    if (offset % 4 || offset > source->size || size > source->size - offset) return NULL;
    return source->data + offset;
}

static void *allocate(size_t size) {
    size_t whole = (size + NPU_ALIGN - 1) / NPU_ALIGN * NPU_ALIGN;
    void *memory = aligned_alloc(NPU_ALIGN, whole ? whole : NPU_ALIGN);
    if (memory) memset(memory, 0, whole);
    return memory;
}

/* A copy of `count` floats, each finite; NULL when they are not there or are wrong. */
static float *floats(struct source *source, const struct npu_step *step, uint32_t offset, size_t count, const char *what) {
    const void *from = slice(source, offset, count * sizeof(float));
    if (!from) {
        fail(source, "%s: its %s lie outside of the program", step->name, what);
        return NULL;
    }
    float *copy = allocate(count * sizeof(float));
    if (!copy) {
        fail(source, "out of memory");
        return NULL;
    }
    memcpy(copy, from, count * sizeof(float));
    for (size_t i = 0; i < count; i++)
        if (!isfinite(copy[i])) {
            fail(source, "%s: its %s hold a value that is not finite", step->name, what);
            free(copy);
            return NULL;
        }
    return copy;
}

static int check_tensors(struct source *source, const struct npu_program *program) {
    for (uint32_t i = 0; i < program->tensor_count; i++) {
        const struct npu_tensor *t = &program->tensors[i];
        if (t->dtype < NPU_I8 || t->dtype > NPU_F16) return fail(source, "tensor %u has the unknown type %u", i, t->dtype);
        if (!t->h || !t->w || !t->c || t->h > MAX_SIDE || t->w > MAX_SIDE || t->c > MAX_SIDE || (uint64_t)t->h * t->w > MAX_ELEMENTS ||
            (uint64_t)t->h * t->w * t->c > MAX_ELEMENTS)
            return fail(source, "tensor %u: %u x %u x %u is no size", i, t->h, t->w, t->c);
        if (!isfinite(t->scale) || t->scale < 1e-30f || t->scale > 1e30f) return fail(source, "tensor %u: its scale is wrong", i);
        int32_t limit = t->dtype == NPU_I8 ? 128 : 0;
        if (t->zero < -limit || t->zero > limit) return fail(source, "tensor %u: its zero is wrong", i);
    }
    return 1;
}

static int copy_name(struct source *source, struct npu_step *step) {
    uint32_t offset = step->op.name;
    if (offset >= source->size) return fail(source, "the name of an operation lies outside of the program");
    size_t most = source->size - offset < sizeof step->name ? source->size - offset : sizeof step->name;
    size_t length = strnlen((const char *)source->data + offset, most);
    if (length == most && most < sizeof step->name) return fail(source, "the name of an operation has no end");
    if (length == sizeof step->name) length--;
    memcpy(step->name, source->data + offset, length);
    for (size_t i = 0; i < length; i++)
        if ((unsigned char)step->name[i] < 32 || (unsigned char)step->name[i] > 126) step->name[i] = '?';
    return 1;
}

static uint32_t span(uint32_t size, uint32_t before, uint32_t after, uint32_t kernel, uint32_t dilation, uint32_t stride) {
    uint64_t reach = (uint64_t)(kernel - 1) * dilation + 1, whole = (uint64_t)size + before + after;
    return whole < reach ? 0 : (uint32_t)((whole - reach) / stride + 1);
}

static int check_window(struct source *source, const struct npu_step *step, const struct npu_tensor *in, const struct npu_tensor *out) {
    const struct npu_op *op = &step->op;
    if (!op->kernel_h || !op->kernel_w || !op->stride_h || !op->stride_w || !op->dilation_h || !op->dilation_w)
        return fail(source, "%s: a kernel, stride or dilation of 0", step->name);
    if (out->h != span(in->h, op->pad_top, op->pad_bottom, op->kernel_h, op->dilation_h, op->stride_h) ||
        out->w != span(in->w, op->pad_left, op->pad_right, op->kernel_w, op->dilation_w, op->stride_w))
        return fail(source, "%s: its output is not of the size that its window gives", step->name);
    return 1;
}

static int check_shapes(struct source *source, const struct npu_program *program, const struct npu_step *step) {
    const struct npu_op *op = &step->op;
    const struct npu_tensor *out = op->kind == NPU_OUTPUT ? NULL : &program->tensors[op->out];
    const struct npu_tensor *in = op->kind == NPU_INPUT ? NULL : &program->tensors[op->in[0]];
    uint64_t channels = 0;
    switch (op->kind) {
    case NPU_INPUT:
    case NPU_OUTPUT:
        return 1;
    case NPU_CONV:
        if (!op->groups || in->c % op->groups || out->c % op->groups) return fail(source, "%s: its groups are wrong", step->name);
        return check_window(source, step, in, out);
    case NPU_MAX_POOL:
    case NPU_AVG_POOL:
        if (op->dilation_h != 1 || op->dilation_w != 1) return fail(source, "%s: a pool with dilation", step->name);
        if (op->pad_top >= op->kernel_h || op->pad_left >= op->kernel_w || op->pad_bottom >= op->kernel_h || op->pad_right >= op->kernel_w)
            return fail(source, "%s: a border as wide as the window", step->name);
        if (in->c != out->c) return fail(source, "%s: the channels differ", step->name);
        return check_window(source, step, in, out);
    case NPU_ADD:
    case NPU_MUL:
        if (op->kind == NPU_MUL ? op->in_count != 2 : op->in_count < 2) return fail(source, "%s: wrong number of inputs", step->name);
        for (uint32_t i = 0; i < op->in_count; i++) {
            const struct npu_tensor *t = &program->tensors[op->in[i]];
            int spread = op->kind == NPU_MUL && i == 1 && t->h == 1 && t->w == 1;
            if (t->c != out->c || (!spread && (t->h != out->h || t->w != out->w)))
                return fail(source, "%s: inputs and output differ in size", step->name);
        }
        return 1;
    case NPU_CONCAT:
        for (uint32_t i = 0; i < op->in_count; i++) {
            const struct npu_tensor *t = &program->tensors[op->in[i]];
            if (t->h != out->h || t->w != out->w) return fail(source, "%s: inputs and output differ in size", step->name);
            channels += t->c;
        }
        return channels == out->c ? 1 : fail(source, "%s: the channels do not add up", step->name);
    case NPU_UPSAMPLE:
        if (!op->kernel_h || !op->kernel_w || (uint64_t)in->h * op->kernel_h != out->h || (uint64_t)in->w * op->kernel_w != out->w ||
            in->c != out->c)
            return fail(source, "%s: its output is not of the size that its factor gives", step->name);
        return 1;
    case NPU_ACT:
        if (in->h != out->h || in->w != out->w || in->c != out->c) return fail(source, "%s: input and output differ in size", step->name);
        return 1;
    case NPU_SPACE_TO_DEPTH:
        if (!op->stride_h || !op->stride_w || (uint64_t)out->h * op->stride_h != in->h || (uint64_t)out->w * op->stride_w != in->w ||
            (uint64_t)in->c * op->stride_h * op->stride_w != out->c)
            return fail(source, "%s: its output is not of the size that its blocks give", step->name);
        return 1;
    case NPU_FLATTEN:
        if (out->h != 1 || out->w != 1 || out->c != npu_elements(in)) return fail(source, "%s: its output is no flat input", step->name);
        return 1;
    default:
        return fail(source, "%s: the unknown operation %u", step->name, op->kind);
    }
}

static int check_activation(struct source *source, const struct npu_program *program, struct npu_step *step) {
    const struct npu_op *op = &step->op;
    if (op->activation > NPU_ACT_TABLE) return fail(source, "%s: the unknown activation %u", step->name, op->activation);
    if (!isfinite(op->act_a) || !isfinite(op->act_b)) return fail(source, "%s: its activation is wrong", step->name);
    if (op->activation != NPU_ACT_TABLE) return 1;
    const void *table = slice(source, op->table, 256);
    if (op->kind == NPU_OUTPUT || op->kind == NPU_INPUT) return fail(source, "%s: a table at the border", step->name);
    if (program->tensors[op->in[0]].dtype != NPU_I8 || program->tensors[op->out].dtype != NPU_I8)
        return fail(source, "%s: a table for data of more than 8 bits", step->name);
    if (!isfinite(op->pre_scale) || op->pre_scale < 1e-30f || op->pre_scale > 1e30f)
        return fail(source, "%s: the scale before its table is wrong", step->name);
    if (!table) return fail(source, "%s: its table lies outside of the program", step->name);
    if (!(step->table = allocate(256))) return fail(source, "out of memory");
    memcpy(step->table, table, 256);
    return 1;
}

static int load_input(struct source *source, const struct npu_program *program, struct npu_step *step) {
    const struct npu_tensor *out = &program->tensors[step->op.out];
    if ((size_t)step->op.data + (size_t)out->c * 4 > UINT32_MAX) return fail(source, "%s: its data lies outside of the program", step->name);
    step->mean = floats(source, step, step->op.data, out->c, "means");
    step->factor = step->mean ? floats(source, step, step->op.data + out->c * 4, out->c, "factors") : NULL;
    if (!step->factor) return 0;
    if (out->dtype != NPU_I8) return 1;
    if (!(step->table = allocate((size_t)out->c * 256))) return fail(source, "out of memory");
    for (uint32_t c = 0; c < out->c; c++)
        for (int level = 0; level < 256; level++) {
            float value = ((float)level - step->mean[c]) * step->factor[c];
            float stored = rintf(value / out->scale) + (float)out->zero;
            step->table[(size_t)c * 256 + level] = (int8_t)(stored < -128 ? -128 : stored > 127 ? 127 : stored);
        }
    return 1;
}

/* One weight as the integer or, as `bits`, the half precision number that is stored. */
static int32_t weight_at(const void *weights, uint32_t dtype, size_t index) {
    if (dtype == NPU_I8) return ((const int8_t *)weights)[index];
    int16_t value;
    memcpy(&value, (const uint8_t *)weights + index * 2, 2);
    return value;
}

float npu_half_to_float(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = (half >> 10) & 31, fraction = half & 1023, bits;
    if (exponent == 31) {
        bits = sign | 0x7F800000 | fraction << 13;
    } else if (exponent) {
        bits = sign | (exponent + 112) << 23 | fraction << 13;
    } else {
        float value = (float)fraction * 0x1p-24f;
        return sign ? -value : value;
    }
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static int pack_depthwise(struct source *source, struct npu_step *step, const struct npu_tensor *in, const void *weights) {
    size_t taps = (size_t)step->op.kernel_h * step->op.kernel_w, channels = in->c;
    if (in->dtype == NPU_F16)
        step->float_taps = allocate(taps * channels * 4);
    else
        step->taps = allocate(taps * channels * 2);
    if (!step->float_taps && !step->taps) return fail(source, "out of memory");
    for (size_t c = 0; c < channels; c++)
        for (size_t tap = 0; tap < taps; tap++) {
            int32_t weight = weight_at(weights, in->dtype, c * taps + tap);
            if (in->dtype == NPU_F16)
                step->float_taps[tap * channels + c] = npu_half_to_float((uint16_t)weight);
            else
                step->taps[tap * channels + c] = (int16_t)weight;
        }
    return 1;
}

static int pack_conv(struct source *source, struct npu_step *step, const struct npu_tensor *in, const struct npu_tensor *out,
                     const void *weights) {
    const struct npu_kernels *kernels = npu_kernels();
    struct npu_conv *conv = &step->conv;
    uint32_t groups = step->op.groups, channels = out->c / groups;
    conv->layout = in->dtype == NPU_I8 ? kernels->i8 : in->dtype == NPU_I16 ? kernels->i16 : kernels->f16;
    conv->k = (size_t)step->op.kernel_h * step->op.kernel_w * (in->c / groups);
    conv->k_padded = (conv->k + conv->layout.depth - 1) / conv->layout.depth * conv->layout.depth;
    conv->blocks = (channels + NPU_ROW - 1) / NPU_ROW;
    size_t row_bytes = conv->k_padded * conv->layout.size;
    conv->panel_rows = 49152 / (row_bytes * conv->layout.rows);
    conv->panel_rows = (conv->panel_rows < 1 ? 1 : conv->panel_rows > 16 ? 16 : conv->panel_rows) * conv->layout.rows;
    size_t block = conv->k_padded * NPU_ROW, all = (size_t)groups * conv->blocks;
    uint32_t weight_size = conv->layout.size;
    if (all > MAX_SCRATCH / 2 / (block * weight_size)) return fail(source, "%s: too large", step->name);
    conv->weights = allocate(all * block * weight_size);
    conv->start = allocate(all * NPU_ROW * sizeof(int32_t));
    if (!conv->weights || !conv->start) return fail(source, "out of memory");
    uint32_t depth = conv->layout.depth;
    for (uint32_t group = 0; group < groups; group++)
        for (uint32_t channel = 0; channel < channels; channel++) {
            size_t at = (size_t)group * conv->blocks + channel / NPU_ROW, lane = channel % NPU_ROW;
            size_t from = ((size_t)group * channels + channel) * conv->k;
            uint32_t sum = 0;
            for (size_t k = 0; k < conv->k; k++) {
                int32_t weight = weight_at(weights, in->dtype, from + k);
                size_t to = at * block + (k / depth * NPU_ROW + lane) * depth + k % depth;
                sum += (uint32_t)weight;
                if (in->dtype == NPU_F16)
                    ((float *)conv->weights)[to] = npu_half_to_float((uint16_t)weight);
                else if (weight_size == 1)
                    ((int8_t *)conv->weights)[to] = (int8_t)weight;
                else
                    ((int16_t *)conv->weights)[to] = (int16_t)weight;
            }
            /* Packed values are stored + offset; the zero of a picture counts as 0. */
            if (in->dtype == NPU_I8) conv->start[at * NPU_ROW + lane] = (int32_t)(0u - (uint32_t)(conv->layout.offset + in->zero) * sum);
        }
    return 1;
}

static int load_conv(struct source *source, struct npu_program *program, struct npu_step *step) {
    const struct npu_op *op = &step->op;
    const struct npu_tensor *in = &program->tensors[op->in[0]], *out = &program->tensors[op->out];
    uint64_t taps = (uint64_t)op->kernel_h * op->kernel_w, k = taps * (in->c / op->groups), count = k * out->c;
    if (count > MAX_ELEMENTS) return fail(source, "%s: too many weights", step->name);
    const void *weights = slice(source, op->weights, (size_t)count * npu_size_of(in->dtype));
    if (!weights) return fail(source, "%s: its weights lie outside of the program", step->name);
    step->bias = floats(source, step, op->bias, out->c, "biases");
    step->scales = step->bias ? floats(source, step, op->scales, out->c, "scales") : NULL;
    if (!step->scales) return 0;
    if (in->dtype != NPU_F16)
        for (uint32_t c = 0; c < out->c; c++) step->scales[c] *= in->scale;
    double macs = (double)k * (double)npu_elements(out);
    *(in->dtype == NPU_I8 ? &program->work.macs_8 : &program->work.macs_16) += macs;
    if (program->work.macs_8 + program->work.macs_16 > MAX_WORK) return fail(source, "more work than a network has");
    program->weight_bytes += (size_t)count * npu_size_of(in->dtype) + (size_t)out->c * 8;
    step->depthwise = op->groups == in->c && in->c == out->c && in->c > 1;
    return step->depthwise ? pack_depthwise(source, step, in, weights) : pack_conv(source, step, in, out, weights);
}

static int check_wiring(struct source *source, const struct npu_program *program, const struct npu_step *step, uint8_t *written) {
    const struct npu_op *op = &step->op;
    uint32_t fewest = op->kind != NPU_INPUT, most = op->kind == NPU_INPUT ? 0 : NPU_MAX_INPUTS;
    if (op->kind != NPU_ADD && op->kind != NPU_MUL && op->kind != NPU_CONCAT && most) most = 1;
    if (op->in_count < fewest || op->in_count > most) return fail(source, "%s: wrong number of inputs", step->name);
    for (uint32_t i = 0; i < op->in_count; i++)
        if (op->in[i] >= program->tensor_count || !written[op->in[i]])
            return fail(source, "%s: reads a tensor that nothing wrote", step->name);
    if (op->kind == NPU_OUTPUT) return op->out == NPU_NONE ? 1 : fail(source, "%s: an output that writes a tensor", step->name);
    if (op->out >= program->tensor_count || written[op->out]) return fail(source, "%s: writes a tensor that is not free", step->name);
    written[op->out] = 1;
    return 1;
}

static int load_step(struct source *source, struct npu_program *program, struct npu_step *step, uint8_t *written) {
    if (!copy_name(source, step) || !check_wiring(source, program, step, written) || !check_shapes(source, program, step) ||
        !check_activation(source, program, step))
        return 0;
    uint32_t index = (uint32_t)(step - program->steps);
    if (step->op.kind == NPU_INPUT) program->inputs[program->input_count++] = index;
    if (step->op.kind == NPU_OUTPUT) program->outputs[program->output_count++] = index;
    if (step->op.kind != NPU_OUTPUT) {
        size_t elements = npu_elements(&program->tensors[step->op.out]);
        double window = step->op.kind == NPU_MAX_POOL || step->op.kind == NPU_AVG_POOL ? (double)step->op.kernel_h * step->op.kernel_w : 1;
        program->work.bytes += (double)elements * (double)npu_size_of(program->tensors[step->op.out].dtype);
        if (step->op.kind != NPU_CONV) program->work.elements += (double)elements * window;
        if (program->work.elements > MAX_WORK) return fail(source, "more work than a network has");
    }
    for (uint32_t i = 0; i < step->op.in_count; i++) {
        const struct npu_tensor *in = &program->tensors[step->op.in[i]];
        program->work.bytes += (double)npu_elements(in) * (double)npu_size_of(in->dtype);
    }
    if (step->op.kind == NPU_INPUT) return load_input(source, program, step);
    return step->op.kind == NPU_CONV ? load_conv(source, program, step) : 1;
}

/* Give each tensor a place in the scratch memory that no tensor in use at the same time has: the lowest that fits. */
static int place_tensors(struct source *source, struct npu_program *program) {
    uint32_t count = program->tensor_count;
    uint32_t *first = calloc(count, 4), *last = calloc(count, 4), *sorted = calloc(count, 4), placed = 0;
    int done = first && last && sorted;
    if (!done) fail(source, "out of memory");
    for (uint32_t s = 0; done && s < program->step_count; s++) {
        const struct npu_op *op = &program->steps[s].op;
        if (op->kind != NPU_OUTPUT) first[op->out] = last[op->out] = s;
        for (uint32_t i = 0; i < op->in_count; i++) last[op->in[i]] = s;
    }
    for (uint32_t s = 0; done && s < program->step_count; s++) {
        uint32_t t = program->steps[s].op.out;
        if (program->steps[s].op.kind == NPU_OUTPUT) continue;
        size_t size = (npu_elements(&program->tensors[t]) * npu_size_of(program->tensors[t].dtype) + NPU_ALIGN - 1) / NPU_ALIGN * NPU_ALIGN;
        size_t at = 0;
        for (uint32_t i = 0; i < placed; i++) { /* in the order of their places */
            uint32_t other = sorted[i];
            size_t other_size = (npu_elements(&program->tensors[other]) * npu_size_of(program->tensors[other].dtype) + NPU_ALIGN - 1) / NPU_ALIGN * NPU_ALIGN;
            if (last[other] < first[t]) continue;
            if (program->offsets[other] >= at + size) break;
            if (program->offsets[other] + other_size > at) at = program->offsets[other] + other_size;
        }
        program->offsets[t] = at;
        if (at + size > program->tensor_bytes) program->tensor_bytes = at + size;
        if (program->tensor_bytes > MAX_SCRATCH) done = fail(source, "the program needs more than 2 GiB of memory to run");
        uint32_t i = placed++;
        for (; i > 0 && program->offsets[sorted[i - 1]] > at; i--) sorted[i] = sorted[i - 1];
        sorted[i] = t;
    }
    free(first), free(last), free(sorted);
    return done;
}

static void measure_panels(struct npu_program *program) {
    for (uint32_t s = 0; s < program->step_count; s++) {
        const struct npu_conv *conv = &program->steps[s].conv;
        size_t bytes = conv->panel_rows * conv->k_padded * conv->layout.size;
        bytes = (bytes + NPU_ALIGN - 1) / NPU_ALIGN * NPU_ALIGN;
        if (bytes > program->panel_bytes) program->panel_bytes = bytes;
    }
}

static int load(struct source *source, struct npu_program *program) {
    struct npu_header header;
    if (source->size < sizeof header) return fail(source, "shorter than the head of a program");
    memcpy(&header, source->data, sizeof header);
    if (memcmp(header.magic, NPU_MAGIC, 8)) return fail(source, "not compiled for the simulator");
    if (header.format != NPU_FORMAT) return fail(source, "format %u of the simulator's programs; this one reads %u", header.format, NPU_FORMAT);
    if (header.size > source->size) return fail(source, "cut off: %zu of %u bytes", source->size, header.size);
    source->size = header.size;
    if (header.tensors < 1 || header.tensors > MAX_TENSORS || header.ops < 1 || header.ops > MAX_OPS)
        return fail(source, "%u tensors and %u operations", header.tensors, header.ops);
    size_t tensor_bytes = header.tensors * sizeof(struct npu_tensor), op_bytes = header.ops * sizeof(struct npu_op);
    if (sizeof header + tensor_bytes + op_bytes > source->size) return fail(source, "cut off in its tables");
    program->chip = header.chip;
    program->tensor_count = header.tensors;
    program->tensors = allocate(tensor_bytes);
    program->offsets = calloc(header.tensors, sizeof(size_t));
    program->steps = calloc(header.ops, sizeof(struct npu_step));
    program->inputs = calloc(header.ops, 4);
    program->outputs = calloc(header.ops, 4);
    uint8_t *written = calloc(header.tensors, 1);
    int done = program->tensors && program->offsets && program->steps && program->inputs && program->outputs && written;
    if (!done) fail(source, "out of memory");
    if (done) memcpy(program->tensors, source->data + sizeof header, tensor_bytes);
    done = done && check_tensors(source, program);
    for (uint32_t i = 0; done && i < header.ops; i++) {
        struct npu_step *step = &program->steps[program->step_count++];
        memcpy(&step->op, source->data + sizeof header + tensor_bytes + i * sizeof(struct npu_op), sizeof(struct npu_op));
        done = load_step(source, program, step, written);
    }
    free(written);
    if (done && (!program->input_count || !program->output_count)) done = fail(source, "no input or no output");
    done = done && place_tensors(source, program);
    if (done) measure_panels(program);
    program->work.bytes += (double)program->weight_bytes;
    return done;
}

struct npu_program *npu_load(const void *data, size_t size, char *error, size_t error_size) {
    struct source source = {data, size, error, error_size};
    struct npu_program *program = calloc(1, sizeof *program);
    if (!program) fail(&source, "out of memory");
    if (program && !load(&source, program)) {
        npu_unload(program);
        return NULL;
    }
    return program;
}

void npu_unload(struct npu_program *program) {
    if (!program) return;
    for (uint32_t i = 0; i < program->step_count; i++) {
        struct npu_step *step = &program->steps[i];
        free(step->conv.weights), free(step->conv.start), free(step->taps), free(step->float_taps), free(step->scales);
        free(step->bias), free(step->mean), free(step->factor), free(step->table);
    }
    free(program->tensors), free(program->offsets), free(program->steps), free(program->inputs), free(program->outputs);
    free(program);
}

uint32_t npu_chip(const struct npu_program *program) { return program->chip; }
uint32_t npu_input_count(const struct npu_program *program) { return program->input_count; }
uint32_t npu_output_count(const struct npu_program *program) { return program->output_count; }
size_t npu_weight_bytes(const struct npu_program *program) { return program->weight_bytes; }
struct npu_work npu_count_work(const struct npu_program *program) { return program->work; }

size_t npu_scratch_bytes(const struct npu_program *program) { return program->tensor_bytes + program->panel_bytes * NPU_MAX_THREADS; }

static struct npu_port port(const struct npu_program *program, const struct npu_step *step, uint32_t tensor) {
    const struct npu_tensor *t = &program->tensors[tensor];
    return (struct npu_port){step->name, t->h, t->w, t->c};
}

struct npu_port npu_input(const struct npu_program *program, uint32_t index) {
    const struct npu_step *step = &program->steps[program->inputs[index]];
    return port(program, step, step->op.out);
}

struct npu_port npu_output(const struct npu_program *program, uint32_t index) {
    const struct npu_step *step = &program->steps[program->outputs[index]];
    return port(program, step, step->op.in[0]);
}
