"""
Compare a cluster's objects, as `kubectl` shows them, with what deploy/kubernetes installs.

`bus` checks the bus; admission, nodes and quotas have modules of their own.
"""

from collections.abc import Iterator
from datetime import datetime

from sluice.contracts.kube.names import ANNOTATION_REQUEST, CONDITION_READY, CRD_GPUS, CSI_DRIVER, GATE, LABEL_MANAGED
from sluice_console.core.doctor.admission import check_admission
from sluice_console.core.doctor.cluster_view import (
    APPLY,
    BROKER,
    DEPLOYMENTS,
    KINDS,
    ROLES,
    SYSTEM,
    WATCHER,
    ObservedCluster,
    replicas,
)
from sluice_console.core.doctor.findings import Check, FindingDocument, counted, named, ok, problem, unknown, warning
from sluice_console.core.doctor.kube_objects import (
    Object,
    at,
    by_name,
    condition,
    containers,
    full_name,
    is_so,
    items,
    labels,
    name,
)
from sluice_console.core.doctor.nodes import check_nodes
from sluice_console.core.doctor.pod_start import check_starting
from sluice_console.core.doctor.storage import check_storage

PLAIN_TEXT = "SLUICE_GRPC_PLAIN_TEXT"
UNTOLD_S = 300.0
"""A pod that waits longer without a reason is reported: reasons arrive after seconds or, with very many pods,
minutes."""


def check_cluster(seen: ObservedCluster) -> list[FindingDocument]:
    """Run all checks on what could be read."""
    return [
        *_unread(seen),
        *_services(seen),
        *check_storage(seen),
        *_plain_text(seen),
        *_images(seen),
        *check_admission(seen),
        *_volume(seen),
        *_mirror(seen),
        *_rights(seen),
        *check_nodes(
            daemonsets=seen.of("daemonsets"),
            agents=seen.of("agents"),
            nodes=seen.of("nodes"),
            csinodes=seen.of("csinodes"),
            runtimes=seen.of("runtimes"),
        ),
        *_waiting(seen),
        *check_starting(seen),
    ]


# -- inside -------------------------------------------------------------------------------------------------------


def _unread(seen: ObservedCluster) -> Iterator[FindingDocument]:
    for kind, why in seen.problems.items():
        yield unknown(Check.CLUSTER, f"{KINDS[kind].resource}: {why}", "run this as a user who may list them")
    if not seen.problems:
        yield ok(Check.CLUSTER, f"the API server of {seen.where} answers")


def _services(seen: ObservedCluster) -> list[FindingDocument]:
    found: list[FindingDocument] = []
    well = []
    for kind, wanted in (("deployments", DEPLOYMENTS), ("brokers", (BROKER,))):
        objects = seen.of(kind)
        if objects is None:
            continue  # reported as not checked
        there = by_name(objects)
        for service in wanted:
            if service not in there:
                found.append(problem(Check.SERVICES, f"{service} is not there", APPLY))
                continue
            ready, wanted_ready = replicas(there[service])
            if ready < wanted_ready:
                what = f"{service}: {ready} of {wanted_ready} ready{'' if ready else _consequence(service)}"
                remedy = f"kubectl --namespace {SYSTEM} describe pods, and their logs"
                found.append(problem(Check.SERVICES, what, remedy))
            else:
                well.append(service)
    if well and not found:
        found.append(ok(Check.SERVICES, f"{', '.join(well)} are ready"))
    return found


def _consequence(service: str) -> str:
    return {
        "sluice-webhook": "; pods that ask for GPUs cannot be created",
        WATCHER: "; new pods wait at their gate, and slices of ended pods are not released",
        "sluice-allocator": "; nothing new is granted",
        "sluice-inventory": "; the allocator decides from outdated node data",
        BROKER: "; nothing is decided",
    }[service]


def _plain_text(seen: ObservedCluster) -> Iterator[FindingDocument]:
    """Services that serve gRPC without TLS, by their own settings."""
    without = {
        name(each)
        for kind in ("deployments", "daemonsets")
        for each in seen.of(kind) or ()
        for container in containers(at(each, "spec", "template", "spec") or {})
        for variable in items(container, "env")
        if at(variable, "name") == PLAIN_TEXT and str(at(variable, "value")).lower() == "true"
    }
    if without:
        yield warning(
            Check.SERVICES,
            f"serve gRPC in plain text ({PLAIN_TEXT}): {named(sorted(without))}; whatever reaches them may call them",
            "nothing where only trusted processes reach them; otherwise give them certificates (docs/install.md)",
        )


def _images(seen: ObservedCluster) -> Iterator[FindingDocument]:
    tags: dict[str, set[str]] = {}
    for kind in ("deployments", "daemonsets"):
        for each in seen.of(kind) or ():
            for container in containers(at(each, "spec", "template", "spec") or {}):
                reference, _, _ = str(container.get("image", "")).partition("@")  # each image has a digest of its own
                image, _, tag = reference.rpartition(":")
                if "sluice-" in image and "/" not in tag:
                    tags.setdefault(tag, set()).add(name(each))
    if len(tags) > 1:
        listed = "; ".join(f"{tag}: {named(sorted(who))}" for tag, who in sorted(tags.items()))
        remedy = "finish the upgrade; while it goes on, this is as it should be"
        yield warning(Check.VERSIONS, f"images differ: {listed}", remedy)


