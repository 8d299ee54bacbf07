/*
 * One machine's GPUs: what is on them, who holds them, what goes wrong. All processes that name one state file see one
 * machine, and it outlives them, as hardware does.
 *
 * The state is plain data in a shared mapping under one robust mutex. A holder may be killed at any instruction: what
 * makes an entry count (`used`) is therefore written last when it comes and first when it goes.
 */
#ifndef SLUICE_NVML_MACHINE_H
#define SLUICE_NVML_MACHINE_H

#include <pthread.h>

#include "abi.h"
#include "tables.h" /* generated: MODELS, of ModelRow and ProfileRow */

enum { GPUS_MAX = 16, GIS_MAX = 8, CIS_MAX = 8, PROCESSES_MAX = 512, EVENTS_MAX = 256, FAILURES_MAX = 16 };
enum { UUID_SIZE = 80, NAME_SIZE = 96 };
enum { NO_LINK = -1, TO_SWITCH = -2 };

typedef struct {
    unsigned used, id, serial, profile, slices, start, multiprocessors, mig_index;
    char uuid[UUID_SIZE];
} Ci;

typedef struct {
    unsigned used, id, serial, row, start, size;
    Ci cis[CIS_MAX];
} Gi;

typedef struct {
    unsigned model;      /* index in MODELS, or NO_INSTANCE for a model that has no MIG */
    unsigned mig, mig_pending, compute_mode, lost, no_events, epoch;
    int numa_node;       /* -1: none */
    unsigned flips;      /* which halves are swapped in the tree of instance ids */
    unsigned memory_mib, multiprocessors, pci_device_id, bus;
    uint64_t ecc_uncorrected;
    unsigned recovery;      /* the action that the driver asks for; NO_INSTANCE: it cannot tell */
    int links[NVLINKS_MAX]; /* index of the GPU at the other end; NO_LINK; TO_SWITCH */
    char uuid[UUID_SIZE], name[NAME_SIZE];
    Gi gis[GIS_MAX];
} Gpu;

enum { COMPUTE = 0, MPS_CLIENT = 1, GRAPHICS = 2 };

typedef struct {
    unsigned used, pid, real, kind, gpu, gi, ci; /* ids; NO_INSTANCE: on the whole GPU */
    uint64_t started_at;                         /* of a real process, in clock ticks since boot */
    unsigned memory_mib, busy, sms;              /* what it holds; percent of the time, and of the SMs meanwhile */
    char name[NAME_SIZE];
} Process;

typedef struct { unsigned gpu, gi, ci; uint64_t type, data; } Event;
typedef struct { char symbol[64]; int code; unsigned times; } Failure;

typedef struct {
    unsigned in_use_times, insufficient, ci_fails, slow_ms, no_permission, init_error, stable_uuids, gi_holds, parent_in_ci_info;
} Faults;

typedef struct {
    unsigned magic, size;
    pthread_mutex_t lock;
    unsigned gpu_count, serial, cuda_version;
    char driver_version[NAME_SIZE];
    uint64_t random, event_count;
    Faults faults;
    Gpu gpus[GPUS_MAX];
    Process processes[PROCESSES_MAX];
    Event events[EVENTS_MAX]; /* a ring: event n is at n % EVENTS_MAX */
    Failure failures[FAILURES_MAX];
} Machine;

/* The entry counts from now on, and not before all of it is written; or not any more. */
#define COUNTS(entry) __atomic_store_n(&(entry)->used, 1, __ATOMIC_RELEASE)
#define COUNTS_NOT(entry) __atomic_store_n(&(entry)->used, 0, __ATOMIC_RELEASE)

/* machine.c */
Machine *machine_attach(void);
Machine *machine_enter(const char *symbol, int *refusal);
Machine *machine_enter_control(void);
void machine_leave(Machine **machine);
void machine_sleep_ms(unsigned ms);
uint64_t machine_random(Machine *m);
void machine_tell(Machine *m, unsigned gpu, unsigned gi, unsigned ci, uint64_t type, uint64_t data);
void machine_clear_gpu(Machine *m, Gpu *gpu);
unsigned machine_holders(Machine *m, unsigned gpu, unsigned gi, unsigned ci);
int machine_forbids(Machine *m);
unsigned machine_memory_used_mib(const Machine *m, unsigned gpu, unsigned gi);
int machine_lives(const Process *process);
uint64_t machine_started_at(unsigned pid);
extern int machine_initialised;

/* Every exported NVML function begins with this: `m` is the locked machine, unlocked when the function ends. */
#define ENTER()                                                                                       \
    int refusal_ = OK;                                                                                \
    Machine *m __attribute__((cleanup(machine_leave))) = machine_enter(__func__, &refusal_);          \
    if (m == NULL) return refusal_

#define CONTROL()                                                                                     \
    Machine *m __attribute__((cleanup(machine_leave))) = machine_enter_control();                     \
    if (m == NULL) return -1

/* handles.c: a handle names its thing by numbers that are never used again, so a stale one is noticed. */
typedef struct { Gpu *gpu; Gi *gi; Ci *ci; } Target;
Handle handle_of_gpu(const Machine *m, const Gpu *gpu);
Handle handle_of_gi(const Machine *m, const Gpu *gpu, const Gi *gi);
Handle handle_of_ci(const Machine *m, const Gpu *gpu, const Ci *ci);
Handle handle_of_mig(const Machine *m, const Gpu *gpu, const Ci *ci);
int find_device(Machine *m, Handle handle, Target *target); /* GPU or MIG device */
int find_gpu(Machine *m, Handle handle, Gpu **gpu);         /* GPU only */
int find_gi(Machine *m, Handle handle, Target *target);
int find_ci(Machine *m, Handle handle, Target *target);
int copy_text(char *buffer, unsigned length, const char *text);
unsigned number_of(const Machine *m, const Gpu *gpu);

/* rules.c: what the hardware allows. */
const ModelRow *model_of(const Gpu *gpu);
const ProfileRow *row_by_id(const ModelRow *model, unsigned id);
const ProfileRow *row_by_enum(const ModelRow *model, unsigned number);
int room_for(const Gpu *gpu, const ProfileRow *row, unsigned start, unsigned size);
unsigned more_of(const Gpu *gpu, const ProfileRow *row);
unsigned gi_id_at(const Gpu *gpu, unsigned start, unsigned size);
typedef struct { unsigned id, slices, multiprocessors, most; } CiRow;
int ci_row(const Gpu *gpu, const Gi *gi, unsigned profile, CiRow *row);
int ci_room_for(const Gi *gi, unsigned gi_slices, unsigned slices, unsigned *start);

#endif
