/*
 * The library's rules of tokens alone, without threads, sockets or a device: events in, what is to be done out, always
 * whole. Says `ok N`, or the line that is wrong.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../../native/quota/tokens.c"
#include "../../../native/quota/wire.c"

#define MS 1000000LL
static struct tokens tokens;
static struct look look;
static int checked;

static void check(int good, int line, const char *what)
{
    checked++;
    if (good) return;
    printf("line %d: %s\n", line, what);
    exit(1);
}
#define CHECK(good) check(good, __LINE__, #good)

static struct todo step(int64_t now)
{
    return tokens_step(&tokens, &look, now * MS);
}

static void hear(enum kind kind, uint64_t token, uint64_t length_ms, uint64_t in_answer_to, int64_t now)
{
    struct message message = {.kind = kind, .token = token, .length_us = length_ms * 1000, .in_answer_to = in_answer_to,
                              .token_us = 10000, .memory_bytes = 5};
    tokens_heard(&tokens, &message, &look, now * MS);
}

static int sends(struct todo todo, enum kind kind)
{
    return todo.what == SEND && todo.message.kind == kind;
}

/* A process that has said hello at 0 ms and holds token 7 of 10 ms since 1 ms, in use. */
static void begin(int fail_closed)
{
    memset(&look, 0, sizeof look);
    tokens_begin(&tokens, fail_closed, 2000 * MS, 0);
    CHECK(step(0).what == CONNECT);
    tokens_connected(&tokens, true, 0);
    CHECK(sends(step(0), HELLO));
    CHECK(step(0).what == REST && tokens_open_until(&tokens) == 0);
    hear(WELCOME, 0, 0, 0, 0);
    CHECK(step(0).what == REST && step(0).until == INT64_MAX);
    look.wanted = true;
    struct todo todo = step(1);
    CHECK(sends(todo, ASK) && todo.message.ahead_of == 0);
    CHECK(step(1).what == REST); /* it asks once */
    hear(GRANT, 7, 10, todo.message.sequence, 1);
    CHECK(tokens_open_until(&tokens) == 11 * MS);
    look.wanted = false;
    look.last_launch = 1 * MS;
}

static void a_token_ends_drained_and_given_back(void)
{
    begin(0);
    look.last_launch = 8 * MS;
    struct todo ask = step(9);
    CHECK(sends(ask, ASK) && ask.message.ahead_of == 7);
    CHECK(step(9).what == REST && step(9).until == 10500000); /* then the device is looked at */
    CHECK(step(11).what == DRAIN);
    tokens_drained(&tokens);
    CHECK(tokens_open_until(&tokens) == 0);
    struct todo todo = step(12);
    CHECK(sends(todo, GIVE_BACK) && todo.message.token == 7 && todo.message.used_us == 11000);
    look.wanted = true;
    CHECK(step(12).what == REST); /* the open ASK stands for the next one */
    hear(GRANT, 8, 10, ask.message.sequence, 20);
    CHECK(tokens_open_until(&tokens) == 30 * MS);
}

static void a_successor_goes_on_without_a_drain(void)
{
    begin(0);
    look.last_launch = 8 * MS;
    struct todo ask = step(9);
    hear(GRANT, 8, 10, ask.message.sequence, 9);
    CHECK(tokens_open_until(&tokens) == 21 * MS); /* at once: no launch waits at the seam */
    look.last_launch = 11 * MS;
    CHECK(step(11).what == REST && tokens.current.id == 8 && tokens.next.id == 0);
    look.last_launch = 18 * MS;
    ask = step(19);
    CHECK(sends(ask, ASK) && ask.message.ahead_of == 8);
}

static void a_successor_that_came_in_the_drain_is_used(void)
{
    begin(0);
    look.last_launch = 10 * MS;
    struct todo ask = step(10);
    CHECK(step(11).what == DRAIN);
    tokens_drained(&tokens);
    hear(GRANT, 8, 10, ask.message.sequence, 12);
    CHECK(step(12).what == REST && tokens.current.id == 8 && tokens_open_until(&tokens) == 21 * MS);
    /* One whose time is over by then goes back, after the old one. */
    begin(0);
    look.last_launch = 10 * MS;
    ask = step(10);
    CHECK(step(11).what == DRAIN);
    tokens_drained(&tokens);
    hear(GRANT, 8, 10, ask.message.sequence, 12);
    struct todo todo = step(600);
    CHECK(sends(todo, GIVE_BACK) && todo.message.token == 7);
    todo = step(600);
    CHECK(sends(todo, GIVE_BACK) && todo.message.token == 8);
    CHECK(step(600).what == REST && tokens.current.id == 0);
}

