/*
 * The library's one thread, and the process's life: when it begins, forks and ends. The thread talks to the
 * scheduler, opens and shuts the gate, and waits for the device at the end of a token.
 */
#ifndef SLUICE_QUOTA_KEEPER_H
#define SLUICE_QUOTA_KEEPER_H

#include <stdbool.h>

#include "settings.h"

/* Whether there is a quota to be kept. The first call reads the settings and starts the thread. */
bool keeper_is_on(void);

/* A thread waits at the gate. */
void keeper_wake(void);

const struct settings *keeper_settings(void);

/* Waits, once per process and for at most its patience, until the scheduler has sent its quota. */
void keeper_wait_for_welcome(void);

#endif
