"""Planted bugs about a cluster's pods: their identity, their end, and what they are given."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from simulation.kube.reflector import Reflector
from simulation.plans.plan import Fault, FaultKind, Plan, PodLife, with_cluster
from simulation.plans.pods import REFUSED
from simulation.planted.bug import Bugs, PlantedBug, always, bug
from simulation.planted.kube_claims import CLAIM_BUGS_OF_CLUSTERS
from simulation.planted.troubles import disks_wiped_behind_the_bus

from sluice.contracts.messages import Bound
from sluice_allocator.core import recheck
from sluice_allocator.core.request import eviction_orders, grant_validity, reconcile
from sluice_pod_watcher.core.cluster import api_handler
from sluice_pod_watcher.core.cluster.api_handler import ApiHandler
from sluice_pod_watcher.core.cluster.events import BindPod, Failed, ListingEnded
from sluice_pod_watcher.core.cluster.nodes.node_capacity import NodeCapacity
from sluice_pod_watcher.core.cluster.pod_reconciler import PodReconciler
from sluice_pod_watcher.core.cluster.pods import pod_patches
from sluice_pod_watcher.core.cluster.pods.pod_record import PodRecord
from sluice_pod_watcher.core.cluster.pods.pod_view import read_pod
from sluice_pod_watcher.core.cluster.status_writer import StatusWriter

KUBE_BUGS = Bugs()


def _recreated_behind_a_lag(plan: Plan) -> Plan:
    """Watches lag far behind, and every pod is recreated at about the time of its binding."""
    lags = (Fault(at, "api lags", "", 4.0, 3) for at in range(2, 36, 4))
    return _only(plan, *lags, life=lambda life: _another(life, 4.5))


def _recreated_unseen(plan: Plan) -> Plan:
    """Pods are recreated while unobserved."""
    crashes = (Fault(float(at), "crash", "pod-watcher", 3.0) for at in (8, 16, 24, 32))
    return _only(plan, *crashes, life=lambda life: _another(life, 3.0))


def _without_label(plan: Plan) -> Plan:
    """A user takes labels off, and puts them back."""
    return _only(plan, life=lambda life: replace(life, spoiled_at=life.made_at + 2.0))


def _unlabelled_and_listed(plan: Plan) -> Plan:
    """The same, while watches break off and everything is listed again."""
    gaps = (Fault(float(at), "watch gap", "", 1.0, 1) for at in range(4, 36, 2))
    return _only(plan, *gaps, life=lambda life: replace(life, spoiled_at=life.made_at + 2.0))


def _lingering(plan: Plan) -> Plan:
    """Every pod is removed, and takes its time."""

    def life(life: PodLife) -> PodLife:
        return replace(life, removed_at=life.made_at + 5.0, pod=replace(life.pod, lingers_s=3.0))

    return _only(plan, life=life)


_FORGETS: tuple[FaultKind, ...] = (
    "broker wipe", "broker restart", "foreign", "node removed", "journal lost", "journal damaged", "disk wiped",
    "replica lags", "api away", "api busy", "api lags", "watch gap", "watch replays",
)  # fmt: skip


@KUBE_BUGS.plant("uid not tested", "cluster", pod_patches, "_uid", _recreated_behind_a_lag)
def _uid_not_tested(_original: Any, _uid: Any) -> dict[str, str]:
    """Writes go to the present pod of that name. Loses a pod that is started with the devices of its predecessor."""
    return {"op": "test", "path": "/kind", "value": "Pod"}


@KUBE_BUGS.plant("known by its name", "I4", ApiHandler, "read", _recreated_unseen)
def _known_by_its_name(original: Any, self: Any, event: Any, now: float) -> None:
    """Something is there under that name, so the pod is there.
    Loses the slice of every pod that was recreated unobserved."""
    if isinstance(event, Failed) or event.answer is None:
        original(self, event, now)
    else:
        self._seen(event.answer, now)
        record = self._context.pod_store.records.get(event.wanted.uid)
        if record is not None:
            record.needs_read, record.reading = False, type(record.reading)()


@KUBE_BUGS.plant("deleted believed", "cluster", ApiHandler, "_left", _without_label)
def _deleted_believed(_original: Any, self: Any, raw: Any, _now: float) -> None:
    """What a watch calls DELETED is gone. Loses the slice of a running pod when its label is taken off."""
    view = read_pod(raw)
    if view is not None:
        self._gone(view.uid)


@KUBE_BUGS.plant("not listed is gone", "cluster", ApiHandler, "_listing", _unlabelled_and_listed)
def _not_listed_is_gone(original: Any, self: Any, event: Any) -> None:
    """A listing is whole, so what is not in it is gone.
    Loses the slice of a running pod that a listing does not show."""
    if isinstance(event, ListingEnded) and self.listing.is_under_way:
        for uid in [uid for uid in self._context.pod_store.records if uid not in self.listing._shown]:
            self._gone(uid)
    original(self, event)


@KUBE_BUGS.plant("dying is over", "cluster", api_handler, "read_pod", _lingering)
def _dying_is_over(original: Any, raw: Any) -> Any:
    """A pod to be deleted needs nothing any more.
    Loses the devices under a program that is still writing its checkpoint."""
    view = original(raw)
    return replace(view, has_ended=view.has_ended or view.dying) if view is not None else None


@KUBE_BUGS.plant("let go before it is granted", "cluster", PodReconciler, "settle", with_cluster)
def _let_go_before(original: Any, self: Any, record: Any, now: float) -> None:
    """A pod that the allocator knows of is let go: its slice will be there by the time that it starts.
    Loses a pod on a node where it has nothing."""
    view = record.view
    waits = view is not None and view.is_gated and record.active and record.pending is not None
    if waits and not record.writing.under_way and not isinstance(record.answer, Bound):
        record.writing.under_way = True
        patch = ({"op": "remove", "path": "/spec/schedulingGates"},)
        self.out.append(BindPod(record.uid, record.namespace, record.name, patch))
    original(self, record, now)


def _goes_on_after_410(_original: Any, self: Any) -> None:
    """The watch goes on with what happens from here on."""
    self.at = len(self.api.history)


@KUBE_BUGS.plant("never taken back", "cluster", StatusWriter, "_condition", with_cluster)
def _never_taken_back(original: Any, self: Any, record: Any, view: Any, problem: Any, now: float) -> Any:
    """Nothing is the matter, so there is nothing to write.
    Loses trust in what kubectl shows: a running pod that is said to wait."""
    return original(self, record, view, problem, now) if problem is not None else ([], [])


# Too rare by chance: a call must be late, its answer missing, the API server busy and the bus wiped, in this order.
@bug("a read settles a patch", "bound once", PodReconciler, "pod_read")
def read_is_settled(original: Any, self: Any, record: Any) -> None:
    """What a pod looks like now is what became of every patch that was sent.
    Loses the slice that it was let go with: its patch landed after it was read, and after the bus was wiped."""
    original(self, record)
    record.confirm_by = ""


# -- where it matters -------------------------------------------------------------------------------------------------


def _only(plan: Plan, *more: Fault, life: Callable[[PodLife], PodLife] = lambda life: life) -> Plan:
    """A cluster's plan without what forgets something, with these faults and pods that live like this."""
    plan = with_cluster(plan)
    faults = [fault for fault in plan.faults if fault.kind not in _FORGETS]
    ordered = tuple(sorted((*faults, *more), key=lambda fault: fault.at))
    return replace(plan, faults=ordered, pods=tuple(life(each) for each in plan.pods))


