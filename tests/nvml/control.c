/*
 * What a test does to the machine: its GPUs, its processes, and what goes wrong with them. Not part of NVML.
 *
 * All return 0 (or a number that is asked for), and -1 for something that is not there.
 */
#include "machine.h"

#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define GPU_AT(index)                                                                                 \
    CONTROL();                                                                                        \
    if ((index) >= m->gpu_count) return -1;                                                           \
    Gpu *gpu = &m->gpus[index]

static void set_text(char *field, const char *text) { snprintf(field, NAME_SIZE < UUID_SIZE ? NAME_SIZE : UUID_SIZE, "%s", text); }

/* The calling process is killed while it holds the machine, as in the middle of a call. */
EXPORT int sluice_nvml_die(void)
{
    CONTROL();
    return raise(SIGKILL);
}

/* No GPU, no process, no fault. Handles of before are stale. */
EXPORT int sluice_nvml_clear(void)
{
    CONTROL();
    memset(&m->faults, 0, sizeof m->faults);
    memset(m->failures, 0, sizeof m->failures);
    memset(m->processes, 0, sizeof m->processes);
    memset(m->gpus, 0, sizeof m->gpus);
    m->gpu_count = 0;
    return 0;
}

static Gpu *added(Machine *m, const char *uuid, const char *name)
{
    if (m->gpu_count >= GPUS_MAX) return NULL;
    Gpu *gpu = &m->gpus[m->gpu_count];
    *gpu = (Gpu){.model = NO_INSTANCE, .numa_node = -1, .recovery = NO_INSTANCE, .epoch = m->serial++, .bus = 0x10 + 8 * m->gpu_count};
    for (int i = 0; i < NVLINKS_MAX; i++) gpu->links[i] = NO_LINK;
    set_text(gpu->uuid, uuid);
    set_text(gpu->name, name);
    gpu->flips = (unsigned)machine_random(m) & 0x7f;
    return gpu;
}

/* A GPU of a model of the catalog. Returns its index. */
EXPORT int sluice_nvml_add_gpu(const char *key, const char *uuid, const char *name, int mig, int numa_node)
{
    CONTROL();
    for (unsigned i = 0; i < sizeof MODELS / sizeof MODELS[0]; i++) {
        if (strcmp(MODELS[i].key, key) != 0) continue;
        Gpu *gpu = added(m, uuid, name);
        if (gpu == NULL) return -1;
        gpu->model = i;
        gpu->mig = gpu->mig_pending = mig != 0;
        gpu->numa_node = numa_node;
        gpu->memory_mib = MODELS[i].memory_mib;
        gpu->multiprocessors = MODELS[i].multiprocessors;
        gpu->pci_device_id = MODELS[i].pci_device_id;
        return (int)m->gpu_count++;
    }
    return -1;
}

/* A GPU that has no MIG. Returns its index. */
EXPORT int sluice_nvml_add_plain_gpu(const char *uuid, const char *name, unsigned memory_mib, unsigned sms, int numa_node)
{
    CONTROL();
    Gpu *gpu = added(m, uuid, name);
    if (gpu == NULL) return -1;
    gpu->memory_mib = memory_mib;
    gpu->multiprocessors = sms;
    gpu->numa_node = numa_node;
    gpu->pci_device_id = 0x1eb8;
    return (int)m->gpu_count++;
}

/* Connects two GPUs by so many NVLinks. */
EXPORT int sluice_nvml_link(unsigned a, unsigned b, unsigned count)
{
    GPU_AT(a);
    if (b >= m->gpu_count || a == b) return -1;
    Gpu *ends[2] = {gpu, &m->gpus[b]};
    for (unsigned n = 0; n < count; n++) {
        for (int end = 0; end < 2; end++) {
            int link = 0;
            while (link < NVLINKS_MAX && ends[end]->links[link] != NO_LINK) link++;
            if (link == NVLINKS_MAX) return -1;
            ends[end]->links[link] = (int)number_of(m, ends[1 - end]);
        }
    }
    return 0;
}

