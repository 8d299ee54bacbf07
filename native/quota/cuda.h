/*
 * The few types and numbers of the CUDA driver API that the library needs, declared by ourselves: nothing of NVIDIA's
 * headers is copied. Names, signatures and values are those of the public "CUDA Driver API" reference manual
 * (docs.nvidia.com/cuda/cuda-driver-api), which keeps them for good: a changed signature gets a new name (`_v2`).
 */
#ifndef SLUICE_QUOTA_CUDA_H
#define SLUICE_QUOTA_CUDA_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUfunc_st *CUfunction;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUarray_st *CUarray;
typedef struct CUmipmappedArray_st *CUmipmappedArray;
typedef struct CUmemPoolHandle_st *CUmemoryPool;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_READY = 600,
};

enum { CU_STREAM_CAPTURE_MODE_RELAXED = 2 };
enum { CU_STREAM_CAPTURE_STATUS_NONE = 0 };
enum { CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM = 2 };
enum { CU_MEM_LOCATION_TYPE_DEVICE = 1 };

/* The default streams that are named by number instead of by handle. */
#define CU_STREAM_LEGACY ((CUstream)0x1)
#define CU_STREAM_PER_THREAD ((CUstream)0x2)

typedef struct {
    unsigned grid_x, grid_y, grid_z;
    unsigned block_x, block_y, block_z;
    unsigned shared_bytes;
    CUstream stream;
    void *attributes;
    unsigned attribute_count;
} CUlaunchConfig;

typedef struct {
    CUfunction function;
    unsigned grid_x, grid_y, grid_z;
    unsigned block_x, block_y, block_z;
    unsigned shared_bytes;
    CUstream stream;
    void **parameters;
} CUDA_LAUNCH_PARAMS;

typedef struct {
    size_t width;
    size_t height;
    int format;
    unsigned channels;
} CUDA_ARRAY_DESCRIPTOR;

typedef struct {
    size_t width;
    size_t height;
    size_t depth;
    int format;
    unsigned channels;
    unsigned flags;
} CUDA_ARRAY3D_DESCRIPTOR;

/* The beginning of CUmemAllocationProp, which is passed by pointer and read no further. */
typedef struct {
    int type;
    int handle_types;
    int location_type;
    int location_id;
} CUmemAllocationProp;

#endif
