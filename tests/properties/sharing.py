"""A small, full fleet that is shared: everything that people, agents and clocks do to it, in any order.

Where `machine` asks the engine for places, here whole allocators read and write a bus: one that reads everything at
once and is judged by every choice, or two that know what they have got round to read, and are judged by what stands.
"""

from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from properties.sharing_asks import (
    ADJUSTED,
    CAPS,
    EXCLUSIVE,
    GUARANTEES,
    LIMITS,
    MEMBERS,
    NAMESPACES,
    NODES,
    RULES,
    SINGLE_PODS,
    SMALL_FLEETS,
    PodAsk,
    small_node,
)
from properties.sharing_choices import Choices
from properties.sharing_crowds import Crowds
from properties.sharing_facts import SharingWorld
from properties.sharing_judge import SharingJudge
from properties.sharing_sizes import Sizes

from sluice.contracts.bus.events import Stream
from sluice.contracts.ids import NodeName, RequestId
from sluice.contracts.messages import Amounts, Bound, Cordoned, Grant, QuotaSet, QuotaUnset, Uncordoned
from sluice_allocator.core.config import SchedulerConfig
from sluice_allocator.core.events import AdjustAsked, AnswerAdjust
from sluice_allocator.core.explain.status import RequestState, how_it_stands
from sluice_allocator.core.resize.pending import Adjusted, Change
from sluice_allocator.core.resize.resize import adjust