/* Connects a GPU to an NVSwitch by so many NVLinks. */
EXPORT int sluice_nvml_link_switch(unsigned index, unsigned count)
{
    GPU_AT(index);
    for (int link = 0; link < NVLINKS_MAX && count > 0; link++) {
        if (gpu->links[link] != NO_LINK) continue;
        gpu->links[link] = TO_SWITCH;
        count--;
    }
    return count == 0 ? 0 : -1;
}

/* The GPU does not answer from now on; or answers again, with everything that was on it. */
EXPORT int sluice_nvml_set_lost(unsigned index, int lost)
{
    GPU_AT(index);
    gpu->lost = lost != 0;
    return 0;
}

EXPORT int sluice_nvml_set_mig(unsigned index, int current, int pending)
{
    GPU_AT(index);
    if (gpu->model == NO_INSTANCE) return -1;
    gpu->mig = current != 0;
    gpu->mig_pending = pending != 0;
    return 0;
}

EXPORT int sluice_nvml_set_events(unsigned index, int supported)
{
    GPU_AT(index);
    gpu->no_events = !supported;
    return 0;
}

EXPORT int sluice_nvml_set_ecc(unsigned index, unsigned uncorrected)
{
    GPU_AT(index);
    gpu->ecc_uncorrected = uncorrected;
    return 0;
}

/* What the driver asks for; NO_INSTANCE: it is too old to tell. */
EXPORT int sluice_nvml_set_recovery(unsigned index, unsigned action)
{
    GPU_AT(index);
    gpu->recovery = action;
    return 0;
}

EXPORT int sluice_nvml_compute_mode(unsigned index)
{
    GPU_AT(index);
    return (int)gpu->compute_mode;
}

/* The GPU is reset: everything on it is gone. */
EXPORT int sluice_nvml_reset_gpu(unsigned index)
{
    GPU_AT(index);
    machine_clear_gpu(m, gpu);
    return 0;
}

EXPORT int sluice_nvml_reboot(void)
{
    CONTROL();
    for (unsigned i = 0; i < m->gpu_count; i++) machine_clear_gpu(m, &m->gpus[i]);
    m->event_count += EVENTS_MAX; /* earlier events are lost */
    for (int i = 0; i < EVENTS_MAX; i++) m->events[i].type = 0;
    return 0;
}

EXPORT int sluice_nvml_tell(unsigned index, uint64_t type, uint64_t data)
{
    GPU_AT(index);
    machine_tell(m, number_of(m, gpu), NO_INSTANCE, NO_INSTANCE, type, data);
    return 0;
}

/* So many of the next calls of `symbol` return `code`; NO_INSTANCE times: all. 0 times takes it back. */
EXPORT int sluice_nvml_fail(const char *symbol, int code, unsigned times)
{
    CONTROL();
    Failure *free = NULL;
    for (Failure *failure = m->failures; failure < m->failures + FAILURES_MAX; failure++) {
        if (strcmp(failure->symbol, symbol) == 0) failure->times = 0;
        if (failure->times == 0 && free == NULL) free = failure;
    }
    if (free == NULL || strlen(symbol) >= sizeof free->symbol) return -1;
    *free = (Failure){.code = code, .times = times};
    strcpy(free->symbol, symbol);
    return 0;
}

#define FAULT(name) {#name, offsetof(Faults, name)}

EXPORT int sluice_nvml_fault(const char *name, unsigned value)
{
    static const struct { const char *name; size_t at; } FAULTS[] = {
        FAULT(in_use_times), FAULT(insufficient), FAULT(ci_fails), FAULT(slow_ms),
        FAULT(no_permission), FAULT(init_error), FAULT(stable_uuids), FAULT(gi_holds), FAULT(parent_in_ci_info),
    };
    CONTROL();
    for (unsigned i = 0; i < sizeof FAULTS / sizeof FAULTS[0]; i++) {
        if (strcmp(FAULTS[i].name, name) != 0) continue;
        *(unsigned *)((char *)&m->faults + FAULTS[i].at) = value;
        return 0;
    }
    return -1;
}

EXPORT int sluice_nvml_set_versions(const char *driver, unsigned cuda)
{
    CONTROL();
    snprintf(m->driver_version, sizeof m->driver_version, "%s", driver);
    m->cuda_version = cuda;
    return 0;
}

