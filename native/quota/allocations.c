/*
 * What takes device memory and gives it back: counted, and refused as the driver refuses it (CUDA_ERROR_OUT_OF_MEMORY)
 * where the limit would be passed. The driver rounds sizes up and keeps some for itself: the MPS server counts that.
 */
#include "cuda.h"
#include "driver.h"
#include "exported.h"
#include "keeper.h"
#include "memory.h"

#include <errno.h>

/* A function that allocates `bytes`. `handle` is what it gave, when it did. */
#define TAKES(symbol, kind, bytes, handle, parameters, ...)                                                            \
    EXPORTED CUresult symbol parameters;                                                                               \
    EXPORTED CUresult symbol parameters                                                                                \
    {                                                                                                                  \
        CUresult(*next) parameters = driver_function(DRIVER_##symbol);                                                 \
        if (next == NULL) return CUDA_ERROR_NOT_FOUND;                                                                 \
        int error = errno;                                                                                             \
        uint64_t takes = keeper_is_on() ? (bytes) : 0;                                                                 \
        bool fits = takes == 0 || memory_reserve(takes);                                                               \
        errno = error;                                                                                                 \
        if (!fits) return CUDA_ERROR_OUT_OF_MEMORY;                                                                    \
        CUresult result = next(__VA_ARGS__);                                                                           \
        if (takes != 0 && result != CUDA_SUCCESS) memory_unreserve(takes);                                             \
        if (takes != 0 && result == CUDA_SUCCESS) memory_holds(kind, (uint64_t)(handle), takes);                       \
        return result;                                                                                                 \
    }

/* A function that frees. Counted before: another thread may be given the same handle as soon as the driver has it. */
#define FREES(symbol, kind, handle, parameters, ...)                                                                   \
    EXPORTED CUresult symbol parameters;                                                                               \
    EXPORTED CUresult symbol parameters                                                                                \
    {                                                                                                                  \
        CUresult(*next) parameters = driver_function(DRIVER_##symbol);                                                 \
        if (next == NULL) return CUDA_ERROR_NOT_FOUND;                                                                 \
        if (keeper_is_on()) memory_frees(kind, (uint64_t)(handle));                                                    \
        return next(__VA_ARGS__);                                                                                      \
    }

TAKES(cuMemAlloc_v2, AN_ADDRESS, size, *address, (CUdeviceptr * address, size_t size), address, size)
TAKES(cuMemAllocManaged, AN_ADDRESS, size, *address, (CUdeviceptr * address, size_t size, unsigned flags), address,
      size, flags)
TAKES(cuMemAllocPitch_v2, AN_ADDRESS, width *height, *address,
      (CUdeviceptr * address, size_t *pitch, size_t width, size_t height, unsigned element), address, pitch, width,
      height, element)
FREES(cuMemFree_v2, AN_ADDRESS, address, (CUdeviceptr address), address)

#define ASYNC_PARAMETERS (CUdeviceptr * address, size_t size, CUstream stream)
TAKES(cuMemAllocAsync, AN_ADDRESS, size, *address, ASYNC_PARAMETERS, address, size, stream)
TAKES(cuMemAllocAsync_ptsz, AN_ADDRESS, size, *address, ASYNC_PARAMETERS, address, size, stream)
#define POOL_PARAMETERS (CUdeviceptr * address, size_t size, CUmemoryPool pool, CUstream stream)
TAKES(cuMemAllocFromPoolAsync, AN_ADDRESS, size, *address, POOL_PARAMETERS, address, size, pool, stream)
TAKES(cuMemAllocFromPoolAsync_ptsz, AN_ADDRESS, size, *address, POOL_PARAMETERS, address, size, pool, stream)
FREES(cuMemFreeAsync, AN_ADDRESS, address, (CUdeviceptr address, CUstream stream), address, stream)
FREES(cuMemFreeAsync_ptsz, AN_ADDRESS, address, (CUdeviceptr address, CUstream stream), address, stream)

TAKES(cuMemCreate, A_PHYSICAL, wanted == NULL || wanted->location_type == CU_MEM_LOCATION_TYPE_DEVICE ? size : 0,
      *memory,
      (CUmemGenericAllocationHandle * memory, size_t size, const CUmemAllocationProp *wanted, unsigned long long flags),
      memory, size, wanted, flags)
FREES(cuMemRelease, A_PHYSICAL, memory, (CUmemGenericAllocationHandle memory), memory)

EXPORTED CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *memory, void *address);
EXPORTED CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *memory, void *address)
{
    CUresult (*next)(CUmemGenericAllocationHandle *, void *) = driver_function(DRIVER_cuMemRetainAllocationHandle);
    if (next == NULL) return CUDA_ERROR_NOT_FOUND;
    CUresult result = next(memory, address);
    if (result == CUDA_SUCCESS && keeper_is_on()) memory_holds_again(A_PHYSICAL, *memory);
    return result;
}

