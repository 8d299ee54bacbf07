"""Pods that larger profiles may serve or that may be moved: which of a seed, and what must hold of them."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product
from random import Random
from typing import TYPE_CHECKING

from simulation.faults.further_faults import RATE_OFF
from simulation.judges.books import Books
from simulation.judges.cordons import ORDER_IS_LATE_S
from simulation.judges.gpu_tables import GpuRow, at_least
from simulation.plans.pods import Device, Pod

from sluice.contracts.bus.events import Write
from sluice.contracts.messages import Booking, Bound, EvictionOrdered, Grant

if TYPE_CHECKING:
    from simulation.plans.plan import Plan

MOVING_SEEDS = 0.4
"""In so many seeds some pods may be served by larger profiles, and moved."""
COOLDOWN_S = 5.0
"""Configuration of the simulated allocators."""
SUBSTITUTE, MOVABLE = "sluice.dev/substitute", "sluice.dev/movable"


def with_moves(plan: "Plan", seeds: float = MOVING_SEEDS) -> "Plan":
    """In some seeds some pods have leeway: drawn apart, so that all else of a seed stays what it is without."""
    dice = Random(f"moves {plan.seed}")
    if dice.random() >= seeds:
        return plan
    lives = (replace(life, pod=_with_leeway(life.pod, dice)) if dice.random() < 0.7 else life for life in plan.pods)
    return replace(plan, pods=tuple(lives))


def _with_leeway(pod: Pod, dice: Random) -> Pod:
    ask = pod.ask
    has_it = any(key == SUBSTITUTE for key, _ in ask.annotations)  # a key that is there twice is no YAML
    if has_it or ask.end != "bound" or any(device.want != "profile" for device in ask.devices):
        return pod
    keys = ((SUBSTITUTE, "return" if dice.random() < 0.8 else "true"),)
    keys += ((MOVABLE, "true"),) if dice.random() < 0.5 else ()
    devices = tuple(replace(device, larger=True) for device in ask.devices)
    return replace(pod, ask=replace(ask, annotations=(*ask.annotations, *keys), devices=devices))


def sizes_that_serve(pod: Pod, rows: Iterable[GpuRow]) -> Iterator[Pod]:
    """A pod with every size that may serve it written out: first what it asks for, then larger ones where it lets them.

    All devices of one container are of one size, and each container has its own (docs/moving.md): two GPUs whose fixed
    layouts have different instances do not serve a pod together that wants two of one size.
    """
    alike = len(pod.ask.containers) == 1
    each = [_sizes_of(device, rows) for device in (pod.ask.devices[:1] if alike else pod.ask.devices)]
    for sizes in product(*each):
        devices = sizes * len(pod.ask.devices) if alike else sizes
        yield replace(pod, ask=replace(pod.ask, devices=devices))


def _sizes_of(device: Device, rows: Iterable[GpuRow]) -> list[Device]:
    exact = replace(device, larger=False)
    if not device.larger:
        return [exact]
    enough = ((row, profile) for row in rows for profile in row.profiles if at_least(row, profile, exact.profile))
    names = dict.fromkeys(profile.name for _, profile in enough)
    return [exact, *(replace(exact, profile=name) for name in names if name != exact.profile)]


class MoveJudge:
    """Observes what lands on the bus, after the judge did."""

    def __init__(self, judge: Books) -> None:
        """Start without moves."""
        self.judge = judge
        self.bound_at: dict[str, float] = {}
        """When each allocation was bound first."""
        self.made_for: dict[str, None] = {}
        """Allocations that are evicted so that another is booked in their place."""

    def landed(self, write: Write, _sequence: int) -> None:
        """A value is the last one of its subject now."""
        match write.message:
            case Grant() as grant:
                self._granted(grant)
            case Bound() as bound:
                self.bound_at.setdefault(bound.allocation, self.judge.clockwork.now)
            case EvictionOrdered() as ordered if self.judge.is_of_this_life(ordered):
                mine = (each for each, book in self.judge.bookings.items() if book.request == ordered.request)
                others = self.judge.is_drained(ordered.request)
                others = others or self.judge.lost_what_it_held(ordered.request, ORDER_IS_LATE_S)
                if not any(each in self.made_for for each in mine) and not others:
                    self.judge.fail("booked first", f"{ordered.request} is evicted, and nothing was booked for that")
            case _:
                pass

    def _granted(self, grant: Grant) -> None:
        self._check_size(grant)
        self._check_one_size(grant.booking)
        if not grant.evict:
            return
        self.made_for |= dict.fromkeys(grant.after)
        if grant.adopted:
            return
        for allocation in grant.after:
            known = self.judge.bookings.get(allocation)
            if known is None or known.request != grant.booking.request:
                continue
            stayed = self.judge.clockwork.now - self.bound_at.get(allocation, self.judge.clockwork.now)
            if stayed < COOLDOWN_S * (1 - RATE_OFF):
                text = f"{grant.booking.request} is moved from {allocation} after {stayed:.1f} s"
                self.judge.fail("moved too soon", text)

    def _check_size(self, grant: Grant) -> None:
        asked = grant.booking.instead_of
        if not asked or "," in asked or len(grant.booking.devices) > 1:
            return  # the goals compare what each of several was given
        (device,) = grant.booking.devices
        row = self.judge.machines[grant.booking.node].gpus[device.gpu].row
        profile = row.profile(device.profile or "")
        if profile is None or not at_least(row, profile, asked):
            self.judge.fail("never less", f"{grant.booking.request} asked for {asked} and is granted {device}")

    def _check_one_size(self, booking: Booking) -> None:
        """What works together in one container is alike; on two models the same name does not exist."""
        if not booking.instead_of:
            return
        gpus = self.judge.machines[booking.node].gpus
        sizes: dict[tuple[str, str], str | None] = {}
        for device in booking.devices:
            size = sizes.setdefault((device.container, gpus[device.gpu].row.product_name), device.profile)
            if size != device.profile:
                text = f"{booking.request} is granted {size} and {device.profile} for {device.container}"
                self.judge.fail("one size", text)
