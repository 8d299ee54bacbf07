"""Whether a GPU may get new slices, from its driver's health facts. No NVML here. Most Xids are an application's own
fault and take no GPU out: a faulty job would take out one after the other. The driver's *recovery action* (R565 and
newer) outlives this process and ends with the reset, so it takes precedence over what is remembered here."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass

from sluice.contracts.ids import GpuUuid

RECOVERY_CHANGED = 154
"""The Xid by which the driver reports a changed recovery action."""

APPLICATION_XIDS = frozenset(
    {
        # Ignored by NVIDIA/k8s-device-plugin (internal/rm/health.go) and by NVIDIA's DRA driver (its health page):
        # errors of the application, after which the GPU is still healthy.
        *(13, 31, 43, 45, 68, 109),
        # Immediate action RESTART_APP in NVIDIA's Xid catalog for Ampere and newer, edition 610
        # (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html): exceptions of the graphics, copy, video, JPEG
        # and optical flow engines, and memory errors that were contained to one application (94).
        *(8, 11, 25, 32, 39, 40, 41, 60, 69, 70, 71, 72, 75, 76, 77, 80, 82, 83, 84, 85, 86, 88, 89, 94),
        *range(96, 106),
        *range(126, 136),
        139,
        # Immediate action IGNORE there: notes, among them a memory row that was marked for remapping (63), which does
        # not affect other work or new work (NVIDIA, A100 GPU memory error management).
        *(14, 37, 38, 44, 63, 66, 67, 92, 93, 106, 107, 108, 121, 137, 141, 157, 160, 161),
        # The new action is read from the GPU.
        RECOVERY_CHANGED,
    }
)

_XID_WORDS: Mapping[int, str] = {
    46: "the GPU stopped processing",
    48: "an uncorrectable (double-bit) memory error",
    54: "auxiliary power is not connected",
    62: "an internal micro-controller halted",
    64: "a faulty memory row could not be retired",
    74: "an NVLink error",
    79: "the GPU has fallen off the bus",
    95: "an uncontained memory error",
    110: "a security fault",
    119: "the GPU's system processor (GSP) did not answer",
    120: "the GPU's system processor (GSP) failed",
    136: "NVLink training failed",
    140: "an uncorrectable ECC error that was not recovered",
    143: "the GPU could not be initialized",
    155: "an NVLink error",
    156: "a faulty resource was retired",
    158: "a fatal timeout of the GPU",
    167: "a fatal PCIe timeout",
    171: "an uncorrectable memory error",
    172: "an uncorrectable memory error on the chip",
}

_DRAIN = 4
# NVML_GPU_RECOVERY_ACTION_*: NVML API reference; the words follow NVIDIA's "Error Recovery and Response Flags".
_RECOVERY_WORDS: Mapping[int, str] = {
    1: "the driver asks for a reset of the GPU",
    2: "the driver asks for a reboot of the node",
    3: "the driver asks to end all peer-to-peer traffic of the GPU: end the processes that use it",
    _DRAIN: "the driver asks to drain the GPU and reset it",
    5: "the driver asks to recover the GPU's IMEX domain",
    6: "the driver asks for a reset of the GPU's bus",
    7: "the driver asks for a reboot of the system",
}
_RESET_HELPS = frozenset({None, 0, 1, _DRAIN})
"""Recovery actions with which a reset is advised: the driver asks for one, for nothing, or does not report it."""


@dataclass(frozen=True, slots=True)
class HealthFacts:
    """Health facts of a GPU. `mig_now`, `mig_next`: MIG mode now, and after the next reset. `recovery` is the recovery
    action (0: none needed; None: not reported). `uncorrected` counts ECC errors since the last reset."""

    mig_now: bool
    mig_next: bool
    recovery: int | None = None
    uncorrected: int = 0


def is_critical(xid: int) -> bool:
    """Whether this Xid stops new slices. An unknown one does: its effects are unknown."""
    return xid not in APPLICATION_XIDS


def reset_of(gpu: GpuUuid, before: str = "end what runs on the GPU") -> str:
    """How an operator resets one GPU. `before`: what to do while the agent still runs. A driver does not reset a GPU
    that a process holds, as the agent does; a pod with a slice can end only while it runs. Without -i nvidia-smi resets
    all GPUs."""
    return (
        f"{before}, stop the node's agent (remove its label sluice.dev/agent) and run"
        f" nvidia-smi --gpu-reset -i {gpu}, or reboot the node"
    )


def why_unhealthy(facts: HealthFacts, xids: tuple[int, ...], gpu: GpuUuid) -> str:
    """Why a GPU that answers gets no new slices, and the remedy; empty when it may get some. No reset is advised where
    the driver asks for something else: it would not help, and would end what runs there."""
    reasons = []
    if facts.mig_now != facts.mig_next:
        now, after = _on_off(on=facts.mig_now), _on_off(on=facts.mig_next)
        reasons.append(f"MIG mode is {now} and will be {after} after the next reset")
    if facts.recovery is not None and facts.recovery != 0:
        reasons.append(_RECOVERY_WORDS.get(facts.recovery, f"the driver asks for recovery action {facts.recovery}"))
    reasons += [f"Xid {xid}: {_XID_WORDS.get(xid, 'an error that is not known to be harmless')}" for xid in xids]
    # A recovery action covers ECC errors; an older driver reports none, so they count here.
    if facts.recovery is None and facts.uncorrected > 0 and not xids:
        reasons.append(f"{facts.uncorrected} uncorrectable ECC errors since the last reset")
    why = "; ".join(reasons)
    if not why or facts.recovery not in _RESET_HELPS:
        return why
    remedy = reset_of(gpu, "let its work end") if facts.recovery == _DRAIN else reset_of(gpu)
    return f"{why}; {remedy}" if xids else f"{why}: {remedy}"  # an Xid's own words come after a colon already


class XidHistory:
    """The critical Xids since this process started, by GPU. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[GpuUuid, dict[int, None]] = {}
        self._asked: set[GpuUuid] = set()

    def add(self, gpu: GpuUuid, xid: int) -> None:
        """A critical Xid of the GPU was reported. Bounded: there are a few hundred numbers."""
        with self._lock:
            self._seen.setdefault(gpu, {})[xid] = None

    def of(self, gpu: GpuUuid) -> tuple[int, ...]:
        with self._lock:
            return tuple(self._seen.get(gpu, ()))

    def clear(self, gpu: GpuUuid) -> None:
        with self._lock:
            self._seen.pop(gpu, None)
            self._asked.discard(gpu)

    def recovery(self, gpu: GpuUuid, action: int | None) -> None:
        """Note the driver's recovery action. When it no longer asks for one, the GPU was recovered."""
        with self._lock:
            if action:
                self._asked.add(gpu)
            elif action == 0 and gpu in self._asked:
                self._asked.discard(gpu)
                self._seen.pop(gpu, None)


def _on_off(*, on: bool) -> str:
    return "on" if on else "off"
