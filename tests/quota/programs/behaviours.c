/*
 * One behaviour of a CUDA program per name, each of which a preloaded library could break. Says `ok`, or what is wrong.
 *
 *     behaviours NAME [NUMBER]
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api.h"

#define MUST(call) must((call), #call)
static const int64_t MILLISECOND = 1000000;
static CUfunction kernel;

static void must(CUresult result, const char *what)
{
    if (result == CUDA_SUCCESS) return;
    printf("%s answered %d\n", what, result);
    exit(1);
}

static void fail(const char *why)
{
    printf("%s\n", why);
    exit(1);
}

static void expect(int good, const char *why)
{
    if (!good) fail(why);
}

static CUcontext begin(void)
{
    CUcontext context;
    CUmodule module;
    MUST(cuInit(0));
    MUST(cuCtxCreate_v2(&context, 0, 0));
    MUST(cuModuleLoadData(&module, "kernels"));
    MUST(cuModuleGetFunction(&kernel, module, "spin"));
    return context;
}

static void launch(CUstream stream, int64_t duration_ns)
{
    void *parameters[] = {&duration_ns};
    MUST(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
}

static void launch_for(CUstream stream, int milliseconds)
{
    for (int i = 0; i < milliseconds; i++) {
        launch(stream, MILLISECOND);
        MUST(cuStreamSynchronize(stream));
    }
}

/* One of the ways to launch that the stand-in has. */
static void launch_by_way(int number)
{
    int64_t duration_ns = MILLISECOND;
    void *parameters[] = {&duration_ns};
    CUstream stream;
    CUgraph graph;
    CUgraphExec exec;
    CUlaunchConfig config = {{1, 1, 1}, {1, 1, 1}, 0, NULL, NULL, 0};
    begin();
    MUST(cuStreamCreate(&stream, 0));
    CUDA_LAUNCH_PARAMS several[] = {{kernel, {1, 1, 1}, {1, 1, 1}, 0, stream, parameters}};
    config.stream = stream;
    MUST(cuStreamBeginCapture_v2(stream, 0)); /* which is no launch, and is not held up */
    MUST(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
    MUST(cuStreamEndCapture(stream, &graph));
    MUST(cuGraphInstantiateWithFlags(&exec, graph, 0));
    switch (number) {
    case 0: MUST(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL)); break;
    case 1: MUST(cuLaunchKernel_ptsz(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL)); break;
    case 2: MUST(cuLaunchKernelEx(&config, kernel, parameters, NULL)); break;
    case 3: MUST(cuLaunchKernelEx_ptsz(&config, kernel, parameters, NULL)); break;
    case 4: MUST(cuLaunchCooperativeKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters)); break;
    case 5: MUST(cuLaunchCooperativeKernel_ptsz(kernel, 1, 1, 1, 1, 1, 1, 0, CU_STREAM_PER_THREAD, parameters)); break;
    case 6: MUST(cuLaunchCooperativeKernelMultiDevice(several, 1, 0)); break;
    case 7: MUST(cuGraphLaunch(exec, stream)); break;
    case 8: MUST(cuGraphLaunch_ptsz(exec, stream)); break;
    case 9: MUST(cuLaunch(kernel)); break;
    case 10: MUST(cuLaunchGrid(kernel, 1, 1)); break;
    case 11: MUST(cuLaunchGridAsync(kernel, 1, 1, stream)); break;
    default: fail("there is no such way to launch");
    }
    MUST(cuCtxSynchronize());
}

/* A graph of 50 ms of kernels takes far longer to capture than a token lasts; a synchronisation would end it. */
static void capture(void)
{
    CUstream stream, other;
    CUgraph graph;
    CUgraphExec exec;
    begin();
    MUST(cuStreamCreate(&stream, 0));
    MUST(cuStreamCreate(&other, 0));
    launch_for(other, 15);
    for (int round = 0; round < 3; round++) {
        launch(other, 3 * MILLISECOND);
        MUST(cuStreamBeginCapture_v2(stream, 0));
        for (int i = 0; i < 50; i++) {
            launch(stream, MILLISECOND);
            usleep(1000);
        }
        MUST(cuStreamEndCapture(stream, &graph));
        MUST(cuGraphInstantiateWithFlags(&exec, graph, 0));
        MUST(cuGraphLaunch(exec, stream));
        MUST(cuGraphLaunch_ptsz(exec, stream));
        MUST(cuStreamSynchronize(stream));
        MUST(cuGraphDestroy(graph));
        MUST(cuGraphExecDestroy(exec));
    }
    /* A stream that ends while it is captured takes its capture with it: nothing waits for the capture's end. */
    MUST(cuStreamBeginCapture_v2(stream, 0));
    MUST(cuStreamDestroy_v2(stream));
    launch_for(other, 30);
}

static void *in_thread(void *context)
{
    CUstream stream;
    MUST(cuCtxSetCurrent(context));
    MUST(cuStreamCreate(&stream, 0));
    launch_for(stream, 40);
    MUST(cuStreamDestroy_v2(stream));
    return NULL;
}

