/*
 * What this process has on the device: into which contexts and streams it has launched since its work was last
 * finished. Knows nothing of tokens.
 */
#ifndef SLUICE_QUOTA_DEVICE_H
#define SLUICE_QUOTA_DEVICE_H

#include <stdbool.h>

#include "cuda.h"
#include "tokens.h"
#include "where.h"

/* Something is about to be launched there by this thread. */
void device_touch(struct where where);

/* Whether nothing is left to be done there: what is launched now would begin at once. */
bool device_is_done_there(struct where where);

/* Whether the device still has work of this process. UNKNOWN where a look would need another thread's stream. */
enum busy device_busy(void);

/*
 * Waits until the device has finished all that was launched. No launch may be let through meanwhile. While a stream is
 * being captured nothing can be waited for (CUDA ends the capture with an error): then it waits for the capture's end,
 * for at most half a second, and leaves it at that.
 */
void device_drain(void);

/* What was launched is known to be finished. */
void device_is_idle(void);

/* Before a context, a stream or what a device's primary context holds is taken away by the program. */
void device_context_ends(CUcontext context);
void device_stream_ends(CUstream stream);

/* Around calls during which no other thread may look at the contexts. */
void device_hold(void);
void device_let_go(void);
void device_forget(CUdevice device); /* while it is held */

/* Around fork. The child has none of the parent's contexts. */
void device_before_fork(void);
void device_after_fork(bool child);

#endif
