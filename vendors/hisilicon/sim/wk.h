/* A compiled network in HiSilicon's `.wk` file: what is known of its head, and the programs of the simulator in its instruction areas. */
#ifndef PYASC_SIM_WK_H
#define PYASC_SIM_WK_H

#include "../../sim/program.h"
#include "../nnie.h"

/* Fill `model` but for its base, and load the program of each segment into `programs`. 0, or -1 with one line in `error`.
 * `arch` is the chip's, 11 for NNIE 1.1. */
int wk_load(const uint8_t *data, size_t size, uint32_t arch, SVP_NNIE_MODEL_S *model, struct npu_program **programs, char *error,
            size_t error_size);

#endif
