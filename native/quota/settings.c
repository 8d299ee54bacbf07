#define _GNU_SOURCE
#include "settings.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LINE_MAX_BYTES = 400 };
static const int64_t NS_PER_MS = 1000000;
static const int64_t PATIENCE_MS = 2000, PATIENCE_MS_LEAST = 500, PATIENCE_MS_MOST = 3600 * 1000;
/* Also what is said about the settings themselves must find a level, so it is set before the others are read. */
static int level_of_process = 1;

/*
 * A decimal number within bounds, or `usual`. By hand: strtol would bind this library to the newest libc that it was
 * built with (`__isoc23_strtol`), and a container with an older one could not load it.
 */
static int64_t number(const char *name, int64_t usual, int64_t least, int64_t most)
{
    const char *text = getenv(name);
    if (text == NULL || *text == '\0') return usual;
    int64_t value = 0;
    const char *at = text;
    while (*at >= '0' && *at <= '9' && value <= most) value = 10 * value + (*at++ - '0');
    if (*at == '\0' && value >= least && value <= most) return value;
    say(1, "%s is '%.40s'; it must be a whole number from %lld to %lld. %lld is taken", name, text, (long long)least,
        (long long)most, (long long)usual);
    return usual;
}

void settings_read(struct settings *settings)
{
    memset(settings, 0, sizeof *settings);
    level_of_process = (int)number("SLUICE_QUOTA_LOG", 1, 0, 2);
    settings->log = level_of_process;
    const char *socket = getenv("SLUICE_QUOTA_SOCKET");
    if (socket != NULL) snprintf(settings->socket, sizeof settings->socket, "%s", socket);
    if (socket != NULL && strlen(socket) >= sizeof settings->socket)
        say(1, "SLUICE_QUOTA_SOCKET has %zu bytes; a socket's path has at most %zu. No server can answer there",
            strlen(socket), sizeof settings->socket - 1);
    if (settings->socket[0] == '\0') return;
    const char *fail = getenv("SLUICE_QUOTA_FAIL");
    settings->fail_closed = fail != NULL && strcmp(fail, "closed") == 0;
    if (fail != NULL && *fail != '\0' && strcmp(fail, "open") != 0 && strcmp(fail, "closed") != 0)
        say(1, "SLUICE_QUOTA_FAIL is '%.40s'; it must be open or closed. open is taken", fail);
    settings->patience_ns =
        NS_PER_MS * number("SLUICE_QUOTA_PATIENCE_MS", PATIENCE_MS, PATIENCE_MS_LEAST, PATIENCE_MS_MOST);
}

void say(int level, const char *format, ...)
{
    char line[LINE_MAX_BYTES];
    if (level > level_of_process) return;
    int head = snprintf(line, sizeof line, "sluice-quota: ");
    va_list values;
    va_start(values, format);
    int body = vsnprintf(line + head, sizeof line - (size_t)head, format, values);
    va_end(values);
    if (body < 0) return;
    size_t length = (size_t)head + (size_t)body;
    if (length > sizeof line - 2) length = sizeof line - 2;
    line[length++] = '\n';
    /* One write, so that lines of several processes do not mix. A closed stderr is no error. */
    if (write(STDERR_FILENO, line, length) < 0) return;
}
