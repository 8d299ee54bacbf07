"""
A CUDA process for the checks on real hardware: the driver API through ctypes, nothing else installed.

Reads one JSON command per line and answers each with one JSON line; ends with the end of its input. It imports
nothing of ours: it is judged by what the driver tells an ordinary program.

    {"do": "open"}            a context on device 0; says the SMs and the memory that it sees
    {"do": "take", "mib": n}  allocates; says whether the driver let it
    {"do": "run"}             runs a kernel on as many blocks as would fill the GPU; says on how many SMs it was

Numbers and signatures: CUDA driver API reference (cuda.h): CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT is 16,
CU_EXEC_AFFINITY_TYPE_SM_COUNT is 0.
"""

import ctypes
import json
import sys
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint32, c_uint64, c_void_p

MIB = 1024 * 1024
MULTIPROCESSOR_COUNT = 16
BLOCKS_PER_SM = 8
CYCLES = 2_000_000
"""How long each block stays, in clock cycles of its SM: about a millisecond, so that blocks must spread."""
PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry where(.param .u64 where_out, .param .u64 where_cycles)
{
    .reg .pred %more;
    .reg .b32 %r_sm, %r_block;
    .reg .b64 %d_out, %d_at, %d_off, %d_begin, %d_now, %d_cycles;
    ld.param.u64 %d_out, [where_out];
    ld.param.u64 %d_cycles, [where_cycles];
    cvta.to.global.u64 %d_out, %d_out;
    mov.u32 %r_block, %ctaid.x;
    mov.u32 %r_sm, %smid;
    mul.wide.u32 %d_off, %r_block, 4;
    add.s64 %d_at, %d_out, %d_off;
    st.global.u32 [%d_at], %r_sm;
    mov.u64 %d_begin, %clock64;
stay:
    mov.u64 %d_now, %clock64;
    sub.s64 %d_now, %d_now, %d_begin;
    setp.lt.u64 %more, %d_now, %d_cycles;
    @%more bra stay;
    ret;
}
"""


class CudaError(Exception):
    """A call that the driver refused."""

    def __init__(self, call: str, code: int, name: str) -> None:
        """Which call, and the driver's code and name for why."""
        super().__init__(f"{call} answered {code} ({name})")
        self.call, self.code, self.name = call, code, name


class SmCount(ctypes.Structure):
    """CUexecAffinityParam for an SM count."""

    _fields_ = (("type", c_int), ("val", c_uint))


class Cuda:
    """The calls that are needed, each checked."""

    def __init__(self) -> None:
        """Load the driver's library. Raises OSError where there is none."""
        self.library = ctypes.CDLL("libcuda.so.1")
        self.sms = 0

    def call(self, name: str, *arguments: object) -> None:
        code = getattr(self.library, name)(*arguments)
        if code:
            text = c_char_p()
            self.library.cuGetErrorName(c_int(code), byref(text))
            raise CudaError(name, code, (text.value or b"unknown").decode())

    def open(self) -> dict[str, object]:
        """A context on device 0, and what it sees."""
        self.call("cuInit", c_uint(0))
        count, device, context = c_int(), c_int(), c_void_p()
        self.call("cuDeviceGetCount", byref(count))
        self.call("cuDeviceGet", byref(device), c_int(0))
        self.call("cuCtxCreate_v2", byref(context), c_uint(0), device)
        sms, total, free = c_int(), c_size_t(), c_size_t()
        self.call("cuDeviceGetAttribute", byref(sms), c_int(MULTIPROCESSOR_COUNT), device)
        self.call("cuMemGetInfo_v2", byref(free), byref(total))
        self.sms = sms.value
        return {
            "devices": count.value,
            "sms": sms.value,
            "affinity_sms": self._affinity(),
            "memory_mib": total.value // MIB,
            "free_mib": free.value // MIB,
        }

    def _affinity(self) -> int | None:
        """The SMs that the context is limited to; None where the driver does not say (without MPS)."""
        found = SmCount()
        try:
            self.call("cuCtxGetExecAffinity", byref(found), c_int(0))
        except CudaError:
            return None
        return int(found.val)

    def take(self, mib: int) -> dict[str, object]:
        self.call("cuMemAlloc_v2", byref(c_uint64()), c_size_t(mib * MIB))
        return {"mib": mib}

    def run(self) -> dict[str, object]:
        """Run the kernel once. Its blocks say where they were."""
        module, kernel, out = c_void_p(), c_void_p(), c_uint64()
        self.call("cuModuleLoadData", byref(module), c_char_p(PTX))
        self.call("cuModuleGetFunction", byref(kernel), module, c_char_p(b"where"))
        blocks = BLOCKS_PER_SM * max(256, self.sms)
        size = c_size_t(4 * blocks)
        self.call("cuMemAlloc_v2", byref(out), size)
        cycles = c_uint64(CYCLES)
        parameters = (c_void_p * 2)(ctypes.addressof(out), ctypes.addressof(cycles))
        grid = [c_uint(number) for number in (blocks, 1, 1, 1, 1, 1)]
        self.call("cuLaunchKernel", kernel, *grid, c_uint(0), c_void_p(), parameters, c_void_p())
        self.call("cuCtxSynchronize")
        found = (c_uint32 * blocks)()
        self.call("cuMemcpyDtoH_v2", found, out, size)
        self.call("cuMemFree_v2", out)
        return {"sms_run_on": len(set(found))}


def main() -> int:
    """Answer commands until there are no more."""
    try:
        cuda = Cuda()
    except OSError as error:
        say({"error": 0, "call": "dlopen", "name": str(error)})
        return 1
    for line in sys.stdin:
        command = json.loads(line)
        try:
            match command["do"]:
                case "open":
                    answer = cuda.open()
                case "take":
                    answer = cuda.take(command["mib"])
                case _:
                    answer = cuda.run()
        except CudaError as error:
            answer = {"error": error.code, "call": error.call, "name": error.name}
        say(answer)
    return 0


def say(answer: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
