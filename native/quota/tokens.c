#include "tokens.h"

#include <string.h>

static const int64_t NS_PER_US = 1000, NS_PER_MS = 1000000;
static const int64_t NEVER = -1;
static const int64_t USUAL_TOKEN_NS = 10 * 1000000LL;
static const int64_t PAUSE_AGAIN_NS = 25 * 1000000LL, PAUSE_FIRST_NS = 250 * 1000000LL;
static const int64_t PAUSE_MOST_NS = 5000 * 1000000LL;
/* A scheduler that grants longer than this at once is not one of ours; the time is cut, for a launch must end. */
static const uint64_t LENGTH_MOST_US = 60 * 1000000ULL;

static int64_t later(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t sooner(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Nothing launched for so long: the process seems to be done. */
static int64_t idle_after(const struct tokens *tokens)
{
    return later(tokens->token_length / 4, NS_PER_MS);
}

/* So long before its end a token's successor is asked for: a round trip on a busy machine. */
static int64_t lead(const struct tokens *tokens)
{
    return sooner(later(tokens->token_length / 4, 2 * NS_PER_MS), tokens->token_length / 2);
}

void tokens_begin(struct tokens *tokens, bool fail_closed, int64_t patience, int64_t now)
{
    memset(tokens, 0, sizeof *tokens);
    tokens->fail_closed = fail_closed;
    tokens->patience = patience;
    tokens->token_length = USUAL_TOKEN_NS;
    tokens->trouble_since = now;
    tokens->try_at = now;
    tokens->pause = PAUSE_FIRST_NS;
}

static void send_hello(struct tokens *tokens, struct todo *todo, int64_t now)
{
    tokens->greeted = now;
    todo->what = SEND;
    todo->message.kind = HELLO;
    todo->message.sequence = ++tokens->sequence;
    todo->message.flags = tokens->fail_closed ? 1 : 0;
    if (!tokens->tells) return;
    todo->message.fail_opens = tokens->fail_opens;
    tokens->fail_opens = 0;
    tokens->tells = false;
}

void tokens_connected(struct tokens *tokens, bool connected, int64_t now)
{
    tokens->try_at = now + tokens->pause;
    if (!connected) {
        tokens->pause = sooner(2 * tokens->pause, PAUSE_MOST_NS);
        return;
    }
    tokens->line = GREETING;
    tokens->heard = now;
    tokens->greeted = NEVER;
}

void tokens_lost(struct tokens *tokens, int64_t now)
{
    /* Who was silent has used up our patience already; who went away has not. */
    if (tokens->line == UP) tokens->trouble_since = now;
    if (tokens->line == UP && tokens->ask != 0 && now - tokens->heard >= tokens->patience)
        tokens->trouble_since = now - tokens->patience;
    if (tokens->refused != 0) { /* neither patience nor haste would help */
        tokens->trouble_since = now - tokens->patience;
        tokens->pause = PAUSE_MOST_NS;
    }
    if (tokens->line == GREETING) {
        tokens->try_at = now + tokens->pause;
        tokens->pause = sooner(2 * tokens->pause, PAUSE_MOST_NS);
    } else {
        tokens->try_at = now + PAUSE_AGAIN_NS; /* a restarted scheduler is back soon, or else for longer */
    }
    tokens->refused = 0;
    tokens->tells = false;
    tokens->line = DOWN;
    tokens->ask = 0;
    tokens->unwanted = 0;
    tokens->next.id = 0;
    if (tokens->drained || tokens->stopped) tokens->current.id = 0;
    tokens->drained = tokens->stopped = false;
}

static void heard_grant(struct tokens *tokens, const struct message *message, const struct look *look, int64_t now)
{
    struct token token = {.id = message->token, .begin = now};
    uint64_t length_us = message->length_us < LENGTH_MOST_US ? message->length_us : LENGTH_MOST_US;
    bool asked = tokens->ask != 0 && tokens->ask == message->in_answer_to;
    if (asked) tokens->ask = 0;
    bool used_lately = now - look->last_launch < idle_after(tokens);
    bool held = tokens->current.id != 0;
    if (!asked || length_us == 0 || tokens->next.id != 0 || (!held && !look->wanted && !used_lately) ||
        tokens->stopped || tokens->line != UP) {
        tokens->unwanted = token.id;
        return;
    }
    if (held) token.begin = tokens->current.end;
    token.end = token.begin + (int64_t)length_us * NS_PER_US;
    *(held ? &tokens->next : &tokens->current) = token;
}

void tokens_heard(struct tokens *tokens, const struct message *message, const struct look *look, int64_t now)
{
    tokens->heard = now;
    switch (message->kind) {
    case WELCOME:
        if (tokens->line == GREETING) {
            tokens->line = UP;
            tokens->pause = PAUSE_FIRST_NS;
            tokens->free = false;
            tokens->current.id = 0; /* a token of an earlier connection: this scheduler knows nothing of it */
            tokens->drained = tokens->stopped = false;
        }
        __attribute__((fallthrough));
    case CHANGED:
        tokens->memory_bytes = message->memory_bytes;
        if (message->patience_us <= LENGTH_MOST_US)
            tokens->patience = later(tokens->patience, (int64_t)message->patience_us * NS_PER_US);
        tokens->tells = message->patience_us != 0 && tokens->fail_opens != 0;
        if (message->token_us > 0 && message->token_us <= LENGTH_MOST_US)
            tokens->token_length = (int64_t)message->token_us * NS_PER_US;
        return;
    case GRANT:
        heard_grant(tokens, message, look, now);
        return;
    case STOP:
        /* The newest token stands for all that is held. */
        if (tokens->current.id != 0 && (message->token == tokens->current.id || message->token == tokens->next.id)) {
            tokens->stopped = true;
            tokens->current.end = sooner(tokens->current.end, now);
        }
        return;
    case REFUSED:
        tokens->refused = message->reason != 0 ? message->reason : UINT32_MAX;
        return;
    default:
        return;
    }
}

int64_t tokens_pace(int64_t pace, int64_t launches, int64_t held, int64_t overrun, int64_t length)
{
    if (overrun <= length || launches <= 0) return sooner(2 * pace, PACE_FREE);
    int64_t fits = length * launches / later(held, 1);
    return fits > 0 ? fits : 1;
}

void tokens_drained(struct tokens *tokens)
{
    tokens->drained = true;
}

int64_t tokens_open_until(const struct tokens *tokens)
{
    if (tokens->free) return OPEN_FOR_ALL;
    if (tokens->current.id == 0 || tokens->drained || tokens->stopped) return 0;
    return tokens->next.id != 0 ? tokens->next.end : tokens->current.end;
}

static void ask(struct tokens *tokens, struct todo *todo, uint64_t ahead_of, int64_t now)
{
    todo->what = SEND;
    todo->message = (struct message){.kind = ASK, .sequence = ++tokens->sequence, .ahead_of = ahead_of};
    tokens->ask = tokens->sequence;
    tokens->asked = now;
}

/* A token was drained: it goes back, unless it or its successor is not over yet and somebody wants more of it. */
static bool after_drain(struct tokens *tokens, const struct look *look, struct todo *todo, int64_t now)
{
    struct token *current = &tokens->current;
    if (tokens->line == UP && !tokens->stopped && now < current->end && look->wanted) {
        tokens->drained = false;
        return false;
    }
    if (tokens->line != UP) {
        current->id = tokens->next.id = 0;
        tokens->drained = tokens->stopped = false;
        return false;
    }
    if (tokens->next.id != 0 && !tokens->stopped && now >= current->end && now < tokens->next.end) {
        *current = tokens->next;
        tokens->next.id = 0;
        tokens->drained = false;
        return false;
    }
    if (look->wanted && tokens->ask == 0 && tokens->next.id == 0) {
        ask(tokens, todo, current->id, now); /* before it goes back: else our turn is the next one's, if it comes now */
        return true;
    }
    todo->what = SEND;
    todo->message = (struct message){
        .kind = GIVE_BACK,
        .sequence = ++tokens->sequence,
        .token = current->id,
        .used_us = (uint64_t)later(0, now - current->begin) / (uint64_t)NS_PER_US,
    };
    *current = tokens->next; /* a successor that has not begun goes back with it */
    tokens->next.id = 0;
    if (current->id == 0) tokens->drained = tokens->stopped = false;
    return true;
}

/* While a token runs: its successor is asked for in time, and a token that is not used goes back early. */
static bool while_held(struct tokens *tokens, const struct look *look, struct todo *todo, int64_t now)
{
    if (now >= tokens->current.end && tokens->next.id != 0 && !tokens->stopped) {
        tokens->current = tokens->next;
        tokens->next.id = 0;
    }
    struct token *current = &tokens->current;
    bool over = now >= current->end || tokens->stopped || look->spent;
    if (over && tokens->line != UP) { /* no server to give it back to */
        current->id = 0;
        tokens->stopped = false;
        return false;
    }
    if (over) {
        todo->what = DRAIN;
        return true;
    }
    int64_t used = later(look->last_launch, current->begin), idle = idle_after(tokens);
    bool quiet = !look->wanted && now - used >= idle;
    if (quiet && (look->looked <= used || now - look->looked >= idle)) {
        todo->what = ASK_DEVICE;
        return true;
    }
    if (quiet && look->busy == IDLE) {
        todo->what = CLOSE_IDLE;
        return true;
    }
    /* Of work that cannot be looked at, none is assumed: at the token's end it is waited for. */
    bool may_ask = tokens->line == UP && tokens->ask == 0 && tokens->next.id == 0 && !(quiet && look->busy == UNKNOWN);
    if (may_ask && now >= current->end - lead(tokens)) {
        ask(tokens, todo, current->id, now);
        return true;
    }
    todo->until = sooner(todo->until, current->end);
    if (may_ask) todo->until = sooner(todo->until, current->end - lead(tokens));
    todo->until = sooner(todo->until, (quiet ? look->looked : used) + idle);
    return false;
}

/* While a thread waits: for a grant, which may take as long as it must while the scheduler shows that it lives. */
static bool while_wanted(struct tokens *tokens, struct todo *todo, int64_t now)
{
    if (tokens->line != UP) {
        int64_t patience_ends = tokens->trouble_since + tokens->patience;
        if (!tokens->fail_closed && now >= patience_ends) {
            tokens->free = true;
            tokens->fail_opens++;
        }
        if (!tokens->free && !tokens->fail_closed) todo->until = sooner(todo->until, patience_ends);
        return false;
    }
    if (tokens->ask == 0) {
        ask(tokens, todo, 0, now);
        return true;
    }
    int64_t silent_since = later(tokens->heard, later(tokens->asked, tokens->wanted_since));
    if (now - silent_since >= tokens->patience) {
        todo->what = HANG_UP;
        return true;
    }
    int64_t greet_at = later(silent_since, tokens->greeted) + tokens->patience / 4;
    if (now >= greet_at) {
        send_hello(tokens, todo, now);
        return true;
    }
    todo->until = sooner(todo->until, sooner(greet_at, silent_since + tokens->patience));
    return false;
}

struct todo tokens_step(struct tokens *tokens, const struct look *look, int64_t now)
{
    struct todo todo = {.what = REST, .until = INT64_MAX};
    if (!look->wanted)
        tokens->wanted_since = 0;
    else if (tokens->wanted_since == 0)
        tokens->wanted_since = now;
    if (tokens->line != DOWN && tokens->refused != 0) {
        todo.what = HANG_UP;
        return todo;
    }
    if (tokens->line == DOWN && now >= tokens->try_at) {
        todo.what = CONNECT;
        return todo;
    }
    if (tokens->line == DOWN) todo.until = tokens->try_at;
    if (tokens->line == GREETING && tokens->greeted == NEVER) {
        send_hello(tokens, &todo, now);
        return todo;
    }
    if (tokens->line == GREETING) {
        if (now - tokens->greeted >= tokens->patience) {
            todo.what = HANG_UP;
            return todo;
        }
        todo.until = tokens->greeted + tokens->patience;
    }
    if (tokens->line == UP && tokens->tells) {
        send_hello(tokens, &todo, now);
        return todo;
    }
    if (tokens->unwanted != 0) {
        todo.what = SEND;
        todo.message =
            (struct message){.kind = GIVE_BACK, .sequence = ++tokens->sequence, .token = tokens->unwanted};
        tokens->unwanted = 0;
        return todo;
    }
    if (tokens->current.id != 0 && tokens->drained && after_drain(tokens, look, &todo, now)) return todo;
    if (tokens->current.id != 0 && while_held(tokens, look, &todo, now)) return todo;
    if (tokens->current.id == 0 && look->wanted && !tokens->free) while_wanted(tokens, &todo, now);
    return todo;
}
