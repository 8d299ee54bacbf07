/*
 * NVML's calls about compute instances, and the MIG devices that they make.
 */
#include "machine.h"

#include <stdio.h>
#include <string.h>

#define ON_GI()                                                                                       \
    ENTER();                                                                                          \
    Target t;                                                                                         \
    int found_ = find_gi(m, instance, &t);                                                            \
    if (found_ != OK) return found_

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(
    Handle instance, unsigned profile, unsigned engines, CiProfile *info)
{
    ON_GI();
    CiRow row;
    if (info == NULL || engines != CI_ENGINE_PROFILE_SHARED) return INVALID_ARGUMENT;
    int code = ci_row(t.gpu, t.gi, profile, &row);
    if (code != OK) return code;
    const unsigned *shared = model_of(t.gpu)->rows[t.gi->row].engines;
    *info = (CiProfile){
        row.id, row.slices, row.most, row.multiprocessors, shared[0], shared[1], shared[2], shared[3], shared[4]};
    return OK;
}

#ifndef SLUICE_NVML_OLD
EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(
    Handle instance, unsigned profile, unsigned engines, CiProfileV2 *info)
{
    ON_GI();
    CiRow row;
    if (info == NULL || engines != CI_ENGINE_PROFILE_SHARED) return INVALID_ARGUMENT;
    if (info->version != VERSION(CiProfileV2, 2)) return ARGUMENT_VERSION_MISMATCH;
    int code = ci_row(t.gpu, t.gi, profile, &row);
    if (code != OK) return code;
    const ProfileRow *whole = &model_of(t.gpu)->rows[t.gi->row];
    *info = (CiProfileV2){
        info->version, row.id, row.slices, row.most, row.multiprocessors, whole->engines[0], whole->engines[1],
        whole->engines[2], whole->engines[3], whole->engines[4], {0}};
    if (row.multiprocessors == whole->multiprocessors) snprintf(info->name, sizeof info->name, "MIG %s", whole->name);
    else snprintf(info->name, sizeof info->name, "MIG %uc.%s", row.slices, whole->name);
    return OK;
}
#endif

static void name_mig(Machine *m, const Gpu *gpu, const Gi *gi, Ci *ci)
{
    uint64_t a = machine_random(m), b = machine_random(m);
    if (m->faults.stable_uuids) {
        a = 1469598103934665603u; /* FNV-1a over what the device is and where */
        for (const char *c = gpu->uuid; *c != 0; c++) a = (a ^ (unsigned char)*c) * 1099511628211u;
        a = (a ^ gi->id) * 1099511628211u;
        b = (a ^ ci->id) * 1099511628211u;
    }
    snprintf(ci->uuid, sizeof ci->uuid, "MIG-%08x-%04x-5%03x-%04x-%012llx", (unsigned)(a >> 32), (unsigned)(a >> 16) & 0xffff,
             (unsigned)a & 0xfff, 0x8000 | ((unsigned)(b >> 48) & 0x3fff), (unsigned long long)(b & 0xffffffffffffull));
}

/* MIG devices keep their place in the list while they live, so the list has holes. */
static unsigned free_mig_index(Machine *m, const Gpu *gpu)
{
    unsigned taken = 0, most = model_of(gpu)->compute_slices;
    for (int i = 0; i < GIS_MAX * CIS_MAX; i++) {
        const Gi *gi = &gpu->gis[i / CIS_MAX];
        const Ci *ci = &gi->cis[i % CIS_MAX];
        if (gi->used && ci->used) taken |= 1u << ci->mig_index;
    }
    unsigned index = (unsigned)(machine_random(m) % most);
    while (taken >> index & 1) index = (index + 1) % most;
    return index;
}

EXPORT nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(Handle instance, unsigned profile, Handle *compute)
{
    ON_GI();
    CiRow row;
    unsigned start, taken = 0, id = 0;
    if (compute == NULL) return INVALID_ARGUMENT;
    if (machine_forbids(m)) return NO_PERMISSION;
    if (ci_row(t.gpu, t.gi, profile, &row) != OK) return INVALID_ARGUMENT;
    int code = ci_room_for(t.gi, model_of(t.gpu)->rows[t.gi->row].compute_slices, row.slices, &start);
    if (code != OK) return code;
    if (m->faults.ci_fails > 0) {
        m->faults.ci_fails--;
        return INSUFFICIENT_RESOURCES;
    }
    Ci *free = NULL;
    for (Ci *ci = t.gi->cis + CIS_MAX - 1; ci >= t.gi->cis; ci--) {
        if (!ci->used) free = ci;
        else taken |= 1u << ci->id;
    }
    if (free == NULL) return INSUFFICIENT_RESOURCES;
    while (taken >> id & 1) id++;
    *free = (Ci){
        .id = id, .serial = m->serial++, .profile = profile, .slices = row.slices, .start = start,
        .multiprocessors = row.multiprocessors, .mig_index = free_mig_index(m, t.gpu)};
    name_mig(m, t.gpu, t.gi, free);
    COUNTS(free);
    machine_tell(m, number_of(m, t.gpu), t.gi->id, id, EVENT_MIG_CONFIG, 0);
    *compute = handle_of_ci(m, t.gpu, free);
    return OK;
}

