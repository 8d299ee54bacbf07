#define _GNU_SOURCE
#include "keeper.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "capture.h"
#include "clock.h"
#include "driver.h"
#include "gate.h"
#include "link.h"
#include "memory.h"
#include "symbols.h"
#include "tokens.h"
#include "wake.h"

enum { MESSAGES_AT_ONCE = 64 };
enum state { UNREAD, OFF, ON };
/* Without any message the thread checks this often: a program may close all descriptors, ours too. */
static const int64_t REST_MOST_NS = 1000 * 1000000LL;
static const int64_t END_WAIT_NS = 200 * 1000000LL;

static pthread_mutex_t beginning = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(enum state) state = UNREAD;
static struct settings settings;
static atomic_bool ending;
static atomic_uint ended, welcomed;
static atomic_bool waited_for_welcome;
static struct own line = {.descriptor = -1};
static int64_t pace = PACE_FREE, opened; /* the thread's own: launches per token, and since when the gate is open */

static void hear(struct tokens *tokens)
{
    struct message message;
    for (int i = 0; i < MESSAGES_AT_ONCE && tokens->line != DOWN; i++) {
        enum heard heard = own_is_still(&line) ? link_hear(line.descriptor, &message) : GONE;
        if (heard == NOTHING) return;
        if (heard == GONE) {
            own_close(&line);
            say(tokens->line == UP ? 1 : 2, "the scheduler is gone");
            tokens_lost(tokens, clock_now());
            return;
        }
        if (heard == NONSENSE) {
            say(2, "a message that this library does not know; it is ignored");
            continue;
        }
        struct look look = {.wanted = gate_is_wanted(), .last_launch = gate_last_launch()};
        tokens_heard(tokens, &message, &look, clock_now());
        if (message.kind == WELCOME || message.kind == CHANGED) {
            memory_limit(message.memory_bytes);
            if (atomic_load(&welcomed) == 0) clock_tell(&welcomed);
        }
        if (message.kind == REFUSED) say(1, "the scheduler does not take this process: reason %u", message.reason);
        if (message.kind == GRANT)
            say(2, "token %llu for %llu us", (unsigned long long)message.token, (unsigned long long)message.length_us);
    }
}

static void tell(struct tokens *tokens, struct message *message)
{
    if (message->kind == HELLO) {
        CUresult (*uuid)(uint8_t *, CUdevice) = driver_function(DRIVER_cuDeviceGetUuid_v2);
        message->pid = (uint32_t)getpid();
        message->library_version = LIBRARY_VERSION;
        if (uuid == NULL || uuid(message->device, 0) != CUDA_SUCCESS)
            memset(message->device, 0, sizeof message->device);
    }
    if (own_is_still(&line) && link_send(line.descriptor, message)) return;
    own_close(&line);
    tokens_lost(tokens, clock_now());
}

static void rest(int64_t until)
{
    int64_t now = clock_now();
    struct timespec span = clock_span(until - now < REST_MOST_NS ? until - now : REST_MOST_NS);
    struct pollfd on[2] = {{.fd = line.descriptor, .events = POLLIN}, {.fd = wake_descriptor(), .events = POLLIN}};
    ppoll(on, 2, &span, NULL);
    if (!wake_is_still() && !wake_make()) clock_rest(until - now < 10000000 ? until - now : 10000000);
    wake_clear();
}

/* What the device took for what was launched says how much is launched into the next token. */
static void learn(const struct tokens *tokens)
{
    int64_t now = clock_now(), length = tokens->current.end - tokens->current.begin;
    if (length > tokens->token_length) length = tokens->token_length;
    pace = tokens_pace(pace, gate_launched(), now - opened, now - tokens->current.end, length);
}

static void open_gate(int64_t until)
{
    static int64_t before;
    if (until != 0 && before == 0) {
        opened = clock_now();
        gate_refill(pace);
    }
    before = until;
    gate_open_until(until);
}

static void act(struct tokens *tokens, struct todo *todo, struct look *look)
{
    switch (todo->what) {
    case CONNECT:
        own_close(&line);
        line = own_take(link_open(settings.socket));
        if (line.descriptor < 0 && look->wanted) say(2, "%s: %m", settings.socket);
        tokens_connected(tokens, line.descriptor >= 0, clock_now());
        return;
    case SEND:
        tell(tokens, &todo->message);
        return;
    case ASK_DEVICE:
        look->busy = device_busy();
        look->looked = clock_now();
        return;
    case DRAIN:
        gate_draining(true);
        gate_shut();
        if (!atomic_load(&ending)) device_drain();
        gate_draining(false);
        learn(tokens);
        gate_refill(pace);
        tokens_drained(tokens);
        return;
    case CLOSE_IDLE:
        gate_shut();
        if (gate_is_wanted() || gate_last_launch() != look->last_launch) return; /* it is opened again at once */
        device_is_idle();
        tokens_drained(tokens);
        return;
    case HANG_UP:
        own_close(&line);
        say(1, "the scheduler does not answer");
        tokens_lost(tokens, clock_now());
        return;
    case REST:
        rest(todo->until);
    }
}

