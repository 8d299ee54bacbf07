/* The bytes of the messages, member by member: no struct is laid over a packet, so no compiler's padding matters. */
#include "wire.h"

#include <string.h>

enum { MAGIC = 0x54514C53 };

static void put(uint8_t **at, uint64_t value, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) *(*at)++ = (uint8_t)(value >> (8 * i));
}

static uint64_t take(const uint8_t **at, size_t bytes)
{
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; i++) value |= (uint64_t) * (*at)++ << (8 * i);
    return value;
}

void wire_write(const struct message *message, uint8_t packet[static WIRE_BYTES])
{
    uint8_t *at = packet;
    memset(packet, 0, WIRE_BYTES);
    put(&at, MAGIC, 4);
    put(&at, WIRE_VERSION, 2);
    put(&at, (uint64_t)message->kind, 2);
    put(&at, message->sequence, 8);
    if (message->kind == HELLO) {
        put(&at, message->pid, 4);
        put(&at, message->flags, 4);
        put(&at, message->library_version, 4);
        memcpy(at, message->device, sizeof message->device);
        at += sizeof message->device;
        put(&at, message->fail_opens, 4);
    } else if (message->kind == ASK) {
        put(&at, message->wanted_us, 8);
        put(&at, message->ahead_of, 8);
    } else {
        put(&at, message->token, 8);
        put(&at, message->used_us, 8);
    }
}

bool wire_read(const uint8_t *packet, size_t length, struct message *message)
{
    const uint8_t *at = packet;
    if (length != WIRE_BYTES || take(&at, 4) != MAGIC || take(&at, 2) != WIRE_VERSION) return false;
    memset(message, 0, sizeof *message);
    message->kind = (enum kind)take(&at, 2);
    message->sequence = take(&at, 8);
    switch (message->kind) {
    case WELCOME:
    case CHANGED:
        message->window_us = take(&at, 8);
        message->token_us = take(&at, 8);
        message->request_ppm = (uint32_t)take(&at, 4);
        message->limit_ppm = (uint32_t)take(&at, 4);
        message->memory_bytes = take(&at, 8);
        message->epoch = take(&at, 8);
        message->patience_us = take(&at, 8);
        return true;
    case GRANT:
        message->token = take(&at, 8);
        message->length_us = take(&at, 8);
        message->in_answer_to = take(&at, 8);
        return message->token != 0;
    case STOP:
        message->token = take(&at, 8);
        return true;
    case REFUSED:
        message->reason = (uint32_t)take(&at, 4);
        return true;
    default:
        return false;
    }
}
