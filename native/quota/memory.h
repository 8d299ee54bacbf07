/*
 * What this process has allocated on the device, beside what it may. A second line behind the MPS server's limit, which
 * is per process as well; the sum over a pod's processes is not kept here.
 */
#ifndef SLUICE_QUOTA_MEMORY_H
#define SLUICE_QUOTA_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda.h"

/* One handle may stand for an address, an array and a physical allocation at once. */
enum holding { AN_ADDRESS = 1, AN_ARRAY, A_PHYSICAL };

/* From now on; 0: not limited. What is beyond it already stays. */
void memory_limit(uint64_t bytes);

/* The limit, or 0. Waits once for the scheduler to send it. */
uint64_t memory_limited_to(void);
uint64_t memory_used(void);

/* Takes `bytes` off what is left, before the driver is asked. False: there is not so much left. */
bool memory_reserve(uint64_t bytes);

/* The driver refused: they are free again. */
void memory_unreserve(uint64_t bytes);

/* The driver gave this for what was reserved. A second holder of the same adds nothing. */
void memory_holds(enum holding holding, uint64_t handle, uint64_t bytes);
void memory_holds_again(enum holding holding, uint64_t handle);

/* It is freed. Unknown handles are not ours. */
void memory_frees(enum holding holding, uint64_t handle);

void memory_context_ends(CUcontext context);
void memory_device_ends(CUdevice device);

void memory_before_fork(void);
void memory_after_fork(bool child);

#endif
