/* Device memory: addresses that nothing is behind, and how much of the device they take. */
#define _GNU_SOURCE
#include "hardware.h"
#include "state.h"

#include <stdlib.h>

struct array {
    uint32_t is;
    int64_t bytes;
};

struct block {
    unsigned long long address;
    int64_t bytes;
    struct block *next;
};

static struct block *blocks;
static unsigned long long next_address = 0x700000000000ULL;

static CUresult take(unsigned long long *address, int64_t bytes)
{
    if (ready() != CUDA_SUCCESS) return ready();
    if (current() == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    if (address == NULL || bytes <= 0) return CUDA_ERROR_INVALID_VALUE;
    struct block *block = calloc(1, sizeof *block);
    if (block == NULL || !hardware_memory(bytes)) {
        free(block);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_lock(&state_lock);
    *block = (struct block){next_address, bytes, blocks};
    next_address += ((unsigned long long)bytes + 0x1fffff) & ~0x1fffffULL;
    blocks = block;
    *address = block->address;
    pthread_mutex_unlock(&state_lock);
    return CUDA_SUCCESS;
}

static CUresult give_back(unsigned long long address)
{
    struct block *found = NULL;
    if (ready() != CUDA_SUCCESS) return ready();
    pthread_mutex_lock(&state_lock);
    for (struct block **at = &blocks; *at != NULL && found == NULL; at = found == NULL ? &(*at)->next : at)
        if ((*at)->address == address) {
            found = *at;
            *at = found->next;
        }
    pthread_mutex_unlock(&state_lock);
    if (found == NULL) return CUDA_ERROR_INVALID_VALUE;
    hardware_memory(-found->bytes);
    free(found);
    return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size)
{
    return take(address, (int64_t)size);
}

CUresult cuMemAllocManaged(CUdeviceptr *address, size_t size, unsigned flags)
{
    (void)flags;
    return take(address, (int64_t)size);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned element)
{
    (void)element;
    *pitch = width;
    return take(address, (int64_t)(width * height));
}

CUresult cuMemFree_v2(CUdeviceptr address)
{
    return give_back(address);
}

CUresult cuMemAllocAsync(CUdeviceptr *address, size_t size, CUstream stream)
{
    return meant(stream, false) != NULL ? take(address, (int64_t)size) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *address, size_t size, CUstream stream)
{
    return meant(stream, true) != NULL ? take(address, (int64_t)size) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t size, CUmemoryPool pool, CUstream stream)
{
    (void)pool;
    return cuMemAllocAsync(address, size, stream);
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream)
{
    return meant(stream, false) != NULL ? give_back(address) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream)
{
    return meant(stream, true) != NULL ? give_back(address) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *memory, size_t size, const CUmemAllocationProp *wanted,
                     unsigned long long flags)
{
    if (wanted == NULL || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    return take(memory, (int64_t)size);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle memory)
{
    return give_back(memory);
}

static CUresult take_array(CUarray *array, size_t width, size_t height, size_t depth, int format, unsigned channels)
{
    static const int64_t sizes[0x21] = {[0x01] = 1, [0x02] = 2, [0x03] = 4, [0x08] = 1, [0x09] = 2,
                                        [0x0a] = 4, [0x10] = 2, [0x20] = 4};
    if (format < 0 || format > 0x20 || sizes[format] == 0 || width == 0) return CUDA_ERROR_INVALID_VALUE;
    int64_t bytes = (int64_t)(width * (height ? height : 1) * (depth ? depth : 1)) * sizes[format] * channels;
    *array = calloc(1, sizeof **array);
    if (*array == NULL || !hardware_memory(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    **array = (struct array){IS_ARRAY, bytes};
    return CUDA_SUCCESS;
}

CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *kind)
{
    if (kind == NULL) return CUDA_ERROR_INVALID_VALUE;
    return take_array(array, kind->width, kind->height, 0, kind->format, kind->channels);
}

CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *kind)
{
    if (kind == NULL) return CUDA_ERROR_INVALID_VALUE;
    return take_array(array, kind->width, kind->height, kind->depth, kind->format, kind->channels);
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *kind, unsigned levels)
{
    (void)levels;
    return cuArray3DCreate_v2(array, kind);
}

CUresult cuArrayDestroy(CUarray array)
{
    if (!is_a(array, IS_ARRAY)) return CUDA_ERROR_INVALID_HANDLE;
    hardware_memory(-array->bytes);
    array->is = 0;
    free(array);
    return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array)
{
    return cuArrayDestroy(array);
}

CUresult cuMemGetInfo_v2(size_t *left, size_t *total)
{
    if (current() == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    *left = (size_t)hardware_memory_left();
    *total = (size_t)hardware_memory_total();
    return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice of)
{
    (void)of;
    if (ready() != CUDA_SUCCESS) return ready();
    *bytes = (size_t)hardware_memory_total();
    return CUDA_SUCCESS;
}
