#define _GNU_SOURCE
#include "device.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "capture.h"
#include "clock.h"
#include "driver.h"
#include "settings.h"

enum { CONTEXTS = 64, STREAMS = 256, ROUNDS = 8 };
static const int64_t CAPTURE_WAIT_NS = 500 * 1000000LL, CAPTURE_LOOK_NS = 1000000LL;

struct context {
    CUcontext context;
    CUdevice device; /* -1: not known */
    bool blind;      /* it has work in streams that cannot be looked at one by one */
};

struct stream {
    CUcontext context;
    CUstream stream;
};

struct set {
    int contexts, streams;
    struct context context[CONTEXTS];
    struct stream stream[STREAMS];
};

/* `table` is held for some lines. `usage` is held for as long as a context is in use by the library's own thread, and
 * by the thread that is about to end a context or begin a capture. `usage` is taken first. */
static pthread_mutex_t table = PTHREAD_MUTEX_INITIALIZER, usage = PTHREAD_MUTEX_INITIALIZER;
static struct set touched;
static atomic_ullong generation = 1; /* a new one whenever `touched` loses something */
static _Thread_local struct {
    unsigned long long generation;
    CUcontext context;
    struct where where;
} last_touch;

static struct context *context_in(struct set *set, CUcontext context)
{
    for (int i = 0; i < set->contexts; i++)
        if (set->context[i].context == context) return &set->context[i];
    return NULL;
}

static bool stream_in(const struct set *set, CUcontext context, CUstream stream)
{
    for (int i = 0; i < set->streams; i++)
        if (set->stream[i].context == context && set->stream[i].stream == stream) return true;
    return false;
}

static void add(CUcontext context, CUdevice device, struct where where)
{
    struct context *there = context_in(&touched, context);
    if (there == NULL && touched.contexts == CONTEXTS) {
        say(1, "more than %d contexts are in use at once; what is beyond is not waited for at a token's end", CONTEXTS);
        return;
    }
    if (there == NULL) {
        there = &touched.context[touched.contexts++];
        *there = (struct context){.context = context, .device = device};
    }
    if (where_is_own(where))
        there->blind = true;
    else if (!stream_in(&touched, context, where_handle(where))) {
        if (touched.streams == STREAMS)
            there->blind = true;
        else
            touched.stream[touched.streams++] = (struct stream){context, where_handle(where)};
    }
}

void device_touch(struct where where)
{
    CUcontext current = where_context();
    unsigned long long now = atomic_load(&generation);
    if (current == NULL) return;
    if (last_touch.generation == now && last_touch.context == current && last_touch.where.stream == where.stream &&
        last_touch.where.per_thread == where.per_thread)
        return;
    CUcontext context = current;
    CUdevice device = -1;
    CUresult (*context_of)(CUstream, CUcontext *) = driver_function(DRIVER_cuStreamGetCtx);
    CUresult (*device_of)(CUdevice *) = driver_function(DRIVER_cuCtxGetDevice);
    if (where_is_named(where) && context_of != NULL && context_of(where.stream, &context) != CUDA_SUCCESS)
        context = current;
    if (context == current && device_of != NULL && device_of(&device) != CUDA_SUCCESS) device = -1;
    pthread_mutex_lock(&table);
    now = atomic_load(&generation);
    add(context, device, where);
    pthread_mutex_unlock(&table);
    last_touch.generation = now;
    last_touch.context = current;
    last_touch.where = where;
}

/* Calls `use` with each context of `set` current in this thread. False from `use` ends it. */
static void in_each_context(const struct set *set, bool (*use)(const struct set *, const struct context *, void *),
                            void *data)
{
    CUresult (*push)(CUcontext) = driver_function(DRIVER_cuCtxPushCurrent_v2);
    CUresult (*pop)(CUcontext *) = driver_function(DRIVER_cuCtxPopCurrent_v2);
    CUresult (*exchange)(int *) = driver_function(DRIVER_cuThreadExchangeStreamCaptureMode);
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    if (push == NULL || pop == NULL) return;
    if (exchange != NULL) exchange(&mode); /* else a capture elsewhere in the process forbids this thread to look */
    bool on = true;
    for (int i = 0; i < set->contexts && on; i++) {
        CUcontext popped;
        if (push(set->context[i].context) != CUDA_SUCCESS) continue;
        on = use(set, &set->context[i], data);
        pop(&popped);
    }
    if (exchange != NULL) exchange(&mode);
}

bool device_is_done_there(struct where where)
{
    bool own = where_is_own(where);
    CUresult (*query)(CUstream) = driver_function(own ? DRIVER_cuStreamQuery_ptsz : DRIVER_cuStreamQuery);
    return !capture_is_on() && query != NULL && query(where.stream) == CUDA_SUCCESS;
}

