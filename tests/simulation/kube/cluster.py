"""The cluster of a world, instead of its folder: the API server, who uses it, what goes wrong there, and the judge."""

from random import Random
from typing import TYPE_CHECKING

from simulation.kube.actors import KubeFolder, KubeKubelets
from simulation.kube.api_server import ApiServer, RefusedError
from simulation.kube.claim_judge import BYSTANDER, ClaimsJudge
from simulation.kube.claims import ClaimController, ClaimServer
from simulation.kube.judge import KubeJudge
from simulation.kube.objects import Json, bystanders, is_dying, is_gated, node_object, others_claim
from simulation.kube.watcher_host import ClusterHost
from simulation.kube.watcher_lease import WatcherLease
from simulation.world.hardware import Machine

from sluice_pod_watcher.core.cluster.config import ClusterConfig

if TYPE_CHECKING:
    from collections.abc import Callable

    from simulation.judges.judge import Judge
    from simulation.plans.plan import Fault
    from simulation.world.world import World

HEARTBEAT_S = 10.0
UNSCHEDULED_S = 45.0
"""Where claims may be deleted by hand, a pod whose gate was opened before is evicted after this."""
BLOCKED = 0.3
"""How often a disruption budget is in an eviction's way, while anything goes wrong."""


class KubeSide:
    """Built in the order in which a world is."""

    def __init__(self, world: "World", machines: dict[str, Machine]) -> None:
        """Nodes and bystanders are there, no pod is asked for."""
        self.world = world
        self.dice = self._dice("cluster")
        self.api = ApiServer(world.clockwork, world.trace, self._dice("api server"))
        self.folder = KubeFolder(self.api, self._dice("people"))
        self.kubelets = KubeKubelets(world.clockwork, self.folder, machines, world.trace, self.api)
        for node in machines:
            self.api.create(node_object(node))
        for each in bystanders(next(iter(machines))):
            self.api.create(each)
        self.claims = ClaimServer(self.api)
        if world.plan.hands_over:
            ClaimController(self.claims, self.api, self._dice("claim controller"))
            self.claims.make(others_claim())
        self._judge: KubeJudge | None = None
        strikes: dict[str, Callable[[Fault], None]] = {
            "api away": self._away,
            "api busy": self._busy,
            "api lags": self._lag,
            "watch gap": self._gap,
            "watch replays": self._replay,
            "node object gone": self._node_gone,
            "node cordoned": self._node_cordoned,
            "claim deleted": self._claim_deleted,
            "reservation removed": self._reservation_removed,
        }
        self.strikes = strikes
        self.lease = WatcherLease(world.clockwork, self._can_speak, self._dice("lease of watchers"))

    @property
    def judge(self) -> KubeJudge:
        assert self._judge is not None
        return self._judge

    def watcher(self, closing_ttl_s: int, name: str = "pod-watcher") -> ClusterHost:
        """A pod-watcher of this cluster; of several only one works, but for the time that a lease takes to run out."""
        world = self.world
        host = ClusterHost(
            name,
            self.api,
            quick_cluster(closing_ttl_s, unscheduled_after_s=UNSCHEDULED_S if world.plan.hands_over else 0.0),
            self._evict,
            world.clockwork,
            world.broker,
            self._dice(f"watcher {name}"),
            world.trace,
            until=world.plan.faults_until,
        )
        host.claims = self.claims if world.plan.hands_over else None
        host.lease = self.lease if world.plan.watchers > 1 else None
        return host

    def judged_by(self, judge: "Judge") -> None:
        self._judge = KubeJudge(judge, self.api, self.folder, self.kubelets)
        if self.world.plan.hands_over:
            self._judge.claims = ClaimsJudge(judge, self.api, self.claims)
        self.world.broker.on_landed.append(self._judge.landed)

    def start(self) -> None:
        """Nodes renew their leases, pod-watchers elect the working one, and the judges observe them."""
        for host in self._watchers():
            host.on_event.append(self.judge.listener(host))
            host.on_instruction.append(self.judge.instructed)
        self.world.clockwork.after(HEARTBEAT_S, self._beat)
        if self.world.plan.watchers > 1:
            self.lease.watch(self._watchers())

    def heal(self) -> None:
        """The API server answers, nodes are back, and watches go on."""
        self.api.heal()
        for node in self.kubelets.machines:
            self._node_back(node)
            self.cordon(node, on=False)

    # -- evictions ------------------------------------------------------------------------------------------------

    def _evict(self, uid: str, namespace: str, name: str) -> None:
        """An eviction through the API: a budget may be in its way. Raises RefusedError."""
        found = self.api.may_evict(uid, namespace, name)
        if is_dying(found):
            return
        world = self.world
        if world.clockwork.now < world.plan.faults_until and self.dice.random() < BLOCKED:
            raise RefusedError(429, "Cannot evict pod as it would violate the pod's disruption budget.")
        if self.folder.wants(uid, name):
            self.folder.evicting(lambda: world.evictor.evict(name))
        else:
            self.folder.delete(found)

    # -- what goes wrong ------------------------------------------------------------------------------------------

    def _away(self, fault: "Fault") -> None:
        self.api.away_until = max(self.api.away_until, self.world.clockwork.now + fault.lasts_s)

    def _busy(self, fault: "Fault") -> None:
        self.api.refuses_until = max(self.api.refuses_until, self.world.clockwork.now + fault.lasts_s)

    def _lag(self, fault: "Fault") -> None:
        """Watches are served by a server that is some seconds behind."""
        self.api.lag_until, self.api.lag_s = self.world.clockwork.now + fault.lasts_s, 1.0 + fault.number % 5

    def _gap(self, fault: "Fault") -> None:
        """A watch breaks off, and what happened meanwhile is not remembered."""
        for host in self._watchers():
            for each in host.reflectors:
                if each.what == "pods" or fault.number % 3 == 0:
                    each.skip(fault.lasts_s)

    def _replay(self, fault: "Fault") -> None:
        """A watch does not take back what it has sent. Last messages are longer on the bus than a watch goes back."""
        since = self.api.clockwork.now - self.world.plan.closing_ttl_s / 2
        for host in self._watchers():
            for each in host.reflectors:
                each.replay(3 + fault.number % 40, since)

    def _node_gone(self, fault: "Fault") -> None:
        found = self.api.objects.get(("Node", "", fault.target))
        if found is not None:
            self.api.drop(found)
            self.world.clockwork.after(fault.lasts_s, lambda: self._node_back(fault.target))

    def _node_cordoned(self, fault: "Fault") -> None:
        self.cordon(fault.target)
        self.world.clockwork.after(fault.lasts_s, lambda: self.cordon(fault.target, on=False))

    def _claim_deleted(self, fault: "Fault") -> None:
        found = [each for each in self.claims.all() if each["metadata"]["name"] != BYSTANDER and not is_dying(each)]
        if found:
            self.api.mark_deleted(found[fault.number % len(found)], 0)

    def _reservation_removed(self, fault: "Fault") -> None:
        """The scheduler could not place a pod, and takes the reservation of its claim back (Unreserve)."""
        found = [each for each in self.claims.all() if each["status"].get("reservedFor") and self._waits(each)]
        if found:
            claim = found[fault.number % len(found)]
            self.claims.put(claim, {key: text for key, text in claim["status"].items() if key != "reservedFor"})

    def _waits(self, claim: Json) -> bool:
        pod = self.api.by_uid(claim["status"]["reservedFor"][0]["uid"])
        return pod is not None and not is_gated(pod) and not pod["spec"].get("nodeName")

    def cordon(self, node: str, *, on: bool = True) -> None:
        """What `kubectl cordon` and `uncordon` write."""
        found = self.api.objects.get(("Node", "", node))
        if found is not None and found["spec"].get("unschedulable", False) != on:
            self.api.write(found, spec={"unschedulable": on})

    # -- inside ---------------------------------------------------------------------------------------------------

    def _dice(self, name: str) -> Random:
        return Random(f"{name} {self.world.plan.seed}")

    def _watchers(self) -> list[ClusterHost]:
        return [host for host in self.world.hosts.values() if isinstance(host, ClusterHost)]

    def _can_speak(self, name: str) -> bool:
        broker = self.world.broker
        return broker.up and name not in broker.cut

    def _node_back(self, node: str) -> None:
        if ("Node", "", node) not in self.api.objects:
            self.api.create(node_object(node))

    def _beat(self) -> None:
        for node in self.kubelets.machines:
            found = self.api.objects.get(("Node", "", node))
            if found is not None:
                self.api.write(found, status={"beat": f"{self.world.clockwork.now:.0f}"})
        self.world.clockwork.after(HEARTBEAT_S, self._beat)


def quick_cluster(closing_ttl_s: int, unscheduled_after_s: float) -> ClusterConfig:
    """The cluster's rules, in a hurry. A node that is away for less than a minute is not said to be gone."""
    return ClusterConfig(
        closing_ttl_s=closing_ttl_s,
        retry_initial_s=0.5,
        retry_max_s=4.0,
        tell_after_s=1.0,
        unanswered_after_s=8.0,
        condition_interval_s=3.0,
        unscheduled_after_s=unscheduled_after_s,
        start_after_s=0.0,
        evict_retry_s=1.0,
        claim_told_after_s=2.0,
        claim_left_after_s=6.0,
        mirror_gpus=False,
    )