/* CUarray_format: 8, 16 or 32 bits; what is newer is counted as one byte, which is too little, never too much. */
static uint64_t array_bytes(size_t width, size_t height, size_t depth, int format, unsigned channels)
{
    uint64_t element = format == 0x02 || format == 0x09 || format == 0x10   ? 2
                       : format == 0x03 || format == 0x0a || format == 0x20 ? 4
                                                                            : 1;
    uint64_t rows = height != 0 ? height : 1, layers = depth != 0 ? depth : 1;
    return (uint64_t)width * rows * layers * element * (channels != 0 ? channels : 1);
}

/* No kind is the driver's to refuse. */
#define OF_KIND(depth) kind == NULL ? 0 : array_bytes(kind->width, kind->height, depth, kind->format, kind->channels)
TAKES(cuArrayCreate_v2, AN_ARRAY, OF_KIND(0), *array, (CUarray * array, const CUDA_ARRAY_DESCRIPTOR *kind), array, kind)
TAKES(cuArray3DCreate_v2, AN_ARRAY, OF_KIND(kind->depth), *array,
      (CUarray * array, const CUDA_ARRAY3D_DESCRIPTOR *kind), array, kind)
TAKES(cuMipmappedArrayCreate, AN_ARRAY, OF_KIND(kind->depth), *array,
      (CUmipmappedArray * array, const CUDA_ARRAY3D_DESCRIPTOR *kind, unsigned levels), array, kind, levels)
FREES(cuArrayDestroy, AN_ARRAY, array, (CUarray array), array)
FREES(cuMipmappedArrayDestroy, AN_ARRAY, array, (CUmipmappedArray array), array)

/* The memory that a program sees: no more than its limit. */
EXPORTED CUresult cuMemGetInfo_v2(size_t *left, size_t *total);
EXPORTED CUresult cuMemGetInfo_v2(size_t *left, size_t *total)
{
    CUresult (*next)(size_t *, size_t *) = driver_function(DRIVER_cuMemGetInfo_v2);
    if (next == NULL) return CUDA_ERROR_NOT_FOUND;
    CUresult result = next(left, total);
    if (result != CUDA_SUCCESS || left == NULL || total == NULL || !keeper_is_on()) return result;
    int error = errno;
    uint64_t limit = memory_limited_to(), used = memory_used();
    if (limit != 0 && *total > limit) *total = limit;
    if (limit != 0 && *left > (used < limit ? limit - used : 0)) *left = used < limit ? limit - used : 0;
    errno = error;
    return result;
}

EXPORTED CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device);
EXPORTED CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    CUresult (*next)(size_t *, CUdevice) = driver_function(DRIVER_cuDeviceTotalMem_v2);
    if (next == NULL) return CUDA_ERROR_NOT_FOUND;
    CUresult result = next(bytes, device);
    if (result != CUDA_SUCCESS || bytes == NULL || !keeper_is_on()) return result;
    int error = errno;
    uint64_t limit = memory_limited_to();
    if (limit != 0 && *bytes > limit) *bytes = limit;
    errno = error;
    return result;
}
