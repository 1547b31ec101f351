/* The chips, and the model of their time. Every figure that is not published is our guess and marked so; none is a claim. */
#include "chip.h"

/* Hi3559AV100: two cores with 4 TOPS of 8 bits together, so 1e12 multiplications a second each. Networks get about a fifth of it:
 * YOLOv5s at 416 x 416 is published with 17 ms on one core, 3.5e9 multiplications. 16-bit mode takes twice the time, as a RetinaFace
 * of 17 ms in 8 bits does with 34 ms. Guessed: memory bandwidth, power, temperature, the zone of 512 MiB.
 * MLU220: four cores with 8 TOPS of 8 bits together, 4 of 16 bits if the ratio of the MLU270 holds. Of the same core in the MLU270 ResNet-50
 * gets a fifth (4.7 ms for 4.1e9 multiplications). 8.25 W at most, 3.7 W idle at 51 degrees, 4096 MiB. Guessed: bandwidth, the rest.
 */
static const struct npu_chip_facts facts[NPU_CHIPS] = {
    [NPU_HI3559] = {.name = "hi3559",
                    .cores = 2,
                    .memory_bytes = 512ull << 20,
                    .memory_base = 0x80000000ull,
                    .macs_8 = 0.2e12,
                    .macs_16 = 0.1e12,
                    .elements = 4e9,
                    .bytes_s = 10e9,
                    .start_s = 100e-6,
                    .idle_w = 1.0,
                    .busy_w = 3.0,
                    .idle_c = 45,
                    .busy_c = 75},
    [NPU_MLU220] = {.name = "mlu220",
                    .cores = 4,
                    .memory_bytes = 4096ull << 20,
                    .memory_base = 0x700000000000ull,
                    .macs_8 = 0.2e12,
                    .macs_16 = 0.1e12,
                    .elements = 4e9,
                    .bytes_s = 15e9,
                    .start_s = 60e-6,
                    .idle_w = 3.7,
                    .busy_w = 8.25,
                    .idle_c = 51,
                    .busy_c = 80},
};

const struct npu_chip_facts *npu_chip_facts(enum npu_chip_id chip) { return &facts[chip]; }

double npu_seconds(struct npu_device *device, const struct npu_work *work, uint32_t cores) {
    const struct npu_chip_facts *chip = npu_facts(device);
    double compute = work->macs_8 / chip->macs_8 + work->macs_16 / chip->macs_16 + work->elements / chip->elements;
    double memory = work->bytes / chip->bytes_s;
    compute /= cores ? cores : 1;
    double percent = (double)npu_setting(device, NPU_SET_THROTTLE);
    double speed = percent < 1 ? 0.01 : percent / 100;
    return chip->start_s + (compute > memory ? compute : memory) / speed;
}