/*
 * glibc has pthread_atfork in what is linked statically, which calls this; musl has it as a function of its own. A name
 * that is not there must be weak: with a preloaded library that lacks one, no program of the container starts.
 */
extern int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *) __attribute__((weak));
extern void *__dso_handle __attribute__((visibility("hidden")));
#pragma weak pthread_atfork

static void *keep(void *nothing)
{
    struct tokens tokens;
    struct look look = {.wanted = false};
    (void)nothing;
    prctl(PR_SET_NAME, "sluice-quota");
    prctl(PR_SET_TIMERSLACK, 1UL); /* of this thread alone: a token's end is meant to the microsecond */
    tokens_begin(&tokens, settings.fail_closed, settings.patience_ns, clock_now());
    pace = PACE_FREE;
    while (!atomic_load(&ending)) {
        bool was_free = tokens.free;
        hear(&tokens);
        open_gate(tokens_open_until(&tokens)); /* what was granted is a new measure of what is spent */
        look.wanted = gate_is_wanted();
        look.last_launch = gate_last_launch();
        look.spent = gate_is_spent();
        struct todo todo = tokens_step(&tokens, &look, clock_now());
        if (tokens.free && !was_free) say(1, "no server answers at %s: launches go on without quota", settings.socket);
        if (!tokens.free && was_free) say(1, "the scheduler is there again");
        open_gate(tokens_open_until(&tokens));
        act(&tokens, &todo, &look);
    }
    clock_tell(&ended);
    return NULL;
}

static void before_fork(void)
{
    pthread_mutex_lock(&beginning);
    device_before_fork();
    memory_before_fork();
}

static void after_fork_in_parent(void)
{
    memory_after_fork(false);
    device_after_fork(false);
    pthread_mutex_unlock(&beginning);
}

/* The child connects at its first launch. The parent's connection is not its own, and must end with the parent. */
static void after_fork_in_child(void)
{
    own_close(&line);
    wake_after_fork();
    gate_after_fork();
    memory_after_fork(true);
    device_after_fork(true);
    capture_after_fork();
    atomic_store(&waited_for_welcome, false);
    atomic_store(&welcomed, 0);
    pthread_mutex_init(&beginning, NULL);
    atomic_store(&state, UNREAD);
}

/* Runs before the driver's own end, for it was registered after it: nothing of ours may be in the driver then. */
static void at_exit(void)
{
    if (atomic_load(&state) != ON) return;
    unsigned seen = atomic_load(&ended);
    int64_t until = clock_now() + END_WAIT_NS;
    atomic_store(&ending, true);
    gate_no_more();
    wake_tell();
    while (atomic_load(&ended) == seen && clock_now() < until) clock_wait(&ended, seen, until - clock_now());
}

static bool watch_forks(void)
{
    if (__register_atfork != NULL)
        return __register_atfork(before_fork, after_fork_in_parent, after_fork_in_child, &__dso_handle) == 0;
    return pthread_atfork != NULL && pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child) == 0;
}

/* A thread that takes no signals: those are the program's. */
static bool start(void)
{
    static atomic_bool registered;
    typedef int (*create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    find_function find = driver_dlsym();
    create begin = find != NULL ? (create)find(NULL, "pthread_create") : NULL;
    if (begin == NULL) begin = (create)symbol_in("", "pthread_create");
    if (begin == NULL || !wake_make()) return false;
    if (!atomic_exchange(&registered, true)) {
        if (!watch_forks()) return false;
        if (atexit(at_exit) != 0) return false;
    }
    sigset_t all, before;
    pthread_t thread;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before);
    int failed = begin(&thread, NULL, keep, NULL);
    sigprocmask(SIG_SETMASK, &before, NULL);
    return failed == 0;
}

bool keeper_is_on(void)
{
    enum state now = atomic_load_explicit(&state, memory_order_acquire);
    if (now != UNREAD) return now == ON;
    pthread_mutex_lock(&beginning);
    if (atomic_load(&state) == UNREAD) {
        settings_read(&settings);
        bool wanted = settings.socket[0] != '\0' && !atomic_load(&ending);
        while (wanted && !start()) {
            say(1, "no thread for the quota can be started; launches %s",
                settings.fail_closed ? "wait" : "go on without");
            if (!settings.fail_closed) wanted = false;
            else clock_rest(settings.patience_ns);
        }
        atomic_store_explicit(&state, wanted ? ON : OFF, memory_order_release);
    }
    now = atomic_load(&state);
    pthread_mutex_unlock(&beginning);
    return now == ON;
}

void keeper_wake(void)
{
    wake_tell();
}

const struct settings *keeper_settings(void)
{
    return &settings;
}

void keeper_wait_for_welcome(void)
{
    if (atomic_load(&welcomed) != 0 || atomic_exchange(&waited_for_welcome, true)) return;
    int64_t until = clock_now() + settings.patience_ns;
    for (int64_t now = clock_now(); now < until && atomic_load(&welcomed) == 0; now = clock_now())
        clock_wait(&welcomed, 0, until - now);
}