static void threads(void)
{
    pthread_t thread[4];
    CUcontext context = begin();
    for (int i = 0; i < 4; i++) pthread_create(&thread[i], NULL, in_thread, context);
    for (int i = 0; i < 4; i++) pthread_join(thread[i], NULL);
}

/* Two contexts on two devices; one goes while the library may be waiting for it. */
static void contexts(void)
{
    CUcontext first = begin(), second, primary;
    for (int round = 0; round < 15; round++) {
        MUST(cuCtxCreate_v2(&second, 0, 1));
        launch(NULL, 4 * MILLISECOND);
        MUST(cuCtxSetCurrent(first));
        launch(NULL, 4 * MILLISECOND);
        MUST(cuCtxDestroy_v2(second));
        MUST(cuDevicePrimaryCtxRetain(&primary, 1));
        MUST(cuCtxSetCurrent(primary));
        launch(NULL, 4 * MILLISECOND);
        MUST(round % 2 ? cuDevicePrimaryCtxReset_v2(1) : cuDevicePrimaryCtxRelease_v2(1));
        MUST(cuCtxSetCurrent(first));
    }
    MUST(cuCtxSynchronize());
}

/* The parent launches before and after; the child, which has its own connection, too, when it is a CUDA process. */
static void forks(void)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        begin();
        launch_for(NULL, 60);
        exit(0); /* through the library's end, and the driver's */
    }
    begin();
    launch_for(NULL, 60);
    pid_t late = fork();
    if (late == 0) { /* CUDA does not work here, and must say so itself */
        int64_t duration_ns = 0;
        void *parameters[] = {&duration_ns};
        _exit(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL) == CUDA_SUCCESS);
    }
    launch_for(NULL, 30);
    expect(waitpid(child, &status, 0) == child && status == 0, "the child that has CUDA of its own failed");
    expect(waitpid(late, &status, 0) == late && status == 0, "a child of a CUDA process could launch, or crashed");
}

/* As many daemons do. The numbers are then other files', which must not be written to. */
static void closes_all(void)
{
    char found[8] = "";
    int pipes[64][2];
    begin();
    launch_for(NULL, 20);
    for (int i = 3; i < 1024; i++) { /* the device's own file is mapped; its lock goes, as it would at an exec */
        char path[64], target[256];
        snprintf(path, sizeof path, "/proc/self/fd/%d", i);
        ssize_t length = readlink(path, target, sizeof target - 1);
        if (length > 0 && strstr(strndup(target, (size_t)length), "device") == NULL) close(i);
    }
    for (int i = 0; i < 64; i++) expect(pipe2(pipes[i], O_NONBLOCK) == 0, "no pipe");
    launch_for(NULL, 60);
    for (int i = 0; i < 64; i++) expect(read(pipes[i][0], found, sizeof found) < 0, "a stranger was written to");
}

static void keeps_errno(void)
{
    begin();
    for (int i = 0; i < 40; i++) {
        errno = 1234;
        launch(NULL, MILLISECOND);
        expect(errno == 1234, "errno was changed");
    }
}

static void *launch_forever(void *context)
{
    MUST(cuCtxSetCurrent(context));
    for (;;) launch(NULL, MILLISECOND / 20);
    return NULL;
}

/* A thread is cancelled while it waits to launch; the others go on. */
static void cancels(void)
{
    pthread_t thread;
    CUcontext context = begin();
    for (int i = 0; i < 3; i++) {
        pthread_create(&thread, NULL, launch_forever, context);
        usleep(15000);
        pthread_cancel(thread);
        pthread_detach(thread); /* it may never come to a point where it ends; the process does */
        launch_for(NULL, 5);
    }
}