static void an_idle_process_gives_back_early(void)
{
    begin(0);
    CHECK(step(3).what == REST && step(3).until == 3500000);
    CHECK(step(4).what == ASK_DEVICE);
    look.looked = 4 * MS;
    look.busy = BUSY;
    CHECK(step(4).what == REST && step(4).until == 6500000); /* looked at again after a while, not all the time */
    CHECK(step(7).what == ASK_DEVICE);
    look.looked = 7 * MS;
    look.busy = IDLE;
    CHECK(step(7).what == CLOSE_IDLE);
    tokens_drained(&tokens);
    CHECK(sends(step(7), GIVE_BACK));
    CHECK(step(7).what == REST && step(7).until == INT64_MAX);
    /* What cannot be looked at is not asked more time for. */
    begin(0);
    look.looked = 9 * MS;
    look.busy = UNKNOWN;
    CHECK(step(9).what == REST && step(9).until == 11 * MS);
    CHECK(step(11).what == DRAIN);
}

static void a_stopped_token_ends_with_its_successor(void)
{
    begin(0);
    look.last_launch = 8 * MS;
    struct todo ask = step(9);
    hear(GRANT, 8, 10, ask.message.sequence, 9);
    hear(STOP, 8, 0, 0, 9);
    CHECK(tokens_open_until(&tokens) == 0 && step(9).what == DRAIN);
    tokens_drained(&tokens);
    CHECK(step(10).message.token == 7 && tokens.current.id == 8 && sends(step(10), GIVE_BACK));
    CHECK(step(10).what == REST && tokens.current.id == 0);
    hear(STOP, 8, 0, 0, 11); /* crossed with the give-back */
    CHECK(step(11).what == REST);
}

static void what_is_not_wanted_goes_back(void)
{
    begin(0);
    hear(GRANT, 9, 10, 12345, 2);
    struct todo todo = step(2);
    CHECK(sends(todo, GIVE_BACK) && todo.message.token == 9 && todo.message.used_us == 0);
    CHECK(tokens.current.id == 7 && tokens_open_until(&tokens) == 11 * MS);
}

static void who_waits_asks_whether_anybody_lives(void)
{
    begin(0);
    tokens.current.id = 0; /* it was given back */
    look.wanted = true;
    CHECK(sends(step(100), ASK));
    CHECK(step(100).what == REST && step(100).until == 600 * MS);
    CHECK(sends(step(600), HELLO) && step(600).until == 1100 * MS);
    hear(WELCOME, 0, 0, 0, 700);
    CHECK(step(1100).what == REST && step(1100).until == 1200 * MS);
    CHECK(sends(step(1200), HELLO) && sends(step(1700), HELLO) && sends(step(2200), HELLO));
    CHECK(step(2700).what == HANG_UP); /* two seconds after the last word */
    tokens_lost(&tokens, 2700 * MS);
    CHECK(tokens_open_until(&tokens) == 0);
    CHECK(step(2700).what == REST && tokens_open_until(&tokens) == OPEN_FOR_ALL); /* patience is used up */
    CHECK(step(2725).what == CONNECT);
    tokens_connected(&tokens, true, 2725 * MS);
    CHECK(sends(step(2725), HELLO) && tokens_open_until(&tokens) == OPEN_FOR_ALL);
    hear(WELCOME, 0, 0, 0, 2726);
    CHECK(tokens_open_until(&tokens) == 0 && sends(step(2726), ASK)); /* this scheduler takes no count */
}

static void the_scheduler_sets_the_least_patience_and_learns_of_launches_without_it(void)
{
    struct message welcome = {.kind = WELCOME, .token_us = 10000, .patience_us = 500000};
    memset(&look, 0, sizeof look);
    look.wanted = true;
    tokens_begin(&tokens, false, 10 * MS, 0);
    CHECK(step(0).what == CONNECT);
    tokens_connected(&tokens, false, 0);
    CHECK(step(10).what == REST && tokens_open_until(&tokens) == OPEN_FOR_ALL);
    CHECK(step(250).what == CONNECT);
    tokens_connected(&tokens, true, 250 * MS);
    struct todo todo = step(250);
    CHECK(sends(todo, HELLO) && todo.message.fail_opens == 0); /* an older scheduler would hang up */
    tokens_heard(&tokens, &welcome, &look, 251 * MS);
    todo = step(251);
    CHECK(sends(todo, HELLO) && todo.message.fail_opens == 1);
    tokens_heard(&tokens, &welcome, &look, 252 * MS);
    CHECK(sends(step(252), ASK) && step(252).until == 377 * MS); /* a quarter of 500 ms: it was not silent for 10 */
    CHECK(sends(step(377), HELLO) && step(751).what != HANG_UP && step(752).what == HANG_UP);
}

