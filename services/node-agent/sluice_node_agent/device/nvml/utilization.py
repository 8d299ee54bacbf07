"""The use of devices as NVML reports it; what it does not report is None. From the NVML API reference and nvml.h:
`nvmlDeviceGetUtilizationRates` and `nvmlDeviceGetProcessUtilization` do not support MIG mode. GPM (Hopper and newer)
reports GPUs and GPU instances as the difference of two samples. Memory of a process may be "not available".
`nvmlDeviceGetProcessUtilization` is "not found" when no process did something, and under MPS a driver may count all
clients as their server: then each client's use is unknown."""

import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pynvml  # type: ignore[import-untyped]

from sluice.contracts.ids import GpuUuid
from sluice_node_agent.core.usage import DeviceUse, ProcessUse
from sluice_node_agent.device.nvml import holders
from sluice_node_agent.device.nvml import mig as nvml_mig
from sluice_node_agent.device.nvml.attributes import MIB
from sluice_node_agent.device.nvml.errors import known_or
from sluice_node_agent.device.nvml.mig import Handle
from sluice_node_agent.device.processes import Processes

_WANTED = tuple(getattr(pynvml, f"NVML_GPM_METRIC_{name}_UTIL") for name in ("GRAPHICS", "SM", "DRAM_BW"))
"""Any kernel ran; SMs that were busy; bandwidth of the memory. Percent each."""
_Percents = tuple[float | None, float | None, float | None]
_UNTOLD: _Percents = (None, None, None)
_AHEAD_US = 1_000_000
"""How far a sample's time may be ahead of the clock that we read after it."""


@dataclass(slots=True)
class _Gpu:
    gpm: bool | None = None
    """Whether it has GPM; None before it was queried."""
    samples: dict[str, Any] | None = None
    seen_us: int = 0
    """The time of the last sample of processes, by the wall clock, as the driver has it."""


