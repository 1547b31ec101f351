/* Memory of the simulated media system, as libmpi keeps it for libnnie. */
#ifndef PYASC_SIM_MMZ_H
#define PYASC_SIM_MMZ_H

#include "../../sim/device.h"

#define PYASC_EXPORT __attribute__((visibility("default")))

/* What the accelerator sees at an address; NULL unless the bytes lie in one allocation. */
PYASC_EXPORT void *pyasc_sim_mmz(uint64_t physical, uint64_t size);
/* What the processor sees at an address of its own; NULL unless the bytes lie in one allocation. */
PYASC_EXPORT int pyasc_sim_mmz_virtual(const void *address, uint64_t *physical, int *cached);
/* Called with each allocation that is freed. */
PYASC_EXPORT void pyasc_sim_mmz_on_free(void (*freed)(uint64_t physical, uint64_t size));
/* 1 between HI_MPI_SYS_Init and HI_MPI_SYS_Exit. */
PYASC_EXPORT int pyasc_sim_sys_ready(void);

#endif
