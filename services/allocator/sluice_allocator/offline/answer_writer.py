"""Writes the answers to a workload, one line each, and a summary that counts them."""

from typing import Any, BinaryIO, Literal

import msgspec

from sluice.contracts.fleet_file.empty_snapshots import gpu_uuid
from sluice.contracts.fleet_file.fleet_spec import FleetSpec
from sluice.contracts.ids import GpuUuid
from sluice.contracts.messages import Booking, DeviceGrant, Mode
from sluice.mig.model import GpuModel
from sluice_allocator.core.state.grant_facts import device_amount

Word = Literal["bound", "pending", "refused", "released"]
WHOLE_GPU = "gpu"  # the summary's name for an exclusive GPU without MIG; shares go by mode, instances by profile


class AnsweredDevice(msgspec.Struct, frozen=True):
    """One device of a bound or released pod. `memory_mib` is that of the instance, the whole GPU or the share.
    `sm_percent` is, for an exclusive device, the percentage of the SMs of the model's largest profile, rounded down;
    for a share, that of the GPU's SMs (100 if unbounded)."""

    gpu: GpuUuid
    mode: Mode
    profile: str | None
    start: int
    size: int
    memory_mib: int
    sm_percent: int


class Answer(msgspec.Struct, frozen=True):
    """One answer, at the time of the input line that led to it."""

    at: float
    id: str
    answer: Word
    node: str | None
    devices: tuple[AnsweredDevice, ...]
    reasons: tuple[Any, ...]


class Summary(msgspec.Struct, kw_only=True):
    """Counts of all answers. `accepted` counts bound devices by profile, by the mode of a share, or as `gpu`."""

    arrivals: int = 0
    bound: int = 0
    pending: int = 0  # arrivals that waited, whatever their outcome
    refused: int = 0
    released: int = 0
    departed_waiting: int = 0
    departed_without: int = 0  # departures of pods that were refused, had left already, or never arrived
    running: int = 0  # Bound at the end
    waiting: int = 0  # Pending at the end
    accepted: dict[str, int] = msgspec.field(default_factory=dict)


class AnswerWriter:
    """Writes answers and counts them."""

    def __init__(self, fleet: FleetSpec, out: BinaryIO) -> None:
        """Index the GPU models of `fleet`, which give each device's size."""
        self.summary = Summary()
        self._out = out
        self._encode = msgspec.json.Encoder().encode
        self._models: dict[GpuUuid, GpuModel] = {}
        for node in fleet.nodes:
            models = [kind.model for kind in node.gpus for _ in range(kind.count)]
            self._models |= {gpu_uuid(node, index): model for index, model in enumerate(models)}

    def bound(self, at: float, pod: str, booking: Booking) -> None:
        self.summary.bound += 1
        accepted = self.summary.accepted
        for device in booking.devices:
            kind = device.share.mode if device.share is not None else device.profile or WHOLE_GPU
            accepted[kind] = accepted.get(kind, 0) + 1
        self._write(at, pod, "bound", booking)

    def pending(self, at: float, pod: str, reasons: tuple[Any, ...]) -> None:
        self.summary.pending += 1
        self._write(at, pod, "pending", None, reasons)

    def refused(self, at: float, pod: str, reasons: tuple[Any, ...]) -> None:
        self.summary.refused += 1
        self._write(at, pod, "refused", None, reasons)

    def released(self, at: float, pod: str, booking: Booking | None, reasons: tuple[Any, ...] = ()) -> None:
        """Answer: the pod left. `booking` is what it released, if any."""
        self.summary.released += booking is not None
        self._write(at, pod, "released", booking, reasons)

    def finish(self) -> None:
        counted = msgspec.structs.asdict(self.summary)
        counted["accepted"] = dict(sorted(self.summary.accepted.items()))
        self._out.write(self._encode({"summary": counted}) + b"\n")

    def _write(self, at: float, pod: str, word: Word, booking: Booking | None, reasons: tuple[Any, ...] = ()) -> None:
        node, given = (booking.node, booking.devices) if booking is not None else (None, ())
        answer = Answer(at, pod, word, node, tuple(self._device(device) for device in given), reasons)
        self._out.write(self._encode(answer) + b"\n")

    def _device(self, grant: DeviceGrant) -> AnsweredDevice:
        amount = device_amount(grant, self._models[grant.gpu])
        where = (grant.profile, grant.start, grant.size)
        return AnsweredDevice(grant.gpu, amount.mode, *where, amount.memory_mib, amount.sm_percent)
