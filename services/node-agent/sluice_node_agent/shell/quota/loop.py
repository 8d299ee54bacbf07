"""The event loop of a quota server: sockets, a `TokenScheduler`, and its packets. Only its own thread calls it. Every
queue is bounded, a flooding connection is read more slowly, and one that lies or does not read is closed."""

import heapq
import selectors
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from socket import socket

from sluice_node_agent.core.quota import events, wire
from sluice_node_agent.core.quota.scheduler import TokenScheduler
from sluice_node_agent.core.quota.tenants import TenantUsage
from sluice_node_agent.shell.quota import sockets
from sluice_node_agent.shell.quota.sockets import Peer, peer_of

HELLO_S = 5.0
"""A connection without a HELLO by then is closed."""
_AT_ONCE = 16
"""Messages per connection, and connections per socket, in one round."""
_DOOR_PAUSE_US = 250_000
"""When no descriptor is left for a connection, its socket is polled again after this pause."""


@dataclass(slots=True)
class LoopCounters:
    """What a server has done about its tenants since it started."""

    refused: int = 0
    """Connections of strangers, or beyond the limit."""
    cut_off: int = 0
    """Connections that were closed for what they sent, or for not reading."""
    slowed: int = 0
    """How often reading from a connection of a tenant that sent too much was delayed."""
    held_up: int = 0
    """How often accepting from a tenant that connected too often was delayed."""


@dataclass(frozen=True, slots=True)
class TenantSocket:
    """The listening socket of one tenant. `admits` says whether a process may belong to it."""

    tenant: events.TenantName
    path: Path
    uid: int
    admits: Callable[[int], bool]


@dataclass(frozen=True, slots=True)
class _OpenDoor:
    door: TenantSocket
    listener: socket
    connections: sockets.RateLimit
    messages: sockets.RateLimit


def _is_admitted(door: TenantSocket, pid: int) -> bool:
    """A process that cannot be read is a stranger: an error here would end the thread, and all tenants' time."""
    try:
        return door.admits(pid)
    except OSError:
        return False


