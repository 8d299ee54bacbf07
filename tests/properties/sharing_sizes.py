"""Is the most that a refused change reports really the most? By the judge's own count of homes and limits.

A share may be as large as its home and its namespace allow beside what is there; who is promised a place there is to
come after another tenant, so what it will take is neither sure to be free nor sure to be taken.
"""

from msgspec.structs import replace
from properties.sharing_facts import SharingWorld
from properties.sharing_judge import SharingJudge, too_much
from properties.small_bus import Process

from sluice.contracts.ids import RequestId
from sluice.contracts.messages import QuotaSet
from sluice_allocator.core.resize.pending import Adjusted, AdjustReason, AdjustRefused, Change
from sluice_allocator.core.resize.resize import adjust


class Sizes:
    """Judges what a refusal says would fit."""

    def __init__(self, world: SharingWorld, judge: SharingJudge) -> None:
        """Look at what `judge` has observed in this world."""
        self.world = world
        self.judge = judge

    def most_is_right(self, process: Process, request: RequestId, refused: AdjustRefused) -> None:
        """The most that was said fits, and one more does not: by the judge's count."""
        ctx = process.allocator.ctx
        for name, value in refused.most:
            most = adjust(ctx, Change(request, "", {name: value}))
            assert isinstance(most, Adjusted) or most.reason is AdjustReason.UNCHANGED, f"{name} {value}: {most}"
            if isinstance(most, Adjusted):  # it may have more than it may have by now, and keeps that
                promised = [each for each in self.world.facts.live() if self.judge.waits_for_others(each)]
                wrong = self._wrong_with(request, name, value, promised)
                assert not wrong, f"{name} {value} does not fit: {wrong}"
            if value < (100 if name == "sm_partition" else 1 << 40):
                more = adjust(ctx, Change(request, "", {name: value + 1}))
                assert isinstance(more, AdjustRefused), f"{name}: {value} is not the most"
                assert self._wrong_with(request, name, value + 1, []), f"{name} {value + 1} would fit: {more}"

    def _wrong_with(self, request: RequestId, name: str, value: int, left_out: list[str]) -> list[str]:
        """What would be wrong with the bookings if a pod had shares of that size."""
        grant = self.world.facts.bound()[request]
        allocation = grant.booking.allocation
        before = self.judge.uses[allocation]
        becomes = tuple(
            replace(each, share=replace(each.share, **{name: max(value, getattr(each.share, name))}))
            for each in before
            if each.share is not None
        )
        truth = self.judge.truth(left_out)
        truth.bookings[allocation] = replace(grant.booking, devices=becomes)
        wrong = [each for each in truth.violations() if grant.booking.devices[0].gpu in each]
        quota = self.world.facts.of["quota"].get(grant.booking.namespace)
        if isinstance(quota, QuotaSet):
            had = self.judge.amounts([grant.booking])
            self.judge.uses[allocation] = becomes
            one = self.judge.amounts([grant.booking])
            live = (entry.booking for entry in self.world.facts.live().values())
            in_all = self.judge.amounts([each for each in live if each.namespace == grant.booking.namespace])
            self.judge.uses[allocation] = before
            grows = one[0] - had[0], one[1] - had[1], one[2] - had[2]
            over = (too_much(quota.total, in_all, grows), too_much(quota.request, one, grows))
            wrong += [each for each in over if each]
        return wrong