/*
 * A process has a context on the GPU or MIG device of that UUID. `kind` as in machine.h; `name` may be empty. A `real` one
 * is there only while it lives. Returns IN_USE where the compute mode lets no further context in.
 */
EXPORT int sluice_nvml_add_process(const char *uuid, unsigned pid, const char *name, unsigned kind, int real)
{
    CONTROL();
    Process new = {.pid = pid, .kind = kind, .real = real != 0, .gi = NO_INSTANCE, .ci = NO_INSTANCE, .gpu = NO_INSTANCE};
    snprintf(new.name, sizeof new.name, "%s", name);
    for (unsigned n = 0; n < m->gpu_count; n++) {
        const Gpu *gpu = &m->gpus[n];
        if (strcmp(gpu->uuid, uuid) == 0) new.gpu = n;
        for (int i = 0; i < GIS_MAX * CIS_MAX; i++) {
            const Gi *gi = &gpu->gis[i / CIS_MAX];
            const Ci *ci = &gi->cis[i % CIS_MAX];
            if (!gi->used || !ci->used || strcmp(ci->uuid, uuid) != 0) continue;
            new.gpu = n;
            new.gi = gi->id;
            new.ci = ci->id;
        }
    }
    if (new.gpu == NO_INSTANCE) return -1;
    int exclusive = m->gpus[new.gpu].compute_mode == COMPUTEMODE_EXCLUSIVE_PROCESS && new.gi == NO_INSTANCE;
    if (exclusive && kind != MPS_CLIENT && machine_holders(m, new.gpu, NO_INSTANCE, NO_INSTANCE) > 0) return IN_USE;
    if (real && (new.started_at = machine_started_at(pid)) == 0) return -1;
    for (Process *process = m->processes; process < m->processes + PROCESSES_MAX; process++) {
        if (machine_lives(process)) continue;
        *process = new;
        COUNTS(process);
        return 0;
    }
    return -1;
}

/* What a process holds and does: MiB, percent of the time in which it computes, percent of the SMs meanwhile. */
EXPORT int sluice_nvml_use(unsigned pid, unsigned memory_mib, unsigned busy, unsigned sms)
{
    CONTROL();
    for (Process *process = m->processes; process < m->processes + PROCESSES_MAX; process++) {
        if (!process->used || process->pid != pid) continue;
        process->memory_mib = memory_mib;
        process->busy = busy;
        process->sms = sms;
        return 0;
    }
    return -1;
}

EXPORT int sluice_nvml_remove_process(unsigned pid)
{
    CONTROL();
    int removed = -1;
    for (Process *process = m->processes; process < m->processes + PROCESSES_MAX; process++) {
        if (!process->used || process->pid != pid) continue;
        process->used = 0;
        removed = 0;
    }
    return removed;
}

/*
 * Everything that is there, one thing a line: `gi INDEX ID PROFILE START SIZE`, `ci INDEX GI ID UUID`,
 * `process INDEX GI CI PID` (-1 for a whole GPU), `mode INDEX COMPUTE_MODE`. Returns the length, -1 when it is too long.
 */
EXPORT int sluice_nvml_show(char *text, unsigned size)
{
    CONTROL();
    unsigned at = 0;
#define SAY(...) if ((at += (unsigned)snprintf(text + at, size - at, __VA_ARGS__)) >= size) return -1
    for (unsigned n = 0; n < m->gpu_count; n++) {
        const Gpu *gpu = &m->gpus[n];
        SAY("mode %u %u\n", n, gpu->compute_mode);
        for (const Gi *gi = gpu->gis; gi < gpu->gis + GIS_MAX; gi++) {
            if (!gi->used) continue;
            SAY("gi %u %u %s %u %u\n", n, gi->id, MODELS[gpu->model].rows[gi->row].name, gi->start, gi->size);
            for (const Ci *ci = gi->cis; ci < gi->cis + CIS_MAX; ci++)
                if (ci->used) { SAY("ci %u %u %u %s\n", n, gi->id, ci->id, ci->uuid); }
        }
    }
    for (const Process *process = m->processes; process < m->processes + PROCESSES_MAX; process++)
        if (machine_lives(process)) { SAY("process %u %d %d %u\n", process->gpu, (int)process->gi, (int)process->ci, process->pid); }
    return (int)at;
}
