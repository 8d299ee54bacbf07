"""The token scheduler of one home: events in, instructions out. A process asks, gets a token when its tenant's turn
comes, and returns it. Time is charged by the scheduler's clock, and nothing that a client sends decides its identity:
one that lies or stalls pays with its own share. An event costs as much as the home has tenants. `selection` chooses the
next turn, and `tenants` counts what was used."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from sluice_node_agent.core.quota import events, wire
from sluice_node_agent.core.quota.selection import assign_lanes, select_tenants
from sluice_node_agent.core.quota.tenants import HeldToken, Tenant, TenantUsage
from sluice_node_agent.core.quota.wire import Ask, GiveBack, Grant, Hello, Refused, Stop


class TokenScheduler:
    """All times are in microseconds of one monotonic clock."""

    def __init__(self, config: events.QuotaConfig, epoch: int, now_us: int) -> None:
        """Start without tenants. `epoch` differs after each start."""
        self._config = config
        self._epoch = epoch
        self._tenants: dict[events.TenantName, Tenant] = {}
        self._of: dict[events.Connection, Tenant] = {}
        self._counted_us = now_us
        self._tokens = 0
        self._wakes_at: int | None = None

    def handle(self, event: events.QuotaEvent, now_us: int) -> list[events.QuotaInstruction]:
        return list(self.steps(event, now_us))

    def steps(self, event: events.QuotaEvent, now_us: int) -> Iterator[events.QuotaInstruction]:
        """As `handle`, one by one: the next token is sent first. Must be exhausted before the next event."""
        if isinstance(event, events.MessageReceived) and self._is_vain(event):
            return
        now_us = max(now_us, self._counted_us)
        self._count(now_us)
        yield from self._take(event, now_us)
        yield from self._decide(now_us)
        wakes_at = self._next_wake(now_us)
        if wakes_at != self._wakes_at or isinstance(event, events.TimerDue):
            self._wakes_at = wakes_at
            yield events.WakeAt(wakes_at)

    def usage(self, now_us: int, greeted: Mapping[events.TenantName, tuple[int, ...]]) -> dict[str, TenantUsage]:
        """The counters of every tenant up to now, with its processes that sent HELLO as the shell knows them."""
        self._count(max(now_us, self._counted_us))
        return {
            name: replace(tenant.usage, connections=len(tenant.connections), greeted_pids=greeted.get(name, ()))
            for name, tenant in self._tenants.items()
        }

    def _is_vain(self, said: events.MessageReceived) -> bool:
        tenant, message = self._of.get(said.connection), said.message
        if tenant is None:
            return True
        if not tenant.connections[said.connection]:
            return False
        if isinstance(message, Ask):
            return message == tenant.asks.get(said.connection)
        if isinstance(message, GiveBack):
            return self._hold_of(tenant, said.connection, message.token) is None
        return False

    def _take(self, event: events.QuotaEvent, now_us: int) -> Iterator[events.QuotaInstruction]:
        match event:
            case events.TenantSet():
                yield from self._set(event, now_us)
            case events.TenantRemoved(tenant=name):
                tenant = self._tenants.pop(name, None)
                for connection in list(tenant.connections) if tenant is not None else ():
                    yield from self._refuse(connection, wire.ENDING, "its share is not in the home any more")
                self._arrange()
            case events.ConnectionOpened(connection=connection, tenant=name):
                yield from self._arrived(connection, name)
            case events.MessageReceived(connection=connection, message=message):
                yield from self._said(connection, message, now_us)
            case events.ConnectionClosed(connection=connection):
                self._forget(connection, now_us)
            case events.TimerDue():
                pass

    def _set(self, order: events.TenantSet, now_us: int) -> Iterator[events.QuotaInstruction]:
        tenant = self._tenants.get(order.tenant)
        if tenant is None:
            self._tenants[order.tenant] = Tenant.new(order, self._config)
            self._arrange()
            return
        told = tenant.quota(self._epoch, is_news=True)
        tenant.take_size(order)
        self._arrange()
        changed = tenant.quota(self._epoch, is_news=True)
        if changed != told:
            yield from (events.Send(each, changed) for each, greeted in tenant.connections.items() if greeted)
        hold = tenant.hold
        if hold is not None and not hold.is_stopped:
            hold.ends_us = min(hold.ends_us, now_us + max(0, tenant.left_us(now_us)))
            if hold.ends_us <= now_us:
                yield from _stop(hold, now_us)

    def _arrived(self, connection: events.Connection, name: events.TenantName) -> Iterator[events.QuotaInstruction]:
        tenant = self._tenants.get(name)
        if tenant is None:
            yield from self._refuse(connection, wire.NOT_A_TENANT, f"there is no tenant {name!r}")
        elif len(tenant.connections) >= self._config.connections_max:
            yield from self._refuse(connection, wire.TOO_MANY, f"{name!r} has {len(tenant.connections)} connections")
        else:
            tenant.connections[connection] = False
            self._of[connection] = tenant

    def _said(
        self, connection: events.Connection, message: Hello | Ask | GiveBack, now_us: int
    ) -> Iterator[events.QuotaInstruction]:
        tenant = self._of[connection]
        greeted = tenant.connections[connection]
        if not greeted and not isinstance(message, Hello):
            self._forget(connection, now_us)
            yield events.Disconnect(connection, f"it says {type(message).__name__} before hello")
            return
        match message:
            case Hello(fail_opens=fail_opens):  # repeated by a process that waits long
                tenant.connections[connection] = True
                tenant.usage.fail_opens += fail_opens
                tenant.usage.hellos += not greeted
                yield events.Send(connection, tenant.quota(self._epoch, is_news=False))
            case Ask():
                if not tenant.waits:
                    tenant.waits_since_us = now_us
                tenant.asks[connection] = message
            case GiveBack(token=token):
                hold = self._hold_of(tenant, connection, token)
                assert hold is not None  # else `_is_vain`
                self._end(tenant, hold, now_us)

    def _refuse(self, connection: events.Connection, reason: int, why: str) -> Iterator[events.QuotaInstruction]:
        self._of.pop(connection, None)
        yield events.Send(connection, Refused(reason))
        yield events.Disconnect(connection, why)

    def _forget(self, connection: events.Connection, now_us: int) -> None:
        """A connection is gone: its token is free at once."""
        tenant = self._of.pop(connection, None)
        if tenant is None:
            return
        del tenant.connections[connection]
        tenant.asks.pop(connection, None)
        for hold in (tenant.hold, tenant.stalled.get(connection)):
            if hold is not None and hold.connection == connection:
                self._end(tenant, hold, now_us)

    def _end(self, tenant: Tenant, hold: HeldToken, now_us: int) -> None:
        tenant.usage.late += now_us > hold.ends_us + self._config.grace_us
        if tenant.hold is hold:
            tenant.hold = None
            tenant.waits_since_us = now_us
        else:
            del tenant.stalled[hold.connection]

    def _decide(self, now_us: int) -> Iterator[events.QuotaInstruction]:
        for tenant in self._tenants.values():
            if tenant.hold is not None and tenant.hold.ends_us + self._config.overrun_max_us <= now_us:
                tenant.stalled[tenant.hold.connection] = tenant.hold
                tenant.usage.stalls += 1
                tenant.hold, tenant.waits_since_us = None, now_us
        waiting = self._waiting(now_us)
        for turn in select_tenants(waiting, self._running(), now_us) if waiting else ():
            waiting.remove(turn.tenant)
            yield self._grant(turn.tenant, now_us, is_sure=turn.is_sure)
        for tenant, hold in self._running():
            if self._may_go_on(tenant, hold, now_us):
                others = [(each, h) for each, h in self._running() if h is not hold]
                turns = select_tenants([*waiting, tenant], others, now_us)
                mine = next((turn for turn in turns if turn.tenant is tenant), None)
                if mine is not None:
                    yield self._go_on(tenant, hold, now_us, is_sure=mine.is_sure)
        yield from self._stop_for(waiting, now_us)
        self._weigh(waiting)

    def _grant(self, tenant: Tenant, now_us: int, *, is_sure: bool) -> events.Send:
        length_us = tenant.room_us(now_us)
        connection = tenant.next_in_turn
        assert connection is not None  # it waits
        ask = tenant.asks.pop(connection)
        ends_us = now_us + length_us
        token = self._new_token(tenant, length_us)
        tenant.hold = HeldToken(
            connection,
            token,
            tenant.width_percent,
            is_sure=is_sure,
            since_us=now_us,
            begins_us=now_us,
            first_ends_us=ends_us,
            ends_us=ends_us,
        )
        return events.Send(connection, Grant(token, length_us, ask.sequence))

    def _go_on(self, tenant: Tenant, hold: HeldToken, now_us: int, *, is_sure: bool) -> events.Send:
        length_us = tenant.room_us(now_us)
        ask = tenant.asks.pop(hold.connection)
        hold.token = self._new_token(tenant, length_us)
        hold.begins_us, hold.ends_us = hold.ends_us, hold.ends_us + length_us
        hold.width_percent, hold.is_sure = tenant.width_percent, is_sure
        return events.Send(hold.connection, Grant(hold.token, length_us, ask.sequence))

    def _may_go_on(self, tenant: Tenant, hold: HeldToken, now_us: int) -> bool:
        """Whether its process asked ahead, no other process of its tenant waits, and its limit allows it."""
        ask = tenant.asks.get(hold.connection)
        return (
            ask is not None
            and tenant.next_in_turn == hold.connection
            and ask.ahead_of == hold.token
            and not hold.is_stopped
            and hold.begins_us <= now_us <= hold.ends_us + self._config.grace_us
            and tenant.is_allowed(now_us)
        )

    def _stop_for(self, waiting: list[Tenant], now_us: int) -> Iterator[events.QuotaInstruction]:
        """Stop tokens beyond their first when another tenant's turn has come."""
        longer = [
            (tenant, hold)
            for tenant, hold in self._running()
            if hold.first_ends_us <= now_us < hold.ends_us and not hold.is_stopped
        ]
        if not waiting or not longer:
            return
        fixed = [(tenant, hold) for tenant, hold in self._running() if all(hold is not other for _, other in longer)]
        turns = {turn.tenant.name for turn in select_tenants([*waiting, *(t for t, _ in longer)], fixed, now_us)}
        if any(tenant.name in turns for tenant in waiting):
            for tenant, hold in longer:
                if tenant.name not in turns:
                    yield from _stop(hold, now_us)

    def _weigh(self, waiting: list[Tenant]) -> None:
        """Charge holders that an entitled tenant waits for, and share out what a lane has left."""
        asked: dict[int, int] = {}
        in_lane: dict[int, int] = {}
        taken: set[int] = set()
        for tenant in self._tenants.values():
            tenant.is_blamed, tenant.earns_ppm = bool(tenant.stalled), tenant.request_ppm
            if tenant.hold is not None and tenant.hold.is_sure:
                taken.add(tenant.lane)
        running = [tenant for tenant, _ in self._running()]
        for tenant in (*waiting, *running):
            asked[tenant.lane] = asked.get(tenant.lane, 0) + tenant.request_ppm
            in_lane[tenant.lane] = in_lane.get(tenant.lane, 0) + 1
        owed = {tenant.lane for tenant in waiting if tenant.is_entitled}
        for tenant in (*waiting, *running):
            spare = events.WHOLE_PPM - asked[tenant.lane]
            if spare > 0:
                tenant.earns_ppm += spare // in_lane[tenant.lane]
        for tenant in running if owed else ():
            assert tenant.hold is not None
            keeps_out = not tenant.hold.is_sure and not owed <= taken
            tenant.is_blamed = tenant.is_blamed or tenant.lane in owed or keeps_out

    def _count(self, now_us: int) -> None:
        stalled = [tenant.name for tenant in self._tenants.values() if tenant.stalled]
        for tenant in self._tenants.values():
            is_excused = bool(stalled) and stalled != [tenant.name] and not tenant.stalled
            tenant.pass_time(self._counted_us, now_us, is_excused=is_excused)
        self._counted_us = now_us

    def _running(self) -> list[tuple[Tenant, HeldToken]]:
        return [(tenant, tenant.hold) for tenant in self._tenants.values() if tenant.hold is not None]

    def _waiting(self, now_us: int) -> list[Tenant]:
        """Tenants that may start. Beside a stalled token one in debt waits: two that stall would share evenly."""
        has_stall = any(tenant.stalled for tenant in self._tenants.values())
        return [
            tenant
            for tenant in self._tenants.values()
            if tenant.waits and tenant.is_allowed(now_us) and not (has_stall and now_us < self._pays_until(tenant))
        ]

    def _pays_until(self, tenant: Tenant) -> int:
        paid_us = self._counted_us + max(0, -tenant.credit) // tenant.earns_ppm
        return min(paid_us, tenant.waits_since_us + self._config.debt_wait_us)

    def _arrange(self) -> None:
        for name, lane in assign_lanes(self._tenants.values()).items():
            self._tenants[name].lane = lane

    def _new_token(self, tenant: Tenant, length_us: int) -> int:
        self._tokens += 1
        tenant.usage.tokens += 1
        tenant.usage.granted_us += length_us
        return self._tokens

    def _hold_of(self, tenant: Tenant, connection: events.Connection, token: int) -> HeldToken | None:
        for hold in (tenant.hold, tenant.stalled.get(connection)):
            if hold is not None and hold.connection == connection and hold.token == token:
                return hold
        return None

    def _next_wake(self, now_us: int) -> int | None:
        times: list[int] = []
        waits, has_stall = False, any(tenant.stalled for tenant in self._tenants.values())
        for tenant in self._tenants.values():
            if tenant.waits:
                allowed_at = tenant.allowed_at_us(now_us)
                if allowed_at > now_us:
                    times.append(allowed_at)
                    continue
                waits = True
                if has_stall:
                    times.append(self._pays_until(tenant))
                if not tenant.is_entitled:
                    times.append(now_us + -tenant.credit // tenant.earns_ppm + 1)
        for tenant, hold in self._running():
            times.append(hold.ends_us + self._config.overrun_max_us)
            if waits and hold.first_ends_us < hold.ends_us and not hold.is_stopped:
                times.append(hold.first_ends_us)
            if hold.connection in tenant.asks:
                times.append(hold.begins_us)
        return min((time for time in times if time > now_us), default=None)


def _stop(hold: HeldToken, now_us: int) -> Iterator[events.QuotaInstruction]:
    hold.is_stopped, hold.ends_us = True, now_us
    yield events.Send(hold.connection, Stop(hold.token))
