"""What people and controllers do to a cluster's pods, and the scheduler and kubelets that carry those out.

To the judges it is the folder of what is wanted: a pod is wanted from its creation until its deletion.
An edit of an ask is another pod under the same name, as soon as that is free.
"""

from collections.abc import Callable
from random import Random

from simulation.kube.api_server import DONE, ApiServer, Change
from simulation.kube.claims import ClaimScheduler, ClaimServer
from simulation.kube.objects import Json, is_dying, is_gated, pinned_to, pod_object, uid_of
from simulation.plans.pods import Pod
from simulation.world.hardware import Machine
from simulation.world.manifest_folder import Folder, Kubelets
from simulation.world.trace import Trace
from simulation.world.virtual_clock import VirtualClock

from sluice.contracts.bus.events import Write
from sluice.contracts.messages import Bound

FINALIZER_PODS = 0.15
FORCED, COMPLETED = 0.12, 0.15
"""Of those who go: deleted by force; or ended by themselves, and deleted later."""
GRACE_S = 30
NO_NODE_S = 1.0


class KubeFolder(Folder):
    """Pods by name, as their owners want them."""

    def __init__(self, api: ApiServer, dice: Random) -> None:
        super().__init__()
        self.api = api
        self.dice = dice
        self.uids: dict[str, str] = {}
        """The incarnation that each wanted name has now."""
        self.lives: dict[str, Pod] = {}
        """Every pod that there ever was, by its UID."""
        self.on_made: list[Callable[[str, Pod], None]] = []
        self.on_completed: list[Callable[[str], None]] = []
        self.on_forced: list[Callable[[str], None]] = []
        self._waiting: dict[str, Pod] = {}
        self._evicting = False
        api.on_change.append(self._hear)

    def wants(self, request: str, name: str) -> bool:
        """Whether it is this very incarnation of a name that is wanted."""
        return name in self.pods and self.uids.get(name) == request

    def is_untouched(self, name: str) -> bool:
        """A request is of one incarnation of a name (`wants`), and an edit of its ask is another."""
        return True

    def is_from(self, pod: Pod, origin: str) -> bool:
        """Whether a request says that it comes from this pod."""
        return origin == f"{pod.namespace}/{pod.name}"

    def put(self, pod: Pod, now: float) -> None:
        """A pod is made; where there is one of that name, that goes first."""
        before = self.pods.get(pod.name)
        self.pods[pod.name], self.since[pod.name] = pod, now
        texts = self.written.setdefault(pod.name, {})
        texts.pop(pod, None)
        texts[pod] = None
        self._waiting[pod.name] = pod
        self.uids.pop(pod.name, None)
        there = self.api.pod((before or pod).namespace, pod.name)
        if there is None:
            self._make(pod)
        elif not is_dying(there):
            self.delete(there)

    def spoil(self, pod: Pod) -> None:
        """A user takes our label off the pod: it is no longer watched, and runs on. `mend` puts it back."""
        there = self.api.pod(pod.namespace, pod.name)
        if there is not None and self.uids.get(pod.name) == uid_of(there):
            self.broken[uid_of(there)] = None
            labels = {key: text for key, text in there["metadata"]["labels"].items() if "managed" not in key}
            self.api.write(there, metadata={"labels": labels})

    def mend(self) -> None:
        for uid in self.broken:
            there = self.api.by_uid(uid)
            if there is not None:
                labels = {**there["metadata"]["labels"], "sluice.dev/managed": "true"}
                self.api.write(there, metadata={"labels": labels})
        self.broken.clear()

    def evicting(self, remove: Callable[[], None]) -> None:
        """What is removed now is removed by an eviction: gracefully."""
        self._evicting = True
        try:
            remove()
        finally:
            self._evicting = False

    def remove(self, name: str) -> None:
        """The pod is not wanted any more."""
        pod = self.pods.pop(name, None)
        self._waiting.pop(name, None)
        self.uids.pop(name, None)
        there = self.api.pod(pod.namespace, name) if pod is not None else None
        if there is None or is_dying(there):
            return
        roll = self.dice.random()
        if roll < FORCED and not self._evicting:
            self._force(there)
        elif roll < FORCED + COMPLETED and not self._evicting and not is_gated(there):
            for hear in self.on_completed:
                hear(uid_of(there))
            self.api.clockwork.after(self.dice.uniform(3.0, 12.0), lambda: self._delete_uid(uid_of(there)))
        else:
            self.delete(there)

    # -- inside ---------------------------------------------------------------------------------------------------

    def _make(self, pod: Pod) -> None:
        """Admission and storage; a pod that is not wanted any more by then is not made."""
        if self._waiting.get(pod.name) != pod:
            return
        del self._waiting[pod.name]
        uid = f"{pod.name}-u{len(self.lives)}"
        self.uids[pod.name], self.lives[uid], self.since[pod.name] = uid, pod, self.api.clockwork.now
        for hear in self.on_made:
            hear(uid, pod)
        self.api.create(pod_object(pod, uid, finalizer=self.dice.random() < FINALIZER_PODS))

    def _hear(self, change: Change) -> None:
        """A name has become free, or only a finalizer holds what is dying."""
        before, after = change.before, change.after
        if after is None and before is not None and before["kind"] == "Pod":
            pod = self._waiting.get(before["metadata"]["name"])
            if pod is not None:
                self.api.clockwork.after(self.dice.uniform(0.02, 0.5), lambda: self._make(pod))
        elif (
            after is not None
            and after["kind"] == "Pod"
            and is_dying(after)
            and after["metadata"]["deletionGracePeriodSeconds"] == 0
        ):
            uid = uid_of(after)
            self.api.clockwork.after(self.dice.uniform(0.3, 5.0), lambda: self._release(uid))

    def _release(self, uid: str) -> None:
        there = self.api.by_uid(uid)
        if there is not None and there["metadata"].get("finalizers"):
            self.api.drop({**there, "metadata": {k: v for k, v in there["metadata"].items() if k != "finalizers"}})

    def _delete_uid(self, uid: str) -> None:
        there = self.api.by_uid(uid)
        if there is not None and not is_dying(there):
            self.delete(there)

    def delete(self, there: Json) -> None:
        """The object is deleted, and gone when nothing runs any more."""
        placed = bool(there["spec"].get("nodeName")) and there["status"].get("phase") not in DONE
        self.api.mark_deleted(there, GRACE_S if placed else 0)

    def _force(self, there: Json) -> None:
        for hear in self.on_forced:
            hear(uid_of(there))
        meta = {**there["metadata"], "deletionTimestamp": "now", "deletionGracePeriodSeconds": 0}
        self.api.drop({**there, "metadata": {key: value for key, value in meta.items() if key != "finalizers"}})


