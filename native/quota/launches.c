/* What gives the device work: each launch passes the gate on its way to the driver. */
#include "cuda.h"
#include "driver.h"
#include "exported.h"
#include "gate.h"

/* A function of the driver with a gate before it. `stream` says where it goes, by the parameters' names. */
#define LAUNCH(symbol, own, stream, parameters, ...)                                                                   \
    EXPORTED CUresult symbol parameters;                                                                               \
    EXPORTED CUresult symbol parameters                                                                                \
    {                                                                                                                  \
        CUresult(*next) parameters = driver_function(DRIVER_##symbol);                                                 \
        if (next == NULL) return CUDA_ERROR_NOT_FOUND;                                                                 \
        struct pass pass = gate_enter((struct where){stream, own});                                                    \
        CUresult result = next(__VA_ARGS__);                                                                           \
        gate_leave(pass);                                                                                              \
        return result;                                                                                                 \
    }

#define KERNEL_PARAMETERS                                                                                              \
    (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,       \
     unsigned block_z, unsigned shared_bytes, CUstream stream, void **values, void **extra)
LAUNCH(cuLaunchKernel, false, stream, KERNEL_PARAMETERS, function, grid_x, grid_y, grid_z, block_x, block_y, block_z,
       shared_bytes, stream, values, extra)
LAUNCH(cuLaunchKernel_ptsz, true, stream, KERNEL_PARAMETERS, function, grid_x, grid_y, grid_z, block_x, block_y,
       block_z, shared_bytes, stream, values, extra)

#define CONFIG_PARAMETERS (const CUlaunchConfig *config, CUfunction function, void **values, void **extra)
LAUNCH(cuLaunchKernelEx, false, config != NULL ? config->stream : NULL, CONFIG_PARAMETERS, config, function, values,
       extra)
LAUNCH(cuLaunchKernelEx_ptsz, true, config != NULL ? config->stream : NULL, CONFIG_PARAMETERS, config, function, values,
       extra)

#define COOPERATIVE_PARAMETERS                                                                                         \
    (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,       \
     unsigned block_z, unsigned shared_bytes, CUstream stream, void **values)
LAUNCH(cuLaunchCooperativeKernel, false, stream, COOPERATIVE_PARAMETERS, function, grid_x, grid_y, grid_z, block_x,
       block_y, block_z, shared_bytes, stream, values)
LAUNCH(cuLaunchCooperativeKernel_ptsz, true, stream, COOPERATIVE_PARAMETERS, function, grid_x, grid_y, grid_z, block_x,
       block_y, block_z, shared_bytes, stream, values)

LAUNCH(cuGraphLaunch, false, stream, (CUgraphExec graph, CUstream stream), graph, stream)
LAUNCH(cuGraphLaunch_ptsz, true, stream, (CUgraphExec graph, CUstream stream), graph, stream)

LAUNCH(cuLaunch, false, NULL, (CUfunction function), function)
LAUNCH(cuLaunchGrid, false, NULL, (CUfunction function, int width, int height), function, width, height)
LAUNCH(cuLaunchGridAsync, false, stream, (CUfunction function, int width, int height, CUstream stream), function, width,
       height, stream)

EXPORTED CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *launches, unsigned devices, unsigned flags);
EXPORTED CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *launches, unsigned devices, unsigned flags)
{
    CUresult (*next)(CUDA_LAUNCH_PARAMS *, unsigned, unsigned) =
        driver_function(DRIVER_cuLaunchCooperativeKernelMultiDevice);
    if (next == NULL) return CUDA_ERROR_NOT_FOUND;
    if (launches == NULL || devices == 0) return next(launches, devices, flags);
    /* One launch, on several devices: none of its streams may be captured or be a default one. */
    struct pass pass = gate_enter((struct where){launches[0].stream, false});
    for (unsigned i = 1; pass.counted && i < devices; i++) device_touch((struct where){launches[i].stream, false});
    CUresult result = next(launches, devices, flags);
    gate_leave(pass);
    return result;
}
