#define _GNU_SOURCE
#include "wake.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct own reading = {.descriptor = -1}, writing = {.descriptor = -1};
static atomic_bool told;

/* By system call: `fstat` is another function in older libcs. */
static bool identity(int descriptor, uint64_t *device, uint64_t *inode)
{
    struct stat found;
    if (descriptor < 0 || syscall(SYS_fstat, descriptor, &found) != 0) return false;
    *device = found.st_dev;
    *inode = found.st_ino;
    return true;
}

struct own own_take(int descriptor)
{
    struct own own = {.descriptor = descriptor};
    if (!identity(descriptor, &own.device, &own.inode)) own.descriptor = -1;
    return own;
}

bool own_is_still(const struct own *own)
{
    uint64_t device, inode;
    return identity(own->descriptor, &device, &inode) && device == own->device && inode == own->inode;
}

void own_close(struct own *own)
{
    if (own_is_still(own)) close(own->descriptor);
    own->descriptor = -1;
}

bool wake_make(void)
{
    int ends[2];
    own_close(&reading);
    own_close(&writing);
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return false;
    reading = own_take(ends[0]);
    writing = own_take(ends[1]);
    atomic_store(&told, false);
    return true;
}

bool wake_is_still(void)
{
    return own_is_still(&reading) && own_is_still(&writing);
}

int wake_descriptor(void)
{
    return reading.descriptor;
}

void wake_tell(void)
{
    int error = errno;
    char byte = 0;
    if (!atomic_exchange(&told, true) && own_is_still(&writing))
        while (write(writing.descriptor, &byte, 1) < 0 && errno == EINTR) continue;
    errno = error;
}

void wake_clear(void)
{
    char bytes[16];
    atomic_store(&told, false);
    while (read(reading.descriptor, bytes, sizeof bytes) > 0) continue;
}

void wake_after_fork(void)
{
    own_close(&reading);
    own_close(&writing);
    atomic_store(&told, false);
}
