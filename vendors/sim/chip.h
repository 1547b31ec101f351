/* What the files of the simulated chip share. */
#ifndef PYASC_SIM_CHIP_H
#define PYASC_SIM_CHIP_H

#include "device.h"

#include <pthread.h>

const struct npu_chip_facts *npu_chip_facts(enum npu_chip_id chip);
enum npu_chip_id npu_chip_of(const struct npu_device *device);
double npu_clock(void); /* monotonic, seconds */

#endif
