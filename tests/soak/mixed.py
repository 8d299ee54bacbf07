"""Slices of all kinds on all GPUs at once, by dice, with kills; places fit by the judge's own tables."""

from dataclasses import dataclass, field

from simulation.judges.gpu_tables import A100, Span, fits_in, overlap
from soak.broker import Held
from soak.cycles import rig_whole, share, sliced, whole
from soak.life import Strike
from soak.rig import Rig

from sluice.contracts.messages import DeviceGrant

LIVE_MAX = 14
"""Allocations at once."""
BATCH = 60
"""Cycles between two rests, at which everything is compared."""
PROFILES = ("1g.5gb", "1g.5gb", "1g.5gb", "1g.10gb", "2g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "1g.5gb+me", "7g.40gb")
HOME_PROFILES = ("1g.5gb", "2g.10gb")
SHARES_MAX = 4
"""Tenants of one home."""


@dataclass(slots=True)
class Home:
    """A place where shares are, and their namespace."""

    place: DeviceGrant
    namespace: str
    sm_partition: int = 0
    """Of each tenant: a home has one mode."""
    tenants: list[Held] = field(default_factory=list)


@dataclass(slots=True)
class Mix:
    """One batch."""

    rig: Rig
    shares: float
    """How likely the next slice is a share, 0 to 1."""
    kills: float
    """How likely a strike is armed before the next order."""
    making: list[Held] = field(default_factory=list)
    ready: list[Held] = field(default_factory=list)
    going: list[Held] = field(default_factory=list)
    homes: list[Home] = field(default_factory=list)
    begun: int = 0

    def run(self, cycles: int) -> None:
        dice = self.rig.dice
        self.rig.arm(None)
        while self.begun < cycles or self.making or self.ready or self.going:
            live = len(self.making) + len(self.ready) + len(self.going)
            if self.begun < cycles and live < LIVE_MAX and (not self.ready or dice.random() < 0.6):
                self._maybe_strike()
                self._begin()
            elif self.ready and (self.begun >= cycles or dice.random() < 0.7):
                one = self.ready.pop(dice.randrange(len(self.ready)))
                self.rig.revoke(one)
                self.going.append(one)
            self._wait()
        self.rig.arm(None)
        self.rig.check()

    def _begin(self) -> None:
        dice = self.rig.dice
        if dice.random() < self.shares and (found := self._share()) is not None:
            home, grant = found
            held = self.rig.grant(grant, namespace=home.namespace)
            home.tenants.append(held)
        elif devices := self._exclusive():
            held = self.rig.grant(*devices)
        else:
            return
        self.begun += 1
        self.making.append(held)

    def _wait(self) -> None:
        """Until something has moved, or everything has that can."""
        before = len(self.making), len(self.going)

        def moved() -> bool:
            for one in [one for one in self.making if one.is_ready]:
                self.making.remove(one)
                self.ready.append(one)
            changed = (len(self.making), len(self.going)) != before
            return changed or any(one.is_gone or one.said == "SliceFailed" for one in (*self.going, *self.making))

        if self.rig.dice.random() < 0.5:
            self.rig.turn()
        elif self.making or self.going:
            self.rig.until(moved, f"one of {[h.allocation for h in (*self.making, *self.going)]} gets further")
        moved()
        for one in [one for one in self.making if one.said == "SliceFailed"]:
            raise self.rig.failure(f"{one.allocation} failed at a free place: {one.word.error}: {one.word.message}")
        for one in [one for one in self.going if one.is_gone]:
            self.going.remove(one)
            for home in self.homes:
                home.tenants = [tenant for tenant in home.tenants if tenant is not one]
            self.homes = [home for home in self.homes if home.tenants]
            self.rig.finish(one)

    def _maybe_strike(self) -> None:
        dice = self.rig.dice
        if dice.random() >= self.kills:
            return
        if dice.random() < 0.3:
            self.rig.kill()  # wherever it is, not only at a step of the journal
        else:
            self.rig.arm(Strike(dice.randint(1, 40), dice.choice(("before", "torn", "after"))))

    # -- places -------------------------------------------------------------------------------------------------------

    def _taken(self, gpu: int) -> list[tuple[str, Span]]:
        uuid = self.rig.gpus[gpu]
        devices = {
            (d.profile or "", (d.start, d.size))
            for held in self.rig.broker.held.values()
            for d in held.booking.devices
            if d.gpu == uuid
        }
        return sorted(devices)

    def _free_span(self, gpu: int, profile: str) -> Span | None:
        row = A100.profile(profile)
        taken = self._taken(gpu)
        free = [span for span in row.placements if fits_in(A100, taken, row, span)]
        assert not any(overlap(span, other) for span in free for _, other in taken)
        return self.rig.dice.choice(free) if free else None

    def _exclusive(self) -> list[DeviceGrant]:
        dice = self.rig.dice
        last = rig_whole(self.rig)
        if dice.random() < 0.1 and not self._taken(last):
            return [whole(self.rig, last)]
        wanted = dice.choice((1, 1, 1, 2))
        devices: list[DeviceGrant] = []
        for gpu in dice.sample(range(last), wanted):
            profile = dice.choice(PROFILES)
            span = self._free_span(gpu, profile)
            if span is not None:
                devices.append(sliced(self.rig, gpu, profile, *span))
        return devices

    def _share(self) -> tuple[Home, DeviceGrant] | None:
        dice = self.rig.dice
        roomy = [home for home in self.homes if len(home.tenants) < SHARES_MAX and not self._is_going(home)]
        if roomy and dice.random() < 0.85:
            home = dice.choice(roomy)
        elif (place := self._home_place()) is not None:
            home = Home(place, dice.choice(("team", "other")), dice.choice((0, 20)))
            self.homes.append(home)
        else:
            return None
        return home, share(home.place, memory_mib=1000, sm_partition=home.sm_partition)

    def _is_going(self, home: Home) -> bool:
        """A home whose last tenant goes is being destroyed: the allocator books it again only when it is gone."""
        return all(tenant in self.going for tenant in home.tenants)

    def _home_place(self) -> DeviceGrant | None:
        dice = self.rig.dice
        last = rig_whole(self.rig)
        if not self._taken(last) and dice.random() < 0.5:
            return whole(self.rig, last)
        profile = dice.choice(HOME_PROFILES)
        gpu = dice.randrange(last)
        span = self._free_span(gpu, profile)
        return sliced(self.rig, gpu, profile, *span) if span is not None else None
