"""
Read the scheduling part of a Pod's spec: its containers, its node needs besides GPUs, and its priority.

Takes plain mappings and lists, as from YAML or JSON, and validates what it reads as the Kubernetes API server would.
The containers' GPU requests are passed on unread (`sluice.contracts.request_syntax`).
"""

from sluice.contracts.pod_specs.containers import MainContainer, literal_variable, main_container, read_containers
from sluice.contracts.pod_specs.host_needs import read_host_needs, read_node_terms, read_pod_labels, with_node
from sluice.contracts.pod_specs.pod_affinity import unknown_demands
from sluice.contracts.pod_specs.pod_priority import (
    NO_PRIORITY,
    PodPriority,
    PriorityClass,
    read_priority,
    read_priority_class,
    unknown_class,
    with_priority_class,
)

__all__ = [
    "NO_PRIORITY",
    "MainContainer",
    "PodPriority",
    "PriorityClass",
    "literal_variable",
    "main_container",
    "read_containers",
    "read_host_needs",
    "read_node_terms",
    "read_pod_labels",
    "read_priority",
    "read_priority_class",
    "unknown_class",
    "unknown_demands",
    "with_node",
    "with_priority_class",
]
