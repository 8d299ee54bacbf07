/*
 * A pipe by which threads wake the keeper, and the care for descriptors that a program may close behind our back (many
 * close all they do not know): a number that is no longer ours must not be written to.
 */
#ifndef SLUICE_QUOTA_WAKE_H
#define SLUICE_QUOTA_WAKE_H

#include <stdbool.h>
#include <stdint.h>

struct own {
    int descriptor; /* -1: none */
    uint64_t device, inode;
};

struct own own_take(int descriptor);
bool own_is_still(const struct own *own);
void own_close(struct own *own);

bool wake_make(void);
bool wake_is_still(void);
int wake_descriptor(void);
void wake_tell(void);
void wake_clear(void);
void wake_after_fork(void);

#endif
