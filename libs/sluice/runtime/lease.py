"""Leader election for a role: a hint that saves double work, never the lock (PROTOCOL §9).

One subject, compare-and-set and a TTL. A standby also probes the holder: where that has ended or hangs, it takes the
lease before the TTL is over. With two holders everything is still right: every decision is guarded by itself."""

import asyncio
import contextlib
import time

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Entry, Stream, Write, WriteAccepted, WriteRefused, WriteUnknown
from sluice.contracts.ids import OperationId, RunId
from sluice.contracts.messages import LeaseHeld
from sluice.runtime import logs
from sluice.runtime.bus import Bus, Probe
from sluice.runtime.clock import Clock
from sluice.runtime.prometheus import metrics
from sluice.runtime.prometheus.metrics import Sample
from sluice.runtime.prometheus.runtime_metrics import LEASE_CHANGES, LEASE_HELD
from sluice.runtime.version import sluice_version

TTL_S = 5
"""How long a lease outlives its holder. The server expires it up to a second late."""
RENEWALS = 3
TRUSTED_PART = 0.6
"""Of the TTL, by the holder's own clock. Under 1 - 1/RENEWALS: a server may forget the last renewal."""
ABANDONED_TTLS = 2
"""A lease unchanged for so many TTLs has no holder: a holder renews it, and the server lets one expire."""
PROBE_S = 0.25
SILENT_S = (0.8, 0.4)
"""A holder that answers neither of two probes hangs. Two: a paused standby finds its first time limit passed."""
AWAKE_S = 1.1
"""A holder that did not run for so long has been replaced: it does not trust its lease before the next renewal."""
RETRY_S = 0.1
"""The pause where the holder is not known: work resumes as soon as the broker is back, not a renewal later."""
RELEASE_WITHIN_S = 1.0
"""Time limit of a release, which saves the others a TTL: a silent broker must not use up the time to stop."""
_NO_OWNER = RunId("")


