"""
The spec of a Pod, as far as it says where the pod can run: its containers, and what it needs of a node besides GPUs.

Takes plain mappings and lists, as any reader of YAML or JSON makes them, and checks what it takes as the Kubernetes API
server would. What the containers ask of GPUs is not read here (`sluice.contracts.asking`), only handed on.
"""

from sluice.contracts.pod_specs.containers import read_containers
from sluice.contracts.pod_specs.host_needs import read_host_needs, with_node
from sluice.contracts.pod_specs.main_container import MainContainer, main_container

__all__ = ["MainContainer", "main_container", "read_containers", "read_host_needs", "with_node"]
