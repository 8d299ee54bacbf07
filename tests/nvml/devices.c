/*
 * NVML's calls about the system and whole devices.
 */
#include "machine.h"

#include <stdio.h>
#include <string.h>

EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    ENTER();
    if (m->faults.init_error) return (int)m->faults.init_error;
    machine_initialised++;
    return OK;
}

EXPORT nvmlReturn_t nvmlShutdown(void)
{
    ENTER();
    machine_initialised--;
    return OK;
}

EXPORT const char *nvmlErrorString(nvmlReturn_t code)
{
    switch (code) {
    case OK: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NO_PERMISSION: return "Insufficient Permissions";
    case NOT_FOUND: return "Not Found";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case TIMEOUT: return "Timeout";
    case GPU_IS_LOST: return "GPU is lost";
    case RESET_REQUIRED: return "GPU requires reset";
    case LIB_RM_VERSION_MISMATCH: return "Driver/library version mismatch";
    case IN_USE: return "In use by another client";
    case INSUFFICIENT_RESOURCES: return "Insufficient Resources";
    case ARGUMENT_VERSION_MISMATCH: return "Argument version mismatch";
    default: return "Unknown Error";
    }
}

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    ENTER();
    return copy_text(version, length, m->driver_version);
}

EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned length)
{
    ENTER();
    char text[NAME_SIZE + 8];
    snprintf(text, sizeof text, "13.%s", m->driver_version);
    return copy_text(version, length, text);
}

static nvmlReturn_t cuda_version(Machine *m, int *version)
{
    if (version == NULL) return INVALID_ARGUMENT;
    *version = (int)m->cuda_version;
    return OK;
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    ENTER();
    return cuda_version(m, version);
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    ENTER();
    return cuda_version(m, version);
}

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count)
{
    ENTER();
    if (count == NULL) return INVALID_ARGUMENT;
    *count = m->gpu_count;
    return OK;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle *device)
{
    ENTER();
    if (device == NULL || index >= m->gpu_count) return INVALID_ARGUMENT;
    if (m->gpus[index].lost) return GPU_IS_LOST;
    *device = handle_of_gpu(m, &m->gpus[index]);
    return OK;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, Handle *device)
{
    ENTER();
    if (uuid == NULL || device == NULL) return INVALID_ARGUMENT;
    for (Gpu *gpu = m->gpus; gpu < m->gpus + m->gpu_count; gpu++) {
        if (strcmp(gpu->uuid, uuid) == 0) {
            *device = handle_of_gpu(m, gpu);
            return gpu->lost ? GPU_IS_LOST : OK;
        }
        for (int i = 0; i < GIS_MAX * CIS_MAX; i++) {
            const Gi *gi = &gpu->gis[i / CIS_MAX];
            const Ci *ci = &gi->cis[i % CIS_MAX];
            if (!gi->used || !ci->used || strcmp(ci->uuid, uuid) != 0) continue;
            *device = handle_of_mig(m, gpu, ci);
            return gpu->lost ? GPU_IS_LOST : OK;
        }
    }
    return NOT_FOUND;
}

/* `t` is the GPU or MIG device that the handle names. */
#define ON_DEVICE(pointer)                                                                            \
    ENTER();                                                                                          \
    Target t;                                                                                         \
    int found_ = find_device(m, device, &t);                                                          \
    if (found_ != OK) return found_;                                                                  \
    if ((pointer) == NULL) return INVALID_ARGUMENT

#define ON_GPU(pointer)                                                                               \
    ON_DEVICE(pointer);                                                                               \
    if (t.ci != NULL) return INVALID_ARGUMENT

