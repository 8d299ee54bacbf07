"""The kubelet's pod-resources API, by which monitoring learns which devices a container has."""

from typing import Any

import grpc
from cluster.harness.cluster import Cluster

protos, services = grpc.protos_and_services("cluster/pod_resources.proto")
WITHIN_S = 10.0


def by_container(cluster: Cluster, machine: str) -> dict[tuple[str, str, str], list[Any]]:
    """(namespace, pod, container) -> its `DynamicResource`s, as the kubelet of a machine lists them."""
    (node,) = [each for each in cluster.workers if each.name == machine]
    socket = f"/proc/{node.box.pid}/root/var/lib/kubelet/pod-resources/kubelet.sock"
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        told = services.PodResourcesListerStub(channel).List(protos.ListPodResourcesRequest(), timeout=WITHIN_S)
    return {
        (pod.namespace, pod.name, each.name): list(each.dynamic_resources)
        for pod in told.pod_resources
        for each in pod.containers
    }
