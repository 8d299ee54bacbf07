/* Kernels, graphs, captures, events, and waiting for them. As strict as a driver where a caller could be wrong. */
#define _GNU_SOURCE
#include "hardware.h"
#include "state.h"

#include <stdlib.h>
#include <string.h>

struct module {
    uint32_t is;
};

struct function {
    uint32_t is;
    bool narrow;
};

struct event {
    uint32_t is;
    int lane;
    uint64_t after;
};

static struct module the_module = {IS_MODULE};
static struct function spin = {IS_FUNCTION, false}, narrow = {IS_FUNCTION, true};
static _Thread_local int capture_mode;

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    if (current() == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    if (image == NULL) return CUDA_ERROR_INVALID_VALUE;
    *module = &the_module;
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    if (!is_a(module, IS_MODULE)) return CUDA_ERROR_INVALID_HANDLE;
    *function = strcmp(name, "spin") == 0 ? &spin : strcmp(name, "narrow") == 0 ? &narrow : NULL;
    return *function != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* Whether some stream of the context is being captured; those that are become invalid when `spoil`. */
static bool any_capture(struct context *context, bool spoil)
{
    bool found = false;
    pthread_mutex_lock(&state_lock);
    for (struct stream *stream = context->streams; stream != NULL; stream = stream->next)
        if (stream->capture != NOT_CAPTURING) {
            found = true;
            if (spoil) stream->capture = INVALIDATED;
        }
    pthread_mutex_unlock(&state_lock);
    return found;
}

static CUresult give(CUstream handle, bool own, struct node node)
{
    struct stream *stream = meant(handle, own);
    if (ready() != CUDA_SUCCESS) return ready();
    if (current() == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    if (stream == NULL || node.duration_ns < 0) return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture == INVALIDATED) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (stream->capture == CAPTURING) {
        if (stream->graph->count == NODES) return CUDA_ERROR_OUT_OF_MEMORY;
        stream->graph->node[stream->graph->count++] = node;
        return CUDA_SUCCESS;
    }
    if (stream == stream->context->standard && any_capture(stream->context, true))
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    hardware_launch(stream->lane, node.duration_ns, node.width);
    return CUDA_SUCCESS;
}

static CUresult launch(CUfunction function, CUstream stream, bool own, void **parameters)
{
    struct node node = {0, 100};
    if (!is_a(function, IS_FUNCTION)) return CUDA_ERROR_INVALID_HANDLE;
    if (parameters == NULL) return CUDA_ERROR_INVALID_VALUE;
    memcpy(&node.duration_ns, parameters[0], sizeof node.duration_ns);
    if (function->narrow) memcpy(&node.width, parameters[1], sizeof node.width);
    return give(stream, own, node);
}

#define GRID unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned f, unsigned shared
#define UNUSED (void)a, (void)b, (void)c, (void)d, (void)e, (void)f, (void)shared

CUresult cuLaunchKernel(CUfunction function, GRID, CUstream stream, void **parameters, void **extra)
{
    UNUSED;
    return extra != NULL ? CUDA_ERROR_INVALID_VALUE : launch(function, stream, false, parameters);
}

CUresult cuLaunchKernel_ptsz(CUfunction function, GRID, CUstream stream, void **parameters, void **extra)
{
    UNUSED;
    return extra != NULL ? CUDA_ERROR_INVALID_VALUE : launch(function, stream, true, parameters);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)
{
    (void)extra;
    return config == NULL ? CUDA_ERROR_INVALID_VALUE : launch(function, config->stream, false, parameters);
}

CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)
{
    (void)extra;
    return config == NULL ? CUDA_ERROR_INVALID_VALUE : launch(function, config->stream, true, parameters);
}

CUresult cuLaunchCooperativeKernel(CUfunction function, GRID, CUstream stream, void **parameters)
{
    UNUSED;
    return launch(function, stream, false, parameters);
}

CUresult cuLaunchCooperativeKernel_ptsz(CUfunction function, GRID, CUstream stream, void **parameters)
{
    UNUSED;
    return launch(function, stream, true, parameters);
}

CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *launches, unsigned count, unsigned flags)
{
    (void)flags;
    CUresult result = CUDA_SUCCESS;
    for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = launch(launches[i].function, launches[i].stream, false, launches[i].parameters);
    return result;
}

/* The oldest calls have their parameters set beforehand; here it is always a millisecond. */
CUresult cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream)
{
    int64_t duration_ns = 1000000;
    void *parameters[] = {&duration_ns};
    (void)width, (void)height;
    return launch(function, stream, false, parameters);
}

CUresult cuLaunchGrid(CUfunction function, int width, int height)
{
    return cuLaunchGridAsync(function, width, height, NULL);
}

CUresult cuLaunch(CUfunction function)
{
    return cuLaunchGridAsync(function, 1, 1, NULL);
}

CUresult cuStreamBeginCapture_v2(CUstream handle, int mode)
{
    struct stream *stream = meant(handle, false);
    if (stream == NULL || mode < 0 || mode > 2) return CUDA_ERROR_INVALID_VALUE;
    if (stream == stream->context->standard) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture != NOT_CAPTURING) return CUDA_ERROR_INVALID_VALUE;
    stream->graph = calloc(1, sizeof *stream->graph);
    if (stream->graph == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    stream->graph->is = IS_GRAPH;
    stream->captured_by = pthread_self();
    stream->capture = CAPTURING;
    return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph *graph)
{
    struct stream *stream = meant(handle, false);
    if (stream == NULL || stream->capture == NOT_CAPTURING) return CUDA_ERROR_INVALID_VALUE;
    if (!pthread_equal(stream->captured_by, pthread_self())) return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    bool whole = stream->capture == CAPTURING;
    if (!whole) free(stream->graph);
    *graph = whole ? stream->graph : NULL;
    stream->capture = NOT_CAPTURING;
    stream->graph = NULL;
    return whole ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}

