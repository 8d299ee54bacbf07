/*
 * The driver's own functions, behind the ones that this library puts in front of them.
 *
 * Every function that is replaced is in HOOKS, every other one that the library calls in CALLS. Each has one place for
 * the address of the driver's; it is looked for once, when it is first needed.
 */
#ifndef SLUICE_QUOTA_DRIVER_H
#define SLUICE_QUOTA_DRIVER_H

#include <stddef.h>

/* The name as cuGetProcAddress knows it, the CUDA version since which it means this one, and the exported name. */
#define HOOKS(X)                                                                                                       \
    X(cuGetProcAddress, 11030, cuGetProcAddress)                                                                       \
    X(cuGetProcAddress, 12000, cuGetProcAddress_v2)                                                                    \
    X(cuLaunchKernel, 4000, cuLaunchKernel)                                                                            \
    X(cuLaunchKernelEx, 11060, cuLaunchKernelEx)                                                                       \
    X(cuLaunchCooperativeKernel, 9000, cuLaunchCooperativeKernel)                                                      \
    X(cuLaunchCooperativeKernelMultiDevice, 9000, cuLaunchCooperativeKernelMultiDevice)                                \
    X(cuGraphLaunch, 10000, cuGraphLaunch)                                                                             \
    X(cuLaunch, 2000, cuLaunch)                                                                                        \
    X(cuLaunchGrid, 2000, cuLaunchGrid)                                                                                \
    X(cuLaunchGridAsync, 2000, cuLaunchGridAsync)                                                                      \
    X(cuStreamBeginCapture, 10000, cuStreamBeginCapture)                                                               \
    X(cuStreamBeginCapture, 10010, cuStreamBeginCapture_v2)                                                            \
    X(cuStreamBeginCaptureToGraph, 12030, cuStreamBeginCaptureToGraph)                                                 \
    X(cuStreamEndCapture, 10000, cuStreamEndCapture)                                                                   \
    X(cuStreamDestroy, 2000, cuStreamDestroy)                                                                          \
    X(cuStreamDestroy, 4000, cuStreamDestroy_v2)                                                                       \
    X(cuCtxDestroy, 2000, cuCtxDestroy)                                                                                \
    X(cuCtxDestroy, 4000, cuCtxDestroy_v2)                                                                             \
    X(cuDevicePrimaryCtxRelease, 7000, cuDevicePrimaryCtxRelease)                                                      \
    X(cuDevicePrimaryCtxRelease, 11000, cuDevicePrimaryCtxRelease_v2)                                                  \
    X(cuDevicePrimaryCtxReset, 7000, cuDevicePrimaryCtxReset)                                                          \
    X(cuDevicePrimaryCtxReset, 11000, cuDevicePrimaryCtxReset_v2)                                                      \
    X(cuMemAlloc, 3020, cuMemAlloc_v2)                                                                                 \
    X(cuMemAllocPitch, 3020, cuMemAllocPitch_v2)                                                                       \
    X(cuMemAllocManaged, 6000, cuMemAllocManaged)                                                                      \
    X(cuMemFree, 3020, cuMemFree_v2)                                                                                   \
    X(cuMemAllocAsync, 11020, cuMemAllocAsync)                                                                         \
    X(cuMemAllocFromPoolAsync, 11020, cuMemAllocFromPoolAsync)                                                         \
    X(cuMemFreeAsync, 11020, cuMemFreeAsync)                                                                           \
    X(cuMemCreate, 10020, cuMemCreate)                                                                                 \
    X(cuMemRetainAllocationHandle, 11000, cuMemRetainAllocationHandle)                                                 \
    X(cuMemRelease, 10020, cuMemRelease)                                                                               \
    X(cuArrayCreate, 3020, cuArrayCreate_v2)                                                                           \
    X(cuArray3DCreate, 3020, cuArray3DCreate_v2)                                                                       \
    X(cuMipmappedArrayCreate, 5000, cuMipmappedArrayCreate)                                                            \
    X(cuArrayDestroy, 2000, cuArrayDestroy)                                                                            \
    X(cuMipmappedArrayDestroy, 5000, cuMipmappedArrayDestroy)                                                          \
    X(cuMemGetInfo, 3020, cuMemGetInfo_v2)                                                                             \
    X(cuDeviceTotalMem, 3020, cuDeviceTotalMem_v2)

/* Those of them that exist a second time, for programs whose default stream is one per thread. */
#define HOOKS_PER_THREAD(X)                                                                                            \
    X(cuLaunchKernel, 7000, cuLaunchKernel_ptsz)                                                                       \
    X(cuLaunchKernelEx, 11060, cuLaunchKernelEx_ptsz)                                                                  \
    X(cuLaunchCooperativeKernel, 9000, cuLaunchCooperativeKernel_ptsz)                                                 \
    X(cuGraphLaunch, 10000, cuGraphLaunch_ptsz)                                                                        \
    X(cuStreamBeginCapture, 10000, cuStreamBeginCapture_ptsz)                                                          \
    X(cuStreamBeginCapture, 10010, cuStreamBeginCapture_v2_ptsz)                                                       \
    X(cuStreamBeginCaptureToGraph, 12030, cuStreamBeginCaptureToGraph_ptsz)                                            \
    X(cuStreamEndCapture, 10000, cuStreamEndCapture_ptsz)                                                              \
    X(cuMemAllocAsync, 11020, cuMemAllocAsync_ptsz)                                                                    \
    X(cuMemAllocFromPoolAsync, 11020, cuMemAllocFromPoolAsync_ptsz)                                                    \
    X(cuMemFreeAsync, 11020, cuMemFreeAsync_ptsz)

#define CALLS(X)                                                                                                       \
    X(cuCtxGetCurrent)                                                                                                 \
    X(cuCtxGetDevice)                                                                                                  \
    X(cuCtxPushCurrent_v2)                                                                                             \
    X(cuCtxPopCurrent_v2)                                                                                              \
    X(cuCtxSynchronize)                                                                                                \
    X(cuDevicePrimaryCtxGetState)                                                                                      \
    X(cuDeviceGetUuid_v2)                                                                                              \
    X(cuStreamGetCtx)                                                                                                  \
    X(cuStreamIsCapturing)                                                                                             \
    X(cuStreamIsCapturing_ptsz)                                                                                        \
    X(cuStreamQuery)                                                                                                   \
    X(cuStreamQuery_ptsz)                                                                                              \
    X(cuThreadExchangeStreamCaptureMode)

#define AS_HOOK(name, since, symbol) DRIVER_##symbol,
#define AS_CALL(symbol) DRIVER_##symbol,
enum driver { HOOKS(AS_HOOK) HOOKS_PER_THREAD(AS_HOOK) HOOK_COUNT, CALLS(AS_CALL) DRIVER_COUNT };
#undef AS_HOOK
#undef AS_CALL

/* The driver's function, or NULL when this driver has none of that name. Safe in every thread. */
void *driver_function(enum driver which);

/* The driver returned `address` for `symbol`: from now on that is called for it. */
void driver_saw(const char *symbol, void *address);

/*
 * What stands in front of `address`, which the driver calls `symbol`; `address` itself when nothing does. The second
 * is for the answer of cuGetProcAddress, which knows names without suffix.
 */
void *driver_hook(const char *symbol, void *address);
void *driver_hook_of_version(const char *name, int cuda_version, int per_thread, void *address);

/* libc's dlsym. NULL only where there is none. */
typedef void *(*find_function)(void *restrict handle, const char *restrict name);
find_function driver_dlsym(void);

#endif