class QuotaLoop:
    """One home's sockets and scheduler. Times are in microseconds of `clock`. Calls raise OSError, ValueError."""

    def __init__(self, scheduler: TokenScheduler, clock: Callable[[], int], bell: socket) -> None:
        """Start without tenants. A byte on `bell` ends a wait."""
        self.counted = LoopCounters()
        self._scheduler = scheduler
        self._clock = clock
        self._bell = bell
        self._selector = selectors.DefaultSelector()
        self._selector.register(bell, selectors.EVENT_READ)
        self._doors: dict[events.TenantName, _OpenDoor] = {}
        self._peers: dict[events.Connection, Peer] = {}
        self._last_number = 0
        self._strange: deque[tuple[int, events.Connection]] = deque()
        """Connections without a HELLO, and their deadlines."""
        self._slowed: list[tuple[int, events.Connection]] = []
        """Connections that sent too much, and when they are read again."""
        self._shut: list[tuple[int, events.TenantName]] = []
        """Listening sockets that are paused, and until when."""
        self._wakes_at: int | None = None

    def add(self, order: events.TenantSet, door: TenantSocket) -> None:
        if order.tenant in self._doors:
            raise ValueError(f"tenant {order.tenant!r} is there already")
        connections = sockets.RateLimit(sockets.CONNECTIONS_PER_S, sockets.CONNECTIONS_BURST, self._clock())
        messages = sockets.RateLimit(sockets.MESSAGES_PER_S, sockets.MESSAGES_BURST, self._clock())
        opened = self._doors[order.tenant] = _OpenDoor(door, sockets.listen(door.path), connections, messages)
        try:
            self._selector.register(opened.listener, selectors.EVENT_READ, opened)
            self._tell(order)
        except BaseException:  # a half-added tenant could never be added again
            del self._doors[order.tenant]
            self._close_door(opened)
            raise

    def change(self, order: events.TenantSet) -> None:
        self._door(order.tenant)
        self._tell(order)

    def remove(self, name: events.TenantName) -> None:
        opened = self._door(name)
        del self._doors[name]
        self._close_door(opened)
        self._tell(events.TenantRemoved(name))

    def usage(self) -> dict[events.TenantName, TenantUsage]:
        pids: dict[events.TenantName, tuple[int, ...]] = {}
        for peer in self._peers.values():
            if peer.said_hello:
                pids[peer.tenant] = (*pids.get(peer.tenant, ()), peer.pid)
        return self._scheduler.usage(self._clock(), pids)

    def serve_once(self) -> None:
        for key, _ in self._selector.select(self._pause_s()):
            found = key.data
            if isinstance(found, _OpenDoor):
                self._welcome(found)
            elif isinstance(found, Peer):
                if found.number in self._peers:  # it may have been closed in this round
                    self._listen(found)
            else:
                with suppress(BlockingIOError):
                    while True:
                        self._bell.recv(1)
        now_us = self._clock()
        if self._wakes_at is not None and self._wakes_at <= now_us:
            self._wakes_at = None
            self._tell(events.TimerDue())
        self._look_again(now_us)

    def close(self) -> None:
        for opened in self._doors.values():
            self._close_door(opened)
        for peer in list(self._peers.values()):
            self._forget(peer)
        self._selector.close()

    def _look_again(self, now_us: int) -> None:
        while self._slowed and self._slowed[0][0] <= now_us:
            peer = self._peers.get(heapq.heappop(self._slowed)[1])
            if peer is not None:
                self._selector.register(peer.socket, selectors.EVENT_READ, peer)
        while self._shut and self._shut[0][0] <= now_us:
            opened = self._doors.get(heapq.heappop(self._shut)[1])
            if opened is not None and opened.listener not in self._selector.get_map():
                self._selector.register(opened.listener, selectors.EVENT_READ, opened)
        while self._strange and self._strange[0][0] <= now_us:
            peer = self._peers.get(self._strange.popleft()[1])
            if peer is not None and not peer.said_hello:
                self._cut_off(peer)

    def _pause_s(self) -> float | None:
        times = [] if self._wakes_at is None else [self._wakes_at]
        times += [waiting[0][0] for waiting in (self._slowed, self._strange, self._shut) if waiting]
        return max(0, min(times) - self._clock()) / 1e6 if times else None

    def _welcome(self, opened: _OpenDoor) -> None:
        door = opened.door
        for _ in range(_AT_ONCE):
            now_us = self._clock()
            if not opened.connections.is_left(now_us):
                self.counted.held_up += 1
                self._shut_for_now(opened, opened.connections.resumes_at_us(now_us))
                return
            try:
                found, _ = opened.listener.accept()
            except BlockingIOError:
                return
            except OSError:  # it is gone again, or no descriptor is left: neither may keep this thread busy
                self._shut_for_now(opened, now_us + _DOOR_PAUSE_US)
                return
            opened.connections.count()
            pid, uid = peer_of(found)
            self._last_number += 1
            peer = Peer(self._last_number, door.tenant, found, pid, opened.messages)
            if uid not in {door.uid, 0} or not _is_admitted(door, pid):
                self.counted.refused += 1
                self._send(peer, wire.Refused(wire.NOT_A_TENANT))
                found.close()
                continue
            self._peers[peer.number] = peer
            self._selector.register(found, selectors.EVENT_READ, peer)
            self._strange.append((self._clock() + int(HELLO_S * 1e6), peer.number))
            self._tell(events.ConnectionOpened(peer.number, door.tenant))

    def _shut_for_now(self, opened: _OpenDoor, until_us: int) -> None:
        """Pending connections wait in the kernel's queue, which is bounded."""
        self._selector.unregister(opened.listener)
        heapq.heappush(self._shut, (until_us, opened.door.tenant))

    def _listen(self, peer: Peer) -> None:
        for _ in range(_AT_ONCE):
            now_us = self._clock()
            if not peer.pace.is_left(now_us):
                self.counted.slowed += 1
                self._selector.unregister(peer.socket)
                heapq.heappush(self._slowed, (peer.pace.resumes_at_us(now_us), peer.number))
                return
            try:
                packet = peer.read()
            except OSError:
                packet = b""
            if packet is None:
                return
            peer.pace.count()
            if not packet:
                self._forget(peer)
                self._tell(events.ConnectionClosed(peer.number))
                return
            try:
                message = wire.read(packet)
            except wire.WireError as error:
                if error.reason:
                    self._send(peer, wire.Refused(error.reason))
                self._cut_off(peer)
                return
            peer.said_hello = peer.said_hello or isinstance(message, wire.Hello)
            self._tell(events.MessageReceived(peer.number, message))
            if peer.number not in self._peers:
                return

    def _tell(self, event: events.QuotaEvent) -> None:
        told = deque([event])
        while told:
            for instruction in self._scheduler.steps(told.popleft(), self._clock()):
                match instruction:
                    case events.Send(connection=number, message=message):
                        peer = self._peers.get(number)
                        if peer is not None and not self._send(peer, message):
                            self.counted.cut_off += 1
                            self._forget(peer)
                            told.append(events.ConnectionClosed(number))
                    case events.Disconnect(connection=number):
                        peer = self._peers.get(number)
                        if peer is not None:
                            self.counted.cut_off += 1
                            self._forget(peer)
                    case _:
                        self._wakes_at = instruction.at_us

    def _send(self, peer: Peer, message: wire.ToClient) -> bool:
        peer.sequence += 1
        return peer.send(wire.written(message, peer.sequence))

    def _cut_off(self, peer: Peer) -> None:
        self.counted.cut_off += 1
        self._forget(peer)
        self._tell(events.ConnectionClosed(peer.number))

    def _forget(self, peer: Peer) -> None:
        del self._peers[peer.number]
        if peer.socket in self._selector.get_map():
            self._selector.unregister(peer.socket)
        peer.socket.close()

    def _close_door(self, opened: _OpenDoor) -> None:
        if opened.listener in self._selector.get_map():
            self._selector.unregister(opened.listener)
        opened.listener.close()
        opened.door.path.unlink(missing_ok=True)

    def _door(self, name: events.TenantName) -> _OpenDoor:
        found = self._doors.get(name)
        if found is None:
            raise ValueError(f"there is no tenant {name!r}; there are {', '.join(self._doors) or 'none'}")
        return found
