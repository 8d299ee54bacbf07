/* The settings in the environment, read once per process, and the few lines written to stderr. */
#ifndef SLUICE_QUOTA_SETTINGS_H
#define SLUICE_QUOTA_SETTINGS_H

#include <stdbool.h>
#include <stdint.h>

enum { LIBRARY_VERSION = 1 << 16 }; /* major << 16 | minor << 8 | patch */

struct settings {
    char socket[108];    /* SLUICE_QUOTA_SOCKET; empty: the library does nothing at all */
    bool fail_closed;    /* SLUICE_QUOTA_FAIL=closed */
    int64_t patience_ns; /* SLUICE_QUOTA_PATIENCE_MS, 2,000 when not said */
    int log;             /* SLUICE_QUOTA_LOG: 0 nothing, 1 what a person should know, 2 each token */
};

/* Reads the environment. An invalid value is logged, and its default used. */
void settings_read(struct settings *settings);

/* Writes one line to stderr, after `sluice-quota: `, when SLUICE_QUOTA_LOG is at least `level`. Never allocates. */
void say(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