class UtilizationReader:
    """Samples the use of one node's GPUs, and keeps what the next sample is compared with."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._gpus: dict[GpuUuid, _Gpu] = {}

    def read(self, gpu: GpuUuid, device: Handle, wanted: Collection[str]) -> tuple[DeviceUse, ...]:
        """The use of `wanted` devices of one GPU; missing ones are left out. Raises NVML's errors."""
        kept = self._gpus.setdefault(gpu, _Gpu())
        found = []
        if not nvml_mig.mode(device).now:
            if gpu in wanted:
                found.append(self._whole(kept, gpu, device))
        else:
            for uuid in wanted:
                mig = nvml_mig.mig_device(device, uuid) if uuid != gpu else None
                if mig is not None:
                    found.append(self._instance(kept, device, uuid, mig))
        self._forget(kept, {use.uuid for use in found})
        return tuple(found)

    def close(self) -> None:
        """Free the driver's samples. Call it before NVML shuts down."""
        for kept in self._gpus.values():
            self._forget(kept, ())
        self._gpus.clear()

    def _whole(self, kept: _Gpu, gpu: GpuUuid, device: Handle) -> DeviceUse:
        busy, sm, memory = self._gpm(kept, device, gpu, None)
        if busy is None:
            rates = known_or(None, pynvml.nvmlDeviceGetUtilizationRates, device)
            if rates is not None:
                busy, memory = float(rates.gpu), float(rates.memory)
        return DeviceUse(gpu, _memory(device), busy, sm, memory, self._using(device, self._busy(kept, device)))

    def _instance(self, kept: _Gpu, device: Handle, uuid: str, mig: nvml_mig.MigDevice) -> DeviceUse:
        busy, sm, memory = self._gpm(kept, device, uuid, mig.gi_id)
        return DeviceUse(uuid, _memory(mig.handle), busy, sm, memory, self._using(mig.handle, None, is_instance=True))

    def _gpm(self, kept: _Gpu, device: Handle, uuid: str, gi_id: int | None) -> _Percents:
        """Percent since the last sample: any kernel ran, SMs busy, memory busy."""
        if kept.gpm is None:
            support = known_or(None, pynvml.nvmlGpmQueryDeviceSupport, device)
            kept.gpm = support is not None and bool(support.isSupportedDevice)
        if not kept.gpm:
            return _UNTOLD
        samples = kept.samples = kept.samples if kept.samples is not None else {}
        before, now = samples.pop(uuid, None), known_or(None, pynvml.nvmlGpmSampleAlloc)
        if now is None:
            return _UNTOLD
        taken = False
        try:
            if gi_id is None:
                taken = known_or(None, pynvml.nvmlGpmSampleGet, device, now) is not None
            else:
                taken = known_or(None, pynvml.nvmlGpmMigSampleGet, device, gi_id, now) is not None
            return _difference(before, now) if taken and before is not None else _UNTOLD
        finally:
            _free(before)
            if taken:
                samples[uuid] = now
            else:
                _free(now)

    @staticmethod
    def _forget(kept: _Gpu, but: Collection[str]) -> None:
        for uuid in [uuid for uuid in kept.samples or () if uuid not in but]:
            assert kept.samples is not None
            _free(kept.samples.pop(uuid))

    def _using(
        self, handle: Handle, busy: Mapping[int, float] | None, *, is_instance: bool = False
    ) -> tuple[ProcessUse, ...]:
        """Processes with a context. `busy` is None where the driver does not report it per process."""
        memory = holders.memory_of(handle, is_instance=is_instance)
        with holders.listing():
            servers = {pid for pid in memory if holders.is_node_server(pid, self._processes)}
            if busy is not None and any(busy.get(pid, 0) > 0 for pid in servers):
                busy = None  # all clients are counted as one
            return tuple(
                ProcessUse(
                    pid,
                    self._processes.pod_of(pid),
                    None if used is None else used // MIB,
                    None if busy is None else busy.get(pid, 0.0),
                )
                for pid, used in memory.items()
                if pid not in servers
            )

    @staticmethod
    def _busy(kept: _Gpu, device: Handle) -> dict[int, float] | None:
        """Percent of the time per process, for those that did something since the last sample; None: not known."""
        if kept.seen_us > _now_us():  # the clock was set back: until it is there again, none would do anything
            kept.seen_us = _now_us()
            return None
        try:
            samples = pynvml.nvmlDeviceGetProcessUtilization(device, kept.seen_us)
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_NOT_FOUND:
                return {}
            if error.value == pynvml.NVML_ERROR_GPU_IS_LOST:
                raise
            return None
        # A buffer that is too large ends in entries without a process; others may be of before the clock was set back.
        until_us = _now_us() + _AHEAD_US
        told = [sample for sample in samples if kept.seen_us < sample.timeStamp <= until_us]
        kept.seen_us = max((int(sample.timeStamp) for sample in told), default=kept.seen_us)
        return {int(sample.pid): float(sample.smUtil) for sample in told}


def _now_us() -> int:
    return time.time_ns() // 1_000


def _memory(handle: Handle) -> int | None:
    info = known_or(None, pynvml.nvmlDeviceGetMemoryInfo, handle)
    return None if info is None else int(info.used) // MIB


def _difference(before: Any, now: Any) -> _Percents:
    asked = pynvml.c_nvmlGpmMetricsGet_t()
    asked.version, asked.sample1, asked.sample2 = pynvml.NVML_GPM_METRICS_GET_VERSION, before, now
    asked.numMetrics = len(_WANTED)
    for number, metric in enumerate(_WANTED):
        asked.metrics[number].metricId = metric
    if known_or(None, pynvml.nvmlGpmMetricsGet, asked) is None:
        return _UNTOLD
    busy, sm, memory = (_percent(asked.metrics[number]) for number in range(len(_WANTED)))
    return busy, sm, memory


def _percent(metric: Any) -> float | None:
    value = float(metric.value)
    return value if metric.nvmlReturn == pynvml.NVML_SUCCESS and 0 <= value <= 100 else None  # this also excludes NaN


def _free(sample: Any) -> None:
    if sample is not None:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlGpmSampleFree(sample)
