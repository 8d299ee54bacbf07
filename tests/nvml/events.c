/*
 * NVML's event sets: what the driver tells of by itself. A set hears what happens after a device was registered in it.
 */
#include "machine.h"

#include <time.h>

enum { SETS_MAX = 32, KIND_SET = 0x55, LOOK_AGAIN_MS = 5 };

typedef struct { unsigned used; uint64_t next; uint64_t types[GPUS_MAX]; } Set;

static Set sets[SETS_MAX]; /* of this process; guarded by the machine's lock */

static Set *set_of(Handle handle)
{
    unsigned number = (unsigned)handle;
    return handle >> 40 == KIND_SET && number < SETS_MAX && sets[number].used ? &sets[number] : NULL;
}

static uint64_t supported(const Gpu *gpu)
{
    if (gpu->no_events) return 0;
    uint64_t types = EVENT_SINGLE_BIT_ECC | EVENT_DOUBLE_BIT_ECC | EVENT_XID;
    return model_of(gpu) == NULL ? types : types | EVENT_MIG_CONFIG;
}

EXPORT nvmlReturn_t nvmlEventSetCreate(Handle *handle)
{
    ENTER();
    if (handle == NULL) return INVALID_ARGUMENT;
    for (unsigned i = 0; i < SETS_MAX; i++) {
        if (sets[i].used) continue;
        sets[i] = (Set){.used = 1, .next = m->event_count};
        *handle = (Handle)KIND_SET << 40 | i;
        return OK;
    }
    return UNKNOWN;
}

EXPORT nvmlReturn_t nvmlEventSetFree(Handle handle)
{
    ENTER();
    Set *set = set_of(handle);
    if (set == NULL) return INVALID_ARGUMENT;
    set->used = 0;
    return OK;
}

EXPORT nvmlReturn_t nvmlDeviceGetSupportedEventTypes(Handle device, uint64_t *types)
{
    ENTER();
    Gpu *gpu;
    int code = find_gpu(m, device, &gpu);
    if (code != OK) return code;
    if (types == NULL) return INVALID_ARGUMENT;
    *types = supported(gpu);
    return OK;
}

EXPORT nvmlReturn_t nvmlDeviceRegisterEvents(Handle device, uint64_t types, Handle handle)
{
    ENTER();
    Gpu *gpu;
    int code = find_gpu(m, device, &gpu);
    if (code != OK) return code;
    Set *set = set_of(handle);
    if (set == NULL || types == 0) return INVALID_ARGUMENT;
    if (types & ~supported(gpu)) return NOT_SUPPORTED;
    set->types[number_of(m, gpu)] |= types;
    return OK;
}

static uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static nvmlReturn_t next_event(Machine *m, Handle handle, EventData *data)
{
    Set *set = set_of(handle);
    if (set == NULL || data == NULL) return INVALID_ARGUMENT;
    if (m->event_count > EVENTS_MAX && set->next < m->event_count - EVENTS_MAX) set->next = m->event_count - EVENTS_MAX;
    while (set->next < m->event_count) {
        const Event *event = &m->events[set->next++ % EVENTS_MAX];
        if (!(set->types[event->gpu] & event->type)) continue;
        *data = (EventData){handle_of_gpu(m, &m->gpus[event->gpu]), event->type, event->data, event->gi, event->ci};
        return OK;
    }
    return TIMEOUT;
}

EXPORT nvmlReturn_t nvmlEventSetWait_v2(Handle handle, EventData *data, unsigned timeout_ms)
{
    uint64_t until = now_ms() + timeout_ms;
    for (;;) {
        int code = OK;
        Machine *m = machine_enter(__func__, &code);
        if (m == NULL) return code;
        code = next_event(m, handle, data);
        machine_leave(&m);
        if (code != TIMEOUT || now_ms() >= until) return code;
        machine_sleep_ms(LOOK_AGAIN_MS);
    }
}