class KubeKubelets(Kubelets):
    """The scheduler, and every node's kubelet: a pod goes where its pin says, starts with its ticket, and is reported.

    What a pod may use stands in its annotations; `given` says which binding those are of.
    """

    def __init__(
        self, clockwork: VirtualClock, folder: KubeFolder, machines: dict[str, Machine], trace: Trace, api: ApiServer
    ) -> None:
        super().__init__(clockwork, folder, machines, trace)
        self.api = api
        self.claim_rules = ClaimScheduler(ClaimServer(api))
        self.placed: dict[str, None] = {}
        self._reported: dict[str, None] = {}
        folder.on_made.append(self._made)
        folder.on_completed.append(lambda uid: self.end(uid, completed=True))
        folder.on_forced.append(self.end)
        api.on_change.append(self._hear)

    def hear(self, write: Write, _sequence: int) -> None:
        """
        No kubelet listens to the bus. But where devices go by claim, no annotation says that they were made again: what
        a container has to find on its node then is known from here."""
        bound = write.message
        if isinstance(bound, Bound) and bound.request in self.pods and self.pods[bound.request].by_claim:
            before = self.bound.get(bound.request)
            if before is not None and before.allocation == bound.allocation and before != bound:
                self.given(bound)

    def told(self, event: object) -> None:
        """No kubelet observes what a pod-watcher observes."""

    def removed(self, name: str) -> None:
        """The API server sends the meaning of a deletion."""

    def given(self, bound: Bound) -> None:
        """The annotations of a pod are those of this binding."""
        self.bound[bound.request] = bound
        if bound.request in self.placed:
            self.clockwork.after(0.05 + self.dice.random(), lambda: self._try(bound.request))

    def end(self, request: str, *, completed: bool = False) -> None:
        """The pod is over; its processes end when they end, and then that is reported."""
        if request in self.ended or request not in self.pods:
            return
        super().end(request)
        reported_s = self.pods[request].lingers_s + 0.02 + 0.3 * self.dice.random()
        self.clockwork.after(reported_s, lambda: self._report_end(request, completed=completed))

    # -- inside ---------------------------------------------------------------------------------------------------

    def _made(self, uid: str, pod: Pod) -> None:
        self.pods[uid], self.owners[uid] = pod, uid

    def _hear(self, change: Change) -> None:
        before, after = change.before, change.after
        if before is None or after is None or after["kind"] != "Pod":
            return
        if is_dying(after) and not is_dying(before):
            self.end(uid_of(after))
        elif is_gated(before) and not is_gated(after):
            self.clockwork.after(0.02 + 0.2 * self.dice.random(), lambda: self._place(uid_of(after)))

    def _place(self, uid: str) -> None:
        """The scheduler puts a pod on the node that its pin names, once that is there."""
        pod = self.api.by_uid(uid)
        if pod is None or is_dying(pod) or pod["spec"].get("nodeName"):
            return
        node = pinned_to(pod)
        there = self.api.objects.get(("Node", "", node))
        if there is None or there["spec"].get("unschedulable"):
            self.clockwork.after(NO_NODE_S, lambda: self._place(uid))
            return
        if not self.claim_rules.may_place(pod, node):
            self.clockwork.after(NO_NODE_S, lambda: self._place(uid))
            return
        pod = self.api.by_uid(uid) or pod
        scheduled = {"conditions": [*pod["status"].get("conditions", []), {"type": "PodScheduled", "status": "True"}]}
        self.placed[uid] = None
        self.api.write(pod, spec={"nodeName": node}, status=scheduled)
        self._try(uid)

    def _try(self, request: str) -> None:
        if request not in self.placed:
            return
        pod = self.pods[request]
        if pod.by_claim and request not in self.claims:
            there = self.api.by_uid(request)
            claim = self.claim_rules.to_prepare(there) if there is not None else ""
            if not claim:
                if request not in self.ended:
                    self.clockwork.after(NO_NODE_S, lambda: self._try(request))
                return
            self.claims[request] = claim
        super()._try(request)
        if request not in self._reported and request not in self.ended and (not pod.runs or self.runs(request)):
            self._reported[request] = None
            self._report(request, "running", "Running")

    def _report(self, uid: str, state: str, phase: str) -> None:
        pod = self.api.by_uid(uid)
        if pod is not None:
            statuses = [{"name": each["name"], "state": {state: {}}} for each in pod["spec"]["containers"]]
            self.api.write(pod, status={"phase": phase, "containerStatuses": statuses})

    def _report_end(self, uid: str, *, completed: bool) -> None:
        """All containers have ended, and its claim is unprepared; a pod that is dying is let go by its kubelet then."""
        if self.plugin.is_ending(self.claims.get(uid, "")):
            self.clockwork.after(NO_NODE_S, lambda: self._report_end(uid, completed=completed))
            return
        if completed or self.dice.random() < 0.7:
            self._report(uid, "terminated", "Succeeded" if completed else "Running")

        def let_go() -> None:
            pod = self.api.by_uid(uid)
            if pod is not None and is_dying(pod):
                self.api.mark_deleted(pod, 0)

        self.clockwork.after(0.02 + 0.5 * self.dice.random(), let_go)
