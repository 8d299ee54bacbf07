"""Choose which waiting tenants may run beside those that run. First, in each lane, the entitled tenant with the largest
shortfall, if none of its lane runs by right: a lane is as wide as its widest tenant and lanes sum up to the home
(docs/sharing.md), so all of these fit side by side. The rest of the SMs goes to any tenant within its limit, so that no
wanted SM idles. Pure."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from sluice_node_agent.core.quota.events import WHOLE_PPM
from sluice_node_agent.core.quota.tenants import HeldToken, Tenant

HOME_PERCENT = 100


@dataclass(frozen=True, slots=True)
class Selection:
    """A tenant may have a token now."""

    tenant: Tenant
    is_sure: bool


def select_tenants(
    candidates: Iterable[Tenant], running: Collection[tuple[Tenant, HeldToken]], now_us: int
) -> list[Selection]:
    """Tenants that may start now, by claim. `candidates` are within their limits; `running` holds no stalled token."""
    waiting = list(candidates)
    if not waiting:
        return []
    free = HOME_PERCENT - sum(hold.width_percent for _, hold in running)
    if free <= 0:
        return []
    heads = _heads(waiting, {tenant.lane for tenant, hold in running if hold.is_sure})
    turns: list[Selection] = []
    kept = 0
    """SMs that entitled tenants need but that are not free yet."""
    blocked_since = now_us
    for head in heads:
        if head.width_percent <= free:
            turns.append(Selection(head, is_sure=True))
            free -= head.width_percent
        else:
            kept += head.width_percent
            blocked_since = min(blocked_since, head.waits_since_us)
    if kept:
        # A tenant starting beyond its right would still run when the holders that these wait for end.
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
    """The widest tenant first, each to the first lane with the time, else a new one, else that with most time left."""
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
    """For each lane without a tenant running by right, its most entitled tenant; largest claims first."""
    heads: dict[int, Tenant] = {}
    for tenant in waiting:
        if not tenant.is_entitled or tenant.lane in busy:
            continue
        other = heads.get(tenant.lane)
        if other is None or _claim(tenant) < _claim(other):
            heads[tenant.lane] = tenant
    return sorted(heads.values(), key=_claim)


def _others(waiting: Sequence[Tenant], now_us: int) -> list[Tenant]:
    """First those that waited a whole window; then by what they are owed; then, if owed nothing, by least used."""

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
