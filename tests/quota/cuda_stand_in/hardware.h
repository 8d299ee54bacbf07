/*
 * The simulated device: what every process has queued on it, and what it has done. In a file that all of them map.
 *
 * It runs by the clock, without a thread: the next query plays all that has happened since the last look, in
 * its order and at its exact times. So how busy the device was does not depend on when a process got a processor, and
 * a kernel costs no processor time.
 *
 * It is also the judge of what the quota did, and knows nothing of quotas.
 */
#ifndef STAND_IN_HARDWARE_H
#define STAND_IN_HARDWARE_H

#include <stdbool.h>
#include <stdint.h>

enum { CLIENTS = 160, LANES = 12, DEPTH = 256, NAME_BYTES = 32 };

/* What one process did on the device, as the judge reads it. */
struct done {
    char name[NAME_BYTES];
    int32_t pid;
    int32_t alive;
    int64_t busy_ns;  /* its kernels' time */
    int64_t kernels;  /* finished */
    int64_t pending;  /* queued or running */
};

struct seen {
    int64_t now_ns;
    int64_t busy_ns;  /* during which any kernel ran */
    int64_t over_ns;  /* during which those that ran were wider than the device: never, or the stand-in is wrong */
    int32_t clients;
    int32_t widest;   /* most percent in use at once */
    struct done client[CLIENTS];
};

/* Makes this process a client, of STAND_IN_NAME and as wide as CUDA_MPS_ACTIVE_THREAD_PERCENTAGE. False: no place. */
bool hardware_attach(void);

/* A lane of one's own: kernels in it run one after the other. -1: there is none left. */
int hardware_lane(void);
void hardware_lane_free(int lane);

/* Queues a kernel; waits while the lane is full, as a launch does. */
void hardware_launch(int lane, int64_t duration_ns, int width);

/* How many kernels the lane has been given, and whether so many have been done. */
uint64_t hardware_given(int lane);
bool hardware_has_done(int lane, uint64_t count);
void hardware_wait(int lane, uint64_t count);

/* Device memory of the whole device. False: there is not so much. Negative gives back. */
bool hardware_memory(int64_t bytes);
int64_t hardware_memory_left(void);
int64_t hardware_memory_total(void);

/* What has happened so far on the device in the file `path`. 0, or -1. For a judge outside. */
int stand_in_read(const char *path, struct seen *seen);

#endif