static bool look(const struct set *set, const struct context *context, void *data)
{
    enum busy *busy = data;
    CUresult (*query)(CUstream) = driver_function(DRIVER_cuStreamQuery);
    if (context->blind) *busy = UNKNOWN;
    for (int i = 0; i < set->streams && query != NULL; i++)
        if (set->stream[i].context == context->context && query(set->stream[i].stream) == CUDA_ERROR_NOT_READY) {
            *busy = BUSY;
            return false;
        }
    return true;
}

enum busy device_busy(void)
{
    enum busy busy = IDLE;
    static struct set seen; /* of the library's one thread; too large for a small stack */
    pthread_mutex_lock(&usage);
    pthread_mutex_lock(&table);
    seen = touched;
    pthread_mutex_unlock(&table);
    if (capture_is_on())
        busy = UNKNOWN;
    else
        in_each_context(&seen, look, &busy);
    pthread_mutex_unlock(&usage);
    return busy;
}

static bool finish(const struct set *set, const struct context *context, void *data)
{
    (void)set, (void)context, (void)data;
    CUresult (*synchronize)(void) = driver_function(DRIVER_cuCtxSynchronize);
    /* The program gets the device's errors; for us it is over in either case. */
    if (synchronize != NULL) synchronize();
    return true;
}

static bool wait_for_captures(void)
{
    int64_t until = clock_now() + CAPTURE_WAIT_NS;
    while (capture_is_on()) {
        if (clock_now() >= until) {
            say(2, "a capture goes on for too long; this token ends without a look at the device");
            return false;
        }
        pthread_mutex_unlock(&usage); /* its end, and the end of its stream, must be possible */
        clock_rest(CAPTURE_LOOK_NS);
        pthread_mutex_lock(&usage);
    }
    return true;
}

void device_drain(void)
{
    static struct set draining; /* of the library's one thread */
    pthread_mutex_lock(&usage);
    for (int round = 0; round < ROUNDS && wait_for_captures(); round++) {
        pthread_mutex_lock(&table);
        draining = touched;
        touched.contexts = touched.streams = 0;
        atomic_fetch_add(&generation, 1);
        pthread_mutex_unlock(&table);
        if (draining.contexts == 0) break;
        in_each_context(&draining, finish, NULL);
    }
    pthread_mutex_unlock(&usage);
}

void device_is_idle(void)
{
    pthread_mutex_lock(&table);
    touched.contexts = touched.streams = 0;
    atomic_fetch_add(&generation, 1);
    pthread_mutex_unlock(&table);
}

static void drop_streams(CUcontext context)
{
    int kept = 0;
    for (int i = 0; i < touched.streams; i++)
        if (touched.stream[i].context != context) touched.stream[kept++] = touched.stream[i];
    touched.streams = kept;
}

static void drop_contexts(CUcontext context, CUdevice device)
{
    pthread_mutex_lock(&table);
    for (int i = touched.contexts - 1; i >= 0; i--) {
        const struct context *there = &touched.context[i];
        bool goes = context != NULL ? there->context == context : there->device == device || there->device < 0;
        if (!goes) continue;
        drop_streams(there->context);
        touched.context[i] = touched.context[--touched.contexts];
    }
    if (context != NULL) drop_streams(context);
    atomic_fetch_add(&generation, 1);
    pthread_mutex_unlock(&table);
}

void device_context_ends(CUcontext context)
{
    device_hold();
    capture_context_ends(context);
    drop_contexts(context, -1);
    device_let_go();
}

void device_forget(CUdevice device)
{
    drop_contexts(NULL, device);
}

void device_stream_ends(CUstream stream)
{
    device_hold();
    capture_stream_ends(stream);
    pthread_mutex_lock(&table);
    for (int i = touched.streams - 1; i >= 0; i--) {
        if (touched.stream[i].stream != stream) continue;
        struct context *there = context_in(&touched, touched.stream[i].context);
        if (there != NULL) there->blind = true; /* what it has left to do goes on */
        touched.stream[i] = touched.stream[--touched.streams];
        atomic_fetch_add(&generation, 1);
    }
    pthread_mutex_unlock(&table);
    device_let_go();
}

/* Who holds it may be in the driver: a thread that is cancelled there would hold it for ever, and no token would end. */
static _Thread_local int cancel_before;

void device_hold(void)
{
    int before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    pthread_mutex_lock(&usage);
    cancel_before = before;
}

void device_let_go(void)
{
    int before = cancel_before;
    pthread_mutex_unlock(&usage);
    pthread_setcancelstate(before, NULL);
}

void device_before_fork(void)
{
    pthread_mutex_lock(&table);
}

void device_after_fork(bool child)
{
    if (!child) {
        pthread_mutex_unlock(&table);
        return;
    }
    pthread_mutex_init(&table, NULL); /* the parent's thread that may hold `usage` is not here */
    pthread_mutex_init(&usage, NULL);
    memset(&touched, 0, sizeof touched);
    atomic_fetch_add(&generation, 1);
}
