"""One tenant of a home: its size, what it has used, what it is owed, and which of its processes wait. Its **credit** is
the part of its request that it has not had: it grows with time, up to one window's worth (or one token's), and shrinks
while a token is held. A tenant with credit is *entitled*. Credit goes below zero only while an entitled tenant waits
for the same SMs: a kernel's overrun is paid back, and what no other tenant wanted is free. The limit has a debt of its
own, for use beyond a token: it holds over any stretch of time."""

from collections import deque
from dataclasses import dataclass, field

from sluice_node_agent.core.quota.events import LEAST_REQUEST_PPM, WHOLE_PPM, Connection, QuotaConfig, TenantSet
from sluice_node_agent.core.quota.wire import Ask, Quota

_INTERVALS_MAX = 256
"""A window of 100 ms holds at most 100 tokens of 1 ms; more are those that were returned at once."""


class UsedTime:
    """The stretches in which a tenant held a token, within one window. All times are in microseconds."""

    __slots__ = ("_intervals", "_used_us", "_window_us")

    def __init__(self, window_us: int) -> None:
        self._window_us = window_us
        self._intervals: deque[list[int]] = deque()
        self._used_us = 0

    def add(self, start_us: int, end_us: int) -> None:
        """A token was held from `start_us` to `end_us`. Never before the last one added."""
        if end_us <= start_us:
            return
        self._used_us += end_us - start_us
        if self._intervals and self._intervals[-1][1] >= start_us:
            self._intervals[-1][1] = end_us
        else:
            self._intervals.append([start_us, end_us])
        if len(self._intervals) > _INTERVALS_MAX:
            first, second = self._intervals.popleft(), self._intervals[0]
            second[0] -= first[1] - first[0]
        self._forget(end_us)

    def used_us(self, now_us: int) -> int:
        self._forget(now_us)
        return self._used_us

    def widen(self, window_us: int) -> None:
        """Use another window from now on. What was dropped stays dropped."""
        self._window_us = window_us

    def room_us(self, now_us: int, allowed_us: int, most_us: int) -> int:
        """The longest token that may begin now, at most `most_us`, so that no window holds more than `allowed_us`:
        while a token is held, use of a window ago is free again."""
        self._forget(now_us)
        left = allowed_us - self._used_us
        if left < 0:
            return 0
        length, at = 0, now_us - self._window_us
        for start, end in self._intervals:
            gap = start - at
            taken = min(gap, left)
            length, left = length + taken, left - taken
            if taken < gap or length >= most_us:
                return min(length, most_us)
            length, at = length + end - start, end
        return min(length + left, most_us)

    def room_at_us(self, now_us: int, allowed_us: int, least_us: int) -> int:
        """When a token of `least_us` may begin, if nothing is used until then. Not before now."""
        self._forget(now_us)
        used, last = self._used_us, now_us - self._window_us
        for start, end in self._intervals:
            length, over = end - start, max(0, used - allowed_us)
            if over <= length and length + allowed_us - used >= least_us:
                return max(now_us, start + self._window_us + over)
            used, last = used - length, end
        return max(now_us, last + self._window_us)

    def _forget(self, now_us: int) -> None:
        begin = now_us - self._window_us
        while self._intervals and self._intervals[0][0] < begin:
            first = self._intervals[0]
            gone = min(first[1], begin) - first[0]
            self._used_us -= gone
            first[0] += gone
            if first[0] < first[1]:
                return
            self._intervals.popleft()


@dataclass(slots=True, eq=False)
class HeldToken:
    """A turn of one process: a token, and those that extended it without a pause."""

    connection: Connection
    token: int
    """The newest; earlier ones end where it begins."""
    width_percent: int
    is_sure: bool
    """Given because the tenant was entitled and its lane was free; else with SMs that no other tenant was owed."""
    since_us: int
    begins_us: int
    """Of the newest token."""
    first_ends_us: int
    """End of the first token: it is not stopped before."""
    ends_us: int
    is_stopped: bool = False


@dataclass(slots=True)
class TenantUsage:
    """What a tenant was given and used since it joined."""

    granted_us: int = 0
    used_us: int = 0
    waited_us: int = 0
    """Time in which it wanted a token and had none."""
    overrun_us: int = 0
    tokens: int = 0
    late: int = 0
    stalls: int = 0
    """Tokens that were not returned, so that others ran beside them."""
    hellos: int = 0
    fail_opens: int = 0
    """How often its processes went on without an answer of the scheduler, as they tell."""
    connections: int = 0
    """Now; as `greeted_pids` only in a report."""
    greeted_pids: tuple[int, ...] = ()
    """The connected processes that sent HELLO, by pid in our namespace; 0 for one that is not visible."""


