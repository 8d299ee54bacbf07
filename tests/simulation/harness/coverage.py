"""
Which pairs of state and event the seeds have reached, and which they never have.

A seed that passes says nothing about what it did not play. What is expected is written down here by hand, from the
phases that `phases` knows and the events that the cores say they hear: a pair that is never reached is either not
possible, which is worth knowing, or a fault that is drawn too seldom. It judges nothing.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from simulation.harness.phases import ANSWERS, phase_of
from simulation.kube.phases import name_of

from sluice.contracts.bus.events import Observed, Ticked, Write

if TYPE_CHECKING:
    from collections.abc import Iterable

    from simulation.world.host import Host
    from simulation.world.world import World

Pair = tuple[str, str, str]
"""What it is about, its phase, and the event."""


def _answers(*messages: str) -> tuple[str, ...]:
    return tuple(f"{how} {message}" for message in messages for how in ("accepted", "refused", "unknown"))


_READING = ("ReadingStarted", "ReadingCaughtUp")
_SLICE_PHASES = ("planned", "making", "ready", "undoing", "failed", "degraded", "unmaking")
_MAKING = ("GpuInstanceCreated", "ComputeInstanceCreated", "InstanceVerified", "TicketMade")
_UNMAKING = ("ComputeInstanceDestroyed", "GpuInstanceDestroyed", "TicketRemoved", "HoldersListed")
_WAITING = ("waits", "promised", "granted", "ready")
_HAS = ("granted", "ready", "bound", "withdrawn, has a slice")
_REQUEST_PHASES = (*_WAITING, "bound", "revoked", "rejected", "refused", "waived", "withdrawn", "released", "unknown")
_NODE_PHASES = ("unknown", "heard of", "pulled", "open", "open, cordoned", "removed")
_POD_PHASES = (
    "only heard of", "asks for nothing", "asked", "rejected", "refused", "bound", "let go", "released", "ended",
)  # fmt: skip
"""Of a cluster's pod, while its request is not closed."""
_LISTED = ("pods", "others", "nodes")
_EXPECTED: dict[str, tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]] = {
    "allocator: request": (
        ((*_REQUEST_PHASES, "withdrawn, has a slice"), ("AllocationRequested", "RequestWithdrawn", "Grant", "Revoke")),
        (("waits", "granted", "ready", "bound", "rejected", "unknown"), ("RequestRejected",)),
        (_REQUEST_PHASES, ("Bound", "Refused", "Released", "Waived", "Pending")),
        ((*_HAS, "revoked", "unknown"), ("SliceReady", "SliceFailed", "SliceDegraded", "SliceQuarantined")),
        ((*_HAS, "revoked", "withdrawn", "released", "unknown"), ("SliceGone", "Closed")),
        (("bound", "withdrawn", "released", "unknown"), ("EvictionOrdered", "EvictionOver", "EvictionDone")),
        (("bound", "withdrawn", "unknown"), ("EvictionBlocked",)),
        (_WAITING, _answers("Grant", "Pending")),
        ((*_HAS, "revoked"), _answers("Revoke")),
        (("ready", "bound"), _answers("Bound")),
        (("waits", "refused"), _answers("Refused")),
        (("withdrawn", "released"), _answers("Released", "Closed")),
        (("granted", "ready", "waived"), _answers("Waived")),
        (("bound", "withdrawn"), _answers("EvictionOrdered", "EvictionOver")),
    ),
    "allocator: node": (
        (_NODE_PHASES, ("NodeChanged", "NodeInventory", "NodeRemoved", "NodeOpened", "NodeClosed")),
        (_NODE_PHASES, ("Cordoned", "Uncordoned", "AgentEnsured")),
        (("pulled", "open", "open, cordoned"), _answers("NodeOpened")),
        (("open", "removed"), _answers("NodeClosed")),
    ),
    "allocator: all": (
        (
            ("works, knows all", "works, reads", "stands by, knows all", "stands by, reads"),
            (*_READING, "LeaseChanged", "SourceSynced", "QuotaSet", "QuotaUnset"),
        ),
        (("works, knows all", "stands by, knows all"), ("AdjustAsked",)),
    ),
    "agent: slice": (
        ((*_SLICE_PHASES, "gone", "unknown"), ("Grant", "Revoke")),
        (("unmaking", "gone", "unknown"), ("Closed",)),
        (_SLICE_PHASES, ("JournalSaved", "QuarantineReleased")),
        (("making",), (*_MAKING, "DeviceRefused", "TicketRefused", "TicketRemoved")),
        (("ready",), ("TicketMade", "TicketRefused", "TicketRemoved")),
        (("undoing", "unmaking"), (*_UNMAKING, "DeviceRefused", "TicketRefused", "MpsSeen", "MpsRefused")),
        (("unmaking",), ("MpsClientsTerminated",)),
        (("ready", "degraded", "unmaking", "gone"), _answers("SliceReady")),
        (("undoing", "failed", "unmaking", "gone"), _answers("SliceFailed")),
        (("degraded", "making", "unmaking"), _answers("SliceDegraded")),
        (("unmaking", "gone"), _answers("SliceQuarantined", "SliceGone")),
        (("unknown",), _answers("SliceGone")),
        ((*_SLICE_PHASES, "gone", "unknown"), ("LastRead",)),
    ),
    "agent: home": (
        (("making", "ready", "undoing", "failed", "unmaking"), ("JournalSaved",)),
        (("making",), (*_MAKING[:3], "ComputeModeSet", "HoldersListed", "MpsStarted", "MpsRefused", "DeviceRefused")),
        (("ready",), ("MpsSeen", "MpsLimitsSet", "MpsRefused", "MpsStarted")),
        (("undoing", "unmaking"), (*_UNMAKING[:2], "MpsStopped", "MpsRefused", "ComputeModeSet", "DeviceRefused")),
    ),
    "agent: node": (
        (("not started",), ("AgentStarted",)),
        (("closed", "open"), (*_READING, "NodeOpened", "NodeClosed", "GpuRead", "GpuTroubled", "LastRead")),
        (("closed", "open"), ("JournalSaved", "DeviceRefused", "TicketRemoved", "TicketRefused")),
        (("closed", "open"), _answers("NodeChanged")),
    ),
    "pod-watcher: pod": (
        (("asked", "bound", "released", "ended", "unknown"), ("Bound", "Released", "AllocationRequested")),
        (("asked", "rejected", "refused", "ended"), ("Refused", "RequestRejected")),
        (("asked", "bound", "ended", "unknown"), ("RequestWithdrawn", "Pending", "EvictionOrdered", "EvictionOver")),
        (("not said yet", "asked", "bound", "ended"), _answers("AllocationRequested")),
        (("not said yet", "rejected", "ended"), _answers("RequestRejected")),
        (("ended", "unknown"), _answers("RequestWithdrawn", "EvictionDone")),
    ),
    "pod-watcher: all": (
        (("reads", "works"), (*_READING, "FolderListed", "FolderChanged", "IdentitiesSaved", "SourceSynced")),
        (("reads",), ("IdentitiesLoaded",)),
        (("works",), _answers("SourceSynced")),
    ),
    "cluster: pod": (
        (("unknown", *_POD_PHASES, "closed"), ("PodSeen", "PodGone")),
        (("only heard of", "asked", "bound", "let go", "ended"), ("PodRead",)),
        (("only heard of", "asked", "bound", "let go"), ("PodUnreadable",)),
        (("asked", "bound", "let go", "let go, answer not read", "ended", "unknown"), ("Bound", "Pending")),
        (("let go", "ended", "closed", "unknown"), ("Released",)),
        (("asked", "bound", "let go", "ended", "unknown"), ("AllocationRequested",)),
        (("ended", "closed", "unknown"), ("RequestWithdrawn",)),
        (("bound", "let go", "ended"), ("EvictionOrdered", "EvictionOver", "PodEvicted", "EvictionRefused")),
        (("bound", "let go"), ("PatchDone bind", "PatchRefused bind")),
        (("let go",), ("PatchDone annotate", "PatchRefused annotate")),
        (("asked", "rejected", "refused", "bound", "let go"), ("PatchDone condition", "PatchRefused condition")),
        (("asked", "bound", "let go", "ended"), _answers("AllocationRequested")),
        (("rejected",), _answers("RequestRejected")),
        (("ended", "unknown"), _answers("RequestWithdrawn")),
        (("let go", "ended"), _answers("EvictionDone")),
        (("bound", "let go"), _answers("EvictionBlocked")),
    ),
    "cluster: all": (
        (("reads", "works"), (*_READING, "NodeSeen", "OtherPodSeen", "SourceSynced", "HostFacts", "NodeInventory")),
        (("reads", "works"), tuple(f"Listing{how} {what}" for what in _LISTED for how in ("Started", "Ended"))),
        (("works",), ("NodeGone", "OtherPodGone", *_answers("SourceSynced", "HostFacts"))),
    ),
    "inventory: node": (
        (
            ("unknown", "never pulled", "fresh", "stale", "of before the wipe", "removed"),
            ("NodeChanged", "NodeRemoved"),
        ),
        (("unknown", "never pulled", "fresh", "stale", "of before the wipe"), ("NodeInventory",)),
        (("never pulled", "fresh", "stale", "of before the wipe"), ("PullSucceeded", "PullFailed")),
        (("fresh", "stale", "removed"), _answers("NodeInventory")),
    ),
    "inventory: all": ((("reads", "works"), _READING),),
}