def _another(life: PodLife, after_s: float) -> PodLife:
    """Another pod of that name comes so long after it."""
    return replace(life, edited_at=life.made_at + after_s, edit=life.pod.ask, removed_at=None)


def _gaps(plan: Plan) -> Plan:
    """Watches break off for long, again and again."""
    return _only(plan, *(Fault(float(at), "watch gap", "", 4.0, 1) for at in (5, 15, 25, 35)))


def _reboots(plan: Plan) -> Plan:
    """Nodes are rebooted: slices are recreated under other UUIDs."""
    return _only(plan, *(Fault(20.0 + at, "reboot", node, 2.0, 0) for at, (node, _) in enumerate(plan.nodes)))


def _forgotten_as_they_go(plan: Plan) -> Plan:
    """A pod is refused, and ends while its request is forgotten and no process can withdraw it."""
    crash, restart = Fault(12.0, "crash", "pod-watcher", 4.0), Fault(12.1, "broker restart", "", 2.0, 20)
    plan = _only(plan, crash, restart)
    refused = PodLife(replace(plan.pods[0].pod, ask=REFUSED), 11.5, removed_at=13.0)
    return replace(plan, pods=(refused, *plan.pods[1:]))


RELEASE_FORGOTTEN = PlantedBug(
    "lost slice forgotten with the bus",
    "its pod's end, and its place, to a pod whose eviction was refused when the broker was wiped",
    ("I4",),
    ((PodRecord, "is_lost", property(always(False))), (eviction_orders, "why_taken_back", always(None))),
)
"""
Too rare by chance for the dose: it has a schedule of its own in `test_kube`. The allocator would have the pod evicted,
if it did not forget that, too."""
KUBE_BUGS += [
    PlantedBug(
        "goes on after 410",
        "pods that are never seen, and slices that are never released",
        ("I4", "I3", "cluster"),
        ((Reflector, "too_old", _goes_on_after_410), (Reflector, "resync", always(None))),
        _gaps,
    ),
    PlantedBug(
        "told once",
        "a pod that names a device of before the reboot",
        ("cluster", "I4"),
        ((PodReconciler, "_annotate", always(None)),),
        _reboots,
    ),
    PlantedBug(
        "given another elsewhere",
        "a slice on another node, for ever, to a pod that cannot leave its own",
        ("bound once", "I4"),
        ((reconcile, "why_lost", always(None)), (grant_validity, "why_lost", always(None))),
        lambda plan: with_cluster(disks_wiped_behind_the_bus(plan)),
    ),
    PlantedBug(
        "an unrequested answer stays",
        "room on the bus: a word for ever, of every pod that went while the broker forgot what it asked for",
        ("I3",),
        ((recheck, "watch_answer", always(None)),),
        _forgotten_as_they_go,
    ),
    *CLAIM_BUGS_OF_CLUSTERS,
]
KEPT_OUT = PlantedBug(
    "pinned without a node check",
    "its start: a pod of the moment after a cordon waits for the end of that, with its slice",
    ("cluster",),
    ((grant_validity, "blocking_predicate", always("")), (NodeCapacity, "why_kept_out", always(""))),
)
"""Schedules of their own play this one and the next two: a moment of a few milliseconds has to be hit."""


NOT_TAKEN_BACK = PlantedBug(
    "declined slice kept",
    "its start for as long as the cordon lasts, and other pods the slice",
    ("I4",),
    ((reconcile, "is_declined", always(False)), (grant_validity, "is_declined", always(False))),
)
DECLINED_FORGOTTEN = PlantedBug(
    "pinned with a declined slice",
    "its slice: it is being taken back",
    ("cluster",),
    ((PodRecord, "has_declined", always(False)),),
)
