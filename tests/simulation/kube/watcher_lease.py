"""Two pod-watchers of one cluster, of which the one works that holds the lease; the other begins when that has run out.

What the shell does (`watch_by_lease`): a holder renews, and stops to watch once it could not for too long, or finds
that another one holds it. One that stands still finds that out afterwards: for a moment two work, of which that one
writes to no pod. No judge asks who holds it, for every rule holds when it lies.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING

from simulation.world.virtual_clock import VirtualClock

if TYPE_CHECKING:
    from simulation.kube.watcher_host import ClusterHost

TTL_S = 2.0
"""The lease, in a hurry."""
LOOK_S = 0.5
"""So often each looks who holds it: so long one that came back works beside its successor."""


class WatcherLease:
    """Which watcher works. A dead process takes the lease only after it was started again."""

    def __init__(self, clockwork: VirtualClock, can_speak: Callable[[str], bool], dice: Random) -> None:
        """The lease is free. `can_speak` says of a host by its name whether the bus reads and answers it."""
        self.holder: ClusterHost | None = None
        self._clockwork = clockwork
        self._can_speak = can_speak
        self._dice = dice
        self._renewed_at = 0.0
        self._until: dict[str, float] = {}
        """Of each host: until when it is the one at work, as far as it knows."""

    def takes(self, host: "ClusterHost") -> bool:
        """A process that is not working wants to: whether it may. It then holds the lease."""
        has_run_out = self.holder is None or self._clockwork.now - self._renewed_at > TTL_S
        if not self._can_speak(host.name) or not (has_run_out or self.holder is host):
            return False
        self.holder = host
        self._renew(host)
        return True

    def holds(self, host: "ClusterHost") -> bool:
        """Whether a process that works may write to pods: by its own clock."""
        return self._clockwork.now < self._until.get(host.name, 0.0)

    def watch(self, hosts: Sequence["ClusterHost"]) -> None:
        """From now on each of them looks again and again, at its own times."""
        for host in hosts:
            self._clockwork.after(LOOK_S * self._dice.random(), lambda host=host: self._look(host))  # type: ignore[misc]

    def _look(self, host: "ClusterHost") -> None:
        now = self._clockwork.now
        self._clockwork.after(LOOK_S * (0.8 + 0.4 * self._dice.random()), lambda: self._look(host))
        if host.paused:
            return
        if host.alive and host is self.holder and self._can_speak(host.name):
            self._renew(host)
        elif host.alive and (host is not self.holder or now - self._renewed_at > TTL_S):
            host.stand_by()
        elif host.stands_by:
            host.start()

    def _renew(self, host: "ClusterHost") -> None:
        self._renewed_at = self._clockwork.now
        self._until[host.name] = self._renewed_at + TTL_S
