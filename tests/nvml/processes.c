/*
 * NVML's calls about processes: which have a context on a GPU or MIG device, and what they are called.
 */
#include "machine.h"

#include <stdio.h>
#include <string.h>

/* Those of one kind on a MIG device; or all on a GPU, with the instance that each is in. */
static nvmlReturn_t listed(Machine *m, Handle device, unsigned kind, unsigned *count, ProcessInfo *infos)
{
    Target t;
    int code = find_device(m, device, &t);
    if (code != OK) return code;
    if (count == NULL) return INVALID_ARGUMENT;
    unsigned there = 0, room = infos == NULL ? 0 : *count;
    for (Process *process = m->processes; process < m->processes + PROCESSES_MAX; process++) {
        if (!machine_lives(process)) process->used = 0;
        if (!process->used || process->kind != kind || process->gpu != number_of(m, t.gpu)) continue;
        if (t.ci != NULL && (process->gi != t.gi->id || process->ci != t.ci->id)) continue;
        if (there < room) infos[there] = (ProcessInfo){process->pid, (uint64_t)process->memory_mib << 20, process->gi, process->ci};
        there++;
    }
    *count = there;
    return there > room ? INSUFFICIENT_SIZE : OK;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(Handle device, unsigned *count, ProcessInfo *infos)
{
    ENTER();
    return listed(m, device, COMPUTE, count, infos);
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(Handle device, unsigned *count, ProcessInfo *infos)
{
    ENTER();
    return listed(m, device, COMPUTE, count, infos);
}

EXPORT nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(Handle device, unsigned *count, ProcessInfo *infos)
{
    ENTER();
    return listed(m, device, MPS_CLIENT, count, infos);
}

EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(Handle device, unsigned *count, ProcessInfo *infos)
{
    ENTER();
    return listed(m, device, GRAPHICS, count, infos);
}

EXPORT nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char *name, unsigned length)
{
    ENTER();
    if (name == NULL || length == 0) return INVALID_ARGUMENT;
    for (const Process *process = m->processes; process < m->processes + PROCESSES_MAX; process++) {
        if (!machine_lives(process) || process->pid != pid || process->name[0] == 0) continue;
        snprintf(name, length, "%s", process->name);
        return OK;
    }
    return NOT_FOUND;
}