class SharingMachine(Crowds, RuleBasedStateMachine):
    """Pods come and go, are evicted, moved, adjusted; allocators crash; operators change their minds."""

    steps: ClassVar[int] = 0
    """Over all examples of this process."""

    world: SharingWorld

    @initialize(fleet=SMALL_FLEETS, rules=RULES, allocators=st.sampled_from([1, 1, 2]), limits=st.none() | LIMITS)
    def begin(self, fleet: list[list[str]], rules: SchedulerConfig, allocators: int, limits: Amounts | None) -> None:
        """A fleet of one to four GPUs, and what one namespace may have of it."""
        nodes = [small_node(name, kinds) for name, kinds in zip(NODES, fleet, strict=False)]
        self.world = SharingWorld(nodes, rules, allocators)
        self.kinds = {kind for kinds in fleet for kind in kinds}
        self.alone = allocators == 1
        self.judge = SharingJudge(self.world.facts, self.world.nodes, alone=self.alone)
        self.world.bus.on_landed.append(self.judge.landed)
        self.choices = Choices(self.judge)
        self.sizes = Sizes(self.world, self.judge)
        self.numbered = 0
        self.goes_on = True
        """Whether nothing was found to be wrong; otherwise the end is not looked at."""
        if limits is not None:
            self.world.say(QuotaSet(namespace=NAMESPACES[0], total=limits))

    def _done(self) -> None:
        type(self).steps += 1
        self.goes_on = False
        if self.alone:
            self._calm()
        self.goes_on = True

    def _calm(self) -> None:
        self.world.calm()
        self.judge.places()
        if self.alone:
            self.choices.since_last_time()
            (process,) = self.world.processes
            self.choices.queue_is_bounded(len(process.allocator.ctx.queue), self.world.rules.waiting_max)

    def _living(self) -> list[str]:
        return sorted(self.world.facts.living())

    # -- pods ------------------------------------------------------------------------------------------------------

    @rule(pod=SINGLE_PODS)
    def a_pod_comes(self, pod: PodAsk) -> None:
        self.world.ask(pod)
        self._done()

    @rule(pod=SINGLE_PODS, count=st.integers(2, 5))
    def several_come(self, pod: PodAsk, count: int) -> None:
        for _ in range(count):
            self.world.ask(pod)
        self._done()

    @rule(pods=st.lists(MEMBERS, min_size=1, max_size=4))
    def members_come(self, pods: list[PodAsk]) -> None:
        """Pods of one or two groups, interleaved."""
        for pod in pods:
            self.world.ask(pod)
        self._done()

    @precondition(lambda self: self._living())
    @rule(data=st.data())
    def a_pod_goes(self, data: st.DataObject) -> None:
        """It was deleted, or has ended."""
        self.world.withdraw(data.draw(st.sampled_from(self._living())))
        self._done()

    @precondition(lambda self: self._living())
    @rule(data=st.data(), claim=EXCLUSIVE)
    def a_pod_is_edited(self, data: st.DataObject, claim) -> None:
        """It asks for something else, while it has no place."""
        waiting = [each for each in self._living() if each not in self.world.facts.bound()]
        if waiting:
            self.world.edit(data.draw(st.sampled_from(waiting)), (claim,))
        self._done()

    @precondition(lambda self: self.world.facts.to_evict())
    @rule(data=st.data(), how=st.sampled_from(["gone", "comes back", "comes back", "blocked"]))
    def an_eviction(self, data: st.DataObject, how: str) -> None:
        """It is carried out, or refused."""
        request = data.draw(st.sampled_from(self.world.facts.to_evict()))
        if how == "blocked":
            self.world.block(request)
        else:
            self.world.evict(request, comes_back=how == "comes back")
        self._done()

    # -- agents ----------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.world.facts.orders())
    @rule(data=st.data(), fails=st.sampled_from([False, False, False, True]), still_used=st.booleans())
    def an_agent_obeys(self, data: st.DataObject, fails: bool, still_used: bool) -> None:
        allocation = data.draw(st.sampled_from(self.world.facts.orders()))
        self.world.obey(allocation, fails=fails, still_used=still_used)
        self._done()

    @precondition(lambda self: self.world.facts.orders())
    @rule(still_used=st.booleans())
    def agents_obey(self, still_used: bool) -> None:
        """All orders of the moment are carried out."""
        for allocation in self.world.facts.orders():
            self.world.obey(allocation, still_used=still_used)
            if self.alone:
                self._calm()
        self._done()

    # -- operators and clocks --------------------------------------------------------------------------------------

    @rule(
        namespace=st.sampled_from(NAMESPACES),
        total=LIMITS,
        request=CAPS,
        guaranteed=GUARANTEES,
        unset=st.sampled_from([False, False, True]),
    )
    def quota(self, namespace: str, total, request, guaranteed, unset: bool) -> None:
        """A namespace may have so much from now on, and keeps so much whatever others want."""
        word = QuotaSet(namespace=namespace, total=total, request=request, guaranteed=guaranteed)
        self.world.say(QuotaUnset(namespace=namespace) if unset else word)
        self._done()

    @rule(data=st.data(), what=st.sampled_from(["cordon", "drain", "uncordon", "uncordon"]), whole=st.booleans())
    def cordon(self, data: st.DataObject, what: str, whole: bool) -> None:
        """A node or a GPU is shut, emptied, or opened again."""
        node = NodeName(data.draw(st.sampled_from(sorted(self.world.nodes))))
        gpu = data.draw(st.sampled_from([each.uuid for each in self.world.nodes[node].gpus]))
        gpus = () if whole else (gpu,)
        word = Uncordoned(node=node) if what == "uncordon" else Cordoned(node=node, gpus=gpus, drain=what == "drain")
        self.world.say(word)
        self._done()

    @rule(seconds=st.sampled_from([1.0, 5.0, 45.0, 70.0, 130.0, 320.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.tick(seconds)
        self._done()

    # -- allocators ------------------------------------------------------------------------------------------------

    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        """An allocator is killed; another is started."""
        self.judge.begins_anew()
        self.world.crash(data.draw(st.integers(0, len(self.world.processes) - 1)))
        self._done()

    @precondition(lambda self: not self.alone)
    @rule(data=st.data(), what=st.sampled_from(["send", "BOOK", "STATE", "go on"]), count=st.integers(1, 12))
    def one_goes_on(self, data: st.DataObject, what: str, count: int) -> None:
        """One of two allocators sends, or reads one of the streams; the other does not."""
        process = data.draw(st.sampled_from(self.world.processes))
        for _ in range(count):
            if what == "send":
                process.send()
            elif what == "go on":
                process.go_on()
            else:
                process.read(Stream(what))
        self._done()

    @precondition(lambda self: not self.alone)
    @rule()
    def both_catch_up(self) -> None:
        self._calm()
        self._done()

    # -- sizes -----------------------------------------------------------------------------------------------------

    def _sharing(self) -> list[str]:
        living, bound = self.world.facts.living(), self.world.facts.bound().items()
        return sorted(r for r, grant in bound if r in living and any(each.share for each in grant.booking.devices))

    @precondition(lambda self: self._sharing())
    @rule(data=st.data(), values=ADJUSTED, like_it=st.integers(0, 3))
    def adjust(self, data: st.DataObject, values: dict, like_it: int) -> None:
        """A share is made larger or smaller: as the dry run said, and to the most that is said if that is too much."""
        request = RequestId(data.draw(st.sampled_from(self._sharing())))
        change = Change(request, "", values)
        process = data.draw(st.sampled_from(self.world.processes))
        dry = adjust(process.allocator.ctx, change)
        self.numbered += 1
        process.handle(AdjustAsked(self.numbered, change))
        if self.alone:
            self._calm()
            (answer,) = [each for each in process.said if isinstance(each, AnswerAdjust)]
            assert answer == AnswerAdjust(self.numbered, dry), "the dry run has said something else"
            if isinstance(dry, Adjusted):
                entry = self.world.facts.of["ledger"][dry.booking.allocation]
                assert isinstance(entry, Grant)
                assert entry.booking == dry.booking
            elif dry.most:
                self.sizes.most_is_right(process, request, dry)
        process.said.clear()
        asked = self.world.facts.of["request"][request]
        for _ in range(like_it):  # who would take what it gives up, if that were free
            self.world.ask(PodAsk(asked.claims, asked.namespace))
        self._done()

    # -- asking why ------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.alone and self._living())
    @rule(data=st.data())
    def somebody_asks_why(self, data: st.DataObject) -> None:
        """A pod without a place has a reason; a proposal names movable pods only; asking changes nothing."""
        request = RequestId(data.draw(st.sampled_from(self._living())))
        ctx = self.world.processes[0].allocator.ctx
        before = (ctx.cluster.booked(), len(ctx.undecided), len(ctx.queue))
        standing = how_it_stands(ctx, request)
        assert before == (ctx.cluster.booked(), len(ctx.undecided), len(ctx.queue))
        assert standing.message
        is_bound = isinstance(self.world.facts.of["binding"].get(request), Bound)
        assert (standing.state is RequestState.BOUND) == is_bound
        living = self.world.facts.living()
        for moved in standing.plan.moves if standing.plan is not None else ():
            (mover,) = [each for each in living.values() if each.name == moved.name]
            assert mover.leeway.movable
        self._done()

    # -- the end ---------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        """At rest no pod waits for nothing; and when all have gone nothing is left."""
        if not getattr(self, "goes_on", False):
            return
        self._calm()
        self.world.rest()
        self._calm()
        self.judge.halves()
        self.choices.no_pod_waits_for_nothing()
        self.choices.no_group_waits_for_nothing()
        for request in self._living():
            self.world.withdraw(request)
        self.world.rest()
        left = self.world.facts.live()
        assert not left, f"no request is left, and there is still {left}"
        for process in self.world.processes:
            assert not process.allocator.ctx.cluster.booked()
