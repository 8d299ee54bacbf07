/* cuGetProcAddress: a name without suffix, the CUDA version that is meant, and whose default stream. */
#define _GNU_SOURCE
#include "api.h"

#include <string.h>

#define PLAIN(name) {#name, 0, 0, (void *)name}
#define SECOND(name) {#name, 0, 0, (void *)name##_v2}
#define OWN(name) {#name, 1, 0, (void *)name##_ptsz}

static const struct {
    const char *name;
    int own, since;
    void *address;
} table[] = {
    PLAIN(cuInit), PLAIN(cuDriverGetVersion), PLAIN(cuGetErrorName), PLAIN(cuDeviceGetCount), PLAIN(cuDeviceGet),
    PLAIN(cuDevicePrimaryCtxRetain), SECOND(cuDevicePrimaryCtxRelease), SECOND(cuDevicePrimaryCtxReset),
    PLAIN(cuDevicePrimaryCtxGetState), SECOND(cuCtxCreate), SECOND(cuCtxDestroy), PLAIN(cuCtxGetCurrent),
    PLAIN(cuCtxSetCurrent), SECOND(cuCtxPushCurrent), SECOND(cuCtxPopCurrent), PLAIN(cuCtxGetDevice),
    PLAIN(cuCtxSynchronize), PLAIN(cuStreamCreate), SECOND(cuStreamDestroy), PLAIN(cuStreamSynchronize),
    OWN(cuStreamSynchronize), PLAIN(cuStreamQuery), OWN(cuStreamQuery), SECOND(cuStreamBeginCapture),
    PLAIN(cuStreamEndCapture), PLAIN(cuStreamIsCapturing), OWN(cuStreamIsCapturing), PLAIN(cuModuleLoadData),
    PLAIN(cuModuleGetFunction), PLAIN(cuLaunchKernel), OWN(cuLaunchKernel), PLAIN(cuLaunchKernelEx),
    OWN(cuLaunchKernelEx), PLAIN(cuLaunchCooperativeKernel), OWN(cuLaunchCooperativeKernel), PLAIN(cuGraphLaunch),
    OWN(cuGraphLaunch), PLAIN(cuGraphInstantiateWithFlags), SECOND(cuMemAlloc), SECOND(cuMemFree), SECOND(cuMemGetInfo),
    SECOND(cuDeviceTotalMem), PLAIN(cuMemAllocAsync), OWN(cuMemAllocAsync), PLAIN(cuMemFreeAsync), OWN(cuMemFreeAsync),
    PLAIN(cuGetProcAddress), {"cuGetProcAddress", 0, 12000, (void *)cuGetProcAddress_v2},
};

CUresult cuGetProcAddress(const char *name, void **address, int version, uint64_t flags)
{
    *address = NULL;
    if ((flags & ~3ULL) != 0) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (strcmp(table[i].name, name) == 0 && (!table[i].own || (flags & 2)) && version >= table[i].since)
            *address = table[i].address; /* the last that fits: a thread's own, the newer */
    return *address != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuGetProcAddress_v2(const char *name, void **address, int version, uint64_t flags, int *status)
{
    CUresult result = cuGetProcAddress(name, address, version, flags);
    if (status != NULL) *status = result == CUDA_SUCCESS ? 0 : 1;
    return result;
}

CUresult cuGetErrorName(CUresult code, const char **name)
{
    *name = code == CUDA_SUCCESS ? "CUDA_SUCCESS" : "CUDA_ERROR";
    return CUDA_SUCCESS;
}
