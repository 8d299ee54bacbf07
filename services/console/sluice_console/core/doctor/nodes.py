"""
Check a cluster's nodes from objects as `kubectl` shows them: missing agents, unregistered drivers, other device plugins
on the same GPUs.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from sluice.contracts.kube.names import CSI_DRIVER
from sluice.contracts.kube.taints import untolerated
from sluice.contracts.messages import Taint, Toleration
from sluice_console.core.doctor.findings import Check, FindingDocument, counted, named, ok, problem, warning
from sluice_console.core.doctor.kube_objects import Object, at, by_name, is_so, items, labels, name

AGENT = "sluice-node-agent"
GPU_PRESENT = "nvidia.com/gpu.present"
"""The label that NVIDIA's feature discovery puts on nodes with GPUs (NVIDIA/gpu-operator)."""
_OF_DEVICE_PLUGIN = ("nvidia.com/gpu", "nvidia.com/mig-")
"""Resources that a device plugin allocates."""
_TOLERATED_BY_ITSELF = "node.kubernetes.io/"
"""https://kubernetes.io/docs/concepts/workloads/controllers/daemonset/#taints-and-tolerations"""


def check_nodes(
    *,
    daemonsets: Sequence[Object] | None,
    agents: Sequence[Object] | None,
    nodes: Sequence[Object] | None,
    csinodes: Sequence[Object] | None,
    runtimes: Sequence[Object] | None,
) -> Iterator[FindingDocument]:
    """Run the checks; None is what could not be read."""
    if daemonsets is None or nodes is None:
        return
    daemonset = by_name(daemonsets).get(AGENT)
    if daemonset is None:
        yield problem(
            Check.NODES,
            f"the DaemonSet {AGENT} is not there, so no node has an agent",
            "kubectl apply -k, with your overlay (docs/install.md)",
        )
        return
    spec = at(daemonset, "spec", "template", "spec") or {}
    yield from _runtime(spec, runtimes)
    chosen = [node for node in nodes if _is_chosen(node, spec)]
    if not chosen:
        yield problem(
            Check.NODES,
            "no node has an agent",
            "kubectl label node NODE sluice.dev/agent=true, for each node with GPUs",
        )
    found: list[FindingDocument] = []
    if agents is not None:
        found += _without_agent(chosen, agents)
    found += _two_hands(chosen)
    found += _unregistered(chosen, agents, csinodes)
    yield from found
    idle = [
        name(node)
        for node in nodes
        if node not in chosen and (labels(node).get(GPU_PRESENT) == "true" or _plugin_resources(node))
    ]
    if idle:
        yield warning(
            Check.NODES,
            f"have GPUs and no agent: {named(idle)}",
            "nothing, if another system manages them; otherwise label them sluice.dev/agent=true (docs/operations.md)",
        )
    if chosen and not found:
        yield ok(Check.NODES, f"{counted(len(chosen), 'node')} with an agent")


# -- inside -------------------------------------------------------------------------------------------------------


def _is_chosen(node: Object, spec: Object) -> bool:
    """Whether the DaemonSet's controller runs a pod there: labels, and taints but those that it tolerates by itself."""
    selector: Mapping[str, str] = spec.get("nodeSelector") or {}
    if any(labels(node).get(key) != value for key, value in selector.items()):
        return False
    taints = [
        Taint(key=each["key"], value=each.get("value", ""), effect=each["effect"])
        for each in items(node, "spec", "taints")
        if not each["key"].startswith(_TOLERATED_BY_ITSELF)
    ]
    return not untolerated(taints, msgspec.convert(spec.get("tolerations") or [], list[Toleration]))


def _runtime(spec: Object, runtimes: Sequence[Object] | None) -> Iterator[FindingDocument]:
    wanted = spec.get("runtimeClassName")
    if wanted and runtimes is not None and wanted not in by_name(runtimes):
        yield problem(
            Check.NODES,
            f"there is no RuntimeClass {wanted}, which the agents use: their pods are refused",
            "create it, for the handler of the NVIDIA runtime (docs/operations.md)",
        )


def _without_agent(chosen: Sequence[Object], agents: Sequence[Object]) -> Iterator[FindingDocument]:
    by_node: dict[str, list[Object]] = {}
    for pod in agents:
        by_node.setdefault(str(at(pod, "spec", "nodeName") or ""), []).append(pod)
    missing = [name(node) for node in chosen if name(node) not in by_node]
    if missing:
        yield problem(
            Check.NODES,
            f"have no agent, although they should: {named(missing)}",
            "kubectl --namespace sluice-nodes describe daemonset sluice-node-agent",
        )
    for node in chosen:
        pods = by_node.get(name(node), [])
        if pods and not any(is_so(pod, "Ready") for pod in pods):
            yield problem(
                Check.NODES,
                f"the agent of {name(node)} is not ready{_why(pods[0])}; no pod with a slice starts there",
                f"kubectl --namespace sluice-nodes logs {name(pods[0])} --all-containers",
            )


def _why(pod: Object) -> str:
    """Why its containers wait, from the kubelet."""
    for status in items(pod, "status", "containerStatuses"):
        reason, message = (at(status, "state", "waiting", key) for key in ("reason", "message"))
        if reason:
            return f" ({status.get('name')}: {reason}{': ' if message else ''}{message or ''})"
    return ""


def _two_hands(chosen: Sequence[Object]) -> Iterator[FindingDocument]:
    both = [name(node) for node in chosen if _plugin_resources(node)]
    if both:
        yield problem(
            Check.NODES,
            f"a device plugin hands out GPUs where an agent does: {named(both)}; two pods would get one device",
            "keep the device plugin off these nodes (docs/operations.md)",
        )


def _plugin_resources(node: Object) -> list[str]:
    there = at(node, "status", "allocatable") or {}
    return [each for each, amount in there.items() if each.startswith(_OF_DEVICE_PLUGIN) and str(amount) != "0"]


def _unregistered(
    chosen: Sequence[Object], agents: Sequence[Object] | None, csinodes: Sequence[Object] | None
) -> Iterator[FindingDocument]:
    if agents is None or csinodes is None:
        return
    registered = {
        name(each) for each in csinodes if any(at(d, "name") == CSI_DRIVER for d in items(each, "spec", "drivers"))
    }
    ready = {str(at(pod, "spec", "nodeName")) for pod in agents if is_so(pod, "Ready")}
    lacking = [name(node) for node in chosen if name(node) in ready and name(node) not in registered]
    if lacking:
        yield problem(
            Check.NODES,
            f"the kubelet does not know the driver {CSI_DRIVER}: {named(lacking)}; no pod with a slice starts there",
            "is the kubelet's root another directory than /var/lib/kubelet? (docs/csi.md)",
        )
