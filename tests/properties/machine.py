"""
A fleet to which everything happens in any order, and what must hold after every step.

The engine is only asked through its face; what is right is said by `judges`, which share no code with it.
"""

from collections import Counter
from typing import Any

import msgspec
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from judges.choosing import Chooser
from judges.placements import NodeTruth, Truth
from properties.asks import TENANTS, asks
from properties.facts import HOSTS, NODES, changed, nodes, smallest_sum

from sluice.contracts.ids import AllocationId, GpuUuid, NodeName, RequestId, SourceName
from sluice.contracts.messages import Booking, Claim, DeviceFilter, GpuReport
from sluice.contracts.refusals import WaitReason
from sluice_allocator.core.placement import Asking, Fleet, NoPlace, Place, find_place, find_place_on
from sluice_allocator.core.placement.rules import PlacingRules, PoolRules

GEOMETRIES = {"A100": ("1g.5gb", "2g.10gb", "3g.20gb", "7g.40gb"), "A30": ("1g.6gb", "2g.12gb", "4g.24gb")}
"""What HAMi's users may get on the models of these fleets (its device configuration)."""

ASKS = asks()


def machine_settings(*, examples: int, steps: int, derandomize: bool = False) -> settings:
    """How to run it: no phase that traces every line, which would take longer than all others."""
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        derandomize=derandomize,
        deadline=None,
        database=None,
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )


