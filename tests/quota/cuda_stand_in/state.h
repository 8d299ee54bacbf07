/* What the stand-in knows of handles, shared by its parts. A handle that is none of ours is refused, as by a driver. */
#ifndef STAND_IN_STATE_H
#define STAND_IN_STATE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "api.h"

enum { DEVICES = 2, NODES = 1024 };
enum capture { NOT_CAPTURING, CAPTURING, INVALIDATED };

struct context {
    uint32_t is; /* IS_CONTEXT while it is alive */
    CUdevice device;
    int holders; /* of a primary one */
    struct stream *streams;
    struct stream *standard; /* the default stream */
    struct context *next;
};

struct node {
    int64_t duration_ns;
    int width;
};

struct graph {
    uint32_t is;
    int count;
    struct node node[NODES];
};

struct graph_exec {
    uint32_t is;
    int count;
    struct node node[NODES];
};

struct stream {
    uint32_t is;
    int lane;
    struct context *context;
    struct stream *next;
    enum capture capture;
    pthread_t captured_by;
    struct graph *graph;
};

enum { IS_CONTEXT = 0x43545854, IS_STREAM, IS_EVENT, IS_MODULE, IS_FUNCTION, IS_GRAPH, IS_EXEC, IS_ARRAY };

extern pthread_mutex_t state_lock;

/* CUDA_SUCCESS when this process has called cuInit itself: what a parent initialised, its child has not. */
CUresult ready(void);

struct context *current(void);

/* Whether this is a live object of that kind. */
bool is_a(const void *handle, uint32_t kind);

/* The stream that a handle means in this thread, or NULL. `own`: NULL means the thread's own. */
struct stream *meant(CUstream handle, bool own);

#endif
