#define _GNU_SOURCE
#include "gate.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

#include "capture.h"
#include "clock.h"
#include "keeper.h"
#include "settings.h"

/* A wait is checked again after this time: a lost wake-up may cost time, never a launch. */
static const int64_t LOOK_AGAIN_NS = 100 * 1000000LL;

/* Written rarely, read by every launch. */
static _Alignas(64) _Atomic int64_t open_until;
static atomic_bool closing, no_more, spent;
static _Atomic int64_t filled = PACE_FREE;
static _Atomic int64_t draining_since; /* 0: the device is not being waited for */
/* Written by every launch. */
static _Alignas(64) atomic_int under_way;
static _Atomic int64_t last_launch, left_to_launch = PACE_FREE;
static _Alignas(64) atomic_int waiting;
static atomic_uint opened, left;

static atomic_bool said;

/* A launch that a launch leads to (a tool between us and the driver) is part of it. */
static _Thread_local int depth;

static bool may_pass(int64_t now)
{
    int64_t until = atomic_load(&open_until);
    if (now >= until) return false;
    if (until == OPEN_FOR_ALL || atomic_fetch_sub(&left_to_launch, 1) > 0) return true;
    atomic_fetch_add(&left_to_launch, 1);
    atomic_store(&spent, true);
    return false;
}

/*
 * A launch that waits for the device for very long may be what the device waits for: kernels that speak with each other
 * (on two GPUs, say) are launched one after the other. So it is let through, unless it would only queue up behind what
 * is being waited for. The device's time is charged all the same.
 */
static bool is_waited_for(struct where where, int64_t waits_since, int64_t *done_since, int64_t now)
{
    int64_t since = atomic_load(&draining_since);
    if (since < waits_since) since = waits_since;
    bool is_long = atomic_load(&draining_since) != 0 && now - since >= keeper_settings()->patience_ns / 4;
    if (!is_long || !device_is_done_there(where)) {
        *done_since = 0;
        return false;
    }
    /* Seen twice: at the end of what ran, its stream is done a moment before the keeper knows it. */
    if (*done_since == 0) *done_since = now;
    if (now - *done_since < LOOK_AGAIN_NS / 2) return false;
    say(atomic_exchange(&said, true) ? 2 : 1, "a launch goes before a token's end: what runs may wait for it");
    return true;
}

static void count_out(void)
{
    if (atomic_fetch_sub(&under_way, 1) == 1 && atomic_load(&closing)) clock_tell(&left);
}

/* Comes back counted. */
static void wait_for_token(struct where where)
{
    atomic_fetch_add(&waiting, 1);
    int64_t since = clock_now(), done_since = 0;
    for (;;) {
        unsigned seen = atomic_load(&opened);
        int64_t now = clock_now();
        atomic_fetch_add(&under_way, 1); /* before it looks: see gate_shut */
        if (may_pass(now) || atomic_load(&no_more) || is_waited_for(where, since, &done_since, now)) break;
        count_out();
        keeper_wake();
        clock_wait(&opened, seen, LOOK_AGAIN_NS);
    }
    atomic_fetch_sub(&waiting, 1);
}

struct pass gate_enter(struct where where)
{
    struct pass pass = {.counted = false, .error = errno};
    if (depth == 0 && keeper_is_on() && !capture_takes(where) && where_context() != NULL) {
        pass.counted = true;
        /* A thread that is cancelled within the driver would be in flight for ever. It ends after its launch. */
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &pass.cancel);
        depth++;
        atomic_fetch_add(&under_way, 1);
        int64_t now = clock_now();
        if (!may_pass(now)) {
            count_out();
            wait_for_token(where);
            now = clock_now();
        }
        device_touch(where); /* counted: a drain that does not see it waits for it */
        atomic_store_explicit(&last_launch, now, memory_order_relaxed);
    }
    errno = pass.error;
    return pass;
}

void gate_leave(struct pass pass)
{
    if (!pass.counted) return;
    int error = errno;
    depth--;
    count_out();
    pthread_setcancelstate(pass.cancel, NULL);
    errno = error;
}

void gate_open_until(int64_t until)
{
    int64_t before = atomic_exchange(&open_until, until);
    if (until > before && atomic_load(&waiting) > 0) clock_tell(&opened);
}

void gate_refill(int64_t launches)
{
    atomic_store(&filled, launches);
    atomic_store(&left_to_launch, launches);
    atomic_store(&spent, false);
}

int64_t gate_launched(void)
{
    return atomic_load(&filled) - atomic_load(&left_to_launch);
}

bool gate_is_spent(void)
{
    return atomic_load(&spent);
}

void gate_shut(void)
{
    /* A launch counts itself, then looks whether it may; here it is forbidden, then counted. So none is missed. */
    atomic_store(&open_until, 0);
    atomic_store(&closing, true);
    for (;;) {
        unsigned seen = atomic_load(&left);
        if (atomic_load(&under_way) == 0 || atomic_load(&no_more)) break;
        clock_wait(&left, seen, LOOK_AGAIN_NS);
    }
    atomic_store(&closing, false);
}

void gate_draining(bool on)
{
    atomic_store(&draining_since, on ? clock_now() : 0);
}

bool gate_is_wanted(void)
{
    return atomic_load(&waiting) > 0;
}

int64_t gate_last_launch(void)
{
    return atomic_load_explicit(&last_launch, memory_order_relaxed);
}

void gate_no_more(void)
{
    atomic_store(&no_more, true);
    atomic_store(&open_until, INT64_MAX);
    clock_tell(&opened);
    clock_tell(&left);
}

void gate_after_fork(void)
{
    atomic_store(&open_until, 0);
    atomic_store(&closing, false);
    atomic_store(&draining_since, 0);
    gate_refill(PACE_FREE);
    atomic_store(&under_way, 0);
    atomic_store(&waiting, 0);
    depth = 0;
}
