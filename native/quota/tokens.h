/*
 * When this process may launch: the state of its connection and its tokens. Pure: no clock, no socket, no CUDA; what
 * it receives and what is to be done next. The thread in keeper.c does it.
 *
 * Nothing here decides who gets time; that is the scheduler's alone. Times are nanoseconds of CLOCK_MONOTONIC.
 */
#ifndef SLUICE_QUOTA_TOKENS_H
#define SLUICE_QUOTA_TOKENS_H

#include <stdbool.h>
#include <stdint.h>

#include "wire.h"

#define OPEN_FOR_ALL INT64_MAX
#define PACE_FREE ((int64_t)1 << 30)

enum line { DOWN, GREETING, UP };

struct token {
    uint64_t id; /* 0: there is none */
    int64_t begin, end;
};

struct tokens {
    bool fail_closed;
    int64_t patience;
    enum line line;
    int64_t heard;         /* when the last message came */
    int64_t greeted;       /* when the last HELLO went out */
    int64_t trouble_since; /* since when no server has answered */
    int64_t try_at, pause; /* the next try to connect, and the pause after it */
    int64_t token_length;  /* the usual one */
    uint64_t memory_bytes; /* 0: not limited here */
    uint64_t sequence;
    struct token current;
    struct token next; /* begins where `current` ends */
    bool drained;      /* the device has finished what was launched in `current` */
    bool stopped;      /* `current` was ended early by the scheduler, and `next` with it */
    uint64_t ask;      /* the sequence of the open ASK, 0: none */
    int64_t asked;
    uint64_t unwanted; /* a token to be given back unused, 0: none */
    int64_t wanted_since; /* since when a thread waits, 0: none does */
    bool free;         /* failed open: launches need no token */
    uint32_t fail_opens; /* how often, as long as no scheduler knows */
    bool tells;        /* whether the scheduler is to be told now */
    uint32_t refused;  /* why the scheduler does not take us, 0: not refused */
};

enum busy { IDLE, BUSY, UNKNOWN };

/* What the process is doing. */
struct look {
    bool wanted;         /* a thread waits to launch */
    bool spent;          /* as much was launched as fills a token */
    int64_t last_launch; /* when something was last launched */
    int64_t looked;      /* when the device was last asked, 0: never */
    enum busy busy;      /* whether it then had something of this process */
};

enum what {
    REST,    /* nothing until `until` (INT64_MAX: until something happens) */
    CONNECT, /* then tokens_connected() */
    SEND,    /* `message`; when it cannot be sent, tokens_lost() */
    ASK_DEVICE, /* whether it still has something of this process */
    DRAIN,   /* let no launch through, wait for the device; then tokens_drained() */
    CLOSE_IDLE, /* let no launch through; tokens_drained(), unless something was launched after `look` was taken */
    HANG_UP, /* close the connection; then tokens_lost() */
};

struct todo {
    enum what what;
    struct message message;
    int64_t until;
};

void tokens_begin(struct tokens *tokens, bool fail_closed, int64_t patience, int64_t now);
void tokens_connected(struct tokens *tokens, bool connected, int64_t now);
void tokens_lost(struct tokens *tokens, int64_t now);
void tokens_heard(struct tokens *tokens, const struct message *message, const struct look *look, int64_t now);
void tokens_drained(struct tokens *tokens);

/* What is to be done now. Called again after it was done. */
struct todo tokens_step(struct tokens *tokens, const struct look *look, int64_t now);

/*
 * How many launches may go into the next token. After so many in the last one the device was busy for `held` in all,
 * and for `overrun` longer than was granted. Kernels cannot be stopped, and what is queued is charged when it is too
 * late: who queues more than a token holds keeps its neighbours waiting for all of it, and then waits itself as long.
 */
int64_t tokens_pace(int64_t pace, int64_t launches, int64_t held, int64_t overrun, int64_t length);

/* Until when launches need not ask: 0 when they may not, OPEN_FOR_ALL without a server. */
int64_t tokens_open_until(const struct tokens *tokens);

#endif
