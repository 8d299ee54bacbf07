"""The node's GPUs: the last reading of each, and for a lost GPU, what was known before. A GPU that cannot be read never
hides the others: it is reported lost (or `nameless`) until a reading succeeds. If the driver had reported it gone, it
was reset, and its errors are over; if it was only slow, it still has them."""

import threading
import time
from typing import NamedTuple

import msgspec
import pynvml  # type: ignore[import-untyped]

from sluice.contracts.ids import GpuUuid
from sluice.contracts.messages import GpuReport, ProfileReport
from sluice.runtime import logs
from sluice_node_agent.core.state.devices import never_read
from sluice_node_agent.device.gpu_health import XidHistory, why_unhealthy
from sluice_node_agent.device.nvml import attributes
from sluice_node_agent.device.nvml import mig as nvml_mig
from sluice_node_agent.device.nvml.attributes import Wiring
from sluice_node_agent.device.nvml.errors import told
from sluice_node_agent.device.nvml.events import EventSet, GpuHandles
from sluice_node_agent.device.nvml.mig import Handle
from sluice_node_agent.device.port import DeviceError, FixedLayoutSelector, GpuLostError, NoPermissionError

NAMES_EVERY_S = 30.0
"""How often a nameless GPU is asked for its UUID: the call may take long on one that does not answer."""


class _Silence(NamedTuple):
    why: str
    gone: bool