class Lease:
    """One candidate for one role: run `keep`, check `held`. `epoch` grows with every acquisition and renewal."""

    def __init__(
        self, bus: Bus, clock: Clock, *, role: str, run: RunId, ttl_s: int = TTL_S, endpoint: str = ""
    ) -> None:
        """Not held. `ttl_s` is in whole seconds, as the server counts them."""
        self._bus = bus
        self._clock = clock
        self._role = role
        self._run = run
        self._ttl_s = ttl_s
        self._endpoint = endpoint
        self._address = subjects.lease(role)
        self._number = 0
        self._expected: int | None = None
        """The sequence of our lease; None when it must be read first."""
        self._until = float("-inf")
        self._ran_at = time.monotonic()
        self._holder = self._answering = self._gone = _NO_OWNER
        """Another candidate that holds the lease; has answered a probe since we connected; has then stopped to."""
        self._stands = (OperationId(""), 0.0)
        """The write that holds the lease instead of us, and when it was first seen."""
        self._log = logs.get("lease", role=role)
        self._turn = asyncio.Event()
        self._was_held = False
        self.epoch = 0

    @property
    def held(self) -> bool:
        return self._clock.monotonic() < self._until and time.monotonic() - self._ran_at < AWAKE_S

    async def keep(self) -> None:
        """Acquire the lease when it is free and renew it, until cancelled: others may at once. Raises BusError."""
        alive = subjects.alive(self._role, self._run)
        with metrics.collecting_from(lambda: (Sample(LEASE_HELD, self.held, (self._role,)),)):
            async with self._bus.answering(alive):
                running = asyncio.create_task(self._note_running())
                try:
                    while True:
                        is_known = await self.step()
                        self._look()
                        await self._pause(self._ttl_s / RENEWALS if is_known else RETRY_S)
                finally:
                    running.cancel()
                    self._until = float("-inf")

    async def _note_running(self) -> None:
        while True:
            await asyncio.sleep(PROBE_S)
            if self.held or self._until < self._clock.monotonic():
                self._ran_at = time.monotonic()
            self._look()

    def _look(self) -> None:
        if self.held is not self._was_held:
            self._was_held = not self._was_held
            metrics.count(LEASE_CHANGES, self._role, "taken" if self._was_held else "lost")
            self._log.info("works" if self._was_held else "does not work", epoch=self.epoch)
            self._turn.set()

    async def turns(self, *, held: bool) -> None:
        """Wait until `held` is so: PROBE_S late at most. For one task."""
        while self.held is not held:
            self._turn.clear()
            await self._turn.wait()

    async def _pause(self, duration_s: float) -> None:
        """Sleep, until the holder has gone at most, or a lease must be renewed before it is trusted again."""
        parts = max(1, round(duration_s / PROBE_S))
        for _ in range(parts):
            await self._clock.sleep(duration_s / parts)
            if not self.held and (self._expected is not None or await self._is_holder_gone()):
                return

    async def _is_holder_gone(self) -> bool:
        """Probe the holder. Only one that answered before can be found gone: others are older, or not connected yet."""
        if (holder := self._holder) == _NO_OWNER:
            return False
        found = Probe.SILENT
        for within_s in SILENT_S:
            if found is Probe.SILENT:
                found = await self._bus.probe(subjects.alive(self._role, holder), within_s)
        if found in {Probe.ANSWERED, Probe.UNKNOWN}:
            self._answering = holder if found is Probe.ANSWERED else _NO_OWNER
        elif self._answering == holder:
            self._log.warning("the holder has gone", holder=holder, probe=found.value)
            self._answering, self._gone = _NO_OWNER, holder
            return True
        return False

    async def step(self) -> bool:
        """Read once, and acquire or renew when possible; returns whether the holder is known. Raises BusError."""
        expected = self._expected
        if expected is None:
            try:
                found = await self._bus.last(Stream.STATE, self._address.subject)
            except TimeoutError:
                return False
            if found is not None and not self._may_take(found):
                return True
            expected = found.sequence if found is not None else 0
        asked_at = self._clock.monotonic()
        match await self._bus.write(self._write(self._run, expected, self._ttl_s), {}):
            case WriteAccepted(sequence=sequence):
                self._expected = self.epoch = sequence
                self._until = asked_at + TRUSTED_PART * self._ttl_s
                self._ran_at = time.monotonic()
                self._holder = _NO_OWNER
            case WriteRefused():
                self._expected = None
                self._until = float("-inf")
                self._gone = _NO_OWNER  # it has renewed
                return False  # a read shows which candidate to probe
            case WriteUnknown():
                self._expected = None  # a held lease lasts until it expires; a read will show whether it was renewed
                return False
        return True

    async def release(self) -> None:
        """Let another candidate take over now, not after the TTL, if the broker answers soon. Raises BusError."""
        self._until = float("-inf")
        if self._expected is not None:
            expected, self._expected = self._expected, None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RELEASE_WITHIN_S):
                    await self._bus.write(self._write(_NO_OWNER, expected, 1), {})

    def _may_take(self, found: Entry) -> bool:
        self._holder = found.message.owner if isinstance(found.message, LeaseHeld) else _NO_OWNER
        if isinstance(found.message, LeaseHeld) and self._holder in {self._run, self._gone, _NO_OWNER}:
            return True
        now = self._clock.monotonic()
        if self._stands[0] != found.operation:  # not by a sequence of STATE: those are reused
            self._stands = (found.operation, now)
        return now - self._stands[1] > ABANDONED_TTLS * self._ttl_s

    def _write(self, owner: RunId, expected: int, ttl_s: int) -> Write:
        self._number += 1
        return Write(
            operation=OperationId(f"{self._run}-lease-{self._number}"),
            attempt=1,
            stream=Stream.STATE,
            subject=self._address.subject,
            guard=self._address.guard,
            expected=expected,
            message=LeaseHeld(
                role=self._role,
                owner=owner,
                endpoint=self._endpoint if owner == self._run else "",
                version=sluice_version() if owner == self._run else "",
            ),
            request="",
            ttl_s=ttl_s,
        )
