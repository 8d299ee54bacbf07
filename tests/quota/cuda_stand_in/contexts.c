/* Devices, contexts and streams. */
#define _GNU_SOURCE
#include "hardware.h"
#include "state.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STACK = 16 };

pthread_mutex_t state_lock = PTHREAD_MUTEX_INITIALIZER;
static pid_t initialised_by;
static struct context *primary[DEVICES];
static _Thread_local struct context *stack[STACK];
static _Thread_local int depth;
static _Thread_local struct stream *own_stream;

bool is_a(const void *handle, uint32_t kind)
{
    return (uintptr_t)handle > 4096 && *(const uint32_t *)handle == kind;
}

CUresult ready(void)
{
    return initialised_by == getpid() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

struct context *current(void)
{
    return depth > 0 && is_a(stack[depth - 1], IS_CONTEXT) ? stack[depth - 1] : NULL;
}

CUresult cuInit(unsigned flags)
{
    CUresult result = CUDA_SUCCESS;
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&state_lock);
    if (initialised_by == 0 && hardware_attach()) initialised_by = getpid();
    if (initialised_by == 0) result = CUDA_ERROR_NO_DEVICE;
    pthread_mutex_unlock(&state_lock);
    return result != CUDA_SUCCESS ? result : ready();
}

CUresult cuDriverGetVersion(int *version)
{
    *version = 13000;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count)
{
    *count = DEVICES;
    return ready();
}

CUresult cuDeviceGet(CUdevice *found, int ordinal)
{
    if (ready() != CUDA_SUCCESS) return ready();
    *found = ordinal;
    return ordinal >= 0 && ordinal < DEVICES ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetUuid_v2(unsigned char uuid[16], CUdevice of)
{
    if (ready() != CUDA_SUCCESS) return ready();
    memset(uuid, 0x50 + of, 16);
    return of >= 0 && of < DEVICES ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

static struct stream *new_stream(struct context *context)
{
    int lane = hardware_lane();
    struct stream *stream = lane >= 0 ? calloc(1, sizeof *stream) : NULL;
    if (stream == NULL) return NULL;
    stream->is = IS_STREAM;
    stream->lane = lane;
    stream->context = context;
    stream->next = context->streams;
    context->streams = stream;
    return stream;
}

static struct context *new_context(CUdevice of)
{
    struct context *context = calloc(1, sizeof *context);
    if (context == NULL) return NULL;
    context->is = IS_CONTEXT;
    context->device = of;
    context->standard = new_stream(context);
    return context;
}

/* Its work ends with it. The objects stay, dead: a program that still uses one gets the driver's error. */
static void end_context(struct context *context)
{
    for (struct stream *stream = context->streams; stream != NULL; stream = stream->next) {
        hardware_wait(stream->lane, hardware_given(stream->lane));
        hardware_lane_free(stream->lane);
        stream->is = 0;
    }
    context->is = 0;
}

CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice of)
{
    (void)flags;
    if (ready() != CUDA_SUCCESS) return ready();
    if (of < 0 || of >= DEVICES) return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&state_lock);
    *context = new_context(of);
    pthread_mutex_unlock(&state_lock);
    if (*context == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    return cuCtxPushCurrent_v2(*context);
}

CUresult cuCtxDestroy_v2(CUcontext context)
{
    if (ready() != CUDA_SUCCESS) return ready();
    if (!is_a(context, IS_CONTEXT)) return CUDA_ERROR_INVALID_CONTEXT;
    pthread_mutex_lock(&state_lock);
    end_context(context);
    pthread_mutex_unlock(&state_lock);
    if (depth > 0 && stack[depth - 1] == context) depth--;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice of)
{
    if (ready() != CUDA_SUCCESS) return ready();
    if (of < 0 || of >= DEVICES) return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&state_lock);
    if (!is_a(primary[of], IS_CONTEXT)) primary[of] = new_context(of);
    if (primary[of] != NULL) primary[of]->holders++;
    *context = primary[of];
    pthread_mutex_unlock(&state_lock);
    return *context != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult release(CUdevice of, bool all)
{
    if (ready() != CUDA_SUCCESS) return ready();
    if (of < 0 || of >= DEVICES) return CUDA_ERROR_INVALID_DEVICE;
    CUresult result = CUDA_ERROR_INVALID_CONTEXT;
    pthread_mutex_lock(&state_lock);
    if (is_a(primary[of], IS_CONTEXT)) {
        if (all || --primary[of]->holders == 0) end_context(primary[of]);
        result = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&state_lock);
    return result;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice of)
{
    return release(of, false);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice of)
{
    return release(of, true);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice of, unsigned *flags, int *active)
{
    if (of < 0 || of >= DEVICES) return CUDA_ERROR_INVALID_DEVICE;
    *flags = 0;
    *active = is_a(primary[of], IS_CONTEXT);
    return ready();
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
    *context = current();
    return ready();
}

CUresult cuCtxSetCurrent(CUcontext context)
{
    if (context != NULL && !is_a(context, IS_CONTEXT)) return CUDA_ERROR_INVALID_CONTEXT;
    if (depth == 0) depth = 1;
    stack[depth - 1] = context;
    return ready();
}

CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    if (ready() != CUDA_SUCCESS) return ready();
    if (!is_a(context, IS_CONTEXT) || depth == STACK) return CUDA_ERROR_INVALID_CONTEXT;
    stack[depth++] = context;
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
    if (depth == 0) return CUDA_ERROR_INVALID_CONTEXT;
    depth--;
    if (context != NULL) *context = stack[depth];
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *of)
{
    if (current() == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    *of = current()->device;
    return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
    (void)flags;
    if (ready() != CUDA_SUCCESS) return ready();
    if (current() == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    pthread_mutex_lock(&state_lock);
    *stream = new_stream(current());
    pthread_mutex_unlock(&state_lock);
    return *stream != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuStreamDestroy_v2(CUstream stream)
{
    if (!is_a(stream, IS_STREAM)) return CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&state_lock);
    struct stream **at = &stream->context->streams;
    while (*at != stream) at = &(*at)->next;
    *at = stream->next;
    stream->is = 0;
    hardware_lane_free(stream->lane); /* what is queued goes on; the lane is given away when it is done */
    pthread_mutex_unlock(&state_lock);
    return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext *context)
{
    struct stream *found = meant(stream, false);
    if (found == NULL) return CUDA_ERROR_INVALID_HANDLE;
    *context = found->context;
    return CUDA_SUCCESS;
}

struct stream *meant(CUstream handle, bool own)
{
    if (ready() != CUDA_SUCCESS || current() == NULL) return NULL;
    if (handle == CU_STREAM_PER_THREAD || (handle == NULL && own)) {
        if (!is_a(own_stream, IS_STREAM) || own_stream->context != current()) {
            pthread_mutex_lock(&state_lock);
            own_stream = new_stream(current());
            pthread_mutex_unlock(&state_lock);
        }
        return own_stream;
    }
    if (handle == NULL || handle == (CUstream)0x1) return current()->standard;
    return is_a(handle, IS_STREAM) ? handle : NULL;
}
