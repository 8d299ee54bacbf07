"""
Token schedulers that are broken on purpose, each in the way that a mistake would break it: the judge must see them all.

Each is the real one with one thing wrong.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from unittest.mock import patch

from sluice_node_agent.core.quota import events as quota
from sluice_node_agent.core.quota import scheduler as real
from sluice_node_agent.core.quota.scheduler import TokenScheduler
from sluice_node_agent.core.quota.selection import Selection
from sluice_node_agent.core.quota.tenants import HeldToken, Tenant


class ForgetsTheDead(TokenScheduler):
    """A process that dies takes its token with it."""

    def handle(self, event: quota.QuotaEvent, now_us: int) -> list[quota.QuotaInstruction]:
        """As ever, but for that."""
        return [] if isinstance(event, quota.ConnectionClosed) else super().handle(event, now_us)


class NeverStops(TokenScheduler):
    """A running process continues, although others wait."""

    def _may_go_on(self, tenant: Tenant, hold: HeldToken, now_us: int) -> bool:
        ask = tenant.asks.get(hold.connection)
        return ask is not None and ask.ahead_of == hold.token and tenant.is_allowed(now_us)

    def _decide(self, now_us: int) -> Iterator[quota.QuotaInstruction]:
        for tenant, hold in self._running():
            if self._may_go_on(tenant, hold, now_us):
                yield self._go_on(tenant, hold, now_us, is_sure=True)
        yield from super()._decide(now_us)

    def _stop_for(self, waiting: list[Tenant], now_us: int) -> Iterator[quota.QuotaInstruction]:
        yield from ()


class SleepsThrough(TokenScheduler):
    """It never wakes by itself."""

    def handle(self, event: quota.QuotaEvent, now_us: int) -> list[quota.QuotaInstruction]:
        """As ever, but for that."""
        return [each for each in super().handle(event, now_us) if not isinstance(each, quota.WakeAt)]


class BelievesAnybody(TokenScheduler):
    """Naming a token counts as returning it."""

    def _hold_of(self, tenant: Tenant, connection: quota.Connection, token: int) -> HeldToken | None:
        return tenant.hold


@contextmanager
def _as_it_is() -> Iterator[None]:
    yield


@contextmanager
def _by_name() -> Iterator[None]:
    """The same tenant first, always."""

    def choose(
        candidates: Collection[Tenant], running: Collection[tuple[Tenant, HeldToken]], now_us: int
    ) -> list[Selection]:
        turns = real_choose(candidates, running, now_us)
        free = 100 - sum(hold.width_percent for _, hold in running)
        first = [tenant for tenant in sorted(candidates, key=lambda each: each.name) if tenant.width_percent <= free]
        return [Selection(first[0], is_sure=False)] if turns and first else []

    real_choose = real.select_tenants
    with patch.object(real, "select_tenants", choose):
        yield


@contextmanager
def _without_widths() -> Iterator[None]:
    """All tenants run at once."""

    def choose(candidates: Collection[Tenant], _: object, __: int) -> list[Selection]:
        return [Selection(tenant, is_sure=True) for tenant in candidates]

    with patch.object(real, "select_tenants", choose):
        yield


@contextmanager
def _without_windows() -> Iterator[None]:
    """A limit that holds for each token alone: what was used in the window before is forgotten."""

    def room_us(self: Tenant, _: int) -> int:
        return min(
            self.config.token_us, max(self.config.least_us, self.limit_ppm * self.config.window_us // quota.WHOLE_PPM)
        )

    with patch.object(Tenant, "room_us", room_us):
        yield


PLANTED = {
    "forgets the dead": (ForgetsTheDead, _as_it_is),
    "never stops": (NeverStops, _as_it_is),
    "sleeps through": (SleepsThrough, _as_it_is),
    "believes anybody": (BelievesAnybody, _as_it_is),
    "the same tenant first": (TokenScheduler, _by_name),
    "all at once": (TokenScheduler, _without_widths),
    "limits of one token": (TokenScheduler, _without_windows),
}
"""By what is wrong: which scheduler, and what else is broken meanwhile."""
