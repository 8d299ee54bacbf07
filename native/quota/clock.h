/* The clock that both sides of a token use, and waiting by it. */
#ifndef SLUICE_QUOTA_CLOCK_H
#define SLUICE_QUOTA_CLOCK_H

#include <errno.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static inline int64_t clock_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline struct timespec clock_span(int64_t ns)
{
    if (ns < 0) ns = 0;
    return (struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
}

static inline void clock_rest(int64_t ns)
{
    struct timespec span = clock_span(ns);
    nanosleep(&span, NULL);
}

/*
 * Waits until `*word` is no longer `seen` and a thread wakes it, for at most `ns`. A system call of its own, because
 * libc's condition variables are points at which pthread_cancel ends a thread, and have other versions in older libcs.
 */
static inline void clock_wait(atomic_uint *word, unsigned seen, int64_t ns)
{
    struct timespec span = clock_span(ns);
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, &span, NULL, 0);
}

static inline void clock_tell(atomic_uint *word)
{
    atomic_fetch_add(word, 1);
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

#endif
