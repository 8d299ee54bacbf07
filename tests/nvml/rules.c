/*
 * What the hardware allows: where instances go, which ids they get, how many more there can be.
 *
 * Sources: NVIDIA MIG user guide; NVIDIA/open-gpu-kernel-modules (kernel_mig_manager.c) for the tree of ids. It shares
 * data with what it judges, and no rule: the budgets are those of the profile that is the whole GPU.
 */
#include "machine.h"

#include <string.h>

const ModelRow *model_of(const Gpu *gpu) { return gpu->model == NO_INSTANCE ? NULL : &MODELS[gpu->model]; }

const ProfileRow *row_by_id(const ModelRow *model, unsigned id)
{
    for (unsigned i = 0; i < model->row_count; i++)
        if (model->rows[i].id == id) return &model->rows[i];
    return NULL;
}

const ProfileRow *row_by_enum(const ModelRow *model, unsigned number)
{
    for (unsigned i = 0; i < model->row_count; i++)
        if (model->rows[i].nvml_enum == number) return &model->rows[i];
    return NULL;
}

static int listed(const ProfileRow *row, unsigned start, unsigned size)
{
    if (size != row->size) return 0;
    for (unsigned i = 0; i < row->start_count; i++)
        if (row->starts[i] == start) return 1;
    return 0;
}

/* OK, or why no instance of this profile can be made here now. */
int room_for(const Gpu *gpu, const ProfileRow *row, unsigned start, unsigned size)
{
    const ModelRow *model = model_of(gpu);
    if (!listed(row, start, size)) return INVALID_ARGUMENT;
    unsigned taken[12] = {0}, slices = row->compute_slices, same = 1, engines[5];
    memcpy(engines, row->engines, sizeof engines);
    for (const Gi *gi = gpu->gis; gi < gpu->gis + GIS_MAX; gi++) {
        if (!gi->used) continue;
        const ProfileRow *other = &model->rows[gi->row];
        for (unsigned i = 0; i < gi->size; i++) taken[gi->start + i] = 1;
        for (int i = 0; i < 5; i++) engines[i] += other->engines[i];
        slices += other->compute_slices;
        same += other == row;
    }
    for (unsigned i = 0; i < size; i++)
        if (taken[start + i]) return INSUFFICIENT_RESOURCES;
    if (slices > model->compute_slices || same > row->max_instances) return INSUFFICIENT_RESOURCES;
    for (unsigned i = 0; i < model->row_count; i++) {
        const ProfileRow *whole = &model->rows[i];
        if (whole->size != model->memory_slices) continue;
        for (int kind = 0; kind < 5; kind++)
            if (engines[kind] > whole->engines[kind]) return INSUFFICIENT_RESOURCES;
        return OK;
    }
    return INSUFFICIENT_RESOURCES;
}

/* The most instances of one profile that could be added: every choice of its placements is tried. */
unsigned more_of(const Gpu *gpu, const ProfileRow *row)
{
    unsigned best = 0;
    for (unsigned choice = 1; choice < 1u << row->start_count; choice++) {
        Gpu tried = *gpu;
        unsigned count = 0, fits = 1;
        for (unsigned i = 0; fits && i < row->start_count; i++) {
            if (!(choice >> i & 1)) continue;
            fits = room_for(&tried, row, row->starts[i], row->size) == OK;
            Gi *free = tried.gis;
            while (fits && free < tried.gis + GIS_MAX && free->used) free++;
            if (!fits || free == tried.gis + GIS_MAX) { fits = 0; break; }
            const ModelRow *model = model_of(gpu);
            *free = (Gi){.used = 1, .row = (unsigned)(row - model->rows), .start = row->starts[i], .size = row->size};
            count++;
        }
        if (fits && count > best) best = count;
    }
    return best;
}

/*
 * Ids of GPU instances form a tree: 0 is the whole GPU, 1 and 2 its halves, 3 to 6 its quarters, 7 to 14 its eighths.
 * Which half has which id differs from GPU to GPU (seen: an A100 with id 7 at slice 0, an H100 with id 11 there).
 */
unsigned gi_id_at(const Gpu *gpu, unsigned start, unsigned size)
{
    unsigned node = 0, from = 0, length = model_of(gpu)->memory_slices;
    while (length > size) {
        length /= 2;
        unsigned right = start >= from + length;
        if (right) from += length;
        node = 2 * node + 1 + (right ^ (gpu->flips >> node & 1));
    }
    return node;
}

/*
 * Compute instance profiles of a GPU instance: 1, 2, 3, 4 or 7 slices (enums 0 to 4) up to its own. Where an instance of
 * one slice has more SMs than the smallest (Hopper's with double memory), the one that fills it is enum 7, and enum 0 is
 * a part of it.
 */
int ci_row(const Gpu *gpu, const Gi *gi, unsigned profile, CiRow *row)
{
    static const unsigned SLICES[] = {1, 2, 3, 4, 7, 8, 6, 1, 7};
    const ModelRow *model = model_of(gpu);
    const ProfileRow *whole = &model->rows[gi->row];
    unsigned slice_sms = row_by_enum(model, 0)->multiprocessors;
    if (profile >= CI_PROFILE_COUNT) return INVALID_ARGUMENT;
    unsigned slices = SLICES[profile], wide = whole->compute_slices == 1 && whole->multiprocessors > slice_sms;
    if (profile == 5 || profile == 6 || profile == 8 || (profile == 7 && !wide)) return NOT_SUPPORTED;
    if (slices > whole->compute_slices || (slices == 3 && whole->compute_slices == 4)) return NOT_SUPPORTED;
    int fills = slices == whole->compute_slices && !(wide && profile == 0);
    *row = (CiRow){
        profile, slices, fills ? whole->multiprocessors : slices * slice_sms, fills ? 1 : whole->compute_slices / slices};
    return OK;
}

/* Where a compute instance of so many slices can begin in a GPU instance. */
int ci_room_for(const Gi *gi, unsigned gi_slices, unsigned slices, unsigned *start)
{
    unsigned taken[8] = {0};
    for (const Ci *ci = gi->cis; ci < gi->cis + CIS_MAX; ci++)
        for (unsigned i = 0; ci->used && i < ci->slices; i++) taken[ci->start + i] = 1;
    for (*start = 0; *start + slices <= gi_slices; *start += slices) {
        unsigned used = 0;
        for (unsigned i = 0; i < slices; i++) used += taken[*start + i];
        if (used == 0) return OK;
    }
    return INSUFFICIENT_RESOURCES;
}
