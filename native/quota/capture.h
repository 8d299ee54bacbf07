/*
 * Which streams are being captured. What is launched into one is only recorded, into a graph: it is no work for the
 * device. And while one is captured its context may not be waited for: CUDA ends the capture with an error.
 */
#ifndef SLUICE_QUOTA_CAPTURE_H
#define SLUICE_QUOTA_CAPTURE_H

#include <stdbool.h>

#include "where.h"

void capture_begins(struct where where);
void capture_ends(struct where where);
void capture_stream_ends(CUstream stream);
void capture_context_ends(CUcontext context);

/* Whether any stream of this process is being captured. */
bool capture_is_on(void);

/* Whether what is launched there is captured. */
bool capture_takes(struct where where);

/* In a forked child: none is. */
void capture_after_fork(void);

#endif
