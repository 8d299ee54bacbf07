"""Reads rendered manifests: their containers, what those see of their environment, single objects."""

import re
from collections.abc import Callable, Iterator
from typing import Any

from deploy_check import COMPONENTS, OVERLAYS, Document, containers, pod_specs

from sluice.runtime.settings import CommonSettings, load
from sluice_allocator.settings import AllocatorSettings
from sluice_inventory.settings import InventorySettings
from sluice_node_agent.settings import NodeAgentSettings
from sluice_pod_watcher.settings import PodWatcherSettings

SETTINGS: dict[str, type[CommonSettings]] = {
    "allocator": AllocatorSettings,
    "inventory": InventorySettings,
    "node-agent": NodeAgentSettings,
    "pod-watcher": PodWatcherSettings,
}
VALUES = {"spec.nodeName": "gpu-1", "status.podIP": "10.1.2.3", "metadata.name": "sluice-nats-0"}
"""What a kubelet would put in."""
EVERY = [(overlay, components) for overlay in OVERLAYS for components in ((), COMPONENTS)]

Rendering = Callable[..., list[Document]]


def every_container(rendered: list[Document]) -> Iterator[tuple[Document, Document, Document]]:
    """Each object with its pods' spec and each of their containers."""
    for owner, spec in pod_specs(rendered):
        for container in containers(spec):
            yield owner, spec, container


def environment(container: Document) -> dict[str, str]:
    """The variables of a container as its process would see them."""
    seen: dict[str, str] = {}
    for entry in container.get("env", ()):
        raw = entry["value"] if "value" in entry else VALUES[entry["valueFrom"]["fieldRef"]["fieldPath"]]
        seen[entry["name"]] = re.sub(r"\$\(([A-Z_]+)\)", lambda match: seen[match[1]], raw)
    return seen


def settings_of(container: Document) -> Any:
    """As its service would have them; None when its image is of no service."""
    service = container["image"].partition(":")[0].removeprefix("sluice-")
    return load(SETTINGS[service], service=service, environ=environment(container)) if service in SETTINGS else None


def named(rendered: list[Document], kind: str, name: str) -> Document:
    (found,) = [each for each in rendered if each["kind"] == kind and each["metadata"]["name"] == name]
    return found


def nats_config(rendered: list[Document]) -> str:
    return named(rendered, "ConfigMap", "sluice-nats")["data"]["nats.conf"]


def pod_of(rendered: list[Document], kind: str, name: str) -> Document:
    """What the pods of an object are made from."""
    return named(rendered, kind, name)["spec"]["template"]["spec"]
