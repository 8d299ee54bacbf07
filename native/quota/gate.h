/*
 * Where launches wait. A launch goes through while the time that the keeper has set is not over; it then costs a look
 * at the clock and two counts. Else its thread waits here until the keeper has a token.
 */
#ifndef SLUICE_QUOTA_GATE_H
#define SLUICE_QUOTA_GATE_H

#include <stdbool.h>
#include <stdint.h>

#include "device.h"

/* One launch on its way through. */
struct pass {
    bool counted;
    int error;  /* errno as the program had it */
    int cancel; /* whether its thread may be cancelled, likewise */
};

struct pass gate_enter(struct where where);
void gate_leave(struct pass pass);

/* For the keeper. */
void gate_open_until(int64_t until);
void gate_refill(int64_t launches); /* so many may go through from now on */
int64_t gate_launched(void);        /* so many went through since */
bool gate_is_spent(void);           /* and one more waits to */
void gate_shut(void);           /* blocks new launches, and waits for those under way */
void gate_draining(bool on);    /* since now the device is being waited for */
bool gate_is_wanted(void);
int64_t gate_last_launch(void);
void gate_no_more(void);        /* the process ends: everybody goes through */
void gate_after_fork(void);

#endif
