"""What a real driver reports of the use of a GPU: before any process works on it, and while one does."""

import platform
import time

import pytest
from gpu.clients import Client, until
from gpu.hardware_report import HardwareReport

CLIENT_MIB = 512
LOOKS = 20
LOOK_MAX_S = 1.0
"""Of one look, on average: more would be in the way of slices that are made meanwhile."""


def test_a_look_is_short_and_an_idle_gpu_does_nothing(backend, quiet_gpu, hardware_report: HardwareReport) -> None:
    """An agent that looks at its GPUs would keep them from being given."""
    gpu = quiet_gpu.uuid
    backend.uses(gpu, (gpu,))
    began = time.monotonic()
    for _ in range(LOOKS):
        (use,) = backend.uses(gpu, (gpu,))
    took_s = (time.monotonic() - began) / LOOKS
    hardware_report.fact("usage", "time of one sample (ms)", round(took_s * 1000, 2))
    assert took_s < LOOK_MAX_S
    time.sleep(1.0)  # nothing is waited for: this is the time that the next look is about
    (use,) = backend.uses(gpu, (gpu,))
    idle = f"{use.busy_percent}, {use.sm_percent}, {use.memory_busy_percent}"
    hardware_report.fact("usage", "idle: busy, SMs, memory (percent)", idle)
    assert use.processes == ()
    assert use.busy_percent is None or use.busy_percent < 5
    assert use.memory_mib is not None
    assert 0 <= use.memory_mib < quiet_gpu.memory_mib


def test_what_a_process_does_is_told(backend, quiet_gpu, hardware_report: HardwareReport) -> None:
    """A slice that is worked on would be called idle, and its owner be asked to give it back."""
    gpu = quiet_gpu.uuid
    with Client({"CUDA_VISIBLE_DEVICES": gpu}) as client:
        assert "error" not in client.ask("open")
        before = backend.uses(gpu, (gpu,))[0].memory_mib
        assert "error" not in client.ask("take", mib=CLIENT_MIB)

        def work_and_look():
            for _ in range(20):
                assert "error" not in client.ask("run")
            return backend.uses(gpu, (gpu,))[0]

        use = work_and_look()
        if use.busy_percent is None and use.sm_percent is None:
            hardware_report.fact("usage", "busy: percent", "not reported by this driver")
        else:
            use = until(work_and_look, lambda seen: (seen.busy_percent or 0) > 0, "the work to be seen")
            hardware_report.fact("usage", "at work: busy, SMs (percent)", f"{use.busy_percent}, {use.sm_percent}")
        assert use.memory_mib >= before + CLIENT_MIB
        hardware_report.fact("usage", "at work: reported processes", len(use.processes))
        if "gvisor" in platform.version().lower() or platform.release().startswith("4.4.0"):
            pytest.skip("in this sandbox the driver knows processes by ids of the host")
        (own,) = [each for each in use.processes if each.pid == client.pid]
        hardware_report.fact("usage", "at work: busy, memory of the process", f"{own.busy_percent}, {own.memory_mib}")
        assert own.memory_mib is None or own.memory_mib >= CLIENT_MIB