EXPORT nvmlReturn_t nvmlDeviceGetName(Handle device, char *name, unsigned length)
{
    ON_DEVICE(name);
    char text[2 * NAME_SIZE];
    if (t.ci == NULL) return copy_text(name, length, t.gpu->name);
    snprintf(text, sizeof text, "%s MIG %s", t.gpu->name, model_of(t.gpu)->rows[t.gi->row].name);
    return copy_text(name, length, text);
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(Handle device, char *uuid, unsigned length)
{
    ON_DEVICE(uuid);
    return copy_text(uuid, length, t.ci == NULL ? t.gpu->uuid : t.ci->uuid);
}

EXPORT nvmlReturn_t nvmlDeviceGetIndex(Handle device, unsigned *index)
{
    ON_DEVICE(index);
    *index = t.ci == NULL ? number_of(m, t.gpu) : t.ci->mig_index;
    return OK;
}

EXPORT nvmlReturn_t nvmlDeviceGetMinorNumber(Handle device, unsigned *minor)
{
    ON_GPU(minor);
    *minor = number_of(m, t.gpu);
    return OK;
}

static PciInfo pci_of(const Gpu *gpu)
{
    PciInfo pci = {.bus = gpu->bus, .pciDeviceId = gpu->pci_device_id << 16 | 0x10de, .pciSubSystemId = 0};
    snprintf(pci.busId, sizeof pci.busId, "%08X:%02X:%02X.0", 0, gpu->bus, 0);
    snprintf(pci.busIdLegacy, sizeof pci.busIdLegacy, "%04X:%02X:%02X.0", 0, gpu->bus, 0);
    return pci;
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(Handle device, PciInfo *pci)
{
    ON_DEVICE(pci);
    *pci = pci_of(t.gpu);
    return OK;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryAffinity(Handle device, unsigned size, unsigned long *nodes, unsigned scope)
{
    ON_GPU(nodes);
    if (size == 0 || scope > 1) return INVALID_ARGUMENT;
    if (t.gpu->numa_node < 0) return NOT_SUPPORTED;
    unsigned word = (unsigned)t.gpu->numa_node / 64;
    if (word >= size) return INSUFFICIENT_SIZE;
    memset(nodes, 0, size * sizeof *nodes);
    nodes[word] = 1ul << (t.gpu->numa_node % 64);
    return OK;
}

/* Of GPUs whose memory is a NUMA node itself (NVML API reference); none of these is. */
EXPORT nvmlReturn_t nvmlDeviceGetNumaNodeId(Handle device, unsigned *node)
{
    ON_GPU(node);
    return NOT_SUPPORTED;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkState(Handle device, unsigned link, unsigned *active)
{
    ON_GPU(active);
    if (link >= NVLINKS_MAX) return INVALID_ARGUMENT;
    if (t.gpu->links[link] == NO_LINK) return NOT_SUPPORTED;
    *active = !t.gpu->mig; /* no NVLink and no P2P in MIG mode (NVIDIA MIG user guide) */
    return OK;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(Handle device, unsigned link, PciInfo *pci)
{
    ON_GPU(pci);
    if (link >= NVLINKS_MAX) return INVALID_ARGUMENT;
    if (t.gpu->links[link] < 0) return NOT_SUPPORTED;
    *pci = pci_of(&m->gpus[t.gpu->links[link]]);
    return OK;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(Handle device, unsigned link, unsigned *type)
{
    ON_GPU(type);
    if (link >= NVLINKS_MAX) return INVALID_ARGUMENT;
    if (t.gpu->links[link] == NO_LINK) return NOT_SUPPORTED;
    *type = t.gpu->links[link] == TO_SWITCH ? NVLINK_TO_SWITCH : NVLINK_TO_GPU;
    return OK;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(Handle device, Memory *memory)
{
    ON_DEVICE(memory);
    if (t.ci == NULL && t.gpu->memory_mib == 0) return NOT_SUPPORTED; /* as of GB10, which has the machine's */
    uint64_t mib = t.ci == NULL ? t.gpu->memory_mib : model_of(t.gpu)->rows[t.gi->row].memory_mib;
    uint64_t used = machine_memory_used_mib(m, number_of(m, t.gpu), t.ci == NULL ? NO_INSTANCE : t.gi->id);
    *memory = (Memory){.total = mib << 20, .free = (mib - used) << 20, .used = used << 20};
    return OK;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(Handle device, MemoryV2 *memory)
{
    ON_DEVICE(memory);
    if (memory->version != VERSION(MemoryV2, 2)) return ARGUMENT_VERSION_MISMATCH;
    if (t.ci == NULL && t.gpu->memory_mib == 0) return NOT_SUPPORTED;
    uint64_t mib = t.ci == NULL ? t.gpu->memory_mib : model_of(t.gpu)->rows[t.gi->row].memory_mib;
    *memory = (MemoryV2){.version = memory->version, .total = mib << 20, .free = mib << 20};
    return OK;
}

EXPORT nvmlReturn_t nvmlDeviceGetNumGpuCores(Handle device, unsigned *cores)
{
    ON_DEVICE(cores);
    const ModelRow *model = model_of(t.gpu);
    *cores = (t.ci == NULL ? t.gpu->multiprocessors : t.ci->multiprocessors) * (model == NULL ? 64 : model->cores_per_sm);
    return OK;
}

EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(Handle device, int *major, int *minor)
{
    ON_DEVICE(major);
    if (minor == NULL) return INVALID_ARGUMENT;
    const ModelRow *model = model_of(t.gpu);
    *major = model == NULL ? 7 : (int)model->capability_major;
    *minor = model == NULL ? 5 : (int)model->capability_minor;
    return OK;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeMode(Handle device, unsigned *mode)
{
    ON_GPU(mode);
    *mode = t.gpu->compute_mode;
    return OK;
}

EXPORT nvmlReturn_t nvmlDeviceSetComputeMode(Handle device, unsigned mode)
{
    ON_GPU(m);
    if (mode >= COMPUTEMODE_COUNT) return INVALID_ARGUMENT;
    if (machine_forbids(m)) return NO_PERMISSION;
    if (t.gpu->mig) return NOT_SUPPORTED;
    t.gpu->compute_mode = mode;
    return OK;
}

EXPORT nvmlReturn_t nvmlDeviceGetTotalEccErrors(Handle device, unsigned kind, unsigned counter, uint64_t *count)
{
    ON_GPU(count);
    if (kind > 1 || counter > 1) return INVALID_ARGUMENT;
    *count = kind == 1 ? t.gpu->ecc_uncorrected : 0;
    return OK;
}

EXPORT nvmlReturn_t nvmlDeviceGetRemappedRows(
    Handle device, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed)
{
    ON_GPU(corrected);
    if (uncorrected == NULL || pending == NULL || failed == NULL) return INVALID_ARGUMENT;
    *corrected = *uncorrected = *pending = *failed = 0;
    return OK;
}

EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(Handle device, int count, FieldValue *values)
{
    ON_GPU(values);
    for (int i = 0; i < count; i++) {
        int known = values[i].fieldId == FIELD_RECOVERY_ACTION && t.gpu->recovery != NO_INSTANCE;
        values[i].nvmlReturn = known ? OK : NOT_SUPPORTED;
        values[i].valueType = 1; /* unsigned int */
        values[i].value.ullVal = 0;
        if (known) values[i].value.uiVal = t.gpu->recovery;
    }
    return OK;
}
