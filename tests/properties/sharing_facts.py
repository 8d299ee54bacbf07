"""What is on the bus, and what obedient agents and sources make of it; nothing here knows how places are chosen."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import msgspec
from factories.scheduling.allocator import FOLDER, news_of, ready_of
from properties.sharing_asks import PodAsk
from properties.small_bus import Process, SmallBus, until_calm

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Entry, Ticked
from sluice.contracts.bus.subjects import parse
from sluice.contracts.ids import AllocationId, NodeName, RequestId, RunId
from sluice_allocator.core.config import SchedulerConfig

REST_TICKS, REST_STEP_S = 60, 10.0
"""So long no new pod comes: more than every patience but those that double."""


@dataclass(slots=True)
class Facts:
    """Last values by noun and key, and where they stand."""

    of: defaultdict[str, dict[str, Any]] = field(default_factory=lambda: defaultdict(dict))
    at: defaultdict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
    """Sequences."""

    def landed(self, entry: Entry, _run: RunId | None) -> None:
        """A value is the last one of its subject."""
        address = parse(entry.subject)
        if not isinstance(entry.message, msg.NodeOpened):
            self.of[address.kind][address.key[-1]] = entry.message
            self.at[address.kind][address.key[-1]] = entry.sequence

    def is_gone(self, allocation: str) -> bool:
        entry = self.of["ledger"].get(allocation)
        return (
            entry is None
            or isinstance(entry, msg.Closed)
            or isinstance(self.of["slice"].get(allocation), msg.SliceGone)
        )

    def live(self) -> dict[str, msg.Grant | msg.Revoke]:
        return {each: entry for each, entry in self.of["ledger"].items() if not self.is_gone(each)}

    def granted(self, request: str) -> list[msg.Grant]:
        entries = self.live().values()
        return [each for each in entries if isinstance(each, msg.Grant) and each.booking.request == request]

    def living(self) -> dict[str, msg.AllocationRequested]:
        """Requests whose end is not published."""
        over = (msg.Released, msg.Refused)
        return {
            request: asked
            for request, asked in self.of["request"].items()
            if isinstance(asked, msg.AllocationRequested) and not isinstance(self.of["binding"].get(request), over)
        }

    def bound(self) -> dict[str, msg.Grant]:
        """Requests that are bound to something that stands, and to what."""
        found = {}
        for request, binding in self.of["binding"].items():
            entry = self.of["ledger"].get(binding.allocation) if isinstance(binding, msg.Bound) else None
            if isinstance(entry, msg.Grant) and not self.is_gone(entry.booking.allocation):
                found[request] = entry
        return found

    def orders(self) -> list[str]:
        """The allocations about which an agent has something to do."""
        return sorted(each for each, entry in self.live().items() if self._is_due(entry, self.of["slice"].get(each)))

    def _is_due(self, entry: msg.Grant | msg.Revoke, slice_: Any) -> bool:
        if isinstance(entry, msg.Revoke):
            return True
        if not all(self.is_gone(each) for each in entry.after):
            return False
        if isinstance(slice_, msg.SliceReady) and slice_.revision == entry.revision:
            return slice_.shrinking
        return not isinstance(slice_, msg.SliceFailed)

    def to_evict(self) -> list[str]:
        """Living pods of which the eviction is ordered and not done."""
        orders, outcomes = self.of["eviction"], self.of["evicted"]
        return sorted(
            each
            for each in self.living()
            if isinstance(orders.get(each), msg.EvictionOrdered)
            and not isinstance(outcomes.get(each), msg.EvictionDone)
        )


class SharingWorld:
    """Nodes, agents, sources, an operator, and one or two allocators."""

    def __init__(self, nodes: list[msg.NodeSnapshot], rules: SchedulerConfig, allocators: int) -> None:
        self.bus = SmallBus()
        self.facts = Facts()
        self.bus.on_landed.append(self.facts.landed)
        self.rules = rules
        self.now = 0.0
        self.nodes = {each.node: each for each in nodes}
        self.processes: list[Process] = []
        self._runs = 0
        self._pods = 0
        for _ in range(allocators):
            self.begin_process()
        for each in nodes:
            self.bus.put(subjects.node(each.node), news_of(each))
            self.bus.put(subjects.inventory(each.node), msg.NodeInventory(snapshot=each, stale=False))
        self.calm()

    # -- allocators ------------------------------------------------------------------------------------------------

    def begin_process(self) -> None:
        self._runs += 1
        self.processes.append(Process(self.bus, f"r{self._runs}", self.rules, self.now))

    def crash(self, number: int) -> None:
        """One is killed; what it has not sent is lost. Another is started."""
        self.processes.pop(number).die()
        self.begin_process()

    def calm(self) -> None:
        """All processes have read all there is, and have done what follows."""
        until_calm(self.processes)

    def tick(self, seconds: float) -> None:
        self.now += seconds
        for process in self.processes:
            process.now = self.now
            process.handle(Ticked())

    # -- sources ---------------------------------------------------------------------------------------------------

    def ask(self, pod: PodAsk, stem: str = "") -> RequestId:
        """A pod asks; with a stem it is one more of that controller's."""
        self._pods += 1
        request = RequestId(f"q{self._pods}")
        message = msg.AllocationRequested(
            revision=1,
            source=FOLDER,
            namespace=pod.namespace,
            name=f"{stem or f'pod{self._pods}'}-{self._pods}",
            origin=f"{request}.yaml",
            owner=request,
            claims=pod.claims,
            priority=pod.priority,
            leeway=pod.leeway,
            group=pod.group,
        )
        self.bus.put(subjects.request(request), message)
        return request

    def withdraw(self, request: str) -> None:
        revision = self.facts.of["request"][request].revision + 1
        word = msg.RequestWithdrawn(revision=revision, source=FOLDER, cause="pod gone")
        self.bus.put(subjects.request(RequestId(request)), word)

    def edit(self, request: str, claims: tuple) -> None:
        asked = self.facts.of["request"][request]
        edited = msgspec.structs.replace(asked, revision=asked.revision + 1, claims=claims)
        self.bus.put(subjects.request(RequestId(request)), edited)

    def evict(self, request: str, *, comes_back: bool) -> None:
        """The eviction is carried out; its controller may make another pod."""
        asked = self.facts.of["request"][request]
        self.bus.put(subjects.evicted(RequestId(request)), msg.EvictionDone(request=RequestId(request)))
        self.withdraw(request)
        if comes_back:
            pod = PodAsk(asked.claims, asked.namespace, asked.priority, asked.leeway, asked.group)
            self.ask(pod, asked.name.rpartition("-")[0])

    def block(self, request: str) -> None:
        """A budget does not allow it."""
        word = msg.EvictionBlocked(request=RequestId(request), why="the budget allows none")
        self.bus.put(subjects.evicted(RequestId(request)), word)

    # -- agents ----------------------------------------------------------------------------------------------------

    def obey(self, allocation: str, *, fails: bool = False, still_used: bool = False) -> None:
        """An agent obeys the order for one allocation."""
        entry = self.facts.of["ledger"][allocation]
        booking = entry.booking
        address = subjects.slice_(booking.node, AllocationId(allocation))
        about = {"allocation": booking.allocation, "request": booking.request, "revision": entry.revision}
        if isinstance(entry, msg.Revoke):
            word = msg.SliceGone(**about, cause=entry.cause)
        elif fails and entry.revision == 1:
            word = msg.SliceFailed(**about, error="NVML_ERROR_UNKNOWN", message="it could not be made")
        else:
            word = msgspec.structs.replace(ready_of(entry), revision=entry.revision)
            word = msgspec.structs.replace(word, shrinking=still_used and bool(entry.counts))
        self.bus.put(address, word)

    # -- operators -------------------------------------------------------------------------------------------------

    def say(self, word: msg.QuotaSet | msg.Cordoned | Any) -> None:
        """Publish an operator's order while all is calm, so that all allocators observe it (docs/quotas.md: one that
        has not observed it yet does not know of it)."""
        self.calm()
        quota = hasattr(word, "namespace")
        self.bus.put(subjects.quota(word.namespace) if quota else subjects.cordon(NodeName(word.node)), word)
        self.calm()

    # -- all of them -----------------------------------------------------------------------------------------------

    def rest(self) -> None:
        """No new pod comes, every process does its part, and time passes."""
        for _ in range(REST_TICKS):
            self.calm()
            for allocation in self.facts.orders():
                self.obey(allocation)
            for request in self.facts.to_evict():
                self.evict(request, comes_back=False)
            self.calm()
            self.tick(REST_STEP_S)
        self.calm()
