#define _GNU_SOURCE
#include "hardware.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MAGIC = 0x53484457, WIDTH = 100 };
static const int64_t MEMORY_BYTES = 8LL << 30;
static const int64_t ROLL_CALL_NS = 5000000, LOOK_AGAIN_NS = 5000000, LOOK_SOON_NS = 20000;

struct job {
    int64_t duration_ns, ready_ns;
    int width;
};

struct lane {
    int taken, running;
    uint64_t given, done;
    int64_t ends_ns;
    struct job job[DEPTH];
};

struct client {
    int used, alive, pid, width;
    char name[NAME_BYTES];
    int64_t busy_ns, kernels, pending, memory;
    struct lane lane[LANES];
};

struct device {
    uint32_t magic;
    pthread_mutex_t lock;
    int64_t now_ns, busy_ns, over_ns, called_ns, memory;
    int width, widest, clients;
    struct client client[CLIENTS];
};

static struct device *device;
static int device_file = -1, self = -1;

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void begin(struct device *d)
{
    pthread_mutexattr_t kind;
    memset(d, 0, sizeof *d);
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&d->lock, &kind);
    d->now_ns = now_ns();
    d->magic = MAGIC;
}

static struct device *map_device(const char *path, int *file)
{
    *file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (*file < 0) return NULL;
    struct device *d = NULL;
    struct stat found;
    flock(*file, LOCK_EX);
    if (fstat(*file, &found) == 0 && (found.st_size != 0 || ftruncate(*file, sizeof *d) == 0))
        d = mmap(NULL, sizeof *d, PROT_READ | PROT_WRITE, MAP_SHARED, *file, 0);
    if (d == MAP_FAILED || (found.st_size != 0 && (size_t)found.st_size != sizeof *d)) d = NULL;
    if (d != NULL && d->magic != MAGIC) begin(d);
    flock(*file, LOCK_UN);
    return d;
}

static void end_job(struct device *d, struct client *c, struct lane *l, bool finished)
{
    struct job *job = &l->job[l->done % DEPTH];
    d->width -= job->width;
    l->running = 0;
    if (!finished) return;
    c->kernels++;
    c->pending--;
    l->done++;
    struct job *next = &l->job[l->done % DEPTH];
    if (l->done < l->given && next->ready_ns < l->ends_ns) next->ready_ns = l->ends_ns;
}

/* A process's queue ends with it. Its lock on its own byte of the file is what says that it lives. */
static void roll_call(struct device *d, int file)
{
    for (int i = 0; i < d->clients; i++) {
        struct client *c = &d->client[i];
        struct flock byte = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = i, .l_len = 1};
        if (!c->alive || i == self) continue;
        if (fcntl(file, F_GETLK, &byte) != 0 || byte.l_type != F_UNLCK) continue;
        for (int j = 0; j < LANES; j++) {
            if (c->lane[j].running) end_job(d, c, &c->lane[j], false);
            c->lane[j].done = c->lane[j].given;
        }
        d->memory -= c->memory;
        c->alive = 0;
        c->pending = 0;
        c->memory = 0;
    }
}

/* Starts what fits, the longest waiting first. */
static void start_what_fits(struct device *d)
{
    for (;;) {
        struct client *client = NULL;
        struct lane *lane = NULL;
        for (int i = 0; i < d->clients; i++) {
            struct client *c = &d->client[i];
            for (int j = 0; j < LANES && c->pending > 0; j++) {
                struct lane *l = &c->lane[j];
                if (l->running || l->done == l->given) continue;
                struct job *job = &l->job[l->done % DEPTH];
                if (d->width + job->width > WIDTH || job->ready_ns > d->now_ns) continue;
                if (lane == NULL || job->ready_ns < lane->job[lane->done % DEPTH].ready_ns) client = c, lane = l;
            }
        }
        if (lane == NULL || client == NULL) return;
        struct job *job = &lane->job[lane->done % DEPTH];
        lane->running = 1;
        lane->ends_ns = d->now_ns + job->duration_ns;
        d->width += job->width;
        if (d->width > d->widest) d->widest = d->width;
    }
}

static void pass(struct device *d, int64_t until)
{
    int64_t span = until - d->now_ns;
    if (d->width > 0) d->busy_ns += span;
    if (d->width > WIDTH) d->over_ns += span;
    for (int i = 0; i < d->clients && d->width > 0; i++) {
        int running = 0;
        for (int j = 0; j < LANES && d->client[i].pending > 0; j++) running |= d->client[i].lane[j].running;
        if (running) d->client[i].busy_ns += span;
    }
    d->now_ns = until;
}

/* Plays what has happened until now. */
static void play(struct device *d, int file)
{
    int64_t now = now_ns();
    if (now - d->called_ns >= ROLL_CALL_NS) {
        roll_call(d, file);
        d->called_ns = now;
    }
    for (;;) {
        struct client *client = NULL;
        struct lane *lane = NULL;
        start_what_fits(d);
        for (int i = 0; i < d->clients; i++)
            for (int j = 0; j < LANES && d->client[i].pending > 0; j++) {
                struct lane *l = &d->client[i].lane[j];
                if (l->running && l->ends_ns <= now && (lane == NULL || l->ends_ns < lane->ends_ns))
                    client = &d->client[i], lane = l;
            }
        if (lane == NULL || client == NULL) break;
        pass(d, lane->ends_ns);
        end_job(d, client, lane, true);
    }
    if (now > d->now_ns) pass(d, now);
}

