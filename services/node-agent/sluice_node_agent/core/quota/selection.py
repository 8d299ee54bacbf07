"""
Whose turn it is: who of those that wait may run beside those that run.

First, in each lane, the entitled tenant with the largest shortfall, if nobody of its lane runs by right: lanes are as
wide as their widest tenant and sum up to the home (as docs/sharing.md's, which admission counts with), so all of these
fit side by side once who runs beyond its right has ended. What is left of the SMs goes to anybody whose limit allows
it, so that no SM idles that somebody wants. Nothing here depends on what was long ago, or changes anything.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from sluice_node_agent.core.quota.config import WHOLE_PPM
from sluice_node_agent.core.quota.tenants import HeldToken, Tenant

HOME_PERCENT = 100


@dataclass(frozen=True, slots=True)
class Selection:
    """A tenant may have a token now."""

    tenant: Tenant
    is_sure: bool
    """Whether by right (`HeldToken.is_sure`)."""


def select_tenants(
    candidates: Iterable[Tenant], running: Collection[tuple[Tenant, HeldToken]], now_us: int
) -> list[Selection]:
    """
    Who may begin now beside those that run, in the order of their claims.

    `candidates` are allowed by their limits. `running` holds no token that has stalled.
    """
    waiting = list(candidates)
    if not waiting:
        return []
    free = HOME_PERCENT - sum(hold.width_percent for _, hold in running)
    if free <= 0:
        return []
    heads = _heads(waiting, {tenant.lane for tenant, hold in running if hold.is_sure})
    turns: list[Selection] = []
    kept = 0
    """What entitled tenants need that do not fit yet."""
    blocked_since = now_us
    for head in heads:
        if head.width_percent <= free:
            turns.append(Selection(head, is_sure=True))
            free -= head.width_percent
        else:
            kept += head.width_percent
            blocked_since = min(blocked_since, head.waits_since_us)
    if kept:
        # Who began since then, beyond its right, would still run when those end that they wait for.
        by_right = sum(turn.tenant.width_percent for turn in turns)
        staying = sum(h.width_percent for _, h in running if h.is_sure or h.since_us >= blocked_since)
        free = min(free, HOME_PERCENT - kept - by_right - staying)
    if free <= 0 or len(waiting) == len(heads):
        return turns
    chosen = {head.name for head in heads}
    for tenant in _others([tenant for tenant in waiting if tenant.name not in chosen], now_us):
        if tenant.width_percent <= free:
            turns.append(Selection(tenant, is_sure=False))
            free -= tenant.width_percent
        elif _is_aged(tenant, now_us):
            break
    return turns


def assign_lanes(tenants: Collection[Tenant]) -> dict[str, int]:
    """
    Each tenant's lane: the widest first, each into the first lane that has the time, else into one of its own.

    Where that takes more than the home, for it is booked beyond what it has, the rest shares what lanes there are: the
    one with most time left.
    """
    times: list[int] = []
    width, found = 0, {}
    for tenant in sorted(tenants, key=lambda each: (-each.width_percent, -each.request_ppm, each.name)):
        lane = next((n for n, time in enumerate(times) if time + tenant.request_ppm <= WHOLE_PPM), None)
        if lane is None and width + tenant.width_percent <= HOME_PERCENT:
            lane, width = len(times), width + tenant.width_percent
            times.append(0)
        if lane is None:
            lane = min(range(len(times)), key=times.__getitem__)
        times[lane] += tenant.request_ppm
        found[tenant.name] = lane
    return found


def _heads(waiting: Iterable[Tenant], busy: Collection[int]) -> list[Tenant]:
    """Of each lane that nobody runs in by right, who is entitled most; those with the largest claims first."""
    heads: dict[int, Tenant] = {}
    for tenant in waiting:
        if not tenant.is_entitled or tenant.lane in busy:
            continue
        other = heads.get(tenant.lane)
        if other is None or _claim(tenant) < _claim(other):
            heads[tenant.lane] = tenant
    return sorted(heads.values(), key=_claim)


def _others(waiting: Sequence[Tenant], now_us: int) -> list[Tenant]:
    """Who waited a whole window first; then who is owed most; then, of those who are owed nothing, who used least."""

    def order(tenant: Tenant) -> tuple[float, ...]:
        if _is_aged(tenant, now_us) and tenant.credit >= 0:
            return (0, tenant.waits_since_us)
        used_us = tenant.used.used_us(now_us) if tenant.credit == 0 else 0
        return (1, -tenant.shortfall, used_us, tenant.hold is not None, tenant.waits_since_us)

    return sorted(waiting, key=lambda tenant: (order(tenant), tenant.name))


def _claim(tenant: Tenant) -> tuple[float, bool, int, str]:
    return -tenant.shortfall, tenant.hold is not None, tenant.waits_since_us, tenant.name


def _is_aged(tenant: Tenant, now_us: int) -> bool:
    return now_us - tenant.waits_since_us >= tenant.config.window_us
