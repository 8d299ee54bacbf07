"""The pod-watcher of a cluster: its core, and its shell's duties at the API server.

It has no disk. A call that was sent may arrive late, and after its sender has died; its answer may be lost.
"""

from collections.abc import Callable
from random import Random
from typing import Any

from simulation.kube.api_server import ApiServer, Change, RefusedError
from simulation.kube.claims import ClaimServer
from simulation.kube.objects import Json
from simulation.kube.reflector import KINDS, Reflector
from simulation.kube.watcher_lease import WatcherLease
from simulation.world.broker import Broker
from simulation.world.host import Core, Host
from simulation.world.services import Readings
from simulation.world.trace import Trace
from simulation.world.virtual_clock import VirtualClock

from sluice.contracts.ids import RunId
from sluice_pod_watcher.core.cluster import events as e
from sluice_pod_watcher.core.cluster.config import ClusterConfig
from sluice_pod_watcher.core.cluster.watcher import READS, ClusterWatcher
from sluice_pod_watcher.core.folder.events import IdentityRecord, WriteLogLine

GIVEN_UP_S = 1.5
LOST, SLOW = 0.03, 0.05
"""So many answers are lost, and so many calls take seconds, while anything goes wrong."""


class ClusterHost(Host):
    """One pod-watcher of a cluster."""

    kind = "pod-watcher"
    evicts = True
    identities: tuple[IdentityRecord, ...] = ()
    """It has no disk: the API server keeps who is who."""

    def __init__(
        self,
        name: str,
        api: ApiServer,
        rules: ClusterConfig,
        evict: Callable[[str, str, str], None],
        clockwork: VirtualClock,
        broker: Broker,
        dice: Random,
        trace: Trace,
        *,
        until: float,
    ) -> None:
        """`evict` takes UID, namespace and name, or raises RefusedError; calls get lost until `until`."""
        super().__init__(name, clockwork, broker, dice, trace)
        self.api = api
        self.rules = rules
        self.until = until
        self.reflectors: list[Reflector] = []
        self.claims: ClaimServer | None = None
        """Where pods have ResourceClaims: what writes to them do."""
        self.lease: WatcherLease | None = None
        """Where there are several: which of them works."""
        self.stands_by = False
        """It is there, and watches nothing."""
        self._evict = evict
        api.on_change.append(self._changed)

    def start(self) -> None:
        """Begin a new run, or stand by while another one works."""
        self.stands_by = self.lease is not None and not self.lease.takes(self)
        if not self.stands_by:
            super().start()

    def stand_by(self) -> None:
        """Its lease has run out: what it has sent is on its way, and it forgets everything."""
        self.kill()
        self.stands_by = True

    def make_core(self, run: RunId) -> Core:
        return ClusterWatcher(run, self.rules)

    def readings(self) -> Readings:
        """What the core says that it has to read."""
        return [(stream, filters, None) for stream, filters in READS]

    def begin(self) -> None:
        self.reflectors = [Reflector(self, what) for what in ("nodes", "others", "pods")]
        for each in self.reflectors:
            self.later(0.02 * self.dice.random(), each.list_all)
        if self.claims is not None:
            claims = Reflector(self, "claims")
            self.reflectors.append(claims)
            self.later(0.02 * self.dice.random(), claims.ask)

    def end(self) -> None:
        self.reflectors = []

    def watch_s(self) -> float:
        return 0.002 + 0.02 * self.dice.random()

    def page_s(self) -> float:
        """How long the next page takes; some take very long."""
        return self.dice.uniform(0.5, 3.0) if self._is_rough() and self.dice.random() < 0.1 else 0.01

    def execute(self, instruction: object) -> None:
        """Carry out what is the core's own."""
        api, uid = self.api, str(getattr(instruction, "uid", ""))
        match instruction:
            case e.BindPod() | e.AnnotatePod() as wanted:
                step = "bind" if isinstance(wanted, e.BindPod) else "annotate"
                self._write(wanted, lambda: api.patch(uid, step, wanted.namespace, wanted.name, wanted.patch))
            case e.WritePodCondition() as wanted:
                ours = {"type": "sluice.dev/SliceReady", "status": wanted.status, "reason": wanted.reason}
                body = {"metadata": {"uid": uid}, "status": {"conditions": [{**ours, "message": wanted.message}]}}
                self._write(wanted, lambda: api.patch_status(uid, wanted.namespace, wanted.name, body))
            case e.ReadPod() as wanted:
                self._call(wanted, lambda: self._read(wanted))
            case e.EvictPod() as wanted:
                self._write(wanted, lambda: self._evict(uid, wanted.namespace, wanted.name))
            case e.Continue():
                self.later(0.0, lambda: self.offer(e.Continued()))
            case e.CreateClaim() | e.ProtectClaim() | e.WriteClaimStatus() as wanted:
                self._write(wanted, lambda: self._write_claim(wanted))
            case e.WriteHandOver() as wanted:
                self._write(wanted, api.refuse_if_busy)
            case e.WriteEvent() | WriteLogLine():
                pass
            case _:
                raise AssertionError(f"no handler for {instruction!r}")

    # -- calls ----------------------------------------------------------------------------------------------------

    def _write_claim(self, wanted: e.CreateClaim | e.ProtectClaim | e.WriteClaimStatus) -> Json:
        claims, uid = self.claims, str(wanted.uid)
        match wanted:
            case e.CreateClaim(body=body):
                return claims.create(uid, body)
            case e.ProtectClaim(patch=patch):
                return claims.protect(uid, wanted.namespace, wanted.name, patch)
            case e.WriteClaimStatus(body=body):
                return claims.status(uid, wanted.step, wanted.namespace, wanted.name, body)

    def _read(self, wanted: e.ReadPod) -> Json | None:
        self.api.refuse_if_busy()
        return self.api.pod(wanted.namespace, wanted.name)

    def _write(self, wanted: e.Call, arrive: Callable[[], Any]) -> None:
        """A call that changes a pod; not sent by one whose lease has run out while it stood still."""
        if self.lease is not None and not self.lease.holds(self):
            self.later(0.0, lambda: self.offer(e.Failed(wanted, 0, "not sent")))
        else:
            self._call(wanted, arrive)

    def _call(self, wanted: e.Call, arrive: Callable[[], Any]) -> None:
        """A call is on its way, whatever becomes of who sent it; its answer is for this run, and may be lost.

        One that takes very long is given up before it arrives.
        """
        life, rough = self.life, self._is_rough()
        is_slow = rough and self.dice.random() < SLOW
        takes_s = self.dice.uniform(0.3, 4.0) if is_slow else self.watch_s()
        waits = [True]

        def answer(after_s: float, event: object) -> None:
            def step() -> None:
                if self.alive and self.life == life and waits:
                    waits.clear()
                    self.offer(event)

            self.clockwork.after(after_s, step)

        def come() -> None:
            try:
                if not self.api.is_away:
                    event = e.Done(wanted, self._carried_out(life, arrive))
                    if not (rough and self.dice.random() < LOST):
                        answer(self.watch_s(), event)
                        return
            except RefusedError as error:
                answer(self.watch_s(), e.Failed(wanted, error.status, str(error)))
                return
            answer(GIVEN_UP_S, e.Failed(wanted, 0, "no answer in time"))

        if takes_s > GIVEN_UP_S:
            answer(GIVEN_UP_S, e.Failed(wanted, 0, "no answer in time"))
        self.clockwork.after(takes_s, come)

    # -- inside ---------------------------------------------------------------------------------------------------

    def _carried_out(self, life: int, arrive: Callable[[], Any]) -> Any:
        """What becomes of a call, whose sender may be dead by then, or no longer the one at work."""
        works = self.alive and self.life == life and (self.lease is None or self.lease.holds(self))
        self.api.sender_is_over = not works
        try:
            return arrive()
        finally:
            self.api.sender_is_over = False

    def _is_rough(self) -> bool:
        return self.clockwork.now < self.until

    def _changed(self, change: Change) -> None:
        what = KINDS.get((change.after or change.before or {})["kind"])
        for each in self.reflectors:
            if each.what == what or (what is None and each.what in {"pods", "others"}):
                each.look()
