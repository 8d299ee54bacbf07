#define _GNU_SOURCE
#include "link.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int link_open(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    int descriptor = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (descriptor < 0) return -1;
    if (connect(descriptor, (struct sockaddr *)&address, sizeof address) != 0) {
        int error = errno;
        close(descriptor);
        errno = error;
        return -1;
    }
    return descriptor;
}

bool link_send(int descriptor, const struct message *message)
{
    uint8_t packet[WIRE_BYTES];
    wire_write(message, packet);
    for (;;) {
        ssize_t sent = send(descriptor, packet, sizeof packet, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent >= 0 || errno != EINTR) return sent == (ssize_t)sizeof packet;
    }
}

enum heard link_hear(int descriptor, struct message *message)
{
    uint8_t packet[WIRE_BYTES + 1]; /* one more, so that a longer packet is seen to be one */
    for (;;) {
        ssize_t length = recv(descriptor, packet, sizeof packet, MSG_DONTWAIT);
        if (length < 0 && errno == EINTR) continue;
        if (length < 0) return errno == EAGAIN || errno == EWOULDBLOCK ? NOTHING : GONE;
        if (length == 0) return GONE;
        return wire_read(packet, (size_t)length, message) ? A_MESSAGE : NONSENSE;
    }
}
