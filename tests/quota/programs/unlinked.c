/*
 * A program that is not linked to libcuda, as those are not that use the CUDA runtime: it loads the driver by name and
 * finds its functions by dlsym, by cuGetProcAddress, and for a default stream of each thread.
 *
 *     unlinked dlsym|runtime|per-thread|next
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int (*function)();

static void *driver;
static int (*find)(const char *, void **, int, uint64_t, int *);
static uint64_t flags;

static function get(const char *name, const char *exported)
{
    void *found = NULL;
    int status;
    if (find == NULL)
        found = dlsym(driver, exported);
    else if (find(name, &found, 12000, flags, &status) != 0)
        found = NULL;
    if (found == NULL) {
        printf("%s is not found\n", name);
        exit(1);
    }
    return (function)found;
}

static void must(int result, const char *what)
{
    if (result == 0) return;
    printf("%s answered %d\n", what, result);
    exit(1);
}

int main(int argc, char **argv)
{
    if (argc != 2) return 2;
    if (strcmp(argv[1], "next") == 0) { /* RTLD_NEXT finds what comes after the caller */
        void *(*next)(size_t) = (void *(*)(size_t))dlsym(RTLD_NEXT, "malloc");
        void *(*usual)(size_t) = (void *(*)(size_t))dlsym(RTLD_DEFAULT, "malloc");
        Dl_info where;
        int libc = next != NULL && dladdr((void *)next, &where) != 0 && strstr(where.dli_fname, "libc") != NULL;
        int own = dlsym(RTLD_NEXT, "main") == NULL; /* nothing after the program has a main */
        printf("%s\n", libc && own && usual == next ? "ok" : "RTLD_NEXT is not answered for who asks");
        return 0;
    }
    driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (driver == NULL) {
        printf("%s\n", dlerror());
        return 1;
    }
    if (strcmp(argv[1], "dlsym") != 0) {
        find = (int (*)(const char *, void **, int, uint64_t, int *))dlsym(driver, "cuGetProcAddress_v2");
        flags = strcmp(argv[1], "per-thread") == 0 ? 2 : 1;
        void *again = NULL;
        int status;
        must(find("cuGetProcAddress", &again, 12000, flags, &status), "cuGetProcAddress of itself");
        find = (int (*)(const char *, void **, int, uint64_t, int *))again;
    }
    void *context, *module, *kernel;
    int64_t duration_ns = 1000000;
    void *parameters[] = {&duration_ns};
    must(get("cuInit", "cuInit")(0), "cuInit");
    must(get("cuCtxCreate", "cuCtxCreate_v2")(&context, 0, 0), "cuCtxCreate");
    must(get("cuModuleLoadData", "cuModuleLoadData")(&module, "kernels"), "cuModuleLoadData");
    must(get("cuModuleGetFunction", "cuModuleGetFunction")(&kernel, module, "spin"), "cuModuleGetFunction");
    function launch = get("cuLaunchKernel", "cuLaunchKernel"), wait = get("cuCtxSynchronize", "cuCtxSynchronize");
    for (int i = 0; i < 60; i++) {
        must(launch(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL), "cuLaunchKernel");
        must(wait(), "cuCtxSynchronize");
    }
    printf("ok\n");
    return 0;
}