class Coverage:
    """How often each pair was reached. Adds up over seeds and processes."""

    def __init__(self) -> None:
        self.reached: Counter[Pair] = Counter()

    def listen_to(self, world: World) -> None:
        """Count what the cores of a world hear, in which phase of what it is about."""
        for host in world.hosts.values():
            said: dict[str, Write] = {}
            host.on_instruction.append(partial(_remember, said))
            host.on_event.append(partial(self._heard, host, said))

    def add(self, other: Coverage) -> None:
        """Take in what another seed has reached."""
        self.reached.update(other.reached)

    def never(self) -> list[Pair]:
        """What was expected and not reached, in the order of the table."""
        return [pair for pair in expected() if not self.reached[pair]]

    def lines(self) -> list[str]:
        missing = self.never()
        wanted = sum(1 for _ in expected())
        lines = ["pairs of state and event that were reached:"]
        lines += [f"{count:>10}  {' | '.join(pair)}" for pair, count in sorted(self.reached.items())]
        lines.append("never reached:")
        for about, event in dict.fromkeys((about, event) for about, _, event in missing):
            phases = [phase for other, phase, heard in missing if (other, heard) == (about, event)]
            lines.append(f"{'never':>10}  {about} | {event}, while {'; '.join(phases)}")
        lines.append(f"pairs={len(self.reached)} expected={wanted} never={len(missing)}")
        return lines

    def _heard(self, host: Host, said: dict[str, Write], event: object) -> None:
        if isinstance(event, Ticked):
            return
        answered = said.get(event.operation) if isinstance(event, ANSWERS) else None
        found = phase_of(host.core, event, answered)
        if found is not None:
            self.reached[*found, _name(event, answered)] += 1


def expected() -> Iterable[Pair]:
    for about, groups in _EXPECTED.items():
        for phases, events in groups:
            yield from ((about, phase, event) for event in events for phase in phases)


def _remember(said: dict[str, Write], _host: Host, instruction: object) -> None:
    if isinstance(instruction, Write):
        said[instruction.operation] = instruction


def _name(event: object, answered: Write | None) -> str:
    if answered is not None:
        how = type(event).__name__.removeprefix("Write").lower()
        return f"{how} {type(answered.message).__name__}"
    return type(event.entry.message).__name__ if isinstance(event, Observed) else name_of(event)
