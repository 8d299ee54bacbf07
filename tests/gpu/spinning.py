"""
A CUDA process that wants the device all the time: kernels of a known length, one after another, through ctypes alone.

    spinning.py MICROSECONDS    says `ready`, waits for a line, and then tells every 100 ms how many it has finished

Each kernel spins by the device's own clock (`%globaltimer`, in nanoseconds; PTX ISA, "Special Registers"), so two that
share the device by turns of the hardware's choosing would seem to take no longer: a sum over kernels comes to more than
there was time. It imports nothing of ours, and ends with the end of its input.
"""

import ctypes
import select
import sys
import time
from ctypes import byref, c_char_p, c_int, c_uint, c_uint64, c_void_p

AHEAD = 4
TELL_EVERY_S = 0.1
PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 spin_ns)
{
    .reg .pred %more;
    .reg .b64 %d_begin, %d_now, %d_length;
    ld.param.u64 %d_length, [spin_ns];
    mov.u64 %d_begin, %globaltimer;
stay:
    mov.u64 %d_now, %globaltimer;
    sub.s64 %d_now, %d_now, %d_begin;
    setp.lt.u64 %more, %d_now, %d_length;
    @%more bra stay;
    ret;
}
"""


def call(library: ctypes.CDLL, name: str, *arguments: object) -> None:
    """Call the driver. Ends the process with what it refused."""
    code = getattr(library, name)(*arguments)
    if code:
        sys.exit(f"{name} answered {code}")


def main(length_us: float) -> int:
    """Spin until the input ends."""
    cuda = ctypes.CDLL("libcuda.so.1")
    device, context, module, kernel = c_int(), c_void_p(), c_void_p(), c_void_p()
    events = [c_void_p() for _ in range(AHEAD)]
    call(cuda, "cuInit", c_uint(0))
    call(cuda, "cuDeviceGet", byref(device), c_int(0))
    call(cuda, "cuCtxCreate_v2", byref(context), c_uint(0), device)
    call(cuda, "cuModuleLoadData", byref(module), c_char_p(PTX))
    call(cuda, "cuModuleGetFunction", byref(kernel), module, c_char_p(b"spin"))
    for event in events:
        call(cuda, "cuEventCreate", byref(event), c_uint(2))
    parameters = (c_void_p * 1)(ctypes.addressof(c_uint64(int(length_us * 1000))))
    grid = [c_uint(1)] * 6
    say("ready")
    sys.stdin.readline()
    launched, told = 0, time.monotonic()
    while True:
        if launched >= AHEAD:
            call(cuda, "cuEventSynchronize", events[launched % AHEAD])
        if time.monotonic() - told >= TELL_EVERY_S:
            if select.select([sys.stdin], [], [], 0)[0]:
                return 0
            told = time.monotonic()
            say(f"{max(0, launched - AHEAD)} {told:.6f}")
        call(cuda, "cuLaunchKernel", kernel, *grid, c_uint(0), c_void_p(), parameters, c_void_p())
        call(cuda, "cuEventRecord", events[launched % AHEAD], c_void_p())
        launched += 1


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))