static CUresult is_capturing(CUstream handle, bool own, int *status)
{
    struct stream *stream = meant(handle, own);
    if (stream == NULL) return CUDA_ERROR_INVALID_HANDLE;
    if (stream == stream->context->standard && any_capture(stream->context, false))
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    *status = (int)stream->capture;
    return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream stream, int *status)
{
    return is_capturing(stream, false, status);
}

CUresult cuStreamIsCapturing_ptsz(CUstream stream, int *status)
{
    return is_capturing(stream, true, status);
}

CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
    int before = capture_mode;
    if (*mode < 0 || *mode > 2) return CUDA_ERROR_INVALID_VALUE;
    capture_mode = *mode;
    *mode = before;
    return ready();
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    (void)flags;
    if (!is_a(graph, IS_GRAPH)) return CUDA_ERROR_INVALID_VALUE;
    *exec = calloc(1, sizeof **exec);
    if (*exec == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    (*exec)->is = IS_EXEC;
    (*exec)->count = graph->count;
    memcpy((*exec)->node, graph->node, sizeof graph->node);
    return CUDA_SUCCESS;
}

static CUresult launch_graph(CUgraphExec exec, CUstream stream, bool own)
{
    CUresult result = CUDA_SUCCESS;
    if (!is_a(exec, IS_EXEC)) return CUDA_ERROR_INVALID_VALUE;
    for (int i = 0; i < exec->count && result == CUDA_SUCCESS; i++) result = give(stream, own, exec->node[i]);
    return result;
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    return launch_graph(exec, stream, false);
}

CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream)
{
    return launch_graph(exec, stream, true);
}

CUresult cuGraphDestroy(CUgraph graph)
{
    if (!is_a(graph, IS_GRAPH)) return CUDA_ERROR_INVALID_VALUE;
    graph->is = 0;
    free(graph);
    return CUDA_SUCCESS;
}

CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    if (!is_a(exec, IS_EXEC)) return CUDA_ERROR_INVALID_VALUE;
    exec->is = 0;
    free(exec);
    return CUDA_SUCCESS;
}

/* Waiting for what is captured is an error, and the capture's end. */
static CUresult spoil(struct stream *stream)
{
    if (stream->capture == NOT_CAPTURING &&
        !(stream == stream->context->standard && any_capture(stream->context, true)))
        return CUDA_SUCCESS;
    if (stream->capture == CAPTURING) stream->capture = INVALIDATED;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

static CUresult wait_for_stream(CUstream handle, bool own)
{
    struct stream *stream = meant(handle, own);
    if (stream == NULL) return CUDA_ERROR_INVALID_HANDLE;
    CUresult result = spoil(stream);
    if (result == CUDA_SUCCESS) hardware_wait(stream->lane, hardware_given(stream->lane));
    return result;
}

static CUresult look_at_stream(CUstream handle, bool own)
{
    struct stream *stream = meant(handle, own);
    if (stream == NULL) return CUDA_ERROR_INVALID_HANDLE;
    CUresult result = spoil(stream);
    if (result != CUDA_SUCCESS) return result;
    return hardware_has_done(stream->lane, hardware_given(stream->lane)) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuStreamSynchronize(CUstream stream)
{
    return wait_for_stream(stream, false);
}

CUresult cuStreamSynchronize_ptsz(CUstream stream)
{
    return wait_for_stream(stream, true);
}

CUresult cuStreamQuery(CUstream stream)
{
    return look_at_stream(stream, false);
}

CUresult cuStreamQuery_ptsz(CUstream stream)
{
    return look_at_stream(stream, true);
}

CUresult cuCtxSynchronize(void)
{
    struct context *context = current();
    int lane[64], count = 0;
    uint64_t given[64];
    if (ready() != CUDA_SUCCESS) return ready();
    if (context == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    if (any_capture(context, true)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    pthread_mutex_lock(&state_lock);
    for (struct stream *stream = context->streams; stream != NULL && count < 64; stream = stream->next) {
        lane[count] = stream->lane;
        given[count++] = hardware_given(stream->lane);
    }
    pthread_mutex_unlock(&state_lock);
    for (int i = 0; i < count; i++) hardware_wait(lane[i], given[i]);
    return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent *event, unsigned flags)
{
    (void)flags;
    if (current() == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    *event = calloc(1, sizeof **event);
    if (*event == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    (*event)->is = IS_EVENT;
    return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream handle)
{
    struct stream *stream = meant(handle, false);
    if (!is_a(event, IS_EVENT) || stream == NULL) return CUDA_ERROR_INVALID_HANDLE;
    event->lane = stream->lane;
    event->after = hardware_given(stream->lane);
    return CUDA_SUCCESS;
}

CUresult cuEventSynchronize(CUevent event)
{
    if (!is_a(event, IS_EVENT)) return CUDA_ERROR_INVALID_HANDLE;
    hardware_wait(event->lane, event->after);
    return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent event)
{
    if (!is_a(event, IS_EVENT)) return CUDA_ERROR_INVALID_HANDLE;
    event->is = 0;
    free(event);
    return CUDA_SUCCESS;
}
