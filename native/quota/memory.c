#define _GNU_SOURCE
#include "memory.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "keeper.h"
#include "settings.h"
#include "where.h"

enum { SLOTS_FIRST = 1024 };

struct allocation {
    enum holding holding; /* 0: a free place */
    unsigned holders;
    uint64_t handle, bytes;
    CUcontext context; /* whose end frees it; NULL: none's */
    CUdevice device;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct allocation *slots; /* open addressing, a power of two of them, at most half full */
static size_t size, taken;
static uint64_t used;
static _Atomic uint64_t limit;

static size_t place(const struct allocation *in, size_t count, enum holding holding, uint64_t handle)
{
    uint64_t mixed = (handle ^ (uint64_t)holding) * 0x9E3779B97F4A7C15ULL;
    size_t at = (size_t)(mixed >> 20) & (count - 1);
    while (in[at].holding != 0 && (in[at].holding != holding || in[at].handle != handle)) at = (at + 1) & (count - 1);
    return at;
}

static bool grow(void)
{
    size_t wider = size == 0 ? SLOTS_FIRST : 2 * size;
    struct allocation *new = calloc(wider, sizeof *new);
    if (new == NULL) return false;
    for (size_t i = 0; i < size; i++)
        if (slots[i].holding != 0) new[place(new, wider, slots[i].holding, slots[i].handle)] = slots[i];
    free(slots);
    slots = new;
    size = wider;
    return true;
}

/* Takes one out, and moves up those that had to step aside for it. */
static void take_out(size_t at)
{
    used -= slots[at].bytes < used ? slots[at].bytes : used;
    slots[at].holding = 0;
    taken--;
    for (size_t next = (at + 1) & (size - 1); slots[next].holding != 0; next = (next + 1) & (size - 1)) {
        struct allocation moved = slots[next];
        slots[next].holding = 0;
        slots[place(slots, size, moved.holding, moved.handle)] = moved;
    }
}

void memory_limit(uint64_t bytes)
{
    atomic_store(&limit, bytes);
}

uint64_t memory_limited_to(void)
{
    keeper_wait_for_welcome();
    return atomic_load(&limit);
}

uint64_t memory_used(void)
{
    pthread_mutex_lock(&lock);
    uint64_t now = used;
    pthread_mutex_unlock(&lock);
    return now;
}

bool memory_reserve(uint64_t bytes)
{
    uint64_t most = memory_limited_to();
    pthread_mutex_lock(&lock);
    bool fits = most == 0 || (bytes <= most && used <= most - bytes);
    if (fits) used += bytes;
    uint64_t now = used;
    pthread_mutex_unlock(&lock);
    if (!fits)
        say(2, "an allocation of %llu bytes is refused: %llu of %llu are in use", (unsigned long long)bytes,
            (unsigned long long)now, (unsigned long long)most);
    return fits;
}

void memory_unreserve(uint64_t bytes)
{
    pthread_mutex_lock(&lock);
    used -= bytes < used ? bytes : used;
    pthread_mutex_unlock(&lock);
}

void memory_holds(enum holding holding, uint64_t handle, uint64_t bytes)
{
    CUdevice device = -1;
    CUresult (*device_of)(CUdevice *) = driver_function(DRIVER_cuCtxGetDevice);
    CUcontext context = where_context();
    if (context == NULL || device_of == NULL || device_of(&device) != CUDA_SUCCESS) device = -1;
    pthread_mutex_lock(&lock);
    if (2 * (taken + 1) <= size || grow()) {
        size_t at = place(slots, size, holding, handle);
        if (slots[at].holding != 0) take_out(at), at = place(slots, size, holding, handle); /* freed behind our back */
        slots[at] = (struct allocation){.holding = holding,
                                        .holders = 1,
                                        .handle = handle,
                                        .bytes = bytes,
                                        .context = holding == A_PHYSICAL ? NULL : context,
                                        .device = device};
        taken++;
    } else {
        used -= bytes < used ? bytes : used; /* the program is out of memory; it is not made worse */
    }
    pthread_mutex_unlock(&lock);
}

void memory_holds_again(enum holding holding, uint64_t handle)
{
    pthread_mutex_lock(&lock);
    size_t at = size != 0 ? place(slots, size, holding, handle) : 0;
    if (size != 0 && slots[at].holding != 0) slots[at].holders++;
    pthread_mutex_unlock(&lock);
}

void memory_frees(enum holding holding, uint64_t handle)
{
    pthread_mutex_lock(&lock);
    size_t at = size != 0 ? place(slots, size, holding, handle) : 0;
    if (size != 0 && slots[at].holding != 0 && --slots[at].holders == 0) take_out(at);
    pthread_mutex_unlock(&lock);
}

static void end_of(CUcontext context, CUdevice device)
{
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < size;) {
        const struct allocation *there = &slots[i];
        bool goes = there->holding != 0 && there->context != NULL &&
                    (context != NULL ? there->context == context : there->device == device);
        if (goes)
            take_out(i); /* another may have moved up to here: the place is looked at again */
        else
            i++;
    }
    pthread_mutex_unlock(&lock);
}

void memory_context_ends(CUcontext context)
{
    if (context != NULL) end_of(context, -1);
}

void memory_device_ends(CUdevice device)
{
    end_of(NULL, device);
}

void memory_before_fork(void)
{
    pthread_mutex_lock(&lock);
}

void memory_after_fork(bool child)
{
    if (!child) {
        pthread_mutex_unlock(&lock);
        return;
    }
    pthread_mutex_init(&lock, NULL);
    if (size != 0) memset(slots, 0, size * sizeof *slots);
    taken = 0;
    used = 0;
    atomic_store(&limit, 0);
}