static void lock(struct device *d)
{
    if (pthread_mutex_lock(&d->lock) == EOWNERDEAD) pthread_mutex_consistent(&d->lock);
}

static struct client *enter(void)
{
    lock(device);
    play(device, device_file);
    return &device->client[self];
}

static void leave(void)
{
    pthread_mutex_unlock(&device->lock);
}

bool hardware_attach(void)
{
    const char *path = getenv("STAND_IN_DEVICE"), *name = getenv("STAND_IN_NAME");
    const char *width = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
    if (path == NULL) return false;
    device = map_device(path, &device_file);
    if (device == NULL) return false;
    lock(device);
    play(device, device_file);
    if (device->clients < CLIENTS) {
        self = device->clients;
        struct flock byte = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = self, .l_len = 1};
        struct client *c = &device->client[self];
        memset(c, 0, sizeof *c);
        c->width = width != NULL && atoi(width) > 0 && atoi(width) <= WIDTH ? atoi(width) : WIDTH;
        c->pid = getpid();
        snprintf(c->name, sizeof c->name, "%s", name != NULL ? name : "");
        if (fcntl(device_file, F_SETLK, &byte) == 0) {
            c->used = c->alive = 1;
            device->clients++;
        } else {
            self = -1;
        }
    }
    leave();
    return self >= 0;
}

int hardware_lane(void)
{
    struct client *c = enter();
    int found = -1;
    for (int i = 0; i < LANES && found < 0; i++)
        if (!c->lane[i].taken && c->lane[i].done == c->lane[i].given) found = i;
    if (found >= 0) c->lane[found].taken = 1;
    leave();
    return found;
}

void hardware_lane_free(int lane)
{
    enter()->lane[lane].taken = 0;
    leave();
}

/* Sleeps until `ends_ns` at most; from time to time others' ends let something begin earlier or later. */
static void nap(int64_t ends_ns)
{
    int64_t most = now_ns() + LOOK_AGAIN_NS, least = now_ns() + LOOK_SOON_NS;
    int64_t until = ends_ns < most ? ends_ns : most;
    if (until < least) until = least;
    struct timespec at = {.tv_sec = until / 1000000000, .tv_nsec = until % 1000000000};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
}

/* When so many can be done at the soonest: one after the other, if no other work is in the way. */
static int64_t soonest(const struct lane *l, uint64_t count)
{
    int64_t at = l->running ? l->ends_ns : device->now_ns;
    for (uint64_t i = l->done + (l->running ? 1 : 0); i < count && i < l->given; i++)
        at += l->job[i % DEPTH].duration_ns;
    return at;
}

void hardware_wait(int lane, uint64_t count)
{
    for (;;) {
        struct client *c = enter();
        bool over = c->lane[lane].done >= count;
        int64_t at = soonest(&c->lane[lane], count);
        leave();
        if (over) return;
        nap(at);
    }
}

void hardware_launch(int lane, int64_t duration_ns, int width)
{
    for (;;) {
        struct client *c = enter();
        struct lane *l = &c->lane[lane];
        bool fits = l->given - l->done < DEPTH;
        if (fits) {
            l->job[l->given % DEPTH] = (struct job){duration_ns, device->now_ns, width < c->width ? width : c->width};
            l->given++;
            c->pending++;
        }
        int64_t at = fits ? 0 : soonest(l, l->done + DEPTH / 4);
        leave();
        if (fits) return;
        nap(at);
    }
}

uint64_t hardware_given(int lane)
{
    uint64_t given = enter()->lane[lane].given;
    leave();
    return given;
}

bool hardware_has_done(int lane, uint64_t count)
{
    bool done = enter()->lane[lane].done >= count;
    leave();
    return done;
}

bool hardware_memory(int64_t bytes)
{
    struct client *c = enter();
    bool fits = device->memory + bytes <= MEMORY_BYTES;
    if (fits) device->memory += bytes, c->memory += bytes;
    leave();
    return fits;
}

int64_t hardware_memory_left(void)
{
    enter();
    int64_t left = MEMORY_BYTES - device->memory;
    leave();
    return left;
}

int64_t hardware_memory_total(void)
{
    return MEMORY_BYTES;
}

__attribute__((visibility("default"))) int stand_in_read(const char *path, struct seen *seen)
{
    /* Opened once: closing any descriptor of a file gives up a process's locks on it. */
    static struct device *d;
    static int file = -1;
    static char opened[4096];
    if (d == NULL || strcmp(opened, path) != 0) {
        d = map_device(path, &file);
        snprintf(opened, sizeof opened, "%s", path);
    }
    if (d == NULL) return -1;
    lock(d);
    play(d, file);
    memset(seen, 0, sizeof *seen);
    seen->now_ns = d->now_ns;
    seen->busy_ns = d->busy_ns;
    seen->over_ns = d->over_ns;
    seen->clients = d->clients;
    seen->widest = d->widest;
    for (int i = 0; i < d->clients; i++) {
        const struct client *c = &d->client[i];
        struct done *done = &seen->client[i];
        memcpy(done->name, c->name, NAME_BYTES);
        done->pid = c->pid;
        done->alive = c->alive;
        done->busy_ns = c->busy_ns;
        done->kernels = c->kernels;
        done->pending = c->pending;
    }
    pthread_mutex_unlock(&d->lock);
    return 0;
}
