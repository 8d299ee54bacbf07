"""Serves the time quota of one home: a thread around a `QuotaLoop`, so that nothing of the agent delays tokens. The
agent's calls run in that thread, one after the other, so the scheduler needs no lock."""

import os
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from sluice_node_agent.core.quota.events import QuotaConfig, TenantName, TenantSet
from sluice_node_agent.core.quota.scheduler import TokenScheduler
from sluice_node_agent.core.quota.tenants import TenantUsage
from sluice_node_agent.shell.quota.loop import LoopCounters, QuotaLoop, TenantSocket

T = TypeVar("T")

_CALL_S = 10.0
"""The thread answers within a round, far below this; longer means that the machine stood still, or that it is gone."""
_WHOLE_PERCENT = 100
_SWITCH_S = 0.0005
"""How long another thread may keep Python's lock while a token is due: the default of 5 ms makes a round trip 7 ms."""


class QuotaServerError(RuntimeError):
    """The server cannot carry out a call, because it has ended."""


@dataclass(slots=True)
class _Call:
    do: Callable[[], object]
    answer: Future[object] = field(default_factory=Future)


def monotonic_us() -> int:
    return time.monotonic_ns() // 1_000


class QuotaServer:
    """The time quota of one home. Thread-safe; every method blocks for at most 10 s, and raises QuotaServerError, those
    about a tenant ValueError, too."""

    def __init__(
        self, home: str, *, config: QuotaConfig | None = None, clock: Callable[[], int] = monotonic_us, epoch: int = 0
    ) -> None:
        """Start without tenants. `epoch` tells clients that the scheduler restarted; 0 draws one."""
        self.home = home
        self.failure: BaseException | None = None
        epoch = epoch or int.from_bytes(os.urandom(7), "little")
        self._bell, ears = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._ears = ears
        for end in (self._bell, ears):
            end.setblocking(False)
        self._loop = QuotaLoop(TokenScheduler(config or QuotaConfig(), epoch, clock()), clock, ears)
        self._calls: deque[_Call] = deque()
        self._lock = threading.Lock()
        """Guards `_calls`, and whether the thread still takes them."""
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name=f"quota {home}", daemon=True)

    @property
    def counted(self) -> LoopCounters:
        return self._loop.counted

    def start(self) -> None:
        """Start serving. From now on the threads of this process switch as fast as tokens need it."""
        sys.setswitchinterval(min(sys.getswitchinterval(), _SWITCH_S))
        self._thread.start()

    def stop(self) -> None:
        """Close all connections and remove the sockets. Clients follow their fail mode, then find a successor."""
        with self._lock:
            self._is_over = True
        self._ring()
        self._thread.join(_CALL_S)
        if self._thread.is_alive():
            raise QuotaServerError(f"the quota server of {self.home} has not ended within {_CALL_S:g} s")

    def add_tenant(
        self,
        name: TenantName,
        socket_path: Path,
        *,
        request: float,
        limit: float,
        width_percent: int,
        uid: int,
        memory_bytes: int = 0,
        admits: Callable[[int], bool] = lambda _: True,
    ) -> None:
        """Serve a tenant's processes, which run as `uid` or as root, at `socket_path`. `admits` says whether a pid may
        belong to it. `request` and `limit` are parts of the time, 0 to 1. Raises OSError, ValueError,
        QuotaServerError."""
        order = _order(name, request, limit, width_percent, memory_bytes)
        self._call(lambda: self._loop.add(order, TenantSocket(name, socket_path, uid, admits)))

    def change_tenant(
        self, name: TenantName, *, request: float, limit: float, width_percent: int, memory_bytes: int = 0
    ) -> None:
        order = _order(name, request, limit, width_percent, memory_bytes)
        self._call(lambda: self._loop.change(order))

    def remove_tenant(self, name: TenantName) -> None:
        self._call(lambda: self._loop.remove(name))

    def usage(self) -> dict[TenantName, TenantUsage]:
        return self._call(self._loop.usage)

    def _run(self) -> None:
        try:
            while not self._is_over:
                self._loop.serve_once()
                while self._calls:
                    _make(self._calls.popleft())
        except BaseException as error:  # noqa: BLE001 - the next caller gets it; a thread cannot raise
            self.failure = error
        finally:
            self._end()

    def _end(self) -> None:
        with self._lock:
            self._is_over = True
            calls, self._calls = self._calls, deque()
        for call in calls:
            if call.answer.set_running_or_notify_cancel():
                call.answer.set_exception(QuotaServerError(f"the quota server of {self.home} has ended"))
        self._loop.close()
        self._ears.close()
        self._bell.close()

    def _call(self, do: Callable[[], T]) -> T:
        call = _Call(do)
        with self._lock:
            if self._is_over or not self._thread.is_alive():
                why = f": {self.failure!r}" if self.failure is not None else ""
                raise QuotaServerError(f"the quota server of {self.home} does not run{why}") from self.failure
            self._calls.append(call)
        self._ring()
        wait((call.answer,), _CALL_S)
        # A call that has not begun by then is dropped: its caller repeats it.
        if call.answer.cancel() or not call.answer.done():
            raise QuotaServerError(f"the quota server of {self.home} has not answered within {_CALL_S:g} s")
        return call.answer.result()  # type: ignore[return-value]  # what `do` returns

    def _ring(self) -> None:
        with suppress(OSError):  # it rings already, or the thread has ended
            self._bell.send(b"!")


def _make(call: _Call) -> None:
    if not call.answer.set_running_or_notify_cancel():
        return  # its caller has timed out
    try:
        call.answer.set_result(call.do())
    except Exception as error:  # noqa: BLE001 - it is raised where the call was made
        call.answer.set_exception(error)


def _order(name: TenantName, request: float, limit: float, width_percent: int, memory_bytes: int) -> TenantSet:
    for what, value in (("request", request), ("limit", limit)):
        if not 0 <= value <= 1:
            raise ValueError(f"{what} of tenant {name!r} is {value}; it is a part of the time, 0 to 1")
    if not 1 <= width_percent <= _WHOLE_PERCENT:
        raise ValueError(f"width_percent of tenant {name!r} is {width_percent}; it must be 1 to 100")
    if memory_bytes < 0:
        raise ValueError(f"memory_bytes of tenant {name!r} is {memory_bytes}; it is at least 0, which is no limit")
    return TenantSet(name, round(request * 1e6), round(limit * 1e6), width_percent, memory_bytes)
