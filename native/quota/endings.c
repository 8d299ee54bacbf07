/*
 * What takes away something that the library's own thread may be looking at (a stream, a context), and what forbids it
 * to look (a capture). Each waits until that thread is out of the driver, and continues then.
 */
#include "capture.h"
#include "cuda.h"
#include "device.h"
#include "driver.h"
#include "exported.h"
#include "keeper.h"
#include "memory.h"

#define CAPTURE(symbol, own, parameters, ...)                                                                          \
    EXPORTED CUresult symbol parameters;                                                                               \
    EXPORTED CUresult symbol parameters                                                                                \
    {                                                                                                                  \
        CUresult(*next) parameters = driver_function(DRIVER_##symbol);                                                 \
        if (next == NULL) return CUDA_ERROR_NOT_FOUND;                                                                 \
        if (!keeper_is_on()) return next(__VA_ARGS__);                                                                 \
        device_hold();                                                                                                 \
        CUresult result = next(__VA_ARGS__);                                                                           \
        if (result == CUDA_SUCCESS) capture_begins((struct where){stream, own});                                       \
        device_let_go();                                                                                               \
        return result;                                                                                                 \
    }

#define GRAPH_PARAMETERS                                                                                               \
    (CUstream stream, CUgraph graph, const CUgraphNode *nodes, const void *edges, size_t count, int mode)
CAPTURE(cuStreamBeginCapture, false, (CUstream stream), stream)
CAPTURE(cuStreamBeginCapture_ptsz, true, (CUstream stream), stream)
CAPTURE(cuStreamBeginCapture_v2, false, (CUstream stream, int mode), stream, mode)
CAPTURE(cuStreamBeginCapture_v2_ptsz, true, (CUstream stream, int mode), stream, mode)
CAPTURE(cuStreamBeginCaptureToGraph, false, GRAPH_PARAMETERS, stream, graph, nodes, edges, count, mode)
CAPTURE(cuStreamBeginCaptureToGraph_ptsz, true, GRAPH_PARAMETERS, stream, graph, nodes, edges, count, mode)

/* Before `symbol` does its work, `first` is done. */
#define BEFORE(symbol, first, parameters, ...)                                                                         \
    EXPORTED CUresult symbol parameters;                                                                               \
    EXPORTED CUresult symbol parameters                                                                                \
    {                                                                                                                  \
        CUresult(*next) parameters = driver_function(DRIVER_##symbol);                                                 \
        if (next == NULL) return CUDA_ERROR_NOT_FOUND;                                                                 \
        if (keeper_is_on()) first;                                                                                     \
        return next(__VA_ARGS__);                                                                                      \
    }

static void context_ends(CUcontext context)
{
    device_context_ends(context);
    memory_context_ends(context);
}

BEFORE(cuStreamDestroy, device_stream_ends(stream), (CUstream stream), stream)
BEFORE(cuStreamDestroy_v2, device_stream_ends(stream), (CUstream stream), stream)
BEFORE(cuCtxDestroy, context_ends(context), (CUcontext context), context)
BEFORE(cuCtxDestroy_v2, context_ends(context), (CUcontext context), context)

/* The capture is over for us when the driver says so: until then nothing may be looked at. */
#define END_CAPTURE(symbol, own)                                                                                       \
    EXPORTED CUresult symbol(CUstream stream, CUgraph *graph);                                                         \
    EXPORTED CUresult symbol(CUstream stream, CUgraph *graph)                                                          \
    {                                                                                                                  \
        CUresult (*next)(CUstream, CUgraph *) = driver_function(DRIVER_##symbol);                                      \
        if (next == NULL) return CUDA_ERROR_NOT_FOUND;                                                                 \
        CUresult result = next(stream, graph);                                                                         \
        if (keeper_is_on() && !capture_takes((struct where){stream, own})) capture_ends((struct where){stream, own});  \
        return result;                                                                                                 \
    }
END_CAPTURE(cuStreamEndCapture, false)
END_CAPTURE(cuStreamEndCapture_ptsz, true)

/* A primary context ends with its last release, or with a reset. Both free what was allocated in it. */
static CUresult primary_ends(CUresult (*next)(CUdevice), CUdevice device, bool reset)
{
    if (next == NULL) return CUDA_ERROR_NOT_FOUND;
    if (!keeper_is_on()) return next(device);
    CUresult (*get_state)(CUdevice, unsigned *, int *) = driver_function(DRIVER_cuDevicePrimaryCtxGetState);
    unsigned flags = 0;
    int active = 0;
    device_hold();
    CUresult result = next(device);
    bool gone = reset || get_state == NULL || get_state(device, &flags, &active) != CUDA_SUCCESS || !active;
    if (result == CUDA_SUCCESS && gone) {
        device_forget(device);
        memory_device_ends(device);
    }
    device_let_go();
    return result;
}

#define PRIMARY(symbol, reset)                                                                                         \
    EXPORTED CUresult symbol(CUdevice device);                                                                         \
    EXPORTED CUresult symbol(CUdevice device)                                                                          \
    {                                                                                                                  \
        return primary_ends(driver_function(DRIVER_##symbol), device, reset);                                          \
    }
PRIMARY(cuDevicePrimaryCtxRelease, false)
PRIMARY(cuDevicePrimaryCtxRelease_v2, false)
PRIMARY(cuDevicePrimaryCtxReset, true)
PRIMARY(cuDevicePrimaryCtxReset_v2, true)
