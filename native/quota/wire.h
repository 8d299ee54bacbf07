/*
 * The messages between this library and the token scheduler: 64 bytes each, little-endian, one per packet
 * (docs/time-quota.md). Pure: reads and writes bytes, and knows no socket.
 */
#ifndef SLUICE_QUOTA_WIRE_H
#define SLUICE_QUOTA_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { WIRE_BYTES = 64, WIRE_VERSION = 1 };

enum kind {
    HELLO = 1,
    ASK = 2,
    GIVE_BACK = 3,
    WELCOME = 17,
    GRANT = 18,
    CHANGED = 19,
    STOP = 20,
    REFUSED = 21,
};

enum refusal { BAD_VERSION = 1, NO_TENANT = 2, TOO_MANY_CONNECTIONS = 3, HOME_ENDS = 4 };

/* One message. Which members count depends on the kind. Times are in microseconds, as on the wire. */
struct message {
    enum kind kind;
    uint64_t sequence;
    uint32_t pid, flags, library_version; /* HELLO */
    uint8_t device[16];                   /* HELLO: UUID, or zeros */
    uint32_t fail_opens;                  /* HELLO: since the last one that carried some */
    uint64_t wanted_us, ahead_of;         /* ASK */
    uint64_t token;                       /* GIVE_BACK, GRANT, STOP */
    uint64_t used_us;                     /* GIVE_BACK */
    uint64_t length_us, in_answer_to;     /* GRANT */
    uint64_t window_us, token_us;         /* WELCOME, CHANGED */
    uint32_t request_ppm, limit_ppm;      /* WELCOME, CHANGED */
    uint64_t memory_bytes, epoch;         /* WELCOME, CHANGED */
    uint64_t patience_us;                 /* WELCOME, CHANGED: the least; 0 from a scheduler that takes no fail_opens */
    uint32_t reason;                      /* REFUSED */
};

/* What is sent of a client's message. */
void wire_write(const struct message *message, uint8_t packet[static WIRE_BYTES]);

/* Reads a scheduler's message. False: these bytes are none of version 1, and the caller ignores them. */
bool wire_read(const uint8_t *packet, size_t length, struct message *message);

#endif
