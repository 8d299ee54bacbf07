/*
 * Where the state lives, who may touch it, and what befalls every call alike: locks, injected failures, slowness.
 */
#define _GNU_SOURCE
#include "machine.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MAGIC = 0x534c4e56 };

int machine_initialised = 0; /* how often this process has called nvmlInit and not nvmlShutdown */

static Machine *attached = NULL;
static pthread_mutex_t attaching = PTHREAD_MUTEX_INITIALIZER;

static void begin(Machine *m)
{
    pthread_mutexattr_t kind;
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
    memset(m, 0, sizeof *m);
    pthread_mutex_init(&m->lock, &kind);
    pthread_mutexattr_destroy(&kind);
    m->size = sizeof *m;
    m->serial = 1;
    m->cuda_version = 13000;
    snprintf(m->driver_version, sizeof m->driver_version, "%s", "580.65.06");
    if (getrandom(&m->random, sizeof m->random, 0) != sizeof m->random) m->random = (uint64_t)time(NULL);
    m->magic = MAGIC;
}

/* Maps the file, made when it is not there yet. The file lock keeps two first users apart. */
static Machine *map_file(const char *path)
{
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0) return NULL;
    struct stat found;
    Machine *m = NULL;
    if (flock(file, LOCK_EX) == 0 && fstat(file, &found) == 0) {
        int is_new = found.st_size == 0;
        if (!is_new || ftruncate(file, sizeof(Machine)) == 0)
            m = mmap(NULL, sizeof(Machine), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (m == MAP_FAILED || (!is_new && (size_t)found.st_size != sizeof(Machine))) m = NULL;
        if (m != NULL && m->magic != MAGIC) begin(m);
        flock(file, LOCK_UN); /* closing does not do it: the mapping holds the open file */
    }
    close(file);
    return m;
}

static Machine *map_memory(void)
{
    Machine *m = mmap(NULL, sizeof(Machine), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (m == MAP_FAILED) return NULL;
    begin(m);
    return m;
}

/* Leaves the machine that this process was at. `path` NULL: one of its own, which ends with it. */
EXPORT int sluice_nvml_open(const char *path)
{
    pthread_mutex_lock(&attaching);
    if (attached != NULL) munmap(attached, sizeof(Machine));
    machine_initialised = 0;
    attached = path != NULL && path[0] != 0 ? map_file(path) : map_memory();
    pthread_mutex_unlock(&attaching);
    return attached == NULL ? -1 : 0;
}

Machine *machine_attach(void)
{
    pthread_mutex_lock(&attaching);
    if (attached == NULL) {
        const char *path = getenv("NVML_FOR_TESTS_STATE");
        attached = path != NULL && path[0] != 0 ? map_file(path) : map_memory();
    }
    pthread_mutex_unlock(&attaching);
    return attached;
}

static Machine *locked(void)
{
    Machine *m = machine_attach();
    if (m == NULL) return NULL;
    int code = pthread_mutex_lock(&m->lock);
    if (code == EOWNERDEAD) code = pthread_mutex_consistent(&m->lock);
    return code == 0 ? m : NULL;
}

void machine_leave(Machine **machine)
{
    if (*machine != NULL) pthread_mutex_unlock(&(*machine)->lock);
}

Machine *machine_enter_control(void) { return locked(); }

void machine_sleep_ms(unsigned ms)
{
    struct timespec left = {ms / 1000, (long)(ms % 1000) * 1000000L};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {}
}

static int injected(Machine *m, const char *symbol)
{
    for (int i = 0; i < FAILURES_MAX; i++) {
        Failure *failure = &m->failures[i];
        if (failure->times == 0 || strcmp(failure->symbol, symbol) != 0) continue;
        if (failure->times != NO_INSTANCE) failure->times--;
        return failure->code;
    }
    return OK;
}

/* The machine, locked; or NULL with the code that the call is refused with. Changes to instances take their time. */
Machine *machine_enter(const char *symbol, int *refusal)
{
    Machine *m = machine_attach();
    *refusal = UNKNOWN;
    if (m == NULL) return NULL;
    int changes = strstr(symbol, "Instance") != NULL && (strstr(symbol, "Create") != NULL || strstr(symbol, "Destroy") != NULL);
    if (changes && m->faults.slow_ms > 0) machine_sleep_ms(m->faults.slow_ms);
    m = locked();
    if (m == NULL) return NULL;
    *refusal = injected(m, symbol);
    if (*refusal == OK && machine_initialised <= 0 && strcmp(symbol, "nvmlInitWithFlags") != 0) *refusal = UNINITIALIZED;
    if (*refusal == OK) return m;
    machine_leave(&m);
    return NULL;
}

uint64_t machine_random(Machine *m)
{
    uint64_t x = m->random += 0x9e3779b97f4a7c15u; /* splitmix64 */
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

void machine_tell(Machine *m, unsigned gpu, unsigned gi, unsigned ci, uint64_t type, uint64_t data)
{
    m->events[m->event_count % EVENTS_MAX] = (Event){gpu, gi, ci, type, data};
    m->event_count++;
}

/* Whether this call is refused for lack of rights. */
int machine_forbids(Machine *m)
{
    if (m->faults.no_permission == 0) return 0;
    if (m->faults.no_permission != NO_INSTANCE) m->faults.no_permission--;
    return 1;
}

/* As a reset does: no instance, no process, no handle survives, and ids lie elsewhere afterwards. */
void machine_clear_gpu(Machine *m, Gpu *gpu)
{
    for (int i = 0; i < GIS_MAX; i++) gpu->gis[i].used = 0;
    for (int i = 0; i < PROCESSES_MAX; i++)
        if (m->processes[i].gpu == number_of(m, gpu)) m->processes[i].used = 0;
    gpu->lost = 0;
    gpu->ecc_uncorrected = 0;
    if (gpu->recovery != NO_INSTANCE) gpu->recovery = 0;
    gpu->compute_mode = COMPUTEMODE_DEFAULT;
    gpu->mig = gpu->mig_pending;
    gpu->flips = (unsigned)machine_random(m) & 0x7f;
    gpu->epoch++;
}

/* Field 22 of /proc/<pid>/stat; 0 when the process is gone or a zombie. */
uint64_t machine_started_at(unsigned pid)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    if (length <= 0) return 0;
    text[length] = 0;
    const char *at = strrchr(text, ')');
    if (at == NULL || at[2] == 'Z' || at[2] == 'X') return 0;
    at += 2; /* field 3 */
    for (int field = 3; field < 22; field++) {
        at = strchr(at, ' ');
        if (at == NULL) return 0;
        at++;
    }
    return strtoull(at, NULL, 10);
}

int machine_lives(const Process *process)
{
    if (!process->used) return 0;
    return !process->real || machine_started_at(process->pid) == process->started_at;
}

/* How many processes are on exactly this device; those that died are forgotten. */
unsigned machine_holders(Machine *m, unsigned gpu, unsigned gi, unsigned ci)
{
    unsigned count = 0;
    for (int i = 0; i < PROCESSES_MAX; i++) {
        Process *process = &m->processes[i];
        if (!process->used || process->gpu != gpu || process->gi != gi || process->ci != ci) continue;
        if (machine_lives(process)) count++;
        else process->used = 0;
    }
    return count;
}
