"""What must hold between Sluice and the API server. Shares no code with what it judges.

A pod's gate is opened only with a ready slice of its own, and it gets only granted values; pods that request nothing
are never touched; a request ends when its pod has really ended, and no pod is evicted without reason.
"""

import hashlib
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from simulation.kube.actors import KubeFolder, KubeKubelets
from simulation.kube.api_server import DONE, ApiServer, Change
from simulation.kube.claim_judge import ClaimsJudge
from simulation.kube.objects import Json, condition_of, granted_of, is_dying, is_gated, pinned_to, uid_of
from simulation.world.host import Host

from sluice.contracts import messages as msg
from sluice.contracts.bus.events import Write
from sluice_pod_watcher.core.cluster.events import BindPod, Seen

if TYPE_CHECKING:
    from simulation.judges.judge import Judge

WRITES_PER_POD_MAX = 150
"""Three minutes of a condition every few seconds, and of writes that are tried again while nothing answers."""
DECLINED = "granted.sluice.dev/declined"
PIPE_INSIDE = "/run/sluice/slice/pipe"


class KubeJudge:
    """Observes what lands on the bus, and what Sluice writes at the API server."""

    def __init__(self, judge: "Judge", api: ApiServer, folder: KubeFolder, kubelets: KubeKubelets) -> None:
        """Nothing was said or written."""
        self.judge = judge
        self.api = api
        self.folder = folder
        self.kubelets = kubelets
        self.claims: ClaimsJudge | None = None
        """Where pods have ResourceClaims: their judge."""
        self.said: dict[str, list[tuple[msg.Bound, str]]] = {}
        """What each pod was bound to, and in which incarnation of the bus that was decided."""
        self.ready: dict[str, None] = {}
        self.ordered: dict[str, None] = {}
        self.lost: dict[str, None] = {}
        self.over: dict[str, None] = {}
        """Pods whose containers have all ended, or whose object is gone, by their UID."""
        self.writes: Counter[str] = Counter()
        self.cordoned: dict[str, int] = {}
        """Nodes closed to the scheduler, and since which version."""
        self._told: dict[tuple[str, str], int] = {}
        """The version of a node that each incarnation of a pod-watcher observed last."""
        self._sent: set[str] = set()
        api.on_written.append(self.written)
        api.on_asked.append(self.asked)
        api.on_change.append(self.changed)

    # -- the bus --------------------------------------------------------------------------------------------------

    def landed(self, write: Write, _sequence: int) -> None:
        message, key = write.message, write.subject.rpartition(".")[2]
        match message:
            case msg.Bound():
                decided_in = self.judge.decided_in.get(write.operation, "")
                self.said.setdefault(message.request, []).append((message, decided_in))
            case msg.SliceReady():
                self.ready[message.allocation] = None
            case msg.Released():
                self.lost[key] = None
            case msg.EvictionOrdered() if self.judge.is_of_this_life(message):
                self.ordered[key] = None
            case msg.AllocationRequested() | msg.RequestRejected():
                self._declined(key, message)
                if key not in self.folder.lives:
                    self.judge.fail("cluster", f"{key} is asked for, and is no pod that asks")
            case msg.RequestWithdrawn():
                if key not in self.over and key in self.folder.lives:
                    self.judge.fail(
                        "cluster", f"{key} is withdrawn ({message.cause}), and its containers may still run"
                    )
            case _:
                pass

    def _declined(self, uid: str, said: msg.AllocationRequested | msg.RequestRejected) -> None:
        if not isinstance(said, msg.AllocationRequested) or not said.declined:
            return
        pod = self.api.by_uid(uid)
        if pod is not None and granted_of(pod).get("granted.sluice.dev/allocation") == said.declined:
            self.judge.fail("cluster", f"{uid} was let go with {said.declined}, and declines it")
        self.judge.declined[said.declined] = None

    # -- the pod-watcher ------------------------------------------------------------------------------------------

    def listener(self, host: Host) -> Callable[[object], None]:
        """Observes what a pod-watcher reads about nodes."""

        def hear(event: object) -> None:
            if isinstance(event, Seen) and event.what == "nodes":
                meta = event.object["metadata"]
                key = host.run, meta["name"]
                self._told[key] = max(self._told.get(key, 0), int(meta["resourceVersion"]))

        return hear

    def instructed(self, host: Host, instruction: object) -> None:
        """No pod is pinned to a node whose cordon its watcher has observed; what was sent before is settled."""
        if not isinstance(instruction, BindPod) or str(instruction) in self._sent:
            return
        self._sent.add(str(instruction))
        for node, since in self.cordoned.items():
            if f"'values': ['{node}']" in str(instruction.patch) and self._told.get((host.run, node), 0) >= since:
                self.judge.fail("cluster", f"{instruction.uid} is pinned to {node}, whose cordon it has observed")

    # -- the API server -------------------------------------------------------------------------------------------

    def changed(self, change: Change) -> None:
        found = change.after or change.before or {}
        if found["kind"] == "Node":
            self._node_changed(found["metadata"]["name"], change.after)
        if found["kind"] == "Pod" and (change.after is None or _has_ended(found)):
            self.over[uid_of(found)] = None

    def asked(self, uid: str, step: str) -> None:
        """A write of Sluice has come to the API server."""
        if uid not in self.folder.lives:
            self.judge.fail("cluster", f"{uid} asks for nothing, and is written to: {step}")
        self.writes[uid] += 1
        if self.writes[uid] > WRITES_PER_POD_MAX:
            self.judge.fail("cluster", f"over {WRITES_PER_POD_MAX} writes to {uid}")
        is_wanted = uid in self.ordered or uid in self.lost or self._waits_in_vain(uid)
        if step == "evict" and not is_wanted:
            self.judge.fail("cluster", f"{uid} is evicted without an order, and its slice was not lost")

    def _waits_in_vain(self, uid: str) -> bool:
        """Whether no scheduler places it: its gate is open, and its claim may be deleted; or it is gone."""
        pod = self.api.by_uid(uid)
        by_claim = uid in self.folder.lives and self.folder.lives[uid].by_claim
        return by_claim and (pod is None or (not is_gated(pod) and not pod["spec"].get("nodeName")))

    def written(self, uid: str, step: str, before: Json, after: Json) -> None:
        if step == "condition" or granted_of(before).get(DECLINED) != granted_of(after).get(DECLINED):
            return
        given, decided_in = self._given(uid, after)
        if given is None:
            self.judge.fail("cluster", f"{uid} was given {granted_of(after)}, which it is not bound to")
            return
        if is_gated(before) and not is_gated(after):
            if given.allocation not in self.ready:
                self.judge.fail("cluster", f"{uid} is let go before {given.allocation} was ready")
            if given.allocation in self.judge.declined:
                self.judge.fail("cluster", f"{uid} is let go with {given.allocation}, which it has declined")
            if pinned_to(after) != given.node:
                self.judge.fail("cluster", f"{uid} is pinned to {pinned_to(after)!r}, its slice is on {given.node}")
            if self.claims is not None and self.folder.lives[uid].by_claim:
                self.claims.lets_go(uid, given)
            if self.api.sender_is_over and decided_in in self.judge.over:
                self.judge.let_go(uid, given.node, given.allocation)
        elif given.node not in {after["spec"].get("nodeName", given.node), pinned_to(after)}:
            self.judge.fail("cluster", f"{uid} is given a slice on {given.node}, and is not there")
        self.kubelets.given(given)

    def _node_changed(self, node: str, after: Json | None) -> None:
        """A node is there, or is not, and takes pods or does not."""
        if after is not None and after["spec"].get("unschedulable"):
            self.cordoned.setdefault(node, int(after["metadata"]["resourceVersion"]))
        else:
            self.cordoned.pop(node, None)

    # -- when all is calm -----------------------------------------------------------------------------------------

    def unsettled(self) -> list[str]:
        """Every living pod that requests a slice was released with its binding, or has the reason of its wait."""
        missing: list[str] = []
        for pod in self.api.pods():
            uid, condition = uid_of(pod), condition_of(pod)
            if uid not in self.folder.lives or is_dying(pod) or uid in self.over:
                continue
            waits = condition is not None and condition["status"] == "False"
            why = str(condition["message"]) if condition is not None else ""
            if is_gated(pod):
                missing += [] if waits and why else [f"{uid} waits, and is not told why"]
                continue
            bound = self.judge.bound.get(uid)
            if bound is not None and not self._matches(uid, granted_of(pod), bound):
                missing.append(f"{uid} carries {granted_of(pod)}, and is bound to {bound}")
            elif bound is not None and waits and condition is not None and condition["reason"] != "SliceDegraded":
                missing.append(f"{uid} is bound, and told that it waits: {condition}")
        return missing

    def left(self) -> list[str]:
        """Pods that are still there when all were removed."""
        pods = [f"{uid_of(pod)} is still there" for pod in self.api.pods() if uid_of(pod) in self.folder.lives]
        return [*pods, *(self.claims.left() if self.claims is not None else ())]

    # -- inside ---------------------------------------------------------------------------------------------------

    def _given(self, uid: str, pod: Json) -> tuple[msg.Bound | None, str]:
        """The latest binding of this very pod that says what its annotations say, and where it was decided."""
        told = granted_of(pod)
        said = reversed(self.said.get(uid, []))
        return next(((bound, life) for bound, life in said if self._matches(uid, told, bound)), (None, ""))

    def _matches(self, uid: str, told: dict[str, str], bound: msg.Bound) -> bool:
        """Whether a pod carries this binding. Of one with a claim it is only the allocation."""
        return _matches(uid, told, bound, by_claim=self.folder.lives[uid].by_claim)