/* Limited to 64 MiB by the scheduler. */
static void memory(void)
{
    const size_t MIB = 1024 * 1024;
    CUdeviceptr address, more;
    CUmemGenericAllocationHandle physical;
    CUmemAllocationProp wanted = {1, 0, 1, 0, ""};
    CUDA_ARRAY_DESCRIPTOR flat = {1024, 1024, 0x20, 4};
    CUarray array;
    size_t left, total, pitch;
    CUcontext second, first = begin();
    MUST(cuMemGetInfo_v2(&left, &total));
    expect(total == 64 * MIB && left == 64 * MIB, "the whole device's memory is shown");
    MUST(cuDeviceTotalMem_v2(&total, 0));
    expect(total == 64 * MIB, "the whole device's memory is shown as the device's");
    MUST(cuMemAlloc_v2(&address, 40 * MIB));
    expect(cuMemAlloc_v2(&more, 25 * MIB) == CUDA_ERROR_OUT_OF_MEMORY, "more than the limit was given");
    expect(cuMemAllocManaged(&more, 25 * MIB, 1) == CUDA_ERROR_OUT_OF_MEMORY, "more was given, managed");
    expect(cuMemAllocAsync(&more, 25 * MIB, NULL) == CUDA_ERROR_OUT_OF_MEMORY, "more was given, in a stream");
    expect(cuMemAllocAsync_ptsz(&more, 25 * MIB, NULL) == CUDA_ERROR_OUT_OF_MEMORY, "more was given, in its stream");
    expect(cuMemAllocPitch_v2(&more, &pitch, 25 * MIB, 1, 4) == CUDA_ERROR_OUT_OF_MEMORY, "more was given, pitched");
    expect(cuMemCreate(&physical, 25 * MIB, &wanted, 0) == CUDA_ERROR_OUT_OF_MEMORY, "more was given, physical");
    MUST(cuArrayCreate_v2(&array, &flat));
    expect(cuMemAlloc_v2(&more, 9 * MIB) == CUDA_ERROR_OUT_OF_MEMORY, "an array does not count");
    MUST(cuArrayDestroy(array));
    expect(cuArrayCreate_v2(&array, NULL) == CUDA_ERROR_INVALID_VALUE, "an array of no kind is not refused");
    expect(cuArray3DCreate_v2(&array, NULL) == CUDA_ERROR_INVALID_VALUE, "an array of no kind is not refused");
    MUST(cuMemGetInfo_v2(&left, &total));
    expect(left == 24 * MIB, "what is left is not what is left");
    expect(cuMemAlloc_v2(&more, 0) == CUDA_ERROR_INVALID_VALUE, "the driver's own refusal is lost");
    MUST(cuMemFree_v2(address));
    expect(cuMemFree_v2(address) == CUDA_ERROR_INVALID_VALUE, "freeing twice is not refused");
    for (int i = 0; i < 5000; i++) { /* nothing is forgotten, nothing counted twice */
        MUST(cuMemAllocAsync(&address, 60 * MIB, NULL));
        MUST(cuMemFreeAsync(address, NULL));
    }
    for (int i = 0; i < 3000; i++) MUST(cuMemAlloc_v2(&more, 1024));
    MUST(cuCtxCreate_v2(&second, 0, 0));
    MUST(cuMemAlloc_v2(&address, 50 * MIB));
    MUST(cuCtxDestroy_v2(second)); /* its memory goes with it */
    MUST(cuCtxSetCurrent(first));
    MUST(cuMemAlloc_v2(&address, 50 * MIB));
    MUST(cuMemCreate(&physical, 8 * MIB, &wanted, 0));
    MUST(cuMemRelease(physical));
    MUST(cuMemCreate(&physical, 8 * MIB, &wanted, 0));
}

/* The stand-in is as strict as a driver, or what the other behaviours show would be worth nothing. */
static void strict(void)
{
    CUstream stream;
    CUgraph graph;
    CUcontext context = begin();
    int64_t duration_ns = MILLISECOND;
    void *parameters[] = {&duration_ns};
    MUST(cuStreamCreate(&stream, 0));
    MUST(cuStreamBeginCapture_v2(stream, 0));
    expect(cuCtxSynchronize() == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "a context may be waited for in a capture");
    expect(cuStreamEndCapture(stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "the capture goes on");
    MUST(cuStreamBeginCapture_v2(stream, 0));
    expect(cuStreamQuery(stream) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "a captured stream may be looked at");
    expect(cuStreamEndCapture(stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "the capture goes on");
    launch(stream, 50 * MILLISECOND);
    expect(cuStreamQuery(stream) == CUDA_ERROR_NOT_READY, "a kernel takes no time");
    MUST(cuStreamDestroy_v2(stream));
    expect(cuStreamQuery(stream) == CUDA_ERROR_INVALID_HANDLE, "a stream that is gone may be looked at");
    MUST(cuCtxDestroy_v2(context));
    expect(cuCtxPushCurrent_v2(context) == CUDA_ERROR_INVALID_CONTEXT, "a context that is gone may be used");
    expect(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL) != CUDA_SUCCESS, "or launched into");
}

/* Waits for the line that lets it go on, so that the test can do something meanwhile. */
static void launches_around(void)
{
    begin();
    launch_for(NULL, 20);
    printf("launched\n");
    fflush(stdout);
    expect(getchar() != EOF, "it was not continued");
    launch_for(NULL, 20);
}

static const struct {
    const char *name;
    void (*run)(void);
} all[] = {
    {"capture", capture}, {"threads", threads},       {"contexts", contexts},
    {"forks", forks},               {"memory", memory},   {"closes-all", closes_all}, {"keeps-errno", keeps_errno},
    {"cancels", cancels},           {"launches-around", launches_around},
    {"strict", strict},
};

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "launch") == 0) {
        launch_by_way(atoi(argv[2]));
        printf("ok\n");
        return 0;
    }
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (argc == 2 && strcmp(argv[1], all[i].name) == 0) {
            all[i].run();
            printf("ok\n");
            return 0;
        }
    return 2;
}