@dataclass(slots=True, eq=False)
class Tenant:
    """Credit and debt are in microseconds times millionths, so that they are exact."""

    name: str
    config: QuotaConfig
    request_ppm: int
    limit_ppm: int
    width_percent: int
    memory_bytes: int
    used: UsedTime
    lane: int = 0
    credit: int = 0
    most_credit: int = 0
    """One window's worth of its request, or a token if that is more: less would be lost between two turns."""
    limit_debt: int = 0
    hold: HeldToken | None = None
    stalled: dict[Connection, HeldToken] = field(default_factory=dict)
    """Tokens that were never returned; others run beside them, the tenant's own processes too."""
    asks: dict[Connection, Ask] = field(default_factory=dict)
    """In turn order, one per process."""
    connections: dict[Connection, bool] = field(default_factory=dict)
    waits_since_us: int = 0
    is_blamed: bool = False
    """It holds what an entitled tenant waits for."""
    earns_ppm: int = 0
    """How fast its credit grows: its request, plus a part of its lane's spare time while it wants more."""
    usage: TenantUsage = field(default_factory=TenantUsage)

    @classmethod
    def new(cls, order: TenantSet, config: QuotaConfig) -> "Tenant":
        tenant = cls(order.tenant, config, 0, 0, 0, 0, UsedTime(config.window_us))
        tenant.take_size(order)
        tenant.credit, tenant.earns_ppm = tenant.most_credit, tenant.request_ppm
        return tenant

    def take_size(self, order: TenantSet) -> None:
        """Change its size; a token that is held keeps its own."""
        self.request_ppm = min(WHOLE_PPM, max(LEAST_REQUEST_PPM, order.request_ppm))
        self.limit_ppm = min(WHOLE_PPM, max(self.request_ppm, order.limit_ppm))
        self.width_percent = min(100, max(1, order.width_percent))
        self.memory_bytes = order.memory_bytes
        self.most_credit = max(self.request_ppm * self.config.window_us, WHOLE_PPM * self.config.token_us)
        self.credit = min(self.credit, self.most_credit)
        self.used.widen(self._limit_window_us)

    @property
    def is_entitled(self) -> bool:
        """Whether it has had less than its request."""
        return self.credit > 0

    @property
    def shortfall(self) -> float:
        """The part of its request that it has not had, in windows; below 0: what it had too much."""
        return self.credit / (self.request_ppm * self.config.window_us)

    @property
    def waits(self) -> bool:
        return self.hold is None and bool(self.asks) and self.next_in_turn is not None

    @property
    def next_in_turn(self) -> Connection | None:
        """The process whose turn is next. A process with a stalled token gets no other."""
        if not self.stalled:
            return next(iter(self.asks), None)
        return next((connection for connection in self.asks if connection not in self.stalled), None)

    def is_allowed(self, now_us: int) -> bool:
        return self.limit_ppm >= WHOLE_PPM or self.room_us(now_us) >= self.config.least_us

    def allowed_at_us(self, now_us: int) -> int:
        """When its limit lets it start one, if it uses nothing until then."""
        if self.limit_ppm >= WHOLE_PPM:
            return now_us
        paid_us = now_us + -(-self.limit_debt // self.limit_ppm)
        return max(paid_us, self.used.room_at_us(now_us, self._allowed_us, self.config.least_us))

    def room_us(self, now_us: int) -> int:
        """How long its next token may be; less than the shortest when it may have none."""
        connection = self.next_in_turn
        ask = self.asks[connection] if connection is not None else None
        wanted = ask.wanted_us if ask is not None and ask.wanted_us else self.config.token_us
        most = min(self.config.token_us, max(self.config.least_us, wanted))
        if self.limit_ppm >= WHOLE_PPM:
            return most
        if self.limit_debt > 0:
            return 0
        held = max(0, self.hold.ends_us - now_us) if self.hold is not None else 0
        return self.used.room_us(now_us, self._allowed_us, held + most) - held

    def left_us(self, now_us: int) -> int:
        """How long its limit lets it keep its token."""
        if self.hold is None or self.limit_ppm >= WHOLE_PPM:
            return self.config.window_us
        return self.used.room_us(now_us, self._allowed_us, max(0, self.hold.ends_us - now_us))

    def quota(self, epoch: int, *, is_news: bool) -> Quota:
        config = self.config
        told = (config.window_us, config.token_us, self.request_ppm, self.limit_ppm, self.memory_bytes, epoch)
        return Quota(*told, config.patience_us, is_news=is_news)

    def pass_time(self, since_us: int, now_us: int, *, is_excused: bool) -> None:
        """Count time used and waited since then. `is_excused`: another tenant's stalled token may cause an overrun
        here, which is not charged, and the token ends later."""
        passed = now_us - since_us
        if self.hold is None and not self.stalled:
            self.usage.waited_us += passed if self.asks else 0
            self.credit = min(self.credit + self.earns_ppm * passed, self.most_credit)
            if self.limit_debt:
                self.limit_debt = max(0, self.limit_debt - self.limit_ppm * passed)
            return
        held = passed
        over = passed if self.stalled or self.hold is None else max(0, now_us - max(since_us, self.hold.ends_us))
        self.used.add(since_us, now_us)
        self.usage.used_us += held
        if is_excused:
            if self.hold is not None:
                self.hold.ends_us += over
            held, over = held - over, 0
        self.usage.overrun_us += over
        self._pass_credit(passed, held)
        if self.limit_debt or over:
            debt = self.limit_debt + WHOLE_PPM * over - self.limit_ppm * passed
            self.limit_debt = min(max(0, debt), WHOLE_PPM * self.config.debt_max_us)

    def _pass_credit(self, passed: int, held: int) -> None:
        had = self.credit
        credit = min(had + self.earns_ppm * passed - WHOLE_PPM * held, self.most_credit)
        if held and not self.is_blamed:
            # What no other tenant wanted costs no more credit than it has, and earns none.
            credit = max(credit, 0) if had >= 0 else min(had + self.earns_ppm * passed, 0)
        self.credit = max(credit, -WHOLE_PPM * self.config.debt_max_us)

    @property
    def _allowed_us(self) -> int:
        return self.limit_ppm * self._limit_window_us // WHOLE_PPM

    @property
    def _limit_window_us(self) -> int:
        """Longer than the usual window where that has no room for the shortest token."""
        return max(self.config.window_us, -(-self.config.least_us * WHOLE_PPM // max(1, self.limit_ppm)))
