#define _GNU_SOURCE
#include "capture.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

enum { CAPTURES = 64 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    CUcontext context; /* NULL: a free place */
    CUstream stream;
} captured[CAPTURES];
static atomic_int captures;

void capture_begins(struct where where)
{
    CUcontext context = where_context();
    pthread_mutex_lock(&lock);
    for (int i = 0; i < CAPTURES && context != NULL; i++)
        if (captured[i].context == NULL) {
            captured[i].context = context;
            captured[i].stream = where_handle(where);
            atomic_fetch_add(&captures, 1);
            break;
        }
    pthread_mutex_unlock(&lock);
}

static void drop(CUcontext context, CUstream stream, int most)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < CAPTURES && most > 0; i++) {
        if (captured[i].context == NULL) continue;
        if (context != NULL ? captured[i].context != context : captured[i].stream != stream) continue;
        captured[i].context = NULL;
        atomic_fetch_sub(&captures, 1);
        most--;
    }
    pthread_mutex_unlock(&lock);
}

/* Every thread's own stream has the same name; each begins and ends one capture. */
void capture_ends(struct where where)
{
    drop(NULL, where_handle(where), 1);
}

void capture_stream_ends(CUstream stream)
{
    drop(NULL, stream, CAPTURES);
}

void capture_context_ends(CUcontext context)
{
    if (context != NULL) drop(context, NULL, CAPTURES);
}

bool capture_is_on(void)
{
    return atomic_load(&captures) > 0;
}

bool capture_takes(struct where where)
{
    if (!capture_is_on()) return false;
    CUresult (*ask)(CUstream, int *) =
        driver_function(where_is_own(where) ? DRIVER_cuStreamIsCapturing_ptsz : DRIVER_cuStreamIsCapturing);
    int status = CU_STREAM_CAPTURE_STATUS_NONE;
    /* An error is one that the launch will have as well (the default stream beside a capture): it goes through. */
    return ask != NULL && (ask(where.stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE);
}

void capture_after_fork(void)
{
    pthread_mutex_init(&lock, NULL);
    memset(captured, 0, sizeof captured);
    atomic_store(&captures, 0);
}
