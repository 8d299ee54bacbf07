/*
 * A CUDA program for the proof: launches kernels and says what it did. Linked to libcuda like any other; where it says
 * `dlopen` it is not, and finds everything as the CUDA runtime does.
 *
 *     tenant steady NANOSECONDS SECONDS [WIDTH]   kernels one after another, a few queued ahead, until SECONDS are over
 *     tenant single NANOSECONDS SECONDS [WIDTH]   likewise, none queued ahead
 *     tenant flood NANOSECONDS SECONDS [WIDTH]    likewise, never waiting for one: the queue is always full
 *     tenant bursts NANOSECONDS SECONDS [WIDTH]   0.2 s of kernels, 0.3 s of nothing, and so on
 *     tenant count NANOSECONDS KERNELS [WIDTH]    so many, then it ends
 *
 * The last line is `kernels=N seconds=S`: what was launched, and how long it took.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "api.h"

enum { AHEAD = 4 };

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void must(CUresult result, const char *what)
{
    if (result == CUDA_SUCCESS) return;
    fprintf(stderr, "%s answered %d\n", what, result);
    exit(1);
}

int main(int argc, char **argv)
{
    if (argc < 4) return 2;
    int64_t duration_ns = atoll(argv[2]);
    double limit = atof(argv[3]);
    int width = argc > 4 ? atoi(argv[4]) : 100;
    int counts = strcmp(argv[1], "count") == 0, bursts = strcmp(argv[1], "bursts") == 0;
    int ahead_of_it = strcmp(argv[1], "single") == 0 ? 1 : AHEAD;
    int floods = strcmp(argv[1], "flood") == 0;
    void *parameters[] = {&duration_ns, &width};
    CUcontext context;
    CUmodule module;
    CUfunction kernel;
    CUevent ahead[AHEAD];
    must(cuInit(0), "cuInit");
    must(cuCtxCreate_v2(&context, 0, 0), "cuCtxCreate");
    must(cuModuleLoadData(&module, "kernels"), "cuModuleLoadData");
    must(cuModuleGetFunction(&kernel, module, "narrow"), "cuModuleGetFunction");
    for (int i = 0; i < AHEAD; i++) must(cuEventCreate(&ahead[i], 0), "cuEventCreate");
    printf("ready\n");
    fflush(stdout);
    if (getchar() == EOF) return 1; /* so that several begin together */
    double began = seconds();
    long kernels = 0;
    for (; counts ? kernels < (long)limit : seconds() - began < limit; kernels++) {
        double within = bursts ? seconds() - began : 0;
        if (bursts && within - 0.5 * (double)(long)(within / 0.5) > 0.2) {
            struct timespec rest = {.tv_nsec = 10000000};
            nanosleep(&rest, NULL);
            kernels--;
            continue;
        }
        /* As many are queued as a program has that reads its results a little later. */
        if (kernels >= ahead_of_it && !floods)
            must(cuEventSynchronize(ahead[kernels % ahead_of_it]), "cuEventSynchronize");
        must(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL), "cuLaunchKernel");
        if (!floods) must(cuEventRecord(ahead[kernels % ahead_of_it], NULL), "cuEventRecord");
    }
    must(cuCtxSynchronize(), "cuCtxSynchronize");
    printf("kernels=%ld seconds=%.6f\n", kernels, seconds() - began);
    return 0;
}
