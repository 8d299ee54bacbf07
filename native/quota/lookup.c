/*
 * The ways by which a program gets at the driver's functions other than being linked to them: dlsym, and the driver's
 * own cuGetProcAddress, which the CUDA runtime uses for everything.
 *
 * dlopen and dlvsym stay libc's: whose library may be found depends on who calls them, and libcuda has no versions.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>

#include "cuda.h"
#include "driver.h"
#include "exported.h"

/*
 * For RTLD_NEXT and RTLD_DEFAULT the answer depends on who asks, which libc reads from its return address: libc must
 * be jumped to, not called. The compiler does that for a `return` of a call when nothing is left to do after it
 * (-foptimize-sibling-calls); a test sees to it that it did.
 */
#ifndef WITHOUT_DLSYM /* sanitizers call dlsym before what they need is there; built with one, the library leaves it */
EXPORTED void *dlsym(void *restrict handle, const char *restrict name)
{
    find_function find = driver_dlsym();
    if (find == NULL) return NULL;
    if (handle == RTLD_NEXT || handle == RTLD_DEFAULT || name[0] != 'c' || name[1] != 'u')
        return find(handle, name);
    return driver_hook(name, find(handle, name));
}
#endif

static int is_per_thread(uint64_t flags)
{
    return (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
}

EXPORTED CUresult cuGetProcAddress(const char *symbol, void **address, int cuda_version, uint64_t flags)
{
    CUresult (*next)(const char *, void **, int, uint64_t) = driver_function(DRIVER_cuGetProcAddress);
    if (next == NULL) return CUDA_ERROR_NOT_FOUND;
    CUresult result = next(symbol, address, cuda_version, flags);
    if (result == CUDA_SUCCESS && address != NULL && symbol != NULL)
        *address = driver_hook_of_version(symbol, cuda_version, is_per_thread(flags), *address);
    return result;
}

EXPORTED CUresult cuGetProcAddress_v2(const char *symbol, void **address, int cuda_version, uint64_t flags, int *status)
{
    CUresult (*next)(const char *, void **, int, uint64_t, int *) = driver_function(DRIVER_cuGetProcAddress_v2);
    if (next == NULL) return CUDA_ERROR_NOT_FOUND;
    CUresult result = next(symbol, address, cuda_version, flags, status);
    if (result == CUDA_SUCCESS && address != NULL && symbol != NULL)
        *address = driver_hook_of_version(symbol, cuda_version, is_per_thread(flags), *address);
    return result;
}
