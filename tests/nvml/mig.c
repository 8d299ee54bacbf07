/*
 * NVML's calls about MIG mode, profiles and GPU instances.
 */
#include "machine.h"

#include <stdio.h>
#include <string.h>

/* `gpu` is the GPU of a device handle. */
#define ON_GPU()                                                                                      \
    ENTER();                                                                                          \
    Gpu *gpu;                                                                                         \
    int found_ = find_gpu(m, device, &gpu);                                                           \
    if (found_ != OK) return found_

#define ON_MIG_CAPABLE()                                                                              \
    ON_GPU();                                                                                         \
    const ModelRow *model = model_of(gpu);                                                            \
    if (model == NULL) return NOT_SUPPORTED

/* For calls that need MIG mode and the right to configure it. */
#define ON_MIG_ENABLED()                                                                              \
    ON_MIG_CAPABLE();                                                                                 \
    if (!gpu->mig) return NOT_SUPPORTED;                                                              \
    if (machine_forbids(m)) return NO_PERMISSION

#define ON_GI()                                                                                       \
    ENTER();                                                                                          \
    Target t;                                                                                         \
    int found_ = find_gi(m, instance, &t);                                                            \
    if (found_ != OK) return found_

EXPORT nvmlReturn_t nvmlDeviceGetMigMode(Handle device, unsigned *current, unsigned *pending)
{
    ON_MIG_CAPABLE();
    (void)model;
    if (current == NULL || pending == NULL) return INVALID_ARGUMENT;
    *current = gpu->mig;
    *pending = gpu->mig_pending;
    return OK;
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(Handle device, unsigned *count)
{
    ON_GPU();
    if (count == NULL) return INVALID_ARGUMENT;
    *count = model_of(gpu) != NULL && gpu->mig ? model_of(gpu)->compute_slices : 0;
    return OK;
}

static void describe(const ProfileRow *row, GiProfile *info)
{
    *info = (GiProfile){
        row->id, 0, row->compute_slices, row->max_instances, row->multiprocessors, row->engines[0], row->engines[1],
        row->engines[2], row->engines[3], row->engines[4], row->memory_mib};
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(Handle device, unsigned profile, GiProfile *info)
{
    ON_MIG_CAPABLE();
    if (info == NULL || profile >= GI_PROFILE_COUNT) return INVALID_ARGUMENT;
    const ProfileRow *row = row_by_enum(model, profile);
    if (row == NULL) return NOT_SUPPORTED;
    describe(row, info);
    return OK;
}

#ifndef SLUICE_NVML_OLD
static int describe_v2(const ProfileRow *row, GiProfileV2 *info)
{
    if (info->version != VERSION(GiProfileV2, 2)) return ARGUMENT_VERSION_MISMATCH;
    GiProfile v1;
    describe(row, &v1);
    *info = (GiProfileV2){
        info->version, v1.id, v1.isP2pSupported, v1.sliceCount, v1.instanceCount, v1.multiprocessorCount,
        v1.copyEngineCount, v1.decoderCount, v1.encoderCount, v1.jpegCount, v1.ofaCount, v1.memorySizeMB, {0}};
    snprintf(info->name, sizeof info->name, "MIG %s", row->name);
    return OK;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(Handle device, unsigned profile, GiProfileV2 *info)
{
    ON_MIG_CAPABLE();
    if (info == NULL || profile >= GI_PROFILE_COUNT) return INVALID_ARGUMENT;
    const ProfileRow *row = row_by_enum(model, profile);
    return row == NULL ? NOT_SUPPORTED : describe_v2(row, info);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoByIdV(Handle device, unsigned id, GiProfileV2 *info)
{
    ON_MIG_CAPABLE();
    if (info == NULL) return INVALID_ARGUMENT;
    const ProfileRow *row = row_by_id(model, id);
    return row == NULL ? INVALID_ARGUMENT : describe_v2(row, info);
}
#endif

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(
    Handle device, unsigned id, Placement *placements, unsigned *count)
{
    ON_MIG_CAPABLE();
    const ProfileRow *row = row_by_id(model, id);
    if (row == NULL || count == NULL) return INVALID_ARGUMENT;
    for (unsigned i = 0; placements != NULL && i < row->start_count; i++)
        placements[i] = (Placement){row->starts[i], row->size};
    *count = row->start_count;
    return OK;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(Handle device, unsigned id, unsigned *count)
{
    ON_MIG_ENABLED();
    const ProfileRow *row = row_by_id(model, id);
    if (row == NULL || count == NULL) return INVALID_ARGUMENT;
    *count = more_of(gpu, row);
    return OK;
}

EXPORT nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(
    Handle device, unsigned id, const Placement *placement, Handle *instance)
{
    ON_MIG_ENABLED();
    const ProfileRow *row = row_by_id(model, id);
    if (row == NULL || placement == NULL || instance == NULL) return INVALID_ARGUMENT;
    int is_first = 1;
    Gi *free = NULL;
    for (Gi *gi = gpu->gis + GIS_MAX - 1; gi >= gpu->gis; gi--) {
        if (gi->used) is_first = 0;
        else free = gi;
    }
    if (is_first && machine_holders(m, number_of(m, gpu), NO_INSTANCE, NO_INSTANCE) > 0) return IN_USE;
    int code = room_for(gpu, row, placement->start, placement->size);
    if (code != OK) return code;
    if (free == NULL) return INSUFFICIENT_RESOURCES;
    if (m->faults.insufficient > 0) {
        m->faults.insufficient--;
        return INSUFFICIENT_RESOURCES;
    }
    *free = (Gi){
        .id = gi_id_at(gpu, placement->start, placement->size), .serial = m->serial++,
        .row = (unsigned)(row - model->rows), .start = placement->start, .size = placement->size};
    COUNTS(free);
    machine_tell(m, number_of(m, gpu), free->id, NO_INSTANCE, EVENT_MIG_CONFIG, 0);
    *instance = handle_of_gi(m, gpu, free);
    return OK;
}

EXPORT nvmlReturn_t nvmlGpuInstanceDestroy(Handle instance)
{
    ON_GI();
    if (machine_forbids(m)) return NO_PERMISSION;
    for (int i = 0; i < CIS_MAX; i++)
        if (t.gi->cis[i].used) return IN_USE;
    if (m->faults.gi_holds > 0) {
        m->faults.gi_holds--;
        return IN_USE;
    }
    COUNTS_NOT(t.gi);
    machine_tell(m, number_of(m, t.gpu), t.gi->id, NO_INSTANCE, EVENT_MIG_CONFIG, 0);
    return OK;
}

/* The array must hold as many as the profile allows; `count` is only told (NVML API reference). */
EXPORT nvmlReturn_t nvmlDeviceGetGpuInstances(Handle device, unsigned id, Handle *instances, unsigned *count)
{
    ON_MIG_ENABLED();
    const ProfileRow *row = row_by_id(model, id);
    if (row == NULL || instances == NULL || count == NULL) return INVALID_ARGUMENT;
    *count = 0;
    for (const Gi *gi = gpu->gis; gi < gpu->gis + GIS_MAX; gi++)
        if (gi->used && &model->rows[gi->row] == row) instances[(*count)++] = handle_of_gi(m, gpu, gi);
    return OK;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceById(Handle device, unsigned id, Handle *instance)
{
    ON_MIG_ENABLED();
    (void)model;
    if (instance == NULL) return INVALID_ARGUMENT;
    for (const Gi *gi = gpu->gis; gi < gpu->gis + GIS_MAX; gi++) {
        if (!gi->used || gi->id != id) continue;
        *instance = handle_of_gi(m, gpu, gi);
        return OK;
    }
    return NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetInfo(Handle instance, GiInfo *info)
{
    ON_GI();
    if (info == NULL) return INVALID_ARGUMENT;
    *info = (GiInfo){
        handle_of_gpu(m, t.gpu), t.gi->id, model_of(t.gpu)->rows[t.gi->row].id, {t.gi->start, t.gi->size}};
    return OK;
}