def _volume(seen: ObservedCluster) -> Iterator[FindingDocument]:
    drivers = seen.of("drivers")
    if drivers is None:
        return
    ours = by_name(drivers).get(CSI_DRIVER)
    if ours is None:
        yield problem(Check.VOLUME, f"the CSIDriver {CSI_DRIVER} is not there: no pod with a slice can start", APPLY)
    elif "Ephemeral" not in items(ours, "spec", "volumeLifecycleModes") or not at(ours, "spec", "podInfoOnMount"):
        yield problem(
            Check.VOLUME,
            f"the CSIDriver {CSI_DRIVER} must have volumeLifecycleModes Ephemeral and podInfoOnMount true",
            f"kubectl delete csidriver {CSI_DRIVER}, then {APPLY}; running pods are not touched",
        )
    else:
        yield ok(Check.VOLUME, f"the CSIDriver {CSI_DRIVER} is there")


def _mirror(seen: ObservedCluster) -> Iterator[FindingDocument]:
    definitions = seen.of("definitions")
    if definitions is None:
        return
    ours = by_name(definitions).get(CRD_GPUS)
    if ours is None:
        yield warning(Check.MIRROR, f"{CRD_GPUS} is not there: `kubectl get gpus` knows nothing", APPLY)
    elif not is_so(ours, "Established"):
        yield warning(
            Check.MIRROR, f"{CRD_GPUS} is not established", f"kubectl describe customresourcedefinition {CRD_GPUS}"
        )
    else:
        yield ok(Check.MIRROR, "`kubectl get gpus` has its definition")


def _rights(seen: ObservedCluster) -> Iterator[FindingDocument]:
    roles, bindings = seen.of("roles"), seen.of("rolebindings")
    if roles is None or bindings is None:
        return
    there = by_name(roles)
    bound = {
        (str(at(each, "roleRef", "name")), str(at(subject, "namespace")), str(at(subject, "name")))
        for each in bindings
        for subject in items(each, "subjects")
    }
    lacking = [role for role in ROLES if role not in there or (role, SYSTEM, role) not in bound]
    if lacking:
        yield problem(
            Check.RIGHTS,
            f"no ClusterRole, or none bound to its account: {named(lacking)}; its calls are refused",
            APPLY,
        )
    else:
        yield ok(Check.RIGHTS, f"{named(ROLES)} have their roles")


def _waiting(seen: ObservedCluster) -> Iterator[FindingDocument]:
    pods = seen.of("waiting")
    if pods is None:
        return
    gated = [pod for pod in pods if GATE in _gates(pod) and not at(pod, "metadata", "deletionTimestamp")]
    by_hand = [
        full_name(pod)
        for pod in gated
        if LABEL_MANAGED not in labels(pod) or ANNOTATION_REQUEST not in (at(pod, "metadata", "annotations") or {})
    ]
    ours = [pod for pod in gated if full_name(pod) not in by_hand]
    deployments = seen.of("deployments")
    watcher = by_name(deployments).get(WATCHER) if deployments is not None else None
    away = deployments is not None and (watcher is None or not replicas(watcher)[0])
    untold = [
        full_name(pod)
        for pod in ours
        if _gates(pod) == [GATE] and condition(pod, CONDITION_READY) is None and _waits_s(pod, seen.now_s) > UNTOLD_S
    ]
    if by_hand:
        yield problem(
            Check.WAITING,
            f"have the gate {GATE} and never passed admission, so it will not be opened: {named(by_hand)}",
            "delete them and create them again without the gate",
        )
    if ours and away:
        yield problem(
            Check.WAITING,
            f"{counted(len(ours), 'pod')} wait and no pod-watcher is ready: {named(full_name(pod) for pod in ours)}",
            "start it; to do without Sluice: sh deploy/kubernetes/uninstall.sh gates",
        )
    elif untold:
        yield problem(
            Check.WAITING,
            f"wait for over {UNTOLD_S / 60:g} minutes without a reason: {named(untold)}",
            f"kubectl --namespace {SYSTEM} logs deployment/{WATCHER}; sluice explain POD",
        )
    elif ours:
        yield ok(Check.WAITING, f"{counted(len(ours), 'pod')} wait for a slice; kubectl describe pod says for what")
    elif not by_hand:
        yield ok(Check.WAITING, "no pod waits for a slice")


def _gates(pod: Object) -> list[str]:
    return [str(gate.get("name")) for gate in items(pod, "spec", "schedulingGates")]


def _waits_s(pod: Object, now_s: float) -> float:
    try:
        made = datetime.fromisoformat(str(at(pod, "metadata", "creationTimestamp")))
    except ValueError:
        return 0.0
    return now_s - made.timestamp()
