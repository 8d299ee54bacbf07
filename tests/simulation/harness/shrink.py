"""Makes a failing plan small: leaves out one thing after the other as long as the same invariant still fails.

What is left is what the violation needs. It judges nothing and knows no world: `play` says what comes of a plan. A plan
that lacks what the rest of it names is not tried, for it would fail for another reason.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import TypeVar

from simulation.plans.plan import Plan, PodLife
from simulation.world.weather import Weather

_T = TypeVar("_T")
_PROBABILITIES = tuple(
    field.name for field in fields(Weather) if field.type is float and field.name not in {"until", "longest_s"}
)


@dataclass(frozen=True, slots=True)
class Shrunk:
    """The least plan found, in how many tries, and whether the time sufficed to try everything."""

    plan: Plan
    violation: str
    tries: int
    whole: bool


def what_fails(violation: str) -> str:
    """What must fail again for it to be the same violation: the invariant, or where which exception was raised."""
    rule, _, text = violation.partition(":")
    if rule != "raised":
        return rule
    error, _, where = text.rpartition(" at ")
    return f"raised {error.strip().partition('(')[0]} at {where}"


def shrink(plan: Plan, violation: str, play: Callable[[Plan], str], may_go_on: Callable[[], bool]) -> Shrunk:
    """The least plan that still fails like `violation`, found by leaving out faults, then pods, then all else.

    `play` returns the violation of a plan, or nothing; `may_go_on` ends the search at any time. Raises ValueError when
    `violation` is empty: then every plan that passes would be less.
    """
    if not violation:
        raise ValueError("violation is empty: a plan that passes cannot be made smaller")
    search = _Search(plan, violation, play, may_go_on)
    before = None
    while before != search.plan and search.goes_on:
        before = search.plan
        search.in_parts(lambda plan: plan.faults, lambda plan, kept: replace(plan, faults=kept))
        search.in_parts(lambda plan: plan.pods, lambda plan, kept: replace(plan, pods=kept))
        search.in_parts(lambda plan: plan.resizings, lambda plan, kept: replace(plan, resizings=kept))
        search.in_parts(lambda plan: plan.quotas, lambda plan, kept: replace(plan, quotas=kept))
        search.in_parts(lambda plan: plan.cordons, lambda plan, kept: replace(plan, cordons=kept))
        search.one_by_one(_calmer)
        search.one_by_one(_fewer_nodes)
        search.one_by_one(_simpler)
        search.one_by_one(_shorter_lives)
    return Shrunk(search.plan, search.violation, search.tries, whole=search.goes_on)


class _Search:
    """The least plan so far."""

    def __init__(self, plan: Plan, violation: str, play: Callable[[Plan], str], may_go_on: Callable[[], bool]) -> None:
        self.plan = plan
        self.violation = violation
        self.tries = 0
        self.goes_on = True
        self._play = play
        self._may_go_on = may_go_on

    def in_parts(
        self, parts_of: Callable[[Plan], tuple[_T, ...]], with_parts: Callable[[Plan, tuple[_T, ...]], Plan]
    ) -> None:
        """Leave out half of something, then quarters, and so on down to single ones."""
        size = len(parts_of(self.plan))
        while size and self.goes_on:
            at = 0
            while at < len(parts := parts_of(self.plan)) and self.goes_on:
                if not self._try(with_parts(self.plan, parts[:at] + parts[at + size :])):
                    at += size
            size = min(size, len(parts_of(self.plan)) + 1) // 2

    def one_by_one(self, simpler: Callable[[Plan], Iterator[Plan]]) -> None:
        """Try each simpler plan; after one that fails as well, what is simpler than that."""
        found = True
        while found and self.goes_on:
            found = any(self._try(plan) for plan in simpler(self.plan))

    def _try(self, plan: Plan) -> bool:
        self.goes_on = self.goes_on and self._may_go_on()
        if not self.goes_on or plan == self.plan:
            return False
        self.tries += 1
        violation = self._play(plan)
        if not violation or what_fails(violation) != what_fails(self.violation):
            return False
        self.plan, self.violation = plan, violation
        return True


def _calmer(plan: Plan) -> Iterator[Plan]:
    for name in _PROBABILITIES:
        if getattr(plan.weather, name):
            yield replace(plan, weather=replace(plan.weather, **{name: 0.0}))


def _fewer_nodes(plan: Plan) -> Iterator[Plan]:
    for node, _ in plan.nodes if len(plan.nodes) > 1 else ():
        short = node.split(".", maxsplit=1)[0]
        yield replace(
            plan,
            nodes=tuple(each for each in plan.nodes if each[0] != node),
            faults=tuple(fault for fault in plan.faults if fault.target not in {node, f"agent-{node}"}),
            cordons=tuple(said for said in plan.cordons if said.node != node),
            layouts={gpu: layout for gpu, layout in plan.layouts.items() if not gpu.startswith(f"GPU-{short}-")},
        )


def _simpler(plan: Plan) -> Iterator[Plan]:
    if plan.allocators > 1:
        faults = tuple(fault for fault in plan.faults if fault.target != "allocator-b")
        yield replace(plan, allocators=1, both_active=False, faults=faults)
    if plan.clocks_off:
        yield replace(plan, clocks_off=False)
    if plan.keep_warm_s:
        yield replace(plan, keep_warm_s=0.0)
    if plan.limits_file:
        faults = tuple(fault for fault in plan.faults if fault.target != "limits")
        yield replace(plan, limits_file=False, faults=faults)
    if plan.watchers > 1:
        faults = tuple(fault for fault in plan.faults if fault.target != "pod-watcher-2")
        yield replace(plan, watchers=1, faults=faults)
    if plan.pods_per_node_max is not None:
        yield replace(plan, pods_per_node_max=None)
    for gpu in plan.layouts:
        yield replace(plan, layouts={other: layout for other, layout in plan.layouts.items() if other != gpu})


def _shorter_lives(plan: Plan) -> Iterator[Plan]:
    for number, life in enumerate(plan.pods):
        for plain in _plainer(life):
            yield replace(plan, pods=(*plan.pods[:number], plain, *plan.pods[number + 1 :]))


def _plainer(life: PodLife) -> Iterator[PodLife]:
    if life.edited_at is not None:
        yield replace(life, edited_at=None, edit=None)
    if life.spoiled_at is not None:
        yield replace(life, spoiled_at=None)
    if life.removed_at is not None:
        yield replace(life, removed_at=None)