class FleetMachine(RuleBasedStateMachine):
    """Requests come and go while nodes change under them."""

    steps = 0
    """Over all examples of this process."""

    def __init__(self) -> None:
        """Begin without a node."""
        super().__init__()
        self.truth = Truth()
        self.chooser = Chooser(self.truth, GEOMETRIES)
        self.rules = PlacingRules()
        self.fleet = Fleet(self.rules)
        self.history: list[tuple[str, tuple[Any, ...]]] = []
        self.answers: list[Place | NoPlace] = []
        self.lost: dict[str, NodeTruth] = {}
        self.gone: dict[str, list[GpuReport]] = {}
        self.numbered = 0

    @initialize(data=st.data(), count=st.integers(1, 4), overcommit=st.sampled_from([100, 150]))
    def begin(self, data: st.DataObject, count: int, overcommit: int) -> None:
        """A fleet of one to four nodes."""
        self.rules = PlacingRules(default=PoolRules(overcommit_percent=overcommit))
        self.truth.overcommit_percent = overcommit
        self.fleet = Fleet(self.rules)
        for name in NODES[:count]:
            self.truth.nodes[name] = NodeTruth(data.draw(nodes(name)), data.draw(HOSTS))
            self._tell("set_host", NodeName(name), self.truth.nodes[name].host)
            self._tell("show", self.truth.nodes[name].snapshot)

    def _tell(self, what: str, *args: Any) -> None:
        """The engine learns a fact, and the history keeps it."""
        self.history.append((what, args))
        getattr(self.fleet, what)(*args)

    def _reports(self) -> list[GpuReport]:
        return [gpu for node in self.truth.nodes.values() for gpu in node.snapshot.gpus]

    # -- requests --------------------------------------------------------------------------------------------------

    @rule(data=st.data())
    def arrive(self, data: st.DataObject) -> None:
        """A pod asks; what it is given is booked."""
        self._arrive(data.draw(ASKS))

    @rule(data=st.data())
    def arrive_several(self, data: st.DataObject) -> None:
        """Equal pods ask one after the other."""
        asking = data.draw(ASKS)
        for _ in range(data.draw(st.integers(2, 5))):
            self._arrive(asking)

    @rule(asking=TENANTS, again=st.integers(1, 8))
    def arrive_tenants(self, asking: Asking, again: int) -> None:
        """Shares that may live together fill their homes."""
        for _ in range(again):
            self._arrive(asking)

    def _arrive(self, asking: Asking) -> None:
        answer = find_place(self.fleet, asking)
        assert find_place(self.fleet, asking) == answer, "asking changed something"
        self.history.append(("ask", (asking,)))
        self.answers.append(answer)
        if isinstance(answer, NoPlace):
            missed = self.chooser.some_place(asking)
            assert missed is None, f"{answer.message}, but there is a place on {missed}"
            for name in self.truth.nodes:
                assert find_place_on(self.fleet, asking, NodeName(name)) is None
            self._check_reasons(answer)
            return
        wrong = self.chooser.wrong_with(asking, answer.node, answer.devices)
        assert not wrong, wrong
        assert find_place_on(self.fleet, asking, answer.node) is not None
        self.numbered += 1
        booking = Booking(
            allocation=AllocationId(f"a{self.numbered}"),
            request=RequestId(f"r{self.numbered}"),
            request_revision=1,
            source=SourceName("folder"),
            owner="owner",
            namespace=asking.namespace,
            name="pod",
            node=answer.node,
            devices=answer.devices,
            room=asking.host.room,
        )
        self.truth.bookings[booking.allocation] = booking
        self._tell("book", booking)

    def _check_reasons(self, answer: NoPlace) -> None:
        """No reason counts more GPUs or nodes than there are, and there is always a reason."""
        assert answer.message
        assert answer.reasons
        there = Counter(gpu.model for gpu in self._reports())
        there["nodes"] = len(self.truth.nodes)
        model_of = {gpu.uuid: gpu.model for gpu in self._reports()}
        devices = [device for booking in self.truth.bookings.values() for device in booking.devices]
        homes = {(d.gpu, d.profile, d.start) for d in devices if d.share is not None and d.gpu in model_of}
        there.update(f"homes on {model_of[gpu]}" for gpu, _, _ in homes)
        counted: Counter[tuple[WaitReason, str]] = Counter()
        for each in answer.reasons:
            counted[each.reason, each.of] += each.count
        for (reason, of), count in counted.items():
            assert count <= there[of], f"{reason}: {count} of {there[of]} {of}"

    @precondition(lambda self: self.truth.bookings)
    @rule(data=st.data())
    def depart(self, data: st.DataObject) -> None:
        """A pod has ended."""
        allocation = data.draw(st.sampled_from(sorted(self.truth.bookings)))
        del self.truth.bookings[allocation]
        self._tell("unbook", AllocationId(allocation))

    # -- facts -----------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.truth.nodes)
    @rule(data=st.data())
    def gpu_changes(self, data: st.DataObject) -> None:
        """Health, a foreign instance, a quarantined span, MIG mode."""
        node = self.truth.nodes[data.draw(st.sampled_from(sorted(self.truth.nodes)))]
        gpus = list(node.snapshot.gpus)
        if gpus:
            at = data.draw(st.integers(0, len(gpus) - 1))
            gpus[at] = changed(data.draw, gpus[at], self.truth.board(gpus[at].uuid))
            self._show(node, gpus)

    @precondition(lambda self: self.truth.nodes)
    @rule(data=st.data())
    def gpu_gone_or_back(self, data: st.DataObject) -> None:
        """A GPU falls off the bus, or those that did are back."""
        name = data.draw(st.sampled_from(sorted(self.truth.nodes)))
        node = self.truth.nodes[name]
        gone = self.gone.setdefault(name, [])
        if gone or not node.snapshot.gpus:
            self._show(node, [*node.snapshot.gpus, *gone])
            gone.clear()
        else:
            at = data.draw(st.integers(0, len(node.snapshot.gpus) - 1))
            gone.append(node.snapshot.gpus[at])
            self._show(node, [gpu for n, gpu in enumerate(node.snapshot.gpus) if n != at])

    def _show(self, node: NodeTruth, gpus: list[GpuReport]) -> None:
        ordered = tuple(sorted(gpus, key=lambda gpu: gpu.index))
        generation = node.snapshot.generation + 1
        node.snapshot = msgspec.structs.replace(node.snapshot, gpus=ordered, generation=generation)
        self._tell("show", node.snapshot)

    @rule(name=st.sampled_from(NODES))
    def node_lost_or_back(self, name: str) -> None:
        """A node's inventory is gone, or there again; its pods stay booked."""
        if name in self.truth.nodes:
            node = self.lost[name] = self.truth.nodes.pop(name)
            node.usable, node.cordoned = True, frozenset()
            self._tell("forget_node", NodeName(name))
        elif name in self.lost:
            self.truth.nodes[name] = self.lost.pop(name)
            self._tell("show", self.truth.nodes[name].snapshot)

    @precondition(lambda self: self.truth.nodes)
    @rule(data=st.data(), stale=st.booleans())
    def usable_or_not(self, data: st.DataObject, stale: bool) -> None:
        """A node does not answer, or does again."""
        name = data.draw(st.sampled_from(sorted(self.truth.nodes)))
        self.truth.nodes[name].usable = not stale
        self._tell("set_usable", NodeName(name), WaitReason.NODE_STALE if stale else None)

    @precondition(lambda self: self.truth.nodes)
    @rule(data=st.data())
    def cordon(self, data: st.DataObject) -> None:
        """An operator says which GPUs not to use."""
        name = data.draw(st.sampled_from(sorted(self.truth.nodes)))
        uuids = [gpu.uuid for gpu in self.truth.nodes[name].snapshot.gpus]
        chosen = frozenset(data.draw(st.lists(st.sampled_from(uuids), max_size=2))) if uuids else frozenset()
        self.truth.nodes[name].cordoned = chosen
        self._tell("cordon", NodeName(name), frozenset(GpuUuid(uuid) for uuid in chosen))

    @precondition(lambda self: self.truth.nodes)
    @rule(data=st.data())
    def host_changes(self, data: st.DataObject) -> None:
        """CPU, memory, labels, taints: others' pods come and go."""
        name = data.draw(st.sampled_from(sorted(self.truth.nodes)))
        self.truth.nodes[name].host = data.draw(HOSTS)
        self._tell("set_host", NodeName(name), self.truth.nodes[name].host)

    # -- what must hold --------------------------------------------------------------------------------------------

    @invariant()
    def nothing_is_given_twice(self) -> None:
        """No illegal layout, no home of two domains or over its size."""
        type(self).steps += 1
        wrong = self.truth.violations()
        assert not wrong, wrong

    def teardown(self) -> None:
        """The same history gives the same answers, and an empty fleet is as at the start."""
        self._replay()
        for allocation in sorted(self.truth.bookings):
            self._tell("unbook", AllocationId(allocation))
        self.truth.bookings.clear()
        for name, node in self.truth.nodes.items():
            for gpu in node.snapshot.gpus:
                if gpu.mig_enabled and gpu.profiles and node.may_give(gpu):
                    self._fill(name, gpu)

    def _replay(self) -> None:
        fleet, answers = Fleet(self.rules), []
        for what, args in self.history:
            if what == "ask":
                answers.append(find_place(fleet, args[0]))
            else:
                getattr(fleet, what)(*args)
        assert answers == self.answers

    def _fill(self, name: str, gpu: GpuReport) -> None:
        """The emptied GPU takes as many of its smallest instances as it ever could."""
        smallest = min(gpu.profiles, key=lambda p: (p.compute_slices, p.memory_mib, len(p.name), p.name))
        claim = Claim(container="main", profile=smallest.name, only=DeviceFilter(uuids=(gpu.uuid,)))
        expected = smallest_sum(gpu, self.truth.board(gpu.uuid))
        if self.truth.nodes[name].host is not None:
            self._tell("set_host", NodeName(name), None)
        for number in range(expected):
            place = find_place_on(self.fleet, Asking((claim,)), NodeName(name))
            assert place is not None, f"{gpu.uuid} takes only {number} of {expected} {smallest.name}"
            booking = Booking(
                allocation=AllocationId(f"fill-{gpu.uuid}-{number}"),
                request=RequestId("fill"),
                request_revision=1,
                source=SourceName("folder"),
                owner="owner",
                namespace="default",
                name="pod",
                node=place.node,
                devices=place.devices,
            )
            self._tell("book", booking)
        assert find_place_on(self.fleet, Asking((claim,)), NodeName(name)) is None