EXPORT nvmlReturn_t nvmlComputeInstanceDestroy(Handle compute)
{
    ENTER();
    Target t;
    int code = find_ci(m, compute, &t);
    if (code != OK) return code;
    if (machine_forbids(m)) return NO_PERMISSION;
    if (machine_holders(m, number_of(m, t.gpu), t.gi->id, t.ci->id) > 0) return IN_USE;
    if (m->faults.in_use_times > 0) {
        m->faults.in_use_times--;
        return IN_USE;
    }
    COUNTS_NOT(t.ci);
    machine_tell(m, number_of(m, t.gpu), t.gi->id, t.ci->id, EVENT_MIG_CONFIG, 0);
    return OK;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstances(
    Handle instance, unsigned profile, Handle *computes, unsigned *count)
{
    ON_GI();
    CiRow row;
    if (computes == NULL || count == NULL || ci_row(t.gpu, t.gi, profile, &row) != OK) return INVALID_ARGUMENT;
    *count = 0;
    for (const Ci *ci = t.gi->cis; ci < t.gi->cis + CIS_MAX; ci++)
        if (ci->used && ci->profile == profile) computes[(*count)++] = handle_of_ci(m, t.gpu, ci);
    return OK;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(Handle instance, unsigned id, Handle *compute)
{
    ON_GI();
    if (compute == NULL) return INVALID_ARGUMENT;
    for (const Ci *ci = t.gi->cis; ci < t.gi->cis + CIS_MAX; ci++) {
        if (!ci->used || ci->id != id) continue;
        *compute = handle_of_ci(m, t.gpu, ci);
        return OK;
    }
    return NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlComputeInstanceGetInfo_v2(Handle compute, CiInfo *info)
{
    ENTER();
    Target t;
    int code = find_ci(m, compute, &t);
    if (code != OK) return code;
    if (info == NULL) return INVALID_ARGUMENT;
    *info = (CiInfo){
        /* nvml.h says the parent device, drivers give the MIG device */
        m->faults.parent_in_ci_info ? handle_of_gpu(m, t.gpu) : handle_of_mig(m, t.gpu, t.ci), handle_of_gi(m, t.gpu, t.gi), t.ci->id, t.ci->profile,
        {t.ci->start, t.ci->slices}};
    return OK;
}

/* -- MIG devices -------------------------------------------------------------------------------------------------- */

EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(Handle device, unsigned index, Handle *mig)
{
    ENTER();
    Gpu *gpu;
    int found_ = find_gpu(m, device, &gpu);
    if (found_ != OK) return found_;
    const ModelRow *model = model_of(gpu);
    if (model == NULL || !gpu->mig) return NOT_SUPPORTED;
    if (mig == NULL || index >= model->compute_slices) return INVALID_ARGUMENT;
    for (int i = 0; i < GIS_MAX * CIS_MAX; i++) {
        const Gi *gi = &gpu->gis[i / CIS_MAX];
        const Ci *ci = &gi->cis[i % CIS_MAX];
        if (!gi->used || !ci->used || ci->mig_index != index) continue;
        *mig = handle_of_mig(m, gpu, ci);
        return OK;
    }
    return NOT_FOUND;
}

#define ON_DEVICE(pointer)                                                                            \
    ENTER();                                                                                          \
    Target t;                                                                                         \
    int found_ = find_device(m, device, &t);                                                          \
    if (found_ != OK) return found_;                                                                  \
    if ((pointer) == NULL) return INVALID_ARGUMENT

#define ON_MIG_DEVICE(pointer, otherwise)                                                             \
    ON_DEVICE(pointer);                                                                               \
    if (t.ci == NULL) return otherwise

EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(Handle device, unsigned *is_mig)
{
    ON_DEVICE(is_mig);
    *is_mig = t.ci != NULL;
    return OK;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceId(Handle device, unsigned *id)
{
    ON_MIG_DEVICE(id, NOT_SUPPORTED);
    *id = t.gi->id;
    return OK;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeInstanceId(Handle device, unsigned *id)
{
    ON_MIG_DEVICE(id, NOT_SUPPORTED);
    *id = t.ci->id;
    return OK;
}

EXPORT nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Handle device, Handle *parent)
{
    ON_MIG_DEVICE(parent, INVALID_ARGUMENT);
    *parent = handle_of_gpu(m, t.gpu);
    return OK;
}

EXPORT nvmlReturn_t nvmlDeviceGetAttributes_v2(Handle device, Attributes *attributes)
{
    ON_MIG_DEVICE(attributes, NOT_SUPPORTED);
    const ProfileRow *row = &model_of(t.gpu)->rows[t.gi->row];
    *attributes = (Attributes){
        t.ci->multiprocessors, row->engines[0], row->engines[1], row->engines[2], row->engines[3], row->engines[4],
        row->compute_slices, t.ci->slices, row->memory_mib};
    return OK;
}