class GpuInventory:
    """The GPUs of one node, as read. Thread-safe."""

    def __init__(self, events: EventSet, *, fixed: FixedLayoutSelector) -> None:
        """Know nothing yet. Raises pynvml.NVMLError for a driver that is lost."""
        self._fixed = fixed
        self._events = events
        self._mps_clients_max = attributes.mps_clients_max()
        self._log = logs.get("nvml")
        self._lock = threading.Lock()
        self._profiles: dict[tuple[GpuUuid, bool], tuple[ProfileReport, ...]] = {}
        self._reports: dict[GpuUuid, GpuReport] = {}
        self._wirings: dict[GpuUuid, Wiring] = {}
        self._silent: dict[GpuUuid, _Silence] = {}
        self._nameless: dict[int, str] = {}
        self._ask_names_at = 0.0
        self.xids = XidHistory()
        self.handles = GpuHandles(self._renewed)

    def read(self) -> tuple[GpuReport, ...]:
        """All GPUs in index order. Raises DeviceError when not even their number can be read."""
        with told("counting the GPUs"):
            count = pynvml.nvmlDeviceGetCount()
        known_at = {report.index: gpu for gpu, report in self._known().items()}
        silent: dict[int, _Silence] = {}
        there: dict[GpuUuid, int] = {}
        for index in range(count):
            try:
                gpu, handle = self.handles.at(index, known_at.get(index))
            except DeviceError as error:
                silent[index] = _silence(error)
                continue
            self.handles.keep(gpu, handle)
            there[gpu] = index
        reports = {gpu: self._read_or_lost(gpu, index) for gpu, index in there.items()}
        all_told = not silent  # else a missing GPU may be one without a UUID
        for gpu, known in self._known().items():
            if gpu not in reports:
                said = silent.pop(known.index, None) if known_at.get(known.index) == gpu else None
                why = f"{gpu}: the driver does not list the GPU any more; reboot the node"
                reports[gpu] = self._lose(known, said or _Silence(why, gone=all_told))
        for index, silence in silent.items():
            self._log.warning("a GPU that cannot read its UUID is left out", index=index, error=silence.why)
        with self._lock:
            self._nameless = {index: silence.why for index, silence in silent.items()}
        return tuple(sorted(map(self._linked, reports.values()), key=lambda report: report.index))

    def nameless(self) -> dict[int, str]:
        with self._lock:
            return dict(self._nameless)

    def named_by_now(self) -> tuple[GpuUuid, ...]:
        """The `nameless` GPUs that can read their UUID by now, each once. Asked at an interval."""
        now = time.monotonic()
        if not self._nameless or now < self._ask_names_at:
            return ()
        self._ask_names_at = now + NAMES_EVERY_S
        named = []
        for index in self.nameless():
            try:
                gpu, handle = self.handles.at(index, None)
            except DeviceError:
                continue
            with self._lock:
                self._nameless.pop(index, None)
            self.handles.keep(gpu, handle)
            named.append(gpu)
            self._log.info("a GPU that could not read its UUID can read it now", gpu=gpu, index=index)
        return tuple(named)

    def read_gpu(self, gpu: GpuUuid) -> GpuReport:
        """One GPU; as `lost` when it does not answer and was there before. Raises DeviceError when it never was."""
        known = self._known().get(gpu)
        try:
            index = self.handles.on(gpu, "finding its index", pynvml.nvmlDeviceGetIndex)
            return self._linked(self._read(gpu, index))
        except DeviceError as error:
            if known is None:
                raise
            return self._lose(known, _silence(error))

    def profiles_of(self, gpu: GpuUuid, device: Handle) -> tuple[ProfileReport, ...]:
        """Kept by MIG mode too: they may differ with MIG off."""
        key = (gpu, nvml_mig.mode(device).now)
        with self._lock:
            found = self._profiles.get(key)
        if found is None:
            found = nvml_mig.profiles(device, attributes.memory_bytes(device))
            with self._lock:
                self._profiles[key] = found
        return found

    def is_fixed(self, gpu: GpuUuid) -> bool:
        known = self._known().get(gpu)
        return known is not None and known.fixed_layout

    def _read_or_lost(self, gpu: GpuUuid, index: int) -> GpuReport:
        known = self._known().get(gpu)
        try:
            return self._read(gpu, index)
        except DeviceError as error:
            if known is None and isinstance(error, NoPermissionError):
                raise  # this process may read none of its GPUs, and retries do not help
            if known is None:
                known = never_read(gpu, index, str(error), fixed=(gpu, index) in self._fixed)
                with self._lock:
                    self._reports[gpu] = known
            return self._lose(known, _silence(error))

    def _read(self, gpu: GpuUuid, index: int) -> GpuReport:
        report = self.handles.on(gpu, "reading it", lambda device: self._report(gpu, index, device))
        with self._lock:
            silence = self._silent.pop(gpu, None)
            self._reports[gpu] = report
        if silence is None:
            return report
        self._log.warning("a lost GPU answers again", gpu=gpu, was_reset=silence.gone)
        if not silence.gone:
            return report
        # It was reset: its errors are gone, and its event registration too.
        self.xids.clear(gpu)
        self._renewed(gpu)
        return self._read(gpu, index)

    def _report(self, gpu: GpuUuid, index: int, device: Handle) -> GpuReport:
        mode = nvml_mig.mode(device)
        profiles = self.profiles_of(gpu, device)
        name = str(pynvml.nvmlDeviceGetName(device))
        wiring = attributes.wiring(device, mig=mode.now)
        facts = attributes.health(device, mode)
        self.xids.recovery(gpu, facts.recovery)
        why = why_unhealthy(facts, self.xids.of(gpu), gpu)
        fixed = (gpu, index) in self._fixed
        with self._lock:
            self._wirings[gpu] = wiring
        return GpuReport(
            uuid=gpu,
            index=index,
            model=name,
            memory_mib=attributes.memory_bytes(device) // attributes.MIB,
            multiprocessors=attributes.multiprocessors(device, name, profiles),
            mig_enabled=mode.now,
            memory_slices=nvml_mig.memory_slices(profiles),
            compute_slices=nvml_mig.compute_slices(profiles),
            profiles=profiles,
            instances=nvml_mig.instances(device, profiles, fixed=fixed) if mode.now else (),
            creatable={},
            healthy=not why,
            health_message=why,
            numa_node=attributes.numa_node(device, wiring.pci),
            mps_clients_max=self._mps_clients_max,
            fixed_layout=fixed,
        )

    def _lose(self, known: GpuReport, now: _Silence) -> GpuReport:
        with self._lock:
            # The first reason stays: a message that changed with each reading would be news each time. That a slow GPU
            # is gone now is news, and stays too: no later error takes it back.
            before = self._silent.get(known.uuid)
            said = now if before is None or (now.gone and not before.gone) else before
            self._silent[known.uuid] = said
            self._wirings.pop(known.uuid, None)
        if said is not before:
            self._log.error("a GPU is lost", gpu=known.uuid, error=said.why)
        return msgspec.structs.replace(known, instances=(), healthy=False, health_message=said.why, lost=True)

    def _linked(self, report: GpuReport) -> GpuReport:
        with self._lock:
            wirings = dict(self._wirings)
        own = wirings.pop(report.uuid, None)
        if own is None:
            return report
        return msgspec.structs.replace(report, links=attributes.links(own, wirings))

    def _renewed(self, gpu: GpuUuid) -> None:
        with self._lock:
            for mig in (False, True):
                self._profiles.pop((gpu, mig), None)
        self._events.forget(gpu)

    def _known(self) -> dict[GpuUuid, GpuReport]:
        with self._lock:
            return dict(self._reports)


def _silence(error: DeviceError) -> _Silence:
    return _Silence(str(error), gone=isinstance(error, GpuLostError))
