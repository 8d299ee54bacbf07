/*
 * NVML's calls about what devices are used for: utilisation of GPUs and processes, and GPM.
 *
 * As strict as the NVML API reference: nothing of the first two in MIG mode; GPM from Hopper on, of GPU instances by a
 * call of its own, and told as the difference of two samples of one device.
 */
#include "machine.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { GPM_MAGIC = 0x47504d31, FIRST_WITH_GPM = 9 };

typedef struct { unsigned magic, taken, gpu, gi, epoch, busy, sms; } GpmSample;

static uint64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static unsigned at_most(unsigned value, unsigned most) { return value < most ? value : most; }

/* The processes of one device, or of all of a GPU when `gi` is NO_INSTANCE. */
static int is_on(const Process *process, unsigned gpu, unsigned gi)
{
    return process->used && machine_lives(process) && process->gpu == gpu && (gi == NO_INSTANCE || process->gi == gi);
}

unsigned machine_memory_used_mib(const Machine *m, unsigned gpu, unsigned gi)
{
    unsigned used = 0;
    for (const Process *process = m->processes; process < m->processes + PROCESSES_MAX; process++)
        if (is_on(process, gpu, gi)) used += process->memory_mib;
    return used;
}

static void sums(const Machine *m, unsigned gpu, unsigned gi, unsigned *busy, unsigned *sms)
{
    *busy = *sms = 0;
    for (const Process *process = m->processes; process < m->processes + PROCESSES_MAX; process++) {
        if (!is_on(process, gpu, gi)) continue;
        *busy = at_most(*busy + process->busy, 100);
        *sms = at_most(*sms + process->busy * process->sms / 100, 100);
    }
}

EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(Handle device, Utilization *rates)
{
    ENTER();
    Gpu *gpu;
    int code = find_gpu(m, device, &gpu);
    if (code != OK) return code == INVALID_ARGUMENT ? NOT_SUPPORTED : code; /* also of a MIG device */
    if (rates == NULL) return INVALID_ARGUMENT;
    if (gpu->mig) return NOT_SUPPORTED;
    unsigned sms;
    sums(m, number_of(m, gpu), NO_INSTANCE, &rates->gpu, &sms);
    rates->memory = rates->gpu;
    return OK;
}

EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(
    Handle device, ProcessUtilization *samples, unsigned *count, unsigned long long since_us)
{
    ENTER();
    Gpu *gpu;
    int code = find_gpu(m, device, &gpu);
    if (code != OK) return code == INVALID_ARGUMENT ? NOT_SUPPORTED : code;
    if (count == NULL) return INVALID_ARGUMENT;
    if (gpu->mig) return NOT_SUPPORTED;
    uint64_t now = now_us();
    unsigned there = 0, room = samples == NULL ? 0 : *count;
    for (const Process *process = m->processes; process < m->processes + PROCESSES_MAX; process++) {
        if (!is_on(process, number_of(m, gpu), NO_INSTANCE) || process->busy == 0 || now <= since_us) continue;
        if (there < room) samples[there] = (ProcessUtilization){process->pid, now, process->busy, process->busy, 0, 0};
        there++;
    }
    *count = there;
    if (there == 0) return NOT_FOUND;
    return there > room ? INSUFFICIENT_SIZE : OK;
}

static int has_gpm(const Gpu *gpu)
{
    const ModelRow *model = model_of(gpu);
    return model != NULL && model->capability_major >= FIRST_WITH_GPM;
}

EXPORT nvmlReturn_t nvmlGpmQueryDeviceSupport(Handle device, GpmSupport *support)
{
    ENTER();
    Gpu *gpu;
    int code = find_gpu(m, device, &gpu);
    if (code != OK) return code;
    if (support == NULL || support->version != GPM_VERSION) return INVALID_ARGUMENT;
    support->isSupportedDevice = (unsigned)has_gpm(gpu);
    return OK;
}

EXPORT nvmlReturn_t nvmlGpmSampleAlloc(void **out)
{
    ENTER();
    if (out == NULL) return INVALID_ARGUMENT;
    GpmSample *sample = calloc(1, sizeof *sample);
    if (sample == NULL) return INSUFFICIENT_RESOURCES;
    sample->magic = GPM_MAGIC;
    *out = sample;
    return OK;
}

EXPORT nvmlReturn_t nvmlGpmSampleFree(void *freed)
{
    ENTER();
    GpmSample *sample = freed;
    if (sample == NULL || sample->magic != GPM_MAGIC) return INVALID_ARGUMENT;
    sample->magic = 0;
    free(sample);
    return OK;
}

static nvmlReturn_t taken(Machine *m, const Gpu *gpu, unsigned gi, void *into)
{
    GpmSample *sample = into;
    if (sample == NULL || sample->magic != GPM_MAGIC) return INVALID_ARGUMENT;
    if (!has_gpm(gpu)) return NOT_SUPPORTED;
    *sample = (GpmSample){.magic = GPM_MAGIC, .taken = 1, .gpu = number_of(m, gpu), .gi = gi, .epoch = gpu->epoch};
    sums(m, sample->gpu, gi, &sample->busy, &sample->sms);
    return OK;
}

EXPORT nvmlReturn_t nvmlGpmSampleGet(Handle device, void *sample)
{
    ENTER();
    Gpu *gpu;
    int code = find_gpu(m, device, &gpu);
    if (code != OK) return code;
    return gpu->mig ? NOT_SUPPORTED : taken(m, gpu, NO_INSTANCE, sample);
}

EXPORT nvmlReturn_t nvmlGpmMigSampleGet(Handle device, unsigned gi, void *sample)
{
    ENTER();
    Gpu *gpu;
    int code = find_gpu(m, device, &gpu);
    if (code != OK) return code;
    if (!gpu->mig) return NOT_SUPPORTED;
    for (const Gi *each = gpu->gis; each < gpu->gis + GIS_MAX; each++)
        if (each->used && each->id == gi) return taken(m, gpu, gi, sample);
    return INVALID_ARGUMENT;
}

EXPORT nvmlReturn_t nvmlGpmMetricsGet(GpmMetricsGet *asked)
{
    ENTER();
    if (asked == NULL || asked->version != GPM_VERSION) return INVALID_ARGUMENT;
    const GpmSample *before = asked->sample1, *now = asked->sample2;
    if (before == NULL || now == NULL || before == now || before->magic != GPM_MAGIC || now->magic != GPM_MAGIC)
        return INVALID_ARGUMENT;
    if (!before->taken || !now->taken || before->gpu != now->gpu || before->gi != now->gi || before->epoch != now->epoch)
        return INVALID_ARGUMENT;
    for (unsigned n = 0; n < asked->numMetrics; n++) {
        GpmMetric *metric = &asked->metrics[n];
        int known = metric->metricId == GPM_GRAPHICS_UTIL || metric->metricId == GPM_SM_UTIL ||
                    metric->metricId == GPM_DRAM_BW_UTIL;
        metric->nvmlReturn = known ? OK : NOT_SUPPORTED;
        metric->value = metric->metricId == GPM_SM_UTIL ? now->sms : now->busy;
    }
    return OK;
}
