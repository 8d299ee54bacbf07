/*
 * The part of the CUDA driver API that the stand-in has, as its programs call it. Names, signatures and codes are those
 * of the public "CUDA Driver API" reference manual (docs.nvidia.com/cuda/cuda-driver-api); nothing is copied from
 * NVIDIA's headers, nor from the library that is tested.
 *
 * The only kernels are `spin` (one parameter: its time in nanoseconds, 64 bits) and `narrow` (a second: its width in
 * percent of the device, an int).
 */
#ifndef STAND_IN_API_H
#define STAND_IN_API_H

#include <stddef.h>
#include <stdint.h>

#define PUBLIC __attribute__((visibility("default")))

typedef int CUresult, CUdevice;
typedef unsigned long long CUdeviceptr, CUmemGenericAllocationHandle;
typedef struct context *CUcontext;
typedef struct stream *CUstream;
typedef struct event *CUevent;
typedef struct module *CUmodule;
typedef struct function *CUfunction;
typedef struct graph *CUgraph;
typedef struct graph_exec *CUgraphExec;
typedef struct array *CUarray, *CUmipmappedArray;
typedef void *CUmemoryPool;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_INVALID_HANDLE = 400,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
    CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
    CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD = 908,
};

#define CU_STREAM_PER_THREAD ((CUstream)0x2)

typedef struct {
    unsigned grid[3], block[3], shared_bytes;
    CUstream stream;
    void *attributes;
    unsigned attribute_count;
} CUlaunchConfig;

typedef struct {
    CUfunction function;
    unsigned grid[3], block[3], shared_bytes;
    CUstream stream;
    void **parameters;
} CUDA_LAUNCH_PARAMS;

typedef struct {
    size_t width, height;
    int format;
    unsigned channels;
} CUDA_ARRAY_DESCRIPTOR;

typedef struct {
    size_t width, height, depth;
    int format;
    unsigned channels, flags;
} CUDA_ARRAY3D_DESCRIPTOR;

typedef struct {
    int type, handle_types, location_type, location_id;
    char rest[48];
} CUmemAllocationProp;

#define LAUNCH_PARAMETERS                                                                                              \
    CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **

PUBLIC CUresult cuInit(unsigned flags);
PUBLIC CUresult cuDriverGetVersion(int *version);
PUBLIC CUresult cuGetErrorName(CUresult code, const char **name);
PUBLIC CUresult cuGetProcAddress(const char *name, void **address, int version, uint64_t flags);
PUBLIC CUresult cuGetProcAddress_v2(const char *name, void **address, int version, uint64_t flags, int *status);
PUBLIC CUresult cuDeviceGetCount(int *count);
PUBLIC CUresult cuDeviceGet(CUdevice *found, int ordinal);
PUBLIC CUresult cuDeviceGetUuid_v2(unsigned char uuid[16], CUdevice of);
PUBLIC CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice of);
PUBLIC CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice of);
PUBLIC CUresult cuDevicePrimaryCtxRelease_v2(CUdevice of);
PUBLIC CUresult cuDevicePrimaryCtxReset_v2(CUdevice of);
PUBLIC CUresult cuDevicePrimaryCtxGetState(CUdevice of, unsigned *flags, int *active);
PUBLIC CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice of);
PUBLIC CUresult cuCtxDestroy_v2(CUcontext context);
PUBLIC CUresult cuCtxGetCurrent(CUcontext *context);
PUBLIC CUresult cuCtxSetCurrent(CUcontext context);
PUBLIC CUresult cuCtxPushCurrent_v2(CUcontext context);
PUBLIC CUresult cuCtxPopCurrent_v2(CUcontext *context);
PUBLIC CUresult cuCtxGetDevice(CUdevice *of);
PUBLIC CUresult cuCtxSynchronize(void);
PUBLIC CUresult cuStreamCreate(CUstream *stream, unsigned flags);
PUBLIC CUresult cuStreamDestroy_v2(CUstream stream);
PUBLIC CUresult cuStreamGetCtx(CUstream stream, CUcontext *context);
PUBLIC CUresult cuStreamSynchronize(CUstream stream);
PUBLIC CUresult cuStreamSynchronize_ptsz(CUstream stream);
PUBLIC CUresult cuStreamQuery(CUstream stream);
PUBLIC CUresult cuStreamQuery_ptsz(CUstream stream);
PUBLIC CUresult cuStreamBeginCapture_v2(CUstream stream, int mode);
PUBLIC CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph);
PUBLIC CUresult cuStreamIsCapturing(CUstream stream, int *status);
PUBLIC CUresult cuStreamIsCapturing_ptsz(CUstream stream, int *status);
PUBLIC CUresult cuThreadExchangeStreamCaptureMode(int *mode);
PUBLIC CUresult cuEventCreate(CUevent *event, unsigned flags);
PUBLIC CUresult cuEventRecord(CUevent event, CUstream stream);
PUBLIC CUresult cuEventSynchronize(CUevent event);
PUBLIC CUresult cuEventDestroy_v2(CUevent event);
PUBLIC CUresult cuModuleLoadData(CUmodule *module, const void *image);
PUBLIC CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name);
PUBLIC CUresult cuLaunchKernel(LAUNCH_PARAMETERS, void **extra);
PUBLIC CUresult cuLaunchKernel_ptsz(LAUNCH_PARAMETERS, void **extra);
PUBLIC CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra);
PUBLIC CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function, void **parameters,
                                      void **extra);
PUBLIC CUresult cuLaunchCooperativeKernel(LAUNCH_PARAMETERS);
PUBLIC CUresult cuLaunchCooperativeKernel_ptsz(LAUNCH_PARAMETERS);
PUBLIC CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *launches, unsigned count, unsigned flags);
PUBLIC CUresult cuLaunch(CUfunction function);
PUBLIC CUresult cuLaunchGrid(CUfunction function, int width, int height);
PUBLIC CUresult cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream);
PUBLIC CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags);
PUBLIC CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream);
PUBLIC CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream);
PUBLIC CUresult cuGraphDestroy(CUgraph graph);
PUBLIC CUresult cuGraphExecDestroy(CUgraphExec exec);
PUBLIC CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size);
PUBLIC CUresult cuMemAllocManaged(CUdeviceptr *address, size_t size, unsigned flags);
PUBLIC CUresult cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned element);
PUBLIC CUresult cuMemFree_v2(CUdeviceptr address);
PUBLIC CUresult cuMemAllocAsync(CUdeviceptr *address, size_t size, CUstream stream);
PUBLIC CUresult cuMemAllocAsync_ptsz(CUdeviceptr *address, size_t size, CUstream stream);
PUBLIC CUresult cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t size, CUmemoryPool pool, CUstream stream);
PUBLIC CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream);
PUBLIC CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream);
PUBLIC CUresult cuMemCreate(CUmemGenericAllocationHandle *memory, size_t size, const CUmemAllocationProp *wanted,
                            unsigned long long flags);
PUBLIC CUresult cuMemRelease(CUmemGenericAllocationHandle memory);
PUBLIC CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *kind);
PUBLIC CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *kind);
PUBLIC CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *kind, unsigned levels);
PUBLIC CUresult cuArrayDestroy(CUarray array);
PUBLIC CUresult cuMipmappedArrayDestroy(CUmipmappedArray array);
PUBLIC CUresult cuMemGetInfo_v2(size_t *left, size_t *total);

#endif
