/* Where a launch goes: a stream as the program names it, and the context that is current in its thread. */
#ifndef SLUICE_QUOTA_WHERE_H
#define SLUICE_QUOTA_WHERE_H

#include <stdbool.h>

#include "cuda.h"
#include "driver.h"

/* NULL is the context's default stream, or the thread's own when `per_thread`. */
struct where {
    CUstream stream;
    bool per_thread;
};

static inline bool where_is_named(struct where where)
{
    return where.stream != NULL && where.stream != CU_STREAM_LEGACY && where.stream != CU_STREAM_PER_THREAD;
}

/* Only the thread itself can speak of its own stream. */
static inline bool where_is_own(struct where where)
{
    return where.stream == CU_STREAM_PER_THREAD || (where.stream == NULL && where.per_thread);
}

static inline CUstream where_handle(struct where where)
{
    return where.stream == CU_STREAM_LEGACY ? NULL : where.stream;
}

/* The context that is current in this thread, or NULL. */
static inline CUcontext where_context(void)
{
    CUcontext context = NULL;
    CUresult (*get)(CUcontext *) = driver_function(DRIVER_cuCtxGetCurrent);
    return get != NULL && get(&context) == CUDA_SUCCESS ? context : NULL;
}

#endif
