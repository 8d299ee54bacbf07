/*
 * The part of NVML's binary interface that is needed here: codes, constants and struct layouts.
 *
 * Written from the NVML API reference (docs.nvidia.com/deploy/nvml-api); sizes are asserted below, for a client that was
 * built against the real header must find every field where it looks for it. No rule and no state belongs here.
 */
#ifndef SLUICE_NVML_ABI_H
#define SLUICE_NVML_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef int nvmlReturn_t;
typedef uint64_t Handle; /* nvmlDevice_t, nvmlGpuInstance_t, ...: opaque pointers to a client */

enum {
    OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, TIMEOUT = 10, GPU_IS_LOST = 15, RESET_REQUIRED = 16,
    LIB_RM_VERSION_MISMATCH = 18, IN_USE = 19, INSUFFICIENT_RESOURCES = 23, ARGUMENT_VERSION_MISMATCH = 25, UNKNOWN = 999,
};

enum { GI_PROFILE_COUNT = 18, CI_PROFILE_COUNT = 9, CI_ENGINE_PROFILE_SHARED = 0, NVLINKS_MAX = 18 };
enum { COMPUTEMODE_DEFAULT = 0, COMPUTEMODE_COUNT = 4, COMPUTEMODE_EXCLUSIVE_PROCESS = 3 };
enum { EVENT_SINGLE_BIT_ECC = 0x1, EVENT_DOUBLE_BIT_ECC = 0x2, EVENT_XID = 0x8, EVENT_MIG_CONFIG = 0x100 };
enum { FIELD_RECOVERY_ACTION = 230, NVLINK_TO_GPU = 0, NVLINK_TO_SWITCH = 2 };
#define NO_INSTANCE 0xFFFFFFFFu

#define VERSION(type, number) ((unsigned)(sizeof(type) | ((unsigned)(number) << 24)))

typedef struct { unsigned start, size; } Placement;

typedef struct {
    unsigned id, isP2pSupported, sliceCount, instanceCount, multiprocessorCount, copyEngineCount, decoderCount,
        encoderCount, jpegCount, ofaCount;
    uint64_t memorySizeMB;
} GiProfile;

typedef struct {
    unsigned version, id, isP2pSupported, sliceCount, instanceCount, multiprocessorCount, copyEngineCount, decoderCount,
        encoderCount, jpegCount, ofaCount;
    uint64_t memorySizeMB;
    char name[96];
} GiProfileV2;

typedef struct {
    unsigned id, sliceCount, instanceCount, multiprocessorCount, sharedCopyEngineCount, sharedDecoderCount,
        sharedEncoderCount, sharedJpegCount, sharedOfaCount;
} CiProfile;

typedef struct {
    unsigned version, id, sliceCount, instanceCount, multiprocessorCount, sharedCopyEngineCount, sharedDecoderCount,
        sharedEncoderCount, sharedJpegCount, sharedOfaCount;
    char name[96];
} CiProfileV2;

typedef struct { Handle device; unsigned id, profileId; Placement placement; } GiInfo;
typedef struct { Handle device, gpuInstance; unsigned id, profileId; Placement placement; } CiInfo;

typedef struct {
    unsigned multiprocessorCount, sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount, sharedJpegCount,
        sharedOfaCount, gpuInstanceSliceCount, computeInstanceSliceCount;
    uint64_t memorySizeMB;
} Attributes;

typedef struct { uint64_t total, free, used; } Memory;
typedef struct { unsigned version; uint64_t total, reserved, free, used; } MemoryV2;

typedef struct {
    char busIdLegacy[16];
    unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} PciInfo;

typedef struct { unsigned pid; uint64_t usedGpuMemory; unsigned gpuInstanceId, computeInstanceId; } ProcessInfo;

typedef struct { unsigned gpu, memory; } Utilization;

typedef struct {
    unsigned pid;
    uint64_t timeStamp;
    unsigned smUtil, memUtil, encUtil, decUtil;
} ProcessUtilization;

enum { GPM_VERSION = 1, GPM_GRAPHICS_UTIL = 1, GPM_SM_UTIL = 2, GPM_DRAM_BW_UTIL = 10 };

typedef struct { unsigned version, isSupportedDevice; } GpmSupport;
typedef struct { unsigned metricId; nvmlReturn_t nvmlReturn; double value; const char *names[3]; } GpmMetric;
typedef struct { unsigned version, numMetrics; void *sample1, *sample2; GpmMetric metrics[]; } GpmMetricsGet;

typedef struct {
    uint32_t fieldId, scopeId;
    int64_t timestamp, latencyUsec;
    unsigned valueType;
    nvmlReturn_t nvmlReturn;
    union { unsigned uiVal; uint64_t ullVal; } value;
} FieldValue;

typedef struct {
    Handle device;
    uint64_t eventType, eventData;
    unsigned gpuInstanceId, computeInstanceId;
} EventData;

_Static_assert(sizeof(GiProfile) == 48 && sizeof(GiProfileV2) == 152 && sizeof(CiProfileV2) == 136, "profile structs");
_Static_assert(sizeof(GiInfo) == 24 && sizeof(CiInfo) == 32 && sizeof(Attributes) == 40, "instance structs");
_Static_assert(sizeof(Memory) == 24 && sizeof(MemoryV2) == 40 && sizeof(PciInfo) == 68, "device structs");
_Static_assert(sizeof(ProcessInfo) == 24 && sizeof(EventData) == 32 && sizeof(FieldValue) == 40, "process and event structs");

_Static_assert(sizeof(ProcessUtilization) == 32 && sizeof(GpmMetric) == 40 && sizeof(GpmMetricsGet) == 24, "use structs");

#define EXPORT __attribute__((visibility("default")))

#endif
