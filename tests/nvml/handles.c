/*
 * What handles and strings are to a client. A handle holds the kind of thing, the GPU's number and a number that is
 * never used again: after a destroy or a reset it finds nothing.
 */
#include "machine.h"

#include <string.h>

enum { KIND_GPU = 0x11, KIND_GI = 0x22, KIND_CI = 0x33, KIND_MIG = 0x44 };

static Handle made(const Machine *m, unsigned kind, const Gpu *gpu, unsigned serial)
{
    return (Handle)kind << 40 | (Handle)number_of(m, gpu) << 32 | serial;
}

unsigned number_of(const Machine *m, const Gpu *gpu) { return (unsigned)(gpu - m->gpus); }
Handle handle_of_gpu(const Machine *m, const Gpu *gpu) { return made(m, KIND_GPU, gpu, gpu->epoch); }
Handle handle_of_gi(const Machine *m, const Gpu *gpu, const Gi *gi) { return made(m, KIND_GI, gpu, gi->serial); }
Handle handle_of_ci(const Machine *m, const Gpu *gpu, const Ci *ci) { return made(m, KIND_CI, gpu, ci->serial); }
Handle handle_of_mig(const Machine *m, const Gpu *gpu, const Ci *ci) { return made(m, KIND_MIG, gpu, ci->serial); }

static int find(Machine *m, Handle handle, unsigned kind, Target *target)
{
    unsigned number = (unsigned)(handle >> 32) & 0xff, serial = (unsigned)handle;
    *target = (Target){NULL, NULL, NULL};
    if (handle >> 40 != kind || number >= m->gpu_count) return INVALID_ARGUMENT;
    Gpu *gpu = target->gpu = &m->gpus[number];
    if (gpu->lost) return GPU_IS_LOST;
    if (kind == KIND_GPU) return serial == gpu->epoch ? OK : INVALID_ARGUMENT;
    for (Gi *gi = gpu->gis; gi < gpu->gis + GIS_MAX; gi++) {
        if (!gi->used) continue;
        target->gi = gi;
        if (kind == KIND_GI && gi->serial == serial) return OK;
        for (Ci *ci = gi->cis; kind != KIND_GI && ci < gi->cis + CIS_MAX; ci++) {
            target->ci = ci;
            if (ci->used && ci->serial == serial) return OK;
        }
    }
    return INVALID_ARGUMENT;
}

int find_device(Machine *m, Handle handle, Target *target)
{
    return find(m, handle, handle >> 40 == KIND_MIG ? KIND_MIG : KIND_GPU, target);
}

int find_gpu(Machine *m, Handle handle, Gpu **gpu)
{
    Target target;
    int code = find(m, handle, KIND_GPU, &target);
    *gpu = target.gpu;
    return code;
}

int find_gi(Machine *m, Handle handle, Target *target) { return find(m, handle, KIND_GI, target); }
int find_ci(Machine *m, Handle handle, Target *target) { return find(m, handle, KIND_CI, target); }

int copy_text(char *buffer, unsigned length, const char *text)
{
    if (buffer == NULL) return INVALID_ARGUMENT;
    if (strlen(text) + 1 > length) return INSUFFICIENT_SIZE;
    strcpy(buffer, text);
    return OK;
}
