"""A small scheduler and kubelets; tests hold a state (kubelet down, TERM ignored, volume in use) by a switch."""

from collections import Counter
from typing import TYPE_CHECKING

from fake_kube.calls import stamp
from fake_kube.components import containers, scheduler, scheduler_affinity, scheduler_claims
from fake_kube.components.kubelet import Kubelet
from fake_kube.errors import Json
from fake_kube.kinds import limits_and_quotas, pod_defaults, pod_subresources
from fake_kube.kinds.resource_claims import CLAIMS
from fake_kube.requests.patch_formats import clone
from fake_kube.store import Change, Key

if TYPE_CHECKING:
    from fake_kube.server import FakeKube


class Nodes:
    """All nodes of one server, their kubelets, and the scheduler. Its switches are safe to call from any thread."""

    def __init__(self, server: "FakeKube") -> None:
        self._server = server
        self._dirty: dict[Key, None] = {}
        self._planned = False
        self._on: dict[str, set[Key]] = {}
        self._kubelets: set[str] = set()
        self._counted: dict[Key, tuple[str, str, Counter[str]]] = {}
        self._used: dict[str, Counter[str]] = {}
        self._down: set[str] = set()
        self._kubelet = Kubelet(server.store)
        self.scheduling = True
        """Whether there is a scheduler."""

    @property
    def running(self) -> dict[str, dict[str, dict[str, str]]]:
        """The environment of each running container by pod uid and name: also of pods whose object is gone."""
        return self._kubelet.running

    @property
    def starts(self) -> Counter[tuple[str, str]]:
        """How often each container was started, by pod uid and container name."""
        return self._kubelet.starts

    def start(self) -> None:
        self._server.store.listen(self._changed)

    # -- switches ---------------------------------------------------------------------------------------------------

    def add(
        self,
        name: str,
        *,
        cpu: str = "16",
        memory: str = "64Gi",
        pods: str = "110",
        labels: dict[str, str] | None = None,
    ) -> None:
        """A node with a kubelet. A Node object created through the API has none."""
        carried = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", **(labels or {})}
        meta = {"name": name, "uid": f"node-{name}", "creationTimestamp": stamp(), "labels": carried}
        amounts = {"cpu": cpu, "memory": memory, "pods": pods}
        conditions = [
            pod_defaults.condition("Ready", "True", stamp(), "KubeletReady", "kubelet is posting ready status")
        ]
        status = {"capacity": amounts, "allocatable": amounts, "conditions": conditions}
        node = {"kind": "Node", "apiVersion": "v1", "metadata": meta, "spec": {}, "status": status}

        def arrive() -> None:
            self._kubelets.add(name)
            self._down.discard(name)
            self._server.store.put("nodes", node)

        self._server.call(arrive)

    def remove(self, name: str) -> None:
        """The Node object goes; its pods stay, as a lost node's do."""

        def gone() -> None:
            node = self._server.store.get("nodes", "", name)
            assert node is not None, f"no node {name}"
            self._down.add(name)
            self._server.store.remove("nodes", node)

        self._server.call(gone)

    def cordon(self, name: str, *, on: bool = True) -> None:
        def mark() -> None:
            node = clone(self._server.store.get("nodes", "", name))
            node["spec"] = {"unschedulable": True} if on else {}
            self._server.store.put("nodes", node)

        self._server.call(mark)

    def down(self, name: str, *, on: bool = True) -> None:
        """Stop the kubelet; containers run on. When it returns it catches up."""

        def switch() -> None:
            (self._down.add if on else self._down.discard)(name)
            self._again()

        self._server.call(switch)

    def linger(self, namespace: str, name: str) -> None:
        """A pod's containers ignore TERM until `let_go`."""
        self._server.call(lambda: self._kubelet.lingering.add((namespace, name)))

    def let_go(self, namespace: str, name: str) -> None:
        def go() -> None:
            self._kubelet.lingering.discard((namespace, name))
            self._mark((namespace, name))
            for uid in [uid for uid in self.running if not self._known(uid)]:
                del self.running[uid]

        self._server.call(go)

    def tickets(self, ready: containers.Ready) -> None:
        """Which directories of a pod's CSI volume are there; by default all."""
        self._server.call(lambda: setattr(self._kubelet, "tickets", ready))

    def prepares(self, ready: containers.Ready) -> None:
        """Whether the driver of claims answers Prepare, by pod UID and the claim's name; by default it does."""
        self._server.call(lambda: setattr(self._kubelet, "prepared", ready))

    def volume_in_use(self, uid: str, *, on: bool = True) -> None:
        """The driver does not answer Unpublish: a graceful DELETED waits for it."""

        def switch() -> None:
            (self._kubelet.in_use.add if on else self._kubelet.in_use.discard)(uid)
            self._again()

        self._server.call(switch)

    def poke(self) -> None:
        """Every kubelet looks again at all its pods, as at its periodic sync."""
        self._server.call(self._again)

    def finish(self, namespace: str, name: str, code: int = 0) -> None:
        """All containers end by themselves; those with restartPolicy Always (or OnFailure) restart."""
        self._server.call(lambda: self._kubelet.finish((namespace, name), code))

    # -- work -------------------------------------------------------------------------------------------------------

    def _changed(self, resource: str, change: Change) -> None:
        if change.again:
            return
        meta = change.last["metadata"]
        if resource == "pods":
            key = (meta["namespace"], meta["name"])
            node = change.last["spec"].get("nodeName")
            self._count(key, change.after)
            if node and change.after is None:
                self._on.get(node, set()).discard(key)
                if meta["uid"] in self.running and node not in self._down and key not in self._kubelet.lingering:
                    del self.running[meta["uid"]]
                self._again()
            elif node:
                self._on.setdefault(node, set()).add(key)
            self._mark(key)
        elif resource == "nodes":
            self._again()
        elif resource == CLAIMS:
            for pod in self._server.store.listed("pods", meta["namespace"]):
                if pod["spec"].get("resourceClaims"):
                    self._mark((meta["namespace"], pod["metadata"]["name"]))

    def _count(self, key: Key, pod: Json | None) -> None:
        # The requests on each node are kept as a running sum: pods come by the hundred.
        node = (pod or {}).get("spec", {}).get("nodeName", "")
        uid = (
            pod["metadata"]["uid"] if pod and node and pod["status"].get("phase") not in pod_subresources.ENDED else ""
        )
        before = self._counted.get(key)
        if before is not None and before[:2] == (node, uid):
            return
        if before is not None:
            self._used[before[0]].subtract(self._counted.pop(key)[2])
        if pod is not None and uid:
            self._counted[key] = (node, uid, limits_and_quotas.usage(pod))
            self._used.setdefault(node, Counter()).update(self._counted[key][2])

    def _again(self) -> None:
        for pod in self._server.store.listed("pods"):
            self._mark((pod["metadata"]["namespace"], pod["metadata"]["name"]))

    def _mark(self, key: Key) -> None:
        self._dirty[key] = None
        if not self._planned:
            self._planned = True
            self._server.loop.call_soon(self._work)

    def _work(self) -> None:
        dirty, self._dirty, self._planned = self._dirty, {}, False
        for key in dirty:
            pod = self._server.store.get("pods", *key)
            if pod is None:
                continue
            node = pod["spec"].get("nodeName")
            if not node:
                self._schedule(pod)
            elif node in self._down or node not in self._kubelets:
                continue
            elif pod["metadata"].get("deletionTimestamp"):
                self._kubelet.terminate(pod)
            elif pod["status"].get("phase") not in pod_subresources.ENDED:
                self._kubelet.run(pod)

    def _known(self, uid: str) -> bool:
        return any(pod["metadata"]["uid"] == uid for pod in self._server.store.listed("pods"))

    # -- the scheduler ----------------------------------------------------------------------------------------------

    def _schedule(self, pod: Json) -> None:
        if not self.scheduling or pod["spec"].get("schedulingGates") or pod["metadata"].get("deletionTimestamp"):
            return
        store = self._server.store
        obstacles: Counter[str] = Counter()
        nodes = store.listed("nodes")
        for node in nodes:
            name = node["metadata"]["name"]
            why = scheduler.obstacle(pod, node, self._used.get(name, Counter()))
            why = why or scheduler_affinity.obstacle(pod, node, store) or scheduler_claims.obstacle(pod, node, store)
            if not why:
                if not scheduler_claims.reserved(pod, store):
                    return  # SchedulerError: it is retried at the next change of its claims
                bound = clone(pod)
                bound["spec"]["nodeName"] = name
                pod_defaults.set_condition(bound, pod_defaults.condition("PodScheduled", "True", stamp()))
                store.put("pods", bound)
                return
            obstacles[why] += 1
        waiting = clone(pod)
        said = scheduler.sentence(obstacles, len(nodes))
        if pod_defaults.set_condition(
            waiting, pod_defaults.condition("PodScheduled", "False", stamp(), "Unschedulable", said)
        ):
            store.put("pods", waiting)
            self._say(pod, "FailedScheduling", said)

    def _say(self, pod: Json, reason: str, note: str) -> None:
        meta = pod["metadata"]
        name = f"{meta['name']}.{self._server.store.version:x}"
        about = {
            "kind": "Pod",
            "apiVersion": "v1",
            "namespace": meta["namespace"],
            "name": meta["name"],
            "uid": meta["uid"],
        }
        event = {
            "kind": "Event",
            "apiVersion": "events.k8s.io/v1",
            "metadata": {
                "name": name,
                "namespace": meta["namespace"],
                "uid": f"event-{name}",
                "creationTimestamp": stamp(),
            },
            "eventTime": stamp().replace("Z", ".000000Z"),
            "type": "Warning",
            "reason": reason,
            "action": "Scheduling",
            "note": note,
            "regarding": about,
            "reportingController": "default-scheduler",
            "reportingInstance": "default-scheduler-fake",
        }
        self._server.store.put("events.events.k8s.io", event)