def _matches(uid: str, told: dict[str, str], bound: msg.Bound, *, by_claim: bool) -> bool:
    trace = hashlib.sha256(f"sluice/request/{uid}".encode()).hexdigest()[:32]  # as docs/traces.md says
    wanted = {"granted.sluice.dev/allocation": str(bound.allocation), "granted.sluice.dev/trace-id": trace}
    for each in bound.containers if not by_claim else ():
        wanted |= {f"{each.container}.granted.sluice.dev/{key}": text for key, text in _values(each, bound.ticket)}
    return {key: text for key, text in told.items() if key != DECLINED} == wanted


def _values(given: msg.ContainerDevices, ticket: str) -> list[tuple[str, str]]:
    shares = bool(given.mps_pipe_directory)
    return [
        ("visible-devices", given.visible_devices),
        ("ticket", f"mps-{ticket}-{given.container}" if shares else ticket),
        ("driver-capabilities", given.driver_capabilities),
        ("mps-pipe-directory", PIPE_INSIDE if shares else ""),
        ("active-thread-percentage", str(given.active_thread_percentage or 100)),
        ("pinned-memory-limit", given.pinned_memory_limit),
        ("quota-socket", f"/run/sluice/slice/quota/{given.quota_socket.split('/')[-1]}" if given.quota_socket else ""),
        ("quota-preload", "/run/sluice/slice/quota/libsluice-quota.so" if given.quota_socket else ""),
    ]


def _has_ended(pod: Json) -> bool:
    statuses = pod["status"].get("containerStatuses", [])
    over = bool(statuses) and all("terminated" in each["state"] for each in statuses)
    return over and (is_dying(pod) or pod["status"]["phase"] in DONE)
