"""Liveness and readiness of this process: `grpc.health.v1`, as kubelets probe it.

Alive: the event loop answers and every core ran lately. Ready: alive, connected to the bus, and caught up with it once.
An absent broker does not affect liveness: a restart would only lose what is known. The reason is logged, not
answered."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import grpc

from sluice.contracts.pb import health_pb2
from sluice.contracts.pb.health_pb2_grpc import HealthServicer, add_HealthServicer_to_server
from sluice.runtime import logs
from sluice.runtime.clock import Clock

STUCK_S = 30.0
"""A core that did not run for this long hangs; ticks run it every half second."""
LIVENESS, READINESS = "liveness", "readiness"
_STATUS = health_pb2.HealthCheckResponse.ServingStatus


class CoreProgress(Protocol):
    """The progress of a core's runner."""

    turned_at: float
    """When the core last ran, by the process's clock (monotonic, s)."""

    @property
    def caught_up(self) -> bool:
        """Whether every reading was complete once."""


@dataclass(frozen=True, slots=True)
class _Running:
    runner: CoreProgress
    is_connected: Callable[[], bool]


class Health(HealthServicer):
    """The health of the parts of one process."""

    def __init__(self, clock: Clock, parts: Iterable[str] = ()) -> None:
        """`parts` must run before this process is ready; without any it is ready as soon as it answers."""
        self._clock = clock
        self._parts: dict[str, _Running | None] = dict.fromkeys(parts)
        self._needs: list[Callable[[], str]] = []
        self._said = ""
        self._log = logs.get("health")

    def expect(self, parts: Iterable[str]) -> None:
        for part in parts:
            self._parts.setdefault(part, None)

    def need(self, why_not: Callable[[], str]) -> None:
        self._needs.append(why_not)

    @contextmanager
    def runs(self, part: str, runner: CoreProgress, is_connected: Callable[[], bool]) -> Iterator[None]:
        self._parts[part] = _Running(runner, is_connected)
        try:
            yield
        finally:
            self._parts[part] = None

    def why_not_alive(self) -> str:
        """What only a restart fixes, in words; empty when nothing."""
        now = self._clock.monotonic()
        for part, running in self._parts.items():
            if running is not None and now - running.runner.turned_at > STUCK_S:
                return f"the core of {part} has had no turn for {now - running.runner.turned_at:.0f} s"
        return ""

    def why_not_ready(self) -> str:
        stuck = self.why_not_alive()
        if stuck:
            return stuck
        for part, running in self._parts.items():
            if running is None:
                return f"{part} is starting"
            if not running.is_connected():
                return f"{part} is not connected to the bus"
            if not running.runner.caught_up:
                return f"{part} has not read the bus to its end yet"
        return next((why for need in self._needs if (why := need())), "")

    def register(self, server: grpc.aio.Server) -> None:
        add_HealthServicer_to_server(self, server)

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Any) -> health_pb2.HealthCheckResponse:  # noqa: N802
        """`liveness`, or `readiness`, which also answers the empty name."""
        if request.service not in {"", LIVENESS, READINESS}:
            message = f"there is no {request.service[:100]!r} here, but {LIVENESS} and {READINESS}"
            await context.abort(grpc.StatusCode.NOT_FOUND, message)
        why = self.why_not_alive() if request.service == LIVENESS else self._readiness()
        return health_pb2.HealthCheckResponse(status=_STATUS.NOT_SERVING if why else _STATUS.SERVING)

    def _readiness(self) -> str:
        why = self.why_not_ready()
        if why != self._said:
            self._said = why
            if why:
                self._log.info("not ready", why=why)
            else:
                self._log.info("ready")
        return why
