/*
 * Finds functions by name without dlsym: in what the loader has mapped, by its ELF tables.
 *
 * The library replaces dlsym, so it cannot ask it; and asking for a version of it (dlvsym) would bind the library to
 * the libc that it was built with, and containers with an older one could not load it.
 */
#ifndef SLUICE_QUOTA_SYMBOLS_H
#define SLUICE_QUOTA_SYMBOLS_H

/*
 * The function `name` as an object defines it whose file's name begins with `file` ("libcuda.so"; "": any object but
 * this library), or NULL. The first in the loader's order.
 */
void *symbol_in(const char *file, const char *name);

#endif