static void who_fails_closed_never_goes_without(void)
{
    begin(1);
    look.wanted = true;
    tokens_lost(&tokens, 5 * MS);
    CHECK(tokens_open_until(&tokens) == 11 * MS); /* what was granted is used */
    int64_t now = 12;
    for (int64_t pauses = 0; now < 100000; now++) {
        struct todo todo = step(now);
        CHECK(tokens_open_until(&tokens) == 0 && todo.what != DRAIN);
        if (todo.what != CONNECT) continue;
        tokens_connected(&tokens, false, now * MS);
        CHECK(++pauses < 30); /* 250 ms, growing to 5 s */
    }
}

static void a_refusal_is_no_reason_to_wait(void)
{
    begin(0);
    struct message refused = {.kind = REFUSED, .reason = NO_TENANT};
    tokens_heard(&tokens, &refused, &look, 2 * MS);
    CHECK(step(2).what == HANG_UP);
    tokens_lost(&tokens, 2 * MS);
    look.wanted = true;
    CHECK(step(3).what == REST && tokens_open_until(&tokens) == 11 * MS); /* what was granted is used */
    CHECK(step(12).what == REST && tokens_open_until(&tokens) == OPEN_FOR_ALL);
}

static void who_queues_too_much_launches_less(void)
{
    begin(0);
    look.last_launch = 1 * MS;
    look.spent = look.wanted = true;
    CHECK(step(2).what == DRAIN); /* what was launched fills the token */
    tokens_drained(&tokens);
    look.spent = false;
    CHECK(step(3).what == REST && tokens_open_until(&tokens) == 11 * MS); /* it did not: the token goes on */
    look.spent = true;
    CHECK(step(4).what == DRAIN);
    tokens_drained(&tokens);
    look.spent = false;
    CHECK(sends(step(500), ASK)); /* first, so that its turn is not lost */
    CHECK(sends(step(500), GIVE_BACK) && tokens.ask != 0);
    CHECK(tokens_pace(PACE_FREE, 4, 2000 * MS, 1990 * MS, 10 * MS) == 1);
    CHECK(tokens_pace(1, 1, 500 * MS, 490 * MS, 10 * MS) == 1);
    CHECK(tokens_pace(PACE_FREE, 100, 50 * MS, 40 * MS, 10 * MS) == 20);
    CHECK(tokens_pace(20, 20, 11 * MS, 1 * MS, 10 * MS) == 40); /* a little too much is usual */
    CHECK(tokens_pace(PACE_FREE, 100, 11 * MS, 1 * MS, 10 * MS) == PACE_FREE);
    CHECK(tokens_pace(1, 0, 600 * MS, 590 * MS, 10 * MS) == 2); /* somebody else's work */
}

static void bytes_are_those_of_the_protocol(void)
{
    struct message message = {.kind = GIVE_BACK, .sequence = 0x0102030405060708, .token = 9, .used_us = 10};
    uint8_t packet[WIRE_BYTES], expected[WIRE_BYTES] = {0x53, 0x4c, 0x51, 0x54, 1, 0, 3, 0, 8, 7, 6, 5, 4, 3, 2, 1, 9};
    expected[24] = 10;
    wire_write(&message, packet);
    CHECK(memcmp(packet, expected, sizeof packet) == 0);
    CHECK(!wire_read(packet, sizeof packet, &message)); /* a client's word from a scheduler */
    packet[6] = GRANT;
    CHECK(wire_read(packet, sizeof packet, &message) && message.token == 9 && message.length_us == 10);
    CHECK(!wire_read(packet, sizeof packet - 1, &message) && !wire_read(packet, sizeof packet + 1, &message));
    packet[4] = 2;
    CHECK(!wire_read(packet, sizeof packet, &message));
}

int main(void)
{
    a_token_ends_drained_and_given_back();
    a_successor_goes_on_without_a_drain();
    a_successor_that_came_in_the_drain_is_used();
    an_idle_process_gives_back_early();
    a_stopped_token_ends_with_its_successor();
    what_is_not_wanted_goes_back();
    who_waits_asks_whether_anybody_lives();
    the_scheduler_sets_the_least_patience_and_learns_of_launches_without_it();
    who_fails_closed_never_goes_without();
    a_refusal_is_no_reason_to_wait();
    who_queues_too_much_launches_less();
    bytes_are_those_of_the_protocol();
    printf("ok %d\n", checked);
    return 0;
}
