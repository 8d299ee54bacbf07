#define _GNU_SOURCE
#include "driver.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "settings.h"
#include "symbols.h"

#define AS_DECLARATION(name, since, symbol) extern int symbol(void);
#define AS_ENTRY(name, since, symbol) {#name, #symbol, since, (void *)symbol},
#define AS_NAME(symbol) {#symbol, #symbol, 0, NULL},

/* Only their addresses are taken here; what they take and answer is said where they are defined. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wredundant-decls"
HOOKS(AS_DECLARATION)
HOOKS_PER_THREAD(AS_DECLARATION)
#pragma GCC diagnostic pop

static const struct {
    const char *name, *symbol;
    int since;
    void *hook;
} known[DRIVER_COUNT] = {
    HOOKS(AS_ENTRY) HOOKS_PER_THREAD(AS_ENTRY)[HOOK_COUNT] = {NULL, NULL, 0, NULL},
    CALLS(AS_NAME)
};

enum { FIRST_PER_THREAD = DRIVER_cuLaunchKernel_ptsz };

static _Atomic(void *) addresses[DRIVER_COUNT];
static _Atomic(find_function) libc_dlsym;

find_function driver_dlsym(void)
{
    find_function found = atomic_load_explicit(&libc_dlsym, memory_order_acquire);
    if (found == NULL) {
        found = (find_function)symbol_in("libc.so", "dlsym");
        if (found == NULL) found = (find_function)symbol_in("libdl.so", "dlsym"); /* before glibc 2.34 */
        if (found == NULL) found = (find_function)symbol_in("", "dlsym");
        atomic_store_explicit(&libc_dlsym, found, memory_order_release);
    }
    return found;
}

void *driver_function(enum driver which)
{
    void *address = atomic_load_explicit(&addresses[which], memory_order_acquire);
    if (address != NULL) return address;
    /* Another library between us and the driver comes first; a driver that was loaded privately is found last. */
    find_function find = driver_dlsym();
    if (find != NULL) address = find(RTLD_NEXT, known[which].symbol);
    if (address == NULL || address == known[which].hook) address = symbol_in("libcuda.so", known[which].symbol);
    if (address != NULL) atomic_store_explicit(&addresses[which], address, memory_order_release);
    return address;
}

static int index_of(const char *symbol)
{
    for (int i = 0; i < HOOK_COUNT; i++)
        if (strcmp(known[i].symbol, symbol) == 0) return i;
    return -1;
}

void driver_saw(const char *symbol, void *address)
{
    void *nothing = NULL;
    int which = index_of(symbol);
    if (which >= 0 && address != known[which].hook)
        atomic_compare_exchange_strong(&addresses[which], &nothing, address);
}

void *driver_hook(const char *symbol, void *address)
{
    if (symbol[0] != 'c' || symbol[1] != 'u' || address == NULL) return address;
    int which = index_of(symbol);
    if (which < 0) return address;
    driver_saw(symbol, address);
    return known[which].hook;
}

/* Whether the driver has a newer function of this name, and that is what it gave: we do not know what that takes. */
static int is_newer(int which, void *address)
{
    char next[80];
    const char *symbol = known[which].symbol;
    const char *end = which >= FIRST_PER_THREAD ? "_ptsz" : "";
    const char *suffix = strstr(symbol, "_v");
    int version = suffix != NULL ? suffix[2] - '0' : 1;
    snprintf(next, sizeof next, "%s_v%d%s", known[which].name, version + 1, end);
    return symbol_in("libcuda.so", next) == address;
}

void *driver_hook_of_version(const char *name, int cuda_version, int per_thread, void *address)
{
    int best = -1;
    if (name[0] != 'c' || name[1] != 'u' || address == NULL) return address;
    for (int i = 0; i < HOOK_COUNT; i++) {
        if ((i >= FIRST_PER_THREAD && !per_thread) || known[i].since > cuda_version || strcmp(known[i].name, name) != 0)
            continue;
        int better = best < 0 || (i >= FIRST_PER_THREAD) > (best >= FIRST_PER_THREAD) ||
                     known[i].since > known[best].since;
        if (better) best = i;
    }
    /* Some ask by the exported name. */
    if (best < 0) return strchr(name, '_') != NULL ? driver_hook(name, address) : address;
    if (address == known[best].hook) return address;
    if (is_newer(best, address)) {
        say(1, "%s of CUDA %d is newer than this library: it goes straight through, without quota", name, cuda_version);
        return address;
    }
    driver_saw(known[best].symbol, address);
    return known[best].hook;
}
