/* The connection to the scheduler: a socket of packets. Never waits; reports only success or failure. */
#ifndef SLUICE_QUOTA_LINK_H
#define SLUICE_QUOTA_LINK_H

#include <stdbool.h>

#include "wire.h"

enum heard { NOTHING, A_MESSAGE, NONSENSE, GONE };

/* The descriptor, or -1 with errno. Closed on exec. */
int link_open(const char *path);

/* False: the scheduler is gone, or has not read for so long that the socket is full. */
bool link_send(int descriptor, const struct message *message);

enum heard link_hear(int descriptor, struct message *message);

#endif
