/* One run of a program: its operations in order, each cut into pieces for the threads. */
#include "internal.h"

struct piece {
    const struct npu_program *program;
    const struct npu_step *step;
    const uint8_t *in[NPU_MAX_INPUTS];
    uint8_t *out, *panels;
    const struct npu_blob *blob;
    uint32_t units, size; /* output pixels, or lines at the borders; as many of them are one piece */
};

static void work(void *context, uint32_t chunk, uint32_t thread) {
    const struct piece *piece = context;
    const struct npu_kernels *kernels = npu_kernels();
    uint32_t first = chunk * piece->size, last = piece->units - first < piece->size ? piece->units : first + piece->size;
    switch (piece->step->op.kind) {
    case NPU_INPUT: kernels->input(piece->program, piece->step, piece->blob, piece->out, first, last); break;
    case NPU_OUTPUT: kernels->output(piece->program, piece->step, piece->in[0], piece->blob, first, last); break;
    case NPU_CONV:
        if (piece->step->depthwise)
            kernels->depthwise(piece->program, piece->step, piece->in[0], piece->out, first, last);
        else
            kernels->conv(piece->program, piece->step, piece->in[0], piece->out, first, last,
                          piece->panels + thread * piece->program->panel_bytes);
        break;
    default: kernels->rows(piece->program, piece->step, piece->in, piece->out, first, last);
    }
}

/* Pieces that are worth a thread's attention, and several for each thread. */
static uint32_t piece_size(const struct piece *piece, uint32_t units, double cost) {
    double smallest = 20000 / (cost < 1 ? 1 : cost);
    uint32_t size = units / (npu_threads() * 4) + 1;
    if (size < smallest) size = smallest < units ? (uint32_t)smallest + 1 : units;
    if (piece->step->op.kind == NPU_CONV && !piece->step->depthwise) {
        uint32_t rows = (uint32_t)piece->step->conv.panel_rows;
        size = (size + rows - 1) / rows * rows;
    }
    return size;
}

void npu_run(const struct npu_program *program, const struct npu_blob *inputs, const struct npu_blob *outputs, void *scratch) {
    uint8_t *memory = scratch;
    for (uint32_t i = 0; i < program->step_count; i++) {
        const struct npu_step *step = &program->steps[i];
        const struct npu_op *op = &step->op;
        struct piece piece = {.program = program, .step = step, .panels = memory + program->tensor_bytes};
        for (uint32_t k = 0; k < op->in_count; k++) piece.in[k] = memory + program->offsets[op->in[k]];
        const struct npu_tensor *shape = &program->tensors[op->kind == NPU_OUTPUT ? op->in[0] : op->out];
        if (op->kind != NPU_OUTPUT) piece.out = memory + program->offsets[op->out];
        if (op->kind == NPU_INPUT) piece.blob = inputs++;
        if (op->kind == NPU_OUTPUT) piece.blob = outputs++;
        int border = op->kind == NPU_INPUT || op->kind == NPU_OUTPUT;
        piece.units = border ? shape->h : shape->h * shape->w;
        double cost = (border ? (double)shape->w * shape->c : shape->c) / 8.0;
        if (op->kind == NPU_CONV) cost = cost * (double)op->kernel_h * op->kernel_w * program->tensors[op->in[0]].c / op->groups / 8.0;
        piece.size = piece_size(&piece, piece.units, cost);
        npu_parallel(work, &piece, (piece.units + piece.size - 1) / piece.size);
    }
}
